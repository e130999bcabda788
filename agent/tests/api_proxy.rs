//! `os-agent api-proxy` between a kubelet-like client and fake API servers that speak TLS. The certificates are those of the
//! fetcher's tests: `ca.pem` signed `server.pem`; `proxied.pem` is signed by another authority.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use camino::{Utf8Path, Utf8PathBuf};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ClientConfig, ClientConnection, RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::collections::BTreeMap;
use std::io::{Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

fn file(name: &str) -> Utf8PathBuf {
    Utf8PathBuf::from(env!("CARGO_MANIFEST_DIR"))
        .join("src/fetch/http/tls_testdata")
        .join(name)
}

fn certs(name: &str) -> Vec<CertificateDer<'static>> {
    CertificateDer::pem_file_iter(file(name))
        .unwrap()
        .map(Result::unwrap)
        .collect()
}

fn ring() {
    let _ = rustls::crypto::ring::default_provider().install_default();
}

/// An API server: answers every request with its name, `/readyz` as well.
struct Server {
    name: &'static str,
    address: SocketAddr,
    dead: Arc<AtomicBool>,
    /// Milliseconds before each answer; `u64::MAX` = never answers.
    delay: Arc<AtomicU64>,
    open: Arc<Mutex<Vec<TcpStream>>>,
}

impl Server {
    fn start(name: &'static str, cert: &str, delay_ms: u64) -> Server {
        ring();
        let config = ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(certs(cert), PrivateKeyDer::from_pem_file(file(cert)).unwrap())
            .unwrap();
        let config = Arc::new(config);
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        listener.set_nonblocking(true).unwrap();
        let s = Server {
            name,
            address: listener.local_addr().unwrap(),
            dead: Arc::default(),
            delay: Arc::new(AtomicU64::new(delay_ms)),
            open: Arc::default(),
        };
        let (dead, delay, open) = (s.dead.clone(), s.delay.clone(), s.open.clone());
        std::thread::spawn(move || {
            while !dead.load(Ordering::SeqCst) {
                let Ok((tcp, _)) = listener.accept() else {
                    std::thread::sleep(Duration::from_millis(2));
                    continue;
                };
                tcp.set_nonblocking(false).unwrap();
                open.lock().unwrap().push(tcp.try_clone().unwrap());
                let conn = ServerConnection::new(config.clone()).unwrap();
                let (dead, delay) = (dead.clone(), delay.clone());
                std::thread::spawn(move || talk(name, StreamOwned::new(conn, tcp), &dead, &delay));
            }
        });
        s
    }

    fn kill(&self) {
        self.dead.store(true, Ordering::SeqCst);
        // The listener closes within a moment; what was accepted breaks now.
        std::thread::sleep(Duration::from_millis(50));
        for s in self.open.lock().unwrap().drain(..) {
            let _ = s.shutdown(Shutdown::Both);
        }
    }
}

fn talk(name: &str, mut s: StreamOwned<ServerConnection, TcpStream>, dead: &AtomicBool, delay: &AtomicU64) {
    let mut seen = Vec::new();
    let mut buf = [0u8; 4096];
    loop {
        while !seen.windows(4).any(|w| w == b"\r\n\r\n") {
            match s.read(&mut buf) {
                Ok(n) if n > 0 => seen.extend_from_slice(&buf[..n]),
                _ => return,
            }
        }
        seen.clear();
        let start = Instant::now();
        loop {
            let ms = delay.load(Ordering::SeqCst);
            if dead.load(Ordering::SeqCst) {
                return;
            }
            if start.elapsed().as_millis() >= u128::from(ms) {
                break;
            }
            std::thread::sleep(Duration::from_millis(2));
        }
        let text = format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{name}", name.len());
        if s.write_all(text.as_bytes()).and_then(|()| s.flush()).is_err() {
            return;
        }
    }
}

/// What a kubelet does: one connection, kept open, made anew when it breaks.
struct Kubelet {
    to: SocketAddr,
    config: Arc<ClientConfig>,
    connection: Option<StreamOwned<ClientConnection, TcpStream>>,
}

impl Kubelet {
    fn new(to: SocketAddr) -> Kubelet {
        ring();
        let mut roots = RootCertStore::empty();
        for c in certs("ca.pem") {
            roots.add(c).unwrap();
        }
        let config = ClientConfig::builder()
            .with_root_certificates(roots)
            .with_no_client_auth();
        Kubelet {
            to,
            config: Arc::new(config),
            connection: None,
        }
    }

    /// One request; gives the name of the server that answered.
    fn get(&mut self) -> std::io::Result<String> {
        let answer = self.exchange();
        if answer.is_err() {
            self.connection = None;
        }
        answer
    }

