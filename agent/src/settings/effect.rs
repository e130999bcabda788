//! PURE: what was written and does not count yet.

use super::lines::squeezed;
use os_proto::layout::Slot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};
use std::collections::BTreeMap;

/// A file that was written, until its new content counts. Kept in the durable state.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Written {
    /// The file, for people.
    pub target: String,
    /// Model.
    pub model: String,
    /// Where the last content lies that was in effect; empty = there was no file.
    #[serde(default)]
    pub previous: String,
    /// When, Unix seconds.
    #[serde(default)]
    pub at_unix: i64,
    /// When, in seconds of the boot's own clock.
    #[serde(default)]
    pub at_secs: u64,
    /// In which boot.
    #[serde(default)]
    pub boot_id: String,
    /// What must start anew; empty = no service.
    #[serde(default)]
    pub unit: String,
    /// Kernel arguments of this slot.
    #[serde(default)]
    pub slot: Option<Slot>,
    /// Kernel settings that the file names: path below /proc/sys and value.
    #[serde(default)]
    pub values: Vec<(String, String)>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Map<String, Value>,
}

/// What is true now.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Seen {
    /// This boot.
    pub boot_id: String,
    /// The slot that runs.
    pub running: Option<Slot>,
    /// When services started, in seconds of the boot's own clock; absent = it does not run.
    pub started_secs: BTreeMap<String, u64>,
    /// Kernel settings by path below /proc/sys.
    pub kernel: BTreeMap<String, String>,
}

impl Written {
    /// What is still missing before it counts; `None` = it is in effect.
    pub fn waits_for(&self, seen: &Seen) -> Option<String> {
        let rebooted = self.boot_id != seen.boot_id;
        if let Some(slot) = self.slot {
            return (!rebooted || seen.running != Some(slot))
                .then(|| format!("the next boot of slot {slot}"));
        }
        if !self.unit.is_empty() {
            // A service that starts in the same second may have read the file before.
            let started = seen.started_secs.get(&self.unit);
            return match started {
                Some(s) if rebooted || *s > self.at_secs => None,
                Some(_) => Some(format!("a restart of {}", self.unit)),
                None => Some(format!("a start of {}", self.unit)),
            };
        }
        let differs = self.values.iter().any(|(path, value)| {
            seen.kernel
                .get(path)
                .is_none_or(|v| squeezed(v) != squeezed(value))
        });
        (differs && !rebooted).then(|| "the next boot, or sysctl --system".to_owned())
    }

    /// For status.
    pub fn describe(&self, waits_for: &str) -> String {
        let kept = if self.previous.is_empty() {
            String::new()
        } else {
            format!("; the content before it is kept in {}", self.previous)
        };
        format!(
            "{}: {} is written, not yet in effect: it waits for {waits_for}{kept}",
            self.model, self.target
        )
    }
}

/// Adds what a call wrote. Where something already waits, the content before *that* stays the one that was last in effect.
pub fn merge(list: &mut Vec<Written>, new: Vec<Written>) {
    for mut n in new {
        if let Some(at) = list.iter().position(|o| o.target == n.target) {
            let old = list.remove(at);
            n.previous = old.previous;
            n.unknown = old.unknown;
            n.values.extend(
                old.values
                    .into_iter()
                    .filter(|(p, _)| !n.values.iter().any(|(q, _)| q == p))
                    .collect::<Vec<_>>(),
            );
        }
        list.push(n);
    }
}
