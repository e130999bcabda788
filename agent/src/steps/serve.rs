//! The runner's unit: its own socket, its own tick.

use super::metrics::Meter;
use super::rpc::StepsService;
use crate::error::{AgentError, Result};
use crate::server::{Access, Socket};
use os_proto::codes::Code;
use os_proto::v1::steps_server::StepsServer;
use os_steps::sys::clock::{Stop, monotonic};
use os_steps::tick::Service;
use std::sync::Arc;
use std::sync::mpsc::sync_channel;
use tokio::sync::broadcast;
use tokio_stream::wrappers::UnixListenerStream;

/// Events that a slow watcher may be behind before it loses some.
const BACKLOG: usize = 256;

/// A channel for events, and the sink that fills it and counts.
pub fn events(meter: Meter) -> (broadcast::Sender<os_steps::run::Event>, os_steps::run::Sink) {
    let (tx, _) = broadcast::channel(BACKLOG);
    let sender = tx.clone();
    let sink: os_steps::run::Sink = Arc::new(move |e: &os_steps::run::Event| {
        meter.count(e, monotonic());
        // Nobody watches: nothing to do.
        let _ = sender.send(e.clone());
    });
    (tx, sink)
}

/// Ticks and serves until `end`, then stops a running step and returns.
///
/// # Errors
/// `Busy` when another runner serves, `Internal` when the transport fails.
pub async fn serve(
    service: Service,
    events: broadcast::Sender<os_steps::run::Event>,
    socket: Socket,
    access: Access,
    end: impl Future<Output = ()> + Send + 'static,
) -> Result<()> {
    let stop: Stop = service.runner.stop.clone();
    let service = Arc::new(service);
    let (wake, woken) = sync_channel(1);
    let rpc = StepsService::new(service.clone(), events, access, wake);
    let ticking = tokio::task::spawn_blocking(move || service.serve(&woken));
    let (listener, path, _lock) = socket.into_parts();
    let ended = stop.clone();
    let serving = tonic::transport::Server::builder()
        .concurrency_limit_per_connection(16)
        .add_service(StepsServer::new(rpc))
        .serve_with_incoming_shutdown(UnixListenerStream::new(listener), async move {
            end.await;
            ended.stop();
        });
    let served = tokio::select! {
        r = serving => r.map_err(|e| AgentError::new(Code::Internal, format!("{path}: {e}"))),
        // Watchers must not keep a stopped runner.
        () = async {
            while !stop.stopped() {
                tokio::time::sleep(std::time::Duration::from_millis(200)).await;
            }
            tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        } => Ok(()),
    };
    stop.stop();
    let _ = std::fs::remove_file(&path);
    match ticking.await {
        Ok(r) => r?,
        Err(e) => {
            return Err(AgentError::new(
                Code::Internal,
                format!("the runner broke off: {e}"),
            ));
        }
    }
    served
}
