//! How many nodes may be down, whether anything may start at all, and which nodes are next.

use std::collections::BTreeMap;

use jiff::Timestamp;

use crate::api::condition;
use crate::api::{
    ANN_RESUME, ANN_RETRY, DeniedDigest, Grant, GrantKind, ResumeStatus, Time, condition_type, is_true,
};
use crate::operator::check::Wish;
use crate::window::WindowState;

use super::ledger::{Ledger, add, counted, failure_key, forgives, result_of};
use super::standing::{Member, Standing, failed_on};
use super::waves::Position;
use super::{Case, Decision};
use kube::ResourceExt;

/// A node that gave its grant back for a reason of its own gets no other one for so many seconds, whatever its proxy says.
const GAVE_UP_SECS: i64 = 60;

/// What may start, and why not.
#[derive(Clone, Debug, Default)]
pub(crate) struct Verdict {
    pub(crate) limit: usize,
    pub(crate) down: usize,
    pub(crate) total: usize,
    pub(crate) failed: usize,
    pub(crate) budget: usize,
    pub(crate) halted: Option<String>,
    /// Reason and message; nothing is granted.
    pub(crate) blocked: Option<(String, String)>,
    /// Nothing is staged either.
    pub(crate) no_staging: bool,
    /// Nodes that have not been told to boot give their grant back, for this reason.
    pub(crate) abort: Option<&'static str>,
    pub(crate) denylist: Vec<DeniedDigest>,
    pub(crate) resume: Option<ResumeStatus>,
    pub(crate) closes: Option<Timestamp>,
}

/// Works out the verdict for one OS object.
pub(crate) fn verdict(case: &Case<'_>, ledger: &Ledger, out: &mut Decision) -> Verdict {
    let total = case.members.iter().filter(|m| m.counts()).count();
    let mut v = Verdict {
        total,
        down: case.members.iter().filter(|m| m.down()).count(),
        denylist: case
            .old
            .denylist
            .iter()
            .filter(|d| !ledger.forgiven_now(&d.digest))
            .cloned()
            .collect(),
        resume: case.old.resume,
        ..Verdict::default()
    };
    let Ok(wish) = &case.wish else {
        v.abort = Some("the spec is not valid");
        v.blocked = Some(("InvalidSpec".into(), "the spec is not valid".into()));
        v.no_staging = true;
        return v;
    };
    v.limit = wish.limit.of(total);
    if wish.serial {
        v.limit = v.limit.min(1);
    }
    v.failed = case
        .members
        .iter()
        .filter(|m| failed(case, wish, ledger, m))
        .count();
    v.budget = wish.budget_of(total);
    halt(case, wish, ledger, &mut v);
    let window = wish.schedule.at(case.fleet.now);
    v.closes = window.closes();
    match window {
        WindowState::Open { closes: Some(t) } | WindowState::Shut { opens: Some(t) } => {
            out.wake_at(case.fleet.now, t)
        }
        _ => {}
    }
    v.abort = if case.deleting {
        Some("the OS object is being deleted")
    } else if v.halted.is_some() {
        Some("the roll-out is halted")
    } else if wish.paused && wish.abort_on_pause {
        Some("the roll-out is paused with pausepolicy abort")
    } else if !window.is_open() {
        Some("the window is shut")
    } else {
        None
    };
    let breaker = breaker(case);
    v.no_staging = case.deleting
        || wish.paused
        || v.halted.is_some()
        || breaker.is_some()
        || case.fleet.trouble.is_some()
        || !case.fleet.fresh;
    v.blocked = blocked(case, wish, &v, window, breaker);
    v
}

