//! The ledger of grants: which stay in force, which end, and what their end is worth.

use jiff::{SignedDuration, Timestamp};
use uuid::Uuid;

use crate::api::{
    FailureRecord, Grant, GrantKind, LostNode, OSInstance, OpResult, Outcome, Phase, Target, Time,
    counts_as_failure,
};

use super::{Case, Decision, EventNote};

/// Failures kept in status.
const FAILURES: usize = 20;

/// What is in force after looking at every entry.
#[derive(Clone, Debug, Default)]
pub(crate) struct Ledger {
    pub(crate) grants: Vec<Grant>,
    pub(crate) lost: Vec<LostNode>,
    pub(crate) failures: Vec<FailureRecord>,
    /// Nodes whose time to reboot ran out: they count as failed while they are away.
    pub(crate) overdue: Vec<String>,
    /// Entries of spec.forgive that are honoured in this pass.
    forgiving: Vec<String>,
}

impl Ledger {
    /// The grant of a node.
    pub(crate) fn of(&self, node: &str) -> Option<&Grant> {
        self.grants.iter().find(|g| g.node == node)
    }

    /// Nobody is under way.
    pub(crate) fn is_empty(&self) -> bool {
        self.grants.is_empty()
    }

    /// This digest is forgiven in this pass.
    pub(crate) fn forgiven_now(&self, key: &str) -> bool {
        self.forgiving.iter().any(|f| forgives(f, key))
    }

    fn record(&mut self, record: FailureRecord) -> bool {
        let same = |f: &FailureRecord| {
            f.node == record.node && f.attempt == record.attempt && f.digest == record.digest
        };
        if self.failures.iter().any(same) {
            return false;
        }
        self.failures.push(record);
        let surplus = self.failures.len().saturating_sub(FAILURES);
        self.failures.drain(..surplus);
        true
    }
}

/// Whether an entry of spec.forgive (or annotation retry) means this digest.
pub(crate) fn forgives(entry: &str, key: &str) -> bool {
    let entry = entry.trim();
    entry == "any" || entry.trim_start_matches("sha256:").eq_ignore_ascii_case(key)
}

/// Operation id of a grant; the same grant always has the same one.
pub(crate) fn op_id(os_uid: &str, grant: &Grant) -> String {
    let text = format!(
        "{os_uid}/{}/{}/{:?}/{}",
        grant.node_uid,
        grant.attempt,
        grant.kind,
        grant.granted_at.0.as_second()
    );
    Uuid::new_v5(&Uuid::NAMESPACE_OID, text.as_bytes()).to_string()
}

/// What failures on a target are counted under. A reboot of the same system denies nothing.
pub(crate) fn failure_key(target: Option<&Target>) -> String {
    match target {
        Some(t) if t.kind == GrantKind::Reboot => format!("reboot:{}", t.digest),
        Some(t) => t.digest.clone(),
        None => String::new(),
    }
}

/// The result of the order that the instance carries, once there is one.
pub(crate) fn result_of(instance: &OSInstance) -> Option<&OpResult> {
    let opid = instance.spec.opid.as_deref()?;
    let result = instance.status.as_ref()?.last_result.as_ref()?;
    (result.op_id == opid).then_some(result)
}

/// The word under which a result counts against the budget, if it does.
pub(crate) fn counted(result: &OpResult) -> Option<&str> {
    match result.outcome {
        Outcome::Done => None,
        Outcome::RolledBack if result.reason.is_empty() => Some("RolledBack"),
        Outcome::Aborted | Outcome::RolledBack | Outcome::Failed => {
            counts_as_failure(&result.reason).then_some(result.reason.as_str())
        }
    }
}

enum Fate {
    Keep,
    Drop,
    Failed {
        reason: String,
        message: String,
        keep: bool,
    },
    Lost,
}

