//! State and plans of the runner, as messages, text and JSON. PURE but for the journal's file.

use os_proto::v1;
use os_steps::bundle::Bundle;
use os_steps::dirs::Dirs;
use os_steps::plan::{Decision, short, times};
use os_steps::run::{Ended, describe};
use os_steps::state::journal::Progress;
use os_steps::state::{Outcome, State, journal};
use os_steps::sys::lock::RunLock;
use serde_json::{Value, json};
use std::fmt::Write;

/// An outcome's name.
pub fn word(o: &Outcome) -> &'static str {
    match o {
        Outcome::InSync => "in-sync",
        Outcome::Converged { degraded, .. } if degraded.is_empty() => "converged",
        Outcome::Converged { .. } => "degraded",
        Outcome::Drifted { .. } => "drifted",
        Outcome::WaitingApproval => "waiting-approval",
        Outcome::WaitingDisruption { .. } => "waiting-disruption",
        Outcome::RebootPending { .. } => "reboot-pending",
        Outcome::Stopped => "stopped",
        Outcome::Failed(_) => "failed",
    }
}

/// An outcome in one line.
pub fn line(o: &Outcome) -> String {
    describe(o)
}

/// Steps that began and have no end, by the journal: they run now, or the runner died in them.
fn unended(dirs: &Dirs, state: &State) -> Vec<(String, Progress)> {
    let Some(run) = &state.run else {
        return Vec::new();
    };
    let path = dirs.runs().join(&run.run_id).join("run.jsonl");
    journal::replay(&std::fs::read_to_string(path).unwrap_or_default())
        .into_iter()
        .filter(|(_, p)| p.interrupted > 0 && !p.done)
        .collect()
}

/// A run that nobody is at and that did not come to its end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Cut {
    /// The steps in which the runner died, with the attempt and how often in a row it died there; none = between two steps.
    pub steps: Vec<(String, u32, u32)>,
    /// When the last of them began, or the run, Unix seconds.
    pub since_unix: i64,
}

/// Whether the last run was interrupted, and where.
pub fn cut(dirs: &Dirs, s: &State) -> Option<Cut> {
    let run = s.run.as_ref().filter(|r| r.open)?;
    // It may have ended, or another begun, since the state was read.
    let still = || State::load(&dirs.steps).is_ok_and(|now| now.run.as_ref() == Some(run));
    if running(dirs) || !still() || running(dirs) {
        return None;
    }
    let open = unended(dirs, s);
    let since = open.iter().map(|(_, p)| p.at_unix).max().filter(|t| *t > 0);
    Some(Cut {
        steps: open
            .into_iter()
            .map(|(name, p)| (name, p.begun, p.interrupted))
            .collect(),
        since_unix: since.unwrap_or(run.started_unix),
    })
}

impl Cut {
    fn line(&self) -> String {
        let steps: Vec<String> = self
            .steps
            .iter()
            .map(|(name, attempt, deaths)| {
                let often = if *deaths > 1 {
                    format!(", in which the runner died {} by now", times(*deaths))
                } else {
                    String::new()
                };
                format!("in step {name} (attempt {attempt}){often}")
            })
            .collect();
        let place = if steps.is_empty() {
            "between two steps".to_owned()
        } else {
            steps.join(" and ")
        };
        format!(
            "interrupted {place}, since {}: the runner was killed or the node went down; the next run goes on there, \
             after a restart of the node it begins with the first step",
            when(self.since_unix)
        )
    }

    fn json(&self) -> Value {
        let steps: Vec<Value> = self
            .steps
            .iter()
            .map(|(name, attempt, deaths)| json!({"step": name, "attempt": attempt, "runner_died": deaths}))
            .collect();
        json!({"outcome": "interrupted", "steps": steps, "since_unix": self.since_unix})
    }
}

fn when(unix: i64) -> String {
    jiff::Timestamp::from_second(unix).map_or_else(|_| unix.to_string(), |t| t.to_string())
}

/// Whether a run holds the lock now.
fn running(dirs: &Dirs) -> bool {
    RunLock::is_held(&dirs.steps)
}

/// The answer to Status.
pub fn status_reply(dirs: &Dirs, s: &State) -> v1::StepsStatusReply {
    let running = running(dirs);
    let cut = cut(dirs, s);
    let now = if running {
        unended(dirs, s).pop().map(|(n, p)| (n, p.begun))
    } else {
        cut.as_ref().map(|c| {
            c.steps
                .last()
                .map(|(n, a, _)| (n.clone(), *a))
                .unwrap_or_default()
        })
    };
    let failure = match &s.outcome {
        Some(Outcome::Failed(f)) => Some(f),
        _ => None,
    };
    let state = if running {
        "running"
    } else if cut.is_some() {
        "interrupted"
    } else if s.reboot.is_some() {
        "reboot-pending"
    } else if s.ask.is_some() {
        "waiting"
    } else if failure.is_some() {
        "failed"
    } else {
        "idle"
    };
    let (step, attempt) = now
        .or_else(|| failure.map(|f| (f.step.clone(), f.attempt)))
        .or_else(|| s.ask.as_ref().map(|a| (a.step.clone(), 0)))
        .unwrap_or_default();
    let mut message = s.outcome.as_ref().map(line).unwrap_or_default();
    if let Some(f) = failure.filter(|f| !f.output.trim().is_empty()) {
        let _ = write!(message, "\n{}", f.output.trim_end());
    }
    if let Some(c) = &cut {
        message = c.line();
    }
    v1::StepsStatusReply {
        state: state.to_owned(),
        outcome: match &cut {
            Some(_) => "interrupted",
            None => s.outcome.as_ref().map(word).unwrap_or_default(),
        }
        .to_owned(),
        content_hash: s
            .applied
            .as_ref()
            .map(|a| a.content_hash.clone())
            .unwrap_or_default(),
        external_checksum: s
            .applied
            .as_ref()
            .map(|a| a.external_checksum.clone())
            .unwrap_or_default(),
        step,
        attempt,
        message,
        since_unix: cut.map_or(s.outcome_unix, |c| c.since_unix),
        reboot_required: s.reboot.is_some(),
        reboot_reason: s.reboot.as_ref().map(|r| r.reason.clone()).unwrap_or_default(),
        reboot_step: s.reboot.as_ref().map(|r| r.step.clone()).unwrap_or_default(),
    }
}

