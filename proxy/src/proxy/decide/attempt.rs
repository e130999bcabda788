//! Boot and Rollback orders, from the grant to the uncordon; Abort gives the grant back while that is still possible.
//!
//! Where the attempt stands is computed afresh each time: has the node booted since the order, does it run the target, is
//! that committed, whose cordon is on it.

use super::gates::{Gates, gates};
use super::{Action, Decision, Draft, after, age, policy, rest};
use crate::api::{Configs, NodeFailure, OnDrainTimeout, OsInstanceSpec, Outcome, Phase, Time};
use crate::drain::run::Outcome as Drained;
use crate::proxy::facts::{AgentFact, Fail, NodeFact, Step, Work};
use jiff::Timestamp;

/// Before Boot, so many seconds must be left.
const BOOT_MARGIN_SECS: i64 = 30;
/// A cordon that a human lifts is put back so often.
const RECORDON: u32 = 3;
/// A drain that failed is tried again after 10 minutes, doubling to 2 hours.
const DRAIN_RETRY_SECS: (i64, i64) = (600, 7200);
/// Whatever else went wrong, after a minute, doubling to 30.
const OTHER_RETRY_SECS: (i64, i64) = (60, 1800);

/// Carries out an order that may reboot the node.
pub(super) fn attempt(mut d: Draft<'_>, order: &OsInstanceSpec, abort: bool) -> Decision {
    let f = d.f;
    let op = f.op_id().to_owned();
    if op.is_empty() || f.report.last_result.as_ref().is_some_and(|r| r.op_id == op) {
        return rest::rest(d, "Done");
    }
    let Some(node) = &f.node else {
        d.look();
        return d.because("NoNode");
    };
    let acting = f.report.observed_op_id.as_deref() == Some(op.as_str());
    let at = if acting { f.report.phase } else { Phase::Granted };
    if at == Phase::Aborting {
        return give_back(d, node, order);
    }
    let Some(agent) = &f.agent else {
        // Giving back needs no agent; booting does.
        if !at.past_boot() {
            if let Some(fail) = must_abort(&d, node, None, order, abort) {
                return start_abort(d, node, order, &fail);
            }
            d.look();
        }
        d.look();
        return d.because("AgentUnavailable");
    };
    let digest = order
        .target
        .as_ref()
        .map(|t| t.digest.clone())
        .unwrap_or_default();
    let expected = order.expectbootid.as_deref().unwrap_or_default();
    if expected.is_empty() || digest.is_empty() {
        let why = Fail {
            reason: "OrderIncomplete".into(),
            message: "the order names no boot id or no digest".into(),
            passing: true,
        };
        return start_abort(d, node, order, &why);
    }
    let booted = agent.report.boot_id != expected;
    if booted {
        if agent.report.runs(&digest) {
            return on_target(d, node, agent, order, at);
        }
        if agent.knows_boot(&op) || (at.past_boot() && agent.fell_back_from == digest) {
            return fell_back(d, node, agent, &digest, at);
        }
        let why = Fail {
            reason: "NodeRebooted".into(),
            message: "the node rebooted by itself before it was told to; nothing was changed".into(),
            passing: true,
        };
        return start_abort(d, node, order, &why);
    }
    // What the agent says may be half a second old: what it answered counts as well.
    let told = f.done.get(&Step::Boot) == Some(&Ok(()));
    if at == Phase::Rebooting && (agent.armed || told || agent.knows_boot(&op)) {
        return awaiting_reboot(d, node, agent, order);
    }
    if let Some(fail) = must_abort(&d, node, Some(agent), order, abort) {
        return start_abort(d, node, order, &fail);
    }
    before_boot(d, node, order, at)
}

fn fail(reason: &str, message: &str) -> Option<Fail> {
    Some(Fail {
        reason: reason.into(),
        message: message.into(),
        passing: true,
    })
}