fn blocked(
    case: &Case<'_>,
    wish: &Wish,
    v: &Verdict,
    window: WindowState,
    breaker: Option<String>,
) -> Option<(String, String)> {
    let say = |reason: &str, message: String| Some((reason.to_owned(), message));
    if let Some(t) = &case.fleet.trouble {
        return say(&t.reason, t.message.clone());
    }
    if !case.fleet.fresh {
        return say(
            "CacheStale",
            "the view of the cluster is older than a minute; nothing is granted on it".into(),
        );
    }
    if let Some(m) = &v.halted {
        return say("FailureBudgetExceeded", m.clone());
    }
    if wish.paused {
        return say("PausedByUser", "spec.paused is true".into());
    }
    if let Some(m) = breaker {
        return say("ExternalUnavailable", m);
    }
    match window {
        WindowState::Shut { opens: Some(t) } => {
            return say("WaitingForWindow", format!("the window opens at {t}"));
        }
        WindowState::Shut { opens: None } => {
            return say(
                "WaitingForWindow",
                "the window has passed and never opens again".into(),
            );
        }
        WindowState::Open { closes: Some(t) }
            if t < add(case.fleet.now, case.fleet.settings.closing_secs) =>
        {
            return say(
                "WaitingForWindow",
                format!("the window closes at {t}; too late to start"),
            );
        }
        WindowState::Open { .. } => {}
    }
    if v.limit == 0 {
        return say("BudgetExhausted", "maxunavailable is 0".into());
    }
    if v.down >= v.limit {
        let ours = case
            .members
            .iter()
            .filter(|m| matches!(m.standing, Standing::InFlight(_)))
            .count();
        let message = format!(
            "{} of at most {} nodes are unavailable, {ours} of them by us",
            v.down, v.limit
        );
        return say(
            if ours > 0 {
                "BudgetExhausted"
            } else {
                "ExternalUnavailable"
            },
            message,
        );
    }
    None
}

/// Whether a node counts as failed on the target.
fn failed(case: &Case<'_>, wish: &Wish, ledger: &Ledger, m: &Member<'_>) -> bool {
    if m.instance.is_some_and(|i| lifting(case, i).is_some()) {
        return false;
    }
    if ledger.overdue.iter().any(|n| n == m.name) {
        return true;
    }
    let digest = m.target.as_ref().map_or(wish.key.as_str(), |t| t.digest.as_str());
    let ours = |key: &str| key == digest || key.strip_prefix("reboot:") == Some(digest);
    let pending = m.spec().grant.is_some() && ours(&failure_key(m.spec().target.as_ref()));
    // A later success on the same target wipes the failure out.
    let wiped = m.standing.is_updated() && !m.spec().denied.iter().any(|d| ours(d));
    (pending && m.instance.and_then(result_of).and_then(counted).is_some())
        || (!wiped
            && m.spec()
                .failed
                .as_ref()
                .is_some_and(|f| f.count > 0 && ours(&f.digest)))
        || (!wiped && failed_on(wish, m.spec(), m.report(), m.target.as_ref()).is_some())
}

/// The digest whose denial a human has lifted on this instance, and whether by annotation retry.
pub(crate) fn lifting(case: &Case<'_>, instance: &crate::api::OSInstance) -> Option<(Vec<String>, bool)> {
    let spec = &instance.spec;
    let mut marks: Vec<&str> = spec.denied.iter().map(String::as_str).collect();
    marks.extend(spec.failed.as_ref().map(|f| f.digest.as_str()));
    let report = instance
        .status
        .as_ref()
        .and_then(|s| s.failure.as_ref())
        .map(|f| f.digest.as_str());
    marks.extend(report.filter(|d| !d.is_empty()));
    marks.sort_unstable();
    marks.dedup();
    let retry = instance.annotations().get(ANN_RETRY);
    let forgive = case
        .os
        .spec
        .forgive
        .iter()
        .filter(|f| case.wish.is_ok() && !spec.forgive.contains(f));
    let entries: Vec<&String> = forgive.chain(retry).collect();
    let lifted: Vec<String> = marks
        .into_iter()
        .filter(|m| entries.iter().any(|e| forgives(e, m)))
        .map(str::to_owned)
        .collect();
    (!lifted.is_empty() || retry.is_some()).then_some((lifted, retry.is_some()))
}

