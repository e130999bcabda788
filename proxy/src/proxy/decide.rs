//! What the proxy does next, and why (PURE): no clock, no server, no agent.
//!
//! Actions are carried out in order; the first that fails ends the round, and everything is looked at again.

mod attempt;
mod config;
mod gates;
mod rest;
mod stage;

use super::facts::{Facts, Fail, Step};
use crate::api::{
    Configs, Desired, NodeFailure, NodePolicy, OpResult, OsInstanceSpec, OsInstanceStatus, Outcome, Phase,
    Time,
};
use jiff::{SignedDuration, Timestamp};
use sha2::{Digest, Sha256};

/// Looked at again at least so often, in seconds, while something is awaited.
const LOOK_SECS: i64 = 15;
/// A silent agent is reported as absent after so many seconds; an agent that restarts is not.
const SILENT_SECS: i64 = 120;

/// A right is missing; said once, and not any more once it is there.
const FORBIDDEN: &str = "Forbidden";

/// One thing to do.
#[derive(Debug, Clone, PartialEq)]
pub enum Action {
    /// Write this status.
    Report(Box<OsInstanceStatus>),
    /// Tell the user once.
    Event {
        /// One word.
        reason: String,
        /// A sentence.
        message: String,
        /// Warning or Normal.
        warning: bool,
    },
    /// Filters, dry-run evictions, dry-run settings.
    Preflight,
    /// Lift the agent's denial of this digest.
    Forget(String),
    /// Begin to write the target into the inactive slot.
    Stage {
        /// Operation id of this try.
        op_id: String,
        /// Also when the agent saw it fail (a human allowed it).
        force: bool,
    },
    /// Confirm the grant by a live read, then cordon and mark in one patch.
    Cordon {
        /// Owner mark; none on a foreign cordon.
        owner: Option<String>,
    },
    /// Begin to drain; the time limit counts from `since`.
    Drain {
        /// Start of the time limit.
        since: Timestamp,
    },
    /// No further eviction.
    StopDrain,
    /// Apply settings.
    Configure {
        /// Which step this is.
        step: Step,
        /// Operation id.
        op_id: String,
        /// The settings.
        configs: Configs,
    },
    /// All boot checks, then the status, then Activate.
    Boot {
        /// Not even an empty node is asked for: the user's policy says reboot.
        waive_empty: bool,
        /// Written after the checks and before Activate.
        report: Box<OsInstanceStatus>,
    },
    /// Look at the DaemonSets' pods on this node.
    LookAtPods,
    /// What staging and preflight found is taken note of: the next try begins afresh.
    StartOver,
    /// Make the running slot the default.
    Commit,
    /// Boot the previous slot.
    RollBack,
    /// Disarm.
    Cancel,
    /// Remove our cordon, mark and labels, in one patch.
    Release {
        /// The cordon is lifted too: the mark is ours.
        uncordon: bool,
    },
    /// Set or remove the label `configuring`.
    LabelConfiguring(bool),
}

/// What to do and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Decision {
    /// In this order.
    pub actions: Vec<Action>,
    /// One word.
    pub reason: String,
    /// Look again then, at the latest; none = only events matter.
    pub wake: Option<Timestamp>,
}

impl Decision {
    /// Whether all it does is to tell that a right is missing.
    pub fn tells_of_a_missing_right(&self) -> bool {
        self.reason == FORBIDDEN
    }
}

/// A decision in the making: the status to come, and actions.
pub(crate) struct Draft<'a> {
    pub(crate) f: &'a Facts,
    pub(crate) report: OsInstanceStatus,
    actions: Vec<Action>,
    reason: String,
    wake: Option<Timestamp>,
}

pub(crate) fn after(t: Timestamp, secs: i64) -> Timestamp {
    t.checked_add(SignedDuration::from_secs(secs)).unwrap_or(t)
}

/// Seconds from `t` to `now`, never negative: clocks jump.
pub(crate) fn age(now: Timestamp, t: Option<&Time>) -> i64 {
    t.map_or(0, |t| (now.as_second() - t.0.as_second()).max(0))
}

