//! The program of the DaemonSet: takes its own node through updates.

use anyhow::{Context, Result};
use clap::Parser;
use os_proxy::proxy::run::{Settings, run};
use std::path::PathBuf;
use std::time::Duration;

/// Takes its own node through updates that os-operator grants.
#[derive(Debug, Parser)]
#[command(version, about)]
struct Args {
    /// Name of this node, from the downward API.
    #[arg(long, env = "NODE_NAME")]
    node: String,
    /// The agent's socket.
    #[arg(long, env = "OS_AGENT_SOCKET", default_value = os_proto::SOCKET_PATH)]
    socket: PathBuf,
    /// Where /metrics, /healthz and /readyz are served; empty = nowhere.
    #[arg(long, env = "LISTEN", default_value = "[::]:8081")]
    listen: String,
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<()> {
    let args = Args::parse();
    os_proxy::connect::start_logging();
    let config = kube::Config::infer()
        .await
        .context("no cluster: expected a service account in the pod, or a kubeconfig")?;
    let client = os_proxy::connect::client(config, "os-proxy")?;
    let settings = Settings {
        node: args.node,
        socket: args.socket,
        clock: os_proxy::connect::now,
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
    run(client, settings, stop).await;
    Ok(())
}
