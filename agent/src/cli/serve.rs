//! `serve`: the daemon; `grow-persist`: the one-shot of its own unit.

use super::Where;
use os_agent::engine::Engine;
use os_agent::error::{AgentError, Result};
use os_agent::node;
use os_agent::server::{self, Access, Socket};
use os_agent::{grow_persist as grow, metrics, notify, sys::discover};
use os_proto::codes::Code;
use std::io::IsTerminal;
use tokio::signal::unix::{SignalKind, signal};
use tracing_subscriber::prelude::*;

/// Runs the agent until SIGTERM or SIGINT.
pub(crate) async fn run(place: Where, handle: tokio::runtime::Handle) -> Result<()> {
    if place.disk.is_some() {
        return Err(AgentError::new(
            Code::InvalidArgument,
            "serve works on the running node: leave --disk out",
        ));
    }
    log();
    // A broken configuration must not keep a trial from being judged, nor a node from falling back.
    let (config, config_error) = match node::config(place.config.as_deref()) {
        Ok(c) => (c, None),
        Err(e) => (os_agent::config::Config::default(), Some(e)),
    };
    let ping = config.watchdog_ping;
    let textfile = config.metrics_textfile.clone();
    let access = Access::group(os_proto::SOCKET_GROUP);
    let socket = Socket::bind(&place.socket, access)?;
    let start = tokio::task::spawn_blocking(move || {
        let (ports, options) = node::online(handle, config);
        let engine = Engine::start(ports, options);
        if let Some(e) = config_error {
            tracing::error!(%e, "configuration; the defaults are used");
            engine.report(e);
        }
        engine
    });
    let engine = start
        .await
        .map_err(|e| AgentError::new(Code::Internal, format!("start: {e}")))?;
    let mut term = signal(SignalKind::terminate())
        .map_err(|e| AgentError::new(Code::Internal, format!("signals: {e}")))?;
    let stop = async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
        tracing::info!("stopping");
        notify::stopping();
    };
    let attend = tokio::spawn(notify::attend(engine.clone(), ping));
    let keeper =
        (!textfile.as_str().is_empty()).then(|| tokio::spawn(metrics::keep(engine.clone(), textfile)));
    notify::ready();
    let result = server::serve(engine.clone(), socket, access, stop).await;
    attend.abort();
    if let Some(k) = keeper {
        k.abort();
    }
    let ended = tokio::task::spawn_blocking(move || engine.shut_down()).await;
    if let Err(e) = ended {
        tracing::error!(%e, "shutting down");
    }
    result
}

/// Relays the kubelet's connections until SIGTERM or SIGINT.
pub(crate) async fn api_proxy(file: &camino::Utf8Path) -> Result<()> {
    log();
    let mut term = signal(SignalKind::terminate())
        .map_err(|e| AgentError::new(Code::Internal, format!("signals: {e}")))?;
    os_agent::apiproxy::serve(file, async move {
        tokio::select! {
            _ = term.recv() => {}
            _ = tokio::signal::ctrl_c() => {}
        }
    })
    .await
}

/// Logs to the journal where there is one, else to standard error.
pub(super) fn log() {
    let filter = || {
        tracing_subscriber::EnvFilter::try_from_env("OS_AGENT_LOG")
            .unwrap_or_else(|_| tracing_subscriber::EnvFilter::new("info,h2=warn,hyper=warn,tower=warn"))
    };
    let journal = std::env::var_os("JOURNAL_STREAM")
        .and_then(|_| tracing_journald::layer().ok())
        .map(|l| {
            l.with_syslog_identifier("os-agent".to_owned())
                .with_field_prefix(Some("OS_AGENT".to_owned()))
        });
    match journal {
        Some(l) => tracing_subscriber::registry().with(l).with(filter()).init(),
        None => tracing_subscriber::fmt()
            .with_env_filter(filter())
            .with_writer(std::io::stderr)
            .with_ansi(std::io::stderr().is_terminal())
            .init(),
    }
}

/// Grows PERSIST to the end of the disk.
pub(crate) async fn grow_persist(place: &Where) -> Result<()> {
    let offline = place.offline();
    let layout = match &offline {
        Some(d) => discover::offline(&d.disk, d.running)?,
        None => discover::online()?,
    };
    let grown = tokio::task::spawn_blocking(move || grow::run(&layout))
        .await
        .map_err(|e| AgentError::new(Code::Internal, format!("grow-persist: {e}")))??;
    let (before, now) = (grown.partition_before >> 20, grown.partition_now >> 20);
    // The kernel grows a file system only while it is mounted.
    let later = if grown.fs_now.is_none() {
        "; its file system grows when the node boots from this disk"
    } else {
        ""
    };
    let text = if grown.changed() {
        format!("PERSIST grew from {before} to {now} MiB{later}\n")
    } else {
        format!("PERSIST ends with the disk already ({now} MiB)\n")
    };
    let doc = serde_json::json!({
        "changed": grown.changed(),
        "partition_bytes_before": grown.partition_before, "partition_bytes": grown.partition_now,
        "file_system_bytes_before": grown.fs_before, "file_system_bytes": grown.fs_now,
    });
    super::print(place.json, &doc, &text);
    Ok(())
}
