//! Staging: what refuses it, what is durable before the first byte, what its end leaves behind.

use super::{
    Effect, FALLBACK_BUDGET, Node, Outcome, Running, STAGE_BUDGET, SlotContent, StageAsk, Step, Then, ops,
};
use crate::error::{AgentError, Result};
use crate::state::{FailedStage, Failure, Kind, OpResult, Operation, Phase, Staged, TOO_NEW_ADVICE};
use os_proto::codes::{Class, Code};
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use os_proto::record::{Content, MIN_READER, SCHEMA, SlotRecord};

pub(super) fn ask(node: &Node, now: i64, ask: &StageAsk) -> Result<Step> {
    match ops::admit(node, &ask.op_id, Kind::Stage)? {
        // It was done, but something else was staged since: the stored result would be a lie, so it is done again.
        Some(Outcome::Replay(old)) if old.code.is_empty() && !still_there(node, &old, &ask.digest) => {
            ops::idle(node)?;
        }
        Some(outcome) => return Ok(Step::outcome(node, outcome)),
        None => {}
    }
    let running = node.running()?;
    let env = node.env()?;
    if node.read_only {
        return Err(too_new());
    }
    match node.phase {
        Phase::Armed | Phase::Trial => {
            let slot = env.trial().unwrap_or(running);
            return Err(AgentError::new(
                Code::TrialRunning,
                format!(
                    "slot {slot} is not committed yet ({} boots left): commit, roll back or cancel first",
                    env.left.unwrap_or(0)
                ),
            ));
        }
        Phase::Foreign => {
            return Err(AgentError::new(
                Code::UncommittedBoot,
                format!(
                    "slot {running} runs but slot {} is the committed one, the only one that is proven: commit, or boot slot {} first",
                    env.cur, env.cur
                ),
            ));
        }
        _ => {}
    }
    if !ask.force {
        not_failed_before(node, &ask.digest)?;
    }
    if node.record(running).is_some_and(|r| r.is(&ask.digest)) {
        return Err(AgentError::new(
            Code::SlotIsActive,
            format!(
                "slot {running} is running and is {} already: nothing to stage",
                ask.digest
            ),
        ));
    }
    let target = running.other();
    if let Some(slot) = ask.from_slot {
        if slot != target {
            return Err(AgentError::new(
                Code::SlotIsActive,
                format!("slot {slot} is the running one; only slot {target} can be staged from itself"),
            ));
        }
        let shown = node.shown(target);
        if !node.record(target).is_some_and(|r| r.is(&ask.digest)) {
            return Err(AgentError::new(
                Code::NotStaged,
                format!("slot {target} holds {shown}, asked for {}", ask.digest),
            ));
        }
    }
    if ask.dry_run {
        return Ok(Step::outcome(node, Outcome::WouldRun));
    }
    let mut next = node.clone();
    ops::open(
        &mut next,
        now,
        &ask.op_id,
        Kind::Stage,
        &ask.asked_by,
        &ask.digest.to_string(),
    );
    next.running_op = Some(Running {
        op_id: ask.op_id.clone(),
        kind: Kind::Stage,
        before: node.phase,
        cancelling: false,
        wrote: false,
        then: Then::Stage { digest: ask.digest },
    });
    // The worker opens the slot anew, so an earlier proof ends here.
    next.verified = None;
    next.set_phase(Phase::Staging);
    Ok(Step {
        node: next,
        effects: vec![Effect::SaveState { required: true }, Effect::StartWork],
        outcome: Outcome::Started,
    })
}

/// Whether the slot that a finished stage wrote holds its image still.
fn still_there(node: &Node, old: &Operation, digest: &Sha256Digest) -> bool {
    old.result
        .slot
        .and_then(|s| node.whole_record(s))
        .is_some_and(|r| r.is(digest))
}

pub(super) fn too_new() -> AgentError {
    AgentError::new(
        Code::StateTooNew,
        format!("the state was written by a newer agent and this one only reads it: {TOO_NEW_ADVICE}"),
    )
}

fn not_failed_before(node: &Node, digest: &Sha256Digest) -> Result<()> {
    if let Some(f) = node.state.failed(digest) {
        if f.denied {
            return Err(AgentError::new(
                Code::DigestFailedBefore,
                format!(
                    "{digest} fell back on {}: {}: {}; \"forget\" or force allows it again",
                    date(f.at_unix),
                    f.cause.as_str(),
                    f.detail
                ),
            ));
        }
        if f.count >= FALLBACK_BUDGET {
            return Err(spent(digest, f.count, f.cause.as_str()));
        }
    }
    match node.state.failed_stages.iter().find(|f| f.digest == *digest) {
        Some(f) if f.count >= STAGE_BUDGET => Err(spent(digest, f.count, &f.last)),
        _ => Ok(()),
    }
}

