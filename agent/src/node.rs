//! Puts the real ports together: on a node, or offline on a disk image.

use crate::boot::DualEnv;
use crate::config::{Config, FRAGMENT_DIRS, Fetch, LAST_FILE};
use crate::engine::{Options, Ports};
use crate::error::{AgentError, Result};
use crate::evidence::Panic;
use crate::fetch::{Policy, Sources};
use crate::health::{self, PERSIST, PERSIST_MISSING, SystemHost};
use crate::ports::{Bootloader, EnvCopies, HookOutcome, Host, OsRelease, SlotDevice, Slots, StateStore};
use crate::settings::system::System;
use crate::slots::{Layout, OpenSlot};
use crate::store::DirStore;
use crate::sys::clock::SystemClock;
use crate::sys::{block, discover, mount};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::env_block::Env;
use os_proto::layout::{Arch, Role, Slot, persist};
use std::sync::Arc;
use std::time::Duration;

/// Files with credentials per origin.
pub const CREDENTIALS: &str = "/etc/os-agent/credentials.d";
/// `<state>` on a machine without PERSIST.
const VAR_STATE: &str = "/var/lib/os-agent";

/// Reads and merges the node's configuration files, and `extra` last.
///
/// # Errors
/// `InvalidArgument` naming file, line and key.
pub fn config(extra: Option<&Utf8Path>) -> Result<Config> {
    let mut files: Vec<Utf8PathBuf> = Vec::new();
    for dir in FRAGMENT_DIRS {
        let mut here: Vec<Utf8PathBuf> = Utf8Path::new(dir)
            .read_dir_utf8()
            .into_iter()
            .flatten()
            .flatten()
            .map(|e| e.path().to_owned())
            .filter(|p| p.extension() == Some("toml"))
            .collect();
        here.sort();
        files.extend(here);
    }
    files.push(LAST_FILE.into());
    merge(files, extra)
}

/// Settings for work on an offline disk: `config.toml` in its state directory where there is one, and `extra`. The node's own
/// files are not asked; they are about another disk.
///
/// # Errors
/// As [`config`].
pub fn offline_config(disk: &OfflineDisk, extra: Option<&Utf8Path>) -> Result<Config> {
    merge(vec![disk.state_dir().join("config.toml")], extra)
}

fn merge(files: Vec<Utf8PathBuf>, extra: Option<&Utf8Path>) -> Result<Config> {
    let bad = |f: &Utf8Path, e: &std::io::Error| AgentError::new(Code::InvalidArgument, format!("{f}: {e}"));
    let mut texts = Vec::new();
    for f in files {
        match std::fs::read_to_string(&f) {
            Ok(t) => texts.push((f.into_string(), t)),
            Err(e)
                if matches!(
                    e.kind(),
                    std::io::ErrorKind::NotFound | std::io::ErrorKind::NotADirectory
                ) => {}
            Err(e) => return Err(bad(&f, &e)),
        }
    }
    if let Some(f) = extra {
        texts.push((f.to_string(), std::fs::read_to_string(f).map_err(|e| bad(f, &e))?));
    }
    Config::merge(texts.iter().map(|(f, t)| (f.as_str(), t.as_str())))
        .map_err(|e| AgentError::new(Code::InvalidArgument, e.to_string()))
}

/// Limits of downloads, from the configuration.
pub fn policy(f: &Fetch, credentials_dir: Utf8PathBuf) -> Policy {
    Policy {
        total_timeout: (f.total_timeout_secs > 0).then(|| Duration::from_secs(f.total_timeout_secs)),
        credentials_dir: Some(credentials_dir),
        arch: own_arch().unwrap_or(Arch::X86_64),
        connect_timeout: Duration::from_secs(f.connect_timeout_secs),
        first_byte_timeout: Duration::from_secs(f.first_byte_timeout_secs),
        min_rate_bytes_per_sec: f.min_rate_bytes_per_sec,
        min_rate_span: Duration::from_secs(f.min_rate_secs),
        retry_limit: f.retry_limit,
        retry_first: Duration::from_millis(f.retry_first_ms),
        retry_max: Duration::from_millis(f.retry_max_ms),
        ca_file: f.ca_file.clone(),
    }
}

