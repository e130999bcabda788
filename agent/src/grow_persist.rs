//! Grows PERSIST to the end of the disk, while it is mounted, with nothing but the kernel: partition table (backup copy first),
//! the kernel's idea of the partition, the file system. Idempotent: each step looks at what there is, so that a power cut
//! between any two is repaired by the next run.

use crate::error::{AgentError, Result};
use crate::gpt_table::Copies;
use crate::payload::sniff;
use crate::slots::Layout;
use crate::sys::block::{LOCK_PATIENCE, ioctls, size_of_disk};
use crate::sys::mount::{self, DevNo};
use crate::sys::{discover, lock::FileLock};
use camino::Utf8Path;
use os_proto::codes::Code;
use os_proto::layout::Role;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileExt, FileTypeExt};

/// Unit in which the primary table is written.
const BLOCK: usize = 4096;

/// What was done.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Grown {
    /// Size of the partition before, in bytes.
    pub partition_before: u64,
    /// Size of the partition now, in bytes.
    pub partition_now: u64,
    /// Size of the file system before, in bytes; `None` where it was not looked at (an image file).
    pub fs_before: Option<u64>,
    /// Size of the file system now, in bytes.
    pub fs_now: Option<u64>,
}

impl Grown {
    /// Whether anything changed.
    pub fn changed(&self) -> bool {
        self.partition_before != self.partition_now || self.fs_before != self.fs_now
    }
}

/// Grows PERSIST of a layout: partition table, kernel, mounted file system. On an image file only the table.
///
/// # Errors
/// `DiskUnsupported` when PERSIST is not last or the table is damaged, `Internal` from the kernel.
pub fn run(layout: &Layout) -> Result<Grown> {
    let path = layout.disk();
    let fail =
        |what: &str, e: std::io::Error| AgentError::new(Code::Internal, format!("{path}: {what}: {e}"));
    let disk = OpenOptions::new()
        .read(true)
        .write(true)
        .open(path)
        .map_err(|e| fail("open", e))?;
    let is_block = disk
        .metadata()
        .map_err(|e| fail("stat", e))?
        .file_type()
        .is_block_device();
    // Also keeps udev from probing half a table.
    let _lock = FileLock::in_process(&disk, path, LOCK_PATIENCE)?;
    let size = size_of_disk(&disk, path)?;
    let number = Role::Persist.number();
    let (before, now) = grow_table(&disk, path, size, layout.sector_size(), number)?;
    if !is_block {
        return Ok(Grown {
            partition_before: before,
            partition_now: now,
            fs_before: None,
            fs_now: None,
        });
    }
    let part = layout
        .part(Role::Persist)
        .ok_or_else(|| AgentError::new(Code::SlotAmbiguous, format!("{path}: no PERSIST")))?;
    let (dev, node) = part.node.as_ref().ok_or_else(|| {
        AgentError::new(
            Code::DiskUnsupported,
            format!("{path}: the kernel shows no partition PERSIST"),
        )
    })?;
    let kernel = kernel_size(*dev);
    if kernel != Some(now) {
        ioctls::resize_partition(&disk, number, part.start, now)
            .map_err(|e| fail("telling the kernel the new size of PERSIST", e.into()))?;
    }
    let (fs_before, fs_now) = grow_fs(*dev, node, now)?;
    Ok(Grown {
        partition_before: kernel.unwrap_or(before).min(before),
        partition_now: now,
        fs_before: Some(fs_before),
        fs_now: Some(fs_now),
    })
}

fn kernel_size(dev: DevNo) -> Option<u64> {
    let path = format!("/sys/dev/block/{dev}/size");
    discover::number(Utf8Path::new(&path)).map(|n| n * 512)
}

/// Rewrites both copies of the table where the partition can become larger; its sizes before and now.
fn grow_table(disk: &File, path: &Utf8Path, size: u64, sector: u32, number: u32) -> Result<(u64, u64)> {
    let unsupported = |why: String| {
        AgentError::new(
            Code::DiskUnsupported,
            format!("{path}: {why}; PERSIST stays as it is"),
        )
    };
    let (table, damage) = discover::read_table(disk, size, sector).map_err(|e| unsupported(e.to_string()))?;
    if let Some(d) = damage {
        return Err(unsupported(format!(
            "the primary partition table is damaged ({d})"
        )));
    }
    let before = table
        .entries
        .iter()
        .find(|e| e.number == number)
        .map_or(0, |e| e.size);
    let Some(copies) = table.grown(number, size).map_err(unsupported)? else {
        return Ok((before, before));
    };
    write_copies(disk, &copies, sector, size).map_err(|e| {
        AgentError::new(
            Code::Internal,
            format!("{path}: writing the partition table: {e}"),
        )
    })?;
    let (check, damage) = discover::read_table(disk, size, sector).map_err(|e| {
        AgentError::new(
            Code::MediumCorrupt,
            format!("{path}: partition table reads back as: {e}"),
        )
    })?;
    match (damage, check.entries.iter().find(|e| e.number == number)) {
        (None, Some(e)) if e.size == copies.size => Ok((before, copies.size)),
        _ => Err(AgentError::new(
            Code::MediumCorrupt,
            format!("{path}: the partition table reads back differently"),
        )),
    }
}

