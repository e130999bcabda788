#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]
use super::attempt::Failure;
use super::download::PIECE;
use super::*;
use crate::ports::Location;
use crate::testdisk::{Recorder, WallClock};
use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::Mutex;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;
use tokio::runtime::Runtime;

/// What a request asked for.
#[derive(Debug, Clone)]
pub(in crate::fetch) struct Asked {
    pub(in crate::fetch) path: String,
    headers: Vec<(String, String)>,
}

impl Asked {
    pub(in crate::fetch) fn header(&self, name: &str) -> Option<&str> {
        self.headers
            .iter()
            .find(|(n, _)| n.eq_ignore_ascii_case(name))
            .map(|(_, v)| v.as_str())
    }

    /// First and last byte of the range.
    pub(in crate::fetch) fn range(&self) -> Option<(usize, usize)> {
        let (a, b) = self.header("range")?.strip_prefix("bytes=")?.split_once('-')?;
        Some((a.parse().ok()?, b.parse().ok()?))
    }
}

/// A server that answers by a function of the request and its number; one thread per connection.
pub(in crate::fetch) struct Server {
    pub(in crate::fetch) url: String,
    pub(in crate::fetch) asked: Arc<Mutex<Vec<Asked>>>,
}

type Answering = dyn Fn(usize, &Asked, &mut TcpStream) -> std::io::Result<()> + Send + Sync;

pub(in crate::fetch) fn serve(
    answer: impl Fn(usize, &Asked, &mut TcpStream) -> std::io::Result<()> + Send + Sync + 'static,
) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let asked = Arc::new(Mutex::new(Vec::new()));
    let seen = Arc::clone(&asked);
    let answer: Arc<Answering> = Arc::new(answer);
    let count = Arc::new(AtomicUsize::new(0));
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (seen, answer, count) = (Arc::clone(&seen), Arc::clone(&answer), Arc::clone(&count));
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let mut reader = BufReader::new(stream.try_clone().unwrap());
                let mut line = String::new();
                if reader.read_line(&mut line).unwrap_or(0) == 0 {
                    return;
                }
                let path = line.split(' ').nth(1).unwrap_or_default().to_owned();
                let mut headers = Vec::new();
                loop {
                    line.clear();
                    reader.read_line(&mut line).unwrap();
                    let Some((n, v)) = line.trim_end().split_once(": ") else {
                        break;
                    };
                    headers.push((n.to_owned(), v.to_owned()));
                }
                let asked = Asked { path, headers };
                seen.lock().unwrap().push(asked.clone());
                let n = count.fetch_add(1, Ordering::SeqCst);
                let _ = answer(n, &asked, &mut stream);
            });
        }
    });
    Server { url, asked }
}

pub(in crate::fetch) fn data(len: usize) -> Vec<u8> {
    (0..len).map(|i| (i * 31 + i / 251) as u8).collect()
}

/// A well-behaved answer, cut after `cut` body bytes.
pub(in crate::fetch) fn good(
    s: &mut TcpStream,
    asked: &Asked,
    body: &[u8],
    etag: &str,
    cut: usize,
) -> std::io::Result<()> {
    let (head, part) = match asked.range() {
        Some((a, b)) => (
            format!(
                "HTTP/1.1 206 Partial Content\r\nContent-Range: bytes {a}-{b}/{}\r\nContent-Length: {}\r\nETag: {etag}\r\n\r\n",
                body.len(),
                b + 1 - a
            ),
            &body[a..=b],
        ),
        None => (
            format!(
                "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nETag: {etag}\r\n\r\n",
                body.len()
            ),
            body,
        ),
    };
    s.write_all(head.as_bytes())?;
    s.write_all(&part[..cut.min(part.len())])
}

fn whole(s: &mut TcpStream, body: &[u8], cut: usize) -> std::io::Result<()> {
    s.write_all(format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n", body.len()).as_bytes())?;
    s.write_all(&body[..cut.min(body.len())])
}

pub(in crate::fetch) fn runtime() -> &'static Runtime {
    static RT: std::sync::OnceLock<Runtime> = std::sync::OnceLock::new();
    RT.get_or_init(|| {
        tokio::runtime::Builder::new_multi_thread()
            .worker_threads(2)
            .enable_all()
            .build()
            .unwrap()
    })
}

