//! What the checks are about.

use crate::error::AgentError;
use crate::ports::EnvCopies;
use crate::state::State;
use os_proto::layout::Slot;

/// A watchdog device.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Watchdog {
    /// Its name in `/sys/class/watchdog`.
    pub name: String,
    /// What it says it is.
    pub identity: String,
    /// Somebody feeds it.
    pub active: bool,
    /// Seconds.
    pub timeout_secs: Option<u64>,
}

/// The disk as discovery sees it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Disk {
    /// Node or image file.
    pub node: String,
    /// The slot that runs.
    pub running: Slot,
    /// Logical sector size in bytes.
    pub sector_size: u32,
    /// Size of slots A and B in bytes.
    pub slot_bytes: [u64; 2],
    /// Oddities that do not stop an update.
    pub warnings: Vec<String>,
    /// Why the inactive slot cannot be opened for writing.
    pub busy: Option<String>,
    /// Bytes of the image that runs, where known.
    pub image_bytes: Option<u64>,
}

/// Where the agent keeps its state.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Persist {
    /// Why nothing can be stored.
    pub missing: Option<String>,
    /// Free bytes and inodes.
    pub free: Option<(u64, u64)>,
    /// What is wrong with state.json.
    pub problem: Option<String>,
    /// A newer agent wrote it.
    pub read_only: bool,
}

/// Everything that is looked at.
#[derive(Debug, Clone)]
pub struct Facts {
    /// A disk image: nothing of it runs here.
    pub offline: bool,
    /// The disk, or why there are no slots.
    pub disk: Result<Disk, AgentError>,
    /// Both environment copies, or why they cannot be read.
    pub env: Result<EnvCopies, AgentError>,
    /// `/proc/cmdline`.
    pub cmdline: String,
    /// grub.cfg on BOOT, or why it cannot be read.
    pub grub_cfg: Result<String, String>,
    /// The state directory.
    pub persist: Persist,
    /// The state.
    pub state: State,
    /// The clock, Unix seconds.
    pub now_unix: i64,
    /// The newest time that is certainly past, Unix seconds.
    pub known_unix: i64,
    /// Whether the time service says that the clock is synchronised; `None` = it does not say.
    pub synchronised: Option<bool>,
    /// Watchdogs.
    pub watchdogs: Vec<Watchdog>,
    /// Kernel panics leave a record (`/sys/fs/pstore` has a backend).
    pub pstore: bool,
    /// There is a default route.
    pub route: bool,
    /// Name servers in resolv.conf.
    pub name_servers: usize,
    /// The answer of the address that was asked for.
    pub probe: Option<Result<String, AgentError>>,
    /// Set when something answered `Status` on the agent's socket.
    pub agent: Result<String, String>,
}
