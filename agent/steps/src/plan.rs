//! What to do about a bundle, and why. PURE: state, manifest, boot id and time in; decision and reason out.

use crate::bundle::order;
use crate::state::journal::Progress;
use crate::state::{Kind, State};
use os_proto::bundle::{Manifest, Phase};
use std::collections::BTreeMap;

/// Length of an epoch: a verify run happens once in each, seconds.
pub const EPOCH_SECS: i64 = 14_400;
/// Longest pause after failed runs, seconds.
pub const MAX_RETRY_SECS: i64 = 1800;

/// What made us look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Trigger {
    /// The runner's own 60 seconds.
    Tick,
    /// A person or program.
    Asked,
}

/// Everything that a decision rests on.
#[derive(Debug, Clone, Copy)]
pub struct Facts<'a> {
    /// As stored.
    pub state: &'a State,
    /// The bundle that should be applied.
    pub manifest: &'a Manifest,
    /// What the journal of the state's run says.
    pub progress: &'a BTreeMap<String, Progress>,
    /// Of this boot.
    pub boot_id: &'a str,
    /// Unix seconds.
    pub now: i64,
    /// Of now.
    pub epoch: &'a str,
    /// Forget progress and run everything.
    pub from_start: bool,
    /// What made us look.
    pub trigger: Trigger,
}

/// What happens with one step.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Planned {
    /// Index in the manifest.
    pub index: usize,
    /// Name.
    pub name: String,
    /// Whether it runs.
    pub run: bool,
    /// Why, for people.
    pub reason: String,
}

/// A run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Plan {
    /// Why it happens.
    pub kind: Kind,
    /// It continues the state's run.
    pub resume: bool,
    /// For people.
    pub reason: String,
    /// In the order in which they run.
    pub steps: Vec<Planned>,
}

/// What to do.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Decision {
    /// Nothing.
    InSync(String),
    /// Not before this moment (Unix seconds).
    Later(i64, String),
    /// A reboot of this boot is pending: see to it before anything else.
    Reboot(String),
    /// Run steps.
    Run(Plan),
}

/// The epoch that `now` lies in, shifted by a number that belongs to the node group, so that not all groups verify at once.
pub fn epoch(now: i64, group: &str) -> String {
    // FNV-1a, 64 bits.
    let hash = group.bytes().fold(0xcbf2_9ce4_8422_2325_u64, |h, b| {
        (h ^ u64::from(b)).wrapping_mul(0x0100_0000_01b3)
    });
    let shift = i64::try_from(hash % EPOCH_SECS.unsigned_abs()).unwrap_or(0);
    ((now - shift).div_euclid(EPOCH_SECS)).to_string()
}

/// Pause after the n-th failed run in a row, seconds: 1 minute, doubled, at most 30.
pub fn retry_after(failures: u32) -> i64 {
    (60i64 << failures.saturating_sub(1).min(5)).min(MAX_RETRY_SECS)
}

/// Pause before the next attempt of a step, milliseconds: 2 s, doubled, at most 60 s, half of it jittered by `random` in
/// 0..1000.
pub fn backoff_ms(first_ms: u64, failures: u32, random: u64) -> u64 {
    let full = (first_ms << failures.saturating_sub(1).min(5)).min(60_000);
    full / 2 + full / 2 * (random % 1000) / 1000
}

