//! The calls of the interface, as the server and the offline commands make them. They block; no logic of their own.

use super::{Engine, Inner, OpHandle, answer, work::Task};
use crate::error::{AgentError, Result};
use crate::machine::{Event, Outcome, Proof, StageAsk};
use crate::ports::{Cancel, Location, Report, SourceRequest};
use crate::state::{Kind, OpResult, Phase};
use crate::wire;
use crate::write;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::layout::Slot;
use os_proto::v1;
use std::sync::Arc;

/// What became of a call.
pub enum Begun {
    /// Answered: the operation's id and result.
    Done(String, OpResult),
    /// A worker is busy with it.
    Running(Arc<OpHandle>),
}

impl Begun {
    /// Waits for the result.
    ///
    /// # Errors
    /// The operation's.
    pub async fn finished(self) -> Result<(String, OpResult)> {
        match self {
            Begun::Done(id, r) => Ok((id, r)),
            Begun::Running(h) => h.finished().await.map(|r| (h.op_id.clone(), r)),
        }
    }
}

impl Engine {
    /// Starts or joins a Stage.
    ///
    /// # Errors
    /// Refusals; the stored error of a finished operation with this id.
    pub fn stage(self: &Arc<Self>, r: &v1::StageRequest, asked_by: &str) -> Result<Begun> {
        let op_id = wire::op_id(&r.op_id)?;
        let mut inner = self.lock();
        if let Err(e) = &self.layout {
            return Err(e.clone());
        }
        let task = wire::stage(r, |s| {
            inner
                .node
                .record(s)
                .filter(|r| r.content != os_proto::record::Content::Dirty)
                .map(|r| r.shown())
        })
        // The records lie with the state: where that cannot be had, their absence says nothing.
        .map_err(|e| match self.ports.store.missing() {
            Some(why) if e.code == Code::NotStaged => {
                AgentError::new(Code::StateWriteFailed, format!("no place for the state: {why}"))
            }
            _ => e,
        })?;
        let ask = StageAsk {
            op_id: op_id.clone(),
            digest: task.digest,
            version: task.version.clone(),
            asked_by: asked_by.to_owned(),
            force: r.force,
            dry_run: r.dry_run,
            from_slot: match task.request.location {
                Location::Slot(s) => Some(s),
                _ => None,
            },
        };
        let request = task.request.clone();
        let begun = self.begin_op(
            &mut inner,
            &op_id,
            Kind::Stage,
            Task::Stage(Box::new(task)),
            Event::Stage(ask),
        )?;
        drop(inner);
        if r.dry_run && matches!(request.location, Location::File(_)) {
            self.looks_right(request, &op_id)?;
        }
        Ok(begun)
    }

    /// A file that is here: its kind and its size, without reading it whole.
    fn looks_right(self: &Arc<Self>, mut request: SourceRequest, op_id: &str) -> Result<()> {
        let slot_size = self.layout.clone()?.inactive()?.size();
        request.max_bytes = slot_size.saturating_add(super::work::SLACK);
        let report = self.handle(op_id, Kind::Stage);
        let download = self.ports.source.open(&request, &Cancel::default(), report)?;
        crate::payload::open(download, slot_size).map(drop)
    }

    /// Arms the staged slot; reads it back first where this process did not.
    ///
    /// # Errors
    /// Refusals; the stored error of a finished operation with this id.
    pub fn activate(self: &Arc<Self>, r: &v1::ActivateRequest, asked_by: &str) -> Result<Begun> {
        let ask = wire::activate(r, asked_by)?;
        let id = ask.op_id.clone();
        let mut inner = self.lock();
        self.room(&inner, &id)?;
        self.begin_op(
            &mut inner,
            &id,
            Kind::Activate,
            Task::ReadBack,
            Event::Activate(ask),
        )
    }

    /// Ends a trial, disarms, or goes to the other slot.
    ///
    /// # Errors
    /// Refusals; the stored error of a finished operation with this id.
    pub fn rollback(self: &Arc<Self>, r: &v1::RollbackRequest, asked_by: &str) -> Result<Begun> {
        let ask = wire::rollback(r, asked_by)?;
        let id = ask.op_id.clone();
        let mut inner = self.lock();
        if inner.node.phase != Phase::Trial {
            self.room(&inner, &id)?;
        }
        self.begin_op(
            &mut inner,
            &id,
            Kind::Rollback,
            Task::ReadBack,
            Event::Rollback(ask),
        )
    }

    /// A handle on a new operation.
    pub(super) fn handle(self: &Arc<Self>, op_id: &str, kind: Kind) -> Arc<OpHandle> {
        let engine = Arc::downgrade(self);
        let on_change = Box::new(move || {
            if let Some(e) = engine.upgrade() {
                e.pulse();
                e.touch();
            }
        });
        OpHandle::new(op_id, kind, self.ports.clock.clone(), on_change)
    }

    /// Refuses a new operation that would start a trial which gets no /etc.
    fn room(&self, inner: &Inner, op_id: &str) -> Result<()> {
        if self.options.offline || inner.node.state.operation(op_id).is_some() {
            return Ok(());
        }
        self.ports.store.room_for_trial()
    }

    /// Starts an operation that may need the worker.
    fn begin_op(
        self: &Arc<Self>,
        inner: &mut Inner,
        op_id: &str,
        kind: Kind,
        task: Task,
        event: Event,
    ) -> Result<Begun> {
        let idle = inner.current.is_none();
        if idle {
            inner.task = Some(task);
            inner.current = Some(self.handle(op_id, kind));
        }
        let outcome = self.apply(inner, event);
        match (outcome, &inner.current) {
            (Ok(Outcome::Started | Outcome::Joined), Some(h)) => Ok(Begun::Running(h.clone())),
            (other, _) => {
                if idle {
                    inner.current = None;
                    inner.task = None;
                }
                other.and_then(answer).map(|r| Begun::Done(op_id.to_owned(), r))
            }
        }
    }

