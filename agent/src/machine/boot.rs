//! What the agent finds when it starts.

use super::{Effect, Node, Step, fallback, trial};
use crate::error::Result;
use crate::evidence::Evidence;
use crate::ports::EnvCopies;
use crate::state::{Armed, Cause, Failure, Phase, Try};
use os_proto::codes::Code;
use os_proto::env_block::{Env, TRIES};
use os_proto::layout::Slot;
use os_proto::record::Content;

/// See [`super::Event::Started`].
pub(super) fn started(before: &Node, now: i64, copies: Result<EnvCopies>, evidence: &Evidence) -> Step {
    let mut node = before.clone();
    node.verified = None;
    node.running_op = None;
    let running = match node.running() {
        Ok(s) => s,
        Err(e) => {
            node.problems.push((e.code, e.message));
            node.phase = Phase::NoSlots;
            return Step::new(node, Vec::new());
        }
    };
    let mut effects = Vec::new();
    if let (
        Ok(EnvCopies {
            env1: Err(one),
            env2: Err(two),
        }),
        false,
    ) = (&copies, node.boot.gated)
    {
        // Which slot runs is only what somebody says here: too little to make it the default.
        node.problems.push((
            Code::EnvLost,
            format!(
                "os-state: both copies are lost: env1: {one}; env2: {two}; \"doctor --repair-state\" writes them for the slot of --running"
            ),
        ));
        node.env = None;
        node.phase = Phase::Idle;
        return Step::new(node, effects);
    }
    let found = copies.as_ref().ok().and_then(EnvCopies::effective);
    let env = match copies {
        Ok(copies) => repair(&mut node, running, &copies, &mut effects),
        Err(e) => {
            node.problems.push((e.code, e.message));
            node.env = None;
            node.phase = Phase::Idle;
            return Step::new(node, effects);
        }
    };
    node.env = Some(env);
    match env.trial() {
        Some(t) if running == t && node.boot.counted => on_trial(&mut node, now, env, evidence, &mut effects),
        Some(t) if running == t => foreign(&mut node, running, &mut effects),
        Some(t) => armed_but_not_running(&mut node, now, env, t, evidence, &mut effects),
        None if running == env.cur => {
            never_armed(&mut node, found.map(|e| e.gen_), &mut effects);
            at_rest(&mut node, now, running, evidence, &mut effects);
        }
        None => foreign(&mut node, running, &mut effects),
    }
    Step::new(node, effects)
}

/// The environment that counts; what is wrong with the copies is reported and repaired first.
fn repair(node: &mut Node, running: Slot, copies: &EnvCopies, effects: &mut Vec<Effect>) -> Env {
    // Offline, a command that only looks changes nothing.
    let rebuilt = if node.boot.gated {
        "was rebuilt"
    } else {
        "is not valid; the next command that changes something rebuilds it"
    };
    let env = match (&copies.env1, &copies.env2) {
        (Ok(a), Ok(b)) if (a.cur, a.try_slot, a.gen_) == (b.cur, b.try_slot, b.gen_) => return *a,
        (Ok(a), second) => {
            if let Err(why) = second {
                node.problems.push((
                    Code::StateBroken,
                    format!("os-state: env2 {rebuilt} from env1: {why}"),
                ));
            }
            Env {
                gen_: a.gen_.wrapping_add(1),
                ..*a
            }
        }
        (Err(why), Ok(b)) => {
            node.problems.push((
                Code::StateBroken,
                format!("os-state: env1 {rebuilt} from env2, without a trial: {why}"),
            ));
            b.disarmed()
        }
        (Err(one), Err(two)) => {
            node.problems.push((
                Code::EnvLost,
                format!(
                    "os-state: both copies were lost and rebuilt for slot {running}: env1: {one}; env2: {two}"
                ),
            ));
            Env::committed(running, 1)
        }
    };
    effects.push(Effect::RepairEnv(env));
    env
}