impl<'a> Draft<'a> {
    fn new(f: &'a Facts) -> Draft<'a> {
        let mut report = f.report.clone();
        match &f.agent {
            Some(a) => {
                report.agent = Some(a.report.clone());
                report.reboot_required = a.reboot_required.as_ref().map(|why| crate::api::RebootRequired {
                    reason: why.clone(),
                    step: String::new(),
                });
            }
            None if f
                .silent_since
                .is_some_and(|s| f.now.as_second() - s.as_second() >= SILENT_SECS) =>
            {
                report.agent = None;
            }
            None => {}
        }
        if f.forbidden.is_none() && report.failure.as_ref().is_some_and(|x| x.reason == FORBIDDEN) {
            report.failure = None;
        }
        Draft {
            f,
            report,
            actions: Vec::new(),
            reason: String::new(),
            wake: None,
        }
    }

    /// Enters a phase for the current operation.
    pub(crate) fn phase(&mut self, phase: Phase) {
        let op = Some(self.f.op_id().to_owned()).filter(|o| !o.is_empty());
        if self.report.phase != phase || self.report.observed_op_id != op {
            self.report.phase = phase;
            self.report.phase_since = Some(Time(self.f.now));
        }
        self.report.observed_op_id = op;
    }

    pub(crate) fn push(&mut self, a: Action) {
        self.actions.push(a);
    }

    /// Writes the status at this place of the sequence.
    pub(crate) fn report_here(&mut self) {
        self.actions.push(Action::Report(Box::new(self.report.clone())));
    }

    pub(crate) fn wake_at(&mut self, t: Timestamp) {
        self.wake = Some(self.wake.map_or(t, |w| w.min(t)));
    }

    /// Looks again soon.
    pub(crate) fn look(&mut self) {
        self.wake_at(after(self.f.now, LOOK_SECS));
    }

    pub(crate) fn fail(&mut self, fail: &Fail, digest: &str) {
        let same = self
            .report
            .failure
            .as_ref()
            .filter(|o| o.reason == fail.reason && o.digest == digest);
        self.report.failure = Some(NodeFailure {
            reason: fail.reason.clone(),
            message: fail.message.clone(),
            count: same.map_or(0, |o| o.count) + 1,
            digest: digest.to_owned(),
        });
    }

    pub(crate) fn result(&mut self, outcome: Outcome, reason: &str, message: &str) {
        self.report.last_result = Some(OpResult {
            op_id: self.f.op_id().to_owned(),
            outcome,
            reason: reason.to_owned(),
            message: message.to_owned(),
            finished_at: Some(Time(self.f.now)),
        });
    }

    /// Ends the draft: a status that says something new is written, first unless a place was chosen.
    pub(crate) fn because(mut self, reason: &str) -> Decision {
        if self.f.forbidden.is_some() && self.report.failure.is_none() {
            // It stands until the right is there, whatever else goes on.
            self.report.failure = self.f.report.failure.clone().filter(|x| x.reason == FORBIDDEN);
        }
        let placed = self
            .actions
            .iter()
            .any(|a| matches!(a, Action::Report(_) | Action::Boot { .. }));
        if self.f.order.is_none() {
            // No OSInstance, nowhere to write.
            self.actions.retain(|a| !matches!(a, Action::Report(_)));
        } else if !placed && says_more(&self.f.report, &self.report) {
            self.actions
                .insert(0, Action::Report(Box::new(self.report.clone())));
        }
        if self.reason.is_empty() {
            self.reason = reason.to_owned();
        }
        Decision {
            actions: self.actions,
            reason: self.reason,
            wake: self.wake,
        }
    }
}

/// Whether the new status is worth a write: numbers that only count down are not.
pub fn says_more(old: &OsInstanceStatus, new: &OsInstanceStatus) -> bool {
    let essence = |s: &OsInstanceStatus| {
        let mut s = s.clone();
        if let Some(d) = &mut s.drain {
            (d.total, d.remaining) = (0, 0);
            for b in &mut d.blocked_by {
                (b.since, b.message) = (None, None);
            }
        }
        if s.drain.as_ref().is_some_and(|d| d.blocked_by.is_empty()) {
            s.drain = None;
        }
        if s.phase == Phase::Staging {
            // The slot is being overwritten, which was said when that began; what is in it then comes with the next phase.
            s.forget_other_slot("");
        }
        if let Some(a) = &mut s.agent {
            a.healthy = true;
            a.tries_left = None;
        }
        s
    };
    essence(old) != essence(new)
}

/// Operation id of a step that applies settings. It names the entries too: the agent refuses an id that comes back with other
/// entries, and an order whose settings were edited meanwhile asks for something else.
pub(crate) fn settings_op(op_id: &str, step: &str, configs: &Configs) -> String {
    let hash = Sha256::digest(serde_json::to_vec(configs).unwrap_or_default());
    let short: String = hash.iter().take(6).map(|b| format!("{b:02x}")).collect();
    format!("{op_id}.{step}.{short}")
}

/// Policy of an order, defaults where the operator sent none.
pub(crate) fn policy(order: &OsInstanceSpec) -> NodePolicy {
    order.policy.clone().unwrap_or_default()
}

/// Decides.
pub fn decide(f: &Facts) -> Decision {
    let d = Draft::new(f);
    let Some(order) = &f.order else {
        return rest::rest(d, "NoOrder");
    };
    if let Some(words) = &f.forbidden
        && f.report
            .failure
            .as_ref()
            .is_none_or(|x| x.reason != FORBIDDEN || x.message != *words)
    {
        return forbidden(d, words);
    }
    match order.desired {
        Desired::Idle => rest::rest(d, "Idle"),
        Desired::Stage => stage::stage(d, order),
        Desired::Boot | Desired::Rollback => attempt::attempt(d, order, false),
        Desired::Abort => attempt::attempt(d, order, true),
        Desired::Config => config::config(d, order),
    }
}

/// The Event comes first: the right that is missing may be that to report.
fn forbidden(mut d: Draft<'_>, words: &str) -> Decision {
    d.push(Action::Event {
        reason: FORBIDDEN.into(),
        message: words.to_owned(),
        warning: true,
    });
    d.report.failure = Some(NodeFailure {
        reason: FORBIDDEN.into(),
        message: words.to_owned(),
        count: 1,
        digest: d
            .f
            .order
            .as_ref()
            .and_then(|o| o.target.as_ref())
            .map(|t| t.digest.clone())
            .unwrap_or_default(),
    });
    d.report_here();
    d.because(FORBIDDEN)
}

#[cfg(test)]
mod tests;
