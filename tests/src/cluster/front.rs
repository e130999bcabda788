//! A proxy in front of kube-apiserver that fails on purpose: by verb, resource, name and user, so many times.
//!
//! Clients speak plain HTTP/1.1 to it; every client connection has its own TLS connection to the server, so that a broken
//! one breaks as in the field.

use super::server::User;
use anyhow::{Context, Result};
use bytes::Bytes;
use camino::{Utf8Path, Utf8PathBuf};
use http_body_util::combinators::BoxBody;
use http_body_util::{BodyExt, Full, StreamBody};
use hyper::body::{Frame, Incoming};
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use std::convert::Infallible;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio_rustls::TlsConnector;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, ServerName};
use tokio_rustls::rustls::{ClientConfig, RootCertStore};

use super::rules::{Action, Rule};

type Body = BoxBody<Bytes, anyhow::Error>;
type Upstream = hyper::client::conn::http1::SendRequest<Full<Bytes>>;

/// A request as it came.
#[derive(Debug, Clone)]
pub struct Seen {
    /// Verb as the audit log calls it.
    pub verb: &'static str,
    /// Plural with subresource.
    pub resource: String,
    /// Name of the object.
    pub name: String,
    /// User of the token.
    pub user: String,
    /// Path and query.
    pub uri: String,
    /// The body's bytes.
    pub body: Bytes,
}

#[derive(Debug)]
struct Shared {
    upstream: u16,
    ca: Utf8PathBuf,
    tls: Mutex<Option<Arc<ClientConfig>>>,
    users: Vec<User>,
    rules: Mutex<Vec<(u64, Rule)>>,
    seen: Mutex<Vec<Seen>>,
    keep_seen: AtomicBool,
    down: AtomicBool,
    count: AtomicU64,
    cut: tokio::sync::watch::Sender<u64>,
}

/// The running proxy.
#[derive(Debug)]
pub struct Front {
    shared: Arc<Shared>,
    port: u16,
    task: tokio::task::JoinHandle<()>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Front {
    /// Starts before the server is there; `ca` is read at the first connection.
    ///
    /// # Errors
    /// No port can be bound.
    pub async fn start(upstream: u16, ca: &Utf8Path, users: Vec<User>) -> Result<Front> {
        let listener = TcpListener::bind("127.0.0.1:0").await.context("binding a port")?;
        let port = listener.local_addr()?.port();
        let shared = Arc::new(Shared {
            upstream,
            ca: ca.to_owned(),
            tls: Mutex::new(None),
            users,
            rules: Mutex::default(),
            seen: Mutex::default(),
            keep_seen: AtomicBool::new(false),
            down: AtomicBool::new(false),
            count: AtomicU64::new(0),
            cut: tokio::sync::watch::channel(0).0,
        });
        let theirs = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((conn, _)) = listener.accept().await {
                tokio::spawn(connection(Arc::clone(&theirs), conn));
            }
        });
        Ok(Front { shared, port, task })
    }

    /// URL for clients.
    pub fn url(&self) -> String {
        format!("http://127.0.0.1:{}", self.port)
    }

    /// Adds a rule; the first that matches applies. Gives its number.
    pub fn rule(&self, rule: Rule) -> u64 {
        let n = self.shared.count.fetch_add(1, Ordering::Relaxed);
        lock(&self.shared.rules).push((n, rule));
        n
    }

    /// Takes a rule away.
    pub fn unrule(&self, number: u64) {
        lock(&self.shared.rules).retain(|(n, _)| *n != number);
    }

    /// No more faults.
    pub fn clear(&self) {
        lock(&self.shared.rules).clear();
        self.shared.down.store(false, Ordering::SeqCst);
    }

    /// Breaks every connection now.
    pub fn cut_all(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// While down, every connection breaks and none is accepted.
    pub fn down(&self, down: bool) {
        self.shared.down.store(down, Ordering::SeqCst);
        if down {
            self.cut_all();
        }
    }

    /// Keeps requests from now on, or stops to; forgets the kept ones.
    pub fn record(&self, on: bool) {
        self.shared.keep_seen.store(on, Ordering::SeqCst);
        lock(&self.shared.seen).clear();
    }

    /// The kept requests.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }
}

impl Drop for Front {
    fn drop(&mut self) {
        self.task.abort();
    }
}

