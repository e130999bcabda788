//! The manifest of a bashible bundle: which steps, in which order, with which attributes, and the hash that decides a run.
//!
//! Shared by whoever makes bundles and by the runner. Pure: hashing itself is the caller's, over [`Manifest::canonical`].

use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// Version of the manifest format that this code reads and writes.
pub const SCHEMA: u32 = 1;
/// The upstream step that waits for an update's approval; what sorts before it runs unapproved.
pub const APPROVAL_STEP: &str = "001_waiting_approval_annotations";
/// Attributes are looked for in so many lines of a step.
pub const HEADER_LINES: usize = 25;
/// Most steps of one bundle.
pub const MAX_STEPS: usize = 1000;
/// Largest step file, bytes.
pub const MAX_STEP_BYTES: u64 = 1 << 20;

/// Why a bundle is not acceptable; names the step or key, what was expected and what was found.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct BadBundle(pub String);

/// When a step runs within its run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Also on a node whose update is not approved: what repairs access to the node and to the API.
    PreApproval,
    /// The normal case.
    #[default]
    Main,
    /// After all main steps.
    Late,
}

/// What a failed step means for those after it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnFailure {
    /// The run ends.
    #[default]
    Block,
    /// The run goes on and ends degraded.
    Continue,
}

/// How a step is run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct Attributes {
    /// Limit of one attempt, seconds.
    pub timeout_sec: u64,
    /// Attempts per run.
    pub retries: u32,
    /// Neighbours of one group run at the same time.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub parallel_group: Option<String>,
    /// What a failure means for the run.
    pub on_failure: OnFailure,
    /// Needs approval of a disruption before it starts.
    pub may_disrupt: bool,
    /// When it runs.
    pub phase: Phase,
}

impl Default for Attributes {
    fn default() -> Attributes {
        Attributes {
            timeout_sec: 600,
            retries: 10,
            parallel_group: None,
            on_failure: OnFailure::Block,
            may_disrupt: false,
            phase: Phase::Main,
        }
    }
}

impl Attributes {
    /// Reads `# agent: key=value …` and upstream's `# bashible: parallel-group=NAME` from the first [`HEADER_LINES`] lines.
    ///
    /// # Errors
    /// An unknown key or a value that does not fit, with the line.
    pub fn from_step(step: &str, text: &str) -> Result<Attributes, BadBundle> {
        let mut a = Attributes::default();
        for (i, line) in text.lines().take(HEADER_LINES).enumerate() {
            let Some(comment) = line.trim_start().strip_prefix('#') else {
                continue;
            };
            let comment = comment.trim();
            let bad = |m: String| BadBundle(format!("step {step}, line {}: {m}", i + 1));
            if let Some(rest) = comment.strip_prefix("agent:") {
                for pair in rest.split_whitespace() {
                    let (key, value) = pair
                        .split_once('=')
                        .ok_or_else(|| bad(format!("expected key=value, found {pair:?}")))?;
                    a.set(key, value).map_err(bad)?;
                }
            } else if let Some(group) = comment
                .strip_prefix("bashible:")
                .and_then(|r| r.trim().strip_prefix("parallel-group="))
            {
                a.set("parallelGroup", group).map_err(bad)?;
            }
        }
        Ok(a)
    }