pub(in crate::fetch) fn quick() -> Policy {
    Policy {
        connect_timeout: Duration::from_secs(2),
        first_byte_timeout: Duration::from_millis(400),
        min_rate_span: Duration::from_millis(500),
        retry_first: Duration::from_millis(10),
        retry_max: Duration::from_millis(40),
        retry_limit: 4,
        ..Policy::default()
    }
}

pub(in crate::fetch) struct Client {
    pub(in crate::fetch) request: SourceRequest,
    pub(in crate::fetch) policy: Policy,
    cancel: Cancel,
    report: Arc<Recorder>,
}

pub(in crate::fetch) fn client() -> Client {
    Client {
        request: SourceRequest {
            location: Location::Url(String::new()),
            allow_http: true,
            cacert: None,
            client: None,
            rate_bytes_per_sec: None,
            max_bytes: 1 << 30,
            known: None,
        },
        policy: quick(),
        cancel: Cancel::default(),
        report: Arc::new(Recorder::default()),
    }
}

impl Client {
    fn open(&self, url: &str) -> Result<Box<dyn Download>> {
        let source = HttpSource::new(
            runtime().handle().clone(),
            Arc::new(WallClock),
            self.policy.clone(),
        );
        source.open(
            url,
            &self.request,
            &self.cancel,
            Arc::clone(&self.report) as Arc<dyn Report>,
        )
    }

    pub(super) fn get(&self, url: &str) -> Result<Vec<u8>> {
        let mut d = self.open(url)?;
        let mut out = Vec::new();
        while let Some(b) = d.next()? {
            assert!(!b.is_empty() && b.len() <= PIECE);
            out.extend_from_slice(&b);
        }
        assert!(d.next()?.is_none());
        Ok(out)
    }

    fn waits(&self) -> Vec<Option<String>> {
        self.report.waits.lock().unwrap().clone()
    }
}

#[test]
fn a_whole_object_comes_as_it_is() {
    let body = data(3_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"1\"", usize::MAX));
    let c = client();
    let d = c.open(&format!("{}/x?token=secret", s.url)).unwrap();
    assert_eq!(d.total(), Some(3_000_000));
    assert_eq!(d.describe(), format!("{}/x", s.url));
    assert_eq!(c.get(&format!("{}/x?token=secret", s.url)).unwrap(), body);
    let asked = s.asked.lock().unwrap();
    assert_eq!(asked[0].path, "/x?token=secret");
    assert_eq!(asked[0].header("accept-encoding"), Some("identity"));
    assert_eq!(
        (asked[0].header("range"), asked[0].header("authorization")),
        (None, None)
    );
    assert!(c.waits().is_empty());
}

#[test]
fn a_cut_connection_is_resumed_with_a_closed_range() {
    let body = data(1_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"v1\"", 100_000));
    let c = client();
    assert_eq!(c.get(&format!("{}/x", s.url)).unwrap(), body);
    let asked = s.asked.lock().unwrap();
    assert_eq!(asked.len(), 10);
    assert_eq!(asked[1].header("range"), Some("bytes=100000-999999"));
    assert_eq!(asked[1].header("if-range"), Some("\"v1\""));
    let sent: usize = asked
        .iter()
        .map(|a| a.range().map_or(100_000, |(x, y)| (y + 1 - x).min(100_000)))
        .sum();
    assert!(sent <= 1_050_000, "{sent} bytes over the wire");
    let waits = c.waits();
    assert!(waits[0].as_deref().unwrap().contains("127.0.0.1"), "{waits:?}");
    assert_eq!(waits[1], None, "moving again is reported");
}

#[test]
fn a_server_that_ignores_ranges_is_read_and_dropped() {
    let body = data(500_000);
    let b = body.clone();
    // Each time a little more comes before the cut.
    let s = serve(move |n, _, s| whole(s, &b, 120_000 * (n + 1)));
    assert_eq!(client().get(&s.url).unwrap(), body);
    assert_eq!(s.asked.lock().unwrap().len(), 5);
}

