//! Operation ids: the same id joins or returns the stored result, another one is told to wait.

use super::{Node, Outcome};
use crate::error::{AgentError, Result};
use crate::state::{Kind, OpResult, Operation};
use os_proto::codes::Code;

/// Whether an operation with this id may start. `Ok(Some(..))` = it runs or ran.
pub(super) fn admit(node: &Node, op_id: &str, kind: Kind) -> Result<Option<Outcome>> {
    if let Some(r) = &node.running_op
        && r.op_id == op_id
        && r.kind == kind
    {
        return Ok(Some(Outcome::Joined));
    }
    if let Some(old) = node.state.operation(op_id) {
        if old.kind != kind {
            return Err(AgentError::new(
                Code::InvalidArgument,
                format!(
                    "operation id {op_id:?} belongs to a {} of before: choose another one for this {}",
                    old.kind.as_str(),
                    kind.as_str()
                ),
            ));
        }
        if old.finished_unix != 0 {
            return Ok(Some(Outcome::Replay(Box::new(old.clone()))));
        }
    }
    idle(node)?;
    Ok(None)
}

/// Refuses while another operation runs or the node is about to reboot.
pub(super) fn idle(node: &Node) -> Result<()> {
    if let Some(r) = &node.running_op {
        return Err(AgentError::new(
            Code::Busy,
            format!("operation {} ({}) is running", r.op_id, r.kind.as_str()),
        ));
    }
    if node.leaving {
        return Err(AgentError::new(
            Code::Busy,
            "the trial was ended and the node is about to reboot into the committed slot",
        ));
    }
    Ok(())
}

/// Refuses when the caller saw another boot.
pub(super) fn same_boot(node: &Node, expect: &str) -> Result<()> {
    if !expect.is_empty() && expect != node.boot.boot_id {
        return Err(AgentError::new(
            Code::BootIdChanged,
            format!(
                "the node rebooted since: boot id is {}, the order expects {expect}",
                node.boot.boot_id
            ),
        ));
    }
    Ok(())
}

/// Enters an operation in the log, or reopens one that a restart interrupted.
pub(super) fn open(node: &mut Node, now: i64, op_id: &str, kind: Kind, asked_by: &str, digest: &str) {
    let boot_id = node.boot.boot_id.clone();
    if let Some(old) = node.state.operation_mut(op_id) {
        old.started_unix = now;
        old.boot_id = boot_id;
        return;
    }
    // Others that a restart interrupted are over now: their writes are about to be replaced.
    for o in &mut node.state.operations {
        if o.finished_unix == 0 {
            o.finished_unix = now;
            o.code = Code::Cancelled.as_str().to_owned();
            o.message = format!("the agent stopped while it ran; replaced by operation {op_id}");
        }
    }
    node.state.push_operation(Operation {
        op_id: op_id.to_owned(),
        kind,
        digest: digest.to_owned(),
        version: String::new(),
        asked_by: asked_by.to_owned(),
        started_unix: now,
        finished_unix: 0,
        code: String::new(),
        message: String::new(),
        boot_id,
        reboot_requested: false,
        reboots: 0,
        result: OpResult::default(),
        unknown: Default::default(),
    });
}

/// Stores the result of an operation.
pub(super) fn finish(
    node: &mut Node,
    now: i64,
    op_id: &str,
    result: std::result::Result<OpResult, &AgentError>,
) {
    if let Some(o) = node.state.operation_mut(op_id) {
        o.finished_unix = now.max(1);
        match result {
            Ok(r) => {
                o.code.clear();
                o.message.clear();
                o.result = r;
            }
            Err(e) => {
                o.code = e.code.as_str().to_owned();
                o.message = e.message.clone();
            }
        }
    }
}

/// Writes what came of an operation later, for the history.
pub(super) fn remark(node: &mut Node, op_id: &str, text: String) {
    if let Some(o) = node.state.operation_mut(op_id) {
        o.message = text;
    }
}
