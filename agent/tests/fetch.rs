//! The real program against servers in this process: what is fetched, from whom, and what a killed download costs.
#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::disallowed_methods,
    missing_docs
)]

use camino::Utf8PathBuf;
use os_agent::testdisk::TestDisk;
use os_agent::testing::{image, kernel, sha256};
use os_proto::layout::MIB;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::{ServerConfig, ServerConnection, StreamOwned};
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

mod common;

use common::Ran;

struct Bench {
    _dir: tempfile::TempDir,
    dir: Utf8PathBuf,
    disk: Utf8PathBuf,
}

impl Bench {
    fn new(slot_mib: u64) -> Bench {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8PathBuf::from_path_buf(dir.path().to_owned()).unwrap();
        let disk = path.join("disk.img");
        TestDisk {
            slot_mib,
            ..TestDisk::default()
        }
        .create(&disk);
        std::fs::write(
            path.join("quick.toml"),
            "[fetch]\nretry_limit = 2\nretry_first_ms = 10\n",
        )
        .unwrap();
        Bench {
            _dir: dir,
            dir: path,
            disk,
        }
    }

    fn command(&self, args: &[&str]) -> Command {
        let mut c = Command::new(env!("CARGO_BIN_EXE_os-agent"));
        c.args(args)
            .args(["--disk", self.disk.as_str(), "--running", "A", "--json"])
            .args(["--config", self.dir.join("quick.toml").as_str()]);
        for v in ["HTTPS_PROXY", "HTTP_PROXY", "NO_PROXY", "ALL_PROXY"] {
            c.env_remove(v).env_remove(v.to_lowercase());
        }
        c
    }

    fn run(&self, args: &[&str], env: &[(&str, &str)]) -> Ran {
        Ran::from(self.command(args).envs(env.iter().copied()).output().unwrap())
    }

    fn journal(&self) -> Vec<u8> {
        std::fs::read(self.dir.join("disk.img.state/stage.journal")).unwrap_or_default()
    }
}

/// A request: its first line and headers.
fn request(s: &mut impl Read) -> String {
    let mut out = Vec::new();
    let mut one = [0u8; 1];
    while !out.ends_with(b"\r\n\r\n") {
        if s.read(&mut one).unwrap_or(0) == 0 || (out.is_empty() && one[0] == 0x16) {
            // The end, or somebody who begins with TLS where it is not spoken.
            break;
        }
        out.push(one[0]);
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// Answers a request for `body`, ranges included.
fn answer(request: &str, body: &[u8]) -> (String, std::ops::Range<usize>) {
    let range = request.lines().find_map(|l| {
        let (a, b) = l
            .to_lowercase()
            .strip_prefix("range: bytes=")?
            .split_once('-')
            .map(|(a, b)| (a.parse::<usize>(), b.trim().parse::<usize>()))?;
        Some(a.ok()?..b.ok()? + 1)
    });
    let (status, r) = match range {
        Some(r) => (
            format!(
                "206 Partial Content\r\nContent-Range: bytes {}-{}/{}",
                r.start,
                r.end - 1,
                body.len()
            ),
            r,
        ),
        None => ("200 OK".into(), 0..body.len()),
    };
    (
        format!(
            "HTTP/1.1 {status}\r\nContent-Length: {}\r\nETag: \"v1\"\r\nConnection: close\r\n\r\n",
            r.len()
        ),
        r,
    )
}

/// A server of one file; after `stall` bytes in all it sends nothing more but keeps the connection.
struct Server {
    url: String,
    sent: Arc<AtomicU64>,
    stall: Arc<AtomicU64>,
}

fn serve(body: Vec<u8>) -> Server {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/update.img", listener.local_addr().unwrap());
    let (sent, stall) = (Arc::new(AtomicU64::new(0)), Arc::new(AtomicU64::new(u64::MAX)));
    let (s, t) = (sent.clone(), stall.clone());
    let body = Arc::new(body);
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let (s, t, body) = (s.clone(), t.clone(), body.clone());
            std::thread::spawn(move || {
                let mut stream = stream.unwrap();
                let asked = request(&mut stream);
                let (head, range) = answer(&asked, &body);
                let _ = stream.write_all(head.as_bytes());
                for part in body.get(range).unwrap_or_default().chunks(64 << 10) {
                    while s.load(Ordering::SeqCst) >= t.load(Ordering::SeqCst) {
                        std::thread::sleep(Duration::from_millis(20));
                    }
                    if stream.write_all(part).is_err() {
                        return;
                    }
                    s.fetch_add(part.len() as u64, Ordering::SeqCst);
                }
            });
        }
    });
    Server { url, sent, stall }
}

