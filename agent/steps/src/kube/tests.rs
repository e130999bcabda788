use super::*;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpListener;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A server that counts and answers by `f(method, path, headers, body)`.
struct Fake {
    url: String,
    seen: Arc<Mutex<Vec<String>>>,
    end: Arc<AtomicBool>,
}

impl Drop for Fake {
    fn drop(&mut self) {
        self.end.store(true, Ordering::SeqCst);
    }
}

type Respond = Box<dyn Fn(&str, &str, &str) -> String + Send>;

fn fake(f: Respond) -> Fake {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}", listener.local_addr().unwrap());
    let (seen, end) = (Arc::<Mutex<Vec<String>>>::default(), Arc::<AtomicBool>::default());
    let (seen2, end2) = (seen.clone(), end.clone());
    std::thread::spawn(move || {
        for s in listener.incoming() {
            if end2.load(Ordering::SeqCst) {
                return;
            }
            let Ok(mut s) = s else { continue };
            let mut r = BufReader::new(s.try_clone().unwrap());
            let (mut first, mut head, mut len) = (String::new(), String::new(), 0);
            let _ = r.read_line(&mut first);
            loop {
                let mut l = String::new();
                if r.read_line(&mut l).unwrap_or(0) <= 2 {
                    break;
                }
                if let Some(n) = l.to_lowercase().strip_prefix("content-length:") {
                    len = n.trim().parse().unwrap();
                }
                head += &l;
            }
            let mut body = vec![0; len];
            let _ = r.read_exact(&mut body);
            let body = String::from_utf8_lossy(&body).into_owned();
            seen2.lock().unwrap().push(format!("{} {body}", first.trim()));
            let _ = s.write_all(f(first.trim(), &head.to_lowercase(), &body).as_bytes());
        }
    });
    Fake { url, seen, end }
}

fn ok(body: &str, tag: &str) -> String {
    format!(
        "HTTP/1.1 200 OK\r\netag: \"{tag}\"\r\ncontent-length: {}\r\nconnection: close\r\n\r\n{body}",
        body.len()
    )
}

fn runtime() -> tokio::runtime::Runtime {
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(1)
        .enable_all()
        .build()
        .unwrap()
}

fn api(rt: &tokio::runtime::Runtime, endpoints: Vec<String>) -> KubeApi {
    KubeApi::new(
        rt.handle().clone(),
        Access {
            endpoints,
            node: "n1".into(),
            ..Access::default()
        },
    )
}

#[test]
fn a_bundle_is_fetched_once_and_then_only_asked_after() {
    let rt = runtime();
    let f = fake(Box::new(|_, head, _| {
        if head.contains("if-none-match: \"v1\"") {
            "HTTP/1.1 304 Not Modified\r\nconnection: close\r\n\r\n".to_owned()
        } else {
            ok("{}", "v1")
        }
    }));
    let a = api(&rt, vec![f.url.clone()]);
    assert_eq!(a.bundle("worker").unwrap(), Some(b"{}".to_vec()));
    assert_eq!(a.bundle("worker").unwrap(), None);
    let seen = f.seen.lock().unwrap();
    assert!(seen[0].starts_with("GET /apis/bashible.deckhouse.io/v1alpha1/nodegroupbundles/worker "));
    assert_eq!(seen.len(), 2);
}

#[test]
fn a_server_without_tags_answers_in_full_and_the_same_bytes_are_nothing_new() {
    let rt = runtime();
    let f = fake(Box::new(|_, _, _| ok("{\"a\":1}", "")));
    let a = api(&rt, vec![f.url.clone()]);
    assert!(a.bundle("g").unwrap().is_some());
    assert!(a.bundle("g").unwrap().is_none());
}

/// Fault 15: a dead local proxy must not prevent its own repair.
#[test]
fn fault_15_a_dead_local_proxy_is_passed_by() {
    let rt = runtime();
    let dead = {
        let l = TcpListener::bind("127.0.0.1:0").unwrap();
        format!("http://{}", l.local_addr().unwrap())
    };
    let f = fake(Box::new(|_, _, _| {
        ok(
            r#"{"metadata":{"annotations":{"x":"y"},"resourceVersion":"7"}}"#,
            "",
        )
    }));
    let a = api(&rt, vec![dead.clone(), f.url.clone()]);
    let n = a.node().unwrap();
    assert_eq!(
        (n.annotations["x"].as_str(), n.resource_version.as_str()),
        ("y", "7")
    );
    // Afterwards the one that answered is asked first.
    let before = a.requests();
    a.node().unwrap();
    assert_eq!(a.requests() - before, 1);
    let e = api(&rt, vec![dead]).node().unwrap_err();
    assert_eq!(e.code, Code::FetchFailed);
}

#[test]
fn patches_carry_the_version_and_refusals_are_told_apart() {
    let rt = runtime();
    let f = fake(Box::new(|first, _, _| {
        if first.starts_with("PATCH") {
            ok("{}", "")
        } else {
            "HTTP/1.1 403 Forbidden\r\ncontent-length: 2\r\nconnection: close\r\n\r\nno".to_owned()
        }
    }));
    let a = api(&rt, vec![f.url.clone()]);
    let p = Patch::from([("a".to_owned(), Some("b".to_owned())), ("c".to_owned(), None)]);
    a.patch("9", &p).unwrap();
    let seen = f.seen.lock().unwrap()[0].clone();
    let body: serde_json::Value = serde_json::from_str(seen.split_once("HTTP/1.1 ").unwrap().1).unwrap();
    assert_eq!(
        body,
        serde_json::json!({"metadata": {"resourceVersion": "9", "annotations": {"a": "b", "c": null}}})
    );
    let e = a.node().unwrap_err();
    assert_eq!(e.code, Code::NotPermitted);
    assert!(e.message.contains("403"), "{e}");
}
