//! The root tree: from packages ([`dnf`]), then completed and cleaned ([`finish`]).

pub mod accounts;
pub mod dnf;
pub mod finish;
pub mod inroot;
pub mod kernel;
pub mod tree;

use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use std::io::Write;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};

/// Class of an I/O error: a full disk is not a bug.
pub(crate) fn kind_of(e: &std::io::Error) -> Kind {
    match e.raw_os_error() {
        Some(28 | 122) => Kind::Space,
        _ => Kind::Build,
    }
}

/// An error about a file in the tree or the working directory.
pub(crate) fn io_error(what: &str, e: &std::io::Error) -> BuildError {
    let kind = kind_of(e);
    let code = if kind == Kind::Space { "IO028" } else { "IO001" };
    BuildError::new(kind, code, format!("{what}: {e}"))
}

/// Writes a file of the throw-away tree (no fsync: the tree is copied into an image later), replacing what was there.
/// A link at `path` is replaced, never followed.
pub(crate) fn write_new(path: &Utf8Path, bytes: &[u8], mode: u32) -> Result<()> {
    let write = || -> std::io::Result<()> {
        if let Some(dir) = path.parent() {
            fs_err::create_dir_all(dir)?;
        }
        match fs_err::remove_file(path) {
            Err(e) if e.kind() != std::io::ErrorKind::NotFound => return Err(e),
            _ => {}
        }
        let mut file = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(path)?;
        file.write_all(bytes)?;
        // open() obeys the umask.
        file.set_permissions(std::fs::Permissions::from_mode(mode))
    };
    write().map_err(|e| io_error(&format!("cannot write {path}"), &e))
}