fn on_trial(node: &mut Node, now: i64, env: Env, evidence: &Evidence, effects: &mut Vec<Effect>) {
    let running = env.try_slot.unwrap_or(env.cur);
    let boot_id = node.boot.boot_id.clone();
    let mut armed = node
        .state
        .armed
        .take()
        .filter(|a| a.slot == running)
        .unwrap_or_else(|| unknown_order(node, running));
    // An earlier try may have panicked; nobody else will ask for its record again.
    if let Some(p) = evidence.panic.as_ref().filter(|p| p.may_follow(armed.armed_unix)) {
        armed.panic = Some(p.clone());
    }
    let again = armed.tries.iter().any(|t| t.boot_id == boot_id);
    if !again {
        armed.tries.push(Try {
            boot_id,
            left: env.left,
            started_unix: now,
            last: "agent started".to_owned(),
            last_secs: 0,
            kept: false,
            unknown: Default::default(),
        });
    }
    node.state.counted_unix = now;
    let ended = again && armed.verdict.as_ref().is_some_and(|v| v.cause != Cause::Deadline);
    node.state.armed = Some(armed);
    node.set_phase(Phase::Trial);
    if ended {
        // The agent stopped between the verdict and the disarm: finish what it began.
        let step = trial::leave(node.clone(), env);
        *node = step.node;
        effects.extend(step.effects);
        return;
    }
    effects.push(Effect::SaveState { required: false });
    if node.boot.gated {
        effects.push(Effect::StartTrial);
    }
}

/// A trial of which the state knows nothing (lost, or armed from outside): local, with the node's defaults.
fn unknown_order(node: &Node, slot: Slot) -> Armed {
    let record = node.record(slot);
    Armed {
        op_id: String::new(),
        slot,
        digest: record.map(|r| r.shown()),
        version: record.map(|r| r.version.clone()).unwrap_or_default(),
        boot_id: String::new(),
        gen_: 0,
        reboot_requested: false,
        confirm: Default::default(),
        deadline_secs: 0,
        on_silence: Default::default(),
        armed_unix: 0,
        tries: Vec::new(),
        verdict: None,
        panic: None,
        unknown: Default::default(),
    }
}

/// The committed slot runs while the environment names a trial of the other one.
fn armed_but_not_running(
    node: &mut Node,
    now: i64,
    env: Env,
    slot: Slot,
    evidence: &Evidence,
    effects: &mut Vec<Effect>,
) {
    let armed = node.state.armed.clone().filter(|a| a.slot == slot);
    if env.left.is_some_and(|l| l < TRIES) {
        let ended = fallback::judge(armed.as_ref(), env.left, evidence);
        node.state.counted_unix = now;
        fallback::record(node, now, armed.as_ref(), &ended);
        node.state.not_started = 0;
        node.set_phase(Phase::FellBack);
        let disarm = node.take_back(env);
        // Without the state the evidence stays in the environment; a trial with no tries left does not start.
        let evidence_may_go = node.read_only || env.left != Some(0);
        effects.push(Effect::SaveState {
            required: !evidence_may_go,
        });
        effects.push(disarm);
        return;
    }
    match armed {
        Some(a) if a.boot_id == node.boot.boot_id => {
            node.set_phase(Phase::Armed);
            if a.reboot_requested {
                repeat_reboot(node, &a.op_id, effects);
            }
        }
        _ => {
            node.state.not_started = node.state.not_started.saturating_add(1);
            let mut f = Failure::of(
                Code::TrialNotStarted,
                format!(
                    "the boot loader did not count: slot {slot} was armed but slot {} runs ({} in a row; a boot by kexec or from \
                     the menu looks the same)",
                    env.cur, node.state.not_started
                ),
                now,
            );
            f.cause = Some(Cause::NotStarted);
            f.slot = Some(slot);
            f.digest = armed
                .as_ref()
                .and_then(|a| a.digest)
                .map(|d| d.to_string())
                .unwrap_or_default();
            if let Some(a) = &armed {
                super::ops::remark(node, &a.op_id, f.message.clone());
            }
            node.state.last_failure = Some(f);
            let disarm = node.take_back(env);
            rest(node, env.cur);
            effects.push(Effect::SaveState { required: false });
            effects.push(disarm);
        }
    }
}

