//! The file systems that programs inside the tree need: a minimal private /dev, /proc, a read-only /sys, fresh /run and /tmp.
//!
//! They exist only in the worker's mount namespace and only as long as [`Mounts`] lives.

use super::sandbox;
use crate::error::{BuildError, Kind, Result};
use camino::{Utf8Path, Utf8PathBuf};
use rustix::fs::{FileType, Mode, makedev, mknodat};
use rustix::mount::{MountFlags, UnmountFlags, mount, mount_bind, unmount};
use std::os::unix::fs::{DirBuilderExt, symlink};

/// Device nodes of the private /dev: name, major, minor. All are safe for everyone (0666).
const NODES: [(&str, u32, u32); 6] = [
    ("null", 1, 3),
    ("zero", 1, 5),
    ("full", 1, 7),
    ("random", 1, 8),
    ("urandom", 1, 9),
    ("tty", 5, 0),
];

/// Links of the private /dev.
const LINKS: [(&str, &str); 4] = [
    ("fd", "/proc/self/fd"),
    ("stdin", "/proc/self/fd/0"),
    ("stdout", "/proc/self/fd/1"),
    ("stderr", "/proc/self/fd/2"),
];

/// Mounts inside a tree; dropped in reverse order.
#[derive(Debug)]
pub struct Mounts {
    mounted: Vec<Utf8PathBuf>,
}

impl Mounts {
    /// Mounts everything below `root`. Mount points that are missing are created.
    pub fn new(root: &Utf8Path) -> Result<Mounts> {
        if !sandbox::inside() {
            return Err(BuildError::new(
                Kind::Bug,
                "BUG001",
                format!("{root} was to get mounts outside of the sandbox"),
            ));
        }
        let mut mounts = Mounts { mounted: Vec::new() };
        let quiet = MountFlags::NOSUID | MountFlags::NODEV | MountFlags::NOEXEC;
        mounts.add(root, "proc", "proc", quiet, None)?;
        mounts.add(root, "sys", "sysfs", quiet | MountFlags::RDONLY, None)?;
        let dev = mounts.add(
            root,
            "dev",
            "tmpfs",
            MountFlags::NOSUID | MountFlags::NOEXEC,
            Some(c"mode=0755"),
        )?;
        fill_dev(&dev)?;
        let plain = MountFlags::NOSUID | MountFlags::NODEV;
        mounts.add(root, "run", "tmpfs", plain, Some(c"mode=0755"))?;
        mounts.add(root, "tmp", "tmpfs", plain, Some(c"mode=1777"))?;
        Ok(mounts)
    }

    /// Makes `source` visible at `target` (relative to `root`, a directory that is created), e.g. a cache.
    pub fn bind(&mut self, source: &Utf8Path, root: &Utf8Path, target: &str) -> Result<()> {
        let at = root.join(target);
        make_dir(&at, 0o755)?;
        mount_bind(source.as_str(), at.as_str())
            .map_err(|e| fail(&format!("cannot bind {source} to {at}"), e))?;
        self.mounted.push(at);
        Ok(())
    }

    fn add(
        &mut self,
        root: &Utf8Path,
        name: &str,
        kind: &str,
        flags: MountFlags,
        data: Option<&std::ffi::CStr>,
    ) -> Result<Utf8PathBuf> {
        let at = root.join(name);
        make_dir(&at, 0o755)?;
        mount(kind, at.as_str(), kind, flags, data)
            .map_err(|e| fail(&format!("cannot mount {kind} on {at}"), e))?;
        self.mounted.push(at.clone());
        Ok(at)
    }
}

impl Drop for Mounts {
    fn drop(&mut self) {
        sandbox::kill_stragglers();
        for at in self.mounted.drain(..).rev() {
            // Lazy: a straggler that is still dying must not keep it. The namespace ends with the build anyway.
            let _ = unmount(at.as_str(), UnmountFlags::DETACH | UnmountFlags::NOFOLLOW);
        }
    }
}

fn fill_dev(dev: &Utf8Path) -> Result<()> {
    for (name, major, minor) in NODES {
        let at = dev.join(name);
        let mode = Mode::from_raw_mode(0o666);
        let made = mknodat(
            rustix::fs::CWD,
            at.as_str(),
            FileType::CharacterDevice,
            mode,
            makedev(major, minor),
        )
        // mknod obeys the umask
        .and_then(|()| rustix::fs::chmod(at.as_str(), mode));
        if made.is_err() {
            // A container without CAP_MKNOD: borrow the host's node.
            fs_err::OpenOptions::new()
                .write(true)
                .create(true)
                .truncate(false)
                .open(&at)
                .map_err(|e| fail("cannot make a device node", e))?;
            mount_bind(format!("/dev/{name}"), at.as_str())
                .map_err(|e| fail(&format!("cannot make {at}"), e))?;
        }
    }
    for (name, target) in LINKS {
        symlink(target, dev.join(name)).map_err(|e| fail(&format!("cannot make {}", dev.join(name)), e))?;
    }
    make_dir(&dev.join("shm"), 0o1777)?;
    make_dir(&dev.join("pts"), 0o755)
}

fn make_dir(at: &Utf8Path, mode: u32) -> Result<()> {
    if at.symlink_metadata().is_ok_and(|m| m.is_dir()) {
        return Ok(());
    }
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(at)
        .map_err(|e| fail(&format!("cannot create the directory {at}"), e))
}

fn fail(what: &str, e: impl std::fmt::Display) -> BuildError {
    BuildError::new(Kind::Build, "SBX003", format!("{what}: {e}"))
}
