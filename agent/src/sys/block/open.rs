//! Opening a region: for reading, for durable writes, or a slot exclusively.

use super::{BlockRegion, Hold, LOCK_PATIENCE};
use crate::error::{AgentError, Result};
use crate::ports::SlotDevice;
use crate::slots::Region;
use crate::sys::holders::{self, Holder};
use crate::sys::lock::{Claim, FileLock};
use crate::sys::mount::DevNo;
use os_proto::codes::Code;
use rustix::fs::OFlags;
use rustix::io::Errno;
use std::fs::{File, OpenOptions};
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt};
use std::time::Duration;

/// Opens a slot for writing: exclusively, and only if it still is what discovery saw.
///
/// # Errors
/// `SlotBusy` with the holder, `SlotIsActive`, `SlotContradiction`, `Internal`.
pub fn open_slot(region: &Region) -> Result<Box<dyn SlotDevice>> {
    let meta = std::fs::metadata(&region.path).map_err(|e| cannot_open(region, &e))?;
    if !meta.file_type().is_block_device() {
        let file = open(region, true, OFlags::empty())?;
        let lock = FileLock::in_process(&file.0, &region.path, Duration::ZERO).map_err(|e| match e.code {
            Code::Busy => busy(region, "another os-agent works on this image file"),
            _ => e,
        })?;
        return Ok(Box::new(BlockRegion::new(
            region,
            file,
            false,
            Hold::Lock { _lock: lock },
        )?));
    }
    let dev = DevNo::from_rdev(meta.rdev());
    match holders::of(dev, &region.path) {
        Some(Holder::Root) => {
            return Err(AgentError::new(
                Code::SlotIsActive,
                format!("{} ({}) is the running root", region.path, region.name),
            ));
        }
        Some(Holder::Other(who)) => return Err(busy(region, &who)),
        None => {}
    }
    let claim = Claim::on(meta.rdev(), || Ok(open(region, false, OFlags::EXCL)?.0))?;
    let file = open(region, true, OFlags::empty())?;
    let dev = BlockRegion::new(region, file, true, Hold::Claim { _claim: claim })?;
    dev.recheck(region)?;
    Ok(Box::new(dev))
}

/// Opens a region for reading only; others may use it too.
///
/// # Errors
/// `Internal`.
pub fn open_read(region: &Region) -> Result<Box<dyn SlotDevice>> {
    let (file, direct) = open(region, false, OFlags::empty())?;
    let block = is_block(&file);
    Ok(Box::new(BlockRegion::new(
        region,
        (file, direct),
        block,
        Hold::Nothing,
    )?))
}

/// Opens a region for reading and durable writes (each write is on the medium when it returns), under an exclusive lock.
///
/// # Errors
/// `Busy` when another process holds the lock, `Internal`.
pub fn open_durable(region: &Region) -> Result<BlockRegion> {
    let file = open(region, true, OFlags::DSYNC)?;
    let block = is_block(&file.0);
    let lock = FileLock::in_process(&file.0, &region.path, LOCK_PATIENCE)?;
    let dev = BlockRegion::new(region, file, block, Hold::Lock { _lock: lock })?;
    if block {
        dev.recheck(region)?;
    }
    Ok(dev)
}

fn is_block(file: &File) -> bool {
    file.metadata().is_ok_and(|m| m.file_type().is_block_device())
}

/// Opens with O_DIRECT, or without where the file system does not take it.
fn open(region: &Region, write: bool, flags: OFlags) -> Result<(File, bool)> {
    let with = |extra: OFlags| {
        OpenOptions::new()
            .read(true)
            .write(write)
            .custom_flags((flags | extra | OFlags::CLOEXEC).bits() as i32)
            .open(&region.path)
    };
    let opened = match with(OFlags::DIRECT) {
        Err(e) if Errno::from_io_error(&e) == Some(Errno::INVAL) => with(OFlags::empty()).map(|f| (f, false)),
        other => other.map(|f| (f, true)),
    };
    opened.map_err(|e| match Errno::from_io_error(&e) {
        Some(Errno::BUSY) => busy(
            region,
            "another program has it open exclusively, or it or one of its partitions is mounted",
        ),
        _ => cannot_open(region, &e),
    })
}

fn cannot_open(region: &Region, e: &std::io::Error) -> AgentError {
    use std::io::ErrorKind;
    let (code, advice) = match e.kind() {
        ErrorKind::PermissionDenied => (Code::NotPermitted, ""),
        ErrorKind::ReadOnlyFilesystem => (
            Code::NotPermitted,
            "; mount it writable, or work on a copy elsewhere",
        ),
        _ => (Code::Internal, ""),
    };
    AgentError::new(
        code,
        format!("{} ({}): cannot open: {e}{advice}", region.path, region.name),
    )
}

fn busy(region: &Region, holder: &str) -> AgentError {
    AgentError::new(
        Code::SlotBusy,
        format!(
            "{} ({}) is in use: {holder}; release it and repeat",
            region.path, region.name
        ),
    )
}
