//! A world in virtual time. Its server keeps resourceVersions and refuses writes with an old one; its nodes do what
//! os-proxy, os-agent and kubelet do together, as far as the operator can see it.

use std::collections::BTreeMap;

use jiff::{SignedDuration, Timestamp};
use kube::ResourceExt;
use serde_json::json;

use crate::api::*;
use crate::operator::decide::{Decision, InstanceWrite, confirm, decide};
use crate::operator::facts::{Fleet, NodeFacts, Settings};

pub(crate) const V1: &str = "KubeOS 1";
pub(crate) const V2: &str = "KubeOS 2";

pub(crate) fn digest(c: char) -> String {
    c.to_string().repeat(64)
}

/// What a node does with an update.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Plan {
    Good,
    /// Boots, fails its gates, falls back.
    FallsBack,
    /// The bytes are wrong.
    StageFails,
    /// Goes down and stays there.
    NeverReturns,
    /// A budget blocks its drain for ever.
    DrainBlocked,
}

#[derive(Clone, Debug)]
struct Sim {
    plan: Plan,
    /// Operation that is under way and its next step's time.
    busy: Option<(String, Timestamp)>,
    boots: u32,
}

pub(crate) struct World {
    pub(crate) fleet: Fleet,
    rv: u64,
    sims: BTreeMap<String, Sim>,
    pub(crate) stage_secs: i64,
    /// Seconds per phase of an update; five phases under a grant.
    pub(crate) step_secs: i64,
    /// Nodes differ in speed by up to this many per cent.
    pub(crate) spread: i64,
    /// Writes by kind.
    pub(crate) writes: BTreeMap<&'static str, usize>,
    pub(crate) events: Vec<String>,
    pub(crate) most_down: usize,
    pub(crate) boots: Vec<(String, String)>,
    /// Called after each accepted ledger write.
    pub(crate) check: fn(&World, &OS, &OsStatus),
}

pub(crate) fn start() -> Timestamp {
    "2026-08-03T10:00:00Z".parse().unwrap()
}

/// An upgrade of all workers to V2.
pub(crate) fn upgrade(maxunavailable: serde_json::Value) -> OsSpec {
    serde_json::from_value(json!({
        "osversion": V2, "opstype": "upgrade", "imagetype": "disk", "imageurl": "https://images.example/2/update.img",
        "checksum": digest('b'), "maxunavailable": maxunavailable, "evictpodforce": true,
    }))
    .unwrap()
}

impl World {
    pub(crate) fn new(nodes: usize) -> World {
        let mut w = World {
            fleet: Fleet {
                now: start(),
                nodes: BTreeMap::new(),
                oses: Vec::new(),
                instances: BTreeMap::new(),
                fresh: true,
                trouble: None,
                settings: Settings {
                    stage_burst: 10_000,
                    ..Settings::default()
                },
            },
            rv: 1,
            sims: BTreeMap::new(),
            stage_secs: 60,
            step_secs: 50,
            spread: 0,
            writes: BTreeMap::new(),
            events: Vec::new(),
            most_down: 0,
            boots: Vec::new(),
            check: |_, _, _| {},
        };
        for i in 0..nodes {
            w.add_node(&format!("n{i:04}"));
        }
        w
    }

    fn next_rv(&mut self) -> String {
        self.rv += 1;
        self.rv.to_string()
    }

    pub(crate) fn add_node(&mut self, name: &str) {
        let rv = self.next_rv();
        let facts = NodeFacts {
            uid: format!("uid-{name}-{rv}"),
            resource_version: rv.clone(),
            ready: true,
            os_image: V1.into(),
            boot_id: format!("boot-{rv}"),
            ..NodeFacts::default()
        };
        let mut instance = OSInstance::new(
            name,
            OsInstanceSpec {
                nodestatus: "idle".into(),
                ..Default::default()
            },
        );
        instance.metadata.namespace = Some(INSTANCE_NAMESPACE.into());
        instance.metadata.resource_version = Some(rv);
        instance.metadata.uid = Some(format!("i-{name}"));
        instance.status = Some(OsInstanceStatus {
            agent: Some(AgentReport {
                boot_id: facts.boot_id.clone(),
                slot: "A".into(),
                os_version: V1.into(),
                digest: digest('a'),
                healthy: true,
                ..AgentReport::default()
            }),
            ..OsInstanceStatus::default()
        });
        self.fleet.nodes.insert(name.into(), facts);
        self.fleet.instances.insert(name.into(), instance);
        self.sims.insert(
            name.into(),
            Sim {
                plan: Plan::Good,
                busy: None,
                boots: 0,
            },
        );
    }

