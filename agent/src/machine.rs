//! The update's state machine. PURE: node × event → node + ordered effects, or a refusal with its code.
//!
//! The order of the effects is the safety argument: an effect that must be durable before another stands before it, and
//! the interpreter (`engine`) performs them one by one and stops at the first that fails. Nothing here reads a clock, a
//! disk or the environment; `now` is Unix seconds and comes with every event.

use crate::error::{AgentError, Result};
use crate::state::{Cause, Confirm, Kind, OnSilence, OpResult, Operation, Phase, State};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::Slot;
use os_proto::record::{Content, SlotRecord};

mod back;
mod boot;
mod commit;
mod events;
mod fallback;
mod ops;
mod settings;
mod stage;
mod switch;
mod trial;

pub use events::*;

/// Failed stage runs of one digest before only `forget` or `force` allow another.
pub const STAGE_BUDGET: u32 = 5;
/// Fallbacks of one digest before only `forget` or `force` allow another, even where no single one denies it.
pub const FALLBACK_BUDGET: u32 = 5;
/// Tries without a report that deny a digest.
pub const SILENT_TRIES: u32 = 3;

/// Facts of this boot; they do not change while the agent runs.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Boot {
    /// The slot that runs, or why there are no slots.
    pub running: std::result::Result<Slot, AgentError>,
    /// Identity of this boot.
    pub boot_id: String,
    /// GRUB counted this boot as a try (`os.trial=` on the command line).
    pub counted: bool,
    /// Commits need a health verdict. Not so offline, where nothing of the slot runs.
    pub gated: bool,
}

/// The operation that a worker is busy with.
#[derive(Debug, Clone, PartialEq)]
pub struct Running {
    /// Its id.
    pub op_id: String,
    /// What it does.
    pub kind: Kind,
    /// The phase before it.
    pub before: Phase,
    /// It was asked to stop.
    pub cancelling: bool,
    /// The first byte may have been written.
    pub wrote: bool,
    /// What to do once the slot is read back.
    pub then: Then,
}

/// What a read-back is for.
#[derive(Debug, Clone, PartialEq)]
pub enum Then {
    /// The slot becomes staged under this checksum.
    Stage {
        /// The checksum asked for.
        digest: Sha256Digest,
    },
    /// The slot is armed.
    Arm(ArmAsk),
    /// No slot is read back: settings are changed.
    Nothing,
}

/// How a slot is to be armed.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ArmAsk {
    /// The slot.
    pub slot: Slot,
    /// Reboot after the reply.
    pub reboot: bool,
    /// Who gives the final word.
    pub confirm: Confirm,
    /// Span of a trial boot; 0 = the node's default.
    pub deadline_secs: u64,
    /// What silence means.
    pub on_silence: OnSilence,
}

/// Everything that decisions depend on.
#[derive(Debug, Clone, PartialEq)]
pub struct Node {
    /// Facts of this boot.
    pub boot: Boot,
    /// The environment that counts; `None` = not readable.
    pub env: Option<Env>,
    /// Where the update stands.
    pub phase: Phase,
    /// The durable state.
    pub state: State,
    /// A newer agent wrote the state: it is not written.
    pub read_only: bool,
    /// Slot records, A then B.
    pub records: [Option<SlotRecord>; 2],
    /// The slot that this process read back, with its image hash. Not inherited by the next process.
    pub verified: Option<(Slot, Sha256Digest)>,
    /// The operation under way.
    pub running_op: Option<Running>,
    /// All gates held long enough.
    pub healthy: bool,
    /// The node is about to reboot after a verdict; nothing else is accepted.
    pub leaving: bool,
    /// Degraded things found at start.
    pub problems: Vec<(Code, String)>,
}

/// One thing to do. Performed in order; the first failure stops the rest.
#[derive(Debug, Clone, PartialEq)]
pub enum Effect {
    /// Make the state durable. When it is not `required`, a failure is reported and the rest goes on.
    SaveState {
        /// Stop when it fails.
        required: bool,
    },
    /// Make a slot's record durable.
    SaveRecord {
        /// Which.
        slot: Slot,
        /// Its content.
        record: Box<SlotRecord>,
        /// Stop when it fails.
        required: bool,
    },
    /// Make both environment copies equal and valid again.
    RepairEnv(Env),
    /// No slot is on trial any more.
    Disarm(Env),
    /// Durable before arming: signs of life start over; this slot keeps its own /etc in its trial, where it is given.
    PrepareTrial(Option<Slot>),
    /// The slot is on trial from the next boot on. Consumes the proof that it was read back.
    Arm(Slot, Env),
    /// The running slot is the default.
    Commit(Env),
    /// Both copies must read back as this.
    ReadEnvBack(Env),
    /// Hand the running operation to the worker.
    StartWork,
    /// Ask the worker to stop.
    CancelWork,
    /// Start deadline and probes.
    StartTrial,
    /// Stop the early timer that ends a trial without the agent.
    StopTrialTimer,
    /// The caller gets its answer.
    Reply,
    /// Ask for an orderly reboot.
    Reboot,
}

/// What the caller gets.
#[derive(Debug, Clone, PartialEq)]
pub enum Outcome {
    /// Done; the stored result.
    Done(OpResult),
    /// A worker is busy with it; the result comes later.
    Started,
    /// It runs already.
    Joined,
    /// It ran before; the stored operation.
    Replay(Box<Operation>),
    /// Nothing was changed; it would have been accepted.
    WouldRun,
}

