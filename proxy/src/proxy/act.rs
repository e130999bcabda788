//! Carries actions out. Every write of the Node carries the version that the decision was made on; every read before Boot is
//! a live one.

use super::agent::{self, Agent};
use super::decide::Action;
use super::facts::{AgentFact, Facts, Fail, NodeFact, Preflight, Step, Work};
use super::run::{Memory, Settings};
use crate::api::{
    self, Configs, Desired, GrantKind, INSTANCE_NAMESPACE, LABEL_CONFIGURING, LABEL_SERIAL, LABEL_UPGRADING,
    OS, OSInstance, OsInstanceSpec, OsInstanceStatus, PROXY_MANAGER,
};
use crate::drain::run::{Progress, Server};
use crate::drain::{self, Policy};
use jiff::Timestamp;
use k8s_openapi::api::core::v1::{Event, Node, Pod};
use kube::api::{Api, ListParams, Patch, PatchParams, PostParams};
use os_proto::v1;
use serde_json::{Value, json};
use std::sync::Arc;
use tokio::sync::{Notify, watch};

/// Evictions tried as dry runs before staging.
const PROBES: usize = 20;
/// Boot must be carried out within this many seconds of the checks.
const BOOT_VALID_SECS: i64 = 30;
/// On top of the health timeout, before the agent's own watchdog steps in.
const WATCHDOG_MARGIN_SECS: i64 = 300;

/// The interpreter: clients, the agent, and where changes are announced.
#[derive(Clone)]
pub struct Actor {
    /// Client without retries of its own.
    pub client: kube::Client,
    /// The agent.
    pub agent: Agent,
    /// Names and spans.
    pub settings: Settings,
    /// Told when work beside the loop ends.
    pub changed: Arc<Notify>,
}

/// Why a round ended early.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A request failed.
    #[error("{what}")]
    Kube {
        /// What was asked for.
        what: &'static str,
        /// Why.
        #[source]
        source: Box<kube::Error>,
    },
    /// A question about pods could not be answered.
    #[error("{0}")]
    Drain(#[from] drain::run::Error),
    /// What was reported is not in the answer.
    #[error(
        "the cluster has other definitions of OSInstance (KubeOS's own?), which drop what is reported; apply proxy/deploy/crds.yaml"
    )]
    Pruned,
    /// The agent said no, or nothing.
    #[error("os-agent: {}: {}", .0.reason, .0.message)]
    Agent(Fail),
    /// What was decided on is not so any more.
    #[error("{0}: looking again")]
    Stale(&'static str),
}

fn kube_error(what: &'static str) -> impl FnOnce(kube::Error) -> Error {
    move |e| Error::Kube {
        what,
        source: Box::new(e),
    }
}

fn refuse(reason: &str, message: &str) -> Fail {
    Fail {
        reason: reason.into(),
        message: message.into(),
        passing: false,
    }
}

type Result<T> = std::result::Result<T, Error>;

impl Actor {
    fn now(&self) -> Timestamp {
        (self.settings.clock)()
    }

    fn server(&self) -> Server {
        Server {
            client: self.client.clone(),
            node: self.settings.node.clone(),
            clock: self.settings.clock,
            tuning: self.settings.tuning,
        }
    }

    fn instances(&self) -> Api<OSInstance> {
        Api::namespaced(self.client.clone(), INSTANCE_NAMESPACE)
    }