fn spent(digest: &Sha256Digest, n: u32, last: &str) -> AgentError {
    AgentError::new(
        Code::BudgetSpent,
        format!("{digest} failed {n} times, last: {last}; \"forget\" or force allows it again"),
    )
}

fn date(unix: i64) -> String {
    jiff::Timestamp::from_second(unix).map_or_else(|_| unix.to_string(), |t| t.to_string())
}

/// The digest of the stage that runs.
fn digest_of(node: &Node) -> Result<(Running, Sha256Digest)> {
    match &node.running_op {
        Some(r) => match &r.then {
            Then::Stage { digest } => Ok((r.clone(), *digest)),
            Then::Arm(_) | Then::Nothing => Err(out_of_order()),
        },
        None => Err(out_of_order()),
    }
}

pub(super) fn out_of_order() -> AgentError {
    AgentError::new(
        Code::Internal,
        "the worker reported something that nobody asked for",
    )
}

/// The content is about to change: from here on the slot is dirty, whatever happens.
pub(super) fn first_write(node: &Node) -> Result<Step> {
    let (mut run, digest) = digest_of(node)?;
    let target = node.running()?.other();
    let env = node.env()?;
    let mut next = node.clone();
    run.wrote = true;
    next.running_op = Some(run);
    next.verified = None;
    next.state.staged = None;
    next.state.own_etc = next.state.own_etc.filter(|s| *s != target);
    let record = match next.record(target) {
        Some(r) => SlotRecord {
            content: Content::Dirty,
            ..r.clone()
        },
        None => SlotRecord {
            schema: SCHEMA,
            min_reader: MIN_READER,
            version: String::new(),
            os_image: String::new(),
            image_size: 0,
            image_sha256: digest,
            payload_digests: Vec::new(),
            content: Content::Dirty,
            verified_unix: 0,
            unknown: Default::default(),
        },
    };
    next.set_record(target, record.clone());
    let mut effects = vec![
        Effect::SaveRecord {
            slot: target,
            record: Box::new(record),
            required: true,
        },
        Effect::SaveState { required: true },
    ];
    if env.try_slot.is_some() {
        effects.push(next.take_back(env));
    }
    Ok(Step::new(next, effects))
}

/// Written, flushed, read back, inspected.
pub(super) fn installed(node: &Node, now: i64, c: &SlotContent) -> Result<Step> {
    let (run, digest) = digest_of(node)?;
    if !run.wrote {
        return Err(out_of_order());
    }
    let target = node.running()?.other();
    let mut next = node.clone();
    let mut payload_digests = vec![digest];
    if let Some(old) = node.record(target).filter(|r| r.image_sha256 == c.image_sha256) {
        // The same image again: it is still known under its older names.
        payload_digests.extend(old.payload_digests.iter().filter(|d| **d != digest));
    }
    let record = SlotRecord {
        schema: SCHEMA,
        min_reader: MIN_READER,
        version: c.version.clone(),
        os_image: c.os_image.clone(),
        image_size: c.image_size,
        image_sha256: c.image_sha256,
        payload_digests,
        content: Content::Verified,
        verified_unix: now,
        unknown: Default::default(),
    };
    next.set_record(target, record.clone());
    let mut effects = vec![Effect::SaveRecord {
        slot: target,
        record: Box::new(record),
        required: true,
    }];
    let result = OpResult {
        slot: Some(target),
        image_sha256: Some(c.image_sha256),
        image_size: c.image_size,
        fetched: c.fetched,
        written: c.written,
        already: false,
        ..OpResult::default()
    };
    staged(&mut next, now, &run, digest, &c.version, &result);
    if !c.remark.is_empty() {
        ops::remark(&mut next, &run.op_id, c.remark.clone());
    }
    effects.extend([Effect::SaveState { required: true }, Effect::Reply]);
    Ok(Step::done(next, effects, result))
}

fn staged(next: &mut Node, now: i64, run: &Running, digest: Sha256Digest, version: &str, result: &OpResult) {
    let (Some(slot), Some(image)) = (result.slot, result.image_sha256) else {
        return;
    };
    next.verified = Some((slot, image));
    next.state.staged = Some(Staged {
        slot,
        digest,
        image_sha256: image,
        version: version.to_owned(),
        unknown: Default::default(),
    });
    next.state.failed_stages.retain(|f| f.digest != digest);
    ops::mended(next, slot);
    ops::finish(next, now, &run.op_id, Ok(result.clone()));
    if let Some(o) = next.state.operation_mut(&run.op_id) {
        version.clone_into(&mut o.version);
    }
    next.running_op = None;
    next.set_phase(Phase::Staged);
}

