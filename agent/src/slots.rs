//! PURE: command line + mounts + partition tables → [`Layout`], the only maker of [`InactiveSlot`].
//!
//! Device names are never interpreted: the root's device number leads to a partition of exactly one disk, whose own table
//! says what each partition is. A role needs number *and* name (for os-state the type GUID as well) to agree, and command
//! line, mount and table must name the same slot; anything else is refused with the reason.

use crate::error::{AgentError, Result};
use crate::gpt_table::Entry;
use crate::ports::SlotDevice;
use crate::sys::mount::{self, DevNo};
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::{Role, SLIPWAY, Slot, cmdline, type_guid};
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

/// The layout of the running system.
///
/// # Errors
/// `DiskUnsupported`, `SlotAmbiguous`, `SlotContradiction`.
pub fn discover(facts: &Facts) -> Result<Layout> {
    let mounts = mount::parse(&facts.mountinfo);
    let root = mount::root(&mounts)
        .ok_or_else(|| refuse(Code::DiskUnsupported, "nothing is mounted at /".into()))?;
    let (disk, number) = root_partition(facts, root)?;
    let entries = gpt_entries(disk)?;
    let (parts, warnings) = roles(disk, entries)?;
    unique(facts, disk, &parts)?;
    let slot = Slot::ALL
        .into_iter()
        .find(|s| s.role().number() == number)
        .ok_or_else(|| {
            refuse(
                Code::SlotContradiction,
                format!(
                    "/ is partition {number} of {}, which is neither ROOT-A (2) nor ROOT-B (3)",
                    disk.node
                ),
            )
        })?;
    agree(&facts.cmdline, slot, &parts)?;
    Ok(Layout {
        running: slot,
        disk: disk.node.clone(),
        disk_size: disk.size,
        sector_size: disk.sector_size,
        parts,
        warnings,
    })
}

/// The layout of a disk that does not run here; `running` is the slot to leave alone.
///
/// # Errors
/// `DiskUnsupported`, `SlotAmbiguous`.
pub fn offline(disk: &DiskFact, running: Slot) -> Result<Layout> {
    let (parts, warnings) = roles(disk, gpt_entries(disk)?)?;
    Ok(Layout {
        running,
        disk: disk.node.clone(),
        disk_size: disk.size,
        sector_size: disk.sector_size,
        parts,
        warnings,
    })
}

/// Follows `/` down to the one partition below it.
fn root_partition<'a>(facts: &'a Facts, root: &mount::Mount) -> Result<(&'a DiskFact, u32)> {
    let mut dev = root.dev;
    // Stacks are shallow (verity on crypt on partition); the bound ends a cycle of wrong facts.
    for _ in 0..16 {
        for disk in &facts.disks {
            if let Some(p) = disk.nodes.iter().find(|p| p.dev == dev) {
                return Ok((disk, p.number));
            }
            if disk.dev == Some(dev) && !facts.slaves.contains_key(&dev) {
                return Err(refuse(
                    Code::DiskUnsupported,
                    format!("/ is the whole disk {}; expected a partition", disk.node),
                ));
            }
        }
        match facts.slaves.get(&dev).map(Vec::as_slice) {
            Some([one]) => dev = *one,
            None | Some([]) => break,
            Some(many) => {
                return Err(refuse(
                    Code::DiskUnsupported,
                    format!(
                        "{} devices lie below / (RAID or LVM: {}); expected exactly one partition",
                        many.len(),
                        many.iter()
                            .map(ToString::to_string)
                            .collect::<Vec<_>>()
                            .join(", ")
                    ),
                ));
            }
        }
    }
    Err(refuse(
        Code::DiskUnsupported,
        format!(
            "/ is a {} file system on device {} that is no partition of a disk; updates need a disk with slots",
            root.fs, root.dev
        ),
    ))
}

fn gpt_entries(disk: &DiskFact) -> Result<(&[Entry], Option<&str>)> {
    if !matches!(disk.sector_size, 512 | 4096) {
        return Err(refuse(
            Code::DiskUnsupported,
            format!(
                "{} has logical sectors of {} bytes; expected 512 or 4096",
                disk.node, disk.sector_size
            ),
        ));
    }
    match &disk.table {
        TableFact::Gpt {
            entries,
            primary_damage,
        } => Ok((entries, primary_damage.as_deref())),
        TableFact::Other(what) => Err(refuse(
            Code::DiskUnsupported,
            format!("{}: {what}; expected a GUID partition table", disk.node),
        )),
    }
}

