//! The journal of one run, `runs/RUN/run.jsonl`: one line when an attempt begins, one when it ends.

use crate::error::{Result, StepsError};
use crate::sys::atomic;
use camino::Utf8Path;
use os_proto::codes::Code;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::fs::File;
use std::io::Write;
use std::sync::Mutex;

/// What a line says.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum What {
    /// An attempt begins.
    Begin,
    /// It succeeded.
    Done,
    /// It failed.
    Failed,
    /// The step gave up for an answer that it needs first.
    Waits,
}

/// One line.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Line {
    /// Step.
    pub step: String,
    /// Hash of its file.
    pub sha256: String,
    /// From 1.
    pub attempt: u32,
    /// What happened.
    pub what: What,
    /// Whether the step reported a change.
    #[serde(default, skip_serializing_if = "std::ops::Not::not")]
    pub changed: bool,
    /// Milliseconds.
    #[serde(default)]
    pub took_ms: u64,
    /// Exit status or kind of failure.
    #[serde(default, skip_serializing_if = "String::is_empty")]
    pub how: String,
    /// When, Unix seconds; 0 = not recorded.
    #[serde(default)]
    pub at_unix: i64,
}

/// [`Line::how`] of a step that was given up because the runner never survived it.
pub const KILLED: &str = "killed";

/// What is known of one step in this run.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct Progress {
    /// Hash of the file that ran.
    pub sha256: String,
    /// Highest attempt number so far.
    pub begun: u32,
    /// Attempts that ended badly.
    pub failures: u32,
    /// Attempts in a row that have no end: the runner was killed during them.
    pub interrupted: u32,
    /// It was given up after so many of those; 0 = it was not.
    pub gave_up: u32,
    /// It succeeded.
    pub done: bool,
    /// It reported a change in any attempt.
    pub changed: bool,
    /// How long the last attempt took, milliseconds.
    pub took_ms: u64,
    /// When its last line was written, Unix seconds; 0 = not recorded.
    pub at_unix: i64,
}

impl Progress {
    /// How often the runner died in it in a row: until now, or until it was given up.
    pub fn deaths(&self) -> u32 {
        self.interrupted.max(self.gave_up)
    }
}

/// Replays a journal; a torn last line is left out. PURE.
pub fn replay(text: &str) -> BTreeMap<String, Progress> {
    let mut out: BTreeMap<String, Progress> = BTreeMap::new();
    for l in text.lines().filter_map(|l| serde_json::from_str::<Line>(l).ok()) {
        let p = out.entry(l.step).or_default();
        if p.sha256 != l.sha256 {
            *p = Progress {
                sha256: l.sha256,
                ..Progress::default()
            };
        }
        p.changed |= l.changed;
        p.took_ms = l.took_ms;
        p.at_unix = l.at_unix;
        p.begun = p.begun.max(l.attempt);
        if l.what == What::Begin {
            // Until its end is read it counts as interrupted.
            p.interrupted += 1;
            p.gave_up = 0;
            p.done = false;
        } else {
            p.gave_up = if l.how == KILLED { p.interrupted } else { 0 };
            p.interrupted = 0;
            p.done = l.what == What::Done;
            p.failures += u32::from(l.what == What::Failed);
        }
    }
    out
}

/// The open journal; lines of parallel steps never mix.
#[derive(Debug)]
pub struct Journal(Mutex<File>);

impl Journal {
    /// Opens or creates the journal in the run's directory; gives what it says already.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    pub fn open(run_dir: &Utf8Path) -> Result<(Journal, BTreeMap<String, Progress>)> {
        atomic::private_dir(run_dir)?;
        let path = run_dir.join("run.jsonl");
        let before = std::fs::read_to_string(&path).unwrap_or_default();
        let mut file = atomic::append(&path)?;
        if !before.is_empty() && !before.ends_with('\n') {
            // A torn line must not swallow the next one.
            file.write_all(b"\n")
                .map_err(|e| StepsError::new(Code::StateWriteFailed, format!("{path}: {e}")))?;
        }
        Ok((Journal(Mutex::new(file)), replay(&before)))
    }

    /// Appends a line. It has to outlive the process, however that ends; in another boot nobody believes it, so a step that
    /// succeeded costs no flush of the disk. What went wrong is synced for those who look after a crash.
    ///
    /// # Errors
    /// `StateWriteFailed`, for instance on a full disk.
    pub fn write(&self, line: &Line) -> Result<()> {
        let fail = |e: &dyn std::fmt::Display| {
            StepsError::new(Code::StateWriteFailed, format!("the run's journal: {e}"))
        };
        let mut text = serde_json::to_vec(line).map_err(|e| fail(&e))?;
        text.push(b'\n');
        let mut f = self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner);
        f.write_all(&text).map_err(|e| fail(&e))?;
        if matches!(line.what, What::Failed | What::Waits) {
            f.sync_data().map_err(|e| fail(&e))?;
        }
        Ok(())
    }
}
