//! Against registries in this process.
#![allow(clippy::unwrap_used, clippy::indexing_slicing, clippy::disallowed_methods)]
use super::super::Sources;
use super::super::http::tests::{Asked, Server, client, data, good, quick, redirect, runtime, serve};
use super::*;
use crate::ports::{Location, Source};
use crate::testdisk::{Recorder, WallClock};
use std::io::Write;
use std::sync::Mutex;
use std::time::Duration;

fn sha(b: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(b).into())
}

fn manifest_of(layer: &[u8]) -> Vec<u8> {
    format!(
        r#"{{"schemaVersion":2,"config":{{"digest":"sha256:{}","size":2}},"layers":[{{"digest":"sha256:{}","size":{}}}]}}"#,
        sha(b"{}"),
        sha(layer),
        layer.len()
    )
    .into_bytes()
}

fn index_of(manifest: &[u8]) -> Vec<u8> {
    format!(
        r#"{{"schemaVersion":2,"manifests":[{{"digest":"sha256:{}","size":{},"platform":{{"os":"linux","architecture":"amd64"}}}}]}}"#,
        sha(manifest),
        manifest.len()
    )
    .into_bytes()
}

/// Opens `os/blue` at a server by the digest of a document.
fn open_at(s: &Server, pin: Sha256Digest) -> Result<Box<dyn Download>> {
    let mut policy = quick();
    policy.first_byte_timeout = Duration::from_millis(300);
    policy.connect_timeout = Duration::from_millis(300);
    let sources = Sources::new(runtime().handle().clone(), Arc::new(WallClock), policy);
    let host = s.url.trim_start_matches("http://");
    let request = SourceRequest {
        location: Location::Oci {
            reference: format!("{host}/os/blue:7.3"),
            pin,
        },
        ..client().request
    };
    sources.open(&request, &Cancel::default(), Arc::new(Recorder::default()))
}

fn pull(s: &Server, pin: Sha256Digest) -> Result<Vec<u8>> {
    let mut d = open_at(s, pin)?;
    let mut out = Vec::new();
    while let Some(b) = d.next()? {
        out.extend_from_slice(&b);
    }
    Ok(out)
}

fn status(s: &mut std::net::TcpStream, line: &str) -> std::io::Result<()> {
    s.write_all(format!("HTTP/1.1 {line}\r\nContent-Length: 0\r\n\r\n").as_bytes())
}

fn bearer(a: &Asked) -> Option<String> {
    a.header("authorization")?
        .strip_prefix("Bearer ")
        .map(str::to_owned)
}

#[test]
fn an_image_is_pulled_by_digest_through_its_index() {
    let layer = data(700_000);
    let manifest = manifest_of(&layer);
    let index = index_of(&manifest);
    for pin in [&index, &manifest] {
        let (l, m, i) = (layer.clone(), manifest.clone(), index.clone());
        let s = serve(move |_, a, s| {
            let path = a.path.rsplit('/').next().unwrap().to_owned();
            for d in [&l, &m, &i] {
                if path == format!("sha256:{}", sha(d)) {
                    return good(s, a, d, "\"1\"", usize::MAX);
                }
            }
            status(s, "404 Not Found")
        });
        assert_eq!(pull(&s, sha(pin)).unwrap(), layer);
        let d = open_at(&s, sha(pin)).unwrap();
        assert_eq!(d.total(), Some(700_000));
        let chain = d.documents().unwrap();
        assert_eq!((sha(&chain[0]), chain.last()), (sha(pin), Some(&manifest)));
        let asked = s.asked.lock().unwrap();
        assert!(
            asked.iter().all(|a| !a.path.contains("7.3")),
            "a tag is never asked for"
        );
        assert!(
            asked[0]
                .header("accept")
                .unwrap()
                .contains("application/vnd.oci.image.manifest.v1+json")
        );
    }
}

#[test]
fn a_manifest_that_is_not_the_pinned_one_is_refused() {
    let layer = data(1000);
    let good_one = manifest_of(&layer);
    let other = manifest_of(b"something else");
    let s = serve(move |_, a, s| good(s, a, &other, "\"1\"", usize::MAX));
    let e = pull(&s, sha(&good_one)).unwrap_err();
    assert_eq!(e.code, Code::ChecksumMismatch);
    let two = br#"{"layers":[]}"#.to_vec();
    let pin = sha(&two);
    let s = serve(move |_, a, s| good(s, a, &two, "\"1\"", usize::MAX));
    let e = pull(&s, pin).unwrap_err();
    assert!(
        e.code == Code::UnsupportedFormat && e.message.contains("0 layers"),
        "{e}"
    );
}

