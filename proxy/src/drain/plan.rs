//! The next step of a drain (PURE): pods and past answers in, evictions and what is in the way out.

use super::evict::Answer;
use super::filter::{DaemonSets, Verdict, verdict};
use super::{Blocked, PodFact, Policy, Reason, jitter};
use crate::api::{OnDrainTimeout, SYSTEM_NAMESPACE};
use jiff::{SignedDuration, Timestamp};
use std::collections::BTreeMap;

/// Spans between tries, in seconds. Tests shrink them.
#[derive(Debug, Clone, Copy)]
pub struct Tuning {
    /// After the first refusal.
    pub retry_min_secs: f64,
    /// At most.
    pub retry_max_secs: f64,
    /// A pod that was deleted and is still there so long after its grace is reported.
    pub stuck_secs: f64,
    /// A full LIST so often, beside the watch.
    pub resync_secs: f64,
    /// Requests per second, at most.
    pub rate_per_sec: f64,
    /// So long a streamed list may take; then an ordinary one is asked for.
    pub stream_wait_secs: f64,
}

impl Default for Tuning {
    fn default() -> Self {
        Tuning {
            retry_min_secs: 5.0,
            retry_max_secs: 30.0,
            stuck_secs: 30.0,
            resync_secs: 60.0,
            rate_per_sec: 5.0,
            stream_wait_secs: 10.0,
        }
    }
}

/// What is known about the eviction of one pod, by uid.
#[derive(Debug, Clone, PartialEq)]
pub struct Try {
    /// The server accepted it.
    pub accepted: bool,
    /// Not before.
    pub next: Timestamp,
    /// Refusals so far, without those that say nothing about the pod.
    pub refusals: u32,
    /// When the pod was first in the way.
    pub blocked_since: Option<Timestamp>,
    /// The last answer.
    pub last: Answer,
}

/// Tries by pod uid.
pub type Tries = BTreeMap<String, Try>;

fn later(now: Timestamp, secs: f64) -> Timestamp {
    now.checked_add(SignedDuration::from_secs_f64(secs.clamp(0.0, 86_400.0)))
        .unwrap_or(now)
}

/// Takes an answer into account.
pub fn note(old: Option<&Try>, pod: &PodFact, answer: Answer, now: Timestamp, tuning: &Tuning) -> Try {
    let mut t = old.cloned().unwrap_or(Try {
        accepted: false,
        next: now,
        refusals: 0,
        blocked_since: None,
        last: Answer::Accepted,
    });
    let backoff = |n: u32, t: &Tuning| {
        (t.retry_min_secs * 2f64.powi(n.min(16) as i32)).min(t.retry_max_secs) * jitter(&pod.uid, n)
    };
    let wait = match &answer {
        Answer::Accepted | Answer::Gone | Answer::Terminating => {
            t.accepted = true;
            t.blocked_since = None;
            tuning.retry_max_secs
        }
        Answer::Budget { retry_after, .. } => {
            t.refusals += 1;
            backoff(t.refusals - 1, tuning).max(retry_after.map_or(0.0, f64::from))
        }
        Answer::Overload { retry_after } => retry_after.map_or(tuning.retry_min_secs, f64::from),
        Answer::Webhook(_) => {
            t.refusals += 1;
            backoff(t.refusals - 1, tuning)
        }
        Answer::MultipleBudgets(_) | Answer::Forbidden(_) | Answer::Malformed(_) => {
            t.refusals += 1;
            tuning.retry_max_secs
        }
        Answer::Conflict | Answer::Transient(_) => tuning.retry_min_secs * jitter(&pod.uid, t.refusals),
    };
    if answer.blocks(pod).is_some() && t.blocked_since.is_none() {
        t.blocked_since = Some(now);
    }
    t.next = later(now, wait);
    t.last = answer;
    t
}

/// Everything a step depends on.
#[derive(Debug)]
pub struct Facts<'a> {
    /// All pods of the node that the selector matches.
    pub pods: &'a [PodFact],
    /// Which DaemonSets exist.
    pub daemonsets: &'a DaemonSets,
    /// Past answers.
    pub tries: &'a Tries,
    /// How to drain.
    pub policy: &'a Policy,
    /// When the drain began.
    pub started: Timestamp,
    /// Now.
    pub now: Timestamp,
    /// Spans.
    pub tuning: &'a Tuning,
}

/// Where the drain stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Step {
    /// Go on.
    Go,
    /// Nothing evictable is left.
    Empty,
    /// A filter refuses: nothing may be evicted.
    Refused,
    /// The server calls our request malformed.
    Fault,
    /// Time is up.
    TimedOut,
}