/// Why the grant has to be given back now, before the node was told to boot.
fn must_abort(
    d: &Draft<'_>,
    node: &NodeFact,
    agent: Option<&AgentFact>,
    order: &OsInstanceSpec,
    abort: bool,
) -> Option<Fail> {
    let f = d.f;
    if abort {
        return fail("Aborted", "the operator asked for the grant back");
    }
    let Some(grant) = &order.grant else {
        return fail("GrantGone", "the order holds no grant");
    };
    if f.now >= grant.notafter.0 {
        return fail(
            "GrantExpired",
            "the grant's time was over before the node was told to boot",
        );
    }
    if node.hold {
        return fail("Held", "the Node is annotated with hold");
    }
    let p = policy(order);
    if let Some(g) = p
        .annotationgates
        .iter()
        .find(|g| node.gates.get(*g).is_some_and(|v| v == "blocked"))
    {
        return fail("Gated", &format!("gate {g} says blocked"));
    }
    for (step, result) in &f.done {
        if let Err(x) = result
            && !x.passing
            && matches!(step, Step::Cordon | Step::Upgradeconfigs | Step::Boot)
        {
            return Some(x.clone());
        }
    }
    if let Some(a) = agent {
        let digest = order
            .target
            .as_ref()
            .map(|t| t.digest.as_str())
            .unwrap_or_default();
        if a.denied.iter().any(|x| x == digest) || order.denied.iter().any(|x| x == digest) {
            return fail("DigestDenied", "this image fell back on this node before");
        }
        if !a.report.has_staged(digest) {
            return fail(
                "NotStaged",
                "the inactive slot does not hold the target (any more)",
            );
        }
    }
    match &f.drain {
        Work::Ended(Drained::Refused(b)) => fail(
            "DrainBlocked",
            &b.first()
                .map_or_else(String::new, |b| format!("pod {}: {}", b.pod, b.message)),
        ),
        Work::Ended(Drained::TimedOut(b)) if p.ontimeout != OnDrainTimeout::Reboot => fail(
            "DrainTimeout",
            &b.first().map_or_else(
                || "the node did not become empty in time".to_owned(),
                |b| format!("not empty in time; pod {}: {:?}: {}", b.pod, b.reason, b.message),
            ),
        ),
        Work::Ended(Drained::VolumesAttached(b)) => fail(
            "VolumesAttached",
            &b.first().map_or_else(String::new, |b| b.message.clone()),
        ),
        Work::Ended(Drained::Fault(m)) => fail("InternalError", m),
        _ if d
            .report
            .failure
            .as_ref()
            .is_some_and(|x| x.reason == "Uncordoned" && x.count > RECORDON) =>
        {
            fail(
                "Uncordoned",
                "somebody keeps uncordoning the node while it is drained",
            )
        }
        _ => None,
    }
}