/// A registry that wants tokens and sends blobs from a storage host by signed URLs.
struct Registry {
    front: Server,
    storage: Server,
    given: Arc<Mutex<u32>>,
}

/// `cut`: bytes after which the storage ends a connection; `lives`: requests that a token is good for.
fn registry(layer: &[u8], cut: usize, lives: u32) -> Registry {
    let (manifest, blob) = (manifest_of(layer), layer.to_vec());
    let storage = serve(move |_, a, s| good(s, a, &blob, "\"1\"", cut));
    let given = Arc::new(Mutex::new(0u32));
    let used = Arc::new(Mutex::new(0u32));
    let (at, given_too) = (storage.url.clone(), Arc::clone(&given));
    let front = serve(move |_, a, s| {
        if a.path.starts_with("/token") {
            assert!(
                a.path.contains("scope=repository%3Aos%2Fblue%3Apull"),
                "{}",
                a.path
            );
            let n = {
                let mut g = given_too.lock().unwrap();
                *g += 1;
                *g
            };
            *used.lock().unwrap() = 0;
            let body = format!(r#"{{"token":"secret-{n}","expires_in":60}}"#);
            return s.write_all(
                format!("HTTP/1.1 200 OK\r\nContent-Length: {}\r\n\r\n{body}", body.len()).as_bytes(),
            );
        }
        let current = format!("secret-{}", *given_too.lock().unwrap());
        let n = {
            let mut u = used.lock().unwrap();
            *u += 1;
            *u
        };
        if bearer(a).as_deref() != Some(&current) || n > lives {
            let realm = format!("http://{}/token", a.header("host").unwrap());
            return s.write_all(
                format!("HTTP/1.1 401 Unauthorized\r\nWWW-Authenticate: Bearer realm=\"{realm}\",service=\"reg\",scope=\"x\"\r\nContent-Length: 0\r\n\r\n")
                    .as_bytes(),
            );
        }
        if a.path.contains("/blobs/") {
            return redirect(s, &format!("{at}/signed?n={n}"));
        }
        good(s, a, &manifest, "\"m\"", usize::MAX)
    });
    Registry {
        front,
        storage,
        given,
    }
}

#[test]
fn t7_a_token_is_shown_to_its_registry_and_never_to_the_storage_host() {
    let layer = data(500_000);
    let r = registry(&layer, usize::MAX, 99);
    assert_eq!(pull(&r.front, sha(&manifest_of(&layer))).unwrap(), layer);
    for a in r.storage.asked.lock().unwrap().iter() {
        assert_eq!(a.header("authorization"), None);
    }
    assert_eq!(*r.given.lock().unwrap(), 1, "one token for manifest and layer");
}

#[test]
fn t8_a_token_that_runs_out_midway_is_renewed_and_the_download_goes_on() {
    let layer = data(600_000);
    // The storage cuts each connection; each new one asks the registry again, whose tokens last for two requests.
    let r = registry(&layer, 100_000, 2);
    assert_eq!(pull(&r.front, sha(&manifest_of(&layer))).unwrap(), layer);
    assert!(*r.given.lock().unwrap() >= 3, "{}", r.given.lock().unwrap());
    let asked = r.storage.asked.lock().unwrap();
    let sent: usize = asked
        .iter()
        .map(|a| a.range().map_or(100_000, |(x, y)| (y + 1 - x).min(100_000)))
        .sum();
    assert!(sent <= 630_000, "{sent}: continued, not begun anew");
    assert!(asked.iter().all(|a| a.header("authorization").is_none()));
}

#[test]
fn a_registry_that_never_accepts_its_own_tokens_is_given_up_on() {
    let layer = data(1000);
    let r = registry(&layer, usize::MAX, 0);
    let e = pull(&r.front, sha(&manifest_of(&layer))).unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
    assert!(e.message.contains("401") && !e.message.contains("secret"), "{e}");
    assert!(*r.given.lock().unwrap() <= 2);
}

#[test]
fn a_layer_of_another_length_than_its_manifest_says_is_refused() {
    let layer = data(1000);
    let manifest = manifest_of(&layer);
    let m = manifest.clone();
    let s = serve(move |_, a, s| {
        if a.path.contains("manifests") {
            return good(s, a, &m, "\"1\"", usize::MAX);
        }
        good(s, a, &layer[..900], "\"1\"", usize::MAX)
    });
    assert_eq!(pull(&s, sha(&manifest)).unwrap_err().code, Code::SizeMismatch);
}
