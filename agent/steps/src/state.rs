//! The runner's durable state: one atomic document, and beside it the journal of the current run.
//!
//! `state.json` changes only where something must survive a reboot. What happened to single steps within a run is appended
//! to the run's journal; it is believed only in the boot in which it was written, so it must outlive the process, not the
//! power.

pub mod journal;

use crate::error::{Result, StepsError};
use crate::sys::atomic;
use camino::Utf8Path;
use os_proto::codes::Code;
use serde::{Deserialize, Serialize};

/// Version of the format that this code writes.
pub const SCHEMA: u32 = 1;

/// Why a run happens.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// New content.
    Apply,
    /// The first run of a boot: what lives in memory is made again.
    Boot,
    /// A new epoch with the same content; what it changes is drift.
    Verify,
}

/// The run that is going on or was the last.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Run {
    /// Name of its directory below `runs/`.
    pub run_id: String,
    /// What it applies.
    pub content_hash: String,
    /// Checksum that came with that content.
    #[serde(default)]
    pub external_checksum: String,
    /// Why.
    pub kind: Kind,
    /// In which boot.
    pub boot_id: String,
    /// The epoch that it satisfies.
    #[serde(default)]
    pub epoch: String,
    /// Unix seconds.
    pub started_unix: i64,
    /// It converged: nothing of it is resumed.
    #[serde(default)]
    pub over: bool,
    /// It failed: the next run has its attempts anew, but skips what this one finished.
    #[serde(default)]
    pub failed: bool,
    /// A runner is at it. Where none is, it was killed, or the machine went down.
    #[serde(default)]
    pub open: bool,
}

/// What the node was brought to.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Applied {
    /// Hash of the steps that ran.
    pub content_hash: String,
    /// The checksum that came with them.
    #[serde(default)]
    pub external_checksum: String,
    /// In which boot a whole run succeeded last.
    pub boot_id: String,
    /// In which epoch.
    #[serde(default)]
    pub epoch: String,
    /// Unix seconds.
    pub at_unix: i64,
    /// Whether a step that may fail did.
    #[serde(default)]
    pub degraded: bool,
}

/// What the node asks for.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Wanted {
    /// The main steps of new content.
    Update,
    /// A step that disrupts.
    Disruption,
    /// The node's pods moved away.
    Drain,
    /// A restart of the machine.
    Reboot,
}

impl Wanted {
    /// Its name in files and on the command line.
    pub const fn as_str(self) -> &'static str {
        match self {
            Wanted::Update => "update",
            Wanted::Disruption => "disruption",
            Wanted::Drain => "drain",
            Wanted::Reboot => "reboot",
        }
    }
}

/// A persisted request: no process waits for its answer.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ask {
    /// What.
    pub wanted: Wanted,
    /// Why, for people.
    pub reason: String,
    /// Which step asked; empty = the run.
    #[serde(default)]
    pub step: String,
    /// For which content.
    pub content_hash: String,
    /// In which boot.
    pub boot_id: String,
    /// Unix seconds.
    pub since_unix: i64,
}

/// A reboot that must happen. Cleared only by a boot with another id.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Reboot {
    /// Why, for people.
    pub reason: String,
    /// Which step asked; empty = flag `reboot` at the end of a run.
    #[serde(default)]
    pub step: String,
    /// The boot that has to end.
    pub boot_id: String,
    /// Unix seconds.
    pub since_unix: i64,
    /// How often the service manager was asked.
    #[serde(default)]
    pub asked: u32,
    /// What it answered when it refused.
    #[serde(default)]
    pub error: String,
}

/// How a run ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "outcome", rename_all = "kebab-case")]
pub enum Outcome {
    /// Nothing to do.
    InSync,
    /// All steps done; `changed` of them changed something.
    Converged {
        /// Steps that changed something.
        changed: u32,
        /// Steps that failed and may.
        #[serde(default)]
        degraded: Vec<String>,
    },
    /// A verify run had to change something.
    Drifted {
        /// Steps that changed something.
        changed: u32,
    },
    /// The update waits for approval.
    WaitingApproval,
    /// A step waits for approval of a disruption.
    WaitingDisruption {
        /// Which.
        step: String,
    },
    /// A reboot was handed over or is reported; or it was asked for and cannot be yet.
    RebootPending {
        /// Why.
        reason: String,
        /// What must be answered before it may happen.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        waits_for: Option<Wanted>,
        /// What the service manager said when it refused; empty = it did not.
        #[serde(default, skip_serializing_if = "String::is_empty")]
        refused: String,
    },
    /// Stopped from outside; the next run resumes.
    Stopped,
    /// A step, the bundle or its delivery failed.
    Failed(Failure),
}