/// A bootable image that is made long by noise behind its file system.
fn long_image(version: &str, mib: u64) -> Vec<u8> {
    let mut data = image(version);
    let mut x = 0x9e37_79b9u32;
    while (data.len() as u64) < mib * MIB {
        x ^= x << 13;
        x ^= x >> 17;
        x ^= x << 5;
        data.extend_from_slice(&x.to_le_bytes());
    }
    data
}

#[test]
fn t2_killed_at_half_it_fetches_at_most_half_and_4_mib_more() {
    let b = Bench::new(24);
    let body = long_image("2", 16);
    let sum = sha256(&body).to_string();
    let s = serve(body.clone());
    s.stall.store(8 * MIB, Ordering::SeqCst);
    let args = [
        "stage",
        "--image",
        &s.url,
        "--sha256",
        &sum,
        "--allow-http",
        "--op-id",
        "one",
    ];
    let mut child = b
        .command(&args)
        .stdout(Stdio::null())
        .stderr(Stdio::null())
        .spawn()
        .unwrap();
    // Six chunks and more are known to be on the medium once the server has been silent for a while.
    let began = Instant::now();
    let records = |j: Vec<u8>| {
        j.iter()
            .skip(512)
            .collect::<Vec<_>>()
            .chunks(32)
            .filter(|r| *r[0] == b'S')
            .count()
    };
    while records(b.journal()) < 6 {
        assert!(
            began.elapsed() < Duration::from_secs(120),
            "nothing was journalled"
        );
        std::thread::sleep(Duration::from_millis(100));
    }
    child.kill().unwrap();
    child.wait().unwrap();
    let first = s.sent.load(Ordering::SeqCst);
    assert!(first <= 8 * MIB + (64 << 10));

    s.stall.store(u64::MAX, Ordering::SeqCst);
    s.sent.store(0, Ordering::SeqCst);
    let r = b.run(&args, &[]).good();
    assert_eq!(r["image_sha256"], sum.as_str());
    assert_eq!(r["version"], "2");
    let more = s.sent.load(Ordering::SeqCst);
    assert!(more <= 8 * MIB + 4 * MIB, "{more} bytes after the kill");
    assert!(r["written_bytes"].as_u64().unwrap() <= 10 * MIB, "{r}");
    assert!(b.journal().is_empty(), "nothing is left behind");
    assert_eq!(b.run(&["verify-slot", "B"], &[]).good()["ok"], true);
}

/// Tunnels for a TLS server that answers to images.test.
struct Proxy {
    port: u16,
    asked: Arc<Mutex<Vec<String>>>,
    behind: Arc<Mutex<Vec<String>>>,
}

fn testdata(name: &str) -> String {
    format!(
        "{}/src/fetch/http/tls_testdata/{name}",
        env!("CARGO_MANIFEST_DIR")
    )
}

fn tls_server(body: Vec<u8>) -> (u16, Arc<Mutex<Vec<String>>>) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let certs: Vec<CertificateDer<'static>> = CertificateDer::pem_file_iter(testdata("proxied.pem"))
        .unwrap()
        .map(Result::unwrap)
        .collect();
    let key = PrivateKeyDer::from_pem_file(testdata("proxied.pem")).unwrap();
    let config = Arc::new(
        ServerConfig::builder()
            .with_no_client_auth()
            .with_single_cert(certs, key)
            .unwrap(),
    );
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let (config, body, log) = (config.clone(), body.clone(), log.clone());
            std::thread::spawn(move || {
                let conn = ServerConnection::new(config).unwrap();
                let mut s = StreamOwned::new(conn, tcp.unwrap());
                let text = request(&mut s);
                if text.is_empty() {
                    return;
                }
                let (head, range) = answer(&text, &body);
                log.lock().unwrap().push(text);
                let _ = s.write_all(head.as_bytes());
                let _ = s.write_all(body.get(range).unwrap_or_default());
                s.conn.send_close_notify();
                let _ = s.flush();
            });
        }
    });
    (port, asked)
}

