//! The agent binary in the image.

use super::super::{inroot, write_new};
use super::{elf, in_root};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::{Loader, Recipe};
use camino::Utf8Path;
use os_proto::layout::Arch;

const PATH: &str = "usr/bin/os-agent";

/// C libraries as distributions name them; `libc.so.6` may be a link to a file with its version.
const LIBC: [&str; 5] = [
    "usr/lib64/libc.so.6",
    "usr/lib/x86_64-linux-gnu/libc.so.6",
    "usr/lib/aarch64-linux-gnu/libc.so.6",
    "lib64/libc.so.6",
    "usr/lib/libc.so.6",
];

/// Installs `[agent] path`, after a look whether it can work there. Without the key, says when the image has no agent.
pub(super) fn install(recipe: &Recipe, root: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    let at = in_root(root, PATH)?;
    let Some(path) = &recipe.agent else {
        if recipe.boot.loader == Loader::Grub && !at.exists() {
            progress.warning(
                "IMG006",
                "the image has no /usr/bin/os-agent: it boots, but cannot be updated, and no node will accept it as an update; set [agent] path",
            );
        }
        return Ok(());
    };
    let bytes = read(path, recipe.arch, Some(root))
        .map_err(|why| BuildError::new(Kind::Input, "CFG012", format!("agent {:?}: {why}", path.as_str())))?;
    write_new(&at, &bytes, 0o755)
}

/// Reads the agent and looks whether it can work in an image whose C library is that of `root`; without `root` that is
/// not known yet.
///
/// # Errors
/// Why it cannot.
pub(super) fn read(
    path: &Utf8Path,
    arch: Arch,
    root: Option<&Utf8Path>,
) -> std::result::Result<Vec<u8>, String> {
    let bytes = fs_err::read(path).map_err(|e| format!("cannot be read: {}", crate::error::reason(&e)))?;
    let program = elf::check_agent(&bytes, arch)?;
    if let Some(root) = root {
        elf::check_glibc(&program, image_glibc(root))?;
    }
    Ok(bytes)
}

/// Version of the image's glibc: the highest version that its C library defines.
fn image_glibc(root: &Utf8Path) -> Option<(u32, u32)> {
    LIBC.iter().find_map(|p| {
        let bytes = fs_err::read(inroot::resolve_all(root, p).ok()?).ok()?;
        elf::highest_glibc(&bytes)
    })
}