/// The target was read back and equals its record: it is staged, or may be armed.
pub(super) fn read_back(node: &Node, now: i64) -> Result<Step> {
    let target = node.running()?.other();
    let Some(run) = node.running_op.clone() else {
        return Err(out_of_order());
    };
    let Some(mut record) = node.whole_record(target).cloned() else {
        return Err(out_of_order());
    };
    let mut next = node.clone();
    next.verified = Some((target, record.image_sha256));
    match run.then.clone() {
        Then::Arm(ask) => super::switch::arm(next, now, &run.op_id, &ask),
        Then::Nothing => Err(out_of_order()),
        Then::Stage { digest } => {
            record.content = Content::Verified;
            record.verified_unix = now;
            next.set_record(target, record.clone());
            let result = OpResult {
                slot: Some(target),
                image_sha256: Some(record.image_sha256),
                image_size: record.image_size,
                fetched: 0,
                written: 0,
                already: true,
                ..OpResult::default()
            };
            staged(&mut next, now, &run, digest, &record.version.clone(), &result);
            let effects = vec![
                Effect::SaveRecord {
                    slot: target,
                    record: Box::new(record),
                    required: true,
                },
                Effect::SaveState { required: true },
                Effect::Reply,
            ];
            Ok(Step::done(next, effects, result))
        }
    }
}

/// The worker gave up.
pub(super) fn failed(node: &Node, now: i64, e: &AgentError) -> Step {
    let mut next = node.clone();
    let Some(run) = next.running_op.take() else {
        return Step::new(next, Vec::new());
    };
    let mut effects = Vec::new();
    let mut failure = Failure::of(e.code, e.message.clone(), now);
    if let Then::Stage { digest } = &run.then {
        failure.digest = digest.to_string();
        // What is temporary says nothing about the image: a mistyped URL or a server that is away must not condemn it.
        if e.class() == Class::Corrupt {
            count(&mut next, *digest, e);
        }
    }
    let target = next.running().ok().map(|r| r.other());
    failure.slot = target;
    if !run.wrote
        && matches!(e.code, Code::MediumCorrupt | Code::ChecksumMismatch)
        && let Some(slot) = target
        && let Some(r) = next.record(slot).cloned()
    {
        // A read-back contradicted the record: whatever lies there is not what it says.
        let record = SlotRecord {
            content: Content::Dirty,
            ..r
        };
        next.set_record(slot, record.clone());
        next.state.staged = None;
        effects.push(Effect::SaveRecord {
            slot,
            record: Box::new(record),
            required: false,
        });
    }
    next.state.last_failure = Some(failure);
    ops::finish(&mut next, now, &run.op_id, Err(e));
    let phase = match run.before {
        p if run.kind != Kind::Stage && next.state.staged.is_some() => p,
        Phase::FellBack if !run.wrote => Phase::FellBack,
        Phase::Foreign => Phase::Foreign,
        _ if next.state.staged.is_some() => Phase::Staged,
        _ => Phase::Idle,
    };
    next.set_phase(phase);
    effects.extend([Effect::SaveState { required: false }, Effect::Reply]);
    Step::new(next, effects)
}

/// A slot reads differently from its record: it is not staged any more and is not tried. The running slot's record stays, for
/// it is what the node is known by.
pub(super) fn contradicts(node: &Node, now: i64, slot: Slot, found: Sha256Digest) -> Step {
    let mut next = node.clone();
    let Some(record) = node.whole_record(slot).cloned() else {
        return Step::new(next, Vec::new());
    };
    let mut failure = Failure::of(
        Code::MediumCorrupt,
        format!(
            "slot {slot} reads as {found}, recorded is {}",
            record.image_sha256
        ),
        now,
    );
    failure.slot = Some(slot);
    failure.digest = record.shown().to_string();
    let message = failure.message.clone();
    next.state.last_failure = Some(failure);
    let mut effects = Vec::new();
    if node.running().is_ok_and(|r| r != slot) && node.running_op.is_none() {
        if let (Phase::Armed, Some(env)) = (node.phase, node.env) {
            if let Some(id) = node.state.armed.as_ref().map(|a| a.op_id.clone()) {
                ops::remark(&mut next, &id, format!("disarmed: {message}"));
            }
            effects.push(next.take_back(env));
        }
        next.verified = None;
        next.state.staged = None;
        if matches!(node.phase, Phase::Armed | Phase::Staged) {
            next.set_phase(Phase::Idle);
        }
        let record = SlotRecord {
            content: Content::Dirty,
            ..record
        };
        next.set_record(slot, record.clone());
        effects.push(Effect::SaveRecord {
            slot,
            record: Box::new(record),
            required: false,
        });
    }
    effects.extend([Effect::SaveState { required: false }, Effect::Reply]);
    Step::new(next, effects)
}

fn count(node: &mut Node, digest: Sha256Digest, e: &AgentError) {
    let list = &mut node.state.failed_stages;
    let text = e.to_string();
    match list.iter_mut().find(|f| f.digest == digest) {
        Some(f) => {
            f.count = f.count.saturating_add(1);
            f.last = text;
        }
        None => list.push(FailedStage {
            digest,
            count: 1,
            last: text,
            unknown: Default::default(),
        }),
    }
    while list.len() > crate::state::MAX_FAILED {
        list.remove(0);
    }
}