/// Result of an accepted event.
#[derive(Debug, Clone, PartialEq)]
pub struct Step {
    /// The node afterwards.
    pub node: Node,
    /// What to do, in order.
    pub effects: Vec<Effect>,
    /// What the caller gets.
    pub outcome: Outcome,
}

impl Step {
    fn new(node: Node, effects: Vec<Effect>) -> Step {
        Step {
            node,
            effects,
            outcome: Outcome::Done(OpResult::default()),
        }
    }

    fn done(node: Node, effects: Vec<Effect>, result: OpResult) -> Step {
        Step {
            node,
            effects,
            outcome: Outcome::Done(result),
        }
    }

    fn outcome(node: &Node, outcome: Outcome) -> Step {
        Step {
            node: node.clone(),
            effects: Vec::new(),
            outcome,
        }
    }
}

impl Node {
    /// A node before [`Event::Started`].
    pub fn new(boot: Boot, state: State, read_only: bool, records: [Option<SlotRecord>; 2]) -> Node {
        Node {
            boot,
            env: None,
            phase: Phase::Idle,
            state,
            read_only,
            records,
            verified: None,
            running_op: None,
            healthy: false,
            leaving: false,
            problems: Vec::new(),
        }
    }

    /// The record of `slot`.
    pub fn record(&self, slot: Slot) -> Option<&SlotRecord> {
        match slot {
            Slot::A => self.records[0].as_ref(),
            Slot::B => self.records[1].as_ref(),
        }
    }

    fn set_record(&mut self, slot: Slot, record: SlotRecord) {
        match slot {
            Slot::A => self.records[0] = Some(record),
            Slot::B => self.records[1] = Some(record),
        }
    }

    /// The slot that runs.
    ///
    /// # Errors
    /// Why there are no slots.
    pub fn running(&self) -> Result<Slot> {
        self.boot.running.clone()
    }

    fn env(&self) -> Result<Env> {
        self.env.ok_or_else(|| {
            AgentError::new(
                Code::StateBroken,
                "os-state: the environment cannot be read, so nothing that changes what boots is possible; see status",
            )
        })
    }

    fn set_phase(&mut self, phase: Phase) {
        self.phase = phase;
        self.state.phase = phase;
    }

    /// No slot is armed or on trial any more, in the state and, by the effect, in the environment.
    fn take_back(&mut self, env: Env) -> Effect {
        self.state.armed = None;
        self.disarm(env)
    }

    /// The same for the environment alone: the state still tells why the trial ended.
    fn disarm(&mut self, env: Env) -> Effect {
        let after = env.disarmed();
        self.env = Some(after);
        Effect::Disarm(after)
    }

    /// The record of `slot` when its content is whole.
    fn whole_record(&self, slot: Slot) -> Option<&SlotRecord> {
        self.record(slot).filter(|r| r.content != Content::Dirty)
    }

    /// The digest under which `slot` is known, for messages.
    pub fn shown(&self, slot: Slot) -> String {
        match self.record(slot) {
            Some(r) if r.content == Content::Dirty => "a half-written image".to_owned(),
            Some(r) => r.shown().to_string(),
            None => "an unknown image".to_owned(),
        }
    }
}

/// The decision. `now` is Unix seconds.
///
/// # Errors
/// A refusal: nothing changes and nothing is to be done.
pub fn step(node: &Node, now: i64, event: Event) -> Result<Step> {
    let order = ops::order(&event);
    if let Some(o) = &order {
        ops::same_order(node, o)?;
    }
    let mut step = decide(node, now, event)?;
    if let Some(o) = order {
        ops::note(&mut step.node, o);
    }
    Ok(step)
}

fn decide(node: &Node, now: i64, event: Event) -> Result<Step> {
    match event {
        Event::Started { copies, evidence } => Ok(boot::started(node, now, copies, &evidence)),
        Event::Stage(ask) => stage::ask(node, now, &ask),
        Event::FirstWrite => stage::first_write(node),
        Event::Installed(c) => stage::installed(node, now, &c),
        Event::ReadBack => stage::read_back(node, now),
        Event::Contradicts(slot, found) => Ok(stage::contradicts(node, now, slot, found)),
        Event::WorkFailed(e) => Ok(stage::failed(node, now, &e)),
        Event::Activate(ask) => switch::activate(node, now, &ask),
        Event::ArmFailed(env, e) => Ok(switch::arm_failed(node, now, env, &e)),
        Event::Commit(ask) => commit::commit(node, now, &ask),
        Event::Rollback(ask) => back::rollback(node, now, &ask),
        Event::Cancel(ask) => back::cancel(node, now, &ask),
        Event::Configure(ask) => settings::ask(node, now, &ask),
        Event::Configured(done) => Ok(settings::done(node, now, done)),
        Event::Forget(d) => back::forget(node, &d),
        Event::Sign(what, secs) => Ok(trial::sign(node, &what, secs)),
        Event::Healthy => Ok(trial::healthy(node, now)),
        Event::NotHealthy => Ok(trial::not_healthy(node)),
        Event::Bad(why) => Ok(trial::bad(node, now, Cause::HealthFailed, &why)),
        Event::Obstructed(why) => Ok(trial::bad(node, now, Cause::Interrupted, &why)),
        Event::Deadline(why) => Ok(trial::deadline(node, now, &why)),
    }
}

#[cfg(test)]
mod tests;