#[test]
fn t6_wrong_ranges_are_never_spliced() {
    let body = data(400_000);
    // From another start than asked; without Content-Range; status 416 for a good range.
    for kind in 0..3 {
        let b = body.clone();
        let count = AtomicUsize::new(0);
        let s = serve(move |_, a, s| {
            if a.range().is_none() {
                // The first answer is cut; the next unranged one is whole.
                let cut = if count.fetch_add(1, Ordering::SeqCst) == 0 {
                    150_000
                } else {
                    usize::MAX
                };
                return whole(s, &b, cut);
            }
            match kind {
                0 => {
                    s.write_all(b"HTTP/1.1 206 Partial Content\r\nContent-Range: bytes 0-399999/400000\r\nContent-Length: 400000\r\n\r\n")?;
                    s.write_all(&b)
                }
                1 => {
                    s.write_all(b"HTTP/1.1 206 Partial Content\r\nContent-Length: 250000\r\n\r\n")?;
                    s.write_all(&b[..250_000])
                }
                _ => s.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Length: 0\r\n\r\n"),
            }
        });
        assert_eq!(client().get(&s.url).unwrap(), body, "kind {kind}");
        assert_eq!(s.asked.lock().unwrap().len(), 3, "kind {kind}");
    }
}

#[test]
fn an_object_that_changes_is_started_over_not_mixed() {
    let body = data(400_000);
    for longer in [false, true] {
        let b = body.clone();
        let s = serve(move |n, a, s| {
            if n == 0 {
                return good(s, a, &b, "\"a\"", 100_000);
            }
            let mut other = b.clone();
            if longer {
                other.push(1);
                whole(s, &other, usize::MAX)
            } else {
                // If-Range failed: the whole new object.
                s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 400000\r\nETag: \"b\"\r\n\r\n")?;
                s.write_all(&other)
            }
        });
        let e = client().get(&s.url).unwrap_err();
        assert_eq!(e.code, Code::ObjectChanged, "{e}");
    }
}

#[test]
fn t4_t11_lengths_that_lie_are_noticed() {
    let body = data(300_000);
    // Promises more than it has, and says so when asked for the rest.
    let b = body.clone();
    let s = serve(move |_, a, s| {
        match a.range() {
        None => {
            s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300100\r\n\r\n")?;
            s.write_all(&b)
        }
        Some(_) => s.write_all(b"HTTP/1.1 416 Range Not Satisfiable\r\nContent-Range: bytes */300000\r\nContent-Length: 0\r\n\r\n"),
    }
    });
    let e = client().get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::SizeMismatch);
    assert!(e.message.contains("100 bytes missing"), "{e}");
    // The same without ranges: never complete, bounded.
    let b = body.clone();
    let s = serve(move |_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 300100\r\n\r\n")?;
        s.write_all(&b)
    });
    let e = client().get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
    assert!(
        e.message.contains("300000 of 300100") && e.message.contains("4 tries"),
        "{e}"
    );
    // No length at all.
    let b = body.clone();
    let s = serve(move |_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
        s.write_all(&b)
    });
    let c = client();
    assert_eq!(c.open(&s.url).unwrap().total(), None);
    assert_eq!(c.get(&s.url).unwrap(), body);
    // Chunked and dropped: asked again for the whole, never for "0 to -1".
    let b = body.clone();
    let s = serve(move |n, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nTransfer-Encoding: chunked\r\n\r\n")?;
        s.write_all(format!("{:x}\r\n", b.len()).as_bytes())?;
        if n == 0 {
            return s.write_all(&b[..200_000]);
        }
        s.write_all(&b)?;
        s.write_all(b"\r\n0\r\n\r\n")
    });
    assert_eq!(client().get(&s.url).unwrap(), body);
    let asked = s.asked.lock().unwrap();
    assert!(asked.iter().all(|a| a.header("range").is_none()));
}

