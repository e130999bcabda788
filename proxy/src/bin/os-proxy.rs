//! The program of the DaemonSet: takes its own node through updates.

use anyhow::{Context, Result};
use clap::Parser;
use os_proxy::proxy::metrics;
use os_proxy::proxy::run::{Settings, run};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

const HELP: &str = "\
Environment: in a pod the service account is used, elsewhere KUBECONFIG or ~/.kube/config; RUST_LOG says how much is logged \
(default info).

Exit codes: 0 stopped by SIGTERM or SIGINT (what is under way goes on at the next start); 1 could not begin (no cluster, address \
in use), said on standard error; 2 wrong arguments. An agent or a server that does not answer is waited for.

Pages: /metrics, /healthz, /readyz. See docs/rollout.md.";

/// Takes its own node through updates that os-operator grants.
#[derive(Debug, Parser)]
#[command(version, about, after_help = HELP)]
struct Args {
    /// Name of this node, from the downward API.
    #[arg(long, env = "NODE_NAME")]
    node: String,
    /// The agent's socket. The default is where KubeOS's DaemonSet mounts it; on a host it is the agent's own path.
    #[arg(
        long,
        env = "OS_AGENT_SOCKET",
        default_value = "/var/run/os-agent/os-agent.sock"
    )]
    socket: PathBuf,
    /// Address of /metrics, /healthz and /readyz.
    #[arg(long, default_value = "0.0.0.0:8080", env = "HTTP_ADDRESS")]
    http: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    os_proxy::connect::start_logging();
    if rustls::crypto::ring::default_provider()
        .install_default()
        .is_err()
    {
        tracing::debug!("a TLS provider is installed already");
    }
    let config = kube::Config::infer()
        .await
        .context("no cluster: expected a service account in the pod, or a kubeconfig")?;
    let client = os_proxy::connect::client(config, "os-proxy")?;
    let settings = Settings {
        node: args.node,
        socket: args.socket,
        clock: os_proxy::clock::now,
        tuning: Default::default(),
        backoff_min: Duration::from_secs(1),
    };
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate())?;
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    };
    let listener = tokio::net::TcpListener::bind(&args.http)
        .await
        .with_context(|| format!("listening on {}", args.http))?;
    let pages = tokio::spawn(os_proxy::http::serve(listener, Arc::new(metrics::ProxyPages)));
    run(client, settings, stop).await;
    pages.abort();
    Ok(())
}
