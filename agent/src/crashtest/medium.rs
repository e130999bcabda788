//! The recorded disk: what the update wrote, in order, and what a power cut leaves of it.
//!
//! A write first reaches the device's cache; a flush of the same region makes it durable. Regions are flushed one by one,
//! although the flush of a real disk covers all of them: the proof does not lean on that. A file on PERSIST is replaced
//! whole (`sys::atomic`): before the call returns it is the old or the new one, afterwards durably the new one.

use super::Sabotage;
use crate::error::{AgentError, Result};
use crate::ports::SlotDevice;
use os_proto::codes::Code;
use os_proto::env_block::{self, Env};
use os_proto::layout::{STATE_512, Slot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// Logical sector size of the recorded disk in bytes, the unit of a torn write.
pub(super) const SECTOR: usize = 512;
/// Offset of `env1` in os-state.
pub(super) const ENV1: usize = STATE_512.env1 as usize;
/// Offset of `env2` in os-state.
pub(super) const ENV2: usize = STATE_512.env2 as usize;

/// A part of the disk that is written in place.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Region {
    /// os-state.
    State,
    /// A slot.
    Slot(Slot),
    /// The journal of the download, a file of the state directory that is written in place behind what is durable.
    Journal,
}

/// Its name there.
pub(super) const JOURNAL: &str = "stage.journal";

/// Everything that survives a power cut. Cloning shares what is not changed.
#[derive(Debug, Clone)]
pub(super) struct Content {
    /// os-state, its first 64 KiB.
    pub(super) state: Arc<Vec<u8>>,
    /// Slots A and B.
    pub(super) slots: [Arc<Vec<u8>>; 2],
    /// Files of the state directory.
    pub(super) files: BTreeMap<String, Arc<Vec<u8>>>,
}

impl Content {
    /// The bytes of a region.
    pub(super) fn region(&self, r: Region) -> &[u8] {
        match r {
            Region::State => &self.state,
            Region::Slot(slot) => self.slot(slot),
            Region::Journal => self.files.get(JOURNAL).map_or(&[][..], |f| f.as_slice()),
        }
    }

    /// A slot, as it may be shared with other contents.
    pub(super) fn slot(&self, slot: Slot) -> &Arc<Vec<u8>> {
        match slot {
            Slot::A => &self.slots[0],
            Slot::B => &self.slots[1],
        }
    }

    fn region_mut(&mut self, r: Region) -> Option<&mut Vec<u8>> {
        Some(Arc::make_mut(match r {
            Region::State => &mut self.state,
            Region::Slot(Slot::A) => &mut self.slots[0],
            Region::Slot(Slot::B) => &mut self.slots[1],
            Region::Journal => self.files.get_mut(JOURNAL)?,
        }))
    }

    /// Puts bytes in place.
    pub(super) fn put(&mut self, r: Region, at: usize, data: &[u8]) {
        if let Some(to) = self.region_mut(r).and_then(|v| v.get_mut(at..at + data.len())) {
            to.copy_from_slice(data);
        }
    }

    /// An environment block, `at` being [`ENV1`] or [`ENV2`].
    pub(super) fn env(&self, at: usize) -> &[u8] {
        self.state.get(at..at + env_block::SIZE).unwrap_or_default()
    }
}

/// One thing that reached the disk.
#[derive(Debug, Clone)]
pub(super) enum Op {
    /// Bytes written in place.
    Write(Region, usize, Arc<[u8]>),
    /// Everything written to the region before is durable.
    Flush(Region),
    /// A file replaced, or removed.
    File(String, Option<Arc<Vec<u8>>>),
    /// Not a write: a name for what follows.
    Mark(&'static str),
    /// Not a write: the agent asked for a reboot to try the armed slot.
    Reboot,
}

/// A byte that the medium stores wrongly, once.
#[derive(Debug, Clone, Copy)]
pub(super) struct Fault {
    /// Which write to a slot, counted from 0.
    pub(super) write: usize,
    /// Which of its bytes, from its start.
    pub(super) byte: usize,
}

/// What the lock protects.
pub(super) struct Inner {
    /// What reads see: the device's cache over the medium.
    pub(super) live: Content,
    /// Everything that happened.
    pub(super) log: Vec<Op>,
    /// The slot that runs and must not be written.
    pub(super) running: Slot,
    /// Writes that should never have been asked for.
    pub(super) misdeeds: Vec<String>,
    /// Reboots asked for in order to try a slot.
    pub(super) reboots: u32,
    sabotage: Option<Sabotage>,
    fault: Option<Fault>,
    slot_writes: usize,
    /// Bytes that the medium holds and the cache does not show: region, offset, byte.
    hidden: Vec<(Region, usize, Vec<u8>)>,
}

/// The recorded disk.
pub(super) struct Medium(Mutex<Inner>);

impl Medium {
    /// A disk with this content; nothing is recorded yet.
    pub(super) fn new(content: Content, sabotage: Option<Sabotage>, fault: Option<Fault>) -> Arc<Medium> {
        Arc::new(Medium(Mutex::new(Inner {
            live: content,
            log: Vec::new(),
            running: Slot::A,
            misdeeds: Vec::new(),
            reboots: 0,
            sabotage,
            fault,
            slot_writes: 0,
            hidden: Vec::new(),
        })))
    }