    fn set(&mut self, key: &str, value: &str) -> Result<(), String> {
        fn number<T: std::str::FromStr>(key: &str, value: &str) -> Result<T, String> {
            value
                .parse()
                .map_err(|_| format!("{key}={value:?}: expected a number"))
        }
        fn word<T: serde::de::DeserializeOwned>(key: &str, value: &str, of: &str) -> Result<T, String> {
            serde_json::from_value(serde_json::Value::String(value.to_owned()))
                .map_err(|_| format!("{key}={value:?}: expected {of}"))
        }
        match key {
            "timeoutSec" | "timeout-sec" => self.timeout_sec = number(key, value)?,
            "retries" => self.retries = number(key, value)?,
            "parallelGroup" | "parallel-group" => self.parallel_group = Some(value.trim().to_owned()),
            "onFailure" | "on-failure" => self.on_failure = word(key, value, "block or continue")?,
            "mayDisrupt" | "may-disrupt" => self.may_disrupt = word_bool(key, value)?,
            "phase" => self.phase = word(key, value, "pre-approval, main or late")?,
            _ => {
                return Err(format!(
                    "unknown attribute {key:?}; known: timeoutSec, retries, parallelGroup, onFailure, mayDisrupt, phase"
                ));
            }
        }
        self.check()
    }

    fn check(&self) -> Result<(), String> {
        if !(1..=10_800).contains(&self.timeout_sec) {
            return Err(format!("timeoutSec={}: expected 1 to 10800", self.timeout_sec));
        }
        if !(1..=1000).contains(&self.retries) {
            return Err(format!("retries={}: expected 1 to 1000", self.retries));
        }
        Ok(())
    }
}

fn word_bool(key: &str, value: &str) -> Result<bool, String> {
    match value {
        "true" | "yes" => Ok(true),
        "false" | "no" => Ok(false),
        _ => Err(format!("{key}={value:?}: expected true or false")),
    }
}

/// One step of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct StepEntry {
    /// File name below `steps/`; the order of a bundle is the byte order of these.
    pub name: String,
    /// `system`, `provider` or `user:NAME`.
    #[serde(default)]
    pub source: String,
    /// SHA-256 of the file, 64 lower-case hex digits.
    pub sha256: String,
    /// Size of the file.
    pub bytes: u64,
    /// How it is run.
    #[serde(default)]
    pub attributes: Attributes,
}

/// Who rendered a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct Renderer {
    /// Program.
    pub name: String,
    /// Its version.
    pub version: String,
}

/// `manifest.json` of a bundle.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Manifest {
    /// [`SCHEMA`].
    pub schema: u32,
    /// Who made it.
    #[serde(default)]
    pub renderer: Renderer,
    /// For which group of nodes.
    #[serde(default)]
    pub node_group: String,
    /// RFC 3339; never part of the hash.
    #[serde(default)]
    pub created_at: String,
    /// SHA-256 of [`Manifest::canonical`]; empty in a manifest that was not stored yet.
    #[serde(default)]
    pub content_hash: String,
    /// SHA-256 of what it was rendered from; never part of the hash.
    #[serde(default)]
    pub inputs_hash: String,
    /// The window in which a verify run is due; never part of the hash.
    #[serde(default)]
    pub epoch: String,
    /// Checksum of the cluster that delivered it, verbatim.
    #[serde(default)]
    pub external_checksum: String,
    /// SHA-256 of the helper library that the steps run under.
    #[serde(default)]
    pub lib_sha256: String,
    /// In order.
    pub steps: Vec<StepEntry>,
}

impl Manifest {
    /// Reads `manifest.json`.
    ///
    /// # Errors
    /// Not JSON of this shape, an unknown schema, or what [`Manifest::check`] finds.
    pub fn parse(text: &[u8]) -> Result<Manifest, BadBundle> {
        #[derive(Deserialize)]
        struct Head {
            schema: u32,
        }
        let bad = |e| BadBundle(crate::json::fault("manifest.json", &e));
        let head: Head = serde_json::from_slice(text).map_err(bad)?;
        if head.schema != SCHEMA {
            return Err(BadBundle(format!(
                "manifest.json: schema {}: expected {SCHEMA}; the bundle is for another runner",
                head.schema
            )));
        }
        let m: Manifest = serde_json::from_slice(text).map_err(bad)?;
        m.check()?;
        Ok(m)
    }