    /// Carries one action out.
    ///
    /// # Errors
    /// The round ends; everything is looked at again.
    pub async fn act(&self, action: Action, f: &Facts, mem: &mut Memory) -> Result<()> {
        match action {
            Action::Report(status) => self.report(&status, mem).await,
            Action::Event {
                reason,
                message,
                warning,
            } => {
                self.event(f, &reason, &message, warning).await;
                Ok(())
            }
            Action::Preflight => self.preflight(f, mem).await,
            Action::Forget(digest) => self.agent.forget(&digest).await.map_err(Error::Agent),
            Action::Stage { op_id, force } => {
                self.stage(f, op_id, force, mem);
                Ok(())
            }
            Action::Cordon { owner } => self.cordon(f, owner.as_deref(), mem).await,
            Action::Drain { since } => {
                self.drain(f, since, mem);
                Ok(())
            }
            Action::StopDrain => {
                mem.stop_drain().await;
                Ok(())
            }
            Action::Configure { step, op_id, configs } => self.configure(step, &op_id, &configs, mem).await,
            Action::Boot { waive_empty, report } => {
                let checked = self.boot(f, waive_empty, &report, mem).await;
                match checked {
                    Ok(r) => {
                        mem.done.insert(Step::Boot, r);
                        Ok(())
                    }
                    Err(e) => Err(e),
                }
            }
            Action::LookAtPods => {
                mem.unready = Some(self.unready(f).await?);
                Ok(())
            }
            Action::Commit => {
                let (agent, digest) = (f.agent.clone().unwrap_or_default(), target_digest(f));
                let op = op_of(f, &agent);
                let digest = if agent.report.runs(&digest) {
                    digest
                } else {
                    String::new()
                };
                // A refusal (not healthy any more) is asked for again until the health timeout ends it.
                self.agent
                    .commit(&format!("{op}.commit"), &digest, &agent.report.boot_id)
                    .await
                    .map_err(Error::Agent)?;
                mem.done.insert(Step::Commit, Ok(()));
                Ok(())
            }
            Action::RollBack => {
                let agent = f.agent.clone().unwrap_or_default();
                let op = op_of(f, &agent);
                let r = self
                    .agent
                    .rollback(&format!("{op}.rollback"), &agent.report.boot_id)
                    .await;
                self.keep(Step::Rollback, r, mem)
            }
            Action::Cancel => {
                let boot = f
                    .agent
                    .as_ref()
                    .map(|a| a.report.boot_id.clone())
                    .unwrap_or_default();
                let r = self.agent.cancel(&format!("{}.cancel", f.op_id()), &boot).await;
                self.keep(Step::Cancel, r, mem)
            }
            Action::Release { uncordon } => self.release(f, uncordon, mem).await,
            Action::LabelConfiguring(on) => {
                let value = if on { json!("") } else { Value::Null };
                let body = json!({"metadata": {"labels": {LABEL_CONFIGURING: value}}});
                self.patch_node(f, body, mem).await
            }
            Action::StartOver => {
                mem.preflight = Work::Idle;
                mem.clear_stage();
                Ok(())
            }
        }
    }

    /// Results that may come out better are errors of this round; others are facts for the next decision.
    fn keep(&self, step: Step, r: std::result::Result<(), Fail>, mem: &mut Memory) -> Result<()> {
        if let Err(e) = &r
            && e.passing
        {
            return Err(Error::Agent(e.clone()));
        }
        mem.done.insert(step, r);
        Ok(())
    }

    async fn report(&self, status: &OsInstanceStatus, mem: &mut Memory) -> Result<()> {
        let body = json!({
            "apiVersion": "upgrade.openeuler.org/v1alpha1",
            "kind": "OSInstance",
            "metadata": {"name": self.settings.node},
            "status": status,
        });
        let params = PatchParams::apply(PROXY_MANAGER).force();
        let stored = self
            .instances()
            .patch_status(&self.settings.node, &params, &Patch::Apply(body))
            .await
            .map_err(kube_error("writing the status of our OSInstance"))?
            .status
            .unwrap_or_default();
        // Said again later: once the definitions are mended nothing else would change, and nobody would ask.
        if stored.agent.is_none() && status.agent.is_some() {
            mem.report = stored;
            return Err(Error::Pruned);
        }
        mem.report = status.clone();
        Ok(())
    }

    /// Said once: the name is made of what is said, so a second one exists already. Never holds anything up.
    async fn event(&self, f: &Facts, reason: &str, message: &str, warning: bool) {
        let Some(node) = &f.node else { return };
        let seed = format!("{}/{reason}/{message}", f.op_id());
        let name = format!(
            "{:.200}.{:08x}",
            node.name,
            (drain::jitter(&seed, 0) * 1e9) as u64
        );
        let now = self.now();
        let event: std::result::Result<Event, _> = serde_json::from_value(json!({
            "metadata": {"name": name, "namespace": INSTANCE_NAMESPACE},
            "involvedObject": {"apiVersion": "v1", "kind": "Node", "name": node.name, "uid": node.name},
            "reason": reason,
            "message": format!("{message:.1000}"),
            "type": if warning { "Warning" } else { "Normal" },
            "source": {"component": PROXY_MANAGER},
            "firstTimestamp": api::Time(now),
            "lastTimestamp": api::Time(now),
            "count": 1,
        }));
        let Ok(event) = event else { return };
        let api: Api<Event> = Api::namespaced(self.client.clone(), INSTANCE_NAMESPACE);
        if let Err(e) = api.create(&PostParams::default(), &event).await
            && !matches!(&e, kube::Error::Api(s) if s.code == 409)
        {
            tracing::warn!("event {reason}: {e}");
        }
    }

