//! What the durable state is made of. Every record keeps the keys that this version does not know.

use crate::evidence::Panic;
use crate::settings::EntryResult;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// Keys that this version does not know.
pub(super) type Unknown = Map<String, Value>;

/// Where an update stands.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Phase {
    /// Nothing under way.
    #[default]
    Idle,
    /// A payload is being written to the inactive slot.
    Staging,
    /// The inactive slot holds a verified image.
    Staged,
    /// The inactive slot is armed; the next boot tries it.
    Armed,
    /// The running slot is on trial.
    Trial,
    /// A trial ended without a commit; the committed slot runs.
    FellBack,
    /// Neither a trial nor the committed slot runs: somebody chose it at the console.
    Foreign,
    /// A machine without slots.
    NoSlots,
}

impl Phase {
    /// As `status` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Phase::Idle => "idle",
            Phase::Staging => "staging",
            Phase::Staged => "staged",
            Phase::Armed => "armed",
            Phase::Trial => "trial",
            Phase::FellBack => "fell-back",
            Phase::Foreign => "foreign",
            Phase::NoSlots => "no-slots",
        }
    }
}

/// Why a trial ended without a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Cause {
    /// The kernel panicked; there is a pstore record.
    Panic,
    /// A health verdict was bad.
    HealthFailed,
    /// The deadline passed.
    Deadline,
    /// Tries never reached the agent.
    NoReport,
    /// Every try reached the agent and ended without a verdict.
    Interrupted,
    /// Somebody called Rollback.
    RolledBack,
    /// The boot loader did not count.
    NotStarted,
}

impl Cause {
    /// As `status` prints it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Cause::Panic => "panic",
            Cause::HealthFailed => "health-failed",
            Cause::Deadline => "deadline",
            Cause::NoReport => "no-report",
            Cause::Interrupted => "interrupted",
            Cause::RolledBack => "rolled-back",
            Cause::NotStarted => "not-started",
        }
    }
}

/// Who gives the final word on a trial.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Confirm {
    /// The gates on the node suffice.
    #[default]
    Local,
    /// `Commit` must be called as well.
    Cluster,
}

/// What happens when the node is healthy but nobody calls `Commit` before the deadline.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum OnSilence {
    /// Reboot; one try is used up.
    #[default]
    Reboot,
    /// Stay uncommitted and report.
    Keep,
}

/// What an operation does.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Kind {
    /// Write the inactive slot.
    Stage,
    /// Arm it.
    Activate,
    /// Make the running slot the default.
    Commit,
    /// End a trial, or go to the other slot.
    Rollback,
    /// Stop or disarm.
    Cancel,
    /// Change settings.
    Configure,
}

impl Kind {
    /// As the interface writes it.
    pub const fn as_str(self) -> &'static str {
        match self {
            Kind::Stage => "stage",
            Kind::Activate => "activate",
            Kind::Commit => "commit",
            Kind::Rollback => "rollback",
            Kind::Cancel => "cancel",
            Kind::Configure => "configure",
        }
    }
}

/// One operation and its result.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Operation {
    /// Chosen by the caller.
    pub op_id: String,
    /// What it does.
    pub kind: Kind,
    /// The digest it is about, as given.
    #[serde(default)]
    pub digest: String,
    /// The arguments that decide what it does; the same id with others is refused. Empty = an older agent wrote it.
    #[serde(default)]
    pub order: String,
    /// Version it is about, where known.
    #[serde(default)]
    pub version: String,
    /// Who asked: `uid:pid` or `offline`.
    #[serde(default)]
    pub asked_by: String,
    /// Unix seconds.
    pub started_unix: i64,
    /// Unix seconds; 0 = not finished.
    #[serde(default)]
    pub finished_unix: i64,
    /// Error code; empty on success and while it runs.
    #[serde(default)]
    pub code: String,
    /// Error message, or what came of it.
    #[serde(default)]
    pub message: String,
    /// The boot in which it started.
    #[serde(default)]
    pub boot_id: String,
    /// It asked for a reboot.
    #[serde(default)]
    pub reboot_requested: bool,
    /// A reboot was requested on its behalf; never again.
    #[serde(default)]
    pub reboots: u32,
    /// What the call returned, to answer a repetition.
    #[serde(default)]
    pub result: OpResult,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The stored answer of an operation.
