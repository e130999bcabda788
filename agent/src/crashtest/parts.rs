//! The node around the recorded disk: ports without a network, a system or a clock of their own.

use super::medium::{JOURNAL, Medium, Op, Region};
use crate::error::{AgentError, Result};
use crate::ports::{
    Cancel, Clock, Download, HookOutcome, Host, JournalStore, OsRelease, Report, SlotDevice, Slots, Source,
    SourceRequest, StateStore,
};
use crate::slots::{self, DiskFact, Layout, OpenSlot};
use bytes::Bytes;
use camino::Utf8PathBuf;
use os_proto::codes::Code;
use os_proto::layout::Slot;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

const DISK: &str = "/recorded";
const STATE_FILE: &str = "state.json";

/// The disk with the slots.
pub(super) struct Disk(pub(super) Arc<Medium>);

impl Slots for Disk {
    fn layout(&self) -> Result<Layout> {
        let (running, slot_size) = {
            let m = self.0.lock();
            (m.running, m.live.slots[0].len() as u64)
        };
        let disk = DiskFact::in_memory(DISK, slot_size, super::medium::SECTOR as u32);
        slots::offline(&disk, running)
    }

    fn open_inactive(&self, layout: &Layout) -> Result<OpenSlot> {
        let slot = layout.running().other();
        layout
            .inactive()?
            .open_with(|_| Ok(Box::new(self.0.open(Region::Slot(slot)))))
    }

    fn open_read(&self, _: &Layout, slot: Slot) -> Result<Box<dyn SlotDevice>> {
        Ok(Box::new(self.0.open(Region::Slot(slot))))
    }
}

/// The state directory.
pub(super) struct Store(pub(super) Arc<Medium>);

fn record(slot: Slot) -> String {
    format!("slots/{slot}.json")
}

impl Store {
    fn read(&self, name: &str) -> Option<Vec<u8>> {
        self.0.lock().live.files.get(name).map(|c| c.to_vec())
    }
}

impl StateStore for Store {
    fn load(&self) -> std::result::Result<Option<Vec<u8>>, String> {
        Ok(self.read(STATE_FILE))
    }

    fn save(&self, text: &[u8]) -> Result<()> {
        self.0.lock().file(STATE_FILE, Some(text.to_vec()));
        Ok(())
    }

    fn load_record(&self, slot: Slot) -> std::result::Result<Option<Vec<u8>>, String> {
        Ok(self.read(&record(slot)))
    }

    fn save_record(&self, slot: Slot, text: &[u8]) -> Result<()> {
        self.0.lock().file(&record(slot), Some(text.to_vec()));
        Ok(())
    }

    fn keep_damaged(&self, _: &[u8]) {}

    fn missing(&self) -> Option<String> {
        None
    }

    fn journal(&self) -> Option<Box<dyn JournalStore>> {
        Some(Box::new(Journal(Arc::clone(&self.0))))
    }
}

/// The journal of the download: replaced whole, written in place behind what is durable.
struct Journal(Arc<Medium>);

impl JournalStore for Journal {
    fn read(&mut self) -> Result<Vec<u8>> {
        Ok(self.0.lock().live.region(Region::Journal).to_vec())
    }

    fn reset(&mut self, header: &[u8], room: u64) -> Result<()> {
        let mut content = header.to_vec();
        content.resize(header.len() + usize::try_from(room).unwrap_or(0), 0);
        self.0.lock().file(JOURNAL, Some(content));
        Ok(())
    }

    fn append(&mut self, at: u64, records: &[u8]) -> Result<()> {
        let at = usize::try_from(at).unwrap_or(usize::MAX);
        let mut m = self.0.lock();
        if m.live.region(Region::Journal).len().saturating_sub(at) < records.len() {
            return Err(fault("the journal has no room for a record"));
        }
        m.write(Region::Journal, at, records);
        m.log.push(Op::Flush(Region::Journal));
        Ok(())
    }

    fn clear(&mut self) -> Result<()> {
        self.0.lock().file(JOURNAL, None);
        Ok(())
    }
}

/// Time that passes only where somebody waits.
#[derive(Default)]
pub(super) struct JumpClock(Mutex<Duration>);

impl JumpClock {
    const START: i64 = 1_800_000_000;