    /// Makes the running slot the default.
    ///
    /// # Errors
    /// Refusals.
    pub fn commit(self: &Arc<Self>, r: &v1::CommitRequest, asked_by: &str) -> Result<OpResult> {
        self.commit_or_force(r, asked_by, false)
    }

    /// As [`Engine::commit`]. On an offline disk nothing runs, so the slot must read back against its record, unless `force`.
    ///
    /// # Errors
    /// Refusals; read errors.
    pub fn commit_or_force(
        self: &Arc<Self>,
        r: &v1::CommitRequest,
        asked_by: &str,
        force: bool,
    ) -> Result<OpResult> {
        let mut ask = wire::commit(r, asked_by)?;
        if self.options.offline {
            ask.proof = if force {
                Proof::Forced
            } else {
                Proof::Read(self.reads_as()?)
            };
        }
        let mut inner = self.lock();
        self.apply(&mut inner, Event::Commit(ask)).and_then(answer)
    }

    /// What the slot that counts as running reads as, as far as its record goes; `None` = not asked or no record.
    fn reads_as(self: &Arc<Self>) -> Result<Option<Sha256Digest>> {
        let layout = self.layout.clone()?;
        let slot = layout.running();
        let record = {
            let inner = self.lock();
            if inner.node.env.is_some_and(|e| e.cur == slot) {
                return Ok(None);
            }
            inner.node.record(slot).cloned()
        };
        let Some(record) = record.filter(|r| r.content != os_proto::record::Content::Dirty) else {
            return Ok(None);
        };
        let mut device = self.ports.slots.open_read(&layout, slot)?;
        if record.image_size > device.size() {
            return Ok(None);
        }
        let report = self.handle("", Kind::Commit);
        write::hash_of(
            device.as_mut(),
            record.image_size,
            &Cancel::default(),
            report.as_ref(),
        )
        .map(Some)
    }

    /// Stops running work or disarms.
    ///
    /// # Errors
    /// `NothingToDo`, `BootIdChanged`.
    pub fn cancel(self: &Arc<Self>, r: &v1::CancelRequest, asked_by: &str) -> Result<()> {
        let ask = wire::cancel(r, asked_by)?;
        let mut inner = self.lock();
        self.apply(&mut inner, Event::Cancel(ask))
            .and_then(answer)
            .map(drop)
    }

    /// Lifts the denial of a digest.
    ///
    /// # Errors
    /// `NothingToDo` when it is not denied.
    pub fn forget(self: &Arc<Self>, digest: &str) -> Result<()> {
        let digest = wire::digest(digest)?;
        let mut inner = self.lock();
        self.apply(&mut inner, Event::Forget(digest))
            .and_then(answer)
            .map(drop)
    }

    /// Hashes a slot and compares with its record; `None` = the inactive one.
    ///
    /// # Errors
    /// `NotStaged` without a record, `Busy` while something writes, read errors.
    pub fn verify_slot(
        self: &Arc<Self>,
        slot: Option<Slot>,
        cancel: &Cancel,
        report: &dyn Report,
    ) -> Result<v1::VerifySlotReply> {
        let layout = self.layout.clone()?;
        let slot = slot.unwrap_or(layout.running().other());
        let record = {
            let inner = self.lock();
            if let Some(h) = &inner.current {
                return Err(AgentError::new(
                    Code::Busy,
                    format!("operation {} ({}) is running", h.op_id, h.kind.as_str()),
                ));
            }
            inner.node.record(slot).cloned()
        };
        let Some(record) = record.filter(|r| r.image_size > 0) else {
            return Err(AgentError::new(
                Code::NotStaged,
                format!("slot {slot} has no record to compare with"),
            ));
        };
        let mut device = self.ports.slots.open_read(&layout, slot)?;
        let found = write::hash_of(device.as_mut(), record.image_size, cancel, report)?;
        let whole = record.content != os_proto::record::Content::Dirty;
        if whole && found != record.image_sha256 && !self.options.observe {
            let mut inner = self.lock();
            // Unless something was written meanwhile.
            if inner.current.is_none() && inner.node.record(slot) == Some(&record) {
                inner.installed = None;
                self.apply(&mut inner, Event::Contradicts(slot, found))?;
            }
        }
        Ok(v1::VerifySlotReply {
            slot: wire::slot_out(Some(slot)),
            image_sha256: found.to_string(),
            wanted_sha256: record.image_sha256.to_string(),
            ok: whole && found == record.image_sha256,
        })
    }

    /// Whether an operation asked for a reboot.
    pub fn asked_for_reboot(&self, op_id: &str) -> bool {
        let inner = self.lock();
        inner
            .node
            .state
            .operation(op_id)
            .is_some_and(|o| o.reboot_requested)
    }

    /// VERSION_ID of what a slot holds; empty = unknown.
    pub fn version_of(&self, slot: Slot) -> String {
        let inner = self.lock();
        inner
            .node
            .record(slot)
            .map(|r| r.version.clone())
            .unwrap_or_default()
    }

    /// Past operations, newest first.
    pub fn history(&self, limit: u32) -> v1::HistoryReply {
        let take = if limit == 0 { usize::MAX } else { limit as usize };
        v1::HistoryReply {
            operations: self
                .lock()
                .node
                .state
                .operations
                .iter()
                .rev()
                .take(take)
                .map(wire::operation)
                .collect(),
        }
    }
}