/// What failed.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Failure {
    /// Step; empty = not a step.
    #[serde(default)]
    pub step: String,
    /// Attempt, from 1.
    #[serde(default)]
    pub attempt: u32,
    /// exit, timeout, signal, spawn, killed, deadline, bundle, fetch, state.
    pub kind: String,
    /// For people.
    pub message: String,
    /// The end of what that very attempt printed, at most 4 KiB.
    #[serde(default)]
    pub output: String,
}

/// `state.json`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// [`SCHEMA`].
    pub schema: u32,
    /// A reader older than this must not act on the file.
    pub min_reader: u32,
    /// The current or last run.
    #[serde(default)]
    pub run: Option<Run>,
    /// What the node was brought to.
    #[serde(default)]
    pub applied: Option<Applied>,
    /// The last bundle that was fetched and found good.
    #[serde(default)]
    pub bundle: String,
    /// What the node asks for now.
    #[serde(default)]
    pub ask: Option<Ask>,
    /// A reboot that must happen.
    #[serde(default)]
    pub reboot: Option<Reboot>,
    /// How the last run ended.
    #[serde(default)]
    pub outcome: Option<Outcome>,
    /// When, Unix seconds.
    #[serde(default)]
    pub outcome_unix: i64,
    /// Failed runs in a row.
    #[serde(default)]
    pub failures: u32,
    /// A tick does not try again before this, Unix seconds.
    #[serde(default)]
    pub retry_unix: i64,
    /// Steps that verify runs had to change, ever.
    #[serde(default)]
    pub drift_total: u64,
    /// Keys that this version does not know; they survive a rewrite.
    #[serde(flatten)]
    pub unknown: serde_json::Map<String, serde_json::Value>,
}

impl Default for State {
    fn default() -> State {
        State {
            schema: SCHEMA,
            min_reader: SCHEMA,
            run: None,
            applied: None,
            bundle: String::new(),
            ask: None,
            reboot: None,
            outcome: None,
            outcome_unix: 0,
            failures: 0,
            retry_unix: 0,
            drift_total: 0,
            unknown: serde_json::Map::new(),
        }
    }
}

impl State {
    /// Reads the document.
    ///
    /// # Errors
    /// `StateTooNew` when a newer writer forbids it, `Internal` when it is not one.
    pub fn parse(text: &[u8]) -> Result<State> {
        let s: State = serde_json::from_slice(text)
            .map_err(|e| StepsError::new(Code::Internal, os_proto::json::fault("state.json", &e)))?;
        if s.min_reader > SCHEMA {
            return Err(StepsError::new(
                Code::StateTooNew,
                format!(
                    "state.json was written by a newer os-agent (format {}, this one reads {SCHEMA})",
                    s.min_reader
                ),
            ));
        }
        Ok(s)
    }

    /// Loads `state.json` of `dir`; absent = a new node. What cannot be read is put aside and the node starts anew: steps are
    /// idempotent, so a lost state costs one run.
    ///
    /// # Errors
    /// `StateTooNew`, `Internal` on I/O errors.
    pub fn load(dir: &Utf8Path) -> Result<State> {
        let path = dir.join("state.json");
        let text = match std::fs::read(&path) {
            Ok(t) => t,
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(State::default()),
            Err(e) => return Err(StepsError::io(&path, &e)),
        };
        match State::parse(&text) {
            Err(e) if e.code == Code::Internal => {
                tracing::error!(%e, "starting anew; the damaged file is kept as state.json.damaged");
                let _ = atomic::replace(&dir.join("state.json.damaged"), &text);
                Ok(State::default())
            }
            other => other,
        }
    }

    /// Replaces `state.json` of `dir`, durably.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    pub fn save(&self, dir: &Utf8Path) -> Result<()> {
        let text = serde_json::to_vec_pretty(self)
            .map_err(|e| StepsError::new(Code::Internal, format!("state.json: {e}")))?;
        atomic::replace(&dir.join("state.json"), &text)
    }
}

#[cfg(test)]
mod tests;