#[test]
fn what_is_too_large_is_refused_by_its_length_or_when_it_comes() {
    let body = data(300_000);
    for told in [true, false] {
        let b = body.clone();
        let s = serve(move |_, _, s| {
            if told {
                return whole(s, &b, usize::MAX);
            }
            s.write_all(b"HTTP/1.1 200 OK\r\nConnection: close\r\n\r\n")?;
            s.write_all(&b)
        });
        let mut c = client();
        c.request.max_bytes = 299_999;
        assert_eq!(c.get(&s.url).unwrap_err().code, Code::SlotTooSmall);
        c.request.max_bytes = 300_000;
        assert_eq!(c.get(&s.url).unwrap(), body);
    }
}

#[test]
fn statuses_are_retried_or_final() {
    for (status, tries) in [
        ("404 Not Found", 1),
        ("403 Forbidden", 1),
        ("204 No Content", 1),
        ("500 Oops", 4),
        ("503 Busy", 4),
        ("429 Slow", 4),
    ] {
        let s = serve(move |_, _, s| {
            s.write_all(format!("HTTP/1.1 {status}\r\nContent-Length: 0\r\n\r\n").as_bytes())
        });
        let e = client().get(&s.url).unwrap_err();
        assert_eq!(e.code, Code::FetchFailed, "{e}");
        assert!(e.message.contains(&status[..3]), "{e}");
        assert_eq!(s.asked.lock().unwrap().len(), tries, "{status}");
    }
    let body = data(1000);
    let b = body.clone();
    let s = serve(move |n, a, s| match n {
        0 | 1 => s.write_all(b"HTTP/1.1 503 Busy\r\nRetry-After: 0\r\nContent-Length: 0\r\n\r\n"),
        _ => good(s, a, &b, "\"1\"", usize::MAX),
    });
    assert_eq!(client().get(&s.url).unwrap(), body);
    let s = serve(|_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Encoding: gzip\r\nContent-Length: 3\r\n\r\nabc")
    });
    assert_eq!(client().get(&s.url).unwrap_err().code, Code::UnsupportedFormat);
}

#[test]
fn a_dead_server_is_given_up_on() {
    let free = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let c = client();
    let e = c.get(&format!("http://u:p@{free}/x")).unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
    assert!(e.message.contains("refused") && !e.message.contains("u:p"), "{e}");
    assert_eq!(c.waits().len(), 3);
    assert!(
        c.waits()[0].as_deref().unwrap().contains("try 2 of 4"),
        "{:?}",
        c.waits()
    );
}

#[test]
fn silence_and_crawling_end_the_connection() {
    // No answer at all.
    let s = serve(|_, _, _| {
        std::thread::sleep(Duration::from_secs(20));
        Ok(())
    });
    let mut c = client();
    c.policy.connect_timeout = Duration::from_millis(100);
    c.policy.retry_limit = 2;
    let e = c.get(&s.url).unwrap_err();
    assert!(e.message.contains("no answer"), "{e}");
    // One byte at a time, then a server that works.
    let body = data(200_000);
    let b = body.clone();
    let s = serve(move |n, a, s| {
        if n > 0 {
            return good(s, a, &b, "\"1\"", usize::MAX);
        }
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 200000\r\nETag: \"1\"\r\n\r\n")?;
        for x in &b {
            s.write_all(&[*x])?;
            std::thread::sleep(Duration::from_millis(50));
        }
        Ok(())
    });
    let c = client();
    assert_eq!(c.get(&s.url).unwrap(), body);
    assert!(
        c.waits().iter().flatten().any(|w| w.contains("less than 1024")),
        "{:?}",
        c.waits()
    );
}