    async fn preflight(&self, f: &Facts, mem: &mut Memory) -> Result<()> {
        let Some(order) = &f.order else { return Ok(()) };
        let mut rejected = None;
        for (configs, name) in [(&order.upgradeconfigs, "pre"), (&order.sysconfigs, "post")] {
            let Some(c) = configs.as_ref().filter(|c| !c.configs.is_empty()) else {
                continue;
            };
            let op = format!("{}.dry-{name}", f.op_id());
            match self.agent.configure(&op, c, true).await {
                Err(e) if e.passing => return Err(Error::Agent(e)),
                Err(e) => rejected = Some(e),
                Ok(()) => {}
            }
        }
        let policy = Policy::from(&order.policy.clone().unwrap_or_default());
        let blocked = self.server().preflight(&policy, PROBES).await?;
        mem.preflight = Work::Ended(Preflight { blocked, rejected });
        Ok(())
    }

    fn stage(&self, f: &Facts, op_id: String, force: bool, mem: &mut Memory) {
        let Some(order) = &f.order else { return };
        let target = order.target.clone().unwrap_or_default();
        let other = match f.agent.as_ref().map(|a| a.report.slot.as_str()) {
            Some("A") => v1::Slot::B,
            Some("B") => v1::Slot::A,
            _ => v1::Slot::Unspecified,
        };
        let request = v1::StageRequest {
            op_id,
            source: target.source.as_ref().map(|s| agent::wire_source(s, other)),
            checksum: target.digest.clone(),
            // KubeOS users write PRETTY_NAME or VERSION_ID; the agent accepts both.
            os_image: target.version.clone(),
            // Ordering an older version is the general way back.
            allow_older: true,
            force,
            ..Default::default()
        };
        let (agent, changed) = (self.agent.clone(), Arc::clone(&self.changed));
        let wanted = target.digest.clone();
        let (tx, rx) = watch::channel(Work::Running);
        mem.start_stage(
            rx,
            tokio::spawn(async move {
                let mut r = agent
                    .stage(request)
                    .await
                    .map(|x| super::metrics::staged(x.written_bytes));
                // Proven by what the agent says of the slot, not by the answer alone.
                if r.is_ok() {
                    r = match agent.status().await {
                        Ok(a) if a.report.has_staged(&wanted) => Ok(()),
                        Ok(_) => Err(Fail {
                            reason: "NotStaged".into(),
                            message: "the agent staged it and the slot does not hold it".into(),
                            passing: true,
                        }),
                        Err(e) => Err(e),
                    };
                }
                let _ = tx.send(Work::Ended(r));
                changed.notify_one();
            }),
        );
    }

    fn drain(&self, f: &Facts, since: Timestamp, mem: &mut Memory) {
        let policy = f
            .order
            .as_ref()
            .and_then(|o| o.policy.clone())
            .unwrap_or_default();
        let policy = Policy::from(&policy);
        let (server, changed) = (self.server(), Arc::clone(&self.changed));
        let (progress, shown) = watch::channel(Progress::default());
        let (outcome, over) = watch::channel(Work::Running);
        let (stop, stopped) = watch::channel(false);
        let told = Arc::clone(&self.changed);
        let mut follow = shown.clone();
        let began = self.now();
        let task = tokio::spawn(async move {
            let telling = async {
                while follow.changed().await.is_ok() {
                    told.notify_one();
                }
                std::future::pending::<()>().await
            };
            let r = tokio::select! {
                r = drain::run::run(&server, &policy, since, &progress, stopped) => r,
                () = telling => return,
            };
            let ms = (server.clock)().as_millisecond() - began.as_millisecond();
            super::metrics::drained(u64::try_from(ms).unwrap_or(0));
            let out = r.unwrap_or_else(|e| drain::run::Outcome::Fault(e.to_string()));
            let _ = outcome.send(Work::Ended(out));
            changed.notify_one();
        });
        mem.start_drain(shown, over, stop, task);
    }

