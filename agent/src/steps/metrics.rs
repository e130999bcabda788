//! The runner's metrics as a Prometheus text file beside the agent's, for a node exporter's textfile collector.

use crate::metrics::Sheet;
use crate::sys::atomic;
use camino::{Utf8Path, Utf8PathBuf};
use os_steps::dirs::Dirs;
use os_steps::run::Event;
use os_steps::state::{Outcome, State};
use os_steps::sys::clock::monotonic;
use std::collections::{BTreeMap, BTreeSet};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

/// Between two looks at what changed.
const PERIOD: Duration = Duration::from_secs(5);
/// Names of the file.
pub const FILE: &str = "os-agent-steps.prom";

/// What was seen of the steps since this process began.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// Attempts by step and result.
    pub attempts: BTreeMap<(String, &'static str), u64>,
    /// How long the last attempt of each step took.
    pub took: BTreeMap<String, Duration>,
    /// Steps that run now, and since when.
    pub now: BTreeMap<String, Duration>,
    /// The current run, and since when.
    pub run: Option<(String, Duration)>,
    /// How long the last run took.
    pub run_took: Option<Duration>,
}

/// [`Seen`], shared with the runner's sink.
#[derive(Debug, Clone, Default)]
pub struct Meter(Arc<Mutex<Seen>>);

impl Meter {
    fn seen(&self) -> MutexGuard<'_, Seen> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Counts an event that happens `at` (time since the boot).
    pub fn count(&self, e: &Event, at: Duration) {
        let mut s = self.seen();
        if !e.run_id.is_empty() && s.run.as_ref().is_none_or(|(id, _)| *id != e.run_id) {
            s.run = Some((e.run_id.clone(), at));
            s.now.clear();
        }
        match e.state {
            "began" => {
                s.now.insert(e.step.clone(), at);
            }
            result @ ("done" | "failed" | "waiting") => {
                let Some(since) = s.now.remove(&e.step) else {
                    return;
                };
                s.took.insert(e.step.clone(), at.saturating_sub(since));
                *s.attempts.entry((e.step.clone(), result)).or_default() += 1;
            }
            "outcome" => {
                s.run_took = s.run.as_ref().map(|(_, since)| at.saturating_sub(*since));
                s.now.clear();
            }
            _ => {}
        }
    }
}

/// Names of the states, so that a series exists for each.
const STATES: [&str; 5] = ["idle", "running", "waiting", "reboot_pending", "failed"];

fn state(seen: &Seen, s: &State) -> &'static str {
    if !seen.now.is_empty() {
        "running"
    } else if s.reboot.is_some() {
        "reboot_pending"
    } else if s.ask.is_some() {
        "waiting"
    } else if matches!(s.outcome, Some(Outcome::Failed(_))) {
        "failed"
    } else {
        "idle"
    }
}

/// The file's text; only `steps` of the loaded bundle become labels. PURE.
pub fn text(seen: &Seen, s: &State, steps: &BTreeSet<String>, now: Duration) -> String {
    let mut t = Sheet::default();
    t.family(
        "steps_state",
        "gauge",
        "1 for the state that the step runner is in.",
    );
    let is = state(seen, s);
    for name in STATES {
        t.value("steps_state", &[("state", name)], u8::from(name == is));
    }
    t.family("steps_bundle_info", "gauge", "The bundle that is applied.");
    let hash = s.applied.as_ref().map_or("", |a| a.content_hash.as_str());
    t.value("steps_bundle_info", &[("hash", hash)], 1);
    t.gauge(
        "steps_last_success_timestamp_seconds",
        "When a whole run succeeded last; 0 = never.",
        s.applied.as_ref().map_or(0, |a| a.at_unix),
    );
    t.family(
        "steps_drift_total",
        "counter",
        "Steps that verify runs had to change, ever.",
    );
    t.value("steps_drift_total", &[], s.drift_total);
    if let Some(took) = seen.run_took {
        t.gauge(
            "steps_run_duration_seconds",
            "How long the last run took.",
            took.as_secs_f64(),
        );
    }
    t.family(
        "steps_step_duration_seconds",
        "gauge",
        "How long the last attempt of a step took.",
    );
    for (step, took) in seen.took.iter().filter(|(n, _)| steps.contains(*n)) {
        t.value(
            "steps_step_duration_seconds",
            &[("step", step)],
            took.as_secs_f64(),
        );
    }
    t.family(
        "steps_step_attempts_total",
        "counter",
        "Attempts since the runner began.",
    );
    for ((step, result), n) in seen.attempts.iter().filter(|((s, _), _)| steps.contains(s)) {
        t.value(
            "steps_step_attempts_total",
            &[("step", step), ("result", result)],
            n,
        );
    }
    t.family(
        "steps_current_step_seconds",
        "gauge",
        "How long a step runs by now.",
    );
    for (step, since) in seen.now.iter().filter(|(n, _)| steps.contains(*n)) {
        let secs = now.saturating_sub(*since).as_secs();
        t.value("steps_current_step_seconds", &[("step", step)], secs);
    }
    t.into_text()
}

