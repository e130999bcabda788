//! What is looked at before a build begins, besides the recipe itself: the agent, and where the results will lie.

#[cfg(test)]
mod tests;

use crate::error::{BuildError, Kind, Result};
use crate::outputs::Paths;
use crate::recipe::{FileSource, Recipe, Rootfs};
use crate::rootfs::finish;
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
