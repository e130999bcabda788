//! The end of a run: outcome, requests, reboot; and what the next boot makes of them.

use super::{Done, Early, Ended, Going, Runner};
use crate::approval::{self, Gate, Patch};
use crate::error::Result;
use crate::plan::{self, Plan};
use crate::state::journal::Progress;
use crate::state::{Applied, Ask, Failure, Kind, Outcome, Reboot, State, Wanted};
use crate::store;
use crate::sys::{atomic, clock};
use camino::Utf8Path;
use os_proto::codes::Code;

/// Bytes of output of old runs that are kept.
const RUNS_BYTES: u64 = 64 << 20;
/// Runs whose output is kept.
const RUNS: usize = 20;

/// Records how the steps ended and does what follows from it.
pub(super) fn finish(
    r: &Runner,
    state: &mut State,
    g: Going<'_>,
    p: &Plan,
    result: Result<(Done, Option<Early>)>,
) -> Result<Ended> {
    let hash = g.run.content_hash.clone();
    super::close(state);
    let (done, early) = match result {
        Ok(x) => x,
        Err(e) => {
            // The record could not be written: say so where it still can be said.
            tracing::error!(%e, "the run ends");
            let f = Failure {
                step: String::new(),
                attempt: 0,
                kind: "state".to_owned(),
                message: e.message.clone(),
                output: String::new(),
            };
            fail(r, state, f);
            let _ = state.save(&r.dirs.steps);
            return Err(e);
        }
    };
    let outcome = match early {
        None => converge(r, state, &g, p, &done)?,
        Some(Early::Failed(f)) => {
            fail(r, state, f.clone());
            Outcome::Failed(f)
        }
        Some(Early::Stopped) => Outcome::Stopped,
        Some(Early::Ask(w, step)) => {
            let reason = match w {
                Wanted::Update => format!("content {}", plan::short(&hash)),
                _ => format!("step {step} may disrupt the node"),
            };
            ask(r, state, w, &reason, &step, &hash)?;
            match w {
                Wanted::Update => Outcome::WaitingApproval,
                _ => Outcome::WaitingDisruption { step },
            }
        }
        Some(Early::RebootNow { reason, step }) => {
            want_reboot(r, state, &reason, &step);
            state.save(&r.dirs.steps)?;
            r.reboot(state)?
        }
    };
    g.event("", 0, "outcome", describe(&outcome));
    state.outcome = Some(outcome.clone());
    state.outcome_unix = clock::unix();
    state.save(&r.dirs.steps)?;
    let needed: Vec<&str> = [&hash, &state.bundle]
        .into_iter()
        .map(String::as_str)
        .chain(state.applied.as_ref().map(|a| a.content_hash.as_str()))
        .collect();
    store::prune(&r.dirs, &needed);
    prune_runs(&r.dirs.runs(), &g.run.run_id);
    Ok(Ended {
        outcome,
        run_id: g.run.run_id.clone(),
        content_hash: hash,
        executed: done.executed,
        notes: done.notes,
    })
}

fn fail(r: &Runner, state: &mut State, f: Failure) {
    state.failures = state.failures.saturating_add(1);
    state.retry_unix = clock::unix() + plan::retry_after(state.failures);
    if let Some(run) = &mut state.run {
        run.failed = true;
    }
    tracing::error!(
        "{}; next run in {} s",
        f.message,
        state.retry_unix - clock::unix()
    );
    state.outcome = Some(Outcome::Failed(f));
    state.outcome_unix = clock::unix();
    let _ = r;
}

/// All steps are done.
fn converge(r: &Runner, state: &mut State, g: &Going<'_>, p: &Plan, done: &Done) -> Result<Outcome> {
    let progress: Vec<Progress> = r.progress(state).into_values().collect();
    let changed = u32::try_from(progress.iter().filter(|p| p.changed).count()).unwrap_or(u32::MAX);
    state.failures = 0;
    state.retry_unix = 0;
    state.ask = None;
    state.applied = Some(Applied {
        content_hash: g.run.content_hash.clone(),
        external_checksum: g.run.external_checksum.clone(),
        boot_id: g.run.boot_id.clone(),
        epoch: g.run.epoch.clone(),
        at_unix: clock::unix(),
        degraded: !done.degraded.is_empty(),
    });
    if let Some(run) = &mut state.run {
        run.over = true;
    }
    let d = &r.dirs;
    for w in [Wanted::Update, Wanted::Disruption] {
        let _ = std::fs::remove_file(d.requests().join(w.as_str()));
    }
    let reboot = d.flags().join("reboot").exists();
    for answer in ["update", "disruption"] {
        // An approval is for one update; the reboot at its end is still part of it.
        if !(reboot && answer == "disruption") {
            let _ = std::fs::remove_file(d.approvals().join(answer));
        }
    }
    compatibility(r, g);
    if reboot {
        want_reboot(r, state, "flag reboot was set by a step", &done.reboot_step);
        state.save(&d.steps)?;
        return r.reboot(state);
    }
    report_applied(r, &g.run.external_checksum);
    if p.kind == Kind::Verify && changed > 0 {
        state.drift_total += u64::from(changed);
        tracing::warn!("{changed} steps had drifted and were set right");
        return Ok(Outcome::Drifted { changed });
    }
    Ok(Outcome::Converged {
        changed,
        degraded: done.degraded.clone(),
    })
}