/// Status for people.
pub fn status_text(r: &v1::StepsStatusReply, s: &State) -> String {
    let mut t = String::new();
    let _ = writeln!(t, "{}", r.state);
    if !r.content_hash.is_empty() {
        let _ = writeln!(t, "applied: {}", short(&r.content_hash));
    }
    if !r.step.is_empty() {
        let _ = writeln!(t, "step: {} (attempt {})", r.step, r.attempt);
    }
    if let Some(a) = &s.ask {
        let what = a.wanted.as_str();
        let _ = writeln!(
            t,
            "asks for: {what}: {} (os-agent steps approve {what})",
            a.reason
        );
    }
    if r.reboot_required {
        let _ = writeln!(t, "reboot required: {}", r.reboot_reason);
    }
    if let Some(x) = s.reboot.as_ref().filter(|x| !x.error.is_empty()) {
        let _ = writeln!(
            t,
            "reboot refused: asked for {}, last answer: {}",
            times(x.asked),
            x.error
        );
    }
    if !r.message.is_empty() {
        let _ = writeln!(t, "last run: {}", r.message);
    }
    if let (true, Some(o)) = (r.state == "interrupted", &s.outcome) {
        let _ = writeln!(t, "before it, {}: {}", when(s.outcome_unix), line(o));
    }
    t
}

/// Status for programs; `outcome` is that of the last run, `previous` that of the run before an interrupted one.
pub fn status_json(r: &v1::StepsStatusReply, s: &State, cut: Option<&Cut>) -> Value {
    let (outcome, previous) = match cut {
        Some(c) => (c.json(), json!(s.outcome)),
        None => (json!(s.outcome), Value::Null),
    };
    json!({"state": r.state, "outcome": outcome, "previous": previous, "content_hash": r.content_hash, "external_checksum": r.external_checksum,
        "step": r.step, "attempt": r.attempt, "message": r.message, "since_unix": r.since_unix, "ask": s.ask,
        "reboot": s.reboot, "failures": s.failures, "drift_total": s.drift_total, "run": s.run, "applied": s.applied})
}

/// The answer to Plan; `needs_image` are the packages that a read-only root cannot install.
pub fn plan_reply(b: &Bundle, d: &Decision, needs_image: Vec<String>) -> v1::StepsPlanReply {
    let phase = |i: usize| {
        b.manifest
            .steps
            .get(i)
            .and_then(|s| serde_json::to_value(s.attributes.phase).ok())
            .and_then(|v| v.as_str().map(str::to_owned))
            .unwrap_or_default()
    };
    let sha = |i: usize| {
        b.manifest
            .steps
            .get(i)
            .map(|s| s.sha256.clone())
            .unwrap_or_default()
    };
    let steps = match d {
        Decision::Run(p) => p
            .steps
            .iter()
            .map(|s| v1::PlannedStep {
                name: s.name.clone(),
                sha256: sha(s.index),
                action: if s.run { "run" } else { "skip" }.to_owned(),
                reason: s.reason.clone(),
                phase: phase(s.index),
            })
            .collect(),
        Decision::InSync(why) | Decision::Reboot(why) | Decision::Later(_, why) => b
            .order()
            .into_iter()
            .filter_map(|i| b.manifest.steps.get(i).map(|s| (i, s)))
            .map(|(i, s)| v1::PlannedStep {
                name: s.name.clone(),
                sha256: s.sha256.clone(),
                action: "skip".to_owned(),
                reason: why.clone(),
                phase: phase(i),
            })
            .collect(),
    };
    v1::StepsPlanReply {
        content_hash: b.manifest.content_hash.clone(),
        steps,
        needs_image,
    }
}

/// A plan for people.
pub fn plan_text(r: &v1::StepsPlanReply) -> String {
    let mut t = format!("bundle {}\n", short(&r.content_hash));
    for s in &r.steps {
        let _ = writeln!(t, "{:<4} {:<40} {:<12} {}", s.action, s.name, s.phase, s.reason);
    }
    if !r.needs_image.is_empty() {
        let _ = writeln!(
            t,
            "NeedsImage: the root is read-only and must bring {}",
            r.needs_image.join(", ")
        );
    }
    t
}

/// A plan for programs.
pub fn plan_json(r: &v1::StepsPlanReply) -> Value {
    json!({"content_hash": r.content_hash, "needs_image": r.needs_image, "steps": r.steps.iter().map(|s| json!({"name": s.name, "sha256": s.sha256,
        "action": s.action, "reason": s.reason, "phase": s.phase})).collect::<Vec<_>>()})
}

/// The end of a run for programs.
pub fn ended_json(e: &Ended) -> Value {
    json!({"outcome": word(&e.outcome), "detail": e.outcome, "run_id": e.run_id, "content_hash": e.content_hash,
        "executed": e.executed, "notes": e.notes})
}
