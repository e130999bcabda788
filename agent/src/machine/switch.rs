//! Arm and commit: the ways forward.

use super::{ActivateAsk, ArmAsk, Effect, Node, Outcome, Running, Step, Then, ops, stage};
use crate::error::{AgentError, Result};
use crate::state::{Armed, Failure, Kind, OpResult, Phase};
use os_proto::codes::Code;
use os_proto::env_block::Env;
use os_proto::layout::Slot;

pub(super) fn refuse(code: Code, message: impl Into<String>) -> AgentError {
    AgentError::new(code, message)
}

pub(super) fn activate(node: &Node, now: i64, ask: &ActivateAsk) -> Result<Step> {
    if let Some(outcome) = ops::admit(node, &ask.op_id, Kind::Activate)? {
        return Ok(Step::outcome(node, outcome));
    }
    let running = node.running()?;
    let env = node.env()?;
    if node.read_only {
        return Err(stage::too_new());
    }
    ops::same_boot(node, &ask.expect_boot_id)?;
    if ask.valid_until_unix != 0 && now > ask.valid_until_unix {
        return Err(refuse(
            Code::OrderExpired,
            format!(
                "the order was valid until {}, now is {now} (Unix seconds)",
                ask.valid_until_unix
            ),
        ));
    }
    let target = running.other();
    let wanted = |slot: Slot| match &ask.digest {
        Some(d) if !node.record(slot).is_some_and(|r| r.is(d)) => Err(refuse(
            Code::NotStaged,
            format!("slot {slot} holds {}, asked for {d}", node.shown(slot)),
        )),
        _ => Ok(()),
    };
    match node.phase {
        Phase::Trial => {
            return Err(refuse(
                Code::TrialRunning,
                format!(
                    "slot {running} is not committed yet ({} boots left)",
                    env.left.unwrap_or(0)
                ),
            ));
        }
        Phase::Armed => return activate_again(node, now, ask, wanted(target)),
        Phase::Foreign => {
            if ask.digest.is_none() || wanted(env.cur).is_err() {
                return Err(refuse(
                    Code::UncommittedBoot,
                    format!(
                        "slot {running} runs but slot {} is the committed one: only that one's digest can be activated",
                        env.cur
                    ),
                ));
            }
            return Ok(boot_committed(node, now, ask, env));
        }
        _ => {}
    }
    if node.state.not_started >= 2 {
        return Err(refuse(
            Code::TrialNotStarted,
            format!(
                "the boot loader did not count {} times in a row, so a trial could not end by itself: check GRUB with \"doctor\"; \
                 \"forget\" allows another attempt",
                node.state.not_started
            ),
        ));
    }
    let Some(staged) = node.state.staged.clone() else {
        return Err(refuse(
            Code::NotStaged,
            format!(
                "slot {target} holds {} and nothing is staged{}: stage first",
                node.shown(target),
                ask.digest.map(|d| format!(", asked for {d}")).unwrap_or_default()
            ),
        ));
    };
    wanted(target)?;
    if node.whole_record(target).map(|r| r.image_sha256) != Some(staged.image_sha256) {
        return Err(refuse(
            Code::NotStaged,
            format!(
                "slot {target} holds {}, staged was {}",
                node.shown(target),
                staged.digest
            ),
        ));
    }
    let arm_ask = ArmAsk {
        slot: target,
        reboot: ask.reboot,
        confirm: ask.confirm,
        deadline_secs: ask.deadline_secs,
        on_silence: ask.on_silence,
    };
    begin(node, now, &ask.op_id, Kind::Activate, &ask.asked_by, arm_ask)
}

/// Arms at once when this process read the slot back, else after the worker did.
pub(super) fn begin(
    node: &Node,
    now: i64,
    op_id: &str,
    kind: Kind,
    asked_by: &str,
    ask: ArmAsk,
) -> Result<Step> {
    let mut next = node.clone();
    let record = node.whole_record(ask.slot);
    let digest = record.map(|r| r.shown().to_string()).unwrap_or_default();
    let image = record.map(|r| r.image_sha256);
    ops::open(&mut next, now, op_id, kind, asked_by, &digest);
    let proven = image.is_some_and(|i| node.verified == Some((ask.slot, i)));
    next.running_op = Some(Running {
        op_id: op_id.to_owned(),
        kind,
        before: node.phase,
        cancelling: false,
        wrote: false,
        then: Then::Arm(ask.clone()),
    });
    if proven {
        return arm(next, now, op_id, &ask);
    }
    Ok(Step {
        node: next,
        effects: vec![
            Effect::SaveState {
                required: !node.read_only,
            },
            Effect::StartWork,
        ],
        outcome: Outcome::Started,
    })
}

