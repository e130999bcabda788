//! A node, its agent, its orders and a clock, without I/O: actions change it, crashes forget what lives in RAM. Every act is
//! checked against the invariants when it happens.

use crate::api::{
    Desired, GrantOrder, NodePolicy, OnDrainTimeout, OsInstanceSpec, OsInstanceStatus, Phase, Source, Target,
    Time,
};
use crate::drain::run::Outcome as Drained;
use crate::proxy::decide::{Action, decide};
use crate::proxy::facts::{AgentFact, Facts, Fail, NodeFact, Preflight, Step, Work};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

pub(super) const NEW: &str = "2222";
pub(super) const OLD: &str = "1111";

/// How a boot of the new image goes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Fate {
    Good,
    NeverHealthy,
    FallsBackByItself,
}

/// How a story ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum End {
    Updated,
    FellBack,
    GivenBack,
    NotStaged,
}

pub(super) struct World {
    seed: u64,
    pub now: Timestamp,
    pub node: NodeFact,
    pub order: OsInstanceSpec,
    pub report: OsInstanceStatus,
    pub agent: AgentFact,
    pub agent_up: bool,
    pub fate: Fate,
    /// The live ledger.
    pub granted: bool,
    /// Pods that a drain must remove.
    pub pods: u32,
    /// They never go.
    pub stuck: bool,
    /// Staging fails with this.
    pub stage_fails: Option<Fail>,
    pub preflight_blocked: Vec<crate::drain::Blocked>,
    /// A human's cordon.
    pub foreign: bool,
    // What a crash forgets.
    drain: Work<Drained>,
    drain_since: Option<Timestamp>,
    stage: Work<Result<(), Fail>>,
    preflight: Work<Preflight>,
    unready: Option<Vec<String>>,
    done: BTreeMap<Step, Result<(), Fail>>,
    // Bookkeeping.
    pub boots_asked: u32,
    reboot_pending: bool,
    boots: u32,
    activated: Vec<String>,
    pub phases: Vec<String>,
    pub node_writes: u32,
    pub status_writes: u32,
    pub crash_per_mille: u64,
    pub fail_per_mille: u64,
}

fn add(t: Timestamp, s: i64) -> Timestamp {
    t.checked_add(SignedDuration::from_secs(s)).unwrap()
}

impl World {
    pub(super) fn plain() -> World {
        let now = Timestamp::from_second(1_800_000_000).unwrap();
        let mut w = World {
            seed: 1,
            now,
            node: NodeFact {
                name: "n".into(),
                uid: "node-uid".into(),
                ready: true,
                ready_since: Some(add(now, -1000)),
                boot_id: "boot-1".into(),
                machine_id: "m".into(),
                ..NodeFact::default()
            },
            order: OsInstanceSpec {
                osuid: Some("os-uid".into()),
                desired: Desired::Stage,
                opid: Some("op-stage".into()),
                target: Some(Target {
                    version: "2".into(),
                    digest: NEW.into(),
                    source: Some(Source {
                        url: Some("https://x/2".into()),
                        ..Source::default()
                    }),
                    ..Target::default()
                }),
                policy: Some(NodePolicy {
                    draintimeoutseconds: 600,
                    healthtimeoutseconds: 300,
                    readyseconds: 10,
                    ..NodePolicy::default()
                }),
                ..OsInstanceSpec::default()
            },
            report: OsInstanceStatus::default(),
            agent: AgentFact::default(),
            agent_up: true,
            fate: Fate::Good,
            granted: false,
            pods: 3,
            stuck: false,
            stage_fails: None,
            preflight_blocked: Vec::new(),
            foreign: false,
            drain: Work::Idle,
            drain_since: None,
            stage: Work::Idle,
            preflight: Work::Idle,
            unready: None,
            done: BTreeMap::new(),
            boots_asked: 0,
            reboot_pending: false,
            boots: 1,
            activated: Vec::new(),
            phases: Vec::new(),
            node_writes: 0,
            status_writes: 0,
            crash_per_mille: 0,
            fail_per_mille: 0,
        };
        w.runs(OLD, false);
        w
    }