    pub(crate) fn plan(&mut self, name: &str, plan: Plan) {
        self.sims.get_mut(name).unwrap().plan = plan;
    }

    pub(crate) fn add_os(&mut self, name: &str, spec: OsSpec) {
        let mut os = OS::new(name, spec);
        os.metadata.namespace = Some("default".into());
        os.metadata.uid = Some(format!("os-{name}"));
        os.metadata.generation = Some(1);
        os.metadata.resource_version = Some(self.next_rv());
        os.metadata.creation_timestamp = Some(Time(
            self.fleet.now + SignedDuration::from_secs(self.fleet.oses.len() as i64),
        ));
        self.fleet.oses.push(os);
    }

    pub(crate) fn os(&self, name: &str) -> &OS {
        self.fleet.oses.iter().find(|o| o.name_any() == name).unwrap()
    }

    pub(crate) fn edit(&mut self, name: &str, change: impl FnOnce(&mut OsSpec)) {
        let rv = self.next_rv();
        let os = self.fleet.oses.iter_mut().find(|o| o.name_any() == name).unwrap();
        change(&mut os.spec);
        os.metadata.generation = os.metadata.generation.map(|g| g + 1);
        os.metadata.resource_version = Some(rv);
    }

    pub(crate) fn annotate(&mut self, name: &str, key: &str, value: &str) {
        let rv = self.next_rv();
        let os = self.fleet.oses.iter_mut().find(|o| o.name_any() == name).unwrap();
        os.annotations_mut().insert(key.into(), value.into());
        os.metadata.resource_version = Some(rv);
    }

    /// kubectl delete os.
    pub(crate) fn delete_os(&mut self, name: &str) {
        let rv = self.next_rv();
        let now = self.fleet.now;
        let os = self.fleet.oses.iter_mut().find(|o| o.name_any() == name).unwrap();
        os.metadata.deletion_timestamp = Some(Time(now));
        os.metadata.resource_version = Some(rv);
        self.collect();
    }

    fn collect(&mut self) {
        self.fleet
            .oses
            .retain(|o| o.metadata.deletion_timestamp.is_none() || !o.finalizers().is_empty());
    }

    pub(crate) fn status(&self, name: &str) -> OsStatus {
        self.os(name).status.clone().unwrap_or_default()
    }

    pub(crate) fn cond(&self, os: &str, type_: &str) -> (bool, String, String) {
        let c = condition(&self.os(os).status.as_ref().unwrap().conditions, type_)
            .unwrap()
            .clone();
        (c.status == "True", c.reason, c.message)
    }

    pub(crate) fn node(&mut self, name: &str) -> &mut NodeFacts {
        let rv = self.next_rv();
        let node = self.fleet.nodes.get_mut(name).unwrap();
        node.resource_version = rv;
        node
    }

    pub(crate) fn report(&mut self, name: &str) -> &mut OsInstanceStatus {
        let rv = self.next_rv();
        let i = self.fleet.instances.get_mut(name).unwrap();
        i.metadata.resource_version = Some(rv);
        i.status.get_or_insert_default()
    }

    pub(crate) fn instance(&self, name: &str) -> &OSInstance {
        &self.fleet.instances[name]
    }

    pub(crate) fn instance_phase(&self, name: &str) -> Option<Phase> {
        self.fleet.instances.get(name)?.status.as_ref().map(|s| s.phase)
    }

    pub(crate) fn boots_of(&self, name: &str) -> u32 {
        self.sims[name].boots
    }

    pub(crate) fn versions(&self) -> BTreeMap<String, usize> {
        let mut all = BTreeMap::new();
        for n in self.fleet.nodes.values() {
            *all.entry(n.os_image.clone()).or_insert(0) += 1;
        }
        all
    }

