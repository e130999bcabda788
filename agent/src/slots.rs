//! PURE: command line + mounts + partition tables → [`Layout`], the only maker of [`InactiveSlot`].
//!
//! Device names are never interpreted: the root's device number leads to a partition of exactly one disk, whose own table
//! says what each partition is. A role needs number *and* name (for os-state the type GUID as well) to agree, and command
//! line, mount and table must name the same slot; anything else is refused with the reason.

mod decide;
mod in_memory;

pub use decide::{discover, offline};

use crate::error::{AgentError, Result};
use crate::gpt_table::Entry;
use crate::ports::SlotDevice;
use crate::sys::mount::DevNo;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::{Role, Slot};
use std::collections::BTreeMap;
use std::sync::{Arc, Mutex};
use uuid::Uuid;

/// Everything that discovery looks at.
#[derive(Debug, Clone, Default)]
pub struct Facts {
    /// `/proc/cmdline`.
    pub cmdline: String,
    /// `/proc/self/mountinfo`.
    pub mountinfo: String,
    /// Every disk of the machine.
    pub disks: Vec<DiskFact>,
    /// Devices below stacked devices (dm, md).
    pub slaves: BTreeMap<DevNo, Vec<DevNo>>,
}

/// One disk.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DiskFact {
    /// Device node or image file.
    pub node: Utf8PathBuf,
    /// Device number; `None` for an image file.
    pub dev: Option<DevNo>,
    /// Size in bytes.
    pub size: u64,
    /// Logical sector size in bytes.
    pub sector_size: u32,
    /// Its partition table.
    pub table: TableFact,
    /// The kernel's devices of its partitions.
    pub nodes: Vec<PartNode>,
}

/// A partition as the kernel shows it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PartNode {
    /// Partition number.
    pub number: u32,
    /// Device number.
    pub dev: DevNo,
    /// Device node.
    pub node: Utf8PathBuf,
}

/// What was found where a partition table is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum TableFact {
    /// A GUID partition table.
    Gpt {
        /// Used entries.
        entries: Vec<Entry>,
        /// Set when the primary is damaged and the backup was read, with the damage.
        primary_damage: Option<String>,
        /// What is wrong with the backup, where the primary is sound.
        backup_damage: Option<String>,
    },
    /// Something else, by name, or why nothing could be read.
    Other(String),
}

/// A stretch of a disk that is opened as one device.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Region {
    /// GPT name, for messages.
    pub name: String,
    /// Partition node, disk node or image file.
    pub path: Utf8PathBuf,
    /// First byte in `path`.
    pub offset: u64,
    /// Size in bytes.
    pub size: u64,
    /// Logical sector size of the disk in bytes.
    pub sector_size: u32,
    /// What must still hold on the open descriptor.
    pub identity: Identity,
}

/// What a region must still be after it was opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Identity {
    /// A whole partition device.
    Partition {
        /// Device number.
        dev: DevNo,
        /// PARTUUID.
        part_uuid: Uuid,
        /// Partition number.
        number: u32,
        /// First byte on the disk.
        start: u64,
        /// The disk's node.
        disk: Utf8PathBuf,
    },
    /// A stretch of an image file or of a disk whose partitions the kernel does not show.
    Within,
}

/// One partition of the layout.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Part {
    /// What it is for.
    pub role: Role,
    /// Partition number.
    pub number: u32,
    /// PARTUUID.
    pub part_uuid: Uuid,
    /// First byte on the disk.
    pub start: u64,
    /// Size in bytes.
    pub size: u64,
    /// The kernel's device of it; `None` in an image file.
    pub node: Option<(DevNo, Utf8PathBuf)>,
}

/// Which slot runs and where everything lies.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Layout {
    running: Slot,
    disk: Utf8PathBuf,
    disk_size: u64,
    sector_size: u32,
    parts: Vec<Part>,
    warnings: Vec<String>,
}

impl Layout {
    /// The running slot.
    pub fn running(&self) -> Slot {
        self.running
    }

    /// Device node or image file of the disk.
    pub fn disk(&self) -> &Utf8Path {
        &self.disk
    }

    /// Size of the disk in bytes.
    pub fn disk_size(&self) -> u64 {
        self.disk_size
    }

    /// Logical sector size in bytes: 512 or 4096.
    pub fn sector_size(&self) -> u32 {
        self.sector_size
    }

    /// The partition of a role; only `bios` may be absent (UEFI-only disks).
    pub fn part(&self, role: Role) -> Option<&Part> {
        self.parts.iter().find(|p| p.role == role)
    }

    /// Things that a person should see, such as a damaged primary table.
    pub fn warnings(&self) -> &[String] {
        &self.warnings
    }

