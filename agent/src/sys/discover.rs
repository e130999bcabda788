//! Collects the facts for [`crate::slots`] from /proc, /sys and the disks. Reads only.

use crate::error::{AgentError, Result};
use crate::gpt_table::{self, BadTable, Table};
use crate::slots::{self, DiskFact, Facts, Layout, PartNode, TableFact};
use crate::sys::mount::DevNo;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::Slot;
use std::fs::File;
use std::os::unix::fs::{FileExt, FileTypeExt, MetadataExt};

/// The layout of the running system.
///
/// # Errors
/// `DiskUnsupported`, `SlotAmbiguous`, `SlotContradiction`; `Internal` when /proc or /sys cannot be read.
pub fn online() -> Result<Layout> {
    slots::discover(&gather()?)
}

/// The layout of a disk image file or of a block device that does not run here.
///
/// # Errors
/// `InvalidArgument` when `path` is neither, `DiskUnsupported`, `SlotAmbiguous`.
pub fn offline(path: &Utf8Path, running: Slot) -> Result<Layout> {
    slots::offline(&disk_at(path)?, running)
}

/// Reads the facts of the running system.
///
/// # Errors
/// `Internal` when /proc or /sys cannot be read.
pub fn gather() -> Result<Facts> {
    gather_at(Utf8Path::new("/"))
}

/// Reads the facts of the system whose proc, sys and dev lie below `root`.
///
/// # Errors
/// As [`gather`].
pub fn gather_at(root: &Utf8Path) -> Result<Facts> {
    let mut facts = Facts {
        cmdline: read(&root.join("proc/cmdline"))?,
        mountinfo: read(&root.join("proc/self/mountinfo"))?,
        ..Facts::default()
    };
    let dev_dir = root.join("dev");
    for (name, dir) in children(&root.join("sys/block"))? {
        // Compressed memory and floppies are never below a root; asking a floppy drive takes seconds.
        if name.starts_with("zram") || name.starts_with("ram") || name.starts_with("fd") {
            continue;
        }
        let Some(dev) = dev_of(&dir) else { continue };
        let slaves: Vec<DevNo> = children(&dir.join("slaves"))
            .unwrap_or_default()
            .iter()
            .filter_map(|(_, d)| dev_of(d))
            .collect();
        if !slaves.is_empty() {
            facts.slaves.insert(dev, slaves);
            continue;
        }
        let size = number(&dir.join("size")).unwrap_or(0) * 512;
        if size > 0 {
            facts.disks.push(sys_disk(&dir, &dev_dir, dev, size));
        }
    }
    Ok(facts)
}

/// The facts of the disk or image file at `path`.
///
/// # Errors
/// As [`offline`].
pub fn disk_at(path: &Utf8Path) -> Result<DiskFact> {
    let bad = |what: String| AgentError::new(Code::InvalidArgument, format!("{path}: {what}"));
    let meta = std::fs::metadata(path).map_err(|e| bad(e.to_string()))?;
    if meta.file_type().is_block_device() {
        let dev = DevNo::from_rdev(meta.rdev());
        let dir = Utf8PathBuf::from(format!("/sys/dev/block/{dev}"));
        if dir.join("partition").exists() {
            return Err(bad("is a partition; name the disk".into()));
        }
        let size = number(&dir.join("size")).unwrap_or(0) * 512;
        let mut disk = sys_disk(&dir, Utf8Path::new("/dev"), dev, size);
        disk.node = path.to_owned();
        return Ok(disk);
    }
    if !meta.is_file() {
        return Err(bad("is neither a disk nor an image file".into()));
    }
    let file = File::open(path).map_err(|e| bad(e.to_string()))?;
    // An image does not say its sector size: the header is at the second sector of either.
    let at = |sector: u32| table_of(&file, meta.len(), sector);
    let (sector_size, table) = match (at(512), at(4096)) {
        (t @ TableFact::Gpt { .. }, _) => (512, t),
        (_, t @ TableFact::Gpt { .. }) => (4096, t),
        (t, _) => (512, t),
    };
    Ok(DiskFact {
        node: path.to_owned(),
        dev: None,
        size: meta.len(),
        sector_size,
        table,
        nodes: Vec::new(),
    })
}

