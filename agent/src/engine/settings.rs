//! Configure: decides on a plan, writes it outside the lock, and notes what waits for a restart.

use super::{Begun, Engine, OpHandle, answer};
use crate::error::{AgentError, Result};
use crate::machine::{Applied, ConfigureAsk, Event, Outcome};
use crate::settings::{Item, Written, effect, plan, request};
use crate::slots::Layout;
use crate::state::{Kind, OpResult};
use crate::wire;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use os_proto::v1;
use sha2::{Digest, Sha256};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

/// The entries in a form that can be compared; hashed, because values may be secrets.
fn order(r: &v1::ConfigureRequest) -> String {
    let sum = Sha256::digest(format!("{:?}", r.configs));
    format!("entries {}", Sha256Digest(sum.into()))
}

impl Engine {
    /// Changes settings: all entries of a call or none.
    ///
    /// # Errors
    /// `SettingRejected` naming every entry that cannot be, `Busy`, `StateWriteFailed`; the stored error of a finished
    /// operation with this id.
    pub fn configure(self: &Arc<Self>, r: &v1::ConfigureRequest, asked_by: &str) -> Result<Begun> {
        let op_id = wire::op_id(&r.op_id)?;
        let running = self.layout.as_ref().map(Layout::running).map_err(Clone::clone);
        if r.dry_run {
            let plan = self.plan(&request::items(&r.configs, &running)?)?;
            let result = OpResult {
                settings: plan.entries,
                ..OpResult::default()
            };
            return Ok(Begun::Done(op_id, result));
        }
        let handle = {
            let mut inner = self.lock();
            let ask = ConfigureAsk {
                order: order(r),
                op_id: op_id.clone(),
                asked_by: asked_by.to_owned(),
            };
            match self.apply(&mut inner, Event::Configure(ask)) {
                Ok(Outcome::Started) => {
                    let handle = self.handle(&op_id, Kind::Configure);
                    inner.current = Some(handle.clone());
                    handle
                }
                Ok(Outcome::Joined) => {
                    return match &inner.current {
                        Some(h) => Ok(Begun::Running(h.clone())),
                        None => Err(AgentError::new(Code::Internal, "the operation has no handle")),
                    };
                }
                other => return other.and_then(answer).map(|r| Begun::Done(op_id, r)),
            }
        };
        // A fault of ours must not leave the agent busy for ever.
        let work = || {
            let items = request::items(&r.configs, &running)?;
            self.change(&items, running.clone().ok())
        };
        let done = catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|_| {
            Err(AgentError::new(
                Code::Internal,
                "changing the settings broke off; see the journal",
            ))
        });
        self.ended(&handle, done).map(|r| Begun::Done(op_id, r))
    }

    fn ended(self: &Arc<Self>, handle: &OpHandle, done: Result<Applied>) -> Result<OpResult> {
        let failure = done.as_ref().err().cloned();
        let mut inner = self.lock();
        let outcome = self.apply(&mut inner, Event::Configured(done));
        inner.current = None;
        drop(inner);
        let result = match failure {
            Some(e) => Err(e),
            None => outcome.and_then(answer),
        };
        handle.complete(result.clone());
        self.touch();
        result
    }

    fn plan(&self, items: &[Item]) -> Result<plan::Plan> {
        let plan = plan::plan(items, &self.ports.settings.gather(items));
        plan.error().map_or(Ok(plan), Err)
    }

    fn change(&self, items: &[Item], running: Option<Slot>) -> Result<Applied> {
        let plan = self.plan(items)?;
        let mut waiting = self.lock().node.state.settings.clone();
        self.settle(&mut waiting, running);
        let mut written = self.ports.settings.apply(&plan, &waiting)?;
        for w in &mut written {
            w.at_unix = self.now();
            w.at_secs = self.ports.clock.monotonic().as_secs();
            w.boot_id.clone_from(&self.boot_id);
        }
        effect::merge(&mut waiting, written);
        self.settle(&mut waiting, running);
        Ok(Applied {
            entries: plan.entries,
            waiting,
        })
    }

    /// Drops what is in effect by now, and the contents that were kept for it.
    fn settle(&self, waiting: &mut Vec<Written>, running: Option<Slot>) {
        let seen = self.ports.settings.seen(waiting, &self.boot_id, running);
        waiting.retain(|w| {
            let waits = w.waits_for(&seen).is_some();
            if !waits {
                self.ports.settings.forget(w);
            }
            waits
        });
    }

    /// What is written and not yet in effect, for status.
    pub(super) fn pending_settings(&self, waiting: &[Written], running: Option<Slot>) -> Vec<String> {
        if waiting.is_empty() {
            return Vec::new();
        }
        let seen = self.ports.settings.seen(waiting, &self.boot_id, running);
        waiting
            .iter()
            .filter_map(|w| Some(w.describe(&w.waits_for(&seen)?)))
            .collect()
    }
}
