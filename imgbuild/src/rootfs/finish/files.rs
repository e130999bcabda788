//! `[[files]]`: files and directories from beside the recipe, and literal text.

use super::super::{inroot, io_error, write_new};
use super::{bad_owner, give, owner};
use crate::error::{BuildError, Kind, Result};
use crate::progress::Progress;
use crate::recipe::{FileSource, Recipe};
use camino::{Utf8Path, Utf8PathBuf};
use std::os::unix::fs::PermissionsExt;

/// Puts them into the tree in their order.
pub(super) fn apply(recipe: &Recipe, root: &Utf8Path) -> Result<()> {
    for (i, entry) in recipe.files.iter().enumerate() {
        let key = format!("files[{i}]");
        let (uid, gid) = owner(root, &entry.owner).map_err(|why| bad_owner(&format!("{key}.owner"), &why))?;
        let put = Put {
            uid,
            gid,
            mode: entry.mode,
        };
        match &entry.source {
            FileSource::Text(text) => {
                let at = target(root, &entry.dst, false, &key)?;
                put.file(&at, text.as_bytes(), 0o644)?;
            }
            FileSource::Path(from) if from.is_dir() => {
                let at = target(root, &entry.dst, true, &key)?;
                put.directory(from, &at)?;
            }
            FileSource::Path(from) => {
                let at = target(root, &entry.dst, false, &key)?;
                put.copy(from, &at)?;
            }
        }
    }
    Ok(())
}

/// Says which of them cleaning took out again: what lies where a node starts with nothing does not come into an image.
pub(super) fn lost(recipe: &Recipe, root: &Utf8Path, progress: &dyn Progress) -> Result<()> {
    for (i, entry) in recipe.files.iter().enumerate() {
        let at = inroot::resolve(root, &entry.dst).map_err(|e| io_error(entry.dst.as_str(), &e))?;
        if at.symlink_metadata().is_err() {
            let m = format!(
                "files[{i}].dst {:?}: an image never holds this, it was taken out again (what lies in /tmp, /run, /var/log and \
                 the like, and what each machine has of its own)",
                entry.dst.as_str()
            );
            progress.warning("IMG011", &m);
        }
    }
    Ok(())
}

/// Where it goes. A directory may go onto a directory (also through a link), a file onto a file.
fn target(root: &Utf8Path, dst: &Utf8Path, directory: bool, key: &str) -> Result<Utf8PathBuf> {
    let through = inroot::resolve_all(root, dst).map_err(|e| io_error(dst.as_str(), &e))?;
    let wrong = |what: &str| {
        Err(BuildError::new(
            Kind::Input,
            "CFG010",
            format!("{key}.dst {:?}: {what}", dst.as_str()),
        ))
    };
    match (directory, through.is_dir(), through.exists()) {
        (true, false, true) => wrong("is a file in the image, the source is a directory"),
        (true, ..) => Ok(through),
        (false, true, _) => wrong("is a directory in the image; name the file in it"),
        (false, ..) => inroot::resolve(root, dst).map_err(|e| io_error(dst.as_str(), &e)),
    }
}

struct Put {
    uid: u32,
    gid: u32,
    mode: Option<u32>,
}

impl Put {
    fn file(&self, at: &Utf8Path, bytes: &[u8], default: u32) -> Result<()> {
        let mode = self.mode.unwrap_or(default);
        write_new(at, bytes, mode)?;
        give(at, self.uid, self.gid)?;
        // A change of owner takes setuid away.
        fs_err::set_permissions(at, PermissionsExt::from_mode(mode))
            .map_err(|e| io_error("cannot set a mode", &e))
    }

    fn copy(&self, from: &Utf8Path, at: &Utf8Path) -> Result<()> {
        let read = || -> std::io::Result<(Vec<u8>, bool)> {
            let executable = fs_err::metadata(from)?.permissions().mode() & 0o111 != 0;
            Ok((fs_err::read(from)?, executable))
        };
        let (bytes, executable) = read().map_err(|e| io_error("cannot read a file of the recipe", &e))?;
        self.file(at, &bytes, if executable { 0o755 } else { 0o644 })
    }

    fn directory(&self, from: &Utf8Path, at: &Utf8Path) -> Result<()> {
        if !at.is_dir() {
            fs_err::create_dir_all(at).map_err(|e| io_error("cannot make a directory", &e))?;
            fs_err::set_permissions(at, PermissionsExt::from_mode(0o755))
                .map_err(|e| io_error("cannot make a directory", &e))?;
            give(at, self.uid, self.gid)?;
        }
        let mut entries: Vec<Utf8PathBuf> = from
            .read_dir_utf8()
            .and_then(|d| d.map(|e| e.map(|e| e.into_path())).collect())
            .map_err(|e| io_error(&format!("cannot read {from}"), &e))?;
        entries.sort();
        for entry in entries {
            let to = at.join(entry.file_name().unwrap_or_default());
            let kind = fs_err::symlink_metadata(&entry).map_err(|e| io_error("cannot read a file", &e))?;
            if kind.is_dir() {
                self.directory(&entry, &to)?;
            } else if kind.is_symlink() {
                self.link(&entry, &to)
                    .map_err(|e| io_error("cannot copy a link", &e))?;
            } else if kind.is_file() {
                self.copy(&entry, &to)?;
            } else {
                return Err(BuildError::new(
                    Kind::Input,
                    "CFG010",
                    format!("{entry}: expected a file, directory or link"),
                ));
            }
        }
        Ok(())
    }

    fn link(&self, from: &Utf8Path, to: &Utf8Path) -> std::io::Result<()> {
        let target = fs_err::read_link(from)?;
        match fs_err::remove_file(to) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        std::os::unix::fs::symlink(target, to)
    }
}