    async fn configure(&self, step: Step, op_id: &str, configs: &Configs, mem: &mut Memory) -> Result<()> {
        let r = self.agent.configure(op_id, configs, false).await;
        self.keep(step, r, mem)
    }

    /// A live read of the ledger: does it hold this node's grant?
    async fn granted(&self, f: &Facts, order: &OsInstanceSpec) -> Result<bool> {
        let (Some(owner), Some(node)) = (&order.namespacedname, &f.node) else {
            return Ok(false);
        };
        let api: Api<OS> = Api::namespaced(self.client.clone(), &owner.namespace);
        let os = api
            .get_opt(&owner.name)
            .await
            .map_err(kube_error("reading the OS object that grants"))?;
        let now = self.now();
        Ok(os.is_some_and(|os| {
            os.metadata.uid == order.osuid
                && os.status.iter().flat_map(|s| &s.grants).any(|g| {
                    g.node == node.name
                        && g.node_uid == node.uid
                        && g.attempt == order.attempt
                        && now < g.not_after.0
                })
        }))
    }

    async fn cordon(&self, f: &Facts, owner: Option<&str>, mem: &mut Memory) -> Result<()> {
        let Some(order) = &f.order else { return Ok(()) };
        if !self.granted(f, order).await? {
            let why = refuse(
                "GrantGone",
                "the ledger does not hold this node's grant (any more)",
            );
            mem.done.insert(Step::Cordon, Err(why));
            return Err(Error::Stale("no grant"));
        }
        let serial = order.policy.as_ref().is_some_and(|p| p.serial);
        let mut body = json!({"metadata": {"labels": {LABEL_UPGRADING: ""}}});
        if serial {
            body["metadata"]["labels"][LABEL_SERIAL] = json!("");
        }
        if let Some(o) = owner {
            body["metadata"]["annotations"] = json!({api::ANN_CORDONED_BY: o});
            body["spec"] = json!({"unschedulable": true});
        }
        self.patch_node(f, body, mem).await
    }

    /// The mark, the cordon and the labels go in one patch. Without our mark the cordon stays.
    async fn release(&self, f: &Facts, uncordon: bool, mem: &mut Memory) -> Result<()> {
        let mut body = json!({"metadata": {
            "annotations": {api::ANN_CORDONED_BY: null},
            "labels": {LABEL_UPGRADING: null, LABEL_SERIAL: null, LABEL_CONFIGURING: null},
        }});
        if uncordon {
            body["spec"] = json!({"unschedulable": null});
        }
        self.patch_node(f, body, mem).await?;
        if let Some(t) = mem
            .report
            .phase_since
            .as_ref()
            .filter(|_| mem.report.phase.past_boot())
        {
            super::metrics::downtime(u64::try_from(self.now().as_second() - t.0.as_second()).unwrap_or(0));
        }
        Ok(())
    }

    /// A merge patch with the version that was decided on. When only kubelet wrote in between, it is repeated on the new
    /// version; when the cordon or the mark changed, the decision is made anew.
    async fn patch_node(&self, f: &Facts, mut body: Value, mem: &mut Memory) -> Result<()> {
        let Some(mut node) = f.node.clone() else {
            return Err(Error::Stale("the Node is not known"));
        };
        let api: Api<Node> = Api::all(self.client.clone());
        for _ in 0..4 {
            body["metadata"]["resourceVersion"] = json!(node.resource_version);
            match api
                .patch(&node.name, &PatchParams::default(), &Patch::Merge(&body))
                .await
            {
                Ok(n) => {
                    mem.node_written(NodeFact::from(&n));
                    return Ok(());
                }
                Err(kube::Error::Api(s)) if s.code == 409 => {}
                Err(e) => return Err(kube_error("patching our Node")(e)),
            }
            let fresh = api
                .get(&node.name)
                .await
                .map_err(kube_error("reading our Node"))?;
            let fresh = NodeFact::from(&fresh);
            let same = |n: &NodeFact| (n.uid.clone(), n.unschedulable, n.cordoned_by.clone());
            if same(&fresh) != same(&node) {
                mem.node_written(fresh);
                return Err(Error::Stale("the Node's cordon changed"));
            }
            node = fresh;
        }
        Err(Error::Stale("the Node changes all the time"))
    }

