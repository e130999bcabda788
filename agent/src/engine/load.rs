//! Reads state, records and boot facts at start. What cannot be read is reported, never fatal.

use super::{Options, Ports};
use crate::error::Result;
use crate::machine::{Boot, Node};
use crate::slots::Layout;
use crate::state::State;
use os_proto::codes::Code;
use os_proto::layout::{Slot, cmdline};
use os_proto::record::SlotRecord;

/// Reads everything that the first decision needs.
pub(super) fn load(ports: &Ports, options: &Options, layout: &Result<Layout>) -> (Node, Option<String>) {
    let mut problems = Vec::new();
    let (text, mut unreadable) = match ports.store.load() {
        Ok(t) => (t, None),
        Err(e) => (None, Some(e)),
    };
    let mut loaded = State::parse(text.as_deref());
    let torn = |t: &[u8]| serde_json::from_slice::<serde_json::Map<String, serde_json::Value>>(t).is_err();
    if text.as_deref().is_some_and(torn)
        && let Some(older) = ports.store.load_previous().map(|t| State::parse(Some(&t)))
        && older.problem.is_none()
    {
        // Denials, history and operation ids are worth more than the last change.
        let why = loaded.problem.take().unwrap_or_default();
        loaded = crate::state::Loaded {
            problem: Some(why.replace("starting with an empty one", "the version before it is used")),
            ..older
        };
    }
    if let Some(p) = &loaded.problem {
        tracing::warn!("{p}");
        let code = if loaded.read_only {
            Code::StateTooNew
        } else {
            Code::StateBroken
        };
        problems.push((code, p.clone()));
        if let (Some(t), false, false) = (&text, loaded.read_only, options.observe) {
            ports.store.keep_damaged(t);
        }
    }
    let mut record = |slot: Slot| -> Option<SlotRecord> {
        match ports
            .store
            .load_record(slot)
            .map(|t| t.map(|t| SlotRecord::parse(&t)))
        {
            Ok(None) => None,
            Ok(Some(Ok(Some(r)))) => Some(r),
            Ok(Some(Ok(None))) => {
                problems.push((
                    Code::StateTooNew,
                    format!("the record of slot {slot} needs a newer agent; the slot counts as unknown"),
                ));
                None
            }
            Ok(Some(Err(e))) => {
                problems.push((
                    Code::StateBroken,
                    format!("the record of slot {slot} is damaged: {e}"),
                ));
                None
            }
            Err(e) => {
                unreadable = Some(e);
                None
            }
        }
    };
    let records = [record(Slot::A), record(Slot::B)];
    let trial_arg = format!("{}=", cmdline::TRIAL);
    let boot = Boot {
        running: layout.as_ref().map(Layout::running).map_err(Clone::clone),
        boot_id: ports.host.boot_id(),
        counted: options.offline
            || ports
                .host
                .cmdline()
                .split_whitespace()
                .any(|w| w.starts_with(&trial_arg)),
        gated: !options.offline,
    };
    let mut node = Node::new(boot, loaded.state, loaded.read_only, records);
    node.problems = problems;
    if let Ok(l) = layout {
        node.problems
            .extend(l.warnings().iter().map(|w| (Code::SlotAmbiguous, w.clone())));
    }
    (node, unreadable)
}
