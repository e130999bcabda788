//! Changing settings: an operation like the others in the log, which touches no slot and no phase.

use super::{Applied, ConfigureAsk, Effect, Node, Outcome, Running, Step, Then, ops, stage};
use crate::error::Result;
use crate::settings::system::summary;
use crate::state::{Kind, OpResult};

/// Operations of which the result per entry is kept.
const KEPT: usize = 20;

pub(super) fn ask(node: &Node, now: i64, ask: &ConfigureAsk) -> Result<Step> {
    if let Some(outcome) = ops::admit(node, &ask.op_id, Kind::Configure)? {
        return Ok(Step::outcome(node, outcome));
    }
    if node.read_only {
        return Err(stage::too_new());
    }
    let mut next = node.clone();
    ops::open(&mut next, now, &ask.op_id, Kind::Configure, &ask.asked_by, "");
    next.running_op = Some(Running {
        op_id: ask.op_id.clone(),
        kind: Kind::Configure,
        before: node.phase,
        cancelling: false,
        wrote: false,
        then: Then::Nothing,
    });
    Ok(Step {
        node: next,
        effects: vec![Effect::SaveState { required: true }],
        outcome: Outcome::Started,
    })
}

pub(super) fn done(node: &Node, now: i64, done: Result<Applied>) -> Step {
    let mut next = node.clone();
    let Some(run) = next.running_op.take() else {
        return Step::new(next, Vec::new());
    };
    let mut result = OpResult::default();
    match done {
        Ok(applied) => {
            next.state.settings = applied.waiting;
            let text = summary(&applied.entries);
            result.settings = applied.entries;
            ops::finish(&mut next, now, &run.op_id, Ok(result.clone()));
            ops::remark(&mut next, &run.op_id, text);
        }
        Err(e) => ops::finish(&mut next, now, &run.op_id, Err(&e)),
    }
    let results = next
        .state
        .operations
        .iter_mut()
        .rev()
        .filter(|o| !o.result.settings.is_empty());
    for old in results.skip(KEPT) {
        old.result.settings.clear();
    }
    // What was written stands; when the log cannot say so, the same request finds it unchanged.
    Step::done(
        next,
        vec![Effect::SaveState { required: false }, Effect::Reply],
        result,
    )
}
