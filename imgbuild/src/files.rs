//! Files of a build: intermediate files, sparse copies, hashes. Outputs get their names in [`crate::outputs`].

use crate::error::{BuildError, Result};
use camino::Utf8Path;
use os_proto::digest::Sha256Digest;
use rustix::fs::SeekFrom;
use sha2::{Digest, Sha256};
use std::fs::File;
use std::io::Read;
use std::os::unix::fs::FileExt;

/// Granularity of holes in copies.
const GRAIN: usize = 64 << 10;
/// Bytes read at once.
const CHUNK: usize = 1 << 20;

/// Writes a file of the working directory.
///
/// # Errors
/// IO028 for a full disk, IO001 otherwise.
pub fn write(path: &Utf8Path, bytes: &[u8]) -> Result<()> {
    let file = create(path)?;
    file.write_all_at(bytes, 0)
        .map_err(|e| BuildError::io(format!("writing {path}"), &e))
}

/// Creates a file of the working directory, or empties it.
///
/// # Errors
/// As [`write`].
pub fn create(path: &Utf8Path) -> Result<File> {
    std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .truncate(true)
        .open(path)
        .map_err(|e| BuildError::io(format!("creating {path}"), &e))
}

/// Copies `from` to `to` at `offset`; holes and zeros are skipped, so `to` must read as zeros there already.
/// Returns the length of `from`.
///
/// # Errors
/// As [`write`].
pub fn copy_sparse(
    from: &Utf8Path,
    to: &File,
    offset: u64,
    progress: &mut dyn FnMut(u64, u64),
) -> Result<u64> {
    let source = open(from)?;
    let read_error = |e: &std::io::Error| BuildError::io(format!("reading {from}"), e);
    let length = source.metadata().map_err(|e| read_error(&e))?.len();
    let mut buffer = vec![0u8; CHUNK];
    let mut at = 0;
    while at < length {
        at = next_data(&source, at).unwrap_or(length);
        if at >= length {
            break;
        }
        let n = source.read_at(&mut buffer, at).map_err(|e| read_error(&e))?;
        if n == 0 {
            break;
        }
        for (i, grain) in buffer[..n].chunks(GRAIN).enumerate() {
            if grain.iter().any(|b| *b != 0) {
                to.write_all_at(grain, offset + at + (i * GRAIN) as u64)
                    .map_err(|e| BuildError::io(format!("copying {from} into the disk image"), &e))?;
            }
        }
        at += n as u64;
        progress(at, length);
    }
    Ok(length)
}

/// Start of the next data at or after `at`, brought to a chunk boundary; none = only a hole follows.
fn next_data(file: &File, at: u64) -> Option<u64> {
    match rustix::fs::seek(file, SeekFrom::Data(at)) {
        Ok(found) => Some((found - found % CHUNK as u64).max(at)),
        Err(rustix::io::Errno::NXIO) => None,
        // A file system that knows no holes.
        Err(_) => Some(at),
    }
}

/// SHA-256 of a file.
///
/// # Errors
/// IO001 when it cannot be read.
pub fn sha256(path: &Utf8Path) -> Result<Sha256Digest> {
    let mut file = open(path)?;
    let mut hash = Sha256::new();
    let mut buffer = vec![0u8; CHUNK];
    loop {
        let n = file
            .read(&mut buffer)
            .map_err(|e| BuildError::io(format!("reading {path}"), &e))?;
        if n == 0 {
            return Ok(Sha256Digest(hash.finalize().into()));
        }
        hash.update(&buffer[..n]);
    }
}

/// Flushes a file to disk.
///
/// # Errors
/// As [`write`].
pub fn sync(path: &Utf8Path) -> Result<()> {
    open(path)?
        .sync_all()
        .map_err(|e| BuildError::io(format!("flushing {path}"), &e))
}

fn open(path: &Utf8Path) -> Result<File> {
    Ok(fs_err::File::open(path)
        .map_err(|e| BuildError::io(format!("opening {path}"), &e))?
        .into_parts()
        .0)
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;
    use std::os::unix::fs::MetadataExt;

    #[test]
    fn a_copy_keeps_holes_and_content() {
        let dir = tempfile::tempdir().unwrap();
        let dir = Utf8Path::from_path(dir.path()).unwrap();
        let (from, to) = (dir.join("from"), dir.join("to"));
        let f = create(&from).unwrap();
        f.set_len(64 << 20).unwrap();
        f.write_all_at(b"one", 3 << 20).unwrap();
        f.write_all_at(&[7; 100_000], (40 << 20) + 5).unwrap();
        f.write_all_at(&vec![0; 8 << 20], 50 << 20).unwrap();
        f.write_all_at(b"end", (64 << 20) - 3).unwrap();
        let t = create(&to).unwrap();
        t.set_len(70 << 20).unwrap();
        assert_eq!(copy_sparse(&from, &t, 1 << 20, &mut |_, _| {}).unwrap(), 64 << 20);
        let (a, b) = (std::fs::read(&from).unwrap(), std::fs::read(&to).unwrap());
        assert!(a == b[1 << 20..65 << 20]);
        assert!(
            std::fs::metadata(&to).unwrap().blocks() * 512 < 2 << 20,
            "zeros became holes"
        );
        assert_eq!(sha256(&from).unwrap(), Sha256Digest(Sha256::digest(&a).into()));
    }
}