    /// Where a role lies, for opening it.
    ///
    /// # Errors
    /// `SlotAmbiguous` when the disk has no such partition.
    pub fn region(&self, role: Role) -> Result<Region> {
        let p = self.part(role).ok_or_else(|| missing(&self.disk, role))?;
        let name = role.name().to_owned();
        Ok(match &p.node {
            Some((dev, node)) => Region {
                name,
                path: node.clone(),
                offset: 0,
                size: p.size,
                sector_size: self.sector_size,
                identity: Identity::Partition {
                    dev: *dev,
                    part_uuid: p.part_uuid,
                    number: p.number,
                    start: p.start,
                    disk: self.disk.clone(),
                },
            },
            None => Region {
                name,
                path: self.disk.clone(),
                offset: p.start,
                size: p.size,
                sector_size: self.sector_size,
                identity: Identity::Within,
            },
        })
    }

    /// The slot that may be written: never the running one.
    ///
    /// # Errors
    /// As [`Layout::region`].
    pub fn inactive(&self) -> Result<InactiveSlot> {
        let slot = self.running.other();
        let part_uuid = self
            .part(slot.role())
            .ok_or_else(|| missing(&self.disk, slot.role()))?
            .part_uuid;
        Ok(InactiveSlot {
            slot,
            part_uuid,
            region: self.region(slot.role())?,
        })
    }
}

/// The right to write the slot that does not run. Made by [`Layout::inactive`] alone; neither cloned nor stored.
///
/// ```compile_fail
/// let layout: os_agent::slots::Layout = unreachable!();
/// let slot = layout.inactive().unwrap();
/// let _second = slot.clone(); // not Clone
/// ```
/// ```compile_fail
/// let layout: os_agent::slots::Layout = unreachable!();
/// // No way to name the running slot as a target:
/// let slot = os_agent::slots::InactiveSlot { slot: layout.running(), part_uuid: unreachable!(), region: unreachable!() };
/// ```
#[derive(Debug)]
pub struct InactiveSlot {
    slot: Slot,
    part_uuid: Uuid,
    region: Region,
}

impl InactiveSlot {
    /// Which slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.region.size
    }

    /// PARTUUID.
    pub fn part_uuid(&self) -> Uuid {
        self.part_uuid
    }

    /// For messages.
    pub fn describe(&self) -> String {
        format!("{} ({})", self.region.path, self.region.name)
    }

    /// Opens the slot exclusively and checks that it still is what discovery saw.
    ///
    /// # Errors
    /// `SlotBusy` with the holder, `SlotIsActive`, `SlotContradiction`, `Internal`.
    pub fn open(self) -> Result<OpenSlot> {
        self.open_with(crate::sys::block::open_slot)
    }

    /// Opens the slot by another opener (in-memory devices).
    ///
    /// # Errors
    /// The opener's.
    pub fn open_with(self, opener: impl FnOnce(&Region) -> Result<Box<dyn SlotDevice>>) -> Result<OpenSlot> {
        let device = opener(&self.region)?;
        Ok(OpenSlot {
            slot: self.slot,
            part_uuid: self.part_uuid,
            size: device.size(),
            name: self.describe(),
            device: Arc::new(Mutex::new(device)),
        })
    }
}

/// An inactive slot, exclusively open. Kept until arming, so that nobody mounts the slot meanwhile.
pub struct OpenSlot {
    slot: Slot,
    part_uuid: Uuid,
    size: u64,
    name: String,
    device: Arc<Mutex<Box<dyn SlotDevice>>>,
}

impl OpenSlot {
    /// Which slot.
    pub fn slot(&self) -> Slot {
        self.slot
    }

    /// PARTUUID.
    pub fn part_uuid(&self) -> Uuid {
        self.part_uuid
    }

    /// Size in bytes.
    pub fn size(&self) -> u64 {
        self.size
    }

    /// For messages.
    pub fn describe(&self) -> &str {
        &self.name
    }

    /// The device, for `write` and `inspect` alone.
    pub(crate) fn device(&self) -> &Arc<Mutex<Box<dyn SlotDevice>>> {
        &self.device
    }
}

impl std::fmt::Debug for OpenSlot {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenSlot")
            .field("slot", &self.slot)
            .field("device", &self.name)
            .finish_non_exhaustive()
    }
}

fn missing(disk: &Utf8Path, role: Role) -> AgentError {
    refuse(
        Code::SlotAmbiguous,
        format!(
            "{disk}: no partition is named {} (expected number {})",
            role.name(),
            role.number()
        ),
    )
}

fn refuse(code: Code, message: String) -> AgentError {
    AgentError::new(code, message)
}

#[cfg(test)]
mod tests;