#[test]
fn a_cancel_ends_every_wait_at_once() {
    // In the answer, in the body, in the pause before a retry.
    for kind in 0..3 {
        let s = serve(move |_, _, s| {
            match kind {
                0 => {}
                1 => s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nab")?,
                _ => return s.write_all(b"HTTP/1.1 503 Busy\r\nContent-Length: 0\r\n\r\n"),
            }
            std::thread::sleep(Duration::from_secs(20));
            Ok(())
        });
        let mut c = client();
        c.policy = Policy::default();
        c.policy.retry_first = Duration::from_secs(30);
        let cancel = c.cancel.clone();
        let canceller = std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            cancel.cancel();
            std::time::Instant::now()
        });
        let e = c.get(&s.url).unwrap_err();
        let late = canceller.join().unwrap().elapsed();
        assert_eq!(e.code, Code::Cancelled);
        assert!(late < Duration::from_millis(400), "kind {kind}: {late:?}");
    }
}

pub(in crate::fetch) fn redirect(s: &mut TcpStream, to: &str) -> std::io::Result<()> {
    s.write_all(format!("HTTP/1.1 302 Found\r\nLocation: {to}\r\nContent-Length: 0\r\n\r\n").as_bytes())
}

#[test]
fn t7_credentials_stay_with_their_origin() {
    let body = data(5000);
    let b = body.clone();
    let storage = serve(move |_, a, s| good(s, a, &b, "\"1\"", usize::MAX));
    let target = storage.url.clone();
    let first = serve(move |_, a, s| match a.path.as_str() {
        "/a" => redirect(s, "/b"),
        _ => redirect(s, &format!("{target}/signed")),
    });
    let c = client();
    let url = first.url.replace("http://", "http://me:p%40ss@");
    assert_eq!(c.get(&format!("{url}/a")).unwrap(), body);
    for a in first.asked.lock().unwrap().iter() {
        assert_eq!(
            a.header("authorization"),
            Some("Basic bWU6cEBzcw=="),
            "{}",
            a.path
        );
    }
    assert_eq!(storage.asked.lock().unwrap()[0].header("authorization"), None);
    assert!(!c.open(&format!("{url}/a")).unwrap().describe().contains("me"));
}

#[test]
fn t8_an_expired_signed_target_is_resolved_again() {
    let body = data(200_000);
    let b = body.clone();
    let storage = serve(move |n, a, s| match n {
        0 => good(s, a, &b, "\"1\"", 50_000),
        1 => s.write_all(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n"),
        _ => good(s, a, &b, "\"1\"", usize::MAX),
    });
    let target = storage.url.clone();
    let first = serve(move |n, _, s| redirect(s, &format!("{target}/signed?{n}")));
    assert_eq!(client().get(&first.url).unwrap(), body);
    let asked = storage.asked.lock().unwrap();
    assert_eq!(asked[2].path, "/signed?2");
    assert_eq!(asked[2].range(), Some((50_000, 199_999)));
}

#[test]
fn t7_redirects_are_bounded_and_never_go_down() {
    let s = serve(|n, _, s| redirect(s, &format!("/{n}")));
    let e = client().get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::Redirect);
    assert_eq!(s.asked.lock().unwrap().len(), 6);
    for (to, says) in [
        ("ftp://example.com/x", "not to http"),
        ("http://[::", "not a URL"),
    ] {
        let s = serve(move |_, _, s| redirect(s, to));
        let e = client().get(&s.url).unwrap_err();
        assert_eq!(e.code, Code::Redirect);
        assert!(e.message.contains(says), "{e}");
    }
    // The rule itself, without a TLS server.
    let url = |u: &str| Url::parse(u).unwrap();
    let refused = |a: &str, b: &str, allow| match attempt::allowed(&url(a), &url(b), allow) {
        Ok(()) => None,
        Err(Failure::Final(e)) => Some(e.code),
        Err(other) => panic!("{other:?}"),
    };
    assert_eq!(refused("https://a/", "http://a/", true), Some(Code::Redirect));
    assert_eq!(refused("https://a/", "https://b/", false), None);
    assert_eq!(refused("http://a/", "https://a/", true), None);
    assert_eq!(refused("http://a/", "http://b/", true), None);
}