/// Decides.
pub fn decide(f: &Facts<'_>) -> Decision {
    let hash = f.manifest.content_hash.as_str();
    let run = f.state.run.as_ref().filter(|r| r.content_hash == hash);
    let applied = f.state.applied.as_ref().filter(|a| a.content_hash == hash);
    // Newer content may cure a node that cannot reboot, so it does not wait for the reboot of older content.
    let reboot = f
        .state
        .reboot
        .as_ref()
        .filter(|r| r.boot_id == f.boot_id && (run.is_some() || applied.is_some()));
    if let Some(r) = reboot.filter(|_| run.is_some_and(|r| !r.over)) {
        return Decision::Reboot(r.reason.clone());
    }
    let (kind, reason) = match applied {
        None => (
            Kind::Apply,
            match &f.state.applied {
                None => "no bundle was applied yet".to_owned(),
                Some(a) => format!(
                    "content changed from {} to {}",
                    short(&a.content_hash),
                    short(hash)
                ),
            },
        ),
        Some(a) if a.boot_id != f.boot_id => (Kind::Boot, "first run of this boot".to_owned()),
        Some(_) if f.from_start => (Kind::Verify, "asked for".to_owned()),
        Some(a) if a.epoch != f.epoch => (
            Kind::Verify,
            format!("epoch {}: the same content is verified", f.epoch),
        ),
        // One that was asked for from the start counts until it is done, however often it fails or is cut.
        Some(_) if run.is_some_and(|r| !r.over && r.kind == Kind::Verify && r.boot_id == f.boot_id) => {
            (Kind::Verify, "the run from the start is not done yet".to_owned())
        }
        Some(_) => {
            return reboot.map_or_else(
                || Decision::InSync(format!("{} is applied", short(hash))),
                |r| Decision::Reboot(r.reason.clone()),
            );
        }
    };
    let wait = f.state.retry_unix - f.now;
    // A clock that jumped back must not silence the node.
    if f.trigger == Trigger::Tick && run.is_some() && wait > 0 && wait <= MAX_RETRY_SECS {
        return Decision::Later(
            f.state.retry_unix,
            format!("{} failed runs in a row", f.state.failures),
        );
    }
    let resume = run.is_some_and(|r| !r.over && r.kind == kind && r.boot_id == f.boot_id && !f.from_start);
    let steps = order(f.manifest)
        .into_iter()
        .filter_map(|i| f.manifest.steps.get(i).map(|s| (i, s)))
        .map(|(index, s)| {
            let p = f.progress.get(&s.name).filter(|p| resume && p.sha256 == s.sha256);
            let deaths = p.map_or(0, Progress::deaths);
            let (run, reason) = if p.is_some_and(|p| p.done) {
                (false, "done in this run".to_owned())
            } else if s.attributes.may_disrupt && kind == Kind::Verify {
                (false, "may disrupt, and its content did not change".to_owned())
            } else if deaths > 0 {
                (
                    true,
                    format!("resumes here; the runner died {} in it", times(deaths)),
                )
            } else if p.is_some_and(|p| p.begun > 0) {
                (true, "resumes here".to_owned())
            } else {
                (true, reason.clone())
            };
            Planned {
                index,
                name: s.name.clone(),
                run,
                reason,
            }
        })
        .collect();
    Decision::Run(Plan {
        kind,
        resume,
        reason,
        steps,
    })
}

/// Steps that run at the same time: neighbours of one group and phase; everything else alone. Indices into `plan`.
pub fn units(m: &Manifest, plan: &[Planned]) -> Vec<Vec<usize>> {
    let key = |p: &Planned| {
        m.steps
            .get(p.index)
            .and_then(|s| Some((s.attributes.parallel_group.clone()?, s.attributes.phase)))
    };
    let mut out: Vec<Vec<usize>> = Vec::new();
    let mut last: Option<(String, Phase)> = None;
    for (i, p) in plan.iter().enumerate() {
        let k = key(p);
        match out.last_mut() {
            Some(unit) if k.is_some() && k == last => unit.push(i),
            _ => out.push(vec![i]),
        }
        last = k;
    }
    out
}

/// A count as people read it.
pub fn times(n: u32) -> String {
    if n == 1 {
        "once".to_owned()
    } else {
        format!("{n} times")
    }
}

/// A hash as people read it.
pub fn short(hash: &str) -> &str {
    hash.get(..12).unwrap_or(hash)
}

#[cfg(test)]
mod tests;
