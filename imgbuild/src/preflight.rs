//! What is looked at before a build begins, besides the recipe itself: the agent, and where the results will lie.

#[cfg(test)]
mod tests;

use crate::error::{BuildError, Kind, Result};
use crate::outputs::Paths;
use crate::recipe::{FileEntry, FileSource, Loader, Recipe, Rootfs};
use crate::rootfs::{finish, kernel};
use camino::{Utf8Component, Utf8Path, Utf8PathBuf};
use std::os::unix::fs::MetadataExt;

/// Looks at `[agent] path` as a build will.
///
/// # Errors
/// CFG012 with the place in the recipe.
pub fn agent(recipe: &Recipe) -> Result<()> {
    let key = "agent.path";
    let at = recipe.paths.iter().find(|p| p.key == key);
    let at = at.map_or(recipe.file.as_str(), |p| &p.at);
    let path = recipe.agent.as_deref().unwrap_or(Utf8Path::new(""));
    finish::check_agent(recipe).map_err(|why| {
        BuildError::new(
            Kind::Input,
            "CFG012",
            format!("{at}: {key} {:?}: {why}", path.as_str()),
        )
    })
}

/// Checks what `[[files]]` put where: nothing twice, and nothing that the build itself puts there.
///
/// # Errors
/// CFG010 for each.
pub fn files(recipe: &Recipe) -> Vec<BuildError> {
    let is_dir = |f: &FileEntry| matches!(&f.source, FileSource::Path(p) if p.is_dir());
    let mut made: Vec<(&str, &str)> = Vec::new();
    if recipe.agent.is_some() {
        made.push(("/usr/bin/os-agent", "[agent] path goes there"));
        made.push(("/bin/os-agent", "[agent] path goes there"));
    }
    if recipe.boot.loader == Loader::Grub {
        for name in ["/boot/initramfs.img", "/boot/vmlinuz", "/boot/args.env"] {
            made.push((name, "the build makes this file itself"));
        }
    }
    let mut errors = Vec::new();
    for (i, f) in recipe.files.iter().enumerate() {
        let mut wrong = |why: &str| {
            let m = format!("{}: files[{i}].dst {:?}: {why}", recipe.file, f.dst.as_str());
            errors.push(BuildError::new(Kind::Input, "CFG010", m));
        };
        if let Some((_, why)) = made.iter().find(|(name, _)| f.dst == *name) {
            wrong(&format!("{why}; leave one of the two out"));
        }
        let twin = recipe.files[..i]
            .iter()
            .position(|other| other.dst == f.dst && !(is_dir(other) && is_dir(f)));
        if let Some(first) = twin {
            wrong(&format!(
                "files[{first}] goes there already; leave one of the two out"
            ));
        }
    }
    errors
}

/// Checks that a tree that is to boot has a kernel.
///
/// # Errors
/// IMG001 as the build has it, but as an error of the input.
pub fn kernel(recipe: &Recipe) -> Result<()> {
    let (Rootfs::Tree(tree), Loader::Grub) = (&recipe.rootfs, recipe.boot.loader) else {
        return Ok(());
    };
    kernel::only(tree).map(drop).map_err(|e| {
        let m = format!("{}: rootfs.tree {:?}: {}", recipe.file, tree.as_str(), e.message);
        BuildError::new(Kind::Input, e.code, m)
    })
}

/// Checks that neither results nor working directory lie in a directory that goes into the image: it would hold earlier
/// results and a part of itself.
///
/// # Errors
/// CFG016 with both directories.
pub fn output(recipe: &Recipe, paths: &Paths) -> Result<()> {
    let tree = match &recipe.rootfs {
        Rootfs::Tree(dir) => Some(("rootfs.tree".to_owned(), dir)),
        Rootfs::Packages { .. } => None,
    };
    let sources = recipe
        .files
        .iter()
        .enumerate()
        .filter_map(|(i, f)| match &f.source {
            FileSource::Path(from) => Some((format!("files[{i}].src"), from)),
            FileSource::Text(_) => None,
        });
    for (key, dir) in tree.into_iter().chain(sources) {
        if [&paths.out, &paths.work].into_iter().any(|p| lies_in(p, dir)) {
            let m = format!(
                "the output directory {} lies in {key} {:?}, which goes into the image with all that is in it: results of \
                 earlier builds and the files of this one too; give --out a directory outside of it",
                paths.out,
                dir.as_str(),
            );
            return Err(BuildError::new(Kind::Input, "CFG016", m));
        }
    }
    Ok(())
}

/// Whether a path, which need not exist yet, is `dir` or below it. Directories are compared by what they are, not by name:
/// links and bind mounts give them several.
fn lies_in(path: &Utf8Path, dir: &Utf8Path) -> bool {
    let identity = |p: &Utf8Path| {
        let meta = fs_err::metadata(p).ok().filter(|m| m.is_dir())?;
        Some((meta.dev(), meta.ino()))
    };
    let Some(wanted) = identity(dir) else {
        return false;
    };
    real(path).ancestors().any(|p| identity(p) == Some(wanted))
}

/// An absolute path without links and `..`, as far as it exists.
fn real(path: &Utf8Path) -> Utf8PathBuf {
    let mut out = Utf8PathBuf::from("/");
    for part in path.components() {
        match part {
            Utf8Component::ParentDir => {
                out.pop();
            }
            Utf8Component::Normal(name) => {
                out.push(name);
                if let Ok(found) = out.canonicalize_utf8() {
                    out = found;
                }
            }
            _ => {}
        }
    }
    out
}
