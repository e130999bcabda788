//! Many simulated nodes: a Node object each, and a light player that obeys orders as os-proxy, os-agent and kubelet do
//! together, as far as the operator and the server can see it. Nothing is drained; the real proxy is tested elsewhere.

use super::players::{MACHINE, Task};
use anyhow::{Context, Result, ensure};
use futures_util::StreamExt;
use jiff::Timestamp;
use k8s_openapi::api::core::v1::Node;
use kube::api::{DeleteParams, Patch, PatchParams, PostParams};
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use os_proxy::api::{
    ANN_CORDONED_BY, Desired, INSTANCE_NAMESPACE, LABEL_NODE_SELECTOR, LABEL_UPGRADING, OS, OSInstance,
    OsInstanceSpec, cordon_owner,
};
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;
use tokio::sync::watch;

/// What every node runs at first, under [`OLD_DIGEST`].
pub const OLD: &str = "Slipway 1";
/// Digest of what every node runs at first.
pub const OLD_DIGEST: &str = "aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa";

/// What a node does with an update.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Fate {
    /// Boots it and stays.
    #[default]
    Good,
    /// Boots it, is not healthy, boots the old one.
    FallsBack,
    /// Stays cordoned until its Node is deleted.
    Drains,
}

/// How long the steps of a node take.
#[derive(Debug, Clone, Copy)]
pub struct Pace {
    /// Staging.
    pub stage: Duration,
    /// From going down to Ready.
    pub boot: Duration,
}

struct Shared {
    /// The cluster as kubelet.
    admin: Client,
    /// The cluster as proxy.
    proxy: Client,
    pace: Pace,
    fates: Mutex<BTreeMap<String, Fate>>,
    boots: Mutex<BTreeMap<String, u32>>,
    /// The server's definitions dropped a report.
    dropped: AtomicBool,
    /// They do not any more: a watch that began under them still delivers orders cut down by them.
    relist: tokio::sync::Notify,
}

