//! Ways back: end a trial, disarm, go to the other slot, cancel, forget.

use super::switch::{begin, refuse, without_trial};
use super::{ArmAsk, CancelAsk, Effect, Node, Outcome, RollbackAsk, Step, ops, stage, trial};
use crate::error::Result;
use crate::state::{Cause, Kind, OpResult, Phase};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::Slot;
use os_proto::record::Content;

pub(super) fn rollback(node: &Node, now: i64, ask: &RollbackAsk) -> Result<Step> {
    if let Some(outcome) = ops::admit(node, &ask.op_id, Kind::Rollback)? {
        return Ok(Step::outcome(node, outcome));
    }
    let running = node.running()?;
    let env = node.env()?;
    ops::same_boot(node, &ask.expect_boot_id)?;
    let target = running.other();
    match node.phase {
        Phase::Trial => {
            let mut next = node.clone();
            log_rollback(&mut next, now, ask, env.cur, node.boot.gated);
            let mut step = trial::end(next, now, env, Cause::RolledBack, "somebody called rollback");
            let reboot = step.effects.iter().position(|e| *e == Effect::Reboot);
            step.effects
                .insert(reboot.unwrap_or(step.effects.len()), Effect::Reply);
            step.outcome = Outcome::Done(OpResult {
                slot: Some(env.cur),
                ..OpResult::default()
            });
            Ok(step)
        }
        // Asked for again: the way back is armed already. `cancel` takes it back.
        Phase::Armed if armed_by_rollback(node) => {
            let mut next = node.clone();
            log_rollback(&mut next, now, ask, target, ask.reboot);
            let mut effects = vec![Effect::SaveState { required: false }, Effect::Reply];
            effects.extend(ask.reboot.then_some(Effect::Reboot));
            let result = OpResult {
                slot: Some(target),
                ..OpResult::default()
            };
            Ok(Step::done(next, effects, result))
        }
        Phase::Armed => {
            let mut next = node.clone();
            log_rollback(&mut next, now, ask, running, false);
            Ok(disarm(next, env, running))
        }
        Phase::Staged => Err(refuse(
            Code::NothingToDo,
            format!(
                "slot {running} boots next as it is, and slot {target} holds a staged image that never ran, which is no way back; \
                 \"activate\" boots it"
            ),
        )),
        Phase::Foreign => {
            let mut next = node.clone();
            log_rollback(&mut next, now, ask, env.cur, ask.reboot);
            let effects = without_trial(&mut next, env, false, ask.reboot);
            let result = OpResult {
                slot: Some(env.cur),
                ..OpResult::default()
            };
            Ok(Step::done(next, effects, result))
        }
        _ => {
            match node.record(target) {
                None => {
                    return Err(refuse(
                        Code::NothingToDo,
                        format!("slot {target} has no record, so there is nothing known to roll back to"),
                    ));
                }
                Some(r) if r.content == Content::Dirty => {
                    return Err(refuse(
                        Code::NotStaged,
                        format!("slot {target} holds a half-written image: stage first"),
                    ));
                }
                Some(r) => {
                    if let Some(f) = node
                        .state
                        .failed_digests
                        .iter()
                        .find(|f| f.denied && r.is(&f.digest))
                    {
                        return Err(refuse(
                            Code::DigestFailedBefore,
                            format!(
                                "slot {target} holds {}, which fell back: {}; \"forget\" allows it again",
                                f.digest,
                                f.cause.as_str()
                            ),
                        ));
                    }
                }
            }
            let arm_ask = ArmAsk {
                slot: target,
                reboot: ask.reboot,
                confirm: Default::default(),
                deadline_secs: 0,
                on_silence: Default::default(),
            };
            begin(node, now, &ask.op_id, Kind::Rollback, &ask.asked_by, arm_ask)
        }
    }
}

fn armed_by_rollback(node: &Node) -> bool {
    let id = node.state.armed.as_ref().map_or("", |a| a.op_id.as_str());
    node.state.operation(id).is_some_and(|o| o.kind == Kind::Rollback)
}

fn log_rollback(next: &mut Node, now: i64, ask: &RollbackAsk, to: Slot, reboot: bool) {
    ops::open(next, now, &ask.op_id, Kind::Rollback, &ask.asked_by, "");
    let result = OpResult {
        slot: Some(to),
        ..OpResult::default()
    };
    ops::finish(next, now, &ask.op_id, Ok(result));
    if let Some(o) = next.state.operation_mut(&ask.op_id) {
        o.reboot_requested = reboot;
        o.reboots = u32::from(reboot);
    }
}

/// Takes an armed slot back.
fn disarm(mut next: Node, env: Env, running: Slot) -> Step {
    let after = env.disarmed();
    let armed = next.state.armed.clone();
    let disarm = next.take_back(env);
    if let Some(a) = armed {
        ops::remark(&mut next, &a.op_id, "disarmed before it was tried".to_owned());
    }
    let phase = if next.state.staged.is_some() {
        Phase::Staged
    } else {
        Phase::Idle
    };
    next.set_phase(phase);
    Step::done(
        next,
        vec![
            disarm,
            Effect::ReadEnvBack(after),
            Effect::SaveState { required: false },
            Effect::Reply,
        ],
        OpResult {
            slot: Some(running),
            ..OpResult::default()
        },
    )
}

pub(super) fn cancel(node: &Node, now: i64, ask: &CancelAsk) -> Result<Step> {
    if let Some(old) = node.state.operation(&ask.op_id)
        && old.kind == Kind::Cancel
        && old.finished_unix != 0
    {
        return Ok(Step::outcome(node, Outcome::Replay(Box::new(old.clone()))));
    }
    ops::same_boot(node, &ask.expect_boot_id)?;
    let is_target = |id: &str| ask.target_op_id.is_empty() || ask.target_op_id == id;
    if let Some(r) = &node.running_op {
        if !is_target(&r.op_id) {
            return Err(refuse(
                Code::NothingToDo,
                format!("operation {} is not running, {} is", ask.target_op_id, r.op_id),
            ));
        }
        let mut next = node.clone();
        if let Some(r) = &mut next.running_op {
            r.cancelling = true;
        }
        return Ok(Step::new(next, vec![Effect::CancelWork, Effect::Reply]));
    }
    let armed = node.state.armed.as_ref().map_or("", |a| a.op_id.as_str());
    if node.phase == Phase::Armed && is_target(armed) {
        let running = node.running()?;
        let env = node.env()?;
        let mut next = node.clone();
        ops::open(&mut next, now, &ask.op_id, Kind::Cancel, &ask.asked_by, "");
        ops::finish(&mut next, now, &ask.op_id, Ok(OpResult::default()));
        return Ok(disarm(next, env, running));
    }
    Err(refuse(
        Code::NothingToDo,
        format!(
            "nothing to cancel: no operation runs and no slot is armed ({})",
            node.phase.as_str()
        ),
    ))
}

pub(super) fn forget(node: &Node, digest: &Sha256Digest) -> Result<Step> {
    if node.read_only {
        return Err(stage::too_new());
    }
    let mut next = node.clone();
    next.state.failed_digests.retain(|f| f.digest != *digest);
    next.state.failed_stages.retain(|f| f.digest != *digest);
    let staged = node.state.staged.as_ref().is_some_and(|s| s.digest == *digest);
    if staged {
        next.state.not_started = 0;
    }
    if next == *node {
        return Err(refuse(
            Code::NothingToDo,
            format!("{digest} is not among the digests that failed; see status"),
        ));
    }
    Ok(Step::new(
        next,
        vec![Effect::SaveState { required: true }, Effect::Reply],
    ))
}