    pub(super) fn random(seed: u64) -> World {
        let mut w = World::plain();
        w.seed = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
        w.crash_per_mille = [0, 50, 200][w.dice(3) as usize];
        w.fail_per_mille = [0, 50, 200][w.dice(3) as usize];
        w.fate = [
            Fate::Good,
            Fate::Good,
            Fate::NeverHealthy,
            Fate::FallsBackByItself,
        ][w.dice(4) as usize];
        w.stuck = w.dice(5) == 0;
        w.foreign = w.dice(4) == 0;
        w.node.unschedulable = w.foreign;
        if w.dice(8) == 0 {
            w.stage_fails = Some(Fail {
                reason: "DigestMismatch".into(),
                message: String::new(),
                passing: false,
            });
        }
        if w.dice(6) == 0
            && let Some(p) = &mut w.order.policy
        {
            p.ontimeout = OnDrainTimeout::Reboot;
        }
        w
    }

    fn dice(&mut self, sides: u64) -> u64 {
        self.seed ^= self.seed << 13;
        self.seed ^= self.seed >> 7;
        self.seed ^= self.seed << 17;
        self.seed % sides
    }

    fn runs(&mut self, digest: &str, trial: bool) {
        let other = if digest == OLD { NEW } else { OLD };
        let other_known = other == OLD || self.agent.report.runs(NEW) || self.agent.report.has_staged(NEW);
        // The previous system lies whole in the other slot, but is not staged: the agent boots only what was staged since.
        let r = &mut self.agent.report;
        r.boot_id = format!("boot-{}", self.boots);
        r.machine_id = "m".into();
        r.slot = if digest == OLD { "A" } else { "B" }.into();
        r.digest = digest.into();
        r.digests = vec![digest.into()];
        r.previous_digest = if other_known { other.into() } else { String::new() };
        r.staged_digest.clear();
        r.staged_digests.clear();
        r.healthy = !trial;
        self.agent.trial = trial;
        self.agent.armed = false;
    }

    pub(super) fn facts(&self) -> Facts {
        Facts {
            now: self.now,
            node: Some(self.node.clone()),
            order: Some(self.order.clone()),
            report: self.report.clone(),
            agent: self.agent_up.then(|| self.agent.clone()),
            silent_since: None,
            drain: self.drain.clone(),
            progress: Default::default(),
            stage: self.stage.clone(),
            preflight: self.preflight.clone(),
            unready: self.unready.clone(),
            done: self.done.clone(),
            forbidden: None,
        }
    }

    pub(super) fn crash(&mut self) {
        self.drain = Work::Idle;
        self.drain_since = None;
        self.stage = Work::Idle;
        self.preflight = Work::Idle;
        self.unready = None;
        self.done.clear();
    }

    fn write_status(&mut self, s: &OsInstanceStatus) {
        self.status_writes += 1;
        let p = format!("{:?}", s.phase);
        if self.phases.last() != Some(&p) {
            self.phases.push(p);
        }
        self.report = s.clone();
    }