/// Files that other programs on a Deckhouse node read.
fn compatibility(r: &Runner, g: &Going<'_>) {
    let base = &r.dirs.base;
    let uptime = std::fs::read_to_string("/proc/uptime").unwrap_or_default();
    let uptime = uptime.split(' ').next().unwrap_or_default();
    for (name, text) in [
        ("configuration_checksum", g.run.external_checksum.as_str()),
        ("uptime", uptime),
        ("bashible-fully-initialized", ""),
    ] {
        if let Err(e) = atomic::replace(&base.join(name), text.as_bytes()) {
            tracing::warn!(%e, "a file for other programs");
        }
    }
}

/// Tells the cluster what was applied, if that is not what it knows.
fn report_applied(r: &Runner, checksum: &str) {
    if let Some(c) = r.cluster.as_ref().filter(|_| !checksum.is_empty()) {
        let done = c.node().and_then(|n| {
            let patch = approval::applied(checksum, &n.annotations);
            patch_node(c.as_ref(), &n.resource_version, &patch)
        });
        if let Err(e) = done {
            tracing::warn!(%e, "the applied checksum could not be reported");
        }
    }
}

fn patch_node(c: &dyn crate::kube::Cluster, version: &str, patch: &Patch) -> Result<()> {
    if patch.is_empty() {
        return Ok(());
    }
    c.patch(version, patch)
}

/// Persists a request; nobody waits for its answer.
fn ask(r: &Runner, state: &mut State, w: Wanted, reason: &str, step: &str, hash: &str) -> Result<()> {
    let new = Ask {
        wanted: w,
        reason: reason.to_owned(),
        step: step.to_owned(),
        content_hash: hash.to_owned(),
        boot_id: r.host.boot_id(),
        since_unix: clock::unix(),
    };
    let same = state
        .ask
        .as_ref()
        .is_some_and(|a| (a.wanted, &a.step, &a.content_hash) == (w, &new.step, &new.content_hash));
    if !same {
        let text = serde_json::to_vec_pretty(&new)
            .map_err(|e| crate::error::StepsError::new(Code::Internal, format!("request: {e}")))?;
        state.ask = Some(new);
        state.save(&r.dirs.steps)?;
        atomic::replace(&r.dirs.requests().join(w.as_str()), &text)?;
    }
    if r.by_cluster()
        && let Some(c) = &r.cluster
    {
        let n = c.node()?;
        patch_node(
            c.as_ref(),
            &n.resource_version,
            &approval::request(w, &n.annotations),
        )?;
    }
    Ok(())
}

fn want_reboot(r: &Runner, state: &mut State, reason: &str, step: &str) {
    let boot_id = r.host.boot_id();
    if state.reboot.as_ref().is_some_and(|x| x.boot_id == boot_id) {
        return;
    }
    state.reboot = Some(Reboot {
        reason: reason.to_owned(),
        step: step.to_owned(),
        boot_id,
        since_unix: clock::unix(),
        asked: 0,
        error: String::new(),
    });
}

