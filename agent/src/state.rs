//! The durable state, `<state>/state.json`: what happened, which operations ran, which digests fell back.
//!
//! It may lag or vanish: the environment block and the booted slot are the truth about what boots. Keys that this version
//! does not know survive a rewrite at every level. A file whose `min_reader` is newer is read as far as it is
//! understandable and never written.

use crate::settings::Written;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use serde::{Deserialize, Serialize};
use serde_json::Value;

mod types;
pub use types::*;

/// Version of the format that this code writes. 2 added `armed.gen` and `counted_unix`; whoever knows 1 only may write it.
pub const SCHEMA: u32 = 2;
/// Oldest reader that understands what this code writes.
pub const MIN_READER: u32 = 1;
/// Operations kept.
pub const MAX_OPERATIONS: usize = 500;
/// Failed digests kept.
pub const MAX_FAILED: usize = 100;

/// The whole state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct State {
    /// Format version.
    pub schema: u32,
    /// A reader older than this must not write the file.
    pub min_reader: u32,
    /// Where the update stands; what the environment says wins.
    #[serde(default)]
    pub phase: Phase,
    /// What the inactive slot holds, while staged or armed.
    #[serde(default)]
    pub staged: Option<Staged>,
    /// The armed slot and its trial.
    #[serde(default)]
    pub armed: Option<Armed>,
    /// Boots in a row in which an armed slot did not start.
    #[serde(default)]
    pub not_started: u32,
    /// When the boot loader last counted a try, Unix seconds; 0 = not yet. For `doctor`.
    #[serde(default)]
    pub counted_unix: i64,
    /// The slot whose image was not written since it was last the committed one: a way back gets its own /etc.
    #[serde(default)]
    pub own_etc: Option<Slot>,
    /// Digests that fell back.
    #[serde(default)]
    pub failed_digests: Vec<FailedDigest>,
    /// Digests that could not be staged, with how often in a row.
    #[serde(default)]
    pub failed_stages: Vec<FailedStage>,
    /// The last failure.
    #[serde(default)]
    pub last_failure: Option<Failure>,
    /// Settings that are written and not yet in effect.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<Written>,
    /// Operations, oldest first.
    #[serde(default)]
    pub operations: Vec<Operation>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Default for State {
    fn default() -> State {
        State {
            schema: SCHEMA,
            min_reader: MIN_READER,
            phase: Phase::Idle,
            staged: None,
            armed: None,
            not_started: 0,
            counted_unix: 0,
            own_etc: None,
            failed_digests: Vec::new(),
            failed_stages: Vec::new(),
            last_failure: None,
            settings: Vec::new(),
            operations: Vec::new(),
            unknown: Unknown::new(),
        }
    }
}

/// What reading the state gave.
#[derive(Debug, Clone, PartialEq)]
pub struct Loaded {
    /// As much as could be read.
    pub state: State,
    /// A newer agent wrote it; it must not be written.
    pub read_only: bool,
    /// What is wrong with it.
    pub problem: Option<String>,
}

impl State {
    /// Reads the file's text; `None` = there is no file. Never fails: what cannot be read is left out and reported.
    pub fn parse(text: Option<&[u8]>) -> Loaded {
        let Some(text) = text else {
            return Loaded {
                state: State::default(),
                read_only: false,
                problem: None,
            };
        };
        let value: Value = match serde_json::from_slice(text) {
            Ok(v @ Value::Object(_)) => v,
            Ok(_) => return corrupt("expected a JSON object"),
            Err(e) => return corrupt(&e.to_string()),
        };
        let min_reader = value.get("min_reader").and_then(Value::as_u64);
        let read_only = min_reader.is_some_and(|m| m > u64::from(SCHEMA));
        match serde_json::from_value::<State>(value.clone()) {
            Ok(mut state) => Loaded {
                state: {
                    if !read_only {
                        state.schema = state.schema.max(SCHEMA);
                    }
                    state
                },
                read_only,
                problem: read_only.then(|| too_new(min_reader)),
            },
            Err(e) => {
                let state = salvage(&value);
                let problem = if read_only {
                    too_new(min_reader)
                } else {
                    format!("state.json: {e}; what could be read is used")
                };
                Loaded {
                    state,
                    read_only,
                    problem: Some(problem),
                }
            }
        }
    }

    /// The file's text, with a final newline.
    pub fn to_json(&self) -> Vec<u8> {
        let mut v = serde_json::to_vec_pretty(self).unwrap_or_default();
        v.push(b'\n');
        v
    }

    /// The operation with this id.
    pub fn operation(&self, op_id: &str) -> Option<&Operation> {
        self.operations.iter().rev().find(|o| o.op_id == op_id)
    }

    /// The same, to change it.
    pub fn operation_mut(&mut self, op_id: &str) -> Option<&mut Operation> {
        self.operations.iter_mut().rev().find(|o| o.op_id == op_id)
    }

    /// Adds an operation, dropping the oldest finished ones above [`MAX_OPERATIONS`].
    pub fn push_operation(&mut self, op: Operation) {
        self.operations.push(op);
        while self.operations.len() > MAX_OPERATIONS {
            self.operations.remove(0);
        }
    }

    /// The failed-digest entry of `digest`.
    pub fn failed(&self, digest: &Sha256Digest) -> Option<&FailedDigest> {
        self.failed_digests.iter().find(|f| f.digest == *digest)
    }
}

/// What can be done where a newer agent wrote the state: everything that this one still does, and the way out.
pub const TOO_NEW_ADVICE: &str = "go back to the slot whose agent wrote it (os-agent rollback --reboot) and update from there; a commit \
works here too. Where no slot has that agent any more, stop this one, set state.json in the state directory aside and start it \
again: history and denials begin anew";

fn too_new(min_reader: Option<u64>) -> String {
    format!(
        "state.json needs an agent of state version {}, this one has {SCHEMA}; it is read as far as possible and not written",
        min_reader.unwrap_or_default()
    )
}

fn corrupt(why: &str) -> Loaded {
    Loaded {
        state: State::default(),
        read_only: false,
        problem: Some(format!(
            "state.json is not readable ({why}); starting with an empty one"
        )),
    }
}

/// Every part that this version understands, each on its own.
fn salvage(value: &Value) -> State {
    fn part<T: serde::de::DeserializeOwned + Default>(value: &Value, key: &str) -> T {
        value
            .get(key)
            .and_then(|v| serde_json::from_value(v.clone()).ok())
            .unwrap_or_default()
    }
    fn list<T: serde::de::DeserializeOwned>(value: &Value, key: &str) -> Vec<T> {
        value
            .get(key)
            .and_then(Value::as_array)
            .map(|a| {
                a.iter()
                    .filter_map(|v| serde_json::from_value(v.clone()).ok())
                    .collect()
            })
            .unwrap_or_default()
    }
    State {
        schema: SCHEMA,
        min_reader: MIN_READER,
        phase: part(value, "phase"),
        staged: part(value, "staged"),
        armed: part(value, "armed"),
        not_started: part(value, "not_started"),
        counted_unix: part(value, "counted_unix"),
        own_etc: part(value, "own_etc"),
        failed_digests: list(value, "failed_digests"),
        failed_stages: list(value, "failed_stages"),
        last_failure: part(value, "last_failure"),
        settings: list(value, "settings"),
        operations: list(value, "operations"),
        unknown: Unknown::new(),
    }
}

#[cfg(test)]
mod tests;
