//! The seams between decisions and the world. Real implementations live in `fetch`, `sys`, `slots`, `boot` and `health`;
//! in-memory ones in `testing`.
//!
//! All of them are blocking: the engine calls them from its own worker thread, never from the async runtime.

use crate::error::Result;
use crate::evidence::{Panic, Sign};
use crate::settings::effect::Seen;
use crate::settings::{Facts, Item, Plan, Written};
use crate::slots::{Layout, OpenSlot};
use bytes::Bytes;
use camino::Utf8PathBuf;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::Env;
use os_proto::layout::Slot;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Asks running work to stop. Cloned freely; checked at least every 200 ms by anything that waits or loops.
#[derive(Debug, Clone, Default)]
pub struct Cancel(Arc<AtomicBool>);

impl Cancel {
    /// Requests the stop.
    pub fn cancel(&self) {
        self.0.store(true, Ordering::SeqCst);
    }

    /// Whether a stop was requested.
    pub fn is_cancelled(&self) -> bool {
        self.0.load(Ordering::SeqCst)
    }

    /// `Err(Cancelled)` once a stop was requested.
    ///
    /// # Errors
    /// Code `Cancelled`.
    pub fn check(&self) -> Result<()> {
        if self.is_cancelled() {
            return Err(crate::error::AgentError::new(
                os_proto::codes::Code::Cancelled,
                "the operation was cancelled",
            ));
        }
        Ok(())
    }
}

/// Where a payload comes from.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Location {
    /// http or https.
    Url(String),
    /// An absolute path on the node.
    File(Utf8PathBuf),
    /// A container image in a registry.
    Oci {
        /// Where, as people write it.
        reference: String,
        /// SHA-256 of its manifest or index.
        pin: Sha256Digest,
    },
    /// The other slot, read back against its record.
    Slot(Slot),
}

/// What to fetch and under which policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SourceRequest {
    /// Where.
    pub location: Location,
    /// Plain http is permitted.
    pub allow_http: bool,
    /// Authority file that replaces the system's roots.
    pub cacert: Option<Utf8PathBuf>,
    /// Client certificate and key (PEM), re-read per connection.
    pub client: Option<(Utf8PathBuf, Utf8PathBuf)>,
    /// Bandwidth cap in bytes per second.
    pub rate_bytes_per_sec: Option<u64>,
    /// Never accept more bytes than this.
    pub max_bytes: u64,
    /// What an earlier attempt learnt: most of the object is there already and only its beginning is wanted at first.
    pub known: Option<Object>,
}

/// What is known of an object at its source.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Object {
    /// Size in bytes.
    pub total: u64,
    /// Its strong ETag.
    pub etag: Option<String>,
    /// Its Last-Modified.
    pub modified: Option<String>,
}

impl SourceRequest {
    /// For a location, by the strictest policy: https, no client certificate, no limits.
    pub fn at(location: Location) -> SourceRequest {
        SourceRequest {
            location,
            allow_http: false,
            cacert: None,
            client: None,
            rate_bytes_per_sec: None,
            known: None,
            max_bytes: u64::MAX,
        }
    }
}