fn sys_disk(dir: &Utf8Path, dev_dir: &Utf8Path, dev: DevNo, size: u64) -> DiskFact {
    let node = node_of(dir, dev_dir);
    let sector = number(&dir.join("queue/logical_block_size"))
        .and_then(|n| u32::try_from(n).ok())
        .unwrap_or(512);
    let nodes = children(dir)
        .unwrap_or_default()
        .into_iter()
        .filter_map(|(_, d)| {
            Some(PartNode {
                number: u32::try_from(number(&d.join("partition"))?).ok()?,
                dev: dev_of(&d)?,
                node: node_of(&d, dev_dir),
            })
        })
        .collect();
    let table = match File::open(&node) {
        Ok(f) if matches!(sector, 512 | 4096) => table_of(&f, size, sector),
        Ok(_) => TableFact::Other(format!("sectors of {sector} bytes")),
        Err(e) => TableFact::Other(format!("cannot be read ({e})")),
    };
    DiskFact {
        node,
        dev: Some(dev),
        size,
        sector_size: sector,
        table,
        nodes,
    }
}

/// Reads a disk's table: the primary, or the backup where that is damaged.
fn table_of(file: &File, size: u64, sector: u32) -> TableFact {
    match read_table(file, size, sector) {
        Ok((t, damage)) => TableFact::Gpt {
            backup_damage: damage
                .is_none()
                .then(|| backup_damage(file, sector, &t))
                .flatten(),
            entries: t.entries,
            primary_damage: damage.map(|d| d.to_string()),
        },
        Err(BadTable::NoSignature) => {
            let mut first = [0u8; 512];
            let msdos = file.read_exact_at(&mut first, 0).is_ok() && first.ends_with(&[0x55, 0xaa]);
            TableFact::Other(
                if msdos {
                    "has an msdos partition table"
                } else {
                    "has no partition table"
                }
                .into(),
            )
        }
        Err(e) => TableFact::Other(e.to_string()),
    }
}

/// Reads the primary table, or the backup together with the damage of the primary.
///
/// # Errors
/// [`BadTable`] of the primary when both are unusable.
pub fn read_table(
    file: &File,
    size: u64,
    sector: u32,
) -> std::result::Result<(Table, Option<BadTable>), BadTable> {
    let s = u64::from(sector);
    match table_at(file, s, sector) {
        Ok(t) => Ok((t, None)),
        Err(primary) => match (size / s)
            .checked_sub(1)
            .map(|lba| table_at(file, lba * s, sector))
        {
            Some(Ok(t)) => Ok((t, Some(primary))),
            _ => Err(primary),
        },
    }
}

/// The copy of the table whose header is at byte `at`.
fn table_at(file: &File, at: u64, sector: u32) -> std::result::Result<Table, BadTable> {
    let mut head = vec![0u8; sector as usize];
    file.read_exact_at(&mut head, at).map_err(|_| BadTable::Short)?;
    let ext = gpt_table::header(&head, at, sector)?;
    let mut array = vec![0u8; ext.entries_bytes];
    file.read_exact_at(&mut array, ext.entries_at)
        .map_err(|_| BadTable::Short)?;
    gpt_table::table(&head, at, sector, &array)
}

/// What is wrong with the backup of a sound primary. It is looked for where the primary says: on a disk that became larger that
/// is not the end, until PERSIST grows.
fn backup_damage(file: &File, sector: u32, primary: &Table) -> Option<String> {
    match table_at(file, primary.other_header, sector) {
        Ok(b) if b.disk_guid == primary.disk_guid && b.entries == primary.entries => None,
        Ok(_) => Some("it names other partitions".into()),
        Err(e) => Some(e.to_string()),
    }
}

fn read(path: &Utf8Path) -> Result<String> {
    std::fs::read(path)
        .map(|b| String::from_utf8_lossy(&b).into_owned())
        .map_err(|e| AgentError::new(Code::Internal, format!("{path}: {e}")))
}

fn children(dir: &Utf8Path) -> Result<Vec<(String, Utf8PathBuf)>> {
    let fail = |e: std::io::Error| AgentError::new(Code::Internal, format!("{dir}: {e}"));
    let mut out = Vec::new();
    for e in std::fs::read_dir(dir).map_err(fail)? {
        if let Ok(name) = e.map_err(fail)?.file_name().into_string() {
            let path = dir.join(&name);
            out.push((name, path));
        }
    }
    out.sort();
    Ok(out)
}

/// A decimal attribute.
pub(crate) fn number(path: &Utf8Path) -> Option<u64> {
    std::fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn dev_of(dir: &Utf8Path) -> Option<DevNo> {
    DevNo::parse(&std::fs::read_to_string(dir.join("dev")).ok()?)
}

/// The device node, from the kernel's own name for it.
fn node_of(dir: &Utf8Path, dev_dir: &Utf8Path) -> Utf8PathBuf {
    let uevent = std::fs::read_to_string(dir.join("uevent")).unwrap_or_default();
    let name = uevent
        .lines()
        .find_map(|l| l.strip_prefix("DEVNAME="))
        .or(dir.file_name())
        .unwrap_or_default();
    dev_dir.join(name)
}

#[cfg(test)]
mod tests;
