//! Pods of DaemonSets on the own node, for the health gate.

use super::{Actor, Result};
use crate::drain;
use crate::drain::run::Server;
use crate::proxy::facts::Facts;
use crate::proxy::run::Memory;
use futures_util::{StreamExt, TryStreamExt};
use k8s_openapi::api::core::v1::Pod;
use kube::api::{Api, WatchEvent};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, watch};

/// What is not Ready yet is followed; what a watch may have lost is read so often.
const RESYNC: Duration = Duration::from_secs(60);
/// After a failed request.
const PAUSE: Duration = Duration::from_secs(10);

impl Actor {
    /// Looks at the pods of the DaemonSets that count, on this node. All Ready: one LIST. Otherwise they are followed from there
    /// on, so that nobody has to ask again and again.
    pub(super) async fn look_at_pods(&self, f: &Facts, mem: &mut Memory) -> Result<()> {
        let policy = f
            .order
            .as_ref()
            .and_then(|o| o.policy.clone())
            .unwrap_or_default();
        let everything = drain::Policy {
            pod_selector: None,
            ..drain::Policy::from(&policy)
        };
        let wanted = policy.daemonsets;
        let (pods, version) = self.server().pods(&everything).await?;
        let bad = not_ready(&pods, wanted.as_deref());
        if !bad.is_empty() {
            let (tx, rx) = watch::channel(bad.clone());
            let follower = Follower {
                server: self.server(),
                policy: everything,
                wanted,
                tx,
                changed: Arc::clone(&self.changed),
            };
            mem.follow_pods(rx, tokio::spawn(follower.run(pods, version)));
        }
        mem.unready = Some(bad);
        Ok(())
    }
}

/// Tells which pods are not Ready, until nobody wants to know.
struct Follower {
    server: Server,
    policy: drain::Policy,
    wanted: Option<Vec<String>>,
    tx: watch::Sender<Vec<String>>,
    changed: Arc<Notify>,
}

impl Follower {
    async fn run(self, mut pods: Vec<drain::PodFact>, mut version: String) {
        loop {
            let view = pods.into_iter().map(|p| (p.uid.clone(), p)).collect();
            let followed = tokio::time::timeout(RESYNC, self.follow(view, &version)).await;
            if followed.is_ok() {
                // The watch broke.
                tokio::time::sleep(PAUSE).await;
            }
            (pods, version) = loop {
                match self.server.pods(&self.policy).await {
                    Ok(x) => break x,
                    Err(e) => tracing::debug!("pods of the health gate: {e}"),
                }
                tokio::time::sleep(PAUSE).await;
            };
            self.tell(pods.iter());
        }
    }

    async fn follow(&self, mut view: BTreeMap<String, drain::PodFact>, version: &str) {
        let api: Api<Pod> = Api::all(self.server.client.clone());
        let params = self.server.watching(&self.policy).disable_bookmarks();
        let Ok(events) = api.watch(&params, version).await else {
            return;
        };
        let mut events = events.boxed();
        while let Ok(Some(event)) = events.try_next().await {
            match event {
                WatchEvent::Added(p) | WatchEvent::Modified(p) => {
                    let fact = drain::PodFact::from(&p);
                    view.insert(fact.uid.clone(), fact);
                }
                WatchEvent::Deleted(p) => {
                    view.remove(p.metadata.uid.as_deref().unwrap_or_default());
                }
                WatchEvent::Bookmark(_) => {}
                WatchEvent::Error(_) => return,
            }
            self.tell(view.values());
        }
    }

    fn tell<'a>(&self, pods: impl Iterator<Item = &'a drain::PodFact>) {
        let pods: Vec<drain::PodFact> = pods.cloned().collect();
        let bad = not_ready(&pods, self.wanted.as_deref());
        let new = self.tx.send_if_modified(|old| {
            let differs = *old != bad;
            *old = bad;
            differs
        });
        if new {
            self.changed.notify_one();
        }
    }
}

/// Pods of the listed DaemonSets (`namespace/name`; none listed = all of kube-system) that are not Ready, and listed
/// DaemonSets without a pod here.
pub fn not_ready(pods: &[drain::PodFact], wanted: Option<&[String]>) -> Vec<String> {
    let own = |p: &&drain::PodFact| -> bool {
        p.daemonset().is_some_and(|(ns, name)| match wanted {
            Some(list) => list.iter().any(|w| *w == format!("{ns}/{name}")),
            None => ns == "kube-system",
        })
    };
    let mut bad: Vec<String> = pods
        .iter()
        .filter(own)
        .filter(|p| !p.ready && p.deletion.is_none() && !p.finished)
        .map(drain::PodFact::id)
        .collect();
    for w in wanted.into_iter().flatten() {
        let there = pods.iter().any(|p| {
            p.daemonset()
                .is_some_and(|(ns, name)| *w == format!("{ns}/{name}"))
        });
        if !there {
            bad.push(format!("{w} (no pod here)"));
        }
    }
    bad
}
