//! Committing: making the running slot the default, and what that settles.

use super::switch::refuse;
use super::{CommitAsk, Effect, Node, Proof, Step, ops};
use crate::error::Result;
use crate::state::{Armed, Failure, Kind, OpResult, Phase};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::Slot;

pub(super) fn commit(node: &Node, now: i64, ask: &CommitAsk) -> Result<Step> {
    if let Some(outcome) = ops::admit(node, &ask.op_id, Kind::Commit)? {
        return Ok(Step::outcome(node, outcome));
    }
    let running = node.running()?;
    let env = node.env()?;
    ops::same_boot(node, &ask.boot_id)?;
    if let Some(d) = &ask.digest {
        let armed = node
            .state
            .armed
            .as_ref()
            .is_some_and(|a| a.slot == running && a.digest == Some(*d));
        if !armed && !node.record(running).is_some_and(|r| r.is(d)) {
            return Err(refuse(
                Code::NotStaged,
                format!(
                    "slot {running} holds {}, asked to commit {d}",
                    node.shown(running)
                ),
            ));
        }
    }
    if env.cur == running {
        return Ok(Step::done(
            node.clone(),
            vec![Effect::Reply],
            OpResult {
                slot: Some(running),
                already: true,
                ..OpResult::default()
            },
        ));
    }
    if node.phase == Phase::Trial && node.boot.gated && !node.healthy {
        return Err(refuse(
            Code::TrialRunning,
            format!(
                "slot {running} cannot be committed yet: its health gates do not all hold; see status, and repeat"
            ),
        ));
    }
    if let Proof::Read(found) = ask.proof {
        is_a_system(node, running, found)?;
    }
    let mut next = node.clone();
    ops::open(
        &mut next,
        now,
        &ask.op_id,
        Kind::Commit,
        &ask.asked_by,
        &node.shown(running),
    );
    let result = OpResult {
        slot: Some(running),
        ..OpResult::default()
    };
    ops::finish(&mut next, now, &ask.op_id, Ok(result.clone()));
    let effects = commit_effects(&mut next, running, env);
    Ok(Step::done(next, effects, result))
}

/// Nothing runs on an offline disk: only a slot that reads as its record says may be the default.
fn is_a_system(node: &Node, slot: Slot, found: Option<Sha256Digest>) -> Result<()> {
    let Some(record) = node.whole_record(slot) else {
        return Err(refuse(
            Code::NotStaged,
            format!(
                "slot {slot} holds {}: nothing says that it can boot. Stage an image, or give the state directory that has the \
                 slot's record (of a factory image: os-agent/ on its PERSIST, with --state), or commit it all the same with --force",
                node.shown(slot)
            ),
        ));
    };
    match found {
        Some(f) if f == record.image_sha256 => Ok(()),
        _ => Err(refuse(
            Code::ChecksumMismatch,
            format!(
                "slot {slot} reads as {}, recorded is {}: stage it anew, or commit it all the same with --force",
                found.map_or_else(|| "something else".to_owned(), |f| f.to_string()),
                record.image_sha256
            ),
        )),
    }
}

/// Commit, read back, then the state.
pub(super) fn commit_effects(next: &mut Node, running: Slot, env: Env) -> Vec<Effect> {
    let after = env.committed_to(running);
    next.env = Some(after);
    next.state.own_etc = Some(env.cur).filter(|s| *s != running);
    let mut effects = vec![Effect::Commit(after), Effect::ReadEnvBack(after)];
    if let Some(a) = next.state.armed.clone() {
        settle_commit(next, running, &a);
    } else {
        next.state.staged = None;
        next.set_phase(Phase::Idle);
    }
    effects.extend([
        Effect::SaveState { required: false },
        Effect::StopTrialTimer,
        Effect::Reply,
    ]);
    effects
}

/// What a commit of `running` leaves in the state.
pub(super) fn settle_commit(next: &mut Node, running: Slot, armed: &Armed) {
    if armed.slot == running {
        ops::remark(next, &armed.op_id, format!("slot {running} is committed"));
        next.state.own_etc = Some(running.other());
        // Whatever failed before, this slot or its image, is over.
        let over =
            |f: &Failure| f.slot == Some(running) || armed.digest.is_some_and(|d| f.digest == d.to_string());
        if next.state.last_failure.as_ref().is_some_and(over) {
            next.state.last_failure = None;
        }
        if let Some(d) = armed.digest {
            next.state.failed_digests.retain(|f| f.digest != d);
            next.state.failed_stages.retain(|f| f.digest != d);
        }
    }
    next.state.armed = None;
    next.state.staged = None;
    next.state.not_started = 0;
    next.healthy = false;
    next.set_phase(Phase::Idle);
}
