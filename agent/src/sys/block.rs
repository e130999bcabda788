//! Block devices and disk image files as [`SlotDevice`], and the ioctls of the agent.
//!
//! Direct I/O where the medium takes it, so that a read comes from the medium and a write does not push other pages out of
//! memory; where it is refused (EINVAL), buffered I/O whose write-back starts at once.

pub mod ioctls;
mod open;

pub use open::{open_durable, open_read, open_slot};

use crate::error::{AgentError, Result};
use crate::ports::SlotDevice;
use crate::slots::{Identity, Region};
use crate::sys::buf::{ALIGN, AlignedBuf};
use crate::sys::discover;
use crate::sys::lock::{Claim, FileLock};
use crate::sys::mount::DevNo;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use rustix::fs::{Advice, OFlags, fadvise, fcntl_getfl, fcntl_setfl};
use rustix::io::Errno;
use std::fs::File;
use std::io::{Seek, SeekFrom};
use std::num::NonZeroU64;
use std::os::fd::AsFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::sync::Arc;
use std::time::Duration;

/// How long another process's short lock is waited for.
pub(crate) const LOCK_PATIENCE: Duration = Duration::from_secs(5);
/// Most bytes of one bounce copy.
const BOUNCE: usize = 64 << 10;

/// An open stretch of a block device or image file.
#[derive(Debug)]
pub struct BlockRegion {
    file: File,
    path: Utf8PathBuf,
    name: String,
    offset: u64,
    size: u64,
    sector_size: u32,
    is_block: bool,
    direct: bool,
    bounce: Option<AlignedBuf>,
    _hold: Hold,
}

/// What keeps others away while a region is open.
#[derive(Debug)]
enum Hold {
    Nothing,
    Lock { _lock: Arc<FileLock> },
    Claim { _claim: Arc<Claim> },
}

impl BlockRegion {
    fn new(region: &Region, (file, direct): (File, bool), is_block: bool, hold: Hold) -> Result<BlockRegion> {
        let dev = BlockRegion {
            file,
            path: region.path.clone(),
            name: region.name.clone(),
            offset: region.offset,
            size: region.size,
            sector_size: region.sector_size,
            is_block,
            direct,
            bounce: None,
            _hold: hold,
        };
        let end = (&dev.file)
            .seek(SeekFrom::End(0))
            .map_err(|e| dev.fail("size", 0, &e))?;
        let need = region.offset.saturating_add(region.size);
        let whole = matches!(region.identity, Identity::Partition { .. });
        if end < need || (whole && end != need) {
            return Err(AgentError::new(
                Code::SlotContradiction,
                format!(
                    "{} ({}) has {end} bytes; the partition table says {need}",
                    region.path, region.name
                ),
            ));
        }
        Ok(dev)
    }

    /// Checks on the open descriptor that this is still the partition that discovery saw.
    fn recheck(&self, region: &Region) -> Result<()> {
        let Identity::Partition {
            dev,
            part_uuid,
            number,
            start,
            disk,
        } = &region.identity
        else {
            return Ok(());
        };
        let changed = |what: String| {
            AgentError::new(
                Code::SlotContradiction,
                format!(
                    "{} ({}) changed since it was found: {what}",
                    region.path, region.name
                ),
            )
        };
        let meta = self.file.metadata().map_err(|e| self.fail("stat", 0, &e))?;
        let now = DevNo::from_rdev(meta.rdev());
        if now != *dev {
            return Err(changed(format!("device {now}, was {dev}")));
        }
        let sysfs = Utf8PathBuf::from(format!("/sys/dev/block/{dev}"));
        let kernel_start = discover::number(&sysfs.join("start")).map(|n| n * 512);
        if kernel_start != Some(*start) {
            return Err(changed(format!("starts at {kernel_start:?}, was {start}")));
        }
        let disk_fact = discover::disk_at(disk)?;
        let crate::slots::TableFact::Gpt { entries, .. } = &disk_fact.table else {
            return Err(changed("the disk's partition table is gone".into()));
        };
        match entries.iter().find(|e| e.number == *number) {
            Some(e) if e.part_uuid == *part_uuid && e.start == *start && e.size == region.size => Ok(()),
            other => Err(changed(format!("its table entry is now {other:?}"))),
        }
    }

    fn fail(&self, what: &str, at: u64, e: &std::io::Error) -> AgentError {
        let code = match Errno::from_io_error(e) {
            Some(Errno::IO | Errno::REMOTEIO | Errno::ILSEQ | Errno::NODATA) => Code::MediumCorrupt,
            Some(Errno::NOSPC | Errno::DQUOT) => {
                return AgentError::new(
                    Code::SlotTooSmall,
                    format!(
                        "{} ({}): {what} at byte {at}: {e}: what lies below the slot is full (a thin volume, or the file system of \
                         the image file); make room there and repeat",
                        self.path, self.name
                    ),
                );
            }
            _ => Code::Internal,
        };
        AgentError::new(
            code,
            format!("{} ({}): {what} at byte {at}: {e}", self.path, self.name),
        )
    }

    fn check_range(&self, at: u64, len: usize) -> Result<u64> {
        match at.checked_add(len as u64) {
            Some(end) if end <= self.size => Ok(self.offset + at),
            _ => Err(AgentError::new(
                Code::Internal,
                format!(
                    "{} ({}): {len} bytes at {at} lie outside its {} bytes",
                    self.path, self.name, self.size
                ),
            )),
        }
    }

    /// Goes on without direct I/O.
    fn buffered(&mut self) -> std::io::Result<()> {
        let flags = fcntl_getfl(self.file.as_fd())?;
        fcntl_setfl(self.file.as_fd(), flags - OFlags::DIRECT)?;
        self.direct = false;
        Ok(())
    }

