//! Room on the builder's disk.

use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;

/// Reports, bitmaps, and what holes lose to whole clusters in the disk images.
const OTHER: u64 = 24 << 20;
/// PERSIST's journal (`mke2fs -J size=32`), which is written out.
const JOURNAL: u64 = 32 << 20;

/// Free bytes for us where `dir` lies; none when the system does not say.
fn free(dir: &Utf8Path) -> Option<u64> {
    let s = rustix::fs::statvfs(dir.as_str()).ok()?;
    Some(s.f_bavail * s.f_frsize)
}

/// A disk with less than this is full: programs then fail in words that nobody can foresee.
const FULL: u64 = 1 << 20;

/// What a build is going to write.
#[derive(Debug, Clone, Copy)]
pub(super) struct Amounts {
    /// Bytes of the root file system that are not holes.
    pub(super) root: u64,
    /// Bytes of the boot loader.
    pub(super) boot: u64,
    /// Size of PERSIST.
    pub(super) persist: u64,
}

impl Amounts {
    /// Bytes on disk. Root and boot loader are written three times: as partitions, in the disk and in its qcow2. Of
    /// PERSIST only the partition takes room: its tables (an inode of 256 bytes for each 16 KiB, and the rest of the
    /// metadata) are zeros, which the disk images leave out.
    fn need(self) -> u64 {
        3 * (self.root + self.boot) + JOURNAL + self.persist / 64 + self.persist / 4096 + OTHER
    }
}

/// Checks that the images fit, before the first one is written.
pub(super) fn check(amounts: Amounts, work: &Utf8Path) -> Result<()> {
    let need = amounts.need();
    match free(work) {
        Some(have) if have < need => Err(BuildError::new(
            Kind::Space,
            "IO028",
            format!(
                "{}: the images need up to {} MiB there, {} MiB are free",
                work.parent().unwrap_or(work),
                need.div_ceil(1 << 20),
                have >> 20
            ),
        )),
        _ => Ok(()),
    }
}

/// Programs report a full disk in their own words and with their own status: gives it our code and says how much is left.
pub(super) fn explain(e: BuildError, work: &Utf8Path) -> BuildError {
    // root may write into the part that is kept for it.
    let writable = rustix::fs::statvfs(work.as_str()).ok().map(|s| {
        let blocks = if rustix::process::geteuid().is_root() {
            s.f_bfree
        } else {
            s.f_bavail
        };
        blocks * s.f_frsize
    });
    explained(e, work, writable)
}

fn explained(e: BuildError, work: &Utf8Path, writable: Option<u64>) -> BuildError {
    let says = [
        "No space left on device",
        "Failed writing received data to disk",
        "more space on the",
        "more space needed",
        "Disk quota exceeded",
        "File too large",
    ];
    let full = e.kind == Kind::Build && writable.is_some_and(|n| n < FULL);
    if e.kind != Kind::Space && !full && !says.iter().any(|s| e.message.contains(s)) {
        return e;
    }
    if e.code == "SIZE001" || e.message.contains("are free") {
        return e;
    }
    let left = writable.map_or_else(String::new, |n| {
        format!(" ({} MiB are free in {})", n >> 20, work.parent().unwrap_or(work))
    });
    let text = if full {
        format!("the disk of the output directory is full{left}: {}", e.message)
    } else {
        format!("{}{left}", e.message)
    };
    BuildError::new(Kind::Space, "IO028", text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_program_that_hit_a_full_disk_gets_our_code() {
        let e = BuildError::new(
            Kind::Build,
            "CMD001",
            "qemu-img: exit 1\n  write: No space left on device",
        );
        let e = explain(e, Utf8Path::new("/tmp"));
        assert_eq!((e.kind, e.code), (Kind::Space, "IO028"));
        assert!(e.message.contains("MiB are free in /"), "{e}");
        let other = BuildError::new(Kind::Build, "CMD001", "x");
        let at = |e: &BuildError, free| explained(e.clone(), Utf8Path::new("/disk/.1.imgbuild"), free);
        assert_eq!(at(&other, Some(1 << 30)), other);
        assert_eq!(at(&other, None), other);
        let e = at(&other, Some(4096));
        assert_eq!(
            (e.kind, e.code),
            (Kind::Space, "IO028"),
            "in words that nobody foresaw"
        );
        assert_eq!(
            e.message,
            "the disk of the output directory is full (0 MiB are free in /disk): x"
        );
        let input = BuildError::new(Kind::Input, "CFG010", "x");
        assert_eq!(at(&input, Some(0)), input);
        let size = BuildError::new(Kind::Space, "SIZE001", "x");
        assert_eq!(explain(size.clone(), Utf8Path::new("/tmp")), size);
    }

    #[test]
    fn need_and_have_are_said_before_anything_is_written() {
        let amounts = |root| Amounts {
            root,
            boot: 0,
            persist: 256 << 20,
        };
        let e = check(amounts(1 << 50), Utf8Path::new("/tmp")).unwrap_err();
        assert!(e.message.contains("MiB are free"), "{e}");
        check(amounts(1), Utf8Path::new("/tmp")).unwrap();
    }

    /// Measured: the results of a tree of 34 MiB took 104 MiB; beside them `mke2fs` wrote 36 MiB for a PERSIST of 256 MiB
    /// and 357 MiB for one of 20 GiB, less on file systems where it can punch holes.
    #[test]
    fn the_need_follows_what_is_written() {
        let need = |root_mib: u64, persist_mib: u64| {
            let amounts = Amounts {
                root: root_mib << 20,
                boot: 2 << 20,
                persist: persist_mib << 20,
            };
            amounts.need() >> 20
        };
        assert_eq!(need(35, 256), 171);
        assert_eq!(need(1, 20 << 10), 390);
    }
}
