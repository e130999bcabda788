//! Free and used room of a file system.

use camino::Utf8Path;
use std::os::unix::fs::MetadataExt;

/// Entries of a tree that are looked at; a larger one counts as this large.
const ENTRIES: usize = 100_000;

/// What is free, root's reserve included.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Free {
    /// Bytes.
    pub bytes: u64,
    /// Inodes; `u64::MAX` where the file system does not count them.
    pub inodes: u64,
}

/// What is free where `path` lies.
///
/// # Errors
/// When it cannot be asked.
pub fn free(path: &Utf8Path) -> std::io::Result<Free> {
    let s = rustix::fs::statvfs(path.as_str())?;
    Ok(Free {
        bytes: s.f_bfree.saturating_mul(s.f_frsize),
        inodes: if s.f_files == 0 { u64::MAX } else { s.f_ffree },
    })
}

/// Whether the file system where `path` lies is mounted read-only.
pub fn read_only(path: &Utf8Path) -> bool {
    rustix::fs::statvfs(path.as_str()).is_ok_and(|s| s.f_flag.contains(rustix::fs::StatVfsMountFlags::RDONLY))
}

/// Why nothing can be created in the directory `path`: its file system is mounted read-only, or this user may not. `None` = it can.
pub fn closed(path: &Utf8Path) -> Option<std::io::Error> {
    use rustix::fs::{Access, AtFlags, CWD, accessat};
    if read_only(path) {
        return Some(rustix::io::Errno::ROFS.into());
    }
    let wanted = Access::WRITE_OK | Access::EXEC_OK;
    accessat(CWD, path.as_str(), wanted, AtFlags::EACCESS)
        .err()
        .map(Into::into)
}

/// Bytes and inodes of the tree at `path`; nothing where there is none.
pub fn used(path: &Utf8Path) -> (u64, u64) {
    let mut todo = vec![path.to_owned()];
    let (mut bytes, mut inodes) = (0u64, 0u64);
    let mut seen = 0;
    while let Some(dir) = todo.pop() {
        for e in dir.read_dir_utf8().into_iter().flatten().flatten() {
            seen += 1;
            if seen > ENTRIES {
                return (bytes, inodes);
            }
            let Ok(meta) = e.path().symlink_metadata() else {
                continue;
            };
            bytes = bytes.saturating_add(meta.blocks() * 512);
            inodes += 1;
            if meta.is_dir() {
                todo.push(e.path().to_owned());
            }
        }
    }
    (bytes, inodes)
}