    /// Carries out a decision as `act` does; `seen` says whose view it was made on.
    pub(crate) fn apply(&mut self, d: Decision) {
        for e in &d.events {
            self.events
                .push(format!("{} {}: {}", e.cause, e.reason, e.message));
        }
        for mut s in d.statuses {
            confirm(&mut s, |n| self.fleet.nodes.get(n).cloned());
            let rv = self.next_rv();
            let Some(i) = self
                .fleet
                .oses
                .iter()
                .position(|o| o.uid().as_deref() == Some(&s.os.uid))
            else {
                continue;
            };
            if self.fleet.oses[i].resource_version().as_deref() != Some(s.resource_version.as_str()) {
                *self.writes.entry("conflict").or_default() += 1;
                continue;
            }
            let os = &mut self.fleet.oses[i];
            let before = os.clone();
            os.status = Some(s.status.clone());
            os.metadata.resource_version = Some(rv);
            *self.writes.entry("status").or_default() += 1;
            (self.check)(self, &before, &s.status);
        }
        for f in d.finalizers {
            let rv = self.next_rv();
            if let Some(os) = self
                .fleet
                .oses
                .iter_mut()
                .find(|o| o.resource_version().as_deref() == Some(&f.resource_version))
            {
                os.metadata.finalizers = Some(f.finalizers);
                os.metadata.resource_version = Some(rv);
                *self.writes.entry("finalizer").or_default() += 1;
            }
        }
        self.collect();
        for write in d.instances {
            let rv = self.next_rv();
            *self.writes.entry("instance").or_default() += 1;
            match write {
                InstanceWrite::Create(mut i) => {
                    i.metadata.resource_version = Some(rv);
                    i.metadata.uid = Some(format!("i-{}", i.name_any()));
                    self.fleet.instances.entry(i.name_any()).or_insert(*i);
                }
                InstanceWrite::Update(i) => {
                    let Some(old) = self.fleet.instances.get_mut(&i.name_any()) else {
                        continue;
                    };
                    if old.resource_version() == i.resource_version() {
                        let status = old.status.take();
                        *old = OSInstance { status, ..*i };
                        old.metadata.resource_version = Some(rv);
                    }
                }
                InstanceWrite::Delete(i) => {
                    self.fleet.instances.remove(&i.name_any());
                }
            }
        }
        for o in d.orphans {
            if self
                .fleet
                .nodes
                .get(&o.node)
                .is_none_or(|n| n.resource_version != o.resource_version)
            {
                continue;
            }
            *self.writes.entry("orphan").or_default() += 1;
            let n = self.node(&o.node);
            n.unschedulable = false;
            n.annotations.remove(ANN_CORDONED_BY);
        }
    }

    /// Decides and applies until nothing is left to write now.
    pub(crate) fn settle(&mut self) -> Option<Timestamp> {
        for _ in 0..20 {
            let d = decide(&self.fleet);
            let (quiet, wake) = (d.is_quiet(), d.wake);
            self.apply(d);
            let down = self
                .fleet
                .nodes
                .values()
                .filter(|n| !n.ready || n.unschedulable)
                .count();
            self.most_down = self.most_down.max(down);
            if quiet {
                return wake;
            }
            self.nodes_look();
        }
        panic!("the operator does not come to rest: {:?}", decide(&self.fleet));
    }

    /// Time of one node for something that takes `base` seconds on average.
    pub(crate) fn secs(&self, name: &str, base: i64) -> i64 {
        let hash = name.bytes().fold(7u64, |h, b| {
            h.wrapping_mul(31).wrapping_add(u64::from(b)) % 100_003
        });
        let own = base + base * self.spread * ((hash % 201) as i64 - 100) / 10_000;
        // In tens, so that a thousand nodes share some hundred instants.
        if self.spread == 0 {
            own
        } else {
            (own + 5) / 10 * 10
        }
    }

    /// Proxies see their orders.
    fn nodes_look(&mut self) {
        let names: Vec<String> = self.fleet.instances.keys().cloned().collect();
        for name in names {
            self.look(&name);
        }
    }

