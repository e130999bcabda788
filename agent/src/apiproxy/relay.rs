//! One connection: bytes both ways until one side ends.

use super::pool::Pool;
use super::watchful;
use tokio::net::TcpStream;
use tokio::sync::watch;

/// Connects `client` to the first server that takes it and copies until the end.
pub(super) async fn run(mut client: TcpStream, pool: &Pool) {
    watchful(&client);
    let (candidates, limit) = pool.candidates();
    for mut c in candidates {
        let address = (c.upstream.host.as_str(), c.upstream.port);
        let why = match tokio::time::timeout(limit, TcpStream::connect(address)).await {
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

/// Waits for the server's connections to be cut. A server that is no longer in the file keeps those that it has.
async fn cut(signal: &mut watch::Receiver<u64>) {
    if signal.changed().await.is_err() {
        std::future::pending::<()>().await;
    }
}