/// Told about things that a person wants to see while work goes on. Must be cheap and must not fail.
pub trait Report: Send + Sync {
    /// A named step begins: `fetch`, `read-back`, `inspect`.
    fn step(&self, name: &'static str, total_bytes: Option<u64>);
    /// `done` bytes of the current step.
    fn done(&self, bytes: u64);
    /// So many bytes of the slot were written so far, and so many needed no writing.
    fn wrote(&self, written: u64, saved: u64) {
        let _ = (written, saved);
    }
    /// Why nothing moves ("server.example: connection refused, try 3 of 8 in 4 s"); `None` = moving again.
    fn waiting(&self, why: Option<String>);
}

/// Opens payloads.
pub trait Source: Send + Sync {
    /// Opens a payload; retries as its policy says, reporting waits.
    ///
    /// # Errors
    /// `FetchFailed`, `Redirect`, `HttpNotAllowed`, `ClockSuspect`, `Cancelled` …
    fn open(
        &self,
        request: &SourceRequest,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>>;
}

/// An open payload: bytes in order, exactly once, resumed inside where the source can.
pub trait Download: Send {
    /// Total size in bytes, where the source says so.
    fn total(&self) -> Option<u64>;
    /// The next bytes (at most 1 MiB); `None` at the end. Blocks.
    ///
    /// # Errors
    /// As [`Source::open`]; `SizeMismatch` when the end comes early or late against what the source promised.
    fn next(&mut self) -> Result<Option<Bytes>>;
    /// Passes over up to `n` further bytes without fetching them and says how many; the default passes over none.
    ///
    /// # Errors
    /// As [`Download::next`].
    fn skip(&mut self, n: u64) -> Result<u64> {
        let _ = n;
        Ok(0)
    }
    /// What identifies this object at its source; `None` without a size.
    fn object(&self) -> Option<Object> {
        self.total().map(|total| Object {
            total,
            ..Object::default()
        })
    }
    /// The documents that lead from the checksum that was asked for to this file, where it is named by another one: each was
    /// named by the SHA-256 in the one before.
    fn documents(&self) -> Option<&[Vec<u8>]> {
        None
    }
    /// For messages: no userinfo, no query.
    fn describe(&self) -> String;
}

/// Where the journal of a download lies: a header, then records that are only ever added.
pub trait JournalStore: Send {
    /// Everything in it; empty = there is none.
    ///
    /// # Errors
    /// `Internal` when it exists and cannot be read.
    fn read(&mut self) -> Result<Vec<u8>>;
    /// Replaces it by `header`, durably, and reserves `room` bytes for what follows.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn reset(&mut self, header: &[u8], room: u64) -> Result<()>;
    /// Writes `records` at byte `at`; durable on return.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn append(&mut self, at: u64, records: &[u8]) -> Result<()>;
    /// Removes it, durably.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn clear(&mut self) -> Result<()>;
}

/// An open slot or disk region. Offsets and lengths are bytes from its start; writes are whole logical blocks.
pub trait SlotDevice: Send {
    /// Size in bytes.
    fn size(&self) -> u64;
    /// Logical block size in bytes: 512 or 4096.
    fn block_size(&self) -> u32;
    /// Writes `data` at `offset`.
    ///
    /// # Errors
    /// `MediumCorrupt` or `Internal` with the device and offset.
    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()>;
    /// Fills `buf` from `offset`.
    ///
    /// # Errors
    /// As [`SlotDevice::write_at`].
    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<()>;
    /// Everything written so far is durable when this returns (fsync and device flush).
    ///
    /// # Errors
    /// Any failure is fatal to the attempt.
    fn flush(&mut self) -> Result<()>;
    /// Drops cached pages, so that following reads come from the medium.
    ///
    /// # Errors
    /// As [`SlotDevice::write_at`].
    fn drop_cache(&mut self) -> Result<()>;
    /// For messages: device or file path.
    fn describe(&self) -> String;
}

/// Both environment copies as found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EnvCopies {
    /// `env1`, or why it is not valid.
    pub env1: std::result::Result<Env, String>,
    /// `env2`, or why it is not valid.
    pub env2: std::result::Result<Env, String>,
}

impl EnvCopies {
    /// The copy that counts: `env1` where valid, else `env2` without its trial (no trial ever starts from `env2`).
    pub fn effective(&self) -> Option<Env> {
        match (&self.env1, &self.env2) {
            (Ok(e), _) => Some(*e),
            (Err(_), Ok(e)) => Some(Env {
                try_slot: None,
                left: None,
                ..*e
            }),
            (Err(_), Err(_)) => None,
        }
    }
}

/// What decides which slot boots next. One implementation for our disks, later one for KubeOS's.
pub trait Bootloader: Send + Sync {
    /// Reads both copies from the medium.
    ///
    /// # Errors
    /// `StateBroken` when os-state is not where the layout says, `Internal` on I/O errors.
    fn read(&self) -> Result<EnvCopies>;
    /// Writes `env` to `env2`, flushes, then to `env1`, flushes, and reads both back. Each write is one whole 4 KiB cluster
    /// in place. Generation and checksum are the caller's.
    ///
    /// # Errors
    /// `EnvWriteFailed`, `StateBroken`.
    fn write(&self, env: &Env) -> Result<()>;
}

/// Result of one health hook.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct HookOutcome {
    /// File name.
    pub name: String,
    /// Exit status; `None` = timed out or killed by a signal.
    pub exit: Option<i32>,
    /// Tail of its output.
    pub output: String,
}

/// Identity of a running system.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct OsRelease {
    /// PRETTY_NAME.
    pub pretty_name: String,
    /// VERSION_ID.
    pub version_id: String,
}