fn proxy(body: Vec<u8>) -> Proxy {
    let (target, behind) = tls_server(body.clone());
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    let asked = Arc::new(Mutex::new(Vec::new()));
    let log = asked.clone();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let (log, body) = (log.clone(), body.clone());
            std::thread::spawn(move || {
                let mut client = client.unwrap();
                let mut reader = BufReader::new(client.try_clone().unwrap());
                let mut text = String::new();
                while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text).unwrap_or(0) > 0 {}
                log.lock().unwrap().push(text.clone());
                if !text.starts_with("CONNECT ") {
                    let (head, range) = answer(&text, &body);
                    let _ = client.write_all(head.as_bytes());
                    let _ = client.write_all(body.get(range).unwrap_or_default());
                    return;
                }
                client.write_all(b"HTTP/1.1 200 OK\r\n\r\n").unwrap();
                let mut server = TcpStream::connect(("127.0.0.1", target)).unwrap();
                let (mut up, mut down) = (server.try_clone().unwrap(), client.try_clone().unwrap());
                std::thread::spawn(move || {
                    let _ = std::io::copy(&mut client, &mut up);
                    let _ = up.shutdown(std::net::Shutdown::Write);
                });
                let _ = std::io::copy(&mut server, &mut down);
                let _ = down.shutdown(std::net::Shutdown::Both);
            });
        }
    });
    Proxy { port, asked, behind }
}

#[test]
fn t9_proxies_tunnel_https_and_are_passed_by_where_they_must_be() {
    let b = Bench::new(4);
    let body = image("2");
    let sum = sha256(&body).to_string();
    let p = proxy(body.clone());
    let at = format!("http://me:pass%20word@127.0.0.1:{}", p.port);
    let ca = testdata("future-ca.pem");
    let stage = [
        "stage",
        "--image",
        "https://images.test/update.img?sig=query-secret",
        "--sha256",
        &sum,
        "--ca",
        &ca,
    ];
    let r = b.run(&stage, &[("HTTPS_PROXY", &at)]);
    assert_eq!(r.good()["version"], "2");
    let asked = p.asked.lock().unwrap().join("");
    assert!(asked.starts_with("CONNECT images.test:443 "), "{asked}");
    assert!(
        asked.to_lowercase().contains("proxy-authorization: basic"),
        "{asked}"
    );
    let behind = p.behind.lock().unwrap().join("").to_lowercase();
    assert!(
        behind.contains("get /update.img?sig=query-secret") && !behind.contains("proxy-authorization"),
        "{behind}"
    );
    assert!(
        !r.stderr.contains("pass") && !r.stderr.contains("query-secret"),
        "{}",
        r.stderr
    );
    p.asked.lock().unwrap().clear();

    // NO_PROXY: asked for directly, which cannot work here.
    let b2 = Bench::new(4);
    let r = b2.run(&stage, &[("HTTPS_PROXY", &at), ("NO_PROXY", "images.test")]);
    assert_eq!(r.exit, 5, "{}", r.stderr);
    assert!(
        r.stderr.contains("FetchFailed") && !r.stderr.contains("query-secret"),
        "{}",
        r.stderr
    );
    assert!(p.asked.lock().unwrap().is_empty());

    // Loopback is never asked for through a proxy.
    let s = serve(body);
    let args = ["stage", "--image", &s.url, "--sha256", &sum, "--allow-http"];
    b2.run(&args, &[("HTTP_PROXY", &at), ("HTTPS_PROXY", &at)]).good();
    assert!(p.asked.lock().unwrap().is_empty());

    // Plain http through a proxy, where it is permitted.
    let b3 = Bench::new(4);
    let args = [
        "stage",
        "--image",
        "http://images.test/update.img",
        "--sha256",
        &sum,
        "--allow-http",
    ];
    b3.run(&args, &[("HTTP_PROXY", &at)]).good();
    assert!(
        p.asked
            .lock()
            .unwrap()
            .join("")
            .starts_with("GET http://images.test/update.img ")
    );
}

