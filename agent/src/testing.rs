//! In-memory ports and a simulated node, so that whole update stories run in milliseconds and other crates can drive the
//! real engine and server without a disk. Support for tests: it panics where a test should fail.
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::indexing_slicing,
    clippy::missing_panics_doc
)]

use crate::engine::Ports;
use crate::error::{AgentError, Result};
use crate::gpt_table::Entry;
use crate::ports::{
    Bootloader, Cancel, Clock, Download, EnvCopies, HookOutcome, Host, Location, OsRelease, Report,
    SlotDevice, Slots, Source, SourceRequest, StateStore,
};
use crate::slots::{self, DiskFact, Layout, OpenSlot, TableFact};
use bytes::Bytes;
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::{self, Env};
use os_proto::layout::{Arch, MIB, Role, Slot};
use sha2::{Digest, Sha256};
use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::sync::{Arc, Condvar, Mutex, MutexGuard};
use std::time::Duration;
use uuid::Uuid;

mod node;
pub use node::{Fate, Node};

/// Size of a slot of [`MemDisk`].
pub const SLOT_BYTES: u64 = 2 * MIB;

const TEMPLATE: &[u8] = include_bytes!("testing/image.ext4.gz");
const PLACEHOLDER: &[u8] = b"#TESTIMAGE";
const PLACEHOLDER_BYTES: usize = 256;

/// A small ext4 image with kernel, initramfs and agent that says it is `version`.
pub fn image(version: &str) -> Vec<u8> {
    let mut data = Vec::new();
    flate2::read::GzDecoder::new(TEMPLATE)
        .read_to_end(&mut data)
        .unwrap();
    let at = data
        .windows(PLACEHOLDER.len())
        .position(|w| w == PLACEHOLDER)
        .expect("the template's os-release");
    let mut text =
        format!("NAME=Slipway\nID=slipway\nVERSION_ID=\"{version}\"\nPRETTY_NAME=\"Slipway {version}\"\n");
    while text.len() < PLACEHOLDER_BYTES - 1 {
        text.push('#');
    }
    text.push('\n');
    data[at..at + PLACEHOLDER_BYTES].copy_from_slice(text.as_bytes());
    data
}

/// The same image without one of its files: the name in its directory is changed.
pub fn image_without(version: &str, name: &str) -> Vec<u8> {
    let mut data = image(version);
    let at: Vec<usize> = data
        .windows(name.len())
        .enumerate()
        .filter(|(_, w)| *w == name.as_bytes())
        .map(|(i, _)| i)
        .collect();
    assert!(!at.is_empty(), "{name} is not in the template");
    for i in at {
        data[i] = b'X';
    }
    data
}

/// SHA-256 of `data`.
pub fn sha256(data: &[u8]) -> Sha256Digest {
    Sha256Digest(Sha256::digest(data).into())
}

fn locked<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
}

/// One write that reached the disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Write {
    /// Bytes of a slot: offset and length.
    Slot(Slot, u64, usize),
    /// A slot was flushed.
    Flush(Slot),
    /// Both environment copies were replaced.
    Env(Env),
    /// state.json was replaced.
    State,
    /// A slot's record was replaced.
    Record(Slot),
}

/// What survives a reboot.
#[derive(Debug)]
pub struct Medium {
    /// Content of the slots, A then B.
    pub slots: [Vec<u8>; 2],
    /// `env1` and `env2`.
    pub env: [Vec<u8>; 2],
    /// state.json.
    pub state: Option<Vec<u8>>,
    /// Slot records, A then B.
    pub records: [Option<Vec<u8>>; 2],
    /// Every write, in order.
    pub log: Vec<Write>,
    /// The state cannot be written, for this reason.
    pub state_broken: Option<String>,
    /// The next environment writes fail, for this reason.
    pub env_broken: Option<String>,
    /// The inactive slot is held by this.
    pub slot_holder: Option<String>,
}

/// A disk in memory. Cloning shares it.
#[derive(Debug, Clone)]
pub struct MemDisk {
    medium: Arc<Mutex<Medium>>,
    running: Arc<Mutex<Slot>>,
}

fn index(slot: Slot) -> usize {
    match slot {
        Slot::A => 0,
        Slot::B => 1,
    }
}

impl MemDisk {
    /// Slot A committed, both slots empty.
    pub fn new() -> MemDisk {
        let env = Env::committed(Slot::A, 1).encode().to_vec();
        let blank = vec![0u8; SLOT_BYTES as usize];
        MemDisk {
            medium: Arc::new(Mutex::new(Medium {
                slots: [blank.clone(), blank],
                env: [env.clone(), env],
                state: None,
                records: [None, None],
                log: Vec::new(),
                state_broken: None,
                env_broken: None,
                slot_holder: None,
            })),
            running: Arc::new(Mutex::new(Slot::A)),
        }
    }

