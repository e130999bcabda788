//! The agent's state as a Prometheus text file, for a node exporter's textfile collector.
//!
//! Format: Prometheus exposition format 0.0.4. [`text`] is PURE; [`keep`] replaces the file on change.

use crate::engine::Engine;
use crate::sys::atomic;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::v1;
use std::fmt::Write;
use std::sync::Arc;
use std::time::Duration;

/// Between two writes, at least.
const PERIOD: Duration = Duration::from_secs(5);

/// A label's value: backslash, quote and line feed are escaped.
fn escaped(value: &str) -> String {
    value
        .replace('\\', "\\\\")
        .replace('"', "\\\"")
        .replace('\n', "\\n")
}

/// A file in the making; names get the prefix `os_agent_`.
#[derive(Default)]
pub(crate) struct Sheet(String);

impl Sheet {
    pub(crate) fn into_text(self) -> String {
        self.0
    }

    pub(crate) fn family(&mut self, name: &str, kind: &str, help: &str) {
        let _ = writeln!(
            self.0,
            "# HELP os_agent_{name} {help}\n# TYPE os_agent_{name} {kind}"
        );
    }

    pub(crate) fn value(&mut self, name: &str, labels: &[(&str, &str)], value: impl std::fmt::Display) {
        let list: Vec<String> = labels
            .iter()
            .map(|(k, v)| format!("{k}=\"{}\"", escaped(v)))
            .collect();
        let braces = if list.is_empty() {
            String::new()
        } else {
            format!("{{{}}}", list.join(","))
        };
        let _ = writeln!(self.0, "os_agent_{name}{braces} {value}");
    }

    pub(crate) fn gauge(&mut self, name: &str, help: &str, value: impl std::fmt::Display) {
        self.family(name, "gauge", help);
        self.value(name, &[], value);
    }
}

/// Every phase's name, so that a series exists for each.
const PHASES: [(v1::Phase, &str); 8] = [
    (v1::Phase::Idle, "idle"),
    (v1::Phase::Staging, "staging"),
    (v1::Phase::Staged, "staged"),
    (v1::Phase::Armed, "armed"),
    (v1::Phase::Trial, "trial"),
    (v1::Phase::FellBack, "fell_back"),
    (v1::Phase::Foreign, "foreign"),
    (v1::Phase::NoSlots, "no_slots"),
];

fn letter(slot: i32) -> &'static str {
    match v1::Slot::try_from(slot) {
        Ok(v1::Slot::A) => "A",
        Ok(v1::Slot::B) => "B",
        _ => "",
    }
}

/// The file's text.
pub fn text(s: &v1::StatusReply) -> String {
    let mut t = Sheet::default();
    t.family(
        "info",
        "gauge",
        "Versions of the agent and of the running system.",
    );
    t.value(
        "info",
        &[
            ("version", s.agent_version.as_str()),
            ("os_version", s.os_version.as_str()),
            ("version_id", s.version_id.as_str()),
            ("slot", letter(s.running)),
        ],
        1,
    );
    t.family("phase", "gauge", "1 for the phase that the update is in.");
    for (phase, name) in PHASES {
        t.value("phase", &[("phase", name)], u8::from(s.phase() == phase));
    }
    t.family("slot_info", "gauge", "What the slots hold.");
    for k in &s.slots {
        let state = format!("{:?}", k.state()).to_lowercase();
        t.value(
            "slot_info",
            &[
                ("slot", letter(k.slot)),
                ("version", k.version.as_str()),
                ("image_sha256", k.image_sha256.as_str()),
                ("state", state.as_str()),
            ],
            1,
        );
    }
    if let Some(e) = &s.env {
        t.family(
            "env_valid",
            "gauge",
            "Whether a copy of the boot environment is valid.",
        );
        t.value("env_valid", &[("copy", "env1")], u8::from(e.env1_valid));
        t.value("env_valid", &[("copy", "env2")], u8::from(e.env2_valid));
        t.gauge("env_generation", "Writes of the boot environment.", e.r#gen);
        t.gauge(
            "tries_left",
            "Boots left of a trial; 0 without one.",
            e.left.unwrap_or(0),
        );
    }
    if let Some(p) = &s.progress {
        t.gauge(
            "operation_done_bytes",
            "Bytes done of the running step.",
            p.done_bytes,
        );
        t.gauge(
            "operation_total_bytes",
            "Bytes of the running step; 0 when unknown.",
            p.total_bytes,
        );
    }
    t.gauge(
        "last_failure_timestamp_seconds",
        "When something last failed; 0 = never.",
        s.last_failure.as_ref().map_or(0, |f| f.at_unix),
    );
    t.gauge(
        "failed_digests",
        "Digests that fell back.",
        s.failed_digests.len(),
    );
    t.gauge(
        "denied_digests",
        "Digests that are refused until somebody forgets them.",
        s.failed_digests.iter().filter(|f| f.denied).count(),
    );
    t.family("problem", "gauge", "1 for every problem that status lists.");
    let mut codes: Vec<&str> = s.problems.iter().map(|p| p.code.as_str()).collect();
    codes.sort_unstable();
    codes.dedup();
    for code in codes {
        t.value("problem", &[("code", code)], 1);
    }
    t.gauge(
        "reboot_required",
        "1 when a reboot is due.",
        u8::from(s.reboot_required),
    );
    t.gauge(
        "persist_available",
        "1 when state can be stored.",
        u8::from(s.persist_available),
    );
    if let Some(h) = &s.health {
        t.gauge(
            "healthy",
            "1 when all gates of the trial hold.",
            u8::from(h.healthy),
        );
    }
    t.0
}

/// Replaces `path` on every change, at most every five seconds, until the engine is gone. A file that cannot be written is
/// reported once and tried again with the next change.
pub async fn keep(engine: Arc<Engine>, path: Utf8PathBuf) {
    let mut changes = engine.changes();
    let mut told = false;
    loop {
        changes.mark_unchanged();
        let (e, p) = (engine.clone(), path.clone());
        let written = tokio::task::spawn_blocking(move || write(&p, &text(&e.status()))).await;
        if let Ok(Err(e)) = written
            && !std::mem::replace(&mut told, true)
        {
            tracing::warn!(%e, "metrics");
        }
        tokio::time::sleep(PERIOD).await;
        if changes.changed().await.is_err() {
            return;
        }
    }
}

fn write(path: &Utf8Path, text: &str) -> crate::error::Result<()> {
    atomic::replace(path, text.as_bytes(), 0o644)
}

#[cfg(test)]
mod tests;
