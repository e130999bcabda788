//! What each condition says, and why.

use super::super::Case;
use super::super::budget::{Verdict, obstacle};
use super::super::standing::{Member, Standing};
use super::super::waves::Position;
use crate::api::Counts;

/// Names listed in a message.
const NAMES: usize = 3;

/// A condition to be.
pub(super) struct Word {
    pub(super) status: bool,
    pub(super) reason: String,
    pub(super) message: String,
}

pub(super) fn word(status: bool, reason: &str, message: impl Into<String>) -> Word {
    Word {
        status,
        reason: reason.to_owned(),
        message: message.into(),
    }
}

pub(super) fn names<'a>(all: impl Iterator<Item = &'a str>) -> (usize, String) {
    let all: Vec<&str> = all.collect();
    let mut text = all.iter().take(NAMES).copied().collect::<Vec<_>>().join(", ");
    if all.len() > NAMES {
        text.push_str(&format!(" and {} more", all.len() - NAMES));
    }
    (all.len(), text)
}

pub(super) fn accepted(case: &Case<'_>) -> Word {
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

pub(super) fn of_kind<'a>(case: &'a Case<'_>, f: impl Fn(&Standing) -> bool + 'a) -> (usize, String) {
    names(case.members.iter().filter(|m| f(&m.standing)).map(|m| m.name))
}

pub(super) fn complete(case: &Case<'_>, counts: &Counts, flying: usize) -> Word {
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

pub(super) fn blocked_pods(case: &Case<'_>) -> (usize, String) {
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

pub(super) fn degraded(case: &Case<'_>, v: &Verdict) -> Word {
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

pub(super) fn progressing(
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