    /// One action. `Err` = it failed, or the proxy died; the effect may have happened.
    pub(super) fn act(&mut self, a: &Action) -> Result<(), ()> {
        if self.dice(1000) < self.fail_per_mille {
            return Err(());
        }
        match a {
            Action::Report(s) => self.write_status(s),
            Action::Event { .. } => {}
            Action::Preflight => {
                self.preflight = Work::Ended(Preflight {
                    blocked: self.preflight_blocked.clone(),
                    rejected: None,
                });
            }
            Action::Forget(d) => self.agent.denied.retain(|x| x != d),
            Action::Stage { .. } => {
                // I2: staging touches neither the cordon nor the boot order.
                assert!(!self.agent.armed);
                if let Some(f) = &self.stage_fails {
                    self.stage = Work::Ended(Err(f.clone()));
                } else {
                    self.agent.report.staged_digest = NEW.into();
                    self.agent.report.staged_digests = vec![NEW.into()];
                    self.stage = Work::Ended(Ok(()));
                }
            }
            Action::Cordon { owner } => {
                if !self.granted {
                    self.done.insert(
                        Step::Cordon,
                        Err(Fail {
                            reason: "GrantGone".into(),
                            ..Fail::default()
                        }),
                    );
                    return Err(());
                }
                self.node_writes += 1;
                self.node.upgrading = true;
                if let Some(o) = owner {
                    assert!(!self.foreign, "a foreign cordon is never marked as ours");
                    assert!(
                        self.agent.report.has_staged(NEW),
                        "no cordon before the target is staged"
                    );
                    self.node.unschedulable = true;
                    self.node.cordoned_by = Some(o.clone());
                }
            }
            Action::Drain { since } => {
                assert!(
                    self.granted && self.node.unschedulable,
                    "pods go only under a grant and a cordon"
                );
                self.drain = Work::Running;
                self.drain_since = Some(*since);
            }
            Action::StopDrain => {
                self.drain = Work::Idle;
                self.drain_since = None;
            }
            Action::Configure { step, .. } => {
                self.done.insert(*step, Ok(()));
            }
            Action::Boot { waive_empty, report } => {
                // The interpreter's checks, as act::boot makes them.
                if !waive_empty && self.pods > 0 {
                    self.drain = Work::Idle;
                    return Err(());
                }
                if !self.granted {
                    self.done.insert(
                        Step::Boot,
                        Err(Fail {
                            reason: "GrantGone".into(),
                            ..Fail::default()
                        }),
                    );
                    return Ok(());
                }
                if self.order.desired != Desired::Boot {
                    return Err(());
                }
                assert!(
                    self.agent.report.has_staged(NEW),
                    "I2: the staged digest is the target"
                );
                assert!(*waive_empty || self.pods == 0, "I2: the node is empty");
                if *waive_empty {
                    let p = self.order.policy.as_ref().unwrap();
                    assert_eq!(
                        p.ontimeout,
                        OnDrainTimeout::Reboot,
                        "I2: only the policy waives it"
                    );
                }
                self.write_status(report);
                if self.dice(1000) < self.crash_per_mille {
                    self.crash();
                    return Err(());
                }
                let op = self.order.opid.clone().unwrap();
                if !self.activated.contains(&op) {
                    // I9: the agent answers a repeated id from its log.
                    self.activated.push(op.clone());
                    self.boots_asked += 1;
                    self.agent.armed = true;
                    self.agent.last_op = op;
                    self.reboot_pending = true;
                }
                self.done.insert(Step::Boot, Ok(()));
            }
            Action::LookAtPods => self.unready = Some(Vec::new()),
            Action::Commit => {
                assert!(self.agent.trial && self.agent.report.healthy);
                self.agent.trial = false;
                self.done.insert(Step::Commit, Ok(()));
            }
            Action::RollBack => {
                self.agent.fell_back_from = NEW.into();
                self.agent.denied = vec![NEW.into()];
                self.reboot_pending = true;
                self.fate = Fate::FallsBackByItself;
                self.done.insert(Step::Rollback, Ok(()));
            }
            Action::Cancel => {
                self.agent.armed = false;
                self.done.insert(Step::Cancel, Ok(()));
            }
            Action::Release { uncordon } => {
                self.node_writes += 1;
                if *uncordon {
                    assert!(
                        self.node.cordoned_by.is_some(),
                        "I3: only our own cordon is lifted"
                    );
                    assert!(!self.foreign, "I3: a foreign cordon stays");
                    self.node.unschedulable = false;
                }
                self.node.cordoned_by = None;
                self.node.upgrading = false;
                self.node.serial = false;
                self.node.configuring = false;
            }
            Action::LabelConfiguring(on) => self.node.configuring = *on,
            Action::StartOver => {
                self.stage = Work::Idle;
                self.preflight = Work::Idle;
            }
        }
        if self.dice(1000) < self.crash_per_mille {
            self.crash();
            return Err(());
        }
        Ok(())
    }

