//! What goes into the machine: what happened, and what somebody asks for.

use crate::error::{AgentError, Result};
use crate::evidence::Evidence;
use crate::ports::EnvCopies;
use crate::settings::{EntryResult, Written};
use crate::state::{Confirm, OnSilence};
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::Slot;

/// What happened, or what somebody asks for.
#[derive(Debug, Clone)]
pub enum Event {
    /// The agent started.
    Started {
        /// Both environment copies, or why they cannot be read.
        copies: Result<EnvCopies>,
        /// What earlier boots left behind.
        evidence: Evidence,
    },
    /// Somebody asks to stage.
    Stage(StageAsk),
    /// The worker is about to write the first byte of the slot.
    FirstWrite,
    /// The slot was written, flushed, read back and inspected.
    Installed(SlotContent),
    /// The slot was read back and equals its record.
    ReadBack,
    /// A slot that nobody writes reads as this, and not as recorded.
    Contradicts(Slot, Sha256Digest),
    /// The worker failed.
    WorkFailed(AgentError),
    /// Somebody asks to arm.
    Activate(ActivateAsk),
    /// Arming failed; the environment that counts now.
    ArmFailed(Option<Env>, AgentError),
    /// Somebody asks to commit.
    Commit(CommitAsk),
    /// Somebody asks to roll back.
    Rollback(RollbackAsk),
    /// Somebody asks to stop or disarm.
    Cancel(CancelAsk),
    /// Somebody asks to change settings.
    Configure(ConfigureAsk),
    /// Settings were changed, or why nothing was.
    Configured(Result<Applied>),
    /// Somebody lifts the denial of a digest.
    Forget(Sha256Digest),
    /// A trial got further: what, and when after boot.
    Sign(String, u64),
    /// All gates held long enough.
    Healthy,
    /// They no longer hold.
    NotHealthy,
    /// A verdict that is final at once.
    Bad(String),
    /// The trial cannot be judged, and that is not the image's doing.
    Obstructed(String),
    /// The deadline passed; why it was not good before.
    Deadline(String),
}

/// Asks for a Stage.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct StageAsk {
    /// Id, never empty.
    pub op_id: String,
    /// Checksum of the payload.
    pub digest: Sha256Digest,
    /// PRETTY_NAME or VERSION_ID that it must have; `None` = any.
    pub version: Option<String>,
    /// Who asks.
    pub asked_by: String,
    /// Also a digest that failed before.
    pub force: bool,
    /// Only check.
    pub dry_run: bool,
    /// The source is the other slot itself.
    pub from_slot: Option<Slot>,
}

/// Asks for an Activate.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ActivateAsk {
    /// Id, never empty.
    pub op_id: String,
    /// Who asks.
    pub asked_by: String,
    /// What the slot must hold; `None` = what is staged.
    pub digest: Option<Sha256Digest>,
    /// The boot that the caller saw; empty = any.
    pub expect_boot_id: String,
    /// Unix seconds after which the order is void; 0 = never.
    pub valid_until_unix: i64,
    /// Reboot after the reply.
    pub reboot: bool,
    /// Who gives the final word.
    pub confirm: Confirm,
    /// Span of a trial boot; 0 = the node's default.
    pub deadline_secs: u64,
    /// What silence means.
    pub on_silence: OnSilence,
}

/// Asks for a Commit.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CommitAsk {
    /// What the commit rests on, beside the trial.
    pub proof: Proof,
    /// Id, never empty.
    pub op_id: String,
    /// Who asks.
    pub asked_by: String,
    /// What must run; `None` = whatever does.
    pub digest: Option<Sha256Digest>,
    /// The boot that the caller saw; empty = any.
    pub boot_id: String,
}

/// Why the slot that is to be the default can be trusted to be a system.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Proof {
    /// It runs here.
    Runs,
    /// Somebody says that it runs (an offline disk); so much of it as its record covers reads as this, `None` = no record.
    Read(Option<Sha256Digest>),
    /// Somebody insists.
    Forced,
}

/// Asks for a Rollback.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RollbackAsk {
    /// Id, never empty.
    pub op_id: String,
    /// Who asks.
    pub asked_by: String,
    /// The boot that the caller saw; empty = any.
    pub expect_boot_id: String,
    /// Reboot after the reply, where that is a choice.
    pub reboot: bool,
}

/// Asks for a Cancel.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CancelAsk {
    /// Id, never empty.
    pub op_id: String,
    /// Who asks.
    pub asked_by: String,
    /// The boot that the caller saw; empty = any.
    pub expect_boot_id: String,
    /// Only this operation; empty = whatever runs.
    pub target_op_id: String,
}

/// Asks for a Configure.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigureAsk {
    /// What is asked for, in a form that can be compared.
    pub order: String,
    /// Id, never empty.
    pub op_id: String,
    /// Who asks.
    pub asked_by: String,
}

/// What a Configure did.
#[derive(Debug, Clone, PartialEq)]
pub struct Applied {
    /// One per entry.
    pub entries: Vec<EntryResult>,
    /// Everything that is written and not yet in effect.
    pub waiting: Vec<Written>,
}

/// What the inactive slot holds after an install.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SlotContent {
    /// VERSION_ID.
    pub version: String,
    /// PRETTY_NAME.
    pub os_image: String,
    /// Bytes.
    pub image_size: u64,
    /// Hash of those bytes.
    pub image_sha256: Sha256Digest,
    /// Bytes fetched.
    pub fetched: u64,
    /// Bytes written.
    pub written: u64,
    /// What went wrong on the way and was put right, for the log; empty = nothing.
    pub remark: String,
}
