//! Stage: the target is written into the inactive slot, without a grant and without touching anything else, after it is
//! known that the node could be drained: writing destroys the way back.

use super::{Action, Decision, Draft, after, age, rest};
use crate::api::{GrantKind, OsInstanceSpec, Phase, Time};
use crate::drain::Blocked;
use crate::proxy::facts::{Fail, Work};
use jiff::Timestamp;

/// A refused preflight is repeated after so many seconds.
const PREFLIGHT_RETRY_SECS: i64 = 600;
/// Shortest and longest wait after a failed download, in seconds.
const STAGE_RETRY_SECS: (i64, i64) = (60, 1800);

/// Carries out a Stage order.
pub(super) fn stage(mut d: Draft<'_>, order: &OsInstanceSpec) -> Decision {
    let f = d.f;
    // A cordon of ours has no business here: an earlier attempt's end was lost.
    if f.node
        .as_ref()
        .is_some_and(|n| n.cordoned_by.is_some() || n.upgrading)
        || f.agent.as_ref().is_some_and(|a| a.trial)
    {
        return rest::rest(d, "Release");
    }
    let (Some(agent), Some(target)) = (&f.agent, &order.target) else {
        d.look();
        return d.because("NoAgent");
    };
    let digest = target.digest.as_str();
    let new_target = d.report.failure.as_ref().is_some_and(|x| x.digest != digest);
    let new_order = d.report.observed_op_id.as_deref() != order.opid.as_deref();
    if new_target || (new_order && d.report.phase == Phase::Failed) {
        d.report.failure = None;
        d.report.next_retry = None;
    }
    if agent.report.runs(digest) {
        d.phase(Phase::Idle);
        d.report.failure = None;
        return d.because("UpToDate");
    }
    if agent.report.has_staged(digest) && !agent.denied.iter().any(|x| x == digest) {
        d.phase(Phase::Staged);
        d.report.drain = None;
        if d.report
            .failure
            .as_ref()
            .is_some_and(|x| x.reason == "DrainBlocked")
        {
            d.report.failure = None;
        }
        return d.because("Staged");
    }
    if let Some(x) = order.forgive.iter().find(|x| agent.denied.contains(x)) {
        d.push(Action::Forget(x.clone()));
        return d.because("Forgiven");
    }
    if order.denied.iter().any(|x| x == digest) || agent.denied.iter().any(|x| x == digest) {
        if d.report.phase != Phase::Failed || d.report.failure.is_none() {
            d.fail(
                &Fail {
                    reason: "RolledBack".into(),
                    message: "this image fell back on this node before; annotate the OSInstance with retry, or forgive the digest".into(),
                    passing: false,
                },
                digest,
            );
        }
        d.phase(Phase::Failed);
        return d.because("DigestDenied");
    }
    if d.report.phase == Phase::Failed && !new_order && d.report.failure.is_some() {
        return d.because("Failed");
    }
    if let Some(Time(t)) = d.report.next_retry
        && f.now < t
    {
        d.wake_at(t);
        return d.because("BackingOff");
    }
    match &f.preflight {
        Work::Idle => {
            d.push(Action::Preflight);
            return d.because("Preflight");
        }
        Work::Running => {
            d.look();
            return d.because("Preflight");
        }
        Work::Ended(p) => {
            let permanent: Vec<&Blocked> = p.blocked.iter().filter(|b| b.reason.is_permanent()).collect();
            let refused = match (&p.rejected, permanent.first()) {
                (Some(r), _) => Some(r.clone()),
                (None, Some(b)) => Some(Fail {
                    reason: "DrainBlocked".into(),
                    message: format!("the node could not be drained: pod {}: {}", b.pod, b.message),
                    passing: true,
                }),
                _ => None,
            };
            d.report.drain = drain_report(&p.blocked);
            if let Some(fail) = refused {
                d.fail(&fail, digest);
                d.phase(Phase::Idle);
                let retry = after(f.now, PREFLIGHT_RETRY_SECS);
                d.report.next_retry = Some(Time(retry));
                d.wake_at(retry);
                d.push(Action::StartOver);
                return d.because("PreflightRefused");
            }
        }
    }
    match &f.stage {
        Work::Running => {
            d.phase(Phase::Staging);
            d.because("Staging")
        }
        Work::Ended(Err(fail)) => failed(d, fail, digest),
        // The agent's own word for it is on its way; if it does not come, all over again.
        Work::Ended(Ok(())) => {
            if age(f.now, d.report.phase_since.as_ref()) > 120 {
                d.push(Action::StartOver);
            }
            d.look();
            d.because("Staging")
        }
        Work::Idle => {
            d.phase(Phase::Staging);
            d.report.next_retry = None;
            if target.kind != GrantKind::Rollback {
                d.report.forget_other_slot(digest);
            }
            let tries = d.report.failure.as_ref().map_or(0, |x| x.count);
            let op_id = format!("{}.stage.{tries}", order.opid.as_deref().unwrap_or("none"));
            let force = order.forgive.iter().any(|x| x == digest);
            d.report_here();
            d.push(Action::Stage { op_id, force });
            d.because("Staging")
        }
    }
}

fn failed(mut d: Draft<'_>, fail: &Fail, digest: &str) -> Decision {
    d.fail(fail, digest);
    d.push(Action::StartOver);
    if !fail.passing {
        d.phase(Phase::Failed);
        return d.because("StageFailed");
    }
    let count = d.report.failure.as_ref().map_or(1, |x| x.count);
    d.phase(Phase::Staging);
    let retry = stage_retry(d.f.now, count);
    d.report.next_retry = Some(Time(retry));
    d.wake_at(retry);
    d.because("StageRetry")
}

/// 1 minute, doubling to 30.
fn stage_retry(now: Timestamp, count: u32) -> Timestamp {
    let (least, most) = STAGE_RETRY_SECS;
    after(now, (least << count.saturating_sub(1).min(10)).min(most))
}

pub(super) fn drain_report(blocked: &[Blocked]) -> Option<crate::api::DrainReport> {
    (!blocked.is_empty()).then(|| crate::api::DrainReport {
        total: 0,
        remaining: 0,
        blocked_by: blocked.iter().take(10).map(Into::into).collect(),
    })
}
