//! `update.img`: what nodes download. The root file system itself, as it will lie in a slot.

use crate::error::{BuildError, Result};
use camino::Utf8Path;

/// Turns the finished root image into the update image: same bytes, new name.
///
/// # Errors
/// IO001 when it cannot be renamed.
#[allow(clippy::disallowed_methods)] // inside the working directory; published later
pub fn take(root_image: &Utf8Path, image: &Utf8Path) -> Result<()> {
    crate::files::sync(root_image)?;
    fs_err::rename(root_image, image).map_err(|e| BuildError::io(format!("naming {image}"), &e))
}
