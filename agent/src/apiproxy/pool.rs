//! The servers and what is known of them, shared by all connections.

use super::choose::{self, Class, Health};
use super::probe::Found;
use super::settings::{Settings, Upstream};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// Ends the connections to one server by a change of its value.
type Cut = Arc<watch::Sender<u64>>;

struct Entry {
    upstream: Upstream,
    health: Health,
    why: String,
    cut: Cut,
}

struct Inner {
    entries: Vec<Entry>,
    timeout: Duration,
}

/// See above.
pub(super) struct Pool(Mutex<Inner>);

/// A server to try.
pub(super) struct Candidate {
    /// Which.
    pub(super) upstream: Upstream,
    /// Changes when the connection must end.
    pub(super) cut: watch::Receiver<u64>,
}

fn entry(u: &Upstream) -> Entry {
    Entry {
        upstream: u.clone(),
        health: Health::default(),
        why: String::new(),
        cut: Arc::new(watch::channel(0).0),
    }
}

impl Pool {
    pub(super) fn new(s: &Settings) -> Pool {
        Pool(Mutex::new(Inner {
            entries: s.upstreams.iter().map(entry).collect(),
            timeout: s.timeout,
        }))
    }

    fn inner(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Other servers. Those that stay keep what is known of them; connections to those that go live on until they end.
    pub(super) fn set(&self, s: &Settings) {
        let mut inner = self.inner();
        let mut old: Vec<Entry> = inner.entries.drain(..).collect();
        inner.timeout = s.timeout;
        inner.entries = s
            .upstreams
            .iter()
            .map(|u| match old.iter().position(|e| e.upstream == *u) {
                Some(i) => old.swap_remove(i),
                None => entry(u),
            })
            .collect();
    }

    pub(super) fn upstreams(&self) -> Vec<Upstream> {
        self.inner().entries.iter().map(|e| e.upstream.clone()).collect()
    }

    /// What a connection tries, in order, and the limit for each.
    pub(super) fn candidates(&self) -> (Vec<Candidate>, Duration) {
        let inner = self.inner();
        let all: Vec<Health> = inner.entries.iter().map(|e| e.health).collect();
        let order = choose::order(&all, os_steps::sys::clock::random);
        let list = order
            .into_iter()
            .filter_map(|i| inner.entries.get(i))
            .map(|e| Candidate {
                upstream: e.upstream.clone(),
                cut: e.cut.subscribe(),
            })
            .collect();
        (list, inner.timeout)
    }

    /// A probe's result.
    pub(super) fn found(&self, u: &Upstream, f: Found) {
        let mut inner = self.inner();
        let Some(e) = inner.entries.iter_mut().find(|e| e.upstream == *u) else {
            return;
        };
        let before = (e.health.fails > 0, e.health.refused, e.health.known);
        e.health.known = true;
        let why = match f {
            Found::Ready(took) => {
                e.health.fails = 0;
                e.health.refused = false;
                e.health.latency_ms = u64::try_from(took.as_millis()).unwrap_or(u64::MAX);
                String::new()
            }
            Found::Refused(why) => {
                e.health.fails = 0;
                e.health.refused = true;
                why
            }
            Found::Silent(why) => {
                e.health.fails = e.health.fails.saturating_add(1);
                e.health.refused = false;
                why
            }
        };
        let now = (e.health.fails > 0, e.health.refused, true);
        if now != before {
            if why.is_empty() {
                tracing::info!("{u}: ready");
            } else {
                tracing::warn!("{u}: {why}");
            }
        }
        e.why = why;
    }

    /// A connection to `u` could not be made: the next ones go elsewhere at once.
    pub(super) fn failed(&self, u: &Upstream, why: &str) {
        if let Some(e) = self.inner().entries.iter_mut().find(|e| e.upstream == *u) {
            e.health.fails = e.health.fails.max(1);
            why.clone_into(&mut e.why);
        }
    }

    /// Ends the connections of servers that are silent for long, if there is another to go to.
    pub(super) fn cut_the_dead(&self) {
        let inner = self.inner();
        let all: Vec<Health> = inner.entries.iter().map(|e| e.health).collect();
        for e in choose::dead(&all)
            .into_iter()
            .filter_map(|i| inner.entries.get(i))
        {
            if e.cut.receiver_count() > 0 {
                tracing::warn!("{}: its connections are cut: {}", e.upstream, e.why);
                e.cut.send_modify(|n| *n += 1);
            }
        }
    }

    /// For people and monitoring: whether a server answers, and a document about all.
    pub(super) fn report(&self) -> (bool, serde_json::Value) {
        let inner = self.inner();
        let all: Vec<Health> = inner.entries.iter().map(|e| e.health).collect();
        let classes = choose::classes(&all);
        let list: Vec<serde_json::Value> = inner
            .entries
            .iter()
            .zip(&classes)
            .map(|(e, c)| {
                serde_json::json!({"server": e.upstream.to_string(), "class": format!("{c:?}").to_lowercase(),
                    "latency_ms": e.health.latency_ms, "connections": e.cut.receiver_count(), "why": e.why})
            })
            .collect();
        let good = classes.iter().any(|c| *c <= Class::Slow);
        (good, serde_json::json!({"ok": good, "servers": list}))
    }
}
