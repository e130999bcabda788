//! An HTTP server that can misbehave: cut, stall, trickle, lie about lengths, refuse ranges, redirect. Counts what it sends.
//!
//! One thread per connection, one request per connection, no framework: what goes over the wire is exactly what a test asks
//! for.

use anyhow::{Context, Result};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

/// What is served.
#[derive(Debug, Clone)]
pub enum Body {
    /// From memory.
    Bytes(Arc<Vec<u8>>),
    /// From a file, by the kernel where possible.
    File(PathBuf),
}

/// What the server says about the length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Length {
    /// The truth.
    #[default]
    True,
    /// No Content-Length: the body ends with the connection.
    Absent,
    /// This number, whatever the body is.
    Claim(u64),
}

/// What happens to a Range header.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Ranges {
    /// 206 with the range.
    #[default]
    Honour,
    /// 200 with the whole body.
    Ignore,
    /// 416.
    Refuse,
}

/// How a path answers. `Reply::bytes`/`file` are honest; every field is one way to lie.
#[derive(Debug, Clone)]
pub struct Reply {
    /// Content.
    pub body: Body,
    /// Status when no range is served.
    pub status: u16,
    /// Media type.
    pub content_type: &'static str,
    /// Length that is claimed.
    pub length: Length,
    /// Range behaviour.
    pub ranges: Ranges,
    /// Strong validator, if any.
    pub etag: Option<String>,
    /// Close the connection at this offset of the content: a request that resumes there gets nothing.
    pub cut_after: Option<u64>,
    /// The n-th request ends at the n-th of these offsets of the content; those behind the last one are answered whole.
    pub cuts: Vec<u64>,
    /// Send nothing from this offset of the content on, but keep the connection open until the server stops.
    pub stall_after: Option<u64>,
    /// At most this many bytes every interval.
    pub trickle: Option<(usize, Duration)>,
    /// Redirect here instead of serving.
    pub location: Option<String>,
    /// The faults apply to the first n requests only; then the reply is honest.
    pub faults_for: Option<u64>,
}

impl Reply {
    fn of(body: Body) -> Reply {
        Reply {
            body,
            status: 200,
            content_type: "application/octet-stream",
            length: Length::True,
            ranges: Ranges::Honour,
            etag: Some("\"1\"".into()),
            cut_after: None,
            cuts: Vec::new(),
            stall_after: None,
            trickle: None,
            location: None,
            faults_for: None,
        }
    }

    /// Honest bytes.
    pub fn bytes(data: impl Into<Vec<u8>>) -> Reply {
        Reply::of(Body::Bytes(Arc::new(data.into())))
    }

    /// An honest file.
    pub fn file(path: impl Into<PathBuf>) -> Reply {
        Reply::of(Body::File(path.into()))
    }

    /// A page for people, as captive portals and login walls answer.
    pub fn html() -> Reply {
        Reply {
            content_type: "text/html; charset=utf-8",
            ..Reply::bytes(
                "<!DOCTYPE html>\n<html><head><title>Sign in</title></head><body>Please sign in.</body></html>\n",
            )
        }
    }

    /// A redirect.
    pub fn redirect(status: u16, to: &str) -> Reply {
        Reply {
            status,
            location: Some(to.into()),
            ..Reply::bytes("")
        }
    }

    /// The same without its faults.
    fn honest(&self) -> Reply {
        Reply {
            content_type: self.content_type,
            etag: self.etag.clone(),
            ..Reply::of(self.body.clone())
        }
    }
}

/// One request as it came.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Seen {
    /// `GET`, `HEAD`.
    pub method: String,
    /// Path with query.
    pub path: String,
    /// Range header.
    pub range: Option<String>,
    /// If-Range header.
    pub if_range: Option<String>,
    /// Authorization header.
    pub authorization: Option<String>,
}

#[derive(Debug, Default)]
struct Shared {
    replies: Mutex<HashMap<String, (Reply, u64)>>,
    seen: Mutex<Vec<Seen>>,
    sent: Mutex<HashMap<String, u64>>,
    stop: AtomicBool,
}

/// A running server on a port of its own; stops when dropped.
#[derive(Debug)]
pub struct Server {
    addr: SocketAddr,
    shared: Arc<Shared>,
    acceptor: Option<std::thread::JoinHandle<()>>,
}