/// A proxy that answers everything with this status.
fn refusing(status: &'static str) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for client in listener.incoming() {
            let mut client = client.unwrap();
            let mut reader = BufReader::new(client.try_clone().unwrap());
            let mut text = String::new();
            while !text.ends_with("\r\n\r\n") && reader.read_line(&mut text).unwrap_or(0) > 0 {}
            let _ = write!(
                client,
                "HTTP/1.1 {status}\r\nContent-Length: 0\r\nConnection: close\r\n\r\n"
            );
        }
    });
    port
}

#[test]
fn a_proxy_that_refuses_is_named_with_what_to_do_and_without_its_credentials() {
    let b = Bench::new(4);
    let sum = sha256(b"x").to_string();
    let gone = {
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        l.local_addr().unwrap().port()
    };
    let (forbids, asks) = (
        refusing("403 Forbidden"),
        refusing("407 Proxy Authentication Required"),
    );
    for (url, port, says) in [
        (
            "https://images.test/u",
            forbids,
            "refuses to connect to images.test",
        ),
        ("https://images.test/u", asks, "wants credentials"),
        ("https://images.test/u", gone, "(HTTPS_PROXY): "),
        (
            "http://images.test/u",
            forbids,
            "status 403 Forbidden (asked through the proxy",
        ),
        ("http://images.test/u", asks, "wants credentials"),
        ("http://images.test/u", gone, "(HTTP_PROXY): "),
    ] {
        let at = format!("http://me:pass%20word@127.0.0.1:{port}");
        let r = b.run(
            &["stage", "--image", url, "--sha256", &sum, "--allow-http"],
            &[("HTTPS_PROXY", &at), ("HTTP_PROXY", &at)],
        );
        assert_eq!(r.exit, 5, "{url}: {}", r.stderr);
        let proxy = format!("the proxy http://127.0.0.1:{port}");
        for part in ["FetchFailed", &proxy, says] {
            assert!(r.stderr.contains(part), "{url}: {part}: {}", r.stderr);
        }
        assert!(!r.stderr.contains("pass"), "{}", r.stderr);
    }
}

#[test]
fn an_authority_of_its_own_excludes_all_others_and_the_clock_is_named() {
    let b = Bench::new(4);
    let body = image("2");
    let sum = sha256(&body).to_string();
    let p = proxy(body);
    let at = format!("http://127.0.0.1:{}", p.port);
    let other = testdata("other.pem");
    let url = "https://images.test/update.img";
    let r = b.run(
        &["stage", "--image", url, "--sha256", &sum, "--ca", &other],
        &[("HTTPS_PROXY", &at)],
    );
    assert_eq!(r.exit, 5, "{}", r.stderr);
    assert!(r.stderr.contains("UnknownIssuer"), "{}", r.stderr);
    // Not even the system's authorities know this one.
    let r = b.run(
        &["stage", "--image", url, "--sha256", &sum],
        &[("HTTPS_PROXY", &at)],
    );
    assert_ne!(r.exit, 0, "{}", r.stderr);
    for bad in [
        vec!["stage", "--image", url, "--sha256", &sum, "--cert", "x.pem"],
        vec![
            "stage",
            "--image",
            url,
            "--sha256",
            &sum,
            "--ca",
            "/nonexistent.pem",
        ],
    ] {
        assert_eq!(b.run(&bad, &[]).exit, 2, "{bad:?}");
    }
}

