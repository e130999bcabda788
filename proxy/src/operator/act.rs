//! Carries decisions out: every write has a precondition, none is repeated blindly. The client must not retry by itself.

mod event;
mod objects;
mod probe;

use std::collections::{HashMap, HashSet};
use std::time::Duration;

use futures_util::StreamExt;
use k8s_openapi::api::core::v1::Node;
use kube::api::{Patch, PatchParams, PostParams};
use kube::{Api, Client, ResourceExt};
use serde_json::json;
use tokio::sync::Mutex;
use tokio::time::Instant;

use crate::api::{Grant, INSTANCE_NAMESPACE, OS, OSInstance};
use crate::clock;

use super::decide::{Decision, FinalizerWrite, StatusWrite, confirm};
use super::facts::{NodeFacts, Trouble};
use super::observe::View;

/// Writes to different OSInstances under way at once.
const AT_ONCE: usize = 8;

/// Spaces requests out: a burst, then so many per second.
struct Pace {
    next: Mutex<Instant>,
    gap: Duration,
    burst: u32,
}

impl Pace {
    async fn wait(&self) {
        let at = {
            let mut next = self.next.lock().await;
            let now = Instant::now();
            let earliest = now.checked_sub(self.gap * self.burst).unwrap_or(now);
            *next = (*next).max(earliest) + self.gap;
            *next
        };
        tokio::time::sleep_until(at).await;
    }
}

/// The interpreter of decisions.
pub(crate) struct Actor {
    client: Client,
    view: View,
    pace: Pace,
    /// Least time between two status writes of one OS object.
    status_gap: Duration,
    last_status: HashMap<String, Instant>,
    sent: HashSet<String>,
    /// Name of this process in Events.
    instance: String,
}

/// How carrying out went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Outcome {
    /// Look again after this time: something was put off.
    pub(crate) again: Option<Duration>,
    /// Something went wrong that is not just somebody else's write; the caller backs off.
    pub(crate) failed: bool,
    /// Writes that were accepted.
    pub(crate) writes: usize,
}

impl Outcome {
    fn later(&mut self, d: Duration) {
        self.again = Some(self.again.map_or(d, |a| a.min(d)));
    }
}

fn code(error: &kube::Error) -> u16 {
    match error {
        kube::Error::Api(s) => s.code,
        _ => 0,
    }
}

impl Actor {
    /// `client` without retries of its own.
    pub(crate) fn new(
        client: Client,
        view: View,
        status_gap: Duration,
        requests_per_second: u32,
        instance: String,
    ) -> Actor {
        let gap = Duration::from_secs(1) / requests_per_second.max(1);
        let pace = Pace {
            next: Mutex::new(Instant::now()),
            gap,
            burst: requests_per_second.max(1),
        };
        Actor {
            client,
            view,
            pace,
            status_gap,
            last_status: HashMap::new(),
            sent: HashSet::new(),
            instance,
        }
    }

    fn os(&self, namespace: &str) -> Api<OS> {
        Api::namespaced(self.client.clone(), namespace)
    }

    fn instances(&self) -> Api<OSInstance> {
        Api::namespaced(self.client.clone(), INSTANCE_NAMESPACE)
    }

    /// Carries one decision out. `leading` is asked before every ledger write.
    pub(crate) async fn act(&mut self, decision: Decision, leading: impl Fn() -> bool) -> Outcome {
        let mut out = Outcome::default();
        for write in decision.finalizers {
            self.finalizers(write, &mut out).await;
        }
        for write in decision.statuses {
            if !leading() {
                return out;
            }
            let uid = write.os.uid.clone();
            if self.status(write, &mut out).await {
                for note in decision.events.iter().filter(|e| e.os.uid == uid) {
                    self.event(note).await;
                }
            }
        }
        if !leading() {
            return out;
        }
        let results: Vec<bool> = futures_util::stream::iter(decision.instances)
            .map(|w| self.instance(w))
            .buffer_unordered(AT_ONCE)
            .collect()
            .await;
        out.writes += results.iter().filter(|ok| **ok).count();
        out.failed |= results.iter().any(|ok| !ok);
        for orphan in decision.orphans {
            self.orphan(orphan, &mut out).await;
        }
        out
    }

    async fn finalizers(&self, w: FinalizerWrite, out: &mut Outcome) {
        self.pace.wait().await;
        let patch = json!({"metadata": {"finalizers": w.finalizers, "resourceVersion": w.resource_version}});
        match self
            .os(&w.os.namespace)
            .patch(&w.os.name, &PatchParams::default(), &Patch::Merge(patch))
            .await
        {
            Ok(os) => {
                out.writes += 1;
                let done = os.metadata.deletion_timestamp.is_some() && w.finalizers.is_empty();
                if done {
                    self.view.drop_os(&w.os.uid)
                } else {
                    self.view.put_os(os)
                }
            }
            Err(e) => self.failed("patch os", &e, out),
        }
    }

