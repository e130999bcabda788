//! The worker: the only thread that fetches, writes and reads back slots.

use super::{Engine, Job, OpHandle};
use crate::error::{AgentError, Result};
use crate::inspect;
use crate::machine::{Event, SlotContent};
use crate::node;
use crate::payload;
use crate::ports::{Location, Report};
use crate::slots::Layout;
use crate::verify;
use crate::wire::{StageTask, stored};
use crate::write::{self, Installed};
use os_proto::codes::{Class, Code};
use os_proto::digest::Sha256Digest;
use os_proto::layout::Arch;
use os_proto::record::Content;
use sha2::{Digest, Sha256};
use std::sync::atomic::Ordering;
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// Downloads of one Stage that may start over because the object changed or the stream broke.
const ATTEMPTS: u32 = 3;
/// A compressed payload may be larger than the slot by this much.
pub(super) const SLACK: u64 = 64 << 20;
/// Time for the reply to reach the caller before the node goes down.
const BEFORE_REBOOT: Duration = Duration::from_millis(500);

/// What the worker is to do.
#[derive(Debug, Clone)]
pub(super) enum Task {
    /// Fetch and install.
    Stage(Box<StageTask>),
    /// Read the inactive slot back against its record.
    ReadBack,
}

impl Engine {
    pub(super) fn work(self: &Arc<Self>, queue: &mpsc::Receiver<Job>) {
        loop {
            self.pulse();
            match queue.recv_timeout(Duration::from_secs(1)) {
                Ok(Job::Work(op, task)) => {
                    self.busy.store(1, Ordering::SeqCst);
                    self.carry_out(&op, &task);
                    self.busy.store(0, Ordering::SeqCst);
                }
                Ok(Job::Reboot) => self.reboot(),
                Ok(Job::Stop) | Err(mpsc::RecvTimeoutError::Disconnected) => return,
                Err(mpsc::RecvTimeoutError::Timeout) => {}
            }
            if self.stop.is_cancelled() {
                return;
            }
        }
    }

    fn reboot(&self) {
        if self.options.offline {
            return;
        }
        self.ports.clock.sleep(BEFORE_REBOOT, &self.stop);
        tracing::info!("requesting a reboot");
        if let Err(e) = self.ports.host.reboot() {
            tracing::error!(%e, "reboot");
            self.lock().reboot_error = Some(e.message);
            self.touch();
        }
    }

    fn carry_out(self: &Arc<Self>, op: &Arc<OpHandle>, task: &Task) {
        let result = match task {
            Task::Stage(t) => self.write_slot(op, t),
            Task::ReadBack => self
                .layout_now()
                .and_then(|l| self.read_back(op, &l))
                .map(|i| (i, Event::ReadBack)),
        };
        let mut inner = self.lock();
        let failure = match result {
            Ok((installed, event)) => {
                inner.installed = Some(installed);
                let wrote = matches!(event, Event::Installed(_));
                let failed = self.apply(&mut inner, event).err();
                if wrote && failed.is_none() {
                    // Only now: until the record was saved, the journal is what a restart goes by.
                    self.forget_journal();
                }
                failed
            }
            Err(e) => Some(e),
        };
        if let Some(e) = failure {
            tracing::warn!(%e, op_id = op.op_id, "operation failed");
            if self.stop.is_cancelled()
                && e.code == Code::Cancelled
                && !inner.node.running_op.as_ref().is_some_and(|r| r.cancelling)
            {
                // The agent stops: the operation stays open, the same request takes it up again.
                inner.current = None;
                drop(inner);
                op.complete(Err(AgentError::new(
                    Code::AgentUnavailable,
                    "the agent stops; the same request continues once it runs again",
                )));
                return;
            }
            if inner.node.running_op.is_some() {
                inner.installed = None;
                let _ = self.apply(&mut inner, Event::WorkFailed(e.clone()));
            }
        }
        let result = match inner.node.state.operation(&op.op_id) {
            Some(o) if o.finished_unix != 0 => stored(o),
            _ => Err(AgentError::new(Code::Internal, "the operation left no result")),
        };
        inner.current = None;
        inner.task = None;
        drop(inner);
        op.complete(result);
        self.touch();
    }

    /// The layout now: discovered anew, because a disk with the same ids may have been plugged in since.
    fn layout_now(&self) -> Result<Layout> {
        let layout = self.ports.slots.layout()?;
        match &self.layout {
            Ok(l) if l.running() == layout.running() => Ok(layout),
            Ok(l) => Err(AgentError::new(
                Code::SlotContradiction,
                format!(
                    "slot {} ran when the agent started, now slot {} does",
                    l.running(),
                    layout.running()
                ),
            )),
            Err(e) => Err(e.clone()),
        }
    }

