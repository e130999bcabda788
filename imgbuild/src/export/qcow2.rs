//! `system.qcow2`: the disk for QEMU and clouds, by `qemu-img`.

use crate::cmd::Cmd;
use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;

/// Converts a raw image and checks the result. In order (no `-W`), so that the same input gives the same bytes.
///
/// # Errors
/// DEP001 without qemu-img, IO028 for a full disk, QCW001 when the result has errors.
pub fn write(raw: &Utf8Path, image: &Utf8Path) -> Result<()> {
    Cmd::new("qemu-img")
        .args([
            "convert",
            "-f",
            "raw",
            "-O",
            "qcow2",
            "-o",
            "compat=1.1,cluster_size=65536",
        ])
        .arg(raw)
        .arg(image)
        .run()?;
    let (status, out) = Cmd::new("qemu-img")
        .args(["check", "-q", "-f", "qcow2"])
        .arg(image)
        .status()?;
    if !status.success() {
        let tail = crate::cmd::quote_tail(&out.stderr_tail, &out.stdout, 10);
        return Err(BuildError::new(
            Kind::Build,
            "QCW001",
            format!("{image}: qemu-img check finds errors{tail}"),
        ));
    }
    crate::files::sync(image)
}