/// The running system.
pub trait Host: Send + Sync {
    /// `/proc/sys/kernel/random/boot_id`.
    fn boot_id(&self) -> String;
    /// `/etc/machine-id`.
    fn machine_id(&self) -> String;
    /// `/proc/cmdline`.
    fn cmdline(&self) -> String;
    /// Identity of the running system.
    fn os_release(&self) -> OsRelease;
    /// Whether `boot-complete.target` is active.
    fn boot_complete(&self) -> bool;
    /// Runs every hook of the image and of the node in name order, each bounded by `timeout`.
    fn run_hooks(&self, timeout: Duration) -> Vec<HookOutcome>;
    /// kubelet's healthz: `None` when there is no kubelet to ask.
    fn kubelet_healthy(&self) -> Option<bool>;
    /// Asks the service manager for an orderly reboot; returns when the request was accepted.
    ///
    /// # Errors
    /// `Internal` with the manager's answer.
    fn reboot(&self) -> Result<()>;
    /// Stops the early timer that ends a trial without the agent; a no-op where it does not run.
    fn stop_trial_timer(&self);
    /// The newest kernel panic in pstore that was not there when the agent last looked; it is archived.
    fn panic_record(&self) -> Option<Panic>;
    /// Why a trial in this boot cannot be judged, whatever its image is like: it did not get what it needs of PERSIST.
    fn trial_obstacle(&self) -> Option<String> {
        None
    }
    /// What is wrong with PERSIST beside what the state store says: repaired at boot, full.
    fn persist_problems(&self) -> Vec<String> {
        Vec::new()
    }
    /// Why the step runner wants this boot to end, if it does.
    fn steps_want_reboot(&self) -> Option<String> {
        None
    }
}

/// Time. The only place that decisions get it from.
pub trait Clock: Send + Sync {
    /// Wall clock, Unix seconds.
    fn unix(&self) -> i64;
    /// Monotonic time since some fixed point of this boot, including suspend.
    fn monotonic(&self) -> Duration;
    /// Waits, at most 200 ms late after a cancel.
    fn sleep(&self, span: Duration, cancel: &Cancel);
}

/// The disk with the slots.
pub trait Slots: Send + Sync {
    /// Looks at the disk anew: which slot runs, where everything lies.
    ///
    /// # Errors
    /// Why there are no slots, or why they cannot be told apart.
    fn layout(&self) -> Result<Layout>;
    /// Opens the slot that does not run, exclusively.
    ///
    /// # Errors
    /// `SlotBusy` with the holder and the like.
    fn open_inactive(&self, layout: &Layout) -> Result<OpenSlot>;
    /// Opens any slot for reading.
    ///
    /// # Errors
    /// `Internal` with the device.
    fn open_read(&self, layout: &Layout, slot: Slot) -> Result<Box<dyn SlotDevice>>;
}

/// The node's settings: what configuration entries are about.
pub trait Settings: Send + Sync {
    /// Reads everything that the entries are about.
    fn gather(&self, items: &[Item]) -> Facts;
    /// Writes a plan: all of it, or nothing. The content before each change is kept; `waiting` names what is kept already.
    ///
    /// # Errors
    /// `SettingRejected` when the kernel or a program does not accept a value, `StateWriteFailed`.
    fn apply(&self, plan: &Plan, waiting: &[Written]) -> Result<Vec<Written>>;
    /// What decides whether these are in effect.
    fn seen(&self, records: &[Written], boot_id: &str, running: Option<Slot>) -> Seen;
    /// The content before a change that is in effect now is no longer needed.
    fn forget(&self, record: &Written);
}

/// Where the durable state lives.
pub trait StateStore: Send + Sync {
    /// The text of state.json; `None` = there is none.
    ///
    /// # Errors
    /// A message when it exists and cannot be read.
    fn load(&self) -> std::result::Result<Option<Vec<u8>>, String>;
    /// Replaces state.json durably.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn save(&self, text: &[u8]) -> Result<()>;
    /// The text of a slot's record; `None` = there is none.
    ///
    /// # Errors
    /// A message when it exists and cannot be read.
    fn load_record(&self, slot: Slot) -> std::result::Result<Option<Vec<u8>>, String>;
    /// Replaces a slot's record durably.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn save_record(&self, slot: Slot, text: &[u8]) -> Result<()>;
    /// The version of the state before the last one, where it is still there.
    fn load_previous(&self) -> Option<Vec<u8>> {
        None
    }
    /// Puts a state that could not be read aside, for people.
    fn keep_damaged(&self, text: &[u8]);
    /// Why nothing can be stored; `None` = it can.
    fn missing(&self) -> Option<String>;
    /// The journal of the download; `None` = this store keeps none, and every download begins anew.
    fn journal(&self) -> Option<Box<dyn JournalStore>> {
        None
    }
    /// Durably, before a slot is armed: forgets the signs of life of earlier trials, and leaves word for the initramfs
    /// which slot is to keep its own layer of /etc instead of getting a copy of the running slot's.
    ///
    /// # Errors
    /// `StateWriteFailed`.
    fn prepare_trial(&self, keep_etc: Option<Slot>) -> Result<()> {
        let _ = keep_etc;
        Ok(())
    }
    /// Signs of life of the last trial's boots.
    fn signs(&self) -> Vec<Sign> {
        Vec::new()
    }
    /// Whether a trial of `slot` would have room for its copy of the running slot's /etc.
    ///
    /// # Errors
    /// `StateWriteFailed` with how much is missing.
    fn room_for_trial(&self) -> Result<()> {
        Ok(())
    }
}