    fn exchange(&mut self) -> std::io::Result<String> {
        if self.connection.is_none() {
            let tcp = TcpStream::connect(self.to)?;
            tcp.set_read_timeout(Some(Duration::from_secs(60)))?;
            let conn = ClientConnection::new(self.config.clone(), "127.0.0.1".try_into().unwrap())
                .map_err(std::io::Error::other)?;
            self.connection = Some(StreamOwned::new(conn, tcp));
        }
        let s = self.connection.as_mut().unwrap();
        s.write_all(b"GET /api HTTP/1.1\r\nHost: x\r\n\r\n")?;
        let mut text = Vec::new();
        let mut buf = [0u8; 1024];
        loop {
            let n = s.read(&mut buf)?;
            if n == 0 {
                return Err(std::io::ErrorKind::UnexpectedEof.into());
            }
            text.extend_from_slice(&buf[..n]);
            let t = String::from_utf8_lossy(&text);
            if let Some((head, body)) = t.split_once("\r\n\r\n") {
                let want: usize = head.rsplit_once(": ").unwrap().1.parse().unwrap();
                if body.len() >= want {
                    return Ok(body.to_owned());
                }
            }
        }
    }

    fn reconnect(&mut self) {
        self.connection = None;
    }
}

struct Proxy {
    _tmp: tempfile::TempDir,
    root: Utf8PathBuf,
    child: Child,
    listen: SocketAddr,
    health: SocketAddr,
}

impl Drop for Proxy {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn free() -> SocketAddr {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap()
}

fn settings(listen: SocketAddr, health: SocketAddr, servers: &[&Server]) -> String {
    settings_with(listen, health, servers, 3000)
}

fn settings_with(listen: SocketAddr, health: SocketAddr, servers: &[&Server], timeout_ms: u32) -> String {
    let all: Vec<String> = servers.iter().map(|s| format!("\"{}\"", s.address)).collect();
    format!(
        "listen = \"{listen}\"\nhealth = \"{health}\"\nca_file = \"{}\"\nprobe_secs = 1\ntimeout_ms = {timeout_ms}\nupstreams = [{}]\n",
        file("ca.pem"),
        all.join(", ")
    )
}

impl Proxy {
    fn start(servers: &[&Server]) -> Proxy {
        let tmp = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(tmp.path()).unwrap().to_owned();
        let (listen, health) = (free(), free());
        let path = root.join("api-proxy.toml");
        std::fs::write(&path, settings(listen, health, servers)).unwrap();
        let child = Command::new(env!("CARGO_BIN_EXE_os-agent"))
            .args(["api-proxy", "--file", path.as_str()])
            .stderr(std::fs::File::create(root.join("said")).unwrap())
            .spawn()
            .unwrap();
        let p = Proxy {
            _tmp: tmp,
            root,
            child,
            listen,
            health,
        };
        p.wait(|p| TcpStream::connect(p.health).is_ok());
        p
    }

