//! A running trial: signs of life, verdicts, the deadline.

use super::{Effect, Node, Step, commit, fallback};
use crate::evidence::Evidence;
use crate::state::{Cause, Confirm, OnSilence, Phase, Verdict};
use os_proto::env_block::{Env, TRIES};

/// Notes how far this try got.
pub(super) fn sign(node: &Node, what: &str, secs: u64) -> Step {
    let mut next = node.clone();
    let boot_id = next.boot.boot_id.clone();
    let this = next
        .state
        .armed
        .as_mut()
        .and_then(|a| a.tries.iter_mut().find(|t| t.boot_id == boot_id));
    match this {
        Some(t) if node.phase == Phase::Trial && t.last != what => {
            what.clone_into(&mut t.last);
            t.last_secs = secs;
            Step::new(next, vec![Effect::SaveState { required: false }])
        }
        _ => Step::new(node.clone(), Vec::new()),
    }
}

/// All gates held long enough.
pub(super) fn healthy(node: &Node, _now: i64) -> Step {
    let mut next = node.clone();
    let (Phase::Trial, Some(env), Ok(running), false) = (node.phase, node.env, node.running(), node.leaving)
    else {
        return Step::new(next, Vec::new());
    };
    let confirm = node.state.armed.as_ref().map_or(Confirm::Local, |a| a.confirm);
    next.healthy = true;
    if confirm == Confirm::Cluster {
        return Step::new(next, Vec::new());
    }
    let effects = commit::commit_effects(&mut next, running, env);
    Step::new(next, effects)
}

/// They no longer hold.
pub(super) fn not_healthy(node: &Node) -> Step {
    let mut next = node.clone();
    next.healthy = false;
    Step::new(next, Vec::new())
}

/// A verdict that needs no deadline: back to the committed slot at once.
pub(super) fn bad(node: &Node, now: i64, cause: Cause, why: &str) -> Step {
    match (node.phase, node.env) {
        (Phase::Trial, Some(env)) if !node.leaving => end(node.clone(), now, env, cause, why),
        _ => Step::new(node.clone(), Vec::new()),
    }
}

/// Records why, disarms, reboots.
pub(super) fn end(mut next: Node, now: i64, env: Env, cause: Cause, why: &str) -> Step {
    if let Some(a) = &mut next.state.armed {
        a.verdict = Some(Verdict {
            cause,
            detail: why.to_owned(),
        });
    }
    let armed = next.state.armed.clone();
    let mut ended = fallback::judge(armed.as_ref(), env.left, &Evidence::default());
    ended.cause = cause;
    ended.kernel_lines.clear();
    ended.detail = why.to_owned();
    ended.tries = u32::from(TRIES.saturating_sub(env.left.unwrap_or(0)));
    fallback::record(&mut next, now, armed.as_ref(), &ended);
    leave(next, env)
}

/// The verdict is recorded: save, disarm, reboot.
pub(super) fn leave(mut next: Node, env: Env) -> Step {
    let disarm = next.disarm(env);
    next.healthy = false;
    next.leaving = true;
    let reboot = next.boot.gated;
    let mut effects = vec![Effect::SaveState { required: false }, disarm];
    if reboot {
        effects.push(Effect::Reboot);
    }
    Step::new(next, effects)
}

/// The deadline passed without a verdict.
pub(super) fn deadline(node: &Node, _now: i64, why: &str) -> Step {
    let mut next = node.clone();
    if node.phase != Phase::Trial || node.leaving {
        return Step::new(next, Vec::new());
    }
    let keep = node.healthy
        && node
            .state
            .armed
            .as_ref()
            .is_some_and(|a| a.confirm == Confirm::Cluster && a.on_silence == OnSilence::Keep);
    let boot_id = next.boot.boot_id.clone();
    if let Some(a) = &mut next.state.armed {
        if keep {
            if let Some(t) = a.tries.iter_mut().find(|t| t.boot_id == boot_id) {
                t.kept = true;
            }
        } else {
            a.verdict = Some(Verdict {
                cause: Cause::Deadline,
                detail: why.to_owned(),
            });
        }
    }
    if keep {
        return Step::new(
            next,
            vec![Effect::SaveState { required: false }, Effect::StopTrialTimer],
        );
    }
    next.leaving = true;
    Step::new(next, vec![Effect::SaveState { required: false }, Effect::Reboot])
}
