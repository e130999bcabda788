//! Writing files: durable replacement, private files, plain appends.
#![allow(clippy::disallowed_methods)] // the home of rename

use crate::error::{Result, StepsError};
use camino::Utf8Path;
use os_proto::codes::Code;
use std::fs::{File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::{DirBuilderExt, OpenOptionsExt};

/// Permission bits of everything that may hold secrets: steps, bundles, output.
pub const PRIVATE: u32 = 0o600;

fn fail(path: &Utf8Path, e: &std::io::Error) -> StepsError {
    StepsError::new(Code::StateWriteFailed, format!("cannot write {path}: {e}"))
}

/// Replaces `path`: after any crash it holds the old content or the new, whole.
///
/// # Errors
/// `StateWriteFailed`; the old content then still stands.
pub fn replace(path: &Utf8Path, content: &[u8]) -> Result<()> {
    let (Some(dir), Some(name)) = (path.parent(), path.file_name()) else {
        return Err(fail(path, &std::io::Error::other("has no directory")));
    };
    let tmp = dir.join(format!(".{name}.tmp"));
    let written = (|| {
        let _ = std::fs::remove_file(&tmp);
        let mut f = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE)
            .open(&tmp)?;
        f.write_all(content)?;
        f.sync_all()?;
        std::fs::rename(&tmp, path)?;
        File::open(dir)?.sync_all()
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&tmp);
    }
    written.map_err(|e| fail(path, &e))
}

/// Writes a new private file and makes its content (not its name) durable.
///
/// # Errors
/// `StateWriteFailed`.
pub fn create(path: &Utf8Path, content: &[u8]) -> Result<()> {
    (|| {
        let mut f = OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(PRIVATE)
            .open(path)?;
        f.write_all(content)?;
        f.sync_all()
    })()
    .map_err(|e| fail(path, &e))
}

/// Makes the names in `dir` durable.
///
/// # Errors
/// `StateWriteFailed`.
pub fn sync_dir(dir: &Utf8Path) -> Result<()> {
    File::open(dir)
        .and_then(|d| d.sync_all())
        .map_err(|e| fail(dir, &e))
}

/// Renames `from` to `to` within one directory, durably.
///
/// # Errors
/// `StateWriteFailed`.
pub fn rename(from: &Utf8Path, to: &Utf8Path) -> Result<()> {
    std::fs::rename(from, to).map_err(|e| fail(to, &e))?;
    to.parent().map_or(Ok(()), sync_dir)
}

/// Makes a directory that only its owner may enter, and those above it.
///
/// # Errors
/// `StateWriteFailed`.
pub fn private_dir(path: &Utf8Path) -> Result<()> {
    std::fs::DirBuilder::new()
        .recursive(true)
        .mode(0o700)
        .create(path)
        .map_err(|e| fail(path, &e))
}

/// Opens a private file for appending.
///
/// # Errors
/// `StateWriteFailed`.
pub fn append(path: &Utf8Path) -> Result<File> {
    OpenOptions::new()
        .append(true)
        .create(true)
        .mode(PRIVATE)
        .open(path)
        .map_err(|e| fail(path, &e))
}

/// Removes a file; its absence is fine.
///
/// # Errors
/// `StateWriteFailed`.
pub fn remove(path: &Utf8Path) -> Result<()> {
    match std::fs::remove_file(path) {
        Err(e) if e.kind() != std::io::ErrorKind::NotFound => Err(fail(path, &e)),
        _ => Ok(()),
    }
}