/// Gives each role its partition.
fn roles(disk: &DiskFact, (entries, damage): (&[Entry], Option<&str>)) -> Result<(Vec<Part>, Vec<String>)> {
    let has = |name: &str| entries.iter().any(|e| e.name == name);
    if !has(Role::OsState.name()) {
        if has("ROOT-A") && has("ROOT-B") {
            return Err(refuse(
                Code::DiskUnsupported,
                format!(
                    "{} has KubeOS's layout (no os-state); taking it over is not built yet",
                    disk.node
                ),
            ));
        }
        if !has("ROOT-A") && !has("ROOT-B") {
            return Err(refuse(
                Code::DiskUnsupported,
                format!(
                    "{} has no slots (no partition is named ROOT-A, ROOT-B or os-state)",
                    disk.node
                ),
            ));
        }
    }
    let mut parts = Vec::new();
    for row in &SLIPWAY {
        let named: Vec<&Entry> = entries.iter().filter(|e| e.name == row.name).collect();
        let entry = match named.as_slice() {
            [one] => *one,
            [] if row.role == Role::Bios => continue,
            [] => return Err(missing(&disk.node, row.role)),
            many => {
                let numbers: Vec<String> = many.iter().map(|e| e.number.to_string()).collect();
                return Err(refuse(
                    Code::SlotAmbiguous,
                    format!(
                        "{}: partitions {} are all named {}; expected one",
                        disk.node,
                        numbers.join(" and "),
                        row.name
                    ),
                ));
            }
        };
        if entry.number != row.number {
            return Err(refuse(
                Code::SlotAmbiguous,
                format!(
                    "{}: {} is partition {}; expected number {}",
                    disk.node, row.name, entry.number, row.number
                ),
            ));
        }
        if row.role == Role::OsState && entry.type_guid != type_guid::OS_STATE {
            return Err(refuse(
                Code::SlotAmbiguous,
                format!(
                    "{}: os-state has type {}; expected {}",
                    disk.node,
                    entry.type_guid,
                    type_guid::OS_STATE
                ),
            ));
        }
        if entry
            .start
            .checked_add(entry.size)
            .is_none_or(|end| end > disk.size)
        {
            return Err(refuse(
                Code::DiskUnsupported,
                format!("{}: {} ends behind the end of the disk", disk.node, row.name),
            ));
        }
        parts.push(Part {
            role: row.role,
            number: entry.number,
            part_uuid: entry.part_uuid,
            start: entry.start,
            size: entry.size,
            node: disk
                .nodes
                .iter()
                .find(|n| n.number == entry.number)
                .map(|n| (n.dev, n.node.clone())),
        });
    }
    overlap(disk, entries)?;
    let warnings = damage
        .map(|d| {
            format!(
                "{}: the primary partition table is damaged ({d}); the backup was read and nothing repaired",
                disk.node
            )
        })
        .into_iter()
        .collect();
    Ok((parts, warnings))
}

fn overlap(disk: &DiskFact, entries: &[Entry]) -> Result<()> {
    let mut by_start: Vec<&Entry> = entries.iter().collect();
    by_start.sort_by_key(|e| e.start);
    for (a, b) in by_start.iter().zip(by_start.iter().skip(1)) {
        if a.start.saturating_add(a.size) > b.start {
            return Err(refuse(
                Code::DiskUnsupported,
                format!("{}: partitions {} and {} overlap", disk.node, a.number, b.number),
            ));
        }
    }
    Ok(())
}

/// Refuses PARTUUIDs that exist a second time: a copy of the disk is attached.
fn unique(facts: &Facts, own: &DiskFact, parts: &[Part]) -> Result<()> {
    for part in parts {
        for disk in &facts.disks {
            let TableFact::Gpt { entries, .. } = &disk.table else {
                continue;
            };
            let same_disk = disk.node == own.node;
            if let Some(e) = entries
                .iter()
                .find(|e| e.part_uuid == part.part_uuid && !(same_disk && e.number == part.number))
            {
                return Err(refuse(
                    Code::SlotAmbiguous,
                    format!(
                        "PARTUUID {} is {} of {} and also partition {} of {}; detach the copy or give it new GUIDs",
                        part.part_uuid,
                        part.role.name(),
                        own.node,
                        e.number,
                        disk.node
                    ),
                ));
            }
        }
    }
    Ok(())
}

/// Command line, mount and table must name the same slot.
fn agree(line: &str, mounted: Slot, parts: &[Part]) -> Result<()> {
    let differ = |what: String| {
        refuse(
            Code::SlotContradiction,
            format!("{what}, but slot {mounted} is mounted at /"),
        )
    };
    let values = |key: &str| -> Vec<&str> {
        line.split_ascii_whitespace()
            .filter_map(|w| w.strip_prefix(key)?.strip_prefix('='))
            .collect()
    };
    let slots = values(cmdline::SLOT);
    if slots.is_empty() {
        return Err(differ(format!(
            "the kernel command line has no {}=",
            cmdline::SLOT
        )));
    }
    for s in slots {
        if s != mounted.letter() {
            return Err(differ(format!(
                "the kernel command line says {}={s}",
                cmdline::SLOT
            )));
        }
    }
    let roots = values("root");
    if roots.is_empty() {
        return Err(differ("the kernel command line has no root=".into()));
    }
    for r in roots {
        let uuid = r
            .get(..9)
            .filter(|p| p.eq_ignore_ascii_case("PARTUUID="))
            .and_then(|_| r.get(9..)?.parse::<Uuid>().ok())
            .ok_or_else(|| {
                differ(format!(
                    "the kernel command line says root={r} (expected root=PARTUUID=…)"
                ))
            })?;
        match parts.iter().find(|p| p.part_uuid == uuid) {
            Some(p) if p.role == mounted.role() => {}
            Some(p) => {
                return Err(differ(format!("root=PARTUUID={uuid} is {}", p.role.name())));
            }
            None => {
                return Err(differ(format!(
                    "root=PARTUUID={uuid} is no partition of the root's disk"
                )));
            }
        }
    }
    Ok(())
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
