//! `system.img`: the whole disk, raw and sparse.

use crate::disk::{self, BiosBoot, Content};
use crate::error::Result;
use crate::plan::Plan;
use crate::progress::Progress;
use camino::Utf8Path;
use os_proto::layout::Role;

/// Writes and flushes the disk image.
///
/// # Errors
/// As [`disk::write`].
pub fn write(
    image: &Utf8Path,
    plan: &Plan,
    contents: &[(Role, Content)],
    bios: Option<BiosBoot<'_>>,
    progress: &dyn Progress,
) -> Result<()> {
    disk::write(image, plan, contents, bios, progress)
}