    /// Everything on it.
    pub fn medium(&self) -> MutexGuard<'_, Medium> {
        locked(&self.medium)
    }

    /// Sets the slot that runs.
    pub fn set_running(&self, slot: Slot) {
        *locked(&self.running) = slot;
    }

    /// The slot that runs.
    pub fn running(&self) -> Slot {
        *locked(&self.running)
    }

    /// `env1` as the agent reads it.
    pub fn env(&self) -> Env {
        Env::decode(&self.medium().env[0]).unwrap()
    }

    /// Replaces both copies.
    pub fn set_env(&self, env: &Env) {
        let block = env.encode().to_vec();
        self.medium().env = [block.clone(), block];
    }
}

impl Default for MemDisk {
    fn default() -> Self {
        MemDisk::new()
    }
}

impl Slots for MemDisk {
    fn layout(&self) -> Result<Layout> {
        let mut at = MIB;
        let entries = [Role::Boot, Role::OsState, Role::RootA, Role::RootB, Role::Persist]
            .into_iter()
            .map(|role| {
                let size = match role {
                    Role::RootA | Role::RootB => SLOT_BYTES,
                    _ => 2 * MIB,
                };
                let e = Entry {
                    number: role.number(),
                    name: role.name().to_owned(),
                    type_guid: role.type_guid(Arch::X86_64),
                    part_uuid: Uuid::from_u128(u128::from(role.number())),
                    start: at,
                    size,
                };
                at += size;
                e
            })
            .collect();
        let disk = DiskFact {
            node: "/dev/memory".into(),
            dev: None,
            size: at + MIB,
            sector_size: 512,
            table: TableFact::Gpt {
                entries,
                primary_damage: None,
            },
            nodes: Vec::new(),
        };
        slots::offline(&disk, self.running())
    }

    fn open_inactive(&self, layout: &Layout) -> Result<OpenSlot> {
        if let Some(holder) = &self.medium().slot_holder {
            return Err(AgentError::new(
                Code::SlotBusy,
                format!("/dev/memory (ROOT): held by {holder}"),
            ));
        }
        let slot = layout.running().other();
        let disk = self.clone();
        layout
            .inactive()?
            .open_with(move |_| Ok(Box::new(MemSlot { disk, slot })))
    }

    fn open_read(&self, _: &Layout, slot: Slot) -> Result<Box<dyn SlotDevice>> {
        Ok(Box::new(MemSlot {
            disk: self.clone(),
            slot,
        }))
    }
}

struct MemSlot {
    disk: MemDisk,
    slot: Slot,
}

impl SlotDevice for MemSlot {
    fn size(&self) -> u64 {
        SLOT_BYTES
    }

    fn block_size(&self) -> u32 {
        512
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        assert_ne!(
            self.slot,
            self.disk.running(),
            "the running slot is never written"
        );
        let mut m = self.disk.medium();
        let at = offset as usize;
        m.slots[index(self.slot)][at..at + data.len()].copy_from_slice(data);
        m.log.push(Write::Slot(self.slot, offset, data.len()));
        Ok(())
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let m = self.disk.medium();
        let at = offset as usize;
        buf.copy_from_slice(&m.slots[index(self.slot)][at..at + buf.len()]);
        Ok(())
    }

    fn flush(&mut self) -> Result<()> {
        self.disk.medium().log.push(Write::Flush(self.slot));
        Ok(())
    }

    fn drop_cache(&mut self) -> Result<()> {
        Ok(())
    }

    fn describe(&self) -> String {
        format!("/dev/memory (ROOT-{})", self.slot)
    }
}

impl Bootloader for MemDisk {
    fn read(&self) -> Result<EnvCopies> {
        let m = self.medium();
        let copy = |i: usize| Env::decode(&m.env[i]).map_err(|e| e.to_string());
        Ok(EnvCopies {
            env1: copy(0),
            env2: copy(1),
        })
    }

    fn write(&self, env: &Env) -> Result<()> {
        let mut m = self.medium();
        if let Some(why) = &m.env_broken {
            return Err(AgentError::new(Code::EnvWriteFailed, format!("os-state: {why}")));
        }
        let block = env.encode().to_vec();
        m.env = [block.clone(), block];
        m.log.push(Write::Env(*env));
        Ok(())
    }
}