    /// The boot checks, all fresh, then the status, then Activate. `Ok(Err(_))` = refused for good.
    async fn boot(
        &self,
        f: &Facts,
        waive_empty: bool,
        report: &OsInstanceStatus,
        mem: &mut Memory,
    ) -> Result<std::result::Result<(), Fail>> {
        let (Some(order), Some(node)) = (&f.order, &f.node) else {
            return Err(Error::Stale("no order"));
        };
        let policy = order.policy.clone().unwrap_or_default();
        if !waive_empty && !self.server().is_empty(&Policy::from(&policy)).await? {
            mem.stop_drain().await;
            return Err(Error::Stale("pods came back"));
        }
        if !self.granted(f, order).await? {
            return Ok(Err(refuse(
                "GrantGone",
                "the ledger does not hold this node's grant (any more)",
            )));
        }
        let mine = self
            .instances()
            .get_opt(&node.name)
            .await
            .map_err(kube_error("reading our OSInstance"))?;
        let same = mine.is_some_and(|i| {
            i.spec.opid == order.opid
                && matches!(i.spec.desired, Desired::Boot | Desired::Rollback)
                && i.spec.target == order.target
        });
        if !same {
            return Err(Error::Stale("the order changed"));
        }
        let target = order.target.clone().unwrap_or_default();
        let agent: AgentFact = self.agent.status().await.map_err(Error::Agent)?;
        if target.kind != GrantKind::Reboot && !agent.report.has_staged(&target.digest) {
            return Ok(Err(refuse(
                "NotStaged",
                "the inactive slot does not hold the target (any more)",
            )));
        }
        let expected = order.expectbootid.clone().unwrap_or_default();
        if agent.report.boot_id != expected {
            return Err(Error::Stale("the node rebooted"));
        }
        let now = self.now();
        let not_after = order.grant.as_ref().map_or(now, |g| g.notafter.0);
        let valid = now.as_second() + BOOT_VALID_SECS;
        if valid >= not_after.as_second() {
            return Ok(Err(refuse(
                "GrantExpired",
                "too little of the grant's time is left to boot",
            )));
        }
        self.report(report, mem).await?;
        let deadline = policy.healthtimeoutseconds.max(0) + WATCHDOG_MARGIN_SECS;
        let request = v1::ActivateRequest {
            op_id: f.op_id().to_owned(),
            digest: target.digest,
            expect_boot_id: expected,
            valid_until_unix: valid,
            reboot: true,
            confirm: v1::Confirm::Cluster as i32,
            deadline_secs: u64::try_from(deadline).unwrap_or(0),
            on_silence: if policy.rollbackonapiunreachable {
                v1::OnSilence::Reboot as i32
            } else {
                v1::OnSilence::Keep as i32
            },
        };
        match self.agent.activate(request).await {
            Ok(()) => Ok(Ok(())),
            Err(e) if e.passing => Err(Error::Agent(e)),
            Err(e) => Ok(Err(e)),
        }
    }

    /// Pods of the DaemonSets that count, on this node, which are not Ready.
    async fn unready(&self, f: &Facts) -> Result<Vec<String>> {
        let policy = f
            .order
            .as_ref()
            .and_then(|o| o.policy.clone())
            .unwrap_or_default();
        let api: Api<Pod> = Api::all(self.client.clone());
        let params = ListParams::default().fields(&format!("spec.nodeName={}", self.settings.node));
        let pods = api.list(&params).await.map_err(kube_error("listing our pods"))?;
        let facts: Vec<drain::PodFact> = pods.items.iter().map(drain::PodFact::from).collect();
        Ok(not_ready(&facts, policy.daemonsets.as_deref()))
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

fn target_digest(f: &Facts) -> String {
    f.order
        .as_ref()
        .and_then(|o| o.target.as_ref())
        .map(|t| t.digest.clone())
        .unwrap_or_default()
}

/// The operation that the trial belongs to: the order's, or, when the order is gone, the agent's own.
fn op_of(f: &Facts, agent: &AgentFact) -> String {
    if agent.boot_op.is_empty() {
        f.op_id().to_owned()
    } else {
        agent.boot_op.clone()
    }
}
