//! Fills the facts from three watches. The facts are the only copy that is kept; Nodes are cut down to what counts.

use std::collections::BTreeMap;
use std::fmt::Debug;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, Resource, ResourceExt};
use serde::de::DeserializeOwned;
use tokio::sync::Notify;

use crate::api::{INSTANCE_NAMESPACE, OS, OSInstance};
use crate::clock;

use super::facts::{Fleet, NodeFacts, Settings, Trouble};

/// The three kinds that are watched.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Kind {
    Node,
    Os,
    Instance,
}

/// One watch: synced once, and cut off since when.
#[derive(Clone, Copy, Debug, Default)]
struct Line {
    synced: bool,
    cut: Option<Timestamp>,
}

struct Inner {
    fleet: Fleet,
    lines: [Line; 3],
}

/// The shared view of the cluster.
#[derive(Clone)]
pub(crate) struct View {
    inner: Arc<Mutex<Inner>>,
    changed: Arc<Notify>,
    relist: Arc<Notify>,
}

/// The newer of two resourceVersions stays. They are decimal numbers on every server that is in use.
fn older(new: Option<String>, stored: Option<String>) -> bool {
    let number = |s: Option<String>| s.and_then(|s| s.parse::<u64>().ok());
    matches!((number(new), number(stored)), (Some(n), Some(s)) if n < s)
}

impl View {
    /// An empty view.
    pub(crate) fn new(settings: Settings) -> View {
        let fleet = Fleet {
            now: Timestamp::UNIX_EPOCH,
            nodes: BTreeMap::new(),
            oses: Vec::new(),
            instances: BTreeMap::new(),
            fresh: false,
            trouble: None,
            settings,
        };
        View {
            inner: Arc::new(Mutex::new(Inner {
                fleet,
                lines: [Line::default(); 3],
            })),
            changed: Arc::new(Notify::new()),
            relist: Arc::new(Notify::new()),
        }
    }

    fn lock(&self) -> MutexGuard<'_, Inner> {
        self.inner.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits for a change.
    pub(crate) async fn changed(&self) {
        self.changed.notified().await;
    }

    /// Makes the loop look again.
    pub(crate) fn nudge(&self) {
        self.changed.notify_one();
    }

    /// Runs a function on the facts as they are at `now`.
    pub(crate) fn with<T>(&self, now: Timestamp, f: impl FnOnce(&Fleet) -> T) -> T {
        let mut inner = self.lock();
        let stale = inner.fleet.settings.stale_secs;
        let good = |l: &Line| l.synced && l.cut.is_none_or(|c| now.as_second() - c.as_second() < stale);
        inner.fleet.fresh = inner.lines.iter().all(good);
        inner.fleet.now = now;
        f(&inner.fleet)
    }

    /// All three watches have delivered a first list.
    pub(crate) fn synced(&self) -> bool {
        self.lock().lines.iter().all(|l| l.synced)
    }

    /// Epoch of the Lease, for grants.
    pub(crate) fn set_epoch(&self, epoch: i64) {
        self.lock().fleet.settings.epoch = epoch;
    }

    /// What keeps us from working, or that it is over. Returns whether that changed.
    pub(crate) fn set_trouble(&self, trouble: Option<Trouble>) -> bool {
        let mut inner = self.lock();
        let changed = inner.fleet.trouble != trouble;
        let pruned = |t: &Option<Trouble>| t.as_ref().is_some_and(|t| t.reason == "CRDPruned");
        let healed = pruned(&inner.fleet.trouble) && !pruned(&trouble);
        inner.fleet.trouble = trouble;
        if healed {
            // A watch that began under the old definitions delivers objects cut down by them, and resumes without a list.
            inner.lines = [Line::default(); 3];
            self.relist.notify_one();
        }
        drop(inner);
        if changed {
            self.nudge();
        }
        changed
    }

    /// What keeps us from working.
    pub(crate) fn trouble(&self) -> Option<Trouble> {
        self.lock().fleet.trouble.clone()
    }

    /// Takes in an OS object: from the watch, or the answer to a write.
    pub(crate) fn put_os(&self, mut os: OS) {
        os.metadata.managed_fields = None;
        let mut inner = self.lock();
        match inner.fleet.oses.iter_mut().find(|o| o.uid() == os.uid()) {
            Some(old) if older(os.resource_version(), old.resource_version()) => return,
            Some(old) if *old == os => return,
            Some(old) => *old = os,
            None => inner.fleet.oses.push(os),
        }
        drop(inner);
        self.nudge();
    }

    /// An OS object is gone.
    pub(crate) fn drop_os(&self, uid: &str) {
        self.lock().fleet.oses.retain(|o| o.uid().as_deref() != Some(uid));
        self.nudge();
    }

