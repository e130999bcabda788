//! `/metrics`, `/healthz` and `/readyz`: a few lines of HTTP/1.1, no framework. One request per connection, bounded in size
//! and time.

use std::sync::Arc;
use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;

/// Longest request head, bytes.
const HEAD: usize = 8 * 1024;
/// Longest time for one request.
const TIMEOUT: Duration = Duration::from_secs(10);
/// Requests at once; more wait in the listener's queue.
const AT_ONCE: usize = 16;

/// What a page answers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Answer {
    /// 200 with this text.
    Good(String),
    /// 503 with this text.
    NotReady(String),
}

/// The pages of one program.
pub trait Pages: Send + Sync + 'static {
    /// `/metrics`, Prometheus text format.
    fn metrics(&self) -> String;
    /// `/readyz`.
    fn ready(&self) -> Answer;
    /// `/healthz`: the program's loop still turns.
    fn healthy(&self) -> Answer {
        Answer::Good("ok\n".into())
    }
}

/// Serves until the task is dropped.
pub async fn serve(listener: TcpListener, pages: Arc<dyn Pages>) {
    let places = Arc::new(Semaphore::new(AT_ONCE));
    loop {
        let Ok(place) = places.clone().acquire_owned().await else {
            return;
        };
        let stream = match listener.accept().await {
            Ok((stream, _)) => stream,
            Err(error) => {
                // Out of file descriptors, most likely: do not spin.
                tracing::warn!(%error, "cannot accept a connection for /metrics");
                tokio::time::sleep(Duration::from_secs(1)).await;
                continue;
            }
        };
        let pages = pages.clone();
        tokio::spawn(async move {
            let _ = tokio::time::timeout(TIMEOUT, one(stream, pages.as_ref())).await;
            drop(place);
        });
    }
}

async fn one(mut stream: TcpStream, pages: &dyn Pages) -> std::io::Result<()> {
    let mut head = Vec::new();
    let mut buffer = [0u8; 1024];
    while !head.windows(4).any(|w| w == b"\r\n\r\n") && head.len() < HEAD {
        let n = stream.read(&mut buffer).await?;
        if n == 0 {
            break;
        }
        head.extend_from_slice(&buffer[..n]);
    }
    stream.write_all(&respond(&head, pages)).await?;
    stream.shutdown().await
}

/// PURE: bytes of a request → bytes of the response.
fn respond(head: &[u8], pages: &dyn Pages) -> Vec<u8> {
    let line = head.split(|b| *b == b'\r').next().unwrap_or_default();
    let mut words = std::str::from_utf8(line).unwrap_or_default().split(' ');
    let (method, target) = (words.next().unwrap_or_default(), words.next().unwrap_or_default());
    let path = target.split('?').next().unwrap_or_default();
    let (status, kind, body) = match (method, path) {
        ("GET" | "HEAD", "/metrics") => (
            "200 OK",
            "text/plain; version=0.0.4; charset=utf-8",
            pages.metrics(),
        ),
        ("GET" | "HEAD", "/healthz") => text(pages.healthy()),
        ("GET" | "HEAD", "/readyz") => text(pages.ready()),
        ("GET" | "HEAD", _) => (
            "404 Not Found",
            "text/plain",
            "try /metrics, /healthz or /readyz\n".into(),
        ),
        _ => ("405 Method Not Allowed", "text/plain", "only GET\n".into()),
    };
    let mut out = format!(
        "HTTP/1.1 {status}\r\nContent-Type: {kind}\r\nContent-Length: {}\r\nConnection: close\r\n\r\n",
        body.len()
    )
    .into_bytes();
    if method != "HEAD" {
        out.extend_from_slice(body.as_bytes());
    }
    out
}

fn text(answer: Answer) -> (&'static str, &'static str, String) {
    match answer {
        Answer::Good(t) => ("200 OK", "text/plain", t),
        Answer::NotReady(t) => ("503 Service Unavailable", "text/plain", t),
    }
}

/// Builds a page in the Prometheus text format.
#[derive(Debug, Default)]
pub struct MetricsPage {
    text: String,
}

impl MetricsPage {
    /// Begins a family; its samples follow.
    pub fn family(&mut self, name: &str, kind: &str, help: &str) {
        self.text
            .push_str(&format!("# HELP {name} {help}\n# TYPE {name} {kind}\n"));
    }

    /// One sample.
    pub fn sample(&mut self, name: &str, labels: &[(&str, &str)], value: f64) {
        self.text.push_str(name);
        for (i, (key, v)) in labels.iter().enumerate() {
            let v = v.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
            self.text
                .push_str(&format!("{}{key}=\"{v}\"", if i == 0 { "{" } else { "," }));
        }
        if !labels.is_empty() {
            self.text.push('}');
        }
        self.text.push_str(&format!(" {value}\n"));
    }

    /// The page.
    pub fn finish(self) -> String {
        self.text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    struct Fixed;

    impl Pages for Fixed {
        fn metrics(&self) -> String {
            let mut page = MetricsPage::default();
            page.family("a_total", "counter", "All of them.");
            page.sample("a_total", &[("os", "x\"y\\z"), ("phase", "Idle")], 3.0);
            page.sample("a_total", &[], 0.5);
            page.finish()
        }
        fn ready(&self) -> Answer {
            Answer::NotReady("not yet\n".into())
        }
    }

    fn ask(request: &str) -> String {
        String::from_utf8(respond(request.as_bytes(), &Fixed)).unwrap()
    }

    #[test]
    fn pages() {
        let metrics = ask("GET /metrics?x=1 HTTP/1.1\r\nHost: a\r\n\r\n");
        assert!(metrics.starts_with("HTTP/1.1 200 OK\r\n"), "{metrics}");
        assert!(
            metrics.ends_with("a_total{os=\"x\\\"y\\\\z\",phase=\"Idle\"} 3\na_total 0.5\n"),
            "{metrics}"
        );
        assert!(ask("GET /readyz HTTP/1.1\r\n\r\n").starts_with("HTTP/1.1 503 "));
        assert!(ask("GET /healthz HTTP/1.1\r\n\r\n").contains("200 OK"));
        assert!(ask("GET / HTTP/1.1\r\n\r\n").contains("404"));
        assert!(ask("POST /metrics HTTP/1.1\r\n\r\n").contains("405"));
        assert!(ask("HEAD /healthz HTTP/1.1\r\n\r\n").ends_with("\r\n\r\n"));
        assert!(ask("\u{0}\u{1}garbage").contains("405"));
    }

    #[tokio::test]
    async fn over_a_socket() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let server = tokio::spawn(serve(listener, Arc::new(Fixed)));
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        assert!(answer.ends_with("ok\n"), "{answer}");
        server.abort();
    }
}