impl Runner {
    /// Sees to a pending reboot: asks for what it needs, or asks the service manager. The request stays until the boot id
    /// changes, whatever the answer.
    pub(super) fn reboot(&self, state: &mut State) -> Result<Outcome> {
        let Some(reason) = state.reboot.as_ref().map(|x| x.reason.clone()) else {
            return Ok(Outcome::InSync);
        };
        let hash = state
            .run
            .as_ref()
            .map(|x| x.content_hash.clone())
            .unwrap_or_default();
        let (mut waits_for, mut refused) = (None, String::new());
        match approval::may_reboot(&self.settings, self.first_run(), self.answers(&hash)) {
            Gate::Report => {}
            Gate::Ask(w) => {
                ask(self, state, w, &format!("reboot: {reason}"), "", &hash)?;
                waits_for = Some(w);
            }
            Gate::Go => {
                // Stored before it is asked for: a request is never lost, and never repeated in another boot.
                if let Some(x) = &mut state.reboot {
                    x.asked += 1;
                }
                state.save(&self.dirs.steps)?;
                let answer = self.host.reboot();
                let said = answer.err().unwrap_or_default();
                if let Some(x) = state.reboot.as_mut().filter(|x| x.error != said) {
                    x.error.clone_from(&said);
                    state.save(&self.dirs.steps)?;
                }
                refused = said;
            }
        }
        let outcome = Outcome::RebootPending {
            reason,
            waits_for,
            refused,
        };
        if matches!(&outcome, Outcome::RebootPending { refused, .. } if !refused.is_empty()) {
            tracing::error!("{}", describe(&outcome));
        }
        Ok(outcome)
    }

    /// Clears what belonged to an earlier boot.
    pub(super) fn after_boot(&self, state: &mut State) -> Result<()> {
        let boot_id = self.host.boot_id();
        if state.run.as_ref().is_some_and(|r| r.boot_id != boot_id) {
            // Whoever restarted the node: what the flag asked for has happened.
            atomic::remove(&self.dirs.flags().join("reboot"))?;
        }
        let Some(r) = state.reboot.as_ref().filter(|r| r.boot_id != boot_id) else {
            return Ok(());
        };
        tracing::info!("the node was restarted: {}", r.reason);
        for answer in ["disruption", "drained"] {
            atomic::remove(&self.dirs.approvals().join(answer))?;
        }
        for asked in ["disruption", "drain"] {
            atomic::remove(&self.dirs.requests().join(asked))?;
        }
        state.reboot = None;
        if state.ask.as_ref().is_some_and(|a| a.wanted != Wanted::Update) {
            state.ask = None;
        }
        state.save(&self.dirs.steps)
    }
}

/// An outcome in one line.
pub fn describe(o: &Outcome) -> String {
    match o {
        Outcome::InSync => "in sync".to_owned(),
        Outcome::Converged { changed, degraded } if degraded.is_empty() => {
            format!("converged, {changed} steps changed something")
        }
        Outcome::Converged { changed, degraded } => format!(
            "degraded: {changed} steps changed something, {} failed and may: {}",
            degraded.len(),
            degraded.join(", ")
        ),
        Outcome::Drifted { changed } => format!("drift: {changed} steps had to set something right"),
        Outcome::WaitingApproval => "waiting for approval of the update".to_owned(),
        Outcome::WaitingDisruption { step } => format!("waiting for approval of a disruption by step {step}"),
        Outcome::RebootPending { reason, refused, .. } if !refused.is_empty() => format!(
            "reboot pending: {reason}; it was refused: {refused}. It is asked for again at the next look; \
             \"systemctl list-jobs\" and \"systemd-inhibit --list\" show what stands in its way, and a reboot by hand serves as well"
        ),
        Outcome::RebootPending {
            reason,
            waits_for: Some(w),
            ..
        } => format!(
            "reboot pending: {reason}; waiting for an answer to the request for {}",
            w.as_str()
        ),
        Outcome::RebootPending { reason, .. } => format!("reboot pending: {reason}"),
        Outcome::Stopped => "stopped; the next run resumes".to_owned(),
        Outcome::Failed(f) => f.message.clone(),
    }
}

/// Removes output of old runs: more than [`RUNS`], or more than [`RUNS_BYTES`] together.
fn prune_runs(dir: &Utf8Path, current: &str) {
    let mut all: Vec<(std::time::SystemTime, u64, camino::Utf8PathBuf)> = dir
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .filter(|e| e.file_name() != current)
        .filter_map(|e| {
            let time = e.metadata().ok()?.modified().ok()?;
            let size = e
                .path()
                .read_dir_utf8()
                .ok()?
                .flatten()
                .filter_map(|f| f.metadata().ok())
                .map(|m| m.len())
                .sum();
            Some((time, size, e.path().to_owned()))
        })
        .collect();
    all.sort_by_key(|b| std::cmp::Reverse(b.0));
    let mut sum = 0;
    for (i, (_, size, path)) in all.into_iter().enumerate() {
        sum += size;
        if i >= RUNS || sum > RUNS_BYTES {
            let _ = std::fs::remove_dir_all(path);
        }
    }
}
