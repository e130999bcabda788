//! `OS.status`: the ledger, counts and conditions. It is written only when it differs, so a quiet fleet causes no writes.

mod conditions;

use kube::ResourceExt;

use crate::api::condition_type::{ACCEPTED, COMPLETE, DEGRADED, HALTED, PAUSED, PROGRESSING};
use crate::api::{
    Counts, FailureRecord, Grant, OsStatus, Phase, Time, condition, counts_as_failure, is_true, set_condition,
};

use super::budget::{Verdict, obstacle, rest_until};
use super::ledger::{Ledger, note};
use super::standing::{Member, Standing};
use super::waves::Position;
use super::{Case, Decision, EventNote, NodeView, OsView, StatusWrite};
use conditions::{Word, accepted, complete, degraded, progressing, word};

/// Composes the status and notes it as a write if it differs from the observed one.
pub(crate) fn write(
    case: &Case<'_>,
    v: &Verdict,
    ledger: Ledger,
    granted: Vec<Grant>,
    wave: Position,
    out: &mut Decision,
) {
    let now = case.fleet.now;
    let flying = ledger.grants.len() + granted.len();
    let counts = counts(case, v, flying, granted.len());
    let mut status = OsStatus {
        observed_generation: Some(case.generation),
        target_digest: case.old.target_digest.clone(),
        state: None,
        progress: Some(format!("{}/{}", counts.updated, counts.total)),
        counts: Some(counts),
        wave: wave.status.clone(),
        denylist: v.denylist.clone(),
        resume: v.resume,
        forgiven: case.old.forgiven.clone(),
        failures: failures(case, &ledger, out),
        lost: ledger.lost,
        grants: ledger.grants,
        conditions: case.old.conditions.clone(),
    };
    if let Ok(wish) = &case.wish {
        status.target_digest = Some(wish.key.clone());
        status.forgiven = case.os.spec.forgive.clone();
    }
    let nodes: Vec<String> = granted.iter().map(|g| g.node.clone()).collect();
    status.grants.extend(granted);
    let flying = status.grants.len();

    let accepted = accepted(case);
    let complete = complete(case, &counts, flying);
    let degraded = degraded(case, v);
    let progressing = progressing(case, v, &counts, &wave, flying, complete.status);
    let halted = match &v.halted {
        Some(m) => word(true, "FailureBudgetExceeded", m.clone()),
        None => word(
            false,
            "WithinBudget",
            format!("{} failed, the roll-out halts at {}", v.failed, v.budget),
        ),
    };
    let paused = match case.wish.as_ref().is_ok_and(|w| w.paused) {
        true => word(true, "PausedByUser", "spec.paused is true"),
        false => word(false, "NotPaused", ""),
    };
    status.state = Some(state(
        case,
        &accepted,
        &complete,
        &halted,
        &paused,
        &progressing,
        flying,
    ));
    events(case, &accepted, &complete, &degraded, &halted, out);
    for (type_, w) in [
        (ACCEPTED, accepted),
        (PROGRESSING, progressing),
        (COMPLETE, complete),
        (DEGRADED, degraded),
        (HALTED, halted),
        (PAUSED, paused),
    ] {
        set_condition(
            &mut status.conditions,
            type_,
            w.status,
            &w.reason,
            &w.message,
            case.generation,
            now,
        );
    }
    out.views.push(view(case, v));
    if let Some(t) = wave.soaking {
        out.wake_at(now, t);
    }
    for m in &case.members {
        if let Some(t) = rest_until(m) {
            out.wake_at(now, t);
        }
    }
    if status != case.old {
        out.statuses.push(StatusWrite {
            os: case.id.clone(),
            resource_version: case.os.resource_version().unwrap_or_default(),
            status,
            granted: nodes,
        });
    }
}

