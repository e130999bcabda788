//! `OS.status`: the ledger, counts and conditions. It is written only when it differs, so a quiet fleet causes no writes.

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

/// Names listed in a message.
const NAMES: usize = 3;

/// A condition to be.
struct Word {
    status: bool,
    reason: String,
    message: String,
}

fn word(status: bool, reason: &str, message: impl Into<String>) -> Word {
    Word {
        status,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

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

fn names<'a>(all: impl Iterator<Item = &'a str>) -> (usize, String) {
    let all: Vec<&str> = all.collect();
    let mut text = all.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
    if all.len() > NAMES {
        text.push_str(&format!(" and {} more", all.len() - NAMES));
    }
    (all.len(), text)
}

fn accepted(case: &Case<'_>) -> Word {
    match &case.wish {
        Err(problems) => {
            let text: Vec<String> = problems.iter().map(ToString::to_string).collect();
            word(false, "InvalidSpec", text.join("; "))
        }
        Ok(_) if !case.conflicts.is_empty() => {
            let (n, list) = names(case.conflicts.iter().map(|(node, _)| node.as_str()));
            let (_, others) = {
                let mut o: Vec<&str> = case.conflicts.iter().map(|(_, os)| os.as_str()).collect();
                o.sort_unstable();
                o.dedup();
                names(o.into_iter())
            };
            word(
                false,
                "NodeConflict",
                format!(
                    "{n} selected nodes belong to another OS object ({others}): {list}. The others go on; make the selectors disjoint"
                ),
            )
        }
        Ok(wish) => word(true, "Valid", wish.warnings.join("; ")),
    }
}

fn of_kind<'a>(case: &'a Case<'_>, f: impl Fn(&Standing) -> bool + 'a) -> (usize, String) {
    names(case.members.iter().filter(|m| f(&m.standing)).map(|m| m.name))
}

fn complete(case: &Case<'_>, counts: &Counts, flying: usize) -> Word {
    if case.wish.is_err() {
        return word(false, "InvalidSpec", "the spec is not valid");
    }
    if case.deleting {
        return word(false, "Deleting", "the OS object is being deleted");
    }
    if counts.total == 0 {
        let text = if counts.excluded > 0 {
            "no selected node has an agent that reports and is free"
        } else {
            "no node is selected"
        };
        return word(false, "NoNodes", text);
    }
    if !case.conflicts.is_empty() {
        return word(
            false,
            "NodeConflict",
            "some selected nodes belong to another OS object",
        );
    }
    if counts.updated == counts.total && flying == 0 {
        let excluded = if counts.excluded > 0 {
            format!("; {} without an agent are left out", counts.excluded)
        } else {
            String::new()
        };
        return word(
            true,
            "AllUpdated",
            format!("{} nodes run the target{excluded}", counts.total),
        );
    }
    word(
        false,
        "NotAllUpdated",
        format!("{} of {} nodes run the target", counts.updated, counts.total),
    )
}

fn blocked_pods(case: &Case<'_>) -> (usize, String) {
    let all: Vec<String> = case
        .members
        .iter()
        .flat_map(|m| {
            m.report()
                .drain
                .iter()
                .flat_map(|d| &d.blocked_by)
                .map(|b| (m.name, b))
        })
        .map(|(node, b)| {
            let pdb = b.pdb.as_ref().map(|p| format!(" by {p}")).unwrap_or_default();
            format!("{} on {node} ({}{pdb})", b.pod, b.reason)
        })
        .collect();
    names(all.iter().map(String::as_str))
}