/// Cordon, drain, settings, boot.
fn before_boot(mut d: Draft<'_>, node: &NodeFact, order: &OsInstanceSpec, at: Phase) -> Decision {
    let f = d.f;
    let owner = f.owner();
    let mine = node.cordoned_by.as_deref() == Some(owner.as_str());
    let fresh = !matches!(at, Phase::Draining | Phase::Drained | Phase::Rebooting);
    let foreign = node.unschedulable && node.cordoned_by.is_none();
    if fresh {
        d.report.pre_cordoned = foreign;
        d.report.drain = None;
        d.report.next_retry = None;
        if d.report
            .failure
            .as_ref()
            .is_some_and(|x| x.reason == "Uncordoned")
        {
            d.report.failure = None;
        }
        d.phase(Phase::Draining);
        if !mine || !node.unschedulable || !node.upgrading {
            d.push(Action::Cordon {
                owner: (!foreign).then_some(owner),
            });
        }
        d.report_here();
        d.push(Action::Drain { since: f.now });
        return d.because("Granted");
    }
    if !node.unschedulable {
        // Lifted by a human: put back, so many times.
        d.report.pre_cordoned = false;
        let count = d
            .report
            .failure
            .as_ref()
            .filter(|x| x.reason == "Uncordoned")
            .map_or(0, |x| x.count)
            + 1;
        d.report.failure = Some(NodeFailure {
            reason: "Uncordoned".into(),
            message: "the node was uncordoned while it was drained; cordoned again".into(),
            count,
            digest: String::new(),
        });
        if count <= RECORDON {
            d.push(Action::Cordon { owner: Some(owner) });
        }
        d.report_here();
        d.look();
        return d.because("Recordon");
    }
    let since = d.report.phase_since.as_ref().map_or(f.now, |t| t.0);
    match &f.drain {
        Work::Idle | Work::Ended(Drained::Stopped) => {
            d.push(Action::Drain { since });
            return d.because("Draining");
        }
        Work::Running => {
            let p = &f.progress;
            d.report.drain = Some(crate::api::DrainReport {
                total: u32::try_from(p.total).unwrap_or(u32::MAX),
                remaining: u32::try_from(p.remaining).unwrap_or(u32::MAX),
                blocked_by: p.blocked.iter().take(10).map(Into::into).collect(),
            });
            let new = p.blocked.iter().find(|b| {
                let old = f.report.drain.iter().flat_map(|r| &r.blocked_by);
                !old.map(|o| &o.pod).any(|o| *o == b.pod)
            });
            if let Some(b) = new {
                d.push(Action::Event {
                    reason: "DrainBlocked".into(),
                    message: format!("pod {}: {:?}: {}", b.pod, b.reason, b.message),
                    warning: true,
                });
            }
            if let Some(g) = &order.grant {
                d.wake_at(g.notafter.0);
            }
            return d.because("Draining");
        }
        Work::Ended(_) => {}
    }
    if let Some(todo) = to_apply(order.upgradeconfigs.as_ref(), d.report.upgradeconfigs.as_ref())
        && f.done.get(&Step::Upgradeconfigs) != Some(&Ok(()))
    {
        d.push(Action::Configure {
            step: Step::Upgradeconfigs,
            op_id: super::settings_op(f.op_id(), "pre", todo),
            configs: todo.clone(),
        });
        d.look();
        return d.because("Upgradeconfigs");
    }
    let enough = order
        .grant
        .as_ref()
        .is_some_and(|g| after(f.now, BOOT_MARGIN_SECS) < g.notafter.0);
    if !enough {
        let why = fail("GrantExpired", "too little of the grant's time is left to boot").unwrap_or_default();
        return start_abort(d, node, order, &why);
    }
    d.phase(Phase::Rebooting);
    d.report.drain = None;
    d.report.failure = None;
    let report = Box::new(d.report.clone());
    let waive_empty = matches!(f.drain, Work::Ended(Drained::TimedOut(_)));
    d.push(Action::Boot { waive_empty, report });
    d.look();
    d.because("Boot")
}

/// Settings that are ordered and not recorded as applied.
fn to_apply<'a>(ordered: Option<&'a Configs>, applied: Option<&Configs>) -> Option<&'a Configs> {
    let o = ordered.filter(|o| !o.configs.is_empty())?;
    (applied.and_then(|a| a.version.as_ref()) != o.version.as_ref() || o.version.is_none()).then_some(o)
}

/// Told to boot, and still in the old boot.
fn awaiting_reboot(mut d: Draft<'_>, node: &NodeFact, agent: &AgentFact, order: &OsInstanceSpec) -> Decision {
    let f = d.f;
    let waited = age(f.now, d.report.phase_since.as_ref());
    let limit = policy(order).reboottimeoutseconds.max(1);
    if waited < limit {
        d.wake_at(after(f.now, limit - waited));
        return d.because("Rebooting");
    }
    if agent.armed && f.done.get(&Step::Cancel) != Some(&Ok(())) {
        // Disarmed first: a node that is schedulable again must not reboot at some later time into a trial.
        d.push(Action::Cancel);
        d.look();
        return d.because("RebootTimeout");
    }
    let why = "the agent was told to boot and the node never went down";
    let digest = order
        .target
        .as_ref()
        .map(|t| t.digest.clone())
        .unwrap_or_default();
    finish(d, node, Outcome::Failed, "RebootTimeout", why, &digest)
}