    fn write_slot(self: &Arc<Self>, op: &Arc<OpHandle>, task: &StageTask) -> Result<(Installed, Event)> {
        let layout = self.layout_now()?;
        let target = layout.running().other();
        let policy = verify::Policy {
            require_signature: self.options.config.require_signature,
        };
        let wanted = verify::opaque(task.digest, &policy);
        let from_slot = matches!(task.request.location, Location::Slot(_));
        let inactive = layout.inactive()?;
        let slot_size = inactive.size();
        let mut request = task.request.clone();
        request.max_bytes = slot_size.saturating_add(SLACK);
        let report: Arc<dyn Report> = op.clone();
        let holds = self
            .lock()
            .node
            .record(target)
            .is_some_and(|r| r.content != Content::Dirty && r.is(&task.digest));
        if holds {
            // Nothing will be fetched, but a file that is not there or is no image is a mistake all the same.
            if matches!(request.location, Location::File(_)) {
                let download = self.ports.source.open(&request, &op.cancel, report.clone())?;
                payload::open(download, slot_size)?;
            }
            match self.read_back(op, &layout) {
                Ok(installed) => {
                    self.inspected(&installed, task)?;
                    return Ok((installed, Event::ReadBack));
                }
                // What lies there is not what the record says: write it anew.
                Err(e) if e.class() == Class::Corrupt && !from_slot => {
                    tracing::warn!(%e, "the slot contradicts its record; fetching");
                    // Until the source answers: nothing is read back any more.
                    report.step("fetch", None);
                }
                Err(e) => return Err(e),
            }
        }
        let wanted = wanted?;
        let key = write::Key {
            checksum: task.digest,
            part_uuid: inactive.part_uuid(),
            slot_size,
            origin: origin(&task.request.location),
        };
        let mut attempt = 1;
        let mut wrote = false;
        // How the first read-back failed.
        let mut differed: Option<AgentError> = None;
        loop {
            op.attempt(attempt);
            op.cancel.check()?;
            let mut journal = self.ports.store.journal();
            request.known = journal.as_mut().and_then(|j| write::known(&mut **j, &key));
            let once = || -> std::result::Result<Installed, write::Failed> {
                let download = self.ports.source.open(&request, &op.cancel, report.clone())?;
                let wanted = match download.documents() {
                    Some(d) => verify::layer(
                        task.digest,
                        d,
                        self.options.arch.or(node::own_arch()).unwrap_or(Arch::X86_64),
                        &policy,
                    )?,
                    None => wanted.clone(),
                };
                let payload = payload::open(download, slot_size)?;
                // Exclusively open before the slot is called dirty: a busy slot changes nothing.
                let slot = self.ports.slots.open_inactive(&layout)?;
                if !wrote {
                    let mut inner = self.lock();
                    inner.installed = None;
                    self.apply(&mut inner, Event::FirstWrite)?;
                    wrote = true;
                }
                write::install(
                    payload,
                    &wanted,
                    slot,
                    &self.options.limits,
                    journal.map(|j| (j, key)),
                    &op.cancel,
                    &report,
                )
            };
            match once() {
                Ok(installed) => {
                    let seen = self.inspected(&installed, task)?;
                    let content = SlotContent {
                        version: seen.version_id,
                        os_image: seen.pretty_name,
                        image_size: installed.image_size(),
                        image_sha256: installed.image_sha256(),
                        fetched: installed.fetched(),
                        written: installed.written(),
                        remark: differed.map_or_else(String::new, |e| {
                            format!("{}: put right by writing it again", e.message)
                        }),
                    };
                    return Ok((installed, Event::Installed(content)));
                }
                // The journal stays: what it says is true, and what differs is written once more.
                Err(f) if f.differs && differed.is_none() => {
                    tracing::warn!(e = %f.error, attempt, "writing once more what reads back differently");
                    report.waiting(Some(f.error.message.clone()));
                    differed = Some(f.error);
                }
                Err(f) => {
                    let e = f.error;
                    if spoils(&e) {
                        self.forget_journal();
                    }
                    if attempt >= ATTEMPTS || e.code != Code::ObjectChanged {
                        return Err(self.dated(match differed {
                            Some(_) if f.differs => e.context("written twice"),
                            _ => e,
                        }));
                    }
                    tracing::warn!(%e, attempt, "starting over");
                    report.waiting(Some(e.message));
                }
            }
            attempt += 1;
        }
    }

    /// Says beside a suspected clock what time this node knows to have passed.
    fn dated(&self, mut e: AgentError) -> AgentError {
        if e.code == Code::ClockSuspect {
            let inner = self.lock();
            let operations = &inner.node.state.operations;
            let last = operations.iter().map(|o| o.finished_unix).max().unwrap_or(0);
            if let (true, Ok(t)) = (last > 0, jiff::Timestamp::from_second(last)) {
                e.message.push_str(&format!("; last known {t}"));
            }
        }
        e
    }

    /// The next attempt begins anew.
    fn forget_journal(&self) {
        if let Some(mut j) = self.ports.store.journal()
            && let Err(e) = j.clear()
        {
            tracing::warn!(%e, "the journal stays");
        }
    }

    /// Looks into the slot before it may ever boot.
    fn inspected(&self, installed: &Installed, task: &StageTask) -> Result<inspect::Inspected> {
        inspect::inspect(
            installed,
            &inspect::Wanted {
                version: task.version.clone(),
                arch: self.options.arch,
            },
        )
    }

    /// Reads the inactive slot back against its record.
    fn read_back(&self, op: &Arc<OpHandle>, layout: &Layout) -> Result<Installed> {
        let target = layout.running().other();
        let record = self.lock().node.record(target).cloned();
        let Some(record) = record.filter(|r| r.content != Content::Dirty) else {
            return Err(AgentError::new(
                Code::NotStaged,
                format!("slot {target} has no record of a whole image"),
            ));
        };
        let report: Arc<dyn Report> = op.clone();
        let slot = self.ports.slots.open_inactive(layout)?;
        write::read_back(
            slot,
            record.image_size,
            record.image_sha256,
            record.payload_digests.first().copied(),
            &op.cancel,
            &report,
        )
    }
}

/// Whether what was fetched so far is worth nothing after this error.
fn spoils(e: &AgentError) -> bool {
    e.class() == Class::Corrupt || matches!(e.code, Code::ObjectChanged | Code::SlotTooSmall)
}

/// Where a payload comes from, as the journal knows it: hashed, because a URL may hold a signature.
fn origin(location: &Location) -> Sha256Digest {
    Sha256Digest(Sha256::digest(format!("{location:?}")).into())
}
