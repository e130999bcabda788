//! Operation ids: the same id joins or returns the stored result, another one is told to wait.

use super::{Event, Node, Outcome};
use crate::error::{AgentError, Result};
use crate::state::{Failure, Kind, OpResult, Operation};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;

/// An order as the log keeps it: the arguments that decide what is done. How long it is valid or who asks does not.
pub(super) struct Order {
    op_id: String,
    kind: Kind,
    text: String,
}

/// How the order of a stage says that every version will do.
const ANY_VERSION: &str = "any version";

/// The order in an event; `None` = it is no operation.
pub(super) fn order(event: &Event) -> Option<Order> {
    let any = |d: &Option<Sha256Digest>| d.map_or_else(|| "any".to_owned(), |d| d.to_string());
    let (op_id, kind, text) = match event {
        Event::Stage(a) => {
            let version = a
                .version
                .as_ref()
                .map_or_else(|| ANY_VERSION.to_owned(), |v| format!("version {v:?}"));
            let text = format!("digest {}, {version}", a.digest);
            (&a.op_id, Kind::Stage, text)
        }
        Event::Activate(a) => (
            &a.op_id,
            Kind::Activate,
            format!("digest {}, reboot {}", any(&a.digest), a.reboot),
        ),
        Event::Commit(a) => (&a.op_id, Kind::Commit, format!("digest {}", any(&a.digest))),
        Event::Rollback(a) => (&a.op_id, Kind::Rollback, format!("reboot {}", a.reboot)),
        Event::Cancel(a) => (&a.op_id, Kind::Cancel, format!("operation {:?}", a.target_op_id)),
        Event::Configure(a) => (&a.op_id, Kind::Configure, a.order.clone()),
        _ => return None,
    };
    Some(Order {
        op_id: op_id.clone(),
        kind,
        text,
    })
}

/// Refuses an id that was given to another order of the same kind: neither its work nor its result is what is asked for.
pub(super) fn same_order(node: &Node, order: &Order) -> Result<()> {
    let Some(old) = node
        .state
        .operation(&order.op_id)
        .filter(|o| o.kind == order.kind)
    else {
        return Ok(());
    };
    let before = match (old.order.as_str(), old.kind) {
        // An older agent kept a stage's digest only.
        ("", Kind::Stage) if !old.digest.is_empty() => format!("digest {}", old.digest),
        ("", _) => return Ok(()),
        (text, _) => text.to_owned(),
    };
    // An older agent kept no version: nothing is known of the one that was asked for.
    let versionless = order.kind == Kind::Stage && !before.contains(',');
    let now = match order.text.split_once(',') {
        Some((digest, _)) if versionless => digest,
        _ => &order.text,
    };
    if before == now {
        return Ok(());
    }
    Err(AgentError::new(
        Code::InvalidArgument,
        format!(
            "operation id {:?} belongs to a {} with {before}, this one asks for {}: choose another id",
            order.op_id,
            order.kind.as_str(),
            order.text
        ),
    ))
}

/// Notes the order in the operation that it opened.
pub(super) fn note(node: &mut Node, order: Order) {
    if let Some(o) = node.state.operation_mut(&order.op_id)
        && o.kind == order.kind
        && o.order.is_empty()
    {
        o.order = order.text;
    }
}

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

/// Enters an operation in the log, or reopens one that a restart interrupted or whose work was undone since.
pub(super) fn open(node: &mut Node, now: i64, op_id: &str, kind: Kind, asked_by: &str, digest: &str) {
    let boot_id = node.boot.boot_id.clone();
    if let Some(at) = node.state.operations.iter().rposition(|o| o.op_id == op_id) {
        let mut old = node.state.operations.remove(at);
        old.started_unix = now;
        old.boot_id = boot_id;
        old.finished_unix = 0;
        old.code.clear();
        old.message.clear();
        old.result = OpResult::default();
        node.state.operations.push(old);
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
        order: String::new(),
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

/// The slot is all right again: what failed on it before is history. Why a trial ended stays until another one is committed.
pub(super) fn mended(node: &mut Node, slot: Slot) {
    let over = |f: &Failure| f.cause.is_none() && f.slot == Some(slot);
    if node.state.last_failure.as_ref().is_some_and(over) {
        node.state.last_failure = None;
    }
}

/// Writes what came of an operation later, for the history.
pub(super) fn remark(node: &mut Node, op_id: &str, text: String) {
    if let Some(o) = node.state.operation_mut(op_id) {
        o.message = text;
    }
}
