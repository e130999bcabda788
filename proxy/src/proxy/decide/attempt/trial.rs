//! After the boot: settings, gates and Commit inside the trial, or the way back.

use super::{finish, to_apply};
use crate::api::{NodeFailure, OsInstanceSpec, Outcome, Phase};
use crate::proxy::decide::gates::{Gates, gates};
use crate::proxy::decide::{Action, Decision, Draft, after, age, policy, settings_op};
use crate::proxy::facts::{AgentFact, NodeFact, Step};

/// Runs the target: on trial or already committed.
pub(super) fn on_target(
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
            op_id: settings_op(f.op_id(), "post", todo),
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

pub(super) fn begin_roll_back(mut d: Draft<'_>, reason: &str, message: &str, digest: &str) -> Decision {
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

pub(super) fn roll_back(mut d: Draft<'_>) -> Decision {
    if d.f.done.get(&Step::Rollback) != Some(&Ok(())) {
        d.push(Action::RollBack);
    }
    d.look();
    d.because("RollingBack")
}

/// Booted under this operation, and back on the previous system.
pub(super) fn fell_back(
    mut d: Draft<'_>,
    node: &NodeFact,
    agent: &AgentFact,
    digest: &str,
    at: Phase,
) -> Decision {
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