fn names(dirs: &Dirs, hash: &str) -> BTreeSet<String> {
    os_steps::store::dir(dirs, hash)
        .join("steps")
        .read_dir_utf8()
        .into_iter()
        .flatten()
        .flatten()
        .map(|e| e.file_name().to_owned())
        .collect()
}

/// Replaces `path` whenever the text changed, for ever.
pub async fn keep(meter: Meter, dirs: Dirs, path: Utf8PathBuf) {
    let (mut last, mut told) = (String::new(), false);
    loop {
        let (m, d, p, before) = (meter.clone(), dirs.clone(), path.clone(), last.clone());
        let done = tokio::task::spawn_blocking(move || write(&m, &d, &p, &before)).await;
        match done {
            Ok(Ok(text)) => last = text,
            Ok(Err(e)) if !std::mem::replace(&mut told, true) => tracing::warn!(%e, "metrics"),
            _ => {}
        }
        tokio::time::sleep(PERIOD).await;
    }
}

fn write(meter: &Meter, dirs: &Dirs, path: &Utf8Path, before: &str) -> crate::error::Result<String> {
    let state = State::load(&dirs.steps)?;
    let text = text(&meter.seen(), &state, &names(dirs, &state.bundle), monotonic());
    if text != before {
        atomic::replace(path, text.as_bytes(), 0o644)?;
    }
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn event(step: &str, state: &'static str) -> Event {
        Event {
            run_id: "r".into(),
            step: step.into(),
            state,
            ..Event::default()
        }
    }

    #[test]
    fn attempts_and_times_of_the_bundles_own_steps() {
        let m = Meter::default();
        let at = Duration::from_secs;
        for (t, step, state) in [
            (1, "a", "began"),
            (3, "a", "failed"),
            (4, "a", "began"),
            (5, "a", "output"),
            (9, "a", "done"),
            (9, "gone", "began"),
            (9, "gone", "done"),
            (10, "b", "began"),
        ] {
            m.count(&event(step, state), at(t));
        }
        let steps = BTreeSet::from(["a".to_owned(), "b".to_owned()]);
        let said = text(&m.seen(), &State::default(), &steps, at(13));
        for want in [
            "os_agent_steps_state{state=\"running\"} 1\n",
            "os_agent_steps_step_attempts_total{step=\"a\",result=\"done\"} 1\n",
            "os_agent_steps_step_attempts_total{step=\"a\",result=\"failed\"} 1\n",
            "os_agent_steps_step_duration_seconds{step=\"a\"} 5\n",
            "os_agent_steps_current_step_seconds{step=\"b\"} 3\n",
            "os_agent_steps_last_success_timestamp_seconds 0\n",
        ] {
            assert!(said.contains(want), "{want} in {said}");
        }
        assert!(!said.contains("gone") && !said.contains("run_duration"));
        m.count(&event("", "outcome"), at(21));
        let said = text(&m.seen(), &State::default(), &steps, at(30));
        assert!(
            said.contains("os_agent_steps_run_duration_seconds 20\n"),
            "{said}"
        );
        assert!(
            said.contains("os_agent_steps_state{state=\"idle\"} 1\n"),
            "{said}"
        );
    }
}
