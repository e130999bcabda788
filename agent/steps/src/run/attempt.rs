//! One attempt: a fresh bash that sources the library and then the step.

use super::output::Capture;
use super::report::{self, Report};
use super::{Event, Going};
use crate::state::Failure;
use crate::store;
use crate::sys::child::{self, Ended, Spec, Stream};
use crate::sys::clock;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::bundle::StepEntry;
use std::time::Duration;

/// bash traces from this attempt on.
const TRACE_FROM: u32 = 3;
/// What bash is given to do; nothing of it comes from the bundle.
const MAIN: &str =
    ". \"$BB_LIB\"; . \"$BB_STEP_FILE\"; if declare -F _bb-finish >/dev/null; then _bb-finish; fi";
const MAIN_TRACED: &str =
    ". \"$BB_LIB\"; set -x; . \"$BB_STEP_FILE\"; if declare -F _bb-finish >/dev/null; then _bb-finish; fi";

/// How it went.
pub(super) struct Tried {
    /// Why it failed.
    pub(super) failure: Option<Failure>,
    /// What the step told us.
    pub(super) report: Report,
    /// The runner was asked to stop.
    pub(super) stopped: bool,
    /// Wall time.
    pub(super) took: Duration,
}

fn report_path(g: &Going<'_>, entry: &StepEntry, number: u32) -> Utf8PathBuf {
    let run_dir = g.runner.dirs.runs().join(&g.run.run_id);
    run_dir.join(format!("{}.{number}.report", entry.name))
}

fn read(path: &Utf8Path) -> Report {
    std::fs::read(path).map_or_else(
        |_| Report::default(),
        |text| report::parse(&String::from_utf8_lossy(&text)),
    )
}

/// What attempts up to `last` told that the runner was killed before it could record: their reports are still there.
pub(super) fn unrecorded(g: &Going<'_>, entry: &StepEntry, last: u32) -> Report {
    let mut all = Report::default();
    for number in 1..=last {
        all.add(read(&report_path(g, entry, number)));
    }
    all
}

/// What an attempt told is in the journal now.
pub(super) fn recorded(g: &Going<'_>, entry: &StepEntry, number: u32) {
    let _ = std::fs::remove_file(report_path(g, entry, number));
}

/// Runs it.
pub(super) fn run(g: &Going<'_>, entry: &StepEntry, number: u32, slot: usize) -> Tried {
    let d = &g.runner.dirs;
    let run_dir = d.runs().join(&g.run.run_id);
    let file = |kind: &str| run_dir.join(format!("{}.{number}.{kind}", entry.name));
    let report_path = report_path(g, entry, number);
    let tmp = d.opt.join("tmp").join(format!(".bb-{}-{slot}", g.run.run_id));
    let traced = number >= TRACE_FROM;
    let mut env = g.env.clone();
    let step = store::dir(d, &g.bundle.manifest.content_hash)
        .join("steps")
        .join(&entry.name);
    env.extend([
        ("BB_STEP".to_owned(), entry.name.clone()),
        ("BB_STEP_FILE".to_owned(), step.into_string()),
        ("BB_REPORT".to_owned(), report_path.to_string()),
        ("BB_TMP".to_owned(), tmp.to_string()),
    ]);
    let bash = match store::bash() {
        Ok(b) => b,
        Err(e) => return broken(entry, number, e.message),
    };
    // What an attempt that was killed left in it is not this one's. The library makes it when it is needed: a directory made
    // and removed for every step costs more than all else that the runner adds.
    let _ = std::fs::remove_dir_all(&tmp);
    let group = g.groups.as_ref().and_then(|p| p.group(&format!("{slot}")));
    let spec = Spec {
        program: bash,
        args: &[
            "--noprofile",
            "--norc",
            "-eE",
            "-o",
            "pipefail",
            "-c",
            if traced { MAIN_TRACED } else { MAIN },
        ],
        env: &env,
        cwd: &d.base,
        timeout: Duration::from_secs(entry.attributes.timeout_sec),
        grace: g.runner.limits.grace,
        group: group.as_ref(),
        trace: traced,
        stop: &g.runner.stop,
    };
    let mut out = Capture::new(file("out"), &g.masks);
    let mut err = Capture::new(file("err"), &g.masks);
    let mut trace = Capture::new(file("trace"), &g.masks);
    let start = clock::monotonic();
    let mut each = |line: &str| {
        (g.runner.sink)(&Event {
            run_id: g.run.run_id.clone(),
            step: entry.name.clone(),
            attempt: number,
            state: "output",
            line: line.to_owned(),
            message: String::new(),
        });
    };
    let ended = child::run(&spec, &mut |stream, data| {
        let at = clock::monotonic().saturating_sub(start);
        match stream {
            Stream::Out => out.feed(data, at, &mut each),
            Stream::Err => err.feed(data, at, &mut each),
            Stream::Trace => trace.feed(data, at, &mut |_| {}),
        }
    });
    let at = clock::monotonic().saturating_sub(start);
    let last_out = out.finish(at, &mut each);
    let last_err = err.finish(at, &mut each);
    let _ = trace.finish(at, &mut |_| {});
    let _ = std::fs::remove_dir_all(&tmp);
    let report = read(&report_path);
    let ended = match ended {
        Ok(e) => e,
        Err(e) => return broken(entry, number, format!("cannot start {bash}: {e}")),
    };
    if ended.leftovers > 0 {
        tracing::warn!(
            "step {}: it left {} processes behind, which were ended; services belong to systemd",
            entry.name,
            ended.leftovers
        );
    }
    Tried {
        failure: failure(entry, number, &ended, &last_out, last_err),
        report,
        stopped: ended.stopped,
        took: ended.took,
    }
}

fn broken(entry: &StepEntry, attempt: u32, message: String) -> Tried {
    Tried {
        failure: Some(Failure {
            step: entry.name.clone(),
            attempt,
            kind: "spawn".to_owned(),
            message: format!("step {}: {message}", entry.name),
            output: String::new(),
        }),
        report: Report::default(),
        stopped: false,
        took: Duration::ZERO,
    }
}

/// What is shown is what this very attempt printed last: standard error, else standard output.
fn failure(s: &StepEntry, attempt: u32, e: &Ended, out: &str, err: String) -> Option<Failure> {
    if e.ok() {
        return None;
    }
    let (kind, how) = if e.timed_out {
        (
            "timeout",
            format!("was ended after {} s, its time-out", s.attributes.timeout_sec),
        )
    } else if e.stopped {
        ("stopped", "was stopped together with the runner".to_owned())
    } else if let Some(n) = e.signal {
        ("signal", format!("was ended by signal {n}"))
    } else {
        ("exit", format!("exited with {}", e.exit.unwrap_or(-1)))
    };
    let output = if err.trim().is_empty() {
        out.to_owned()
    } else {
        err
    };
    let last = output.lines().rev().find(|l| !l.trim().is_empty()).unwrap_or("");
    let said = if last.is_empty() {
        String::new()
    } else {
        format!(": {}", last.chars().take(300).collect::<String>())
    };
    Some(Failure {
        step: s.name.clone(),
        attempt,
        kind: kind.to_owned(),
        message: format!("step {} {how} (attempt {attempt}){said}", s.name),
        output,
    })
}