    fn write_all(&mut self, data: &[u8], at: u64) -> std::io::Result<()> {
        match self.file.write_all_at(data, at) {
            Err(e) if self.direct && Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                self.buffered()?;
                self.file.write_all_at(data, at)?;
            }
            other => other?,
        }
        if !self.direct {
            // Starts the write-back of these pages now, so that the final flush finds little left to do.
            let _ = fadvise(
                self.file.as_fd(),
                at,
                NonZeroU64::new(data.len() as u64),
                Advice::DontNeed,
            );
        }
        Ok(())
    }

    fn read_exact(&mut self, buf: &mut [u8], at: u64) -> std::io::Result<()> {
        match self.file.read_exact_at(buf, at) {
            Err(e) if self.direct && Errno::from_io_error(&e) == Some(Errno::INVAL) => {
                self.buffered()?;
                self.file.read_exact_at(buf, at)
            }
            other => other,
        }
    }

    fn bounced(&mut self) -> AlignedBuf {
        self.bounce.take().unwrap_or_else(|| AlignedBuf::zeroed(BOUNCE))
    }

    /// Reads anything through an aligned buffer.
    fn read_bounced(&mut self, buf: &mut [u8], at: u64) -> std::io::Result<()> {
        let mut bounce = self.bounced();
        let mut done = 0usize;
        let result = loop {
            if done == buf.len() {
                break Ok(());
            }
            let pos = at + done as u64;
            let base = pos / ALIGN as u64 * ALIGN as u64;
            let skip = (pos - base) as usize;
            let want = (skip + buf.len() - done).next_multiple_of(ALIGN).min(BOUNCE);
            // Never past the region, which ends on a whole block.
            let room = usize::try_from(self.offset + self.size - base).unwrap_or(BOUNCE);
            let want = want.min(room);
            let Some(part) = bounce.get_mut(..want) else {
                break Err(std::io::Error::other("bounce buffer"));
            };
            if let Err(e) = self.read_exact(part, base) {
                break Err(e);
            }
            let n = (want - skip).min(buf.len() - done);
            if let (Some(d), Some(s)) = (buf.get_mut(done..done + n), bounce.get(skip..skip + n)) {
                d.copy_from_slice(s);
            }
            done += n;
        };
        self.bounce = Some(bounce);
        result
    }

    fn write_bounced(&mut self, data: &[u8], at: u64) -> std::io::Result<()> {
        let mut bounce = self.bounced();
        let mut pos = at;
        let mut result = Ok(());
        for part in data.chunks(BOUNCE) {
            if let Some(b) = bounce.get_mut(..part.len()) {
                b.copy_from_slice(part);
                result = self.write_all(b, pos);
            }
            if result.is_err() {
                break;
            }
            pos += part.len() as u64;
        }
        self.bounce = Some(bounce);
        result
    }
}

fn aligned(buf: &[u8], at: u64) -> bool {
    buf.as_ptr().align_offset(ALIGN) == 0
        && buf.len().is_multiple_of(ALIGN)
        && at.is_multiple_of(ALIGN as u64)
}

impl SlotDevice for BlockRegion {
    fn size(&self) -> u64 {
        self.size
    }

    fn block_size(&self) -> u32 {
        self.sector_size
    }

    fn write_at(&mut self, offset: u64, data: &[u8]) -> Result<()> {
        let at = self.check_range(offset, data.len())?;
        let block = u64::from(self.sector_size);
        if !offset.is_multiple_of(block) || !(data.len() as u64).is_multiple_of(block) {
            return Err(AgentError::new(
                Code::Internal,
                format!(
                    "{}: a write of {} bytes at {offset} is not whole blocks",
                    self.path,
                    data.len()
                ),
            ));
        }
        if aligned(data, at) || !self.direct {
            self.write_all(data, at)
        } else {
            self.write_bounced(data, at)
        }
        .map_err(|e| self.fail("write", offset, &e))
    }

    fn read_at(&mut self, offset: u64, buf: &mut [u8]) -> Result<()> {
        let at = self.check_range(offset, buf.len())?;
        if aligned(buf, at) || !self.direct {
            self.read_exact(buf, at)
        } else {
            self.read_bounced(buf, at)
        }
        .map_err(|e| self.fail("read", offset, &e))
    }

    fn flush(&mut self) -> Result<()> {
        // A size never changes here, so data alone matters; on a block device this is the device's cache flush too.
        self.file.sync_data().map_err(|e| self.fail("flush", 0, &e))
    }

    fn drop_cache(&mut self) -> Result<()> {
        if self.is_block {
            // Without root the ioctl is refused; direct reads do not need it.
            let dropped = ioctls::flush_buffers(&self.file);
            if let (Err(e), false) = (&dropped, self.direct) {
                return Err(self.fail("drop cache", 0, &(*e).into()));
            }
            return Ok(());
        }
        fadvise(
            self.file.as_fd(),
            self.offset,
            NonZeroU64::new(self.size),
            Advice::DontNeed,
        )
        .map_err(|e| self.fail("drop cache", 0, &e.into()))
    }

    fn describe(&self) -> String {
        format!("{} ({})", self.path, self.name)
    }
}

/// The size of a disk or image file in bytes.
///
/// # Errors
/// `Internal`.
pub fn size_of_disk(file: &File, path: &Utf8Path) -> Result<u64> {
    let mut f: &File = file;
    f.seek(SeekFrom::End(0))
        .map_err(|e| AgentError::new(Code::Internal, format!("{path}: size: {e}")))
}

#[cfg(test)]
mod tests;