/// Architecture of this program, hence of the images that this node can run.
pub const fn own_arch() -> Option<Arch> {
    if cfg!(target_arch = "x86_64") {
        Some(Arch::X86_64)
    } else if cfg!(target_arch = "aarch64") {
        Some(Arch::Aarch64)
    } else {
        None
    }
}

/// Ports and options of a running node.
pub fn online(handle: tokio::runtime::Handle, config: Config) -> (Ports, Options) {
    let (ports, options, _) = of_node(handle, config, false);
    (ports, options)
}

/// Ports, options and `<state>` of a running node, for looking only.
pub fn observing(handle: tokio::runtime::Handle, config: Config) -> (Ports, Options, Utf8PathBuf) {
    of_node(handle, config, true)
}

fn of_node(handle: tokio::runtime::Handle, config: Config, observe: bool) -> (Ports, Options, Utf8PathBuf) {
    let clock = Arc::new(SystemClock);
    let layout = discover::online();
    let store = node_store(layout.is_ok(), observe);
    let boot_part = layout
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|l| l.region(Role::Boot));
    let state_dir = store.dir().to_owned();
    let panics = (store.missing().is_none() && !observe).then(|| state_dir.join("panics"));
    let ports = Ports {
        source: Arc::new(Sources::new(
            handle,
            clock.clone(),
            policy(&config.fetch, CREDENTIALS.into()),
        )),
        boot: bootloader(&layout),
        settings: Arc::new(System::online(&state_dir, boot_part)),
        store: Arc::new(store),
        slots: Arc::new(Online),
        host: Arc::new(SystemHost::default().archive_panics(panics)),
        clock,
    };
    let options = Options {
        config,
        offline: false,
        observe,
        arch: own_arch(),
        limits: crate::write::Limits::default(),
    };
    (ports, options, state_dir)
}

/// A disk image or disk that does not run here.
#[derive(Debug, Clone)]
pub struct OfflineDisk {
    /// The image.
    pub disk: Utf8PathBuf,
    /// The slot to leave alone.
    pub running: Slot,
    /// `<state>`; `None` = `IMAGE.state/`.
    pub state: Option<Utf8PathBuf>,
}

impl OfflineDisk {
    /// Where the state lies.
    pub fn state_dir(&self) -> Utf8PathBuf {
        self.state
            .clone()
            .unwrap_or_else(|| Utf8PathBuf::from(format!("{}.state", self.disk)))
    }
}

/// Ports and options of an offline disk.
///
/// # Errors
/// When the disk has no slots; an offline command is about nothing else.
pub fn offline(
    handle: tokio::runtime::Handle,
    config: Config,
    disk: &OfflineDisk,
    observe: bool,
) -> Result<(Ports, Options)> {
    let clock = Arc::new(SystemClock);
    let layout = discover::offline(&disk.disk, disk.running)?;
    let dir = disk.state_dir();
    let store = if observe {
        DirStore::look(&dir)
    } else {
        DirStore::open(&dir).with_all_room()
    };
    let settings = System::offline(&dir, &disk.disk, layout.region(Role::Boot));
    let boot = bootloader(&Ok(layout));
    let ports = Ports {
        source: Arc::new(Sources::new(
            handle,
            clock.clone(),
            policy(&config.fetch, dir.join("credentials.d")),
        )),
        host: Arc::new(OfflineHost {
            running: disk.running,
            store: store.clone(),
        }),
        boot,
        settings: Arc::new(settings),
        store: Arc::new(store),
        slots: Arc::new(Offline(disk.clone())),
        clock,
    };
    let options = Options {
        config,
        offline: true,
        observe,
        // The image's own architecture counts, not that of the machine it is prepared on.
        arch: None,
        limits: crate::write::Limits::default(),
    };
    Ok((ports, options))
}