fn halt(case: &Case<'_>, wish: &Wish, ledger: &Ledger, v: &mut Verdict) {
    let same_target = case.old.target_digest.as_deref() == Some(wish.key.as_str());
    if !same_target {
        v.resume = None;
    }
    let latched = is_true(&case.old.conditions, condition_type::HALTED)
        && condition(&case.old.conditions, condition_type::HALTED).and_then(|c| c.observed_generation)
            == Some(case.generation);
    let mut forgotten = ledger.forgiven_now(&wish.key);
    if let Some(g) = case.annotation(ANN_RESUME).filter(|g| *g == case.generation)
        && v.resume.is_none_or(|r| r.generation != g)
    {
        v.resume = Some(ResumeStatus {
            generation: g,
            failures: v.failed as u32,
        });
        v.denylist.retain(|d| d.digest != wish.key);
        forgotten = true;
    }
    let base = v.resume.map_or(0, |r| r.failures as usize).min(v.failed);
    let exceeded = v.failed - base >= v.budget;
    let denied = v.denylist.iter().any(|d| d.digest == wish.key);
    if exceeded || denied || (latched && !forgotten) {
        let how = format!(
            "{} of {} nodes failed on this target (failurebudget {}). Change the spec; or forgive the digest; or annotate the OS with {ANN_RESUME}={} to go on",
            v.failed, v.total, v.budget, case.generation
        );
        v.halted = Some(how);
        if !denied {
            v.denylist.push(DeniedDigest {
                digest: wish.key.clone(),
                nodes: v.failed as u32,
                since: Time(case.fleet.now),
            });
        }
    }
}

/// Too many nodes are down without us: something else is wrong with the cluster.
fn breaker(case: &Case<'_>) -> Option<String> {
    let fleet = case.fleet;
    let held: std::collections::BTreeSet<&str> = fleet
        .oses
        .iter()
        .filter_map(|o| o.status.as_ref())
        .flat_map(|s| s.grants.iter().map(|g| g.node.as_str()))
        .collect();
    let workers = || {
        fleet
            .nodes
            .iter()
            .filter(|(_, n)| !n.is_control_plane() && !n.ignored())
    };
    let (all, sick) = (
        workers().count(),
        workers()
            .filter(|(name, n)| !n.ready && !held.contains(name.as_str()))
            .count(),
    );
    (sick * 100 > all * fleet.settings.breaker_percent as usize).then(|| {
        format!(
            "{sick} of {all} workers are not Ready without our doing (more than {} %)",
            fleet.settings.breaker_percent
        )
    })
}

/// Why a node that could be next is not.
pub(crate) fn obstacle(case: &Case<'_>, m: &Member<'_>) -> Option<String> {
    if let Some(why) = m.node.held() {
        return Some(why);
    }
    if !m.selected {
        return Some("no longer selected".into());
    }
    if m.node.unavailable() {
        return Some(
            if m.node.ready {
                "cordoned by somebody else"
            } else {
                "not Ready"
            }
            .into(),
        );
    }
    let retry = rest_until(m)?;
    (retry > case.fleet.now).then(|| format!("tries again at {retry}"))
}

/// Until when a node is left alone: as its proxy says, and for a minute after it gave a grant back for a reason of its own.
pub(crate) fn rest_until(m: &Member<'_>) -> Option<Timestamp> {
    let report = m.report();
    let told = report.next_retry.as_ref().map(|t| t.0);
    let gave_up = report.last_result.as_ref().filter(|r| {
        r.outcome == crate::api::Outcome::Aborted && !crate::api::given_back_on_request(&r.reason)
    });
    let rest = gave_up
        .and_then(|r| r.finished_at.as_ref())
        .map(|t| add(t.0, GAVE_UP_SECS));
    told.max(rest)
}

/// Nodes that hold a grant or have just given it back: they belong to the wave, but do not count as updated yet.
pub(crate) fn flying(case: &Case<'_>) -> usize {
    case.members
        .iter()
        .filter(|m| matches!(m.standing, Standing::InFlight(_) | Standing::Releasing))
        .count()
}