/// The running player.
pub struct Fleet {
    shared: Arc<Shared>,
    _task: Task,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Fleet {
    /// Plays every node that has an OSInstance and was made by [`Fleet::add`].
    pub fn start(admin: Client, proxy: Client, pace: Pace) -> Fleet {
        let shared = Arc::new(Shared {
            admin,
            proxy,
            pace,
            fates: Mutex::default(),
            boots: Mutex::default(),
            dropped: AtomicBool::new(false),
            relist: tokio::sync::Notify::new(),
        });
        let task = Task::spawn(play(Arc::clone(&shared)));
        Fleet { shared, _task: task }
    }

    /// A Ready node with this value of KubeOS's label for selections.
    ///
    /// # Errors
    /// The server's.
    pub async fn add(&self, name: &str, pool: &str) -> Result<Node> {
        lock(&self.shared.fates).entry(name.into()).or_default();
        let mut node = status(OLD, "boot-0", true);
        node["metadata"] = json!({"name": name, "labels": {LABEL_NODE_SELECTOR: pool}});
        Api::<Node>::all(self.shared.admin.clone())
            .create(&PostParams::default(), &serde_json::from_value(node)?)
            .await
            .with_context(|| format!("creating Node {name}"))
    }

    /// How updates of this node go from now on.
    pub fn fate(&self, name: &str, fate: Fate) {
        lock(&self.shared.fates).insert(name.into(), fate);
    }

    /// Deletes a Node, as an autoscaler does.
    ///
    /// # Errors
    /// The server's.
    pub async fn remove(&self, name: &str) -> Result<()> {
        lock(&self.shared.fates).remove(name);
        Api::<Node>::all(self.shared.admin.clone())
            .delete(name, &DeleteParams::default())
            .await?;
        Ok(())
    }

    /// Reboots of the nodes whose name begins so.
    pub fn boots(&self, prefix: &str) -> Vec<u32> {
        let all = lock(&self.shared.boots);
        let ours = all.iter().filter(|(n, _)| n.starts_with(prefix));
        ours.map(|(_, b)| *b).collect()
    }
}

fn status(os: &str, boot: &str, ready: bool) -> Value {
    let now = Timestamp::now()
        .round(jiff::Unit::Second)
        .unwrap_or_default()
        .to_string();
    json!({"status": {
        "conditions": [{"type": "Ready", "status": if ready { "True" } else { "Unknown" }, "lastHeartbeatTime": now,
            "lastTransitionTime": now, "reason": "Test", "message": ""}],
        "nodeInfo": {"bootID": boot, "machineID": MACHINE, "osImage": os, "architecture": "amd64",
            "containerRuntimeVersion": "", "kernelVersion": "", "kubeProxyVersion": "", "kubeletVersion": "v1.30.0",
            "operatingSystem": "linux", "systemUUID": ""},
    }})
}

/// Hands every state of every OSInstance to the task of its node.
async fn play(shared: Arc<Shared>) {
    let api: Api<OSInstance> = Api::namespaced(shared.proxy.clone(), INSTANCE_NAMESPACE);
    let mut nodes: BTreeMap<String, (Option<String>, watch::Sender<OsInstanceSpec>, Task)> = BTreeMap::new();
    let follow = || {
        Box::pin(
            watcher(api.clone(), watcher::Config::default())
                .default_backoff()
                .applied_objects(),
        )
    };
    let mut stream = follow();
    loop {
        let event = tokio::select! {
            event = stream.next() => event,
            () = shared.relist.notified() => {
                stream = follow();
                continue;
            }
        };
        let Some(event) = event else { return };
        let Ok(i) = event else { continue };
        let (name, uid) = (i.name_any(), i.uid());
        if !lock(&shared.fates).contains_key(&name) {
            nodes.remove(&name);
            continue;
        }
        match nodes.get(&name) {
            Some((known, tell, _)) if *known == uid => {
                tell.send_if_modified(|s| {
                    let new = *s != i.spec;
                    *s = i.spec.clone();
                    new
                });
            }
            _ => {
                let (tell, orders) = watch::channel(i.spec.clone());
                let one = One {
                    shared: Arc::clone(&shared),
                    name: name.clone(),
                    boot: 0,
                    os: OLD.into(),
                    digest: OLD_DIGEST.into(),
                    said: false,
                    observed: None,
                    booted: None,
                };
                nodes.insert(name, (uid, tell, Task::spawn(one.live(orders))));
            }
        }
    }
}

/// One node.
struct One {
    shared: Arc<Shared>,
    name: String,
    boot: u32,
    os: String,
    digest: String,
    /// The agent's first report was written.
    said: bool,
    observed: Option<String>,
    /// The order under which it booted last: one that is repeated boots nothing.
    booted: Option<String>,
}

impl One {
    async fn live(mut self, mut orders: watch::Receiver<OsInstanceSpec>) {
        loop {
            let spec = orders.borrow_and_update().clone();
            if let Err(e) = self.obey(&spec).await {
                if e.downcast_ref::<kube::Error>()
                    .is_some_and(|e| matches!(e, kube::Error::Api(s) if s.code == 404))
                {
                    // The node or its OSInstance is gone.
                    return;
                }
                tokio::time::sleep(Duration::from_millis(300)).await;
                continue;
            }
            if orders.changed().await.is_err() {
                return;
            }
        }
    }

    async fn report(&self, status: Value) -> Result<()> {
        let api: Api<OSInstance> = Api::namespaced(self.shared.proxy.clone(), INSTANCE_NAMESPACE);
        let stored = api
            .patch_status(
                &self.name,
                &PatchParams::default(),
                &Patch::Merge(json!({"status": status})),
            )
            .await?;
        let kept = stored.status.is_some_and(|s| s.agent.is_some());
        self.shared.dropped.fetch_or(!kept, Ordering::SeqCst);
        ensure!(kept, "the server's definitions drop what the agent says");
        if self.shared.dropped.swap(false, Ordering::SeqCst) {
            self.shared.relist.notify_one();
        }
        Ok(())
    }

    async fn patch_node(&self, body: Value) -> Result<()> {
        let api: Api<Node> = Api::all(self.shared.proxy.clone());
        api.patch(&self.name, &PatchParams::default(), &Patch::Merge(body))
            .await?;
        Ok(())
    }

    async fn kubelet(&self, os: &str, boot: &str, ready: bool) -> Result<()> {
        let api: Api<Node> = Api::all(self.shared.admin.clone());
        let body = status(os, boot, ready);
        api.patch_status(&self.name, &PatchParams::default(), &Patch::Merge(body))
            .await?;
        Ok(())
    }

    fn agent(&self) -> Value {
        json!({"bootID": format!("boot-{}", self.boot), "machineID": MACHINE, "slot": "A", "osVersion": self.os,
            "digest": self.digest, "stagedDigest": null, "healthy": true})
    }