impl StateStore for MemDisk {
    fn load(&self) -> std::result::Result<Option<Vec<u8>>, String> {
        Ok(self.medium().state.clone())
    }

    fn save(&self, text: &[u8]) -> Result<()> {
        let mut m = self.medium();
        if let Some(why) = &m.state_broken {
            return Err(AgentError::new(
                Code::StateWriteFailed,
                format!("cannot write state: {why}"),
            ));
        }
        m.state = Some(text.to_vec());
        m.log.push(Write::State);
        Ok(())
    }

    fn load_record(&self, slot: Slot) -> std::result::Result<Option<Vec<u8>>, String> {
        Ok(self.medium().records[index(slot)].clone())
    }

    fn save_record(&self, slot: Slot, text: &[u8]) -> Result<()> {
        let mut m = self.medium();
        if let Some(why) = &m.state_broken {
            return Err(AgentError::new(
                Code::StateWriteFailed,
                format!("cannot write record: {why}"),
            ));
        }
        m.records[index(slot)] = Some(text.to_vec());
        m.log.push(Write::Record(slot));
        Ok(())
    }

    fn keep_damaged(&self, _: &[u8]) {}

    fn missing(&self) -> Option<String> {
        self.medium().state_broken.clone()
    }
}

/// A server in memory: URLs with content, and failures that come first.
#[derive(Debug, Clone, Default)]
pub struct MemSource(Arc<Mutex<Served>>);

#[derive(Debug, Default)]
struct Served {
    files: BTreeMap<String, Vec<u8>>,
    open_failures: VecDeque<AgentError>,
    break_at: Option<(usize, AgentError)>,
    gate: bool,
    opened: u32,
}

impl MemSource {
    /// Serves `data` at `url`.
    pub fn put(&self, url: &str, data: Vec<u8>) {
        locked(&self.0).files.insert(url.to_owned(), data);
    }

    /// The next open fails.
    pub fn fail_open(&self, e: AgentError) {
        locked(&self.0).open_failures.push_back(e);
    }

    /// The next download fails after so many bytes.
    pub fn fail_at(&self, bytes: usize, e: AgentError) {
        locked(&self.0).break_at = Some((bytes, e));
    }

    /// Downloads stand still until this is called with `false`, or they are cancelled.
    pub fn hold(&self, hold: bool) {
        locked(&self.0).gate = hold;
    }

    /// How often something was opened.
    pub fn opened(&self) -> u32 {
        locked(&self.0).opened
    }
}

impl Source for MemSource {
    fn open(
        &self,
        request: &SourceRequest,
        cancel: &Cancel,
        report: Arc<dyn Report>,
    ) -> Result<Box<dyn Download>> {
        let mut s = locked(&self.0);
        s.opened += 1;
        if let Some(e) = s.open_failures.pop_front() {
            return Err(e);
        }
        let url = match &request.location {
            Location::Url(u) => u.clone(),
            Location::File(f) => f.to_string(),
            Location::Slot(_) => return Err(AgentError::new(Code::InvalidArgument, "a slot is not fetched")),
        };
        let data = s
            .files
            .get(&url)
            .cloned()
            .ok_or_else(|| AgentError::new(Code::FetchFailed, format!("GET {url}: 404 Not Found")))?;
        report.step("fetch", Some(data.len() as u64));
        Ok(Box::new(MemDownload {
            url,
            break_at: s.break_at.take(),
            data,
            at: 0,
            served: self.clone(),
            cancel: cancel.clone(),
        }))
    }
}

struct MemDownload {
    url: String,
    data: Vec<u8>,
    at: usize,
    break_at: Option<(usize, AgentError)>,
    served: MemSource,
    cancel: Cancel,
}

impl Download for MemDownload {
    fn total(&self) -> Option<u64> {
        Some(self.data.len() as u64)
    }

    fn next(&mut self) -> Result<Option<Bytes>> {
        while locked(&self.served.0).gate {
            self.cancel.check()?;
            std::thread::sleep(Duration::from_millis(1));
        }
        self.cancel.check()?;
        let limit = self.break_at.as_ref().map_or(self.data.len(), |(n, _)| *n);
        let end = (self.at + (64 << 10)).min(limit).min(self.data.len());
        if self.at == end {
            return match self.break_at.take() {
                Some((_, e)) => Err(e),
                None => Ok(None),
            };
        }
        let part = Bytes::copy_from_slice(&self.data[self.at..end]);
        self.at = end;
        Ok(Some(part))
    }

    fn describe(&self) -> String {
        self.url.clone()
    }
}