    fn look(&mut self, name: &str) {
        let (now, stage, step) = (
            self.fleet.now,
            self.secs(name, self.stage_secs),
            self.secs(name, self.step_secs),
        );
        let Some(i) = self
            .fleet
            .instances
            .get(name)
            .filter(|_| self.fleet.nodes.contains_key(name))
        else {
            return;
        };
        let idle = |s: &OsInstanceStatus| match i.spec.desired {
            Desired::Abort => s.last_result.as_ref().map(|r| &r.op_id) == i.spec.opid.as_ref(),
            Desired::Idle => !matches!(s.phase, Phase::Staging | Phase::Staged),
            _ => s.observed_op_id == i.spec.opid,
        };
        if i.status.as_ref().is_none_or(idle) {
            return;
        }
        let i = i.clone();
        let status = i.status.clone().unwrap_or_default();
        if status.agent.is_none() || !self.sims.contains_key(name) {
            return;
        }
        let Some(opid) = i.spec.opid.clone() else { return };
        let observed = status.observed_op_id.as_deref() == Some(opid.as_str());
        let later = |secs| now + SignedDuration::from_secs(secs);
        match i.spec.desired {
            Desired::Stage if !observed => {
                self.sims.get_mut(name).unwrap().busy = Some((opid.clone(), later(stage)));
                let r = self.report(name);
                (r.phase, r.observed_op_id, r.failure) = (Phase::Staging, Some(opid), None);
            }
            Desired::Boot | Desired::Rollback | Desired::Config if !observed => {
                self.sims.get_mut(name).unwrap().busy = Some((opid.clone(), later(step)));
                let mark = cordon_owner(i.spec.osuid.as_deref().unwrap(), i.spec.attempt);
                let config = i.spec.desired == Desired::Config;
                if !config {
                    let n = self.node(name);
                    n.unschedulable = true;
                    n.annotations.insert(ANN_CORDONED_BY.into(), mark);
                }
                let r = self.report(name);
                r.phase = if config {
                    Phase::Configuring
                } else {
                    Phase::Granted
                };
                r.phase_since = Some(Time(now));
                r.observed_op_id = Some(opid);
            }
            Desired::Abort
                if !status.phase.past_boot()
                    && status.last_result.as_ref().is_none_or(|r| r.op_id != opid) =>
            {
                self.finish(name, &opid, Outcome::Aborted, "", Phase::Staged);
            }
            Desired::Idle if matches!(status.phase, Phase::Staging | Phase::Staged) => {
                self.sims.get_mut(name).unwrap().busy = None;
                self.report(name).phase = Phase::Idle;
            }
            _ => {}
        }
    }

    pub(crate) fn finish(&mut self, name: &str, opid: &str, outcome: Outcome, reason: &str, phase: Phase) {
        self.sims.get_mut(name).unwrap().busy = None;
        let n = self.node(name);
        if n.annotations.remove(ANN_CORDONED_BY).is_some() {
            n.unschedulable = false;
        }
        let now = self.fleet.now;
        let r = self.report(name);
        r.phase = phase;
        r.drain = None;
        r.observed_op_id = Some(opid.to_owned());
        r.last_result = Some(OpResult {
            op_id: opid.to_owned(),
            outcome,
            reason: reason.into(),
            message: String::new(),
            finished_at: Some(Time(now)),
        });
    }

    /// One step of one node whose time has come.
    fn step(&mut self, name: &str, opid: String) {
        let now = self.fleet.now;
        let plan = self.sims[name].plan;
        let spec = self.fleet.instances[name].spec.clone();
        let target = spec.target.clone().unwrap_or_default();
        let phase = self.report(name).phase;
        let mut next = Some(self.secs(name, self.step_secs));
        match phase {
            Phase::Staging => {
                next = None;
                let r = self.report(name);
                if plan == Plan::StageFails {
                    r.phase = Phase::Failed;
                    r.failure = Some(NodeFailure {
                        reason: "DigestMismatch".into(),
                        digest: target.digest,
                        count: 1,
                        ..Default::default()
                    });
                } else {
                    r.phase = Phase::Staged;
                    r.agent.as_mut().unwrap().staged_digest = target.digest;
                }
            }
            Phase::Granted => self.report(name).phase = Phase::Draining,
            Phase::Draining if plan == Plan::DrainBlocked => {
                if now >= spec.grant.as_ref().unwrap().notafter.0 {
                    self.finish(name, &opid, Outcome::Aborted, "DrainTimeout", Phase::Staged);
                    self.report(name).next_retry = Some(Time(now + SignedDuration::from_mins(10)));
                    return;
                }
                let blocked = BlockedPod {
                    pod: "shop/db-0".into(),
                    pdb: Some("shop/db".into()),
                    reason: "PDBAtLimit".into(),
                    ..Default::default()
                };
                self.report(name).drain = Some(DrainReport {
                    total: 1,
                    remaining: 1,
                    blocked_by: vec![blocked],
                });
            }
            Phase::Draining => {
                // Boot checks: the order, the grant and its time.
                let order = matches!(spec.desired, Desired::Boot | Desired::Rollback);
                let uid = spec.osuid.clone().unwrap_or_default();
                let os = self
                    .fleet
                    .oses
                    .iter()
                    .find(|o| o.uid().as_deref() == Some(&uid))
                    .and_then(|o| o.status.as_ref());
                let granted = os.is_some_and(|s| {
                    s.grants
                        .iter()
                        .any(|g| g.node == name && g.attempt == spec.attempt)
                });
                if !order || !granted || now >= spec.grant.as_ref().unwrap().notafter.0 {
                    self.finish(name, &opid, Outcome::Aborted, "", Phase::Staged);
                    return;
                }
                self.boots.push((name.to_owned(), opid.clone()));
                self.sims.get_mut(name).unwrap().boots += 1;
                self.node(name).ready = false;
                let r = self.report(name);
                r.phase = Phase::Rebooting;
                r.phase_since = Some(Time(now));
            }
            Phase::Rebooting if plan == Plan::NeverReturns => next = None,
            Phase::Rebooting => {
                let rv = self.next_rv();
                let back = plan == Plan::FallsBack;
                let n = self.node(name);
                n.ready = true;
                n.boot_id = format!("boot-{rv}");
                if !back {
                    n.os_image = target.version.clone();
                }
                let boot_id = n.boot_id.clone();
                let r = self.report(name);
                r.phase = if back {
                    Phase::RollingBack
                } else {
                    Phase::Verifying
                };
                let agent = r.agent.as_mut().unwrap();
                agent.boot_id = boot_id;
                if !back {
                    agent.previous_digest = std::mem::replace(&mut agent.digest, target.digest);
                    agent.previous_version = std::mem::replace(&mut agent.os_version, target.version);
                }
                // The previous system lies whole in the other slot, but what boots next has to be staged.
                agent.staged_digest.clear();
            }
            Phase::Verifying => self.report(name).phase = Phase::Committing,
            Phase::RollingBack => {
                self.finish(name, &opid, Outcome::RolledBack, "HealthFailed", Phase::Idle);
                return;
            }
            Phase::Committing => {
                self.finish(name, &opid, Outcome::Done, "", Phase::Idle);
                self.report(name).reboot_required = None;
                return;
            }
            Phase::Configuring => {
                self.report(name).sysconfigs = spec.sysconfigs;
                self.finish(name, &opid, Outcome::Done, "", Phase::Idle);
                return;
            }
            _ => next = None,
        }
        self.sims.get_mut(name).unwrap().busy = next.map(|s| (opid, now + SignedDuration::from_secs(s)));
    }