#[derive(Debug, Clone, PartialEq, Eq, Default, Serialize, Deserialize)]
pub struct OpResult {
    /// Slot it was about.
    #[serde(default)]
    pub slot: Option<Slot>,
    /// Hash of the image on the slot.
    #[serde(default)]
    pub image_sha256: Option<Sha256Digest>,
    /// Bytes of the image.
    #[serde(default)]
    pub image_size: u64,
    /// Bytes fetched.
    #[serde(default)]
    pub fetched: u64,
    /// Bytes written.
    #[serde(default)]
    pub written: u64,
    /// Nothing had to be done.
    #[serde(default)]
    pub already: bool,
    /// Settings, one per entry; kept for the newest operations only.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub settings: Vec<EntryResult>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A digest that is staged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Staged {
    /// The slot that holds it.
    pub slot: Slot,
    /// The checksum it was staged under.
    pub digest: Sha256Digest,
    /// Hash of the image on the slot.
    pub image_sha256: Sha256Digest,
    /// VERSION_ID.
    #[serde(default)]
    pub version: String,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// An armed slot, kept until its trial is over.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Armed {
    /// The operation that armed it.
    pub op_id: String,
    /// The slot.
    pub slot: Slot,
    /// The checksum it was staged under, where known.
    #[serde(default)]
    pub digest: Option<Sha256Digest>,
    /// VERSION_ID.
    #[serde(default)]
    pub version: String,
    /// The boot in which it was armed.
    pub boot_id: String,
    /// Generation of the environment that arms it; 0 = not known. An older one on the disk means that it never was armed.
    #[serde(default, rename = "gen")]
    pub gen_: u32,
    /// The operation asked for a reboot.
    #[serde(default)]
    pub reboot_requested: bool,
    /// Who gives the final word.
    #[serde(default)]
    pub confirm: Confirm,
    /// Span of a trial boot in seconds; 0 = the node's default.
    #[serde(default)]
    pub deadline_secs: u64,
    /// What silence means.
    #[serde(default)]
    pub on_silence: OnSilence,
    /// When it was armed, Unix seconds.
    #[serde(default)]
    pub armed_unix: i64,
    /// Trial boots that reached the agent.
    #[serde(default)]
    pub tries: Vec<Try>,
    /// The verdict that ended it, where there was one.
    #[serde(default)]
    pub verdict: Option<Verdict>,
    /// The last kernel panic of one of its boots that a later one reported.
    #[serde(default)]
    pub panic: Option<Panic>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A trial boot that reached the agent.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Try {
    /// Its boot.
    pub boot_id: String,
    /// Tries left after it.
    #[serde(default)]
    pub left: Option<u8>,
    /// When the agent started in it, Unix seconds.
    #[serde(default)]
    pub started_unix: i64,
    /// The last thing the agent saw.
    #[serde(default)]
    pub last: String,
    /// When, seconds after boot.
    #[serde(default)]
    pub last_secs: u64,
    /// `on_silence = keep` took effect: it stays uncommitted.
    #[serde(default)]
    pub kept: bool,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A verdict on a trial.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Verdict {
    /// Which.
    pub cause: Cause,
    /// For people.
    #[serde(default)]
    pub detail: String,
}

/// A digest that fell back.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedDigest {
    /// Which; the image hash where no checksum is known.
    pub digest: Sha256Digest,
    /// VERSION_ID, where known.
    #[serde(default)]
    pub version: String,
    /// Why, the last time.
    pub cause: Cause,
    /// For people.
    #[serde(default)]
    pub detail: String,
    /// How often.
    #[serde(default)]
    pub count: u32,
    /// Tries that never reached the agent, over all operations.
    #[serde(default)]
    pub silent_tries: u32,
    /// When, the last time; Unix seconds.
    #[serde(default)]
    pub at_unix: i64,
    /// Whether staging it again needs `force` or `forget`.
    #[serde(default)]
    pub denied: bool,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// A digest that could not be staged.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct FailedStage {
    /// Which.
    pub digest: Sha256Digest,
    /// Runs that failed in a row.
    pub count: u32,
    /// The last failure.
    #[serde(default)]
    pub last: String,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

/// The last failure, for `status`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Failure {
    /// Error code; empty for a fallback.
    #[serde(default)]
    pub code: String,
    /// For people.
    #[serde(default)]
    pub message: String,
    /// Unix seconds.
    #[serde(default)]
    pub at_unix: i64,
    /// The digest it is about.
    #[serde(default)]
    pub digest: String,
    /// Why a trial ended.
    #[serde(default)]
    pub cause: Option<Cause>,
    /// The last thing that any try reported.
    #[serde(default)]
    pub last_sign_of_life: String,
    /// Tries used up.
    #[serde(default)]
    pub tries: u32,
    /// The slot it is about.
    #[serde(default)]
    pub slot: Option<Slot>,
    /// The kernel's last lines, after a panic.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub kernel_lines: Vec<String>,
    /// Keys that this version does not know.
    #[serde(flatten)]
    pub unknown: Unknown,
}

impl Failure {
    /// A failure with a code.
    pub fn of(code: Code, message: impl Into<String>, at_unix: i64) -> Failure {
        Failure {
            code: code.as_str().to_owned(),
            message: message.into(),
            at_unix,
            digest: String::new(),
            cause: None,
            last_sign_of_life: String::new(),
            tries: 0,
            slot: None,
            kernel_lines: Vec::new(),
            unknown: Unknown::new(),
        }
    }
}