fn counts(case: &Case<'_>, v: &Verdict, flying: usize, fresh: usize) -> Counts {
    let of = |f: &dyn Fn(&Member<'_>) -> bool| case.members.iter().filter(|m| f(m)).count() as u32;
    Counts {
        total: v.total as u32,
        updated: of(&|m| m.standing.is_updated()),
        staging: of(&|m| m.standing == Standing::Staging),
        staged: of(&|m| m.standing == Standing::Ready).saturating_sub(fresh as u32),
        updating: flying as u32,
        failed: v.failed as u32,
        excluded: of(&|m| !m.counts()) + case.conflicts.len() as u32,
        unavailable: (v.down + fresh) as u32,
    }
}

/// Failures of staging have no grant; they are recorded and told here, once.
fn failures(case: &Case<'_>, ledger: &Ledger, out: &mut Decision) -> Vec<FailureRecord> {
    let mut all = ledger.failures.clone();
    for m in &case.members {
        let Some(f) = m
            .report()
            .failure
            .as_ref()
            .filter(|f| counts_as_failure(&f.reason))
        else {
            continue;
        };
        if m.report().phase != Phase::Failed || m.spec().grant.is_some() {
            continue;
        }
        let attempt = m.spec().attempt;
        if !all
            .iter()
            .any(|o| o.node == m.name && o.digest == f.digest && o.attempt == attempt)
        {
            let (reason, message) = (f.reason.clone(), f.message.clone());
            let (node, digest) = (m.name.to_owned(), f.digest.clone());
            let mut event = note(case, &node, &reason, &message, attempt);
            event.cause.push_str(&format!("/{digest}"));
            out.events.push(event);
            all.push(FailureRecord {
                node,
                digest,
                attempt,
                reason,
                message,
                at: Time(case.fleet.now),
            });
        }
    }
    let surplus = all.len().saturating_sub(20);
    all.drain(..surplus);
    all
}

fn state(
    case: &Case<'_>,
    accepted: &Word,
    complete: &Word,
    halted: &Word,
    paused: &Word,
    progressing: &Word,
    flying: usize,
) -> String {
    let word = if case.deleting {
        "Deleting"
    } else if accepted.reason == "InvalidSpec" {
        "InvalidSpec"
    } else if halted.status {
        "Halted"
    } else if complete.status {
        "Complete"
    } else if paused.status {
        "Paused"
    } else if flying > 0 {
        "Updating"
    } else {
        return progressing.reason.clone();
    };
    word.to_owned()
}

/// An Event where a condition turns to something people should know, once per generation.
fn events(
    case: &Case<'_>,
    accepted: &Word,
    complete: &Word,
    degraded: &Word,
    halted: &Word,
    out: &mut Decision,
) {
    let turned = |type_: &str, w: &Word| {
        let old = condition(&case.old.conditions, type_);
        old.is_none_or(|o| o.reason != w.reason || o.observed_generation != Some(case.generation))
    };
    let mut say = |type_: &str, w: &Word, warning: bool| {
        out.events.push(EventNote {
            os: case.id.clone(),
            warning,
            reason: w.reason.clone(),
            message: w.message.clone(),
            cause: format!("{type_}/{}/{}", w.reason, case.generation),
        });
    };
    if !accepted.status && turned(ACCEPTED, accepted) {
        say(ACCEPTED, accepted, true);
    }
    if halted.status && !is_true(&case.old.conditions, HALTED) {
        say(HALTED, halted, true);
    }
    // Failed nodes have an Event each.
    if degraded.status
        && degraded.reason != "NodeFailed"
        && degraded.reason != "NodeRetrying"
        && turned(DEGRADED, degraded)
    {
        say(DEGRADED, degraded, true);
    }
    if complete.status && turned(COMPLETE, complete) {
        say(COMPLETE, complete, false);
    }
}

fn view(case: &Case<'_>, v: &Verdict) -> OsView {
    let mut nodes: Vec<NodeView> = case
        .members
        .iter()
        .map(|m| NodeView {
            node: m.name.to_owned(),
            standing: m.standing.word().to_owned(),
            why: why(case, m),
        })
        .collect();
    nodes.extend(case.conflicts.iter().map(|(node, os)| NodeView {
        node: node.clone(),
        standing: "Conflict".into(),
        why: format!("belongs to OS {os}"),
    }));
    OsView {
        os: case.id.clone(),
        limit: v.limit,
        unavailable: v.down,
        total: v.total,
        blocked: v.blocked.clone(),
        nodes,
    }
}

fn why(case: &Case<'_>, m: &Member<'_>) -> String {
    let own = match &m.standing {
        Standing::RebootWanted(s)
        | Standing::WrongVersion(s)
        | Standing::VersionDiffers(s)
        | Standing::NoPrevious(s)
        | Standing::Failed(s) => s.clone(),
        Standing::InFlight(g) => format!(
            "attempt {}, {:?}, phase {:?}",
            g.attempt,
            m.spec().desired,
            m.report().phase
        ),
        Standing::Todo | Standing::Staging | Standing::Ready => obstacle(case, m).unwrap_or_default(),
        _ => String::new(),
    };
    let failure = m.report().failure.as_ref().filter(|f| !f.reason.is_empty());
    match failure {
        Some(f) if own.is_empty() => format!("{}: {}", f.reason, f.message),
        _ => own,
    }
}