fn lock<T>(m: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Server {
    /// Starts on 127.0.0.1.
    ///
    /// # Errors
    /// When no port can be bound.
    pub fn start() -> Result<Server> {
        let listener = TcpListener::bind("127.0.0.1:0").context("binding a port")?;
        let addr = listener.local_addr()?;
        let shared = Arc::new(Shared::default());
        let theirs = Arc::clone(&shared);
        let acceptor = std::thread::spawn(move || {
            for conn in listener.incoming() {
                if theirs.stop.load(Ordering::SeqCst) {
                    break;
                }
                if let Ok(conn) = conn {
                    let shared = Arc::clone(&theirs);
                    // A client that goes away is normal here.
                    std::thread::spawn(move || drop(serve(&shared, conn)));
                }
            }
        });
        Ok(Server {
            addr,
            shared,
            acceptor: Some(acceptor),
        })
    }

    /// Sets (or replaces) the answer of a path.
    pub fn put(&self, path: &str, reply: Reply) {
        lock(&self.shared.replies).insert(path.to_owned(), (reply, 0));
    }

    /// Port on 127.0.0.1.
    pub fn port(&self) -> u16 {
        self.addr.port()
    }

    /// URL for a program on this host.
    pub fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.addr)
    }

    /// URL for a guest with QEMU's user-mode network.
    pub fn guest_url(&self, path: &str) -> String {
        format!("http://10.0.2.2:{}{path}", self.port())
    }

    /// Requests so far.
    pub fn seen(&self) -> Vec<Seen> {
        lock(&self.shared.seen).clone()
    }

    /// Body bytes sent for a path so far.
    pub fn sent(&self, path: &str) -> u64 {
        lock(&self.shared.sent).get(path).copied().unwrap_or(0)
    }

    /// Stops accepting and cuts stalled and trickling connections: connections to the port are refused from now on.
    pub fn stop(&mut self) {
        self.shared.stop.store(true, Ordering::SeqCst);
        let _ = TcpStream::connect(self.addr);
        if let Some(t) = self.acceptor.take() {
            let _ = t.join();
        }
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

fn parse(conn: &TcpStream) -> Result<Seen> {
    conn.set_read_timeout(Some(Duration::from_secs(10)))?;
    let mut lines = BufReader::new(conn.try_clone()?).lines();
    let first = lines.next().context("no request")??;
    let mut words = first.split(' ');
    let mut seen = Seen {
        method: words.next().unwrap_or_default().into(),
        path: words.next().unwrap_or_default().into(),
        range: None,
        if_range: None,
        authorization: None,
    };
    for line in lines {
        let line = line?;
        if line.is_empty() {
            break;
        }
        let Some((name, value)) = line.split_once(':') else {
            continue;
        };
        let value = Some(value.trim().to_owned());
        match name.to_ascii_lowercase().as_str() {
            "range" => seen.range = value,
            "if-range" => seen.if_range = value,
            "authorization" => seen.authorization = value,
            _ => {}
        }
    }
    Ok(seen)
}

/// `bytes=FIRST-[LAST]` within `size`: first byte and count.
fn range(header: &str, size: u64) -> Option<(u64, u64)> {
    let (first, last) = header.strip_prefix("bytes=")?.split_once('-')?;
    let first: u64 = first.parse().ok()?;
    let last = match last {
        "" => size.checked_sub(1)?,
        l => l.parse::<u64>().ok()?.min(size.checked_sub(1)?),
    };
    (first <= last).then(|| (first, last - first + 1))
}

fn serve(shared: &Shared, mut conn: TcpStream) -> Result<()> {
    let seen = parse(&conn)?;
    lock(&shared.seen).push(seen.clone());
    let path = seen.path.split('?').next().unwrap_or_default().to_owned();
    let reply = {
        let mut all = lock(&shared.replies);
        match all.get_mut(&path) {
            None => Reply {
                status: 404,
                content_type: "text/plain",
                ..Reply::bytes("not found\n")
            },
            Some((reply, count)) => {
                *count += 1;
                if reply.faults_for.is_some_and(|n| *count > n) {
                    reply.honest()
                } else {
                    let mut one = reply.clone();
                    let nth = usize::try_from(*count - 1)?;
                    one.cut_after = reply.cuts.get(nth).copied().or(reply.cut_after);
                    one
                }
            }
        }
    };
    let size = match &reply.body {
        Body::Bytes(b) => b.len() as u64,
        Body::File(p) => fs_err::metadata(p)?.len(),
    };
    let wanted = seen.range.as_deref().filter(|_| reply.status == 200);
    let (mut status, mut first, mut count) = (reply.status, 0, size);
    let mut headers = String::new();
    match (wanted, reply.ranges) {
        (Some(_), Ranges::Refuse) => (status, count) = (416, 0),
        (Some(r), Ranges::Honour) => match range(r, size) {
            Some((f, n)) => {
                (status, first, count) = (206, f, n);
                headers += &format!("Content-Range: bytes {f}-{}/{size}\r\n", f + n - 1);
            }
            None => {
                (status, count) = (416, 0);
                headers += &format!("Content-Range: bytes */{size}\r\n");
            }
        },
        _ => {}
    }
    match reply.length {
        Length::True => headers += &format!("Content-Length: {count}\r\n"),
        Length::Claim(n) => headers += &format!("Content-Length: {n}\r\n"),
        Length::Absent => {}
    }
    if let Some(etag) = &reply.etag {
        headers += &format!("ETag: {etag}\r\n");
    }
    if reply.ranges == Ranges::Honour {
        headers += "Accept-Ranges: bytes\r\n";
    }
    if let Some(to) = &reply.location {
        headers += &format!("Location: {to}\r\n");
    }
    let head = format!(
        "HTTP/1.1 {status} Status\r\nContent-Type: {}\r\nConnection: close\r\n{headers}\r\n",
        reply.content_type
    );
    conn.write_all(head.as_bytes())?;
    if seen.method == "HEAD" {
        return Ok(());
    }
    send(shared, &mut conn, &reply, &path, first, count)
}

/// The body, as honestly as the reply says.
fn send(
    shared: &Shared,
    conn: &mut TcpStream,
    reply: &Reply,
    path: &str,
    first: u64,
    count: u64,
) -> Result<()> {
    let limit = [reply.cut_after, reply.stall_after]
        .into_iter()
        .flatten()
        .min()
        .unwrap_or(u64::MAX);
    let mut source: Box<dyn Read> = match &reply.body {
        Body::Bytes(b) => Box::new(SharedBytes {
            data: Arc::clone(b),
            at: usize::try_from(first)?,
        }),
        Body::File(p) => {
            let mut f = std::fs::File::open(p)?;
            f.seek(SeekFrom::Start(first))?;
            if reply.trickle.is_none() && limit == u64::MAX {
                // File to socket by the kernel.
                let n = std::io::copy(&mut f.take(count), conn)?;
                *lock(&shared.sent).entry(path.into()).or_default() += n;
                return Ok(());
            }
            Box::new(f)
        }
    };
    let mut left = count.min(limit.saturating_sub(first));
    let (piece, pause) = reply.trickle.unwrap_or((64 << 10, Duration::ZERO));
    let mut buf = vec![0u8; piece.max(1)];
    while left > 0 && !shared.stop.load(Ordering::SeqCst) {
        let want = (buf.len() as u64).min(left) as usize;
        let n = source.read(&mut buf[..want])?;
        if n == 0 {
            break;
        }
        conn.write_all(&buf[..n])?;
        left -= n as u64;
        *lock(&shared.sent).entry(path.into()).or_default() += n as u64;
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
    }
    if reply.stall_after.is_some() {
        while !shared.stop.load(Ordering::SeqCst) {
            std::thread::sleep(Duration::from_millis(50));
        }
    }
    Ok(())
}

/// Reads shared bytes from an offset.
struct SharedBytes {
    data: Arc<Vec<u8>>,
    at: usize,
}

impl Read for SharedBytes {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let rest = self.data.get(self.at..).unwrap_or_default();
        let n = rest.len().min(buf.len());
        buf[..n].copy_from_slice(&rest[..n]);
        self.at += n;
        Ok(n)
    }
}

#[cfg(test)]
mod tests;