/// Runs the target: on trial or already committed.
fn on_target(
    mut d: Draft<'_>,
    node: &NodeFact,
    agent: &AgentFact,
    order: &OsInstanceSpec,
    at: Phase,
) -> Decision {
    let f = d.f;
    let p = policy(order);
    let digest = order
        .target
        .as_ref()
        .map(|t| t.digest.clone())
        .unwrap_or_default();
    let sys = to_apply(order.sysconfigs.as_ref(), d.report.sysconfigs.as_ref());
    if !agent.trial {
        // Committed. kubelet must say so too, else the uncordon would come too early.
        if !node.ready || node.boot_id != agent.report.boot_id {
            d.look();
            return d.because("Uncordoning");
        }
        if sys.is_some() {
            d.report.sysconfigs.clone_from(&order.sysconfigs);
        }
        if to_apply(order.upgradeconfigs.as_ref(), d.report.upgradeconfigs.as_ref()).is_some() {
            d.report.upgradeconfigs.clone_from(&order.upgradeconfigs);
        }
        return finish(d, node, Outcome::Done, "Updated", "", &digest);
    }
    if at == Phase::RollingBack {
        return roll_back(d);
    }
    if f.done.get(&Step::Commit) == Some(&Ok(())) {
        d.look();
        return d.because("Committing");
    }
    if !matches!(at, Phase::Verifying | Phase::Committing) {
        d.phase(Phase::Verifying);
        d.look();
        return d.because("Verifying");
    }
    if let Some(Err(x)) = f.done.get(&Step::Sysconfigs)
        && !x.passing
    {
        return begin_roll_back(d, &x.reason, &x.message, &digest);
    }
    let waited = age(f.now, d.report.phase_since.as_ref());
    let verdict = gates(f, &p);
    if waited >= p.healthtimeoutseconds.max(1) && verdict != Gates::Pass {
        let why = match verdict {
            Gates::Wait { why, .. } => why,
            _ => "the gates were not all looked at in time".into(),
        };
        return begin_roll_back(d, "HealthFailed", &why, &digest);
    }
    d.wake_at(after(f.now, (p.healthtimeoutseconds - waited).max(1)));
    if let Some(todo) = sys
        && f.done.get(&Step::Sysconfigs) != Some(&Ok(()))
    {
        d.push(Action::Configure {
            step: Step::Sysconfigs,
            op_id: super::settings_op(f.op_id(), "post", todo),
            configs: todo.clone(),
        });
        d.look();
        return d.because("Sysconfigs");
    }
    match verdict {
        Gates::Pass => {
            d.push(Action::Commit);
            d.look();
            d.because("Committing")
        }
        Gates::Look => {
            d.push(Action::LookAtPods);
            d.look();
            d.because("Verifying")
        }
        Gates::Wait { until, .. } => {
            d.wake_at(until);
            d.because("Verifying")
        }
    }
}

fn begin_roll_back(mut d: Draft<'_>, reason: &str, message: &str, digest: &str) -> Decision {
    d.phase(Phase::RollingBack);
    d.report.failure = Some(NodeFailure {
        reason: reason.to_owned(),
        message: message.to_owned(),
        count: 1,
        digest: digest.to_owned(),
    });
    d.report_here();
    roll_back(d)
}

fn roll_back(mut d: Draft<'_>) -> Decision {
    if d.f.done.get(&Step::Rollback) != Some(&Ok(())) {
        d.push(Action::RollBack);
    }
    d.look();
    d.because("RollingBack")
}

/// Booted under this operation, and back on the previous system.
fn fell_back(mut d: Draft<'_>, node: &NodeFact, agent: &AgentFact, digest: &str, at: Phase) -> Decision {
    if !node.ready || node.boot_id != agent.report.boot_id {
        d.look();
        return d.because("Uncordoning");
    }
    let (reason, message) = match &d.report.failure {
        Some(x) if at == Phase::RollingBack => (x.reason.clone(), x.message.clone()),
        _ => ("RolledBack".to_owned(), agent.fall_back_cause.clone()),
    };
    finish(d, node, Outcome::RolledBack, &reason, &message, digest)
}