    /// Goes to the next instant at which something happens, at most to `until`. False if nothing will.
    pub(crate) fn advance(&mut self, until: Timestamp) -> bool {
        let wake = self.settle();
        let next = self
            .sims
            .values()
            .filter_map(|s| s.busy.as_ref().map(|b| b.1))
            .chain(wake)
            .min();
        let Some(next) = next.filter(|n| *n <= until) else {
            return false;
        };
        self.fleet.now = next.max(self.fleet.now);
        let due: Vec<(String, String)> = self
            .sims
            .iter()
            .filter_map(|(n, s)| {
                s.busy
                    .as_ref()
                    .filter(|b| b.1 <= next)
                    .map(|b| (n.clone(), b.0.clone()))
            })
            .collect();
        for (name, opid) in due {
            if !self.fleet.nodes.contains_key(&name) || !self.fleet.instances.contains_key(&name) {
                self.sims.get_mut(&name).unwrap().busy = None;
                continue;
            }
            self.step(&name, opid);
        }
        self.nodes_look();
        true
    }

    /// Lets the world run for that long.
    pub(crate) fn run_for(&mut self, secs: i64) {
        let until = self.fleet.now + SignedDuration::from_secs(secs);
        while self.advance(until) {}
        self.fleet.now = until;
        self.settle();
    }

    /// Runs until a condition holds; panics after a simulated week.
    pub(crate) fn run_until(&mut self, mut done: impl FnMut(&World) -> bool) {
        let until = self.fleet.now + SignedDuration::from_hours(7 * 24);
        loop {
            // Before the clock moves on: what is waited for may be over by the next event.
            self.settle();
            if done(self) {
                return;
            }
            assert!(
                self.advance(until),
                "it never happens: {:#?}",
                self.fleet.oses.first().map(|o| &o.status)
            );
            if done(self) {
                return;
            }
        }
    }

    /// No grant, no cordon of ours, nothing to write.
    pub(crate) fn assert_at_rest(&self) {
        for os in &self.fleet.oses {
            assert!(
                os.status.as_ref().is_none_or(|s| s.grants.is_empty()),
                "{:?}",
                os.status
            );
        }
        for (name, n) in &self.fleet.nodes {
            assert!(
                !n.annotations.contains_key(ANN_CORDONED_BY),
                "{name} is still cordoned by us"
            );
        }
        let d = decide(&self.fleet);
        assert!(d.is_quiet(), "{d:?}");
    }
}