/// Goes through the observed ledger.
pub(crate) fn settle(case: &Case<'_>, out: &mut Decision) -> Ledger {
    let now = case.fleet.now;
    let mut ledger = Ledger {
        failures: case.old.failures.clone(),
        ..Ledger::default()
    };
    if case.wish.is_ok() {
        ledger.forgiving = case
            .os
            .spec
            .forgive
            .iter()
            .filter(|f| !case.old.forgiven.contains(f))
            .cloned()
            .collect();
    }
    for grant in &case.old.grants {
        let instance = case.fleet.instances.get(&grant.node);
        match fate(case, grant, instance, out) {
            Fate::Keep => ledger.grants.push(grant.clone()),
            Fate::Drop => {}
            Fate::Lost => ledger.lost.push(LostNode {
                node: grant.node.clone(),
                node_uid: grant.node_uid.clone(),
                attempt: grant.attempt,
                since: Time(now),
            }),
            Fate::Failed {
                reason,
                message,
                keep,
            } => {
                if keep {
                    ledger.grants.push(grant.clone());
                    ledger.overdue.push(grant.node.clone());
                }
                let digest = failure_key(instance.and_then(|i| i.spec.target.as_ref()));
                let (node, attempt) = (grant.node.clone(), grant.attempt);
                let event = note(case, &node, &reason, &message, attempt);
                if ledger.record(FailureRecord {
                    node,
                    digest,
                    attempt,
                    reason,
                    message,
                    at: Time(now),
                }) {
                    out.events.push(event);
                }
            }
        }
    }
    for lost in &case.old.lost {
        let node = case.fleet.nodes.get(&lost.node);
        let gone = case.fleet.fresh && node.is_none_or(|n| n.uid != lost.node_uid);
        let instance = case.fleet.instances.get(&lost.node);
        let answered = instance.is_some_and(|i| i.spec.attempt == lost.attempt && result_of(i).is_some());
        if !gone && !answered {
            ledger.lost.push(lost.clone());
        }
    }
    ledger
}

/// The Event of a failure.
pub(crate) fn note(case: &Case<'_>, node: &str, reason: &str, message: &str, attempt: u32) -> EventNote {
    EventNote {
        os: case.id.clone(),
        warning: true,
        reason: "NodeFailed".into(),
        message: format!(
            "{node}: {reason}{}{message}",
            if message.is_empty() { "" } else { ": " }
        ),
        cause: format!("failed/{node}/{attempt}/{reason}"),
    }
}

fn fate(case: &Case<'_>, grant: &Grant, instance: Option<&OSInstance>, out: &mut Decision) -> Fate {
    let (fleet, now) = (case.fleet, case.fleet.now);
    let node = fleet.nodes.get(&grant.node);
    if fleet.fresh && node.is_none_or(|n| n.uid != grant.node_uid) {
        return Fate::Drop;
    }
    let opid = op_id(&case.id.uid, grant);
    // An order of an earlier grant says nothing about this one.
    let instance = instance.filter(|i| i.spec.opid.as_deref() == Some(opid.as_str()));
    if let Some(result) = instance.and_then(result_of) {
        return match counted(result) {
            Some(word) => Fate::Failed {
                reason: word.to_owned(),
                message: result.message.clone(),
                keep: false,
            },
            None => Fate::Drop,
        };
    }
    let report = instance.and_then(|i| i.status.as_ref());
    let seen = report.filter(|r| r.observed_op_id.as_deref() == Some(opid.as_str()));
    let phase = seen.map_or(Phase::Idle, |r| r.phase);
    if phase.past_boot() {
        let since = seen
            .and_then(|r| r.phase_since.as_ref())
            .map_or(grant.granted_at.0, |t| t.0);
        let limit = instance
            .and_then(|i| i.spec.policy.as_ref())
            .map_or(3600, |p| p.reboottimeoutseconds);
        let due = add(since, limit);
        if now < due {
            out.wake_at(now, due);
            return Fate::Keep;
        }
        if node.is_some_and(super::super::facts::NodeFacts::ignored) {
            return Fate::Lost;
        }
        let message = format!(
            "in phase {phase:?} since {since}, longer than {limit} s; its place stays taken until it is back, deleted, or annotated ignore-unavailable"
        );
        return Fate::Failed {
            reason: "RebootTimeout".into(),
            message,
            keep: true,
        };
    }
    let answer_by = add(grant.not_after.0, fleet.settings.unanswered_secs);
    if fleet.fresh && now >= answer_by {
        return Fate::Drop;
    }
    out.wake_at(now, answer_by);
    Fate::Keep
}

/// `t` + `secs`, without overflow.
pub(crate) fn add(t: Timestamp, secs: i64) -> Timestamp {
    t.checked_add(SignedDuration::from_secs(secs))
        .unwrap_or(Timestamp::MAX)
}