/// The next nodes to be taken down, with their grants.
pub(crate) fn grants(case: &Case<'_>, v: &Verdict, wave: &Position) -> Vec<Grant> {
    let Ok(wish) = &case.wish else { return Vec::new() };
    let mut free = v.limit.saturating_sub(v.down);
    if let Some(room) = wave.room {
        free = free.min(room.saturating_sub(flying(case)));
    }
    let mut groups = Groups::of(case, wish);
    let now = case.fleet.now;
    let mut not_after = add(
        now,
        wish.policy
            .draintimeoutseconds
            .saturating_add(case.fleet.settings.grant_slack_secs),
    );
    if let Some(closes) = v.closes {
        not_after = not_after.min(closes);
    }
    let mut granted = Vec::new();
    for m in queue(case, |m| {
        matches!(m.standing, Standing::Ready | Standing::RebootWanted(_))
    }) {
        if granted.len() >= free {
            break;
        }
        if obstacle(case, m).is_some() || !wave.holds(m) || !groups.take(m.group) {
            continue;
        }
        let kind = if m.standing == Standing::Ready {
            wish.kind
        } else {
            GrantKind::Reboot
        };
        granted.push(Grant {
            node: m.name.to_owned(),
            node_uid: m.node.uid.clone(),
            kind,
            attempt: m.spec().attempt + 1,
            granted_at: Time(now),
            not_after: Time(not_after),
            epoch: case.fleet.settings.epoch,
        });
    }
    granted
}

/// Nodes down per group, and how many may be.
struct Groups<'a> {
    down: BTreeMap<&'a str, (usize, usize)>,
}

impl<'a> Groups<'a> {
    fn of(case: &'a Case<'_>, wish: &Wish) -> Groups<'a> {
        let mut down: BTreeMap<&str, (usize, usize)> = BTreeMap::new();
        let Some((_, cap)) = &wish.group else {
            return Groups { down };
        };
        for m in case.members.iter().filter(|m| m.counts()) {
            let entry = down.entry(m.group).or_default();
            entry.0 += usize::from(m.down());
            entry.1 += 1;
        }
        for entry in down.values_mut() {
            entry.1 = cap.of(entry.1);
        }
        Groups { down }
    }

    /// Takes a place in the group, if there is one.
    fn take(&mut self, group: &str) -> bool {
        match self.down.get_mut(group) {
            None => true,
            Some((down, cap)) if *down < *cap => {
                *down += 1;
                true
            }
            Some(_) => false,
        }
    }
}

/// Members that pass `pick`, in the order in which they get their turn: round the groups, oldest version first, then by
/// name; the node this operator runs on comes last.
pub(crate) fn queue<'m, 'a>(case: &'m Case<'a>, pick: impl Fn(&Member<'a>) -> bool) -> Vec<&'m Member<'a>> {
    let own = case.fleet.settings.own_node.as_deref();
    let mut all: Vec<&Member<'a>> = case.members.iter().filter(|m| pick(m)).collect();
    all.sort_by_cached_key(|m| (natural(&m.node.os_image), m.name));
    let mut turn: BTreeMap<&str, usize> = BTreeMap::new();
    let mut keyed: Vec<_> = all
        .into_iter()
        .map(|m| {
            let n = turn.entry(m.group).or_default();
            *n += 1;
            ((own == Some(m.name), *n), m)
        })
        .collect();
    keyed.sort_by_key(|(key, _)| *key);
    keyed.into_iter().map(|(_, m)| m).collect()
}

/// Numbers inside a version compare as numbers.
fn natural(text: &str) -> Vec<(u64, String)> {
    let mut parts = Vec::new();
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.len() - rest.trim_start_matches(|c: char| c.is_ascii_digit()).len();
        let number = rest[..digits].parse().unwrap_or(0);
        rest = &rest[digits..];
        let word = rest.find(|c: char| c.is_ascii_digit()).unwrap_or(rest.len());
        parts.push((number, rest[..word].to_owned()));
        rest = &rest[word..];
    }
    parts
}
