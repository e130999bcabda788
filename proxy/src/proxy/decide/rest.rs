//! Nothing is ordered, or the order is done: what is ours is cleaned up, an open trial is brought to its end.

use super::{Action, Decision, Draft, gates};
use crate::api::Phase;
use crate::proxy::facts::{Step, Work};

/// Cleans up and otherwise waits for events.
pub(super) fn rest(mut d: Draft<'_>, why: &str) -> Decision {
    let f = d.f;
    if f.agent.as_ref().is_some_and(|a| a.trial) {
        // The order went away inside a trial: the node finishes it by its own gates, it does not hang.
        if f.done.get(&Step::Commit) == Some(&Ok(())) {
            d.look();
            return d.because("CommittingOrphan");
        }
        let policy = f.order.as_ref().map(super::policy).unwrap_or_default();
        return match gates::gates(f, &policy) {
            gates::Gates::Pass => {
                d.push(Action::Commit);
                d.because("CommittingOrphan")
            }
            gates::Gates::Look => {
                d.push(Action::LookAtPods);
                d.because("Verifying")
            }
            gates::Gates::Wait { until, .. } => {
                d.wake_at(until);
                d.because("Verifying")
            }
        };
    }
    if !matches!(f.drain, Work::Idle) {
        d.push(Action::StopDrain);
    }
    if let Some(n) = &f.node
        && (n.cordoned_by.is_some() || n.upgrading || n.configuring || n.serial)
    {
        let uncordon = n.cordoned_by.is_some();
        d.push(Action::Release { uncordon });
        return d.because("Release");
    }
    let done = f
        .report
        .last_result
        .as_ref()
        .is_some_and(|r| r.op_id == f.op_id() && !r.op_id.is_empty());
    if !done {
        // A failure stays readable until another target is ordered.
        if d.report.phase != Phase::Failed {
            d.phase(Phase::Idle);
            d.report.drain = None;
        }
    }
    if let Some(o) = &f.order
        && let Some(a) = &f.agent
    {
        for digest in o.forgive.iter().filter(|g| a.denied.contains(g)) {
            d.push(Action::Forget(digest.clone()));
        }
    }
    d.because(why)
}
