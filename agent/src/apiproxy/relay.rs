//! One connection: bytes both ways until one side ends.

use super::pool::Pool;
use super::settings::Upstream;
use super::watchful;
use os_steps::sys::hosts;
use std::net::SocketAddr;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Connects `client` to the first server that takes it and copies until the end.
pub(super) async fn run(mut client: TcpStream, pool: &Pool) {
    watchful(&client);
    let (candidates, limit) = pool.candidates();
    for mut c in candidates {
        let why = match tokio::time::timeout(limit, connect(&c.upstream)).await {
            Ok(Ok(mut server)) => {
                watchful(&server);
                tokio::select! {
                    // How it ended is between client and server.
                    _ = tokio::io::copy_bidirectional(&mut client, &mut server) => {}
                    () = cut(&mut c.cut) => {}
                }
                return;
            }
            Ok(Err(e)) => e.to_string(),
            Err(_) => format!("no connection within {} ms", limit.as_millis()),
        };
        tracing::debug!("{}: {why}", c.upstream);
        pool.failed(&c.upstream, &why);
    }
    tracing::warn!("no API server takes a connection");
}

async fn connect(u: &Upstream) -> std::io::Result<TcpStream> {
    let ips = hosts::addresses(&u.host).await?;
    let list: Vec<SocketAddr> = ips.into_iter().map(|ip| SocketAddr::new(ip, u.port)).collect();
    TcpStream::connect(list.as_slice()).await
}

/// Waits for the server's connections to be cut. A server that is no longer in the file keeps those that it has.
async fn cut(signal: &mut watch::Receiver<u64>) {
    if signal.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