    /// Everything in it.
    pub(super) fn lock(&self) -> MutexGuard<'_, Inner> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Opens a region.
    pub(super) fn open(self: &Arc<Self>, region: Region) -> Recorded {
        Recorded {
            medium: Arc::clone(self),
            region,
        }
    }
}

impl Inner {
    /// Notes something that is no write.
    pub(super) fn mark(&mut self, what: &'static str) {
        self.log.push(Op::Mark(what));
    }

    /// Replaces a file.
    pub(super) fn file(&mut self, name: &str, content: Option<Vec<u8>>) {
        let content = content.map(Arc::new);
        match &content {
            Some(c) => {
                self.live.files.insert(name.to_owned(), Arc::clone(c));
            }
            None => {
                self.live.files.remove(name);
            }
        }
        self.log.push(Op::File(name.to_owned(), content));
    }

    /// Writes as the boot loader does: without a flush.
    pub(super) fn write(&mut self, region: Region, at: usize, data: &[u8]) {
        self.hidden
            .retain(|(r, a, b)| *r != region || *a + b.len() <= at || *a >= at + data.len());
        let mut stored: Arc<[u8]> = Arc::from(data);
        if let Region::Slot(slot) = region {
            if slot == self.running {
                self.misdeeds
                    .push(format!("wrote to slot {slot}, which runs, at byte {at}"));
            }
            let n = self.slot_writes;
            self.slot_writes += 1;
            if let Some(f) = self.fault.filter(|f| f.write == n) {
                let byte = f.byte.min(data.len().saturating_sub(1));
                let mut wrong = data.to_vec();
                if let Some(b) = wrong.get_mut(byte) {
                    *b ^= 0x40;
                    self.hidden.push((region, at + byte, vec![*b]));
                }
                stored = Arc::from(wrong);
            }
        }
        let arms = Env::decode(data.get(..env_block::SIZE).unwrap_or_default())
            .is_ok_and(|e| e.left == Some(env_block::TRIES));
        if region == Region::State && at == ENV1 && arms && self.sabotage == Some(Sabotage::ArmEnv2Only) {
            let old = self.live.env(ENV1).to_vec();
            self.live.put(region, at, data);
            self.hidden.push((region, at, old));
            return;
        }
        self.live.put(region, at, data);
        self.log.push(Op::Write(region, at, stored));
    }

    /// The cache is gone: what it hid comes to light.
    pub(super) fn power_cycle(&mut self) {
        self.reveal(|_| true);
    }

    fn reveal(&mut self, which: impl Fn(Region) -> bool) {
        let (shown, hidden): (Vec<_>, Vec<_>) = std::mem::take(&mut self.hidden)
            .into_iter()
            .partition(|(r, _, _)| which(*r));
        self.hidden = hidden;
        for (r, at, bytes) in shown {
            self.live.put(r, at, &bytes);
        }
    }
}

/// A region, opened. Reads come from the cache until it is dropped.
pub(super) struct Recorded {
    medium: Arc<Medium>,
    region: Region,
}

impl Recorded {
    fn outside(&self, offset: u64, len: usize) -> AgentError {
        AgentError::new(
            Code::Internal,
            format!("{}: {len} bytes at {offset} lie outside", self.describe()),
        )
    }
}

impl SlotDevice for Recorded {
    fn size(&self) -> u64 {
        self.medium.lock().live.region(self.region).len() as u64
    }

    fn block_size(&self) -> u32 {
        SECTOR as u32
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let at = usize::try_from(offset).map_err(|_| self.outside(offset, data.len()))?;
        if offset + data.len() as u64 > self.size() || !at.is_multiple_of(SECTOR) {
            return Err(self.outside(offset, data.len()));
        }
        self.medium.lock().write(self.region, at, data);
        Ok(())
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = usize::try_from(offset).map_err(|_| self.outside(offset, buf.len()))?;
        let inner = self.medium.lock();
        let Some(from) = inner.live.region(self.region).get(at..at + buf.len()) else {
            drop(inner);
            return Err(self.outside(offset, buf.len()));
        };
        buf.copy_from_slice(from);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        let mut inner = self.medium.lock();
        let slot = matches!(self.region, Region::Slot(_));
        if !(slot && inner.sabotage == Some(Sabotage::NoFlush)) {
            inner.log.push(Op::Flush(self.region));
        }
        Ok(())
    }

    fn drop_cache(&mut self) -> Result<()> {
        let mut inner = self.medium.lock();
        let trusting = matches!(
            inner.sabotage,
            Some(Sabotage::SkipReadback | Sabotage::ArmEnv2Only)
        );
        if !trusting {
            inner.reveal(|r| r == self.region);
        }
        Ok(())
    }

    fn describe(&self) -> String {
        match self.region {
            Region::State => "recorded disk (os-state)".to_owned(),
            Region::Slot(s) => format!("recorded disk (ROOT-{s})"),
            Region::Journal => format!("recorded disk ({JOURNAL})"),
        }
    }
}