    /// Carries the order out, if it is a new one. Repeated as a whole after an error.
    async fn obey(&mut self, spec: &OsInstanceSpec) -> Result<()> {
        if !self.said {
            self.report(json!({"phase": "Idle", "agent": self.agent()}))
                .await?;
            self.said = true;
        }
        let Some(op) = spec.opid.clone().filter(|o| self.observed.as_ref() != Some(o)) else {
            return Ok(());
        };
        match spec.desired {
            Desired::Idle => return Ok(()),
            Desired::Stage => {
                tokio::time::sleep(self.shared.pace.stage).await;
                let digest = spec.target.as_ref().map(|t| t.digest.clone());
                self.report(
                    json!({"phase": "Staged", "observedOpID": op, "agent": {"stagedDigest": digest}}),
                )
                .await?;
            }
            Desired::Boot | Desired::Rollback => self.attempt(spec, &op).await?,
            Desired::Abort => {
                self.report(self.result(&op, "Aborted", "Aborted", "Staged"))
                    .await?;
            }
            Desired::Config => {
                self.report(json!({"sysconfigs": spec.sysconfigs})).await?;
                self.report(self.result(&op, "Done", "", "Idle")).await?;
            }
        }
        self.observed = Some(op);
        Ok(())
    }

    fn result(&self, op: &str, outcome: &str, reason: &str, phase: &str) -> Value {
        json!({"phase": phase, "observedOpID": op,
            "lastResult": {"opID": op, "outcome": outcome, "reason": reason, "finishedAt": Timestamp::now()}})
    }

    /// A live read of the ledger.
    async fn granted(&self, spec: &OsInstanceSpec) -> Result<bool> {
        let owner = spec.namespacedname.clone().unwrap_or_default();
        let api: Api<OS> = Api::namespaced(self.shared.proxy.clone(), &owner.namespace);
        let os = api.get_opt(&owner.name).await?;
        let grants = os.and_then(|o| o.status).map(|s| s.grants).unwrap_or_default();
        Ok(grants
            .iter()
            .any(|g| g.node == self.name && g.attempt == spec.attempt))
    }

    async fn attempt(&mut self, spec: &OsInstanceSpec, op: &str) -> Result<()> {
        let fate = lock(&self.shared.fates)
            .get(&self.name)
            .copied()
            .unwrap_or_default();
        let good = fate == Fate::Good;
        if self.booted.as_deref() != Some(op) {
            if !self.granted(spec).await? {
                return self
                    .report(self.result(op, "Aborted", "GrantGone", "Staged"))
                    .await;
            }
            self.go_down(spec, op, fate).await?;
            tokio::time::sleep(self.shared.pace.boot).await;
            if let Some(t) = spec.target.as_ref().filter(|_| good) {
                (self.os, self.digest) = (t.version.clone(), t.digest.clone());
            }
            self.boot += 1;
            self.booted = Some(op.to_owned());
            *lock(&self.shared.boots).entry(self.name.clone()).or_default() += 1;
        }
        self.kubelet(&self.os, &format!("boot-{}", self.boot), true)
            .await?;
        self.patch_node(
            json!({"metadata": {"annotations": {ANN_CORDONED_BY: null}, "labels": {LABEL_UPGRADING: null}},
            "spec": {"unschedulable": null}}),
        )
        .await?;
        let (outcome, reason) = if good {
            ("Done", "")
        } else {
            ("RolledBack", "HealthFailed")
        };
        let mut end = self.result(op, outcome, reason, "Idle");
        end["agent"] = self.agent();
        self.report(end).await
    }

    /// Cordon, report, and no longer Ready.
    async fn go_down(&self, spec: &OsInstanceSpec, op: &str, fate: Fate) -> Result<()> {
        let mark = cordon_owner(spec.osuid.as_deref().unwrap_or_default(), spec.attempt);
        self.patch_node(
            json!({"metadata": {"annotations": {ANN_CORDONED_BY: mark}, "labels": {LABEL_UPGRADING: ""}},
            "spec": {"unschedulable": true}}),
        )
        .await?;
        if fate == Fate::Drains {
            self.report(json!({"phase": "Draining", "phaseSince": Timestamp::now(), "observedOpID": op}))
                .await?;
            std::future::pending::<()>().await;
        }
        self.report(json!({"phase": "Rebooting", "phaseSince": Timestamp::now(), "observedOpID": op}))
            .await?;
        self.kubelet(&self.os, &format!("boot-{}", self.boot), false)
            .await
    }
}