#[test]
fn urls_that_policy_forbids_are_refused_without_a_request() {
    let s = serve(|_, a, s| good(s, a, b"x", "\"1\"", 1));
    let mut c = client();
    c.request.allow_http = false;
    let e = c.get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::HttpNotAllowed);
    assert!(e.message.contains("--allow-http"), "{e}");
    for bad in ["", "x", "ftp://h/x", "file:///etc/passwd", "http://"] {
        assert_eq!(c.get(bad).unwrap_err().code, Code::InvalidArgument, "{bad}");
    }
    assert!(s.asked.lock().unwrap().is_empty());
    c.request.cacert = Some("/nonexistent.pem".into());
    let e = c.get("https://127.0.0.1:1/x").unwrap_err();
    assert_eq!(e.code, Code::InvalidArgument);
    assert!(e.message.contains("/nonexistent.pem"), "{e}");
}

#[test]
fn the_rate_is_kept() {
    let body = data(400_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"1\"", usize::MAX));
    let mut c = client();
    c.request.rate_bytes_per_sec = Some(400_000);
    let began = std::time::Instant::now();
    assert_eq!(c.get(&s.url).unwrap(), body);
    let took = began.elapsed().as_secs_f64();
    assert!((0.9..1.6).contains(&took), "{took}");
}

/// A client that has the first `n` bytes of `total` from an earlier attempt.
fn knowing(total: u64, etag: &str) -> Client {
    let mut c = client();
    c.request.known = Some(Object {
        total,
        etag: Some(etag.to_owned()),
        modified: None,
    });
    c
}

/// Takes the first MiB, passes over up to byte `at`, takes the rest.
fn take_up(c: &Client, url: &str, at: u64) -> Result<(Vec<u8>, Vec<u8>)> {
    let mut d = c.open(url)?;
    let (mut head, mut rest) = (Vec::new(), Vec::new());
    while (head.len() as u64) < FIRST {
        head.extend_from_slice(&d.next()?.unwrap());
    }
    let mut over = at - head.len() as u64;
    while over > 0 {
        let passed = d.skip(over)?;
        over -= passed;
        assert!(passed > 0);
    }
    while let Some(b) = d.next()? {
        rest.extend_from_slice(&b);
    }
    Ok((head, rest))
}

#[test]
fn t2_what_is_there_already_is_passed_over_with_closed_ranges() {
    let body = data(4_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"v1\"", usize::MAX));
    let (head, rest) = take_up(&knowing(4_000_000, "\"v1\""), &s.url, 3_000_000).unwrap();
    assert!(head == body[..FIRST as usize] && rest == body[3_000_000..]);
    let asked = s.asked.lock().unwrap();
    assert_eq!(asked.len(), 2);
    assert_eq!(asked[0].range(), Some((0, FIRST as usize - 1)));
    assert_eq!(asked[0].header("if-range"), Some("\"v1\""));
    assert_eq!(asked[1].range(), Some((3_000_000, 3_999_999)));
}

#[test]
fn t5_at_full_size_nothing_more_is_asked_for() {
    let body = data(2_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"v1\"", usize::MAX));
    let (_, rest) = take_up(&knowing(2_000_000, "\"v1\""), &s.url, 2_000_000).unwrap();
    assert!(rest.is_empty());
    assert_eq!(s.asked.lock().unwrap().len(), 1);
}

#[test]
fn t6_a_server_without_ranges_is_read_and_dropped_when_taken_up() {
    let body = data(3_000_000);
    let b = body.clone();
    let s = serve(move |_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\nETag: \"v1\"\r\n\r\n")?;
        s.write_all(&b)
    });
    let (head, rest) = take_up(&knowing(3_000_000, "\"v1\""), &s.url, 2_500_000).unwrap();
    assert!(head == body[..head.len()] && rest == body[2_500_000..]);
    assert_eq!(s.asked.lock().unwrap().len(), 1);
}

#[test]
fn an_object_that_changed_since_the_last_attempt_is_started_over() {
    let body = data(3_000_000);
    for (etag, total) in [("\"old\"", 3_000_000), ("\"v1\"", 2_999_999)] {
        let b = body.clone();
        // If-Range fails: the whole new object.
        let s = serve(move |_, _, s| {
            s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 3000000\r\nETag: \"v1\"\r\n\r\n")?;
            s.write_all(&b)
        });
        let e = take_up(&knowing(total, etag), &s.url, 2_500_000).unwrap_err();
        assert_eq!(e.code, Code::ObjectChanged, "{e}");
    }
}