/// Verb, resource with subresource and name of a request, as the audit log has them.
pub fn classify(method: &str, path: &str, query: &str) -> (&'static str, String, String) {
    let mut parts = path.trim_matches('/').split('/');
    let rest: Vec<&str> = match parts.next() {
        Some("api") => parts.skip(1).collect(),
        Some("apis") => parts.skip(2).collect(),
        _ => return ("get", String::new(), String::new()),
    };
    let rest = match rest.as_slice() {
        ["namespaces", _, tail @ ..] if !tail.is_empty() && !["status", "finalize"].contains(&tail[0]) => {
            tail
        }
        all => all,
    };
    let (resource, name) = match rest {
        [] => (String::new(), String::new()),
        [r] => ((*r).to_owned(), String::new()),
        [r, n] => ((*r).to_owned(), (*n).to_owned()),
        [r, n, sub @ ..] => (format!("{r}/{}", sub.join("/")), (*n).to_owned()),
    };
    let verb = match method {
        "GET" if query.split('&').any(|q| matches!(q, "watch=true" | "watch=1")) => "watch",
        "GET" if name.is_empty() => "list",
        "POST" => "create",
        "PUT" => "update",
        "PATCH" => "patch",
        "DELETE" => "delete",
        _ => "get",
    };
    (verb, resource, name)
}

async fn connection(shared: Arc<Shared>, conn: TcpStream) {
    if shared.down.load(Ordering::SeqCst) {
        return;
    }
    let _ = conn.set_nodelay(true);
    let mut cut = shared.cut.subscribe();
    cut.mark_unchanged();
    let upstream: Arc<tokio::sync::Mutex<Option<Upstream>>> = Arc::default();
    let (break_tx, mut break_rx) = tokio::sync::mpsc::channel::<()>(1);
    let theirs = Arc::clone(&shared);
    let service = hyper::service::service_fn(move |req| {
        let (shared, upstream, breaker) = (Arc::clone(&theirs), Arc::clone(&upstream), break_tx.clone());
        async move {
            let answer = handle(&shared, &upstream, req).await;
            if answer.is_err() {
                // The client must see a broken connection, not an answer of ours.
                let _ = breaker.send(()).await;
            }
            answer
        }
    });
    let serving = hyper::server::conn::http1::Builder::new().serve_connection(TokioIo::new(conn), service);
    tokio::select! {
        _ = serving => {}
        _ = cut.changed() => {}
        _ = break_rx.recv() => {}
    }
}

/// The first rule that applies to this request; counts it.
fn matching(shared: &Shared, seen: &Seen) -> Option<Action> {
    let n = shared.count.fetch_add(1, Ordering::Relaxed);
    let mut rules = lock(&shared.rules);
    for (_, r) in rules.iter_mut() {
        let fits = (r.verb.is_empty() || r.verb == seen.verb)
            && (r.resource.is_empty() || r.resource == seen.resource)
            && (r.name.is_empty() || r.name == seen.name)
            && seen.user.contains(r.user);
        if !fits || r.times == 0 {
            continue;
        }
        // Knuth's multiplicative hash spreads consecutive numbers.
        if r.per_mille < 1000 && (n.wrapping_mul(2_654_435_761) >> 8) % 1000 >= r.per_mille {
            continue;
        }
        if r.skip > 0 {
            r.skip -= 1;
            continue;
        }
        r.times -= 1;
        return Some(r.action.clone());
    }
    None
}

fn full(b: Bytes) -> Body {
    Full::new(b).map_err(|e: Infallible| match e {}).boxed()
}

async fn handle(
    shared: &Arc<Shared>,
    upstream: &tokio::sync::Mutex<Option<Upstream>>,
    req: Request<Incoming>,
) -> Result<Response<Body>> {
    let (parts, body) = req.into_parts();
    let body = body.collect().await?.to_bytes();
    let query = parts.uri.query().unwrap_or_default();
    let (verb, resource, name) = classify(parts.method.as_str(), parts.uri.path(), query);
    let token = parts
        .headers
        .get("authorization")
        .and_then(|v| v.to_str().ok())
        .and_then(|v| v.strip_prefix("Bearer "))
        .unwrap_or_default();
    let user = shared.users.iter().find(|u| u.token == token);
    let seen = Seen {
        verb,
        resource,
        name,
        user: user.map(|u| u.name.clone()).unwrap_or_default(),
        uri: parts.uri.to_string(),
        body: body.clone(),
    };
    let action = matching(shared, &seen);
    if shared.keep_seen.load(Ordering::Relaxed) {
        lock(&shared.seen).push(seen);
    }
    match &action {
        Some(Action::Answer {
            code,
            retry_after,
            body,
        }) => {
            let mut r = Response::builder()
                .status(StatusCode::from_u16(*code)?)
                .header("content-type", "application/json");
            if let Some(s) = retry_after {
                r = r.header("retry-after", s.to_string());
            }
            return Ok(r.body(full(serde_json::to_vec(body)?.into()))?);
        }
        Some(Action::Delay(d)) => tokio::time::sleep(*d).await,
        Some(Action::Cut) => anyhow::bail!("cut on purpose"),
        _ => {}
    }
    let mut req = Request::from_parts(parts, Full::new(body));
    req.headers_mut().remove("connection");
    req.headers_mut().remove("transfer-encoding");
    let answer = forward(shared, upstream, req).await?;
    let (parts, body) = answer.into_parts();
    let body: Body = match action {
        Some(Action::CutAfter) => {
            let _ = body.collect().await;
            anyhow::bail!("cut on purpose after the server was asked")
        }
        Some(Action::Lag(d)) => lagging(body, d),
        Some(Action::Mute) => lagging(body, Duration::from_secs(86_400)),
        _ => body.map_err(anyhow::Error::from).boxed(),
    };
    Ok(Response::from_parts(parts, body))
}

