//! What goes to the journal about operations and phases, with fields that can be searched for
//! (`journalctl OS_AGENT_OP_ID=…`).

use crate::machine::Node;
use crate::state::Operation;

/// Operations that one event can touch, at most.
const TOUCHED: usize = 4;

/// Logs what an event changed.
pub(super) fn changes(before: &Node, after: &Node) {
    for op in after.state.operations.iter().rev().take(TOUCHED).rev() {
        let old = before.state.operation(&op.op_id);
        if old.is_none() {
            started(op);
        }
        if op.finished_unix != 0 && old.is_none_or(|o| o.finished_unix == 0) {
            finished(op);
        }
    }
    if before.phase != after.phase {
        let env = after.env;
        tracing::info!(
            phase = after.phase.as_str(),
            before = before.phase.as_str(),
            cur = env.map_or("", |e| e.cur.letter()),
            try_slot = env.and_then(|e| e.try_slot).map_or("", |s| s.letter()),
            boot_id = after.boot.boot_id,
            "phase {}",
            after.phase.as_str()
        );
    }
    if let Some(f) = after
        .state
        .last_failure
        .as_ref()
        .filter(|f| before.state.last_failure.as_ref() != Some(*f))
    {
        tracing::warn!(
            code = f.code,
            cause = f.cause.map_or("", |c| c.as_str()),
            digest = f.digest,
            slot = f.slot.map_or("", |s| s.letter()),
            tries = f.tries,
            "{}",
            f.message
        );
    }
}

fn started(op: &Operation) {
    tracing::info!(
        op_id = op.op_id,
        kind = op.kind.as_str(),
        digest = op.digest,
        asked_by = op.asked_by,
        "{} begins",
        op.kind.as_str()
    );
}

fn finished(op: &Operation) {
    let duration_secs = (op.finished_unix - op.started_unix).max(0);
    let result = if op.code.is_empty() { "done" } else { &op.code };
    tracing::info!(
        op_id = op.op_id,
        kind = op.kind.as_str(),
        digest = op.digest,
        version = op.version,
        result,
        duration_secs,
        "{} ended: {result}",
        op.kind.as_str()
    );
}