    /// Names are safe and different, the order is that of the names, sizes and attributes are in range.
    ///
    /// # Errors
    /// The first fault.
    pub fn check(&self) -> Result<(), BadBundle> {
        if self.steps.is_empty() {
            return Err(BadBundle("the bundle holds no step".into()));
        }
        if self.steps.len() > MAX_STEPS {
            return Err(BadBundle(format!(
                "the bundle holds {} steps: expected at most {MAX_STEPS}",
                self.steps.len()
            )));
        }
        let mut seen = BTreeSet::new();
        for s in &self.steps {
            check_name(&s.name)?;
            if !seen.insert(s.name.as_str()) {
                return Err(BadBundle(format!("two steps are named {:?}", s.name)));
            }
            if s.bytes > MAX_STEP_BYTES {
                return Err(BadBundle(format!(
                    "step {}: {} bytes: expected at most {MAX_STEP_BYTES}",
                    s.name, s.bytes
                )));
            }
            s.attributes
                .check()
                .map_err(|m| BadBundle(format!("step {}: {m}", s.name)))?;
        }
        if let Some(w) = self
            .steps
            .windows(2)
            .find(|w| matches!(w, [a, b] if a.name > b.name))
        {
            let names: Vec<&str> = w.iter().map(|s| s.name.as_str()).collect();
            return Err(BadBundle(format!(
                "the steps are not in the order of their names: {}",
                names.join(" before ")
            )));
        }
        Ok(())
    }

    /// In a bundle with upstream's approval step, everything that sorts before it is pre-approval.
    pub fn mark_pre_approval(&mut self) {
        if !self.steps.iter().any(|s| s.name.starts_with(APPROVAL_STEP)) {
            return;
        }
        for s in &mut self.steps {
            if s.name.as_str() < APPROVAL_STEP && s.attributes.phase == Phase::Main {
                s.attributes.phase = Phase::PreApproval;
            }
        }
    }

    /// What [`Manifest::content_hash`] is the hash of: canonical JSON (sorted keys, no blanks) of the library's hash and of
    /// each step's name, hash and attributes, in order. Epoch, inputs and the external checksum are not in it.
    pub fn canonical(&self) -> Vec<u8> {
        let steps: Vec<serde_json::Value> = self
            .steps
            .iter()
            .map(|s| serde_json::json!([s.name, s.sha256, s.attributes]))
            .collect();
        let mut out = String::new();
        write_canonical(
            &serde_json::json!({"lib": self.lib_sha256, "steps": steps}),
            &mut out,
        );
        out.into_bytes()
    }
}

/// A step's file name is one path component of plain characters.
///
/// # Errors
/// Names it and says what is allowed.
pub fn check_name(name: &str) -> Result<(), BadBundle> {
    let plain = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '_' | '-' | '+');
    let first = name.chars().next().is_some_and(|c| c.is_ascii_alphanumeric());
    if first && name.len() <= 200 && name.chars().all(plain) {
        return Ok(());
    }
    Err(BadBundle(format!(
        "{name:?} is not a safe step name: expected up to 200 of letters, digits and . _ - +, beginning with a letter or digit"
    )))
}

/// JSON with sorted keys and no blanks, whatever order the parser kept.
fn write_canonical(v: &serde_json::Value, out: &mut String) {
    match v {
        serde_json::Value::Object(map) => {
            let mut keys: Vec<&String> = map.keys().collect();
            keys.sort();
            out.push('{');
            for (i, k) in keys.into_iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                out.push_str(&serde_json::Value::String(k.clone()).to_string());
                out.push(':');
                if let Some(inner) = map.get(k) {
                    write_canonical(inner, out);
                }
            }
            out.push('}');
        }
        serde_json::Value::Array(items) => {
            out.push('[');
            for (i, item) in items.iter().enumerate() {
                if i > 0 {
                    out.push(',');
                }
                write_canonical(item, out);
            }
            out.push(']');
        }
        other => out.push_str(&other.to_string()),
    }
}

#[cfg(test)]
mod tests;
