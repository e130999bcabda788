//! Following objects by watches: one request per object and 290 s when nothing happens.

use futures_util::{StreamExt, TryStreamExt};
use kube::api::{Api, ListParams, WatchEvent, WatchParams};
use kube::{Resource, ResourceExt};
use serde::de::DeserializeOwned;
use std::fmt::Debug;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// A watch ends by itself after so many seconds and is renewed.
const WATCH_SECS: u32 = 290;
/// Shortest and longest wait after a broken watch.
const RETRY: (Duration, Duration) = (Duration::from_millis(500), Duration::from_secs(30));

/// What is known of one object.
#[derive(Debug, Clone)]
pub enum Seen<K> {
    /// Nothing yet.
    Unknown,
    /// Nothing yet: the server refuses to say, in these words.
    Refused(String),
    /// There is none.
    Absent,
    /// This was the last state.
    Object(Arc<K>),
}

impl<K> Seen<K> {
    /// The object, if it is known and there.
    pub fn object(&self) -> Option<&K> {
        match self {
            Seen::Object(o) => Some(o),
            _ => None,
        }
    }
}

/// Follows the object of this name until the receiver is gone; `changed` is told after every change.
///
/// The first request is a watch from "now" that begins with the object's state, so that following costs one request, not
/// two. After a break the object is read first: a watch does not say that something is gone.
pub async fn follow<K>(api: Api<K>, name: String, tx: watch::Sender<Seen<K>>, changed: Arc<Notify>)
where
    K: Resource + Clone + DeserializeOwned + Debug + Send + Sync + 'static,
{
    let params = WatchParams::default()
        .fields(&format!("metadata.name={name}"))
        .timeout(WATCH_SECS);
    let mut version = String::new();
    let mut failures = 0u32;
    let mut first = true;
    while !tx.is_closed() {
        if version.is_empty() && !first {
            let list = ListParams::default().fields(&format!("metadata.name={name}"));
            match api.list(&list).await {
                Ok(l) => {
                    version = l.metadata.resource_version.clone().unwrap_or_default();
                    let seen = l
                        .items
                        .into_iter()
                        .next()
                        .map_or(Seen::Absent, |o| Seen::Object(Arc::new(o)));
                    tx.send_replace(seen);
                    changed.notify_one();
                }
                Err(e) => {
                    tracing::debug!("reading {name}: {e}");
                    refused(&e, &tx, &changed);
                    wait(&mut failures, &name).await;
                    continue;
                }
            }
        }
        first = false;
        let stream = match api.watch(&params, &version).await {
            Ok(s) => s,
            Err(e) => {
                tracing::debug!("watching {name}: {e}");
                refused(&e, &tx, &changed);
                version.clear();
                wait(&mut failures, &name).await;
                continue;
            }
        };
        let mut stream = stream.boxed();
        loop {
            let next = tokio::select! {
                n = stream.try_next() => n,
                () = tx.closed() => return,
            };
            match next {
                Ok(Some(WatchEvent::Added(o) | WatchEvent::Modified(o))) => {
                    failures = 0;
                    version = o.resource_version().unwrap_or_default();
                    tx.send_replace(Seen::Object(Arc::new(o)));
                    changed.notify_one();
                }
                Ok(Some(WatchEvent::Deleted(o))) => {
                    version = o.resource_version().unwrap_or_default();
                    tx.send_replace(Seen::Absent);
                    changed.notify_one();
                }
                Ok(Some(WatchEvent::Bookmark(b))) => version = b.metadata.resource_version,
                // The ordinary end after 290 s: goes on from the last version.
                Ok(None) => break,
                Ok(Some(WatchEvent::Error(_))) | Err(_) => {
                    // 410 and broken connections: what was missed is read.
                    version.clear();
                    wait(&mut failures, &name).await;
                    break;
                }
            }
        }
    }
}

/// What is known of the object stays known; only where nothing is, the refusal is worth telling.
fn refused<K>(error: &kube::Error, tx: &watch::Sender<Seen<K>>, changed: &Notify) {
    let Some(words) = forbidden(error) else { return };
    let new = tx.send_if_modified(|seen| match seen {
        Seen::Unknown => {
            tracing::warn!("{words}");
            *seen = Seen::Refused(words);
            true
        }
        _ => false,
    });
    if new {
        changed.notify_one();
    }
}

/// The server's words about a right that is missing, and where it is granted.
pub fn forbidden(error: &kube::Error) -> Option<String> {
    match error {
        kube::Error::Api(s) if s.code == 403 => Some(format!("{}; apply proxy/deploy/rbac.yaml", s.message)),
        _ => None,
    }
}

/// Backs off; a fleet of proxies must not come back in the same second.
async fn wait(failures: &mut u32, seed: &str) {
    let (least, most) = RETRY;
    let span = least.saturating_mul(1 << (*failures).min(8)).min(most);
    *failures += 1;
    tokio::time::sleep(span.mul_f64(crate::drain::jitter(seed, *failures))).await;
}
