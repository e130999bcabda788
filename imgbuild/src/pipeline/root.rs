//! The root tree of a build: from packages or a directory, completed, with initramfs and boot loader.

use crate::error::{BuildError, Result};
use crate::grub::{self, GrubImages};
use crate::initramfs;
use crate::progress::Progress;
use crate::recipe::{Loader, Recipe, Rootfs};
use crate::rootfs::dnf::Package;
use crate::rootfs::{dnf, finish, tree};
use camino::{Utf8Path, Utf8PathBuf};
use std::os::unix::fs::DirBuilderExt;

/// A finished root tree.
#[derive(Debug)]
pub(super) struct Root {
    /// Where it is.
    pub(super) dir: Utf8PathBuf,
    /// Whether it is the user's own tree, untouched.
    pub(super) as_given: bool,
    /// Its packages; empty for a tree.
    pub(super) packages: Vec<Package>,
    /// The boot loader; none with `loader = "none"`.
    pub(super) grub: Option<GrubImages>,
}

/// Makes the root of a recipe below `work`.
pub(super) fn make(recipe: &Recipe, work: &Utf8Path, progress: &dyn Progress) -> Result<Root> {
    if let Rootfs::Tree(dir) = &recipe.rootfs
        && !tree::needs_copy(recipe)
    {
        return Ok(Root {
            dir: dir.clone(),
            as_given: true,
            packages: Vec::new(),
            grub: None,
        });
    }
    let dir = work.join("root");
    std::fs::DirBuilder::new()
        .mode(0o755)
        .create(&dir)
        .map_err(|e| BuildError::io(format!("creating {dir}"), &e))?;
    let packages = match &recipe.rootfs {
        Rootfs::Packages { .. } => dnf::install(recipe, &dir, work, progress)?,
        Rootfs::Tree(from) => {
            progress.stage("copy the tree");
            tree::copy(from, &dir)?;
            Vec::new()
        }
    };
    finish::finish(recipe, &dir, work, progress)?;
    let grub = match recipe.boot.loader {
        Loader::None => None,
        Loader::Grub => {
            initramfs::build(recipe, &dir, work, progress)?;
            Some(grub::images(recipe, &dir, work, progress)?)
        }
    };
    Ok(Root {
        dir,
        as_given: false,
        packages,
        grub,
    })
}
