//! Small files on BOOT, written through the FAT itself: BOOT is mounted read-only where it is mounted at all, and a disk that
//! does not run here is not mounted. Losing such a file costs arguments, never the boot.

use crate::error::{AgentError, Result};
use crate::ports::SlotDevice;
use crate::slots::Region;
use crate::sys::block::{open_durable, open_read};
use fatfs::{FileSystem, FsOptions};
use os_proto::codes::Code;
use std::io::{Error, Read, Seek, SeekFrom, Write};

/// Largest file that is read.
const MAX_BYTES: u64 = 64 << 10;

/// The content of a file; `None` = there is none.
///
/// # Errors
/// `StateWriteFailed` naming BOOT.
pub(super) fn read(region: &Region, path: &str) -> Result<Option<Vec<u8>>> {
    let mut device = open_read(region)?;
    // Not what another reader's cache holds.
    device.drop_cache()?;
    let fail = |e: Error| failed(region, path, "read", &e);
    let fs = mount(device).map_err(fail)?;
    let found = match fs.root_dir().open_file(path) {
        Ok(f) => {
            let mut data = Vec::new();
            f.take(MAX_BYTES).read_to_end(&mut data).map_err(fail)?;
            Some(data)
        }
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => None,
        Err(e) => return Err(fail(e)),
    };
    Ok(found)
}

/// Replaces a file's content; one of the same length is overwritten in place, so that only its own sectors change.
///
/// # Errors
/// `StateWriteFailed` naming BOOT; `Busy` when another process writes there.
pub(super) fn write(region: &Region, path: &str, content: &[u8]) -> Result<()> {
    let fail = |e: Error| failed(region, path, "write", &e);
    let fs = mount(Box::new(open_durable(region)?)).map_err(fail)?;
    let put = || -> std::io::Result<()> {
        let root = fs.root_dir();
        let mut file = root.create_file(path)?;
        if file.seek(SeekFrom::End(0))? != content.len() as u64 {
            file.seek(SeekFrom::Start(0))?;
            file.truncate()?;
        }
        file.seek(SeekFrom::Start(0))?;
        file.write_all(content)?;
        file.flush()
    };
    put().map_err(fail)?;
    fs.unmount().map_err(fail)?;
    match read(region, path)? {
        Some(back) if back == content => Ok(()),
        _ => Err(fail(Error::other("it reads back differently"))),
    }
}

fn failed(region: &Region, path: &str, what: &str, e: &Error) -> AgentError {
    AgentError::new(
        Code::StateWriteFailed,
        format!("cannot {what} {path} on {} ({}): {e}", region.path, region.name),
    )
}

fn mount(device: Box<dyn SlotDevice>) -> std::io::Result<FileSystem<Stream>> {
    FileSystem::new(
        Stream { device, pos: 0 },
        FsOptions::new().update_accessed_date(false),
    )
}

/// A device as a stream of bytes; a part of a sector is written together with the rest of it.
struct Stream {
    device: Box<dyn SlotDevice>,
    pos: u64,
}

impl Stream {
    fn left(&self, want: usize) -> usize {
        let left = self.device.size().saturating_sub(self.pos);
        usize::try_from(left).unwrap_or(usize::MAX).min(want)
    }
}

fn io(e: AgentError) -> Error {
    Error::other(e.message)
}

impl Read for Stream {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let n = self.left(buf.len());
        let part = buf.get_mut(..n).unwrap_or_default();
        self.device.read_at(self.pos, part).map_err(io)?;
        self.pos += n as u64;
        Ok(n)
    }
}

impl Write for Stream {
    fn write(&mut self, buf: &[u8]) -> std::io::Result<usize> {
        let sector = u64::from(self.device.block_size()).max(1);
        let base = self.pos / sector * sector;
        let skip = (self.pos - base) as usize;
        let n = self.left(buf.len()).min(sector as usize - skip);
        let mut whole = vec![0u8; sector as usize];
        if n < whole.len() {
            self.device.read_at(base, &mut whole).map_err(io)?;
        }
        if let (Some(d), Some(s)) = (whole.get_mut(skip..skip + n), buf.get(..n)) {
            d.copy_from_slice(s);
        }
        self.device.write_at(base, &whole).map_err(io)?;
        self.pos += n as u64;
        Ok(n)
    }

    fn flush(&mut self) -> std::io::Result<()> {
        self.device.flush().map_err(io)
    }
}

impl Seek for Stream {
    fn seek(&mut self, to: SeekFrom) -> std::io::Result<u64> {
        let at = match to {
            SeekFrom::Start(n) => Some(n),
            SeekFrom::End(n) => self.device.size().checked_add_signed(n),
            SeekFrom::Current(n) => self.pos.checked_add_signed(n),
        };
        self.pos = at.ok_or_else(|| Error::other("a seek before the start"))?;
        Ok(self.pos)
    }
}