/// The next step and why.
#[derive(Debug, Clone, PartialEq)]
pub struct Plan {
    /// Where the drain stands.
    pub step: Step,
    /// Pods to evict now, as indices.
    pub evict: Vec<usize>,
    /// Pods to delete now (time is up and the policy says delete), as indices.
    pub delete: Vec<usize>,
    /// Pods that must still go.
    pub remaining: usize,
    /// What is in the way.
    pub blocked: Vec<Blocked>,
    /// Look again then, at the latest.
    pub wake: Timestamp,
}

/// Higher goes later: ordinary pods, then system-critical ones, then the operator, which others wait for.
fn rank(p: &PodFact) -> u8 {
    match p {
        p if p.namespace == SYSTEM_NAMESPACE => 2,
        p if p.critical => 1,
        _ => 0,
    }
}

/// Decides the next step.
pub fn plan(f: &Facts<'_>) -> Plan {
    let mut blocked = Vec::new();
    let mut going: Vec<usize> = Vec::new();
    for (i, pod) in f.pods.iter().enumerate() {
        match verdict(pod, f.policy, f.daemonsets, f.now) {
            Verdict::Evict => going.push(i),
            Verdict::Skip(_) => {}
            Verdict::Refuse(reason, message) => blocked.push(Blocked {
                pod: pod.id(),
                pdb: None,
                reason,
                message,
                since: f.started,
            }),
        }
    }
    let mut out = Plan {
        step: Step::Go,
        evict: Vec::new(),
        delete: Vec::new(),
        remaining: going.len(),
        blocked,
        wake: later(f.now, f.tuning.resync_secs),
    };
    if !out.blocked.is_empty() {
        out.step = Step::Refused;
        return out;
    }
    if going.is_empty() {
        out.step = Step::Empty;
        return out;
    }
    for &i in &going {
        let (pod, t) = (&f.pods[i], f.tries.get(&f.pods[i].uid));
        if let Some(b) = in_the_way(pod, t, f) {
            out.blocked.push(b);
        }
        if let Some(Try {
            last: Answer::Malformed(_),
            ..
        }) = t
        {
            out.step = Step::Fault;
        }
    }
    if out.step == Step::Fault {
        return out;
    }
    let deadline = later(f.started, f.policy.timeout_secs as f64);
    if f.now >= deadline {
        if f.policy.on_timeout == OnDrainTimeout::Delete {
            out.delete = going
                .iter()
                .copied()
                .filter(|i| f.pods[*i].deletion.is_none())
                .collect();
            // Deleting has as long again; after that it is over as well.
            if f.now < later(deadline, f.policy.timeout_secs.max(60) as f64) {
                return out;
            }
            out.delete.clear();
        }
        out.step = Step::TimedOut;
        return out;
    }
    out.wake = out.wake.min(deadline);
    let lowest = going.iter().map(|i| rank(&f.pods[*i])).min().unwrap_or(0);
    // Pods that are stuck do not keep others from going.
    let is_leaving = |p: &PodFact| match p.deletion {
        Some(end) => f.now < later(end, f.tuning.stuck_secs),
        None => f.tries.get(&p.uid).is_some_and(|t| t.accepted),
    };
    let mut room = f
        .policy
        .concurrency
        .saturating_sub(going.iter().filter(|i| is_leaving(&f.pods[**i])).count());
    for &i in going.iter().filter(|i| rank(&f.pods[**i]) == lowest) {
        let pod = &f.pods[i];
        let due = match f.tries.get(&pod.uid) {
            None => f.now,
            // On its way: nothing more to ask for.
            Some(t) if t.accepted && pod.deletion.is_some() => continue,
            Some(t) => t.next,
        };
        if due > f.now {
            out.wake = out.wake.min(due);
        } else if pod.deletion.is_some() {
            // Asked for once all the same, as kubectl does: a shorter grace period may be wanted.
            out.evict.push(i);
        } else if room > 0 {
            room -= 1;
            out.evict.push(i);
        }
    }
    out
}

/// What is in the way of this pod's going, if anything.
fn in_the_way(pod: &PodFact, t: Option<&Try>, f: &Facts<'_>) -> Option<Blocked> {
    if let Some(end) = pod.deletion {
        let stuck = later(end, f.tuning.stuck_secs);
        if f.now < stuck {
            return None;
        }
        let (reason, message) = match pod.finalizers.as_slice() {
            [] => (
                Reason::StuckTerminating,
                "its grace period is over and it still runs: is its kubelet alive?".to_owned(),
            ),
            names => (
                Reason::Finalizer,
                format!("deleted, but finalizer {} is not removed", names.join(", ")),
            ),
        };
        return Some(Blocked {
            pod: pod.id(),
            pdb: None,
            reason,
            message,
            since: end,
        });
    }
    let t = t?;
    let (reason, pdb, message) = t.last.blocks(pod)?;
    Some(Blocked {
        pod: pod.id(),
        pdb,
        reason,
        message,
        since: t.blocked_since.unwrap_or(f.now),
    })
}
