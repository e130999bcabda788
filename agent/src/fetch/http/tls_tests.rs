//! Against a TLS server in this process. The certificates beside it were made by `openssl req` and `openssl ca` (valid from 2000 to 2099) for these
//! tests alone: `ca.pem` signed `server.pem`, `client.pem` and `expired.pem`; `other.pem` is another authority; `future-ca.pem` signed
//! `future.pem`, which is valid from 2090 on.
#![allow(clippy::unwrap_used, clippy::disallowed_methods, clippy::indexing_slicing)]

use super::tests::{Client, client};
use crate::error::AgentError;
use camino::Utf8PathBuf;
use os_proto::codes::Code;
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer};
use rustls::server::WebPkiClientVerifier;
use rustls::{RootCertStore, ServerConfig, ServerConnection, StreamOwned};
use std::io::{Read, Write};
use std::net::TcpListener;
use std::sync::{Arc, Mutex};

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

/// What a server saw: the request and whether a client certificate came.
type Seen = Arc<Mutex<Vec<(String, bool)>>>;

/// Answers every request with `answer`; asks for a client certificate, and insists where `insist`.
fn serve(cert: &str, insist: bool, answer: String) -> (String, Seen) {
    let _ = rustls::crypto::ring::default_provider().install_default();
    let mut roots = RootCertStore::empty();
    for c in certs("ca.pem") {
        roots.add(c).unwrap();
    }
    let verifier = WebPkiClientVerifier::builder(Arc::new(roots));
    let verifier = if insist {
        verifier
    } else {
        verifier.allow_unauthenticated()
    };
    let config = ServerConfig::builder()
        .with_client_cert_verifier(verifier.build().unwrap())
        .with_single_cert(certs(cert), PrivateKeyDer::from_pem_file(file(cert)).unwrap())
        .unwrap();
    let config = Arc::new(config);
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("https://{}", listener.local_addr().unwrap());
    let seen: Seen = Seen::default();
    let log = Arc::clone(&seen);
    std::thread::spawn(move || {
        for tcp in listener.incoming() {
            let conn = ServerConnection::new(Arc::clone(&config)).unwrap();
            let mut s = StreamOwned::new(conn, tcp.unwrap());
            let mut request = vec![0; 8192];
            let Ok(n) = s.read(&mut request) else { continue };
            let text = String::from_utf8_lossy(&request[..n]).into_owned();
            log.lock()
                .unwrap()
                .push((text, s.conn.peer_certificates().is_some()));
            let _ = s.write_all(answer.as_bytes());
            s.conn.send_close_notify();
            let _ = s.flush();
        }
    });
    (url, seen)
}

fn ok() -> String {
    "HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello".into()
}

fn to(url: &str) -> String {
    format!("HTTP/1.1 302 Found\r\nLocation: {url}\r\nContent-Length: 0\r\n\r\n")
}

fn trusting(ca: &str) -> Client {
    let mut c = client();
    c.request.allow_http = false;
    c.request.cacert = Some(file(ca));
    c.policy.retry_limit = 1;
    c
}

#[test]
fn kf_s3_the_named_authority_alone_counts() {
    let (url, _) = serve("server.pem", false, ok());
    assert_eq!(trusting("ca.pem").get(&url).unwrap(), b"hello");
    let mut by_policy = trusting("ca.pem");
    by_policy.policy.ca_file = by_policy.request.cacert.take();
    assert_eq!(by_policy.get(&url).unwrap(), b"hello");
    let e = trusting("other.pem").get(&url).unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
    assert!(e.message.contains("UnknownIssuer"), "{e}");
}

#[test]
fn t16_a_certificate_outside_its_dates_makes_the_clock_the_suspect() {
    let (url, _) = serve("expired.pem", false, ok());
    let AgentError { code, message } = trusting("ca.pem").get(&url).unwrap_err();
    assert_eq!(code, Code::ClockSuspect, "{message}");
    assert!(
        message.contains("expired") && message.contains("clock says 20"),
        "{message}"
    );
}

#[test]
fn the_client_certificate_is_shown_to_its_origin_only() {
    let (storage, at_storage) = serve("server.pem", false, ok());
    let (first, at_first) = serve("server.pem", true, to(&format!("{storage}/x")));
    let mut c = trusting("ca.pem");
    assert!(c.get(&first).is_err(), "refused without a certificate");
    c.request.client = Some((file("client.pem"), file("client.key")));
    assert_eq!(
        c.get(&first.replace("https://", "https://u:p@")).unwrap(),
        b"hello"
    );
    let first_seen = at_first.lock().unwrap();
    let (request, with_cert) = first_seen.last().unwrap();
    assert!(
        *with_cert && request.to_lowercase().contains("authorization: basic"),
        "{request}"
    );
    let storage_seen = at_storage.lock().unwrap();
    let (request, with_cert) = storage_seen.last().unwrap();
    assert!(
        !with_cert && !request.to_lowercase().contains("authorization"),
        "{request}"
    );
}

#[test]
fn kf_s3_https_never_goes_down_to_http() {
    let (url, _) = serve("server.pem", false, to("http://127.0.0.1:1/x"));
    let mut c = trusting("ca.pem");
    c.request.allow_http = true;
    let e = c.get(&url).unwrap_err();
    assert_eq!(e.code, Code::Redirect);
    assert!(e.message.contains("down to http"), "{e}");
}

#[test]
fn t16_a_certificate_that_is_not_valid_yet_names_the_clock() {
    let (url, _) = serve("future.pem", false, ok());
    let AgentError { code, message } = trusting("future-ca.pem").get(&url).unwrap_err();
    assert_eq!(code, Code::ClockSuspect, "{message}");
    assert!(
        message.contains("not valid yet") && message.contains("check time synchronisation"),
        "{message}"
    );
}

#[test]
fn client_certificates_are_read_anew_for_every_connection() {
    let (url, seen) = serve("server.pem", true, ok());
    let dir = tempfile::tempdir().unwrap();
    let at = |n: &str| Utf8PathBuf::from_path_buf(dir.path().join(n)).unwrap();
    let mut c = trusting("ca.pem");
    c.request.client = Some((at("c.pem"), at("c.key")));
    let e = c.get(&url).unwrap_err();
    assert!(
        e.code == Code::InvalidArgument && e.message.contains("c.pem"),
        "{e}"
    );
    // The same request once the files are there; nothing was kept from the failed one.
    std::fs::copy(file("client.pem"), at("c.pem")).unwrap();
    std::fs::copy(file("client.key"), at("c.key")).unwrap();
    assert_eq!(c.get(&url).unwrap(), b"hello");
    std::fs::write(at("c.pem"), "no longer a certificate").unwrap();
    assert_eq!(c.get(&url).unwrap_err().code, Code::InvalidArgument);
    std::fs::copy(file("client.pem"), at("c.pem")).unwrap();
    assert_eq!(c.get(&url).unwrap(), b"hello");
    assert!(seen.lock().unwrap().iter().all(|(_, with_cert)| *with_cert));
}
