//! What the proxy tells about itself: any request gets a JSON document, status 200 or 503.

use super::pool::Pool;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};

/// Longest request that is read.
const REQUEST: usize = 8192;
/// Limit of one exchange; they are answered one after the other.
const LIMIT: Duration = Duration::from_secs(2);

pub(super) async fn serve(listener: TcpListener, pool: Arc<Pool>) {
    loop {
        match listener.accept().await {
            Ok((s, _)) => {
                let _ = tokio::time::timeout(LIMIT, answer(s, &pool)).await;
            }
            Err(_) => tokio::time::sleep(Duration::from_millis(200)).await,
        }
    }
}

async fn answer(mut s: TcpStream, pool: &Pool) -> std::io::Result<()> {
    let mut request = Vec::new();
    let mut buf = [0u8; 1024];
    while !request.windows(4).any(|w| w == b"\r\n\r\n") {
        let n = s.read(&mut buf).await?;
        request.extend_from_slice(buf.get(..n).unwrap_or_default());
        if n == 0 || request.len() > REQUEST {
            return Ok(());
        }
    }
    let (good, doc) = pool.report();
    let status = if good { "200 OK" } else { "503 Service Unavailable" };
    let body = format!("{doc}\n");
    let text = format!(
        "HTTP/1.1 {status}\r\nContent-Type: application/json\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
        body.len()
    );
    s.write_all(text.as_bytes()).await?;
    s.shutdown().await
}
