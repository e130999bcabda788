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
use crate::evidence::Sign;
use crate::ports::{Bootloader, EnvCopies, SlotDevice, Slots, StateStore};
use crate::slots::{self, DiskFact, Layout, OpenSlot};
use os_proto::codes::Code;
use os_proto::digest::Sha256Digest;
use os_proto::env_block::{self, Env};
use os_proto::layout::{MIB, Slot};
use sha2::{Digest, Sha256};
use std::sync::{Arc, Mutex, MutexGuard};

mod node;
mod parts;
mod settings;
pub use node::{Fate, Node};
pub use parts::{HandClock, MemHost, MemSource, Running};
pub use settings::MemSettings;

/// Size of a slot of [`MemDisk`].
pub const SLOT_BYTES: u64 = 2 * MIB;

/// A small ext4 image with kernel, initramfs and agent that says it is `version`.
pub fn image(version: &str) -> Vec<u8> {
    crate::crashtest::small_image(version).unwrap()
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

/// A file of `len` bytes (at least 1040) that has the header of an x86 kernel and is as long as it says: enough for an
/// inspection, nothing that boots.
pub fn kernel(len: usize) -> Vec<u8> {
    let body = (len - 1024) / 16;
    assert!(body > 0, "a kernel of {len} bytes has no room for its header");
    let mut k = vec![0x5a; len];
    // One set-up sector behind the boot sector, then 16-byte units; protocol 2.15.
    k[0x1f1] = 1;
    k[0x1f4..0x1f8].copy_from_slice(&(body as u32).to_le_bytes());
    k[0x1fe..0x200].copy_from_slice(&[0x55, 0xaa]);
    k[0x202..0x206].copy_from_slice(b"HdrS");
    k[0x206..0x208].copy_from_slice(&0x020fu16.to_le_bytes());
    k
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
    /// Word for the initramfs of a trial.
    PrepareTrial,
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
    /// The node's settings.
    pub settings: MemSettings,
    /// The slot that keeps its own /etc in the next trial.
    pub keep_etc: Option<Slot>,
    /// Signs of life of trials.
    pub signs: Vec<Sign>,
    /// A trial would get no room, for this reason.
    pub no_room: Option<String>,
    /// A byte of the slots that the medium stores wrongly.
    pub rot: Option<Rot>,
}

/// A byte that is stored wrongly.
#[derive(Debug, Clone, Copy)]
pub struct Rot {
    /// Where in a slot.
    pub at: usize,
    /// By so many more writes of it.
    pub writes: u32,
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
                settings: MemSettings::new(),
                keep_etc: None,
                signs: Vec::new(),
                no_room: None,
                rot: None,
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
        let disk = DiskFact::in_memory("/dev/memory", SLOT_BYTES, 512);
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
        if let Some(rot) = &mut m.rot
            && (at..at + data.len()).contains(&rot.at)
            && rot.writes > 0
        {
            rot.writes -= 1;
            let at = rot.at;
            m.slots[index(self.slot)][at] ^= 0x40;
        }
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

    fn prepare_trial(&self, keep_etc: Option<Slot>) -> Result<()> {
        let mut m = self.medium();
        m.keep_etc = keep_etc;
        m.signs.clear();
        m.log.push(Write::PrepareTrial);
        Ok(())
    }

    fn signs(&self) -> Vec<Sign> {
        self.medium().signs.clone()
    }

    fn room_for_trial(&self) -> Result<()> {
        match &self.medium().no_room {
            Some(why) => Err(AgentError::new(Code::StateWriteFailed, why.clone())),
            None => Ok(()),
        }
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
        settings: Arc::new(disk.clone()),
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