/// Repeats a reboot request that the agent's restart may have swallowed, once.
fn repeat_reboot(node: &mut Node, op_id: &str, effects: &mut Vec<Effect>) {
    match node.state.operation_mut(op_id) {
        Some(o) if o.reboots < 2 => {
            o.reboots += 1;
            effects.push(Effect::SaveState { required: true });
            effects.push(Effect::Reboot);
        }
        _ => node.problems.push((
            Code::RebootStuck,
            format!(
                "operation {op_id} asked for a reboot twice and the boot id is unchanged: reboot the node"
            ),
        )),
    }
}

/// The state says that a slot was armed, but the environment is older than that: the power failed in between. The operation
/// is open again, so that the same request finishes it; its reboot was never asked for.
fn never_armed(node: &mut Node, found: Option<u32>, effects: &mut Vec<Effect>) {
    let (Some(armed), Some(found)) = (&node.state.armed, found) else {
        return;
    };
    let behind = armed.gen_.wrapping_sub(found);
    if armed.gen_ == 0 || behind == 0 || behind > u32::MAX / 2 || !armed.tries.is_empty() {
        return;
    }
    let op_id = armed.op_id.clone();
    node.state.armed = None;
    if let Some(o) = node.state.operation_mut(&op_id) {
        o.finished_unix = 0;
        o.reboot_requested = false;
        o.reboots = 0;
        o.result = Default::default();
    }
    effects.push(Effect::SaveState { required: false });
}

/// The committed slot runs and nothing is armed.
fn at_rest(node: &mut Node, now: i64, running: Slot, evidence: &Evidence, effects: &mut Vec<Effect>) {
    let Some(armed) = node.state.armed.take() else {
        rest(node, running);
        return;
    };
    if armed.slot == running {
        // Committed, but the agent stopped before it could say so.
        super::commit::settle_commit(node, running, &armed);
    } else if armed.verdict.is_some() {
        // The verdict recorded the failure before it disarmed.
        node.set_phase(Phase::FellBack);
    } else if effects.is_empty() && armed.boot_id != node.boot.boot_id && !armed.boot_id.is_empty() {
        // Not taken back by a repair just now: the trial disarmed itself in a boot that could not store why.
        let mut ended = fallback::judge(Some(&armed), None, evidence);
        ended.cause = Cause::Interrupted;
        ended.tries = u32::try_from(armed.tries.len()).unwrap_or(0).max(1);
        ended.silent = 0;
        ended.detail = "the trial is over, and why could not be stored where this boot finds it".to_owned();
        fallback::record(node, now, Some(&armed), &ended);
        node.set_phase(Phase::FellBack);
    } else {
        rest(node, running);
    }
    effects.push(Effect::SaveState { required: false });
}

/// The phase when nothing is armed or on trial: what the state says, as far as the slots bear it out.
fn rest(node: &mut Node, running: Slot) {
    let target = running.other();
    let holds = node.state.staged.as_ref().is_some_and(|s| {
        s.slot == target
            && node
                .record(target)
                .is_some_and(|r| r.content == Content::Verified && r.image_sha256 == s.image_sha256)
    });
    if !holds {
        node.state.staged = None;
    }
    let phase = match node.state.phase {
        _ if holds => Phase::Staged,
        Phase::FellBack => Phase::FellBack,
        _ => Phase::Idle,
    };
    node.set_phase(phase);
}

/// A slot runs that is neither committed nor counted.
fn foreign(node: &mut Node, running: Slot, effects: &mut Vec<Effect>) {
    let ended = node.state.armed.as_ref().is_some_and(|a| {
        a.slot == running && a.verdict.is_some() && a.tries.iter().any(|t| t.boot_id == node.boot.boot_id)
    });
    node.phase = Phase::Foreign;
    if ended {
        // The trial was ended in this very boot; only the reboot is missing.
        node.leaving = true;
        effects.push(Effect::Reboot);
    }
}