    /// Everything beside the proxy moves on by some seconds.
    pub(super) fn tick(&mut self, secs: i64) {
        self.now = add(self.now, secs);
        if self.drain == Work::Running {
            let since = self.drain_since.unwrap();
            if !self.stuck {
                self.pods = self.pods.saturating_sub(1);
            }
            let limit = self.order.policy.as_ref().unwrap().draintimeoutseconds;
            if self.pods == 0 {
                self.drain = Work::Ended(Drained::Drained);
            } else if self.now.as_second() - since.as_second() >= limit {
                self.drain = Work::Ended(Drained::TimedOut(Vec::new()));
            }
        }
        if self.reboot_pending {
            self.reboot_pending = false;
            self.boots += 1;
            self.crash();
            self.pods = 0;
            let op = self.agent.last_op.clone();
            if self.fate == Fate::FallsBackByItself {
                self.runs(OLD, false);
                self.agent.fell_back_from = NEW.into();
                self.agent.denied = vec![NEW.into()];
            } else {
                self.runs(NEW, true);
                self.agent.boot_op = op;
            }
            self.node.boot_id = self.agent.report.boot_id.clone();
            self.node.ready_since = Some(self.now);
        } else if self.agent.trial && self.fate == Fate::Good {
            self.agent.report.healthy = true;
        }
        // The operator.
        let op = self.order.opid.clone();
        match self.order.desired {
            Desired::Stage if self.report.phase == Phase::Staged && self.order.attempt == 0 => {
                self.order.desired = Desired::Boot;
                self.order.opid = Some("op-boot".into());
                self.order.attempt = 1;
                self.order.expectbootid = Some(self.agent.report.boot_id.clone());
                self.order.grant = Some(GrantOrder {
                    epoch: 1,
                    grantedat: Time(self.now),
                    notafter: Time(add(self.now, 1200)),
                });
                self.granted = true;
            }
            Desired::Boot | Desired::Abort
                if self.report.last_result.as_ref().map(|r| &r.op_id) == op.as_ref() =>
            {
                self.granted = false;
                self.order.grant = None;
                self.order.desired = Desired::Idle;
            }
            _ => {}
        }
    }

    /// One round of the proxy. Whether anything was done.
    pub(super) fn round(&mut self) -> bool {
        let d = decide(&self.facts());
        let acted = !d.actions.is_empty();
        self.unready = None;
        for a in &d.actions {
            if self.act(a).is_err() {
                break;
            }
        }
        acted
    }

    /// Until nothing happens any more; faults stop after a while.
    pub(super) fn run_to_the_end(&mut self) -> End {
        let (crash, fail) = (self.crash_per_mille, self.fail_per_mille);
        for i in 0..4000 {
            if i == 100 {
                (self.crash_per_mille, self.fail_per_mille) = (0, 0);
            }
            self.round();
            self.round();
            let step = if i % 7 == 0 { 30 } else { 3 };
            self.tick(step);
            if self.over() && i > if crash + fail == 0 { 0 } else { 100 } {
                break;
            }
        }
        // I8: quiet means no writes; I7: nothing of ours is left.
        let (s, n) = (self.status_writes, self.node_writes);
        for _ in 0..50 {
            self.round();
            self.tick(60);
        }
        assert_eq!(
            (s, n),
            (self.status_writes, self.node_writes),
            "I8: {:?}",
            self.report
        );
        assert_eq!(self.node.cordoned_by, None, "I7: {:?}", self.report);
        assert!(!self.node.upgrading);
        assert_eq!(
            self.node.unschedulable, self.foreign,
            "a foreign cordon survives, ours does not"
        );
        assert!(self.boots_asked <= 1, "at most one reboot per attempt");
        assert!(!self.agent.trial, "no trial is left open");
        match &self.report.last_result {
            None => End::NotStaged,
            Some(r) => match r.outcome {
                crate::api::Outcome::Done => {
                    assert!(self.agent.report.runs(NEW));
                    End::Updated
                }
                crate::api::Outcome::RolledBack => End::FellBack,
                _ => End::GivenBack,
            },
        }
    }

    fn over(&self) -> bool {
        self.order.desired == Desired::Idle || self.report.phase == Phase::Failed
    }
}