    fn wait(&self, f: impl Fn(&Proxy) -> bool) {
        let start = Instant::now();
        while !f(self) {
            assert!(start.elapsed() < Duration::from_secs(90), "{}", self.said());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    fn said(&self) -> String {
        std::fs::read_to_string(self.root.join("said")).unwrap_or_default()
    }

    fn write(&self, text: &str) {
        std::fs::write(self.root.join("api-proxy.toml"), text).unwrap();
    }

    fn report(&self) -> (String, serde_json::Value) {
        let mut s = TcpStream::connect(self.health).unwrap();
        s.write_all(b"GET /healthz HTTP/1.1\r\n\r\n").unwrap();
        let mut text = String::new();
        s.read_to_string(&mut text).unwrap();
        let (head, body) = text.split_once("\r\n\r\n").unwrap();
        (
            head.lines().next().unwrap().to_owned(),
            serde_json::from_str(body).unwrap(),
        )
    }

    fn class(&self, s: &Server) -> String {
        let (_, doc) = self.report();
        let all = doc["servers"].as_array().unwrap().clone();
        all.iter()
            .find(|e| e["server"] == s.address.to_string())
            .map_or(String::new(), |e| e["class"].as_str().unwrap().to_owned())
    }
}

/// One dies, one is slow, one has a wrong certificate.
#[test]
fn a_kubelet_sees_no_failed_request_beyond_the_connection_that_broke() {
    let quick = Server::start("quick", "server.pem", 0);
    let slow = Server::start("slow", "server.pem", 600);
    let wrong = Server::start("wrong", "proxied.pem", 0);
    let p = Proxy::start(&[&quick, &slow, &wrong]);
    let mut k = Kubelet::new(p.listen);
    let mut by = BTreeMap::<String, u32>::new();
    for _ in 0..60 {
        *by.entry(k.get().expect("a request failed while a server was well"))
            .or_default() += 1;
        k.reconnect();
    }
    assert_eq!(by.get("quick"), Some(&60), "{by:?}\n{}", p.said());
    assert_eq!(p.class(&wrong), "refused", "{}", p.said());
    // It dies under an open connection.
    k.get().unwrap();
    quick.kill();
    let (mut failed, mut by) = (0, BTreeMap::<String, u32>::new());
    for i in 0..12 {
        match k.get() {
            Ok(name) => *by.entry(name).or_default() += 1,
            Err(e) => {
                assert_eq!(i, 0, "request {i}: {e}\n{}", p.said());
                failed += 1;
            }
        }
        if i % 3 == 2 {
            k.reconnect();
        }
    }
    assert!(failed <= 1);
    assert_eq!(by.get("slow"), Some(&(12 - failed)), "{by:?}");
    println!("60 requests by the quick server, then {failed} on the broken connection, then {by:?}");
}

/// A server that falls silent without closing anything: its connections are cut, so that the kubelet turns to another one.
#[test]
fn connections_to_a_server_that_fell_silent_are_cut() {
    let a = Server::start("a", "server.pem", 0);
    let b = Server::start("b", "server.pem", 600);
    let p = Proxy::start(&[&a, &b]);
    p.write(&settings_with(p.listen, p.health, &[&a, &b], 1200));
    let mut k = Kubelet::new(p.listen);
    assert_eq!(k.get().unwrap(), "a");
    a.delay.store(u64::MAX, Ordering::SeqCst);
    let start = Instant::now();
    // Its read waits for 60 s; the cut comes first.
    let e = k.get().unwrap_err();
    assert!(
        !matches!(
            e.kind(),
            std::io::ErrorKind::WouldBlock | std::io::ErrorKind::TimedOut
        ),
        "{e} after {:?}: {}",
        start.elapsed(),
        p.said()
    );
    assert_eq!(k.get().unwrap(), "b");
    // It wakes up and is asked again.
    a.delay.store(0, Ordering::SeqCst);
    p.wait(|p| p.class(&a) == "good");
    k.reconnect();
    assert_eq!(k.get().unwrap(), "a");
}

#[test]
fn the_file_is_read_again_and_a_bad_one_leaves_the_old_servers() {
    let a = Server::start("a", "server.pem", 0);
    let b = Server::start("b", "server.pem", 0);
    let p = Proxy::start(&[&a]);
    let mut k = Kubelet::new(p.listen);
    assert_eq!(k.get().unwrap(), "a");
    // Fault 16 of the original: an empty list.
    p.write(&settings(p.listen, p.health, &[]));
    p.wait(|p| p.said().contains("what was read before stays"));
    k.reconnect();
    assert_eq!(k.get().unwrap(), "a");
    p.write(&settings(p.listen, p.health, &[&b]));
    p.wait(|p| p.class(&b) == "good");
    // The open connection lives on; a new one goes to the new server.
    assert_eq!(k.get().unwrap(), "a");
    k.reconnect();
    assert_eq!(k.get().unwrap(), b.name);
    assert!(p.report().0.contains("200"));
    b.kill();
    p.wait(|p| p.report().0.contains("503"));
}

/// It is a process of its own: the death of another os-agent process does not touch it.
#[test]
fn the_death_of_the_agent_cuts_no_connection() {
    let a = Server::start("a", "server.pem", 0);
    let p = Proxy::start(&[&a]);
    let mut runner = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .args(["steps", "--steps-dir"])
        .arg(p.root.join("steps"))
        .arg("--root")
        .arg(&p.root)
        .args(["serve", "--socket"])
        .arg(p.root.join("os-agent.sock"))
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    p.wait(|p| p.root.join("steps.sock").exists());
    let mut k = Kubelet::new(p.listen);
    k.get().unwrap();
    let before = k.connection.as_ref().unwrap().sock.local_addr().unwrap();
    runner.kill().unwrap();
    runner.wait().unwrap();
    for _ in 0..20 {
        k.get().unwrap();
    }
    assert_eq!(k.connection.as_ref().unwrap().sock.local_addr().unwrap(), before);
    // Nor does its unit hang on the agent's.
    let unit = Utf8Path::new(env!("CARGO_MANIFEST_DIR")).join("../systemd/system/os-agent-api-proxy.service");
    let unit = std::fs::read_to_string(unit).unwrap();
    for tie in ["Requires=", "BindsTo=", "PartOf=", "Requisite="] {
        assert!(!unit.contains(tie), "{tie}");
    }
}

#[test]
fn a_bad_file_is_refused_at_the_start() {
    let tmp = tempfile::tempdir().unwrap();
    let path = tmp.path().join("x.toml");
    std::fs::write(&path, "ca_file = \"/ca\"\nupstreams = []\n").unwrap();
    let o = Command::new(env!("CARGO_BIN_EXE_os-agent"))
        .arg("api-proxy")
        .arg("--file")
        .arg(&path)
        .output()
        .unwrap();
    let text = String::from_utf8_lossy(&o.stderr);
    assert!(
        o.status.code() == Some(2) && text.contains("expected 1 to 64 servers"),
        "{text}"
    );
}