/// The slot was read back in this process: state, arm, read the environment back, reply, reboot.
pub(super) fn arm(mut next: Node, now: i64, op_id: &str, ask: &ArmAsk) -> Result<Step> {
    let env = next.env()?;
    let Some(record) = next.whole_record(ask.slot).cloned() else {
        return Err(stage::out_of_order());
    };
    if next.verified.take() != Some((ask.slot, record.image_sha256)) || ask.slot == env.cur {
        return Err(stage::out_of_order());
    }
    let digest = next
        .state
        .staged
        .as_ref()
        .filter(|s| s.slot == ask.slot && s.image_sha256 == record.image_sha256)
        .map_or_else(|| record.shown(), |s| s.digest);
    next.state.armed = Some(Armed {
        op_id: op_id.to_owned(),
        slot: ask.slot,
        digest: Some(digest),
        version: record.version.clone(),
        boot_id: next.boot.boot_id.clone(),
        gen_: env.armed(ask.slot).gen_,
        reboot_requested: ask.reboot,
        confirm: ask.confirm,
        deadline_secs: ask.deadline_secs,
        on_silence: ask.on_silence,
        armed_unix: now,
        tries: Vec::new(),
        verdict: None,
        panic: None,
        unknown: Default::default(),
    });
    // A slot that is as it was when it was last committed gets the settings back that it had then; whatever the trial
    // makes of them, they are not untouched any more.
    let keep_etc = next.state.own_etc.take().filter(|s| *s == ask.slot);
    let result = OpResult {
        slot: Some(ask.slot),
        image_sha256: Some(record.image_sha256),
        image_size: record.image_size,
        ..OpResult::default()
    };
    ops::finish(&mut next, now, op_id, Ok(result.clone()));
    if let Some(o) = next.state.operation_mut(op_id) {
        o.version.clone_from(&record.version);
        o.reboot_requested = ask.reboot;
        o.reboots = u32::from(ask.reboot);
    }
    next.running_op = None;
    ops::mended(&mut next, ask.slot);
    next.set_phase(Phase::Armed);
    let armed = env.armed(ask.slot);
    next.env = Some(armed);
    let mut effects = vec![
        Effect::SaveState {
            required: !next.read_only,
        },
        Effect::PrepareTrial(keep_etc),
        Effect::Arm(ask.slot, armed),
        Effect::ReadEnvBack(armed),
        Effect::Reply,
    ];
    if ask.reboot {
        effects.push(Effect::Reboot);
    }
    Ok(Step::done(next, effects, result))
}

/// Armed already: the same content with a reboot this time, or a refusal.
fn activate_again(node: &Node, now: i64, ask: &ActivateAsk, wanted: Result<()>) -> Result<Step> {
    wanted?;
    let requested = node.state.armed.as_ref().is_some_and(|a| a.reboot_requested);
    let (Some(armed), true, false) = (&node.state.armed, ask.reboot, requested) else {
        return Err(refuse(
            Code::TrialRunning,
            "a slot is armed already and the next boot tries it: reboot, or cancel first",
        ));
    };
    let slot = armed.slot;
    let mut next = node.clone();
    ops::open(
        &mut next,
        now,
        &ask.op_id,
        Kind::Activate,
        &ask.asked_by,
        &node.shown(slot),
    );
    if let Some(a) = &mut next.state.armed {
        a.reboot_requested = true;
        a.op_id.clone_from(&ask.op_id);
        a.confirm = ask.confirm;
        a.deadline_secs = ask.deadline_secs;
        a.on_silence = ask.on_silence;
    }
    let result = OpResult {
        slot: Some(slot),
        already: true,
        ..OpResult::default()
    };
    ops::finish(&mut next, now, &ask.op_id, Ok(result.clone()));
    if let Some(o) = next.state.operation_mut(&ask.op_id) {
        o.reboot_requested = true;
        o.reboots = 1;
    }
    let effects = vec![
        Effect::SaveState { required: true },
        Effect::Reply,
        Effect::Reboot,
    ];
    Ok(Step::done(next, effects, result))
}

/// From a slot chosen at the console back to the committed one: it boots by default, only the reboot is missing.
fn boot_committed(node: &Node, now: i64, ask: &ActivateAsk, env: Env) -> Step {
    let mut next = node.clone();
    ops::open(
        &mut next,
        now,
        &ask.op_id,
        Kind::Activate,
        &ask.asked_by,
        &node.shown(env.cur),
    );
    let result = OpResult {
        slot: Some(env.cur),
        already: true,
        ..OpResult::default()
    };
    ops::finish(&mut next, now, &ask.op_id, Ok(result.clone()));
    if let Some(o) = next.state.operation_mut(&ask.op_id) {
        o.reboot_requested = ask.reboot;
        o.reboots = u32::from(ask.reboot);
    }
    let effects = without_trial(&mut next, env, true, ask.reboot);
    Step::done(next, effects, result)
}

/// What ends with the committed slot as the next one to boot: saved, a trial that may be armed taken back, answered, and
/// restarted if asked.
pub(super) fn without_trial(next: &mut Node, env: Env, required: bool, reboot: bool) -> Vec<Effect> {
    let mut effects = vec![Effect::SaveState { required }];
    if env.try_slot.is_some() {
        effects.push(next.take_back(env));
    }
    effects.push(Effect::Reply);
    if reboot {
        effects.push(Effect::Reboot);
    }
    effects
}

/// Arming failed half-way: nothing stays armed.
pub(super) fn arm_failed(node: &Node, now: i64, env: Option<Env>, e: &AgentError) -> Step {
    let mut next = node.clone();
    let mut effects = Vec::new();
    next.env = env;
    next.verified = None;
    let op_id = next
        .running_op
        .take()
        .map(|r| r.op_id)
        .or_else(|| next.state.armed.as_ref().map(|a| a.op_id.clone()));
    next.state.armed = None;
    if let Some(id) = op_id {
        ops::finish(&mut next, now, &id, Err(e));
        if let Some(o) = next.state.operation_mut(&id) {
            o.reboot_requested = false;
            o.reboots = 0;
        }
    }
    next.state.last_failure = Some(Failure::of(e.code, e.message.clone(), now));
    let phase = if next.state.staged.is_some() {
        Phase::Staged
    } else {
        Phase::Idle
    };
    next.set_phase(phase);
    if let Some(env) = env.filter(|e| e.try_slot.is_some()) {
        effects.push(next.take_back(env));
    }
    effects.extend([Effect::SaveState { required: false }, Effect::Reply]);
    Step::new(next, effects)
}
