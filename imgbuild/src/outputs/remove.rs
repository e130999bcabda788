//! Deletes what a build left, and nothing else: no link is followed, no mount is entered.

use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use rustix::fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, StatxFlags, fchmod, openat, statx, unlinkat};
use rustix::io::Errno;
use std::ffi::CStr;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};

/// Deepest tree that is removed; a stack of descriptors stays small.
const MAX_DEPTH: usize = 200;

/// Removes everything inside `dir`, not `dir` itself.
pub(super) fn contents(dir: &Utf8Path) -> Result<()> {
    let fail = |e: Stop| match e {
        Stop::Errno(e) => BuildError::io(format!("emptying {dir}"), &e.into()),
        Stop::Mount(name) => BuildError::new(
            Kind::Input,
            "IO002",
            format!("{dir}: {name:?} inside is a mount point and is not touched; unmount it and start again"),
        ),
        Stop::Deep => BuildError::new(
            Kind::Build,
            "IO002",
            format!("{dir}: nested too deeply to be removed"),
        ),
    };
    let fd = open(CWD, dir.as_str()).map_err(|e| fail(Stop::Errno(e)))?;
    let mount = mount_of(fd.as_fd(), c"").map_err(|e| fail(Stop::Errno(e)))?;
    empty(&fd, mount, 0).map_err(fail)
}

enum Stop {
    Errno(Errno),
    Mount(String),
    Deep,
}

impl From<Errno> for Stop {
    fn from(e: Errno) -> Self {
        Stop::Errno(e)
    }
}

fn open(at: BorrowedFd<'_>, path: impl rustix::path::Arg + Copy) -> rustix::io::Result<OwnedFd> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    openat(at, path, flags, Mode::empty())
}

/// Identity of the mount that a path is on; a bind mount of the same file system has another.
fn mount_of(at: BorrowedFd<'_>, name: &CStr) -> rustix::io::Result<(u64, u32, u32)> {
    let flags = AtFlags::SYMLINK_NOFOLLOW | AtFlags::EMPTY_PATH;
    let s = statx(at, name, flags, StatxFlags::BASIC_STATS | StatxFlags::MNT_ID)?;
    Ok((s.stx_mnt_id, s.stx_dev_major, s.stx_dev_minor))
}

fn empty(dir: &OwnedFd, mount: (u64, u32, u32), depth: usize) -> std::result::Result<(), Stop> {
    if depth > MAX_DEPTH {
        return Err(Stop::Deep);
    }
    for entry in Dir::read_from(dir)? {
        let entry = entry?;
        let name = entry.file_name();
        if name == c"." || name == c".." {
            continue;
        }
        if mount_of(dir.as_fd(), name)? != mount {
            return Err(Stop::Mount(name.to_string_lossy().into_owned()));
        }
        let is_dir = match entry.file_type() {
            FileType::Unknown => {
                let s = statx(dir, name, AtFlags::SYMLINK_NOFOLLOW, StatxFlags::TYPE)?;
                FileType::from_raw_mode(s.stx_mode.into()).is_dir()
            }
            t => t.is_dir(),
        };
        if is_dir {
            let sub = open_dir(dir, name)?;
            empty(&sub, mount, depth + 1)?;
            unlinkat(dir, name, AtFlags::REMOVEDIR)?;
        } else {
            unlinkat(dir, name, AtFlags::empty())?;
        }
    }
    Ok(())
}

/// A directory that its owner made read-only (a copied tree may have some) is made writable first.
fn open_dir(dir: &OwnedFd, name: &CStr) -> rustix::io::Result<OwnedFd> {
    let sub = match open(dir.as_fd(), name) {
        Err(Errno::ACCESS) => {
            rustix::fs::chmodat(dir, name, Mode::RWXU, AtFlags::empty())?;
            open(dir.as_fd(), name)?
        }
        other => other?,
    };
    // Fails only for a directory of someone else; then removing will tell.
    let _ = fchmod(&sub, Mode::RWXU);
    Ok(sub)
}