fn bootloader(layout: &Result<Layout>) -> Arc<dyn Bootloader> {
    match layout
        .as_ref()
        .map_err(Clone::clone)
        .and_then(|l| l.region(Role::OsState))
    {
        Ok(region) => Arc::new(DualEnv::new(region)),
        Err(e) => Arc::new(NoBoot(e)),
    }
}

fn node_store(slots: bool, observe: bool) -> DirStore {
    let at = |dir: &Utf8Path| {
        if observe {
            DirStore::look(dir)
        } else {
            DirStore::open(dir).with_room()
        }
    };
    let dir = Utf8Path::new(PERSIST).join(persist::STATE_DIR);
    if !slots {
        return at(Utf8Path::new(VAR_STATE));
    }
    if let Some(why) = health::mark(PERSIST_MISSING) {
        return DirStore::absent(&dir, format!("PERSIST could not be used at boot: {why}"));
    }
    let mounted = std::fs::read_to_string("/proc/self/mountinfo")
        .map(|t| mount::parse(&t).iter().any(|m| m.at == PERSIST))
        .unwrap_or(false);
    if mounted {
        at(&dir)
    } else {
        DirStore::absent(&dir, "PERSIST is not mounted at /persist")
    }
}

struct Online;

impl Slots for Online {
    fn layout(&self) -> Result<Layout> {
        discover::online()
    }

    fn open_inactive(&self, layout: &Layout) -> Result<OpenSlot> {
        layout.inactive()?.open()
    }

    fn open_read(&self, layout: &Layout, slot: Slot) -> Result<Box<dyn SlotDevice>> {
        block::open_read(&layout.region(slot.role())?)
    }
}

struct Offline(OfflineDisk);

impl Slots for Offline {
    fn layout(&self) -> Result<Layout> {
        discover::offline(&self.0.disk, self.0.running)
    }

    fn open_inactive(&self, layout: &Layout) -> Result<OpenSlot> {
        layout.inactive()?.open()
    }

    fn open_read(&self, layout: &Layout, slot: Slot) -> Result<Box<dyn SlotDevice>> {
        block::open_read(&layout.region(slot.role())?)
    }
}

/// A machine without slots has no environment either.
struct NoBoot(AgentError);

impl Bootloader for NoBoot {
    fn read(&self) -> Result<EnvCopies> {
        Err(self.0.clone())
    }

    fn write(&self, _: &Env) -> Result<()> {
        Err(self.0.clone())
    }
}

/// Nothing of an offline disk runs.
struct OfflineHost {
    running: Slot,
    store: DirStore,
}

impl Host for OfflineHost {
    fn boot_id(&self) -> String {
        "offline".to_owned()
    }

    fn machine_id(&self) -> String {
        String::new()
    }

    fn cmdline(&self) -> String {
        String::new()
    }

    fn os_release(&self) -> OsRelease {
        let text = self
            .store
            .load_record(self.running)
            .ok()
            .flatten()
            .unwrap_or_default();
        match os_proto::record::SlotRecord::parse(&text) {
            Ok(Some(r)) => OsRelease {
                pretty_name: r.os_image,
                version_id: r.version,
            },
            _ => OsRelease::default(),
        }
    }

    fn boot_complete(&self) -> bool {
        false
    }

    fn run_hooks(&self, _: Duration) -> Vec<HookOutcome> {
        Vec::new()
    }

    fn kubelet_healthy(&self) -> Option<bool> {
        None
    }

    fn reboot(&self) -> Result<()> {
        Ok(())
    }

    fn stop_trial_timer(&self) {}

    fn panic_record(&self) -> Option<Panic> {
        None
    }
}