    /// Takes in an OSInstance.
    pub(crate) fn put_instance(&self, mut instance: OSInstance) {
        instance.metadata.managed_fields = None;
        let mut inner = self.lock();
        if let Some(old) = inner.fleet.instances.get(&instance.name_any())
            && old.uid() == instance.uid()
            && (older(instance.resource_version(), old.resource_version()) || *old == instance)
        {
            return;
        }
        inner.fleet.instances.insert(instance.name_any(), instance);
        drop(inner);
        self.nudge();
    }

    /// An OSInstance is gone.
    pub(crate) fn drop_instance(&self, name: &str) {
        self.lock().fleet.instances.remove(name);
        self.nudge();
    }

    /// Takes in a Node. A heartbeat changes nothing that counts and wakes nobody.
    pub(crate) fn put_node(&self, node: &Node) {
        let facts = NodeFacts::of(node);
        let mut inner = self.lock();
        let old = inner.fleet.nodes.insert(node.name_any(), facts.clone());
        drop(inner);
        let same = old.is_some_and(|o| {
            NodeFacts {
                resource_version: facts.resource_version.clone(),
                ..o
            } == facts
        });
        if !same {
            self.nudge();
        }
    }

    /// A Node is gone.
    pub(crate) fn drop_node(&self, name: &str) {
        self.lock().fleet.nodes.remove(name);
        self.nudge();
    }

    fn line(&self, kind: Kind, change: impl FnOnce(&mut Line)) {
        change(&mut self.lock().lines[kind as usize]);
    }

    /// Keeps only what the new list holds.
    fn retain(&self, kind: Kind, listed: &std::collections::BTreeSet<String>) {
        let mut inner = self.lock();
        match kind {
            Kind::Node => inner.fleet.nodes.retain(|n, _| listed.contains(n)),
            Kind::Instance => inner.fleet.instances.retain(|n, _| listed.contains(n)),
            Kind::Os => inner.fleet.oses.retain(|o| listed.contains(&key(o))),
        }
        drop(inner);
        self.nudge();
    }
}

fn key<K: Resource>(object: &K) -> String {
    match object.meta().namespace.as_deref() {
        Some(ns) if ns != INSTANCE_NAMESPACE => format!("{ns}/{}", object.name_any()),
        _ => object.name_any(),
    }
}

/// Watches the three kinds until dropped; begins anew where the view asks for it.
pub(crate) async fn watch(client: Client, view: View) {
    loop {
        tokio::select! {
            () = watch_once(client.clone(), view.clone()) => {}
            () = view.relist.notified() => tracing::info!("listing everything again"),
        }
    }
}

async fn watch_once(client: Client, view: View) {
    let nodes = follow(
        Api::<Node>::all(client.clone()),
        Kind::Node,
        &view,
        |v, n| v.put_node(&n),
        |v, n| v.drop_node(&n.name_any()),
    );
    let oses = follow(
        Api::<OS>::all(client.clone()),
        Kind::Os,
        &view,
        |v, o| v.put_os(o),
        |v, o| {
            v.drop_os(&o.uid().unwrap_or_default());
        },
    );
    let instances = follow(
        Api::<OSInstance>::namespaced(client, INSTANCE_NAMESPACE),
        Kind::Instance,
        &view,
        |v, i| v.put_instance(i),
        |v, i| v.drop_instance(&i.name_any()),
    );
    futures_util::future::join3(nodes, oses, instances).await;
}

async fn follow<K>(api: Api<K>, kind: Kind, view: &View, put: impl Fn(&View, K), gone: impl Fn(&View, K))
where
    K: Resource<DynamicType = ()> + Clone + DeserializeOwned + Debug + Send + 'static,
{
    let mut stream = std::pin::pin!(watcher(api, watcher::Config::default()).default_backoff());
    let mut listed = std::collections::BTreeSet::new();
    while let Some(event) = stream.next().await {
        match event {
            Ok(event) => {
                view.line(kind, |l| l.cut = None);
                match event {
                    watcher::Event::Apply(object) => put(view, object),
                    watcher::Event::Delete(object) => gone(view, object),
                    watcher::Event::Init => listed.clear(),
                    watcher::Event::InitApply(object) => {
                        listed.insert(key(&object));
                        put(view, object);
                    }
                    watcher::Event::InitDone => {
                        view.line(kind, |l| l.synced = true);
                        view.retain(kind, &listed);
                        listed.clear();
                    }
                }
            }
            Err(error) => {
                tracing::warn!(?kind, %error, "a watch was cut off; trying again");
                view.line(kind, |l| {
                    l.cut.get_or_insert_with(clock::now);
                });
            }
        }
    }
}