    fn now(&self) -> Duration {
        *self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Clock for JumpClock {
    fn unix(&self) -> i64 {
        Self::START + i64::try_from(self.now().as_secs()).unwrap_or(0)
    }

    fn monotonic(&self) -> Duration {
        self.now()
    }

    fn sleep(&self, span: Duration, _: &Cancel) {
        let mut now = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        *now = now.saturating_add(span);
    }
}

/// The running system.
pub(super) struct System {
    /// Identity of this boot.
    pub(super) boot_id: String,
    /// Kernel command line.
    pub(super) cmdline: String,
    /// VERSION_ID.
    pub(super) version: String,
    /// A hook says that the new version is bad.
    pub(super) ill: bool,
    /// Somebody asked for a reboot.
    pub(super) reboot: AtomicBool,
}

impl Host for System {
    fn boot_id(&self) -> String {
        self.boot_id.clone()
    }

    fn machine_id(&self) -> String {
        "c0ffee00c0ffee00c0ffee00c0ffee00".to_owned()
    }

    fn cmdline(&self) -> String {
        self.cmdline.clone()
    }

    fn os_release(&self) -> OsRelease {
        OsRelease {
            pretty_name: format!("Slipway {}", self.version),
            version_id: self.version.clone(),
        }
    }

    fn boot_complete(&self) -> bool {
        true
    }

    fn run_hooks(&self, _: Duration) -> Vec<HookOutcome> {
        vec![HookOutcome {
            name: "critical-recorded".to_owned(),
            exit: Some(i32::from(self.ill)),
            output: String::new(),
        }]
    }

    fn kubelet_healthy(&self) -> Option<bool> {
        None
    }

    fn reboot(&self) -> Result<()> {
        self.reboot.store(true, Ordering::SeqCst);
        Ok(())
    }

    fn stop_trial_timer(&self) {}

    fn panic_record(&self) -> Option<crate::evidence::Panic> {
        None
    }
}

/// The payload that can be fetched.
#[derive(Clone)]
pub(super) struct Shelf {
    /// Its bytes.
    pub(super) payload: Arc<Vec<u8>>,
    /// Nothing comes after so many bytes until the download is cancelled: the agent is about to be killed.
    pub(super) hold_at: Option<usize>,
    /// Set once it holds.
    pub(super) held: Arc<AtomicBool>,
}

impl Source for Shelf {
    fn open(&self, _: &SourceRequest, cancel: &Cancel, report: Arc<dyn Report>) -> Result<Box<dyn Download>> {
        report.step("fetch", Some(self.payload.len() as u64));
        Ok(Box::new(Taken {
            shelf: self.clone(),
            at: 0,
            cancel: cancel.clone(),
        }))
    }
}

struct Taken {
    shelf: Shelf,
    at: usize,
    cancel: Cancel,
}

/// Bytes per piece.
const PIECE: usize = 256 << 10;

impl Download for Taken {
    fn total(&self) -> Option<u64> {
        Some(self.shelf.payload.len() as u64)
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        let limit = self.shelf.hold_at.unwrap_or(usize::MAX);
        if self.at >= limit {
            self.shelf.held.store(true, Ordering::SeqCst);
            while !self.cancel.is_cancelled() {
                std::thread::park_timeout(Duration::from_millis(1));
            }
        }
        self.cancel.check()?;
        let end = (self.at + PIECE)
            .min(limit.max(self.at + 1))
            .min(self.shelf.payload.len());
        let Some(part) = self.shelf.payload.get(self.at..end).filter(|p| !p.is_empty()) else {
            return Ok(None);
        };
        self.at = end;
        Ok(Some(Bytes::copy_from_slice(part)))
    }

    fn skip(&mut self, n: u64) -> Result<u64> {
        let end = self
            .shelf
            .payload
            .len()
            .min(self.shelf.hold_at.unwrap_or(usize::MAX));
        let n = usize::try_from(n)
            .unwrap_or(usize::MAX)
            .min(end.saturating_sub(self.at));
        self.at += n;
        Ok(n as u64)
    }

    fn describe(&self) -> String {
        "recorded payload".to_owned()
    }
}

/// The payload's name.
pub(super) fn payload_path() -> Utf8PathBuf {
    "/recorded/update.img".into()
}

/// An error that is a mistake of this program.
pub(super) fn fault(what: impl std::fmt::Display) -> AgentError {
    AgentError::new(Code::Internal, format!("crashtest: {what}"))
}