#[test]
fn an_image_from_a_registry_is_staged_by_its_manifest_digest() {
    let b = Bench::new(4);
    let layer = image("3");
    let manifest = format!(
        r#"{{"schemaVersion":2,"layers":[{{"digest":"sha256:{}","size":{}}}]}}"#,
        sha256(&layer),
        layer.len()
    );
    let pin = sha256(manifest.as_bytes()).to_string();
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let host = listener.local_addr().unwrap().to_string();
    let (m, l) = (manifest.clone(), layer.clone());
    std::thread::spawn(move || {
        for s in listener.incoming() {
            let mut s = s.unwrap();
            let asked = request(&mut s);
            let body = if asked.contains("/manifests/") {
                m.as_bytes()
            } else if asked.contains("/blobs/") {
                &l
            } else {
                continue;
            };
            let (head, range) = answer(&asked, body);
            let _ = s.write_all(head.as_bytes());
            let _ = s.write_all(body.get(range).unwrap_or_default());
        }
    });
    let reference = format!("oci:{host}/os/blue@sha256:{pin}");
    let r = b
        .run(&["stage", "--image", &reference, "--allow-http"], &[])
        .good();
    assert_eq!(
        (r["version"].as_str(), r["digest"].as_str()),
        (Some("3"), Some(pin.as_str()))
    );
    // The slot is known by the manifest's digest from now on.
    let again = b
        .run(&["stage", "--image", &reference, "--allow-http"], &[])
        .good();
    assert_eq!(again["already_staged"], true);
    let wrong = format!("docker://{host}/os/blue@sha256:{}", sha256(b"other"));
    let r = b.run(&["stage", "--image", &wrong, "--allow-http"], &[]);
    assert_eq!(r.exit, 4, "{}", r.stderr);
    assert!(r.stderr.contains("ChecksumMismatch"), "{}", r.stderr);
}

#[test]
fn an_archive_is_staged_verified_and_known_again() {
    let b = Bench::new(8);
    let mut tar = Vec::new();
    let agent = [b"\x7fELF\x02\x01\x01".as_slice(), &[0; 11], b"\x3e\0", &[0; 200]].concat();
    let kernel = kernel(20_000);
    for (name, data) in [
        ("./boot/vmlinuz", kernel.as_slice()),
        ("./boot/initramfs.img", b"initramfs"),
        (
            "./usr/lib/os-release",
            b"VERSION_ID=\"7\"\nPRETTY_NAME=\"KubeOS 7\"\n",
        ),
        ("./usr/bin/os-agent", &agent),
    ] {
        let mut h = [0u8; 512];
        let mut put = |at: usize, text: &[u8]| h[at..at + text.len()].copy_from_slice(text);
        put(0, name.as_bytes());
        put(100, b"0000755\0");
        put(108, b"0000000\0");
        put(116, b"0000000\0");
        put(124, format!("{:011o}\0", data.len()).as_bytes());
        put(136, b"00000000000\0");
        put(148, b"        ");
        put(156, b"0");
        put(257, b"ustar\x0000");
        let sum: u32 = h.iter().map(|b| u32::from(*b)).sum();
        h[148..156].copy_from_slice(format!("{sum:06o}\0 ").as_bytes());
        tar.extend_from_slice(&h);
        tar.extend_from_slice(data);
        tar.resize(tar.len().next_multiple_of(512), 0);
    }
    tar.resize(tar.len() + 1024, 0);
    let file = b.dir.join("kubeos.tar");
    std::fs::write(&file, &tar).unwrap();
    let sum = sha256(&tar).to_string();
    let args = [
        "stage",
        "--image",
        file.as_str(),
        "--sha256",
        &sum,
        "--version",
        "KubeOS 7",
    ];
    let r = b.run(&args, &[]).good();
    assert_eq!(
        (r["version"].as_str(), r["slot"].as_str()),
        (Some("7"), Some("B"))
    );
    assert_eq!(b.run(&["verify-slot", "B"], &[]).good()["ok"], true);
    assert_eq!(b.run(&args, &[]).good()["already_staged"], true);
    assert_eq!(b.run(&["activate"], &[]).good()["slot"], "B");
}
