//! Boot and Rollback orders, from the grant to the uncordon; Abort gives the grant back while that is still possible.
//!
//! Where the attempt stands is computed afresh each time: has the node booted since the order, does it run the target, is
//! that committed, whose cordon is on it.

mod abort;
mod trial;

use super::{Action, Decision, Draft, after, age, policy, rest};
use crate::api::{Configs, NodeFailure, OsInstanceSpec, Outcome, Phase};
use crate::drain::run::Outcome as Drained;
use crate::proxy::facts::{AgentFact, Fail, NodeFact, Step, Work};
use abort::{RECORDON, fail, give_back, must_abort, start_abort};
use trial::{fell_back, on_target};

/// Before Boot, so many seconds must be left.
const BOOT_MARGIN_SECS: i64 = 30;

/// Carries out an order that may reboot the node.
pub(super) fn attempt(mut d: Draft<'_>, order: &OsInstanceSpec, abort: bool) -> Decision {
    let f = d.f;
    let op = f.op_id().to_owned();
    if op.is_empty() || f.report.last_result.as_ref().is_some_and(|r| r.op_id == op) {
        return rest::rest(d, "Done");
    }
    let Some(node) = &f.node else {
        // After a start the Node comes a moment later than the agent's word; the phase that then follows says both at once.
        d.report = f.report.clone();
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