/// The backup first: until the primary header names it, it is unused. The primary's header and the changed entry lie, with
/// 512-byte sectors, in the disk's first 4 KiB; those are written at once, so that a cut leaves the old or the new table on
/// every medium that writes 4 KiB whole.
fn write_copies(disk: &File, copies: &Copies, sector: u32, size: u64) -> std::io::Result<()> {
    for (at, bytes) in [&copies.backup_entries, &copies.backup_header] {
        disk.write_all_at(bytes, *at)?;
    }
    disk.sync_all()?;
    let (entries_at, entries) = &copies.primary_entries;
    let mut old = vec![0u8; (*entries_at as usize + entries.len()).next_multiple_of(BLOCK)];
    disk.read_exact_at(&mut old, 0)?;
    let mut new = old.clone();
    for (at, bytes) in [&copies.primary_entries, &copies.primary_header] {
        let at = *at as usize;
        if let Some(d) = new.get_mut(at..at + bytes.len()) {
            d.copy_from_slice(bytes);
        }
    }
    // The protective MBR covers the disk (UEFI specification 2.10, 5.2.3): one record of type EE, its size at byte 458.
    if new.get(450) == Some(&0xee)
        && let Some(d) = new.get_mut(458..462)
    {
        let sectors = u32::try_from(size / u64::from(sector) - 1).unwrap_or(u32::MAX);
        d.copy_from_slice(&sectors.to_le_bytes());
    }
    for (i, (n, o)) in new.chunks(BLOCK).zip(old.chunks(BLOCK)).enumerate().rev() {
        if n != o {
            disk.write_all_at(n, (i * BLOCK) as u64)?;
        }
    }
    disk.sync_all()
}

/// Grows the mounted ext4 on `dev` to `bytes`; its sizes before and now.
fn grow_fs(dev: DevNo, node: &Utf8Path, bytes: u64) -> Result<(u64, u64)> {
    let internal = |what: String| AgentError::new(Code::Internal, what);
    let text = std::fs::read_to_string("/proc/self/mountinfo")
        .map_err(|e| internal(format!("/proc/self/mountinfo: {e}")))?;
    let mounts = mount::parse(&text);
    let at = mounts
        .iter()
        .find(|m| m.dev == dev)
        .ok_or_else(|| internal(format!("{node} (PERSIST) is not mounted; mount it and repeat")))?;
    if at.fs != "ext4" {
        return Err(AgentError::new(
            Code::DiskUnsupported,
            format!(
                "{node} (PERSIST) is {}, which cannot be grown; expected ext4",
                at.fs
            ),
        ));
    }
    let part = File::open(node).map_err(|e| internal(format!("{node}: {e}")))?;
    let (before, block) = superblock(&part, node)?;
    let blocks = bytes / block;
    if before >= blocks * block {
        return Ok((before, before));
    }
    let dir = File::open(&at.at).map_err(|e| internal(format!("{}: {e}", at.at)))?;
    ioctls::resize_ext4(&dir, blocks)
        .map_err(|e| internal(format!("{} (PERSIST): growing the file system: {e}", at.at)))?;
    dir.sync_all().map_err(|e| internal(format!("{}: {e}", at.at)))?;
    Ok((before, superblock(&part, node)?.0))
}

/// Size of a file system and of its blocks, in bytes, read from its device.
fn superblock(part: &File, node: &Utf8Path) -> Result<(u64, u64)> {
    let mut head = [0u8; 2048];
    part.read_exact_at(&mut head, 0)
        .map_err(|e| AgentError::new(Code::Internal, format!("{node}: {e}")))?;
    let bytes = sniff::ext4_bytes(&head)
        .ok_or_else(|| AgentError::new(Code::DiskUnsupported, format!("{node} (PERSIST) holds no ext4")))?;
    let log = head
        .get(1024 + 0x18..1024 + 0x1c)
        .and_then(|b| Some(u32::from_le_bytes(b.try_into().ok()?)))
        .unwrap_or(2);
    Ok((bytes, 1024 << log.min(6)))
}

#[cfg(test)]
mod tests;
