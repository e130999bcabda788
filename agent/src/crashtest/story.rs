//! The updates whose power cuts are replayed.

use super::machine::{Goal, Machine};
use super::medium::{Content, Fault, Medium, Op, Region};
use super::replay::{Cut, Loss, Walk};
use super::{Images, Sabotage};
use crate::error::Result;
use os_proto::env_block::{Env, TRIES};
use os_proto::layout::{STATE_512, Slot};
use os_proto::record::{Content as Held, MIN_READER, SCHEMA, SlotRecord};
use os_proto::state_fs;
use std::collections::BTreeMap;
use std::sync::Arc;

/// A recorded update.
pub(super) struct Story {
    /// For people.
    pub(super) name: String,
    /// The disk before it.
    pub(super) base: Content,
    /// What it wrote.
    pub(super) log: Vec<Op>,
    /// Where it has to end.
    pub(super) goal: Goal,
    /// Why it did not end there, uncut.
    pub(super) failed: Option<String>,
    /// An error may be answered once.
    pub(super) forgiving: bool,
}

/// A disk that came out of a factory or an older update: slot A runs, slot B holds something old.
pub(super) fn disk(images: &Images, env: &Env) -> Content {
    let record = SlotRecord {
        schema: SCHEMA,
        min_reader: MIN_READER,
        version: "1".into(),
        os_image: "Slipway 1".into(),
        image_size: images.old_size as u64,
        image_sha256: images.old_sha256,
        payload_digests: vec![images.old_sha256],
        content: Held::Factory,
        verified_unix: 0,
        unknown: Default::default(),
    };
    let mut files = BTreeMap::new();
    files.insert("slots/A.json".to_owned(), Arc::new(record.to_json()));
    Content {
        state: Arc::new(state_fs::head(&STATE_512, state_fs::NO_VOLUME_ID, env)),
        slots: [Arc::clone(&images.slot_a), Arc::clone(&images.slot_b)],
        files,
    }
}

fn record(
    name: &str,
    base: Content,
    images: &Images,
    goal: Goal,
    sabotage: Option<Sabotage>,
    fault: Option<Fault>,
    kill_at: Option<usize>,
) -> Result<Story> {
    let medium = Medium::new(base.clone(), sabotage, fault);
    let mut machine = Machine::new(Arc::clone(&medium), images, goal)?;
    machine.kill_at = kill_at;
    machine.forgiving = fault.is_some();
    let failed = machine.run("recorded").err();
    drop(machine);
    let mut log = std::mem::take(&mut medium.lock().log);
    if sabotage == Some(Sabotage::ArmBeforeVerify) {
        log = armed_early(log);
    }
    Ok(Story {
        name: name.to_owned(),
        base,
        log,
        goal,
        failed,
        forgiving: fault.is_some(),
    })
}

/// The log of a program that arms before the slot is written whole and read back.
fn armed_early(log: Vec<Op>) -> Vec<Op> {
    let arms = |op: &Op| match op {
        Op::Write(Region::State, _, data) => {
            Env::decode(data.get(..os_proto::env_block::SIZE).unwrap_or_default())
                .is_ok_and(|e| e.left == Some(TRIES))
        }
        _ => false,
    };
    let (mut moved, mut rest) = (Vec::new(), Vec::new());
    let mut ops = log.into_iter().peekable();
    while let Some(op) = ops.next() {
        if arms(&op) {
            moved.push(op);
            moved.extend(ops.next_if(|n| matches!(n, Op::Flush(Region::State))));
        } else {
            rest.push(op);
        }
    }
    let at = rest
        .iter()
        .rposition(|op| matches!(op, Op::Write(Region::Slot(Slot::B), ..)))
        .unwrap_or(rest.len());
    rest.splice(at..at, moved);
    rest
}

/// All stories, or those that a sabotage has to break.
pub(super) fn stories(images: &Images, quick: bool, sabotage: Option<Sabotage>) -> Result<Vec<Story>> {
    let committed = || disk(images, &Env::committed(Slot::A, 1));
    let good = Goal::Committed;
    let full = record("full update", committed(), images, good, sabotage, None, None)?;
    if sabotage == Some(Sabotage::SkipReadback) {
        let mut all = Vec::new();
        for (i, name) in slot_writes(&full.log) {
            all.push(faulty(images, i, &name, sabotage)?);
        }
        return Ok(all);
    }
    if sabotage.is_some() {
        return Ok(vec![full]);
    }
    let middle = images.new.len() / 2;
    let killed = record(
        "resumed after the agent was killed",
        committed(),
        images,
        good,
        None,
        None,
        Some(middle),
    )?;
    let cut = record(
        "resumed after a power cut",
        half_written(&full),
        images,
        good,
        None,
        None,
        None,
    )?;
    // The evidence of an older fallback still stands in the environment.
    let evidence = Env {
        left: Some(0),
        ..Env::committed(Slot::A, 1).armed(Slot::B)
    };
    let after = record(
        "full update after a fallback",
        disk(images, &evidence),
        images,
        good,
        None,
        None,
        None,
    )?;
    let bad = record(
        "bad image, falls back",
        committed(),
        images,
        Goal::FellBack,
        None,
        None,
        None,
    )?;
    let mut all = Vec::new();
    let step = if quick { 3 } else { 1 };
    for (i, name) in slot_writes(&full.log).into_iter().rev().step_by(step) {
        all.push(faulty(images, i, &name, None)?);
    }
    all.splice(0..0, [full, killed, cut, after, bad]);
    Ok(all)
}

/// The writes to slot B: their number and what they are.
fn slot_writes(log: &[Op]) -> Vec<(usize, String)> {
    log.iter()
        .filter_map(|op| match op {
            Op::Write(Region::Slot(_), at, data) => Some(format!("{} KiB at {at}", data.len() >> 10)),
            _ => None,
        })
        .enumerate()
        .collect()
}

/// An update on a medium that stores one byte of one write wrongly: noticed, answered, and asked for once more.
fn faulty(images: &Images, write: usize, what: &str, sabotage: Option<Sabotage>) -> Result<Story> {
    let fault = Fault {
        write,
        byte: images.fault_byte,
    };
    let base = disk(images, &Env::committed(Slot::A, 1));
    let name = format!("a byte stored wrongly: {what}");
    record(&name, base, images, Goal::Committed, sabotage, Some(fault), None)
}

/// The disk after a cut in the middle of the slot's writes, with the oldest unflushed one missing.
fn half_written(full: &Story) -> Content {
    let writes: Vec<usize> = full
        .log
        .iter()
        .enumerate()
        .filter(|(_, op)| matches!(op, Op::Write(Region::Slot(_), ..)))
        .map(|(i, _)| i)
        .collect();
    let after = writes.get(writes.len() * 2 / 3).map_or(0, |i| i + 1);
    let mut walk = Walk::new(&full.log, full.base.clone());
    for _ in 0..after {
        walk.step();
    }
    let cuts = walk.cuts();
    let plain = Cut {
        after,
        loss: Loss::Nothing,
    };
    let one_lost = |c: &&Cut| matches!(&c.loss, Loss::Dropped(d) if d.len() == 1);
    walk.image(cuts.iter().find(one_lost).unwrap_or(&plain))
}
