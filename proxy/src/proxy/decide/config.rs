//! Config: settings in place, with a grant, without cordon and reboot.

use super::{Action, Decision, Draft, rest};
use crate::api::{OsInstanceSpec, Outcome, Phase};
use crate::proxy::facts::Step;

/// Carries out a Config order.
pub(super) fn config(mut d: Draft<'_>, order: &OsInstanceSpec) -> Decision {
    let f = d.f;
    let op = f.op_id().to_owned();
    if op.is_empty() || f.report.last_result.as_ref().is_some_and(|r| r.op_id == op) {
        return rest::rest(d, "Done");
    }
    let (Some(_), Some(node)) = (&f.agent, &f.node) else {
        d.look();
        return d.because("NoAgent");
    };
    let begun =
        f.report.phase == Phase::Configuring && f.report.observed_op_id.as_deref() == Some(op.as_str());
    let expired = order.grant.as_ref().is_none_or(|g| f.now >= g.notafter.0);
    let configs = order.sysconfigs.clone().unwrap_or_default();
    let end = |mut d: Draft<'_>, outcome, reason: &str, message: &str| {
        d.phase(if outcome == Outcome::Failed {
            Phase::Failed
        } else {
            Phase::Idle
        });
        d.result(outcome, reason, message);
        if node.configuring {
            d.push(Action::LabelConfiguring(false));
        }
        d.report_here();
        d.because(reason)
    };
    match f.done.get(&Step::Sysconfigs) {
        Some(Ok(())) => {
            d.report.sysconfigs = Some(configs);
            d.report.failure = None;
            end(d, Outcome::Done, "Configured", "")
        }
        Some(Err(x)) if !x.passing => {
            d.fail(
                x,
                &order
                    .target
                    .as_ref()
                    .map(|t| t.digest.clone())
                    .unwrap_or_default(),
            );
            end(d, Outcome::Failed, &x.reason, &x.message)
        }
        _ if expired && !begun => end(d, Outcome::Aborted, "GrantExpired", "the grant's time was over"),
        _ => {
            d.phase(Phase::Configuring);
            if !node.configuring {
                d.push(Action::LabelConfiguring(true));
            }
            if super::says_more(&f.report, &d.report) {
                d.report_here();
            }
            d.push(Action::Configure {
                step: Step::Sysconfigs,
                op_id: super::settings_op(&op, "config", &configs),
                configs,
            });
            d.look();
            d.because("Configuring")
        }
    }
}