#[test]
fn the_rest_of_a_taken_up_object_survives_cuts_as_well() {
    let body = data(3_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"v1\"", 300_000));
    let (head, rest) = take_up(&knowing(3_000_000, "\"v1\""), &s.url, 2_000_000).unwrap();
    assert!(head == body[..head.len()] && rest == body[2_000_000..]);
    let sent: usize = (s.asked.lock().unwrap().iter())
        .map(|a| a.range().map_or(300_000, |(x, y)| (y + 1 - x).min(300_000)))
        .sum();
    assert!(sent <= FIRST as usize + 1_000_000, "{sent}");
}

#[test]
fn t1_a_cut_every_256_kib_costs_at_most_five_percent() {
    let body = data(3_000_000);
    let b = body.clone();
    let s = serve(move |_, a, s| good(s, a, &b, "\"v1\"", 256 << 10));
    assert_eq!(client().get(&s.url).unwrap(), body);
    let asked = s.asked.lock().unwrap();
    assert_eq!(asked.len(), 12);
    let sent: usize = asked
        .iter()
        .map(|a| a.range().map_or(256 << 10, |(x, y)| (y + 1 - x).min(256 << 10)))
        .sum();
    assert!(sent <= 3_150_000, "{sent}");
}

#[test]
fn ten_tebibytes_are_refused_by_their_length() {
    let s = serve(|_, _, s| s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 10995116277760\r\n\r\n"));
    let e = client().get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::SlotTooSmall);
    assert!(e.message.contains("10995116277760"), "{e}");
}

#[test]
fn headers_without_end_are_refused() {
    let s = serve(|_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 1\r\n")?;
        for i in 0..20 {
            s.write_all(format!("X-{i}: {}\r\n", "x".repeat(4096)).as_bytes())?;
        }
        s.write_all(b"\r\nx")
    });
    let e = client().get(&s.url).unwrap_err();
    assert!(e.message.contains("headers"), "{e}");
}

#[test]
fn a_whole_download_has_a_limit_where_the_node_sets_one() {
    let s = serve(|_, _, s| {
        s.write_all(b"HTTP/1.1 200 OK\r\nContent-Length: 100000000\r\n\r\n")?;
        loop {
            s.write_all(&[0; 20_000])?;
            std::thread::sleep(Duration::from_millis(50));
        }
    });
    let mut c = client();
    c.policy.total_timeout = Some(Duration::from_millis(600));
    let e = c.get(&s.url).unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
    assert!(e.message.contains("total_timeout_secs"), "{e}");
}

#[test]
fn credentials_of_an_origin_come_from_the_nodes_files() {
    use std::os::unix::fs::PermissionsExt;
    let body = data(5000);
    let b = body.clone();
    let storage = serve(move |_, a, s| good(s, a, &b, "\"1\"", usize::MAX));
    let target = storage.url.clone();
    let first = serve(move |_, _, s| redirect(s, &format!("{target}/x")));
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("a.toml");
    let text = [&first.url, &storage.url]
        .map(|u| format!("[[origin]]\nurl = \"{u}\"\ntoken = \"tok\"\n"))
        .concat();
    std::fs::write(&file, text).unwrap();
    std::fs::set_permissions(&file, std::fs::Permissions::from_mode(0o600)).unwrap();
    let mut c = client();
    c.policy.credentials_dir = camino::Utf8PathBuf::from_path_buf(dir.path().to_owned()).ok();
    assert_eq!(c.get(&first.url).unwrap(), body);
    let shown = |s: &Server| {
        s.asked.lock().unwrap()[0]
            .header("authorization")
            .map(str::to_owned)
    };
    assert_eq!(shown(&first).as_deref(), Some("Bearer tok"));
    // Even where the node has some: whoever redirects does not choose when they are shown.
    assert_eq!(shown(&storage), None);
}
