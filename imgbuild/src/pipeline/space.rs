//! Room on the builder's disk.

use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;

/// What a build writes besides the root: PERSIST's journal, boot images, reports.
const OTHER: u64 = 192 << 20;

/// Free bytes for us where `dir` lies; none when the system does not say.
fn free(dir: &Utf8Path) -> Option<u64> {
    let s = rustix::fs::statvfs(dir.as_str()).ok()?;
    Some(s.f_bavail * s.f_frsize)
}

/// Checks that the images of a root with `root_bytes` fit: the update image, the disk and its qcow2.
pub(super) fn check(root_bytes: u64, work: &Utf8Path) -> Result<()> {
    let need = 3 * root_bytes + OTHER;
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
    let says = [
        "No space left on device",
        "more space needed",
        "Disk quota exceeded",
        "File too large",
    ];
    if e.kind != Kind::Space && !says.iter().any(|s| e.message.contains(s)) {
        return e;
    }
    if e.code == "SIZE001" || e.message.contains("are free") {
        return e;
    }
    let left = free(work).map_or_else(String::new, |n| {
        format!(" ({} MiB are free in {})", n >> 20, work.parent().unwrap_or(work))
    });
    BuildError::new(Kind::Space, "IO028", format!("{}{left}", e.message))
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
        assert_eq!(explain(other.clone(), Utf8Path::new("/tmp")), other);
        let size = BuildError::new(Kind::Space, "SIZE001", "x");
        assert_eq!(explain(size.clone(), Utf8Path::new("/tmp")), size);
    }

    #[test]
    fn need_and_have_are_said_before_anything_is_written() {
        let e = check(1 << 50, Utf8Path::new("/tmp")).unwrap_err();
        assert!(e.message.contains("MiB are free"), "{e}");
        check(1, Utf8Path::new("/tmp")).unwrap();
    }
}