fn degraded(case: &Case<'_>, v: &Verdict) -> Word {
    if let Some(t) = &case.fleet.trouble {
        return word(true, &t.reason, t.message.clone());
    }
    if v.failed > 0 {
        let bad = |m: &&Member<'_>| {
            matches!(
                m.standing,
                Standing::Failed(_) | Standing::Denied | Standing::InFlight(_) | Standing::Releasing
            ) && (m.spec().failed.is_some()
                || m.report().failure.is_some()
                || matches!(m.standing, Standing::Failed(_)))
        };
        let (_, list) = names(case.members.iter().filter(bad).map(|m| m.name));
        return word(true, "NodeFailed", format!("{} failed: {list}", v.failed));
    }
    let (n, list) = blocked_pods(case);
    if n > 0 {
        return word(
            true,
            "DrainBlocked",
            format!("{n} pods cannot be evicted: {list}"),
        );
    }
    type Pick = fn(&Standing) -> bool;
    let checks: [(&str, Pick, &str); 4] = [
        (
            "SameVersionOtherDigest",
            |s| matches!(s, Standing::SameVersionOtherDigest),
            "have this version under another digest; annotate the OS with reinstall=<generation> to install all the same",
        ),
        (
            "WrongVersion",
            |s| matches!(s, Standing::WrongVersion(_)),
            "run this digest, whose version is another one; correct osversion",
        ),
        (
            "VersionDiffers",
            |s| matches!(s, Standing::VersionDiffers(_)),
            "run another version than osversion; opstype config changes no version",
        ),
        (
            "NoPreviousVersion",
            |s| matches!(s, Standing::NoPrevious(_)),
            "do not have this version in the other slot; upgrade to it instead",
        ),
    ];
    for (reason, pick, text) in checks {
        let (n, list) = of_kind(case, pick);
        if n > 0 {
            return word(true, reason, format!("{n} nodes {text}: {list}"));
        }
    }
    let stuck = |m: &&Member<'_>| {
        m.report().failure.as_ref().is_some_and(|f| !f.reason.is_empty()) && m.standing.wants_work()
    };
    let failing: Vec<String> = case
        .members
        .iter()
        .filter(stuck)
        .filter_map(|m| {
            m.report()
                .failure
                .as_ref()
                .map(|f| format!("{} ({}: {})", m.name, f.reason, f.message))
        })
        .collect();
    if !failing.is_empty() {
        let (n, list) = names(failing.iter().map(String::as_str));
        return word(
            true,
            "NodeRetrying",
            format!("{n} nodes do not get on for now: {list}"),
        );
    }
    let (n, list) = of_kind(case, |s| *s == Standing::NoAgent);
    if n > 0 {
        return word(
            false,
            "AsExpected",
            format!("{n} selected nodes without an agent are left out: {list}"),
        );
    }
    word(false, "AsExpected", "")
}

fn progressing(
    case: &Case<'_>,
    v: &Verdict,
    counts: &Counts,
    wave: &Position,
    flying: usize,
    complete: bool,
) -> Word {
    if case.wish.is_err() {
        return word(false, "InvalidSpec", "the spec is not valid");
    }
    if complete {
        return word(false, "AllUpdated", "");
    }
    let line = format!(
        "{} updating, {} staged, {} staging, {} of {} done",
        flying, counts.staged, counts.staging, counts.updated, counts.total
    );
    if flying > 0 {
        return word(true, "RolloutInProgress", line);
    }
    if let Some((reason, message)) = &v.blocked {
        return word(false, reason, message.clone());
    }
    if let Some(t) = wave.soaking {
        return word(
            false,
            "Soaking",
            format!(
                "wave {} is watched until {t}",
                wave.status.as_ref().map_or(0, |w| w.index)
            ),
        );
    }
    let waiting: Vec<(&str, String)> = case
        .members
        .iter()
        .filter(|m| matches!(m.standing, Standing::Todo | Standing::Staging | Standing::Ready))
        .map(|m| (m.name, obstacle(case, m)))
        .filter_map(|(n, o)| Some((n, o?)))
        .collect();
    let work = case.members.iter().filter(|m| m.standing.wants_work()).count();
    if work == 0 {
        return word(
            false,
            "NothingToDo",
            "no node can be brought to the target; see Degraded",
        );
    }
    if waiting.len() == work {
        let text: Vec<String> = waiting.iter().map(|(n, o)| format!("{n}: {o}")).collect();
        return word(false, "Gated", names(text.iter().map(String::as_str)).1);
    }
    word(true, "RolloutInProgress", line)
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