/// The attempt is over: uncordon what is ours, then say how it went. In this order: a crash in between repeats the first.
fn finish(
    mut d: Draft<'_>,
    node: &NodeFact,
    outcome: Outcome,
    reason: &str,
    message: &str,
    digest: &str,
) -> Decision {
    release(&mut d, node);
    match outcome {
        Outcome::Done => {
            d.phase(Phase::Idle);
            d.report.failure = None;
            d.report.next_retry = None;
        }
        _ => {
            d.phase(Phase::Failed);
            d.report.failure = Some(NodeFailure {
                reason: reason.to_owned(),
                message: message.to_owned(),
                count: 1,
                digest: digest.to_owned(),
            });
        }
    }
    d.report.drain = None;
    d.report.pre_cordoned = false;
    d.result(outcome, reason, message);
    d.report_here();
    if outcome != Outcome::Done {
        d.push(Action::Event {
            reason: reason.to_owned(),
            message: message.to_owned(),
            warning: true,
        });
    }
    d.because(reason)
}

fn release(d: &mut Draft<'_>, node: &NodeFact) {
    let mine = node.cordoned_by.as_deref() == Some(d.f.owner().as_str());
    if mine || node.upgrading || node.serial {
        d.push(Action::Release { uncordon: mine });
    }
}

/// The grant is given back. What is decided is written first: after a restart the attempt must not go on.
fn start_abort(mut d: Draft<'_>, node: &NodeFact, order: &OsInstanceSpec, why: &Fail) -> Decision {
    if !matches!(d.f.drain, Work::Idle) {
        d.push(Action::StopDrain);
    }
    let digest = order
        .target
        .as_ref()
        .map(|t| t.digest.clone())
        .unwrap_or_default();
    let blocked = match &d.f.drain {
        Work::Ended(Drained::Refused(b) | Drained::TimedOut(b) | Drained::VolumesAttached(b)) => b.clone(),
        _ => d.f.progress.blocked.clone(),
    };
    d.report.drain = super::stage::drain_report(&blocked);
    d.fail(why, &digest);
    let touched = node.cordoned_by.is_some() || node.upgrading || node.serial;
    d.phase(Phase::Aborting);
    if touched {
        d.report_here();
        return d.because(&why.reason);
    }
    // Nothing of ours is on the node: one write says it all.
    give_back(d, node, order)
}

fn give_back(mut d: Draft<'_>, node: &NodeFact, order: &OsInstanceSpec) -> Decision {
    let f = d.f;
    if !matches!(f.drain, Work::Idle) && d.report.phase == Phase::Aborting && d.actions.is_empty() {
        d.push(Action::StopDrain);
    }
    release(&mut d, node);
    let failure = d.report.failure.clone().unwrap_or_default();
    let digest = order
        .target
        .as_ref()
        .map(|t| t.digest.clone())
        .unwrap_or_default();
    // What the boot checks found missing is staged again, whatever was last heard of the slot.
    let staged =
        failure.reason != "NotStaged" && f.agent.as_ref().is_some_and(|a| a.report.has_staged(&digest));
    let counts = crate::api::counts_as_failure(&failure.reason);
    d.phase(match (counts, staged) {
        (true, _) => Phase::Failed,
        (_, true) => Phase::Staged,
        _ => Phase::Idle,
    });
    d.report.pre_cordoned = false;
    d.report.next_retry = retry_at(f.now, &failure).map(Time);
    d.result(Outcome::Aborted, &failure.reason, &failure.message);
    d.report_here();
    d.push(Action::Event {
        reason: failure.reason.clone(),
        message: failure.message,
        warning: true,
    });
    d.because(&failure.reason)
}

/// When a grant that was given back may come again: what failed by itself backs off, what was somebody's wish does not.
fn retry_at(now: Timestamp, failure: &NodeFailure) -> Option<Timestamp> {
    if crate::api::given_back_on_request(&failure.reason) {
        return None;
    }
    let drain = failure.reason.starts_with("Drain") || failure.reason == "VolumesAttached";
    let (least, most) = if drain { DRAIN_RETRY_SECS } else { OTHER_RETRY_SECS };
    Some(after(
        now,
        (least << failure.count.saturating_sub(1).min(10)).min(most),
    ))
}