    /// Writes one status. True if it is stored.
    async fn status(&mut self, mut w: StatusWrite, out: &mut Outcome) -> bool {
        if let Some(wait) = self
            .last_status
            .get(&w.os.uid)
            .and_then(|at| self.status_gap.checked_sub(at.elapsed()))
        {
            out.later(wait);
            return false;
        }
        let api = self.os(&w.os.namespace);
        let Some(mut os) = self.view.with(clock::now(), |f| {
            f.oses
                .iter()
                .find(|o| o.uid().as_deref() == Some(&w.os.uid))
                .cloned()
        }) else {
            return false;
        };
        if !w.granted.is_empty() && !self.look_live(&mut w, out).await {
            return false;
        }
        os.metadata.resource_version = Some(w.resource_version.clone());
        os.status = Some(w.status.clone());
        self.pace.wait().await;
        match api.replace_status(&w.os.name, &PostParams::default(), &os).await {
            Ok(stored) => {
                out.writes += 1;
                self.last_status.insert(w.os.uid.clone(), Instant::now());
                let kept = stored
                    .status
                    .as_ref()
                    .is_some_and(|s| same_grants(&s.grants, &w.status.grants) && s.counts.is_some());
                self.view.put_os(stored);
                if !kept {
                    self.pruned(&w.os.namespace, &os).await;
                    return false;
                }
                for node in &w.granted {
                    tracing::info!(os = %w.os.name, %node, "granted");
                }
                true
            }
            Err(e) => {
                self.failed("update os/status", &e, out);
                if code(&e) == 409 {
                    self.refresh_os(&w).await;
                }
                false
            }
        }
    }

    /// Before a grant: the OS and every chosen Node are read live.
    async fn look_live(&self, w: &mut StatusWrite, out: &mut Outcome) -> bool {
        self.pace.wait().await;
        match self.os(&w.os.namespace).get(&w.os.name).await {
            Ok(live) if live.resource_version().as_deref() == Some(&w.resource_version) => {}
            Ok(live) => {
                self.view.put_os(live);
                out.later(Duration::from_millis(50));
                return false;
            }
            Err(e) => {
                self.failed("get os", &e, out);
                return false;
            }
        }
        let nodes: Api<Node> = Api::all(self.client.clone());
        let reads = futures_util::stream::iter(w.granted.clone())
            .map(|name| {
                let nodes = nodes.clone();
                async move {
                    self.pace.wait().await;
                    let node = nodes.get(&name).await;
                    (name, node)
                }
            })
            .buffer_unordered(AT_ONCE)
            .collect::<Vec<_>>()
            .await;
        let mut live: HashMap<String, NodeFacts> = HashMap::new();
        for (name, node) in reads {
            match node {
                Ok(node) => {
                    live.insert(name, NodeFacts::of(&node));
                    self.view.put_node(&node);
                }
                Err(e) => self.failed("get node", &e, out),
            }
        }
        confirm(w, |name| live.get(name).cloned());
        true
    }

    async fn refresh_os(&self, w: &StatusWrite) {
        match self.os(&w.os.namespace).get_opt(&w.os.name).await {
            Ok(Some(os)) => self.view.put_os(os),
            Ok(None) => self.view.drop_os(&w.os.uid),
            Err(_) => {}
        }
    }

    /// A write failed. Rights that are missing are trouble that stops everything; the rest is tried again.
    fn failed(&self, what: &str, error: &kube::Error, out: &mut Outcome) {
        if code(error) == 409 {
            out.later(Duration::ZERO);
        } else {
            out.failed = true;
        }
        match code(error) {
            403 => {
                let said = match error {
                    kube::Error::Api(status) => status.message.clone(),
                    other => other.to_string(),
                };
                let text = format!("{said} ({what}); apply proxy/deploy/rbac.yaml");
                tracing::error!("{text}");
                self.view.set_trouble(Some(Trouble {
                    reason: "Forbidden".into(),
                    message: short(&text),
                }));
            }
            409 => tracing::debug!(what, "somebody else wrote first"),
            _ => tracing::warn!(what, %error, "will be tried again"),
        }
    }
}

fn short(text: &str) -> String {
    text.chars().take(500).collect()
}

fn same_grants(a: &[Grant], b: &[Grant]) -> bool {
    a.len() == b.len()
        && a.iter()
            .zip(b)
            .all(|(x, y)| x.node == y.node && x.node_uid == y.node_uid && x.attempt == y.attempt)
}