/// A clock that moves only when told to.
#[derive(Debug, Clone)]
pub struct HandClock(Arc<(Mutex<(i64, Duration)>, Condvar)>);

impl Default for HandClock {
    fn default() -> Self {
        HandClock(Arc::new((
            Mutex::new((1_800_000_000, Duration::ZERO)),
            Condvar::new(),
        )))
    }
}

impl HandClock {
    /// Moves both clocks on.
    pub fn advance(&self, span: Duration) {
        let mut t = locked(&self.0.0);
        t.0 += span.as_secs() as i64;
        t.1 += span;
        self.0.1.notify_all();
    }

    /// A boot: monotonic time starts over.
    pub fn reboot(&self) {
        locked(&self.0.0).1 = Duration::ZERO;
    }
}

impl Clock for HandClock {
    fn unix(&self) -> i64 {
        locked(&self.0.0).0
    }

    fn monotonic(&self) -> Duration {
        locked(&self.0.0).1
    }

    fn sleep(&self, span: Duration, cancel: &Cancel) {
        let mut t = locked(&self.0.0);
        let end = t.1 + span;
        while t.1 < end && !cancel.is_cancelled() {
            // Short waits notice a cancel, and a boot that set the clock back.
            t = self.0.1.wait_timeout(t, Duration::from_millis(5)).unwrap().0;
        }
    }
}

/// A running system that does what the test says.
#[derive(Debug, Clone, Default)]
pub struct MemHost(Arc<Mutex<Running>>);

/// What a [`MemHost`] answers.
#[derive(Debug, Default)]
pub struct Running {
    /// Boot id.
    pub boot_id: String,
    /// Kernel command line.
    pub cmdline: String,
    /// Identity.
    pub os: OsRelease,
    /// boot-complete.target is active.
    pub boot_complete: bool,
    /// Outcomes of all hooks.
    pub hooks: Vec<HookOutcome>,
    /// kubelet's answer.
    pub kubelet: Option<bool>,
    /// Panic record of the last boot.
    pub panic: Option<String>,
    /// Reboot requests in this boot.
    pub reboots: u32,
    /// The early timer was stopped.
    pub timer_stopped: bool,
    /// Reboot requests fail.
    pub reboot_broken: bool,
}

impl MemHost {
    /// What it answers, to read or change.
    pub fn set(&self) -> MutexGuard<'_, Running> {
        locked(&self.0)
    }
}

impl Host for MemHost {
    fn boot_id(&self) -> String {
        self.set().boot_id.clone()
    }
    fn machine_id(&self) -> String {
        "0123456789abcdef0123456789abcdef".into()
    }
    fn cmdline(&self) -> String {
        self.set().cmdline.clone()
    }
    fn os_release(&self) -> OsRelease {
        self.set().os.clone()
    }
    fn boot_complete(&self) -> bool {
        self.set().boot_complete
    }
    fn run_hooks(&self, _: Duration) -> Vec<HookOutcome> {
        self.set().hooks.clone()
    }
    fn kubelet_healthy(&self) -> Option<bool> {
        self.set().kubelet
    }
    fn reboot(&self) -> Result<()> {
        let mut s = self.set();
        s.reboots += 1;
        if s.reboot_broken {
            return Err(AgentError::new(Code::Internal, "systemctl reboot was refused"));
        }
        Ok(())
    }
    fn stop_trial_timer(&self) {
        self.set().timer_stopped = true;
    }
    fn panic_record(&self) -> Option<String> {
        self.set().panic.clone()
    }
}

/// Ports on these parts.
pub fn ports(disk: &MemDisk, source: &MemSource, host: &MemHost, clock: &HandClock) -> Ports {
    Ports {
        source: Arc::new(source.clone()),
        slots: Arc::new(disk.clone()),
        boot: Arc::new(disk.clone()),
        host: Arc::new(host.clone()),
        clock: Arc::new(clock.clone()),
        store: Arc::new(disk.clone()),
    }
}

/// What GRUB decides about this disk; writes the count as GRUB does.
pub(crate) fn grub(disk: &MemDisk, picked: Option<Slot>) -> os_proto::boot_choice::Choice {
    use os_proto::boot_choice::{Facts, Save, choose};
    let mut m = disk.medium();
    let choice = choose(&Facts {
        env1: Some(&m.env[0]),
        env2: Some(&m.env[1]),
        a_has_kernel: true,
        save: Save::Works,
        picked,
    });
    if let Some(block) = &choice.env1 {
        let mut block = block.clone();
        block.resize(env_block::SIZE, b'#');
        m.env[0] = block;
    }
    choice
}
