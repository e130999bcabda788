//! PURE: the decision which partition is what, and which slot runs.

use super::{DiskFact, Facts, Layout, Part, TableFact, missing, refuse};
use crate::error::Result;
use crate::gpt_table::Entry;
use crate::sys::mount;
use os_proto::codes::Code;
use os_proto::layout::{Role, SLIPWAY, Slot, cmdline, type_guid};
use uuid::Uuid;

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
    unique(&facts.disks, disk, &parts)?;
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
    // Where the disk will run, the kernel finds / by PARTUUID: two equal ones would be a matter of chance.
    unique(std::slice::from_ref(disk), disk, &parts)?;
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

fn gpt_entries(disk: &DiskFact) -> Result<(&[Entry], Option<String>)> {
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
            backup_damage,
        } => {
            let damage = match (primary_damage, backup_damage) {
                (Some(d), _) => Some(format!(
                    "{}: the primary partition table is damaged ({d}); the backup was read and nothing repaired",
                    disk.node
                )),
                (None, Some(d)) => Some(format!(
                    "{0}: the backup partition table at the end of the disk is damaged ({d}); the primary is sound, and sgdisk -e {0} \
                     writes the backup anew",
                    disk.node
                )),
                (None, None) => None,
            };
            Ok((entries, damage))
        }
        TableFact::Other(what) => Err(refuse(
            Code::DiskUnsupported,
            format!("{}: {what}; expected a GUID partition table", disk.node),
        )),
    }
}

/// Gives each role its partition.
fn roles(disk: &DiskFact, (entries, damage): (&[Entry], Option<String>)) -> Result<(Vec<Part>, Vec<String>)> {
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
    let mut absent = None;
    for row in &SLIPWAY {
        let named: Vec<&Entry> = entries.iter().filter(|e| e.name == row.name).collect();
        let entry = match named.as_slice() {
            [one] => *one,
            [] if row.role == Role::Bios => continue,
            // Slots and environment say all that matters for booting; what needs a place for the state says that there is none.
            [] if row.role == Role::Persist => {
                absent = Some(missing(&disk.node, row.role).message);
                continue;
            }
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
    let warnings = damage.into_iter().chain(absent).collect();
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
fn unique(disks: &[DiskFact], own: &DiskFact, parts: &[Part]) -> Result<()> {
    for part in parts {
        for disk in disks {
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
