//! Giving a grant back before the node was told to boot: why, and how.

use super::release;
use crate::api::{NodeFailure, OnDrainTimeout, OsInstanceSpec, Outcome, Phase, Time};
use crate::drain::run::Outcome as Drained;
use crate::proxy::decide::{Action, Decision, Draft, after, policy, stage};
use crate::proxy::facts::{AgentFact, Fail, NodeFact, Step, Work};
use jiff::Timestamp;

/// A cordon that a human lifts is put back so often.
pub(super) const RECORDON: u32 = 3;
/// A drain that failed is tried again after 10 minutes, doubling to 2 hours.
const DRAIN_RETRY_SECS: (i64, i64) = (600, 7200);
/// Whatever else went wrong, after a minute, doubling to 30.
const OTHER_RETRY_SECS: (i64, i64) = (60, 1800);

pub(super) fn fail(reason: &str, message: &str) -> Option<Fail> {
    Some(Fail {
        reason: reason.into(),
        message: message.into(),
        passing: true,
    })
}

/// Why the grant has to be given back now, before the node was told to boot.
pub(super) fn must_abort(
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

/// The grant is given back. What is decided is written first: after a restart the attempt must not go on.
pub(super) fn start_abort(mut d: Draft<'_>, node: &NodeFact, order: &OsInstanceSpec, why: &Fail) -> Decision {
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
    d.report.drain = stage::drain_report(&blocked);
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

pub(super) fn give_back(mut d: Draft<'_>, node: &NodeFact, order: &OsInstanceSpec) -> Decision {
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
pub(super) fn retry_at(now: Timestamp, failure: &NodeFailure) -> Option<Timestamp> {
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
