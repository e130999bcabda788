//! What a program does at start: the client, the log.

use anyhow::{Context, Result};
use kube::{Client, Config};

/// A client that retries nothing by itself: evictions and writes with a precondition must see every answer, and a loop that
/// looks again anyway needs no second one. `agent` is what the audit log calls us.
///
/// # Errors
/// The certificates or the token cannot be used.
pub fn client(mut config: Config, agent: &str) -> Result<Client> {
    config.default_retry = false;
    // A watch is renewed after 290 s; what is silent for longer is broken.
    config.read_timeout = Some(std::time::Duration::from_secs(295));
    let name = http::HeaderValue::from_str(&format!("{agent}/{}", env!("CARGO_PKG_VERSION")))?;
    config.headers.push((http::header::USER_AGENT, name));
    Client::try_from(config).context("the cluster's address or certificates cannot be used")
}

/// An error's causes, from the outside in.
pub fn chain(e: &dyn std::error::Error) -> String {
    let mut text = Vec::new();
    let mut next = e.source();
    while let Some(e) = next {
        text.push(e.to_string());
        next = e.source();
    }
    text.join(": ")
}

/// Log lines to standard error; `RUST_LOG` chooses which, as in KubeOS.
pub fn start_logging() {
    let filter = tracing_subscriber::EnvFilter::try_from_default_env()
        .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info"));
    tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(false)
        .with_target(false)
        .init();
}