/// The same body, each piece so much later.
fn lagging(mut body: Incoming, lag: Duration) -> Body {
    let (tx, rx) = tokio::sync::mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Some(Ok(frame)) = body.frame().await {
            if tx.send((tokio::time::Instant::now() + lag, frame)).is_err() {
                return;
            }
        }
    });
    let stream = futures_util::stream::unfold(rx, |mut rx| async move {
        let (due, frame): (_, Frame<Bytes>) = rx.recv().await?;
        tokio::time::sleep_until(due).await;
        Some((Ok::<_, anyhow::Error>(frame), rx))
    });
    BodyExt::boxed(StreamBody::new(SyncStream(std::sync::Mutex::new(Box::pin(
        stream,
    )))))
}

type FrameStream = std::pin::Pin<Box<dyn futures_util::Stream<Item = Result<Frame<Bytes>>> + Send>>;

/// A boxed body must be `Sync`; polling needs `&mut`, so the lock is never waited for.
struct SyncStream(Mutex<FrameStream>);

impl futures_util::Stream for SyncStream {
    type Item = Result<Frame<Bytes>>;
    fn poll_next(
        self: std::pin::Pin<&mut Self>,
        cx: &mut std::task::Context<'_>,
    ) -> std::task::Poll<Option<Self::Item>> {
        lock(&self.0).as_mut().poll_next(cx)
    }
}

async fn forward(
    shared: &Arc<Shared>,
    upstream: &tokio::sync::Mutex<Option<Upstream>>,
    req: Request<Full<Bytes>>,
) -> Result<Response<Incoming>> {
    let mut slot = upstream.lock().await;
    let mut sender = match slot.take().filter(|s| !s.is_closed()) {
        Some(mut s) => match s.ready().await {
            Ok(()) => s,
            Err(_) => connect(shared).await?,
        },
        None => connect(shared).await?,
    };
    let answer = sender.send_request(req).await?;
    *slot = Some(sender);
    Ok(answer)
}

async fn connect(shared: &Arc<Shared>) -> Result<Upstream> {
    let known = lock(&shared.tls).clone();
    let tls = match known {
        Some(t) => t,
        None => {
            let mut roots = RootCertStore::empty();
            for cert in CertificateDer::pem_file_iter(shared.ca.as_std_path())? {
                roots.add(cert?)?;
            }
            let config = ClientConfig::builder_with_provider(Arc::new(
                tokio_rustls::rustls::crypto::ring::default_provider(),
            ))
            .with_safe_default_protocol_versions()?
            .with_root_certificates(roots)
            .with_no_client_auth();
            let t = Arc::new(config);
            *lock(&shared.tls) = Some(Arc::clone(&t));
            t
        }
    };
    let tcp = TcpStream::connect(("127.0.0.1", shared.upstream)).await?;
    tcp.set_nodelay(true)?;
    let name = ServerName::try_from("kubernetes.default.svc")?;
    let stream = TlsConnector::from(tls).connect(name, tcp).await?;
    let (sender, conn) = hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(async move {
        let _ = conn.await;
    });
    Ok(sender)
}

#[cfg(test)]
mod tests {
    use super::classify;

    #[test]
    fn requests_are_called_as_in_the_audit_log() {
        let c = |m, p, q| {
            let (v, r, n) = classify(m, p, q);
            format!("{v} {r} {n}")
        };
        assert_eq!(c("GET", "/api/v1/nodes", ""), "list nodes ");
        assert_eq!(c("GET", "/api/v1/pods", "watch=true&x=1"), "watch pods ");
        assert_eq!(c("GET", "/api/v1/nodes/a.b", ""), "get nodes a.b");
        assert_eq!(
            c("POST", "/api/v1/namespaces/d/pods/p/eviction", ""),
            "create pods/eviction p"
        );
        assert_eq!(
            c(
                "PUT",
                "/apis/upgrade.openeuler.org/v1alpha1/namespaces/default/os/x/status",
                ""
            ),
            "update os/status x"
        );
        assert_eq!(c("GET", "/api/v1/namespaces/d", ""), "get namespaces d");
        assert_eq!(c("GET", "/readyz", ""), "get  ");
    }
}
