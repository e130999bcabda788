//! The one durable write: temporary file in the same directory, fsync, rename, fsync of the directory.
#![allow(clippy::disallowed_methods)] // the home of rename

use crate::error::{AgentError, Result};
use camino::Utf8Path;
use os_proto::codes::Code;
use std::fs::File;
use std::io::Write;
use std::os::unix::fs::OpenOptionsExt;

pub mod document;

/// Replaces `path` by `content` with permission bits `mode`: after any crash it holds the old content or the new, whole.
///
/// # Errors
/// `StateWriteFailed`; the old content then still stands.
pub fn replace(path: &Utf8Path, content: &[u8], mode: u32) -> Result<()> {
    replace_with(path, content, mode, &|_| Ok(()))
}

/// `dress` completes the temporary file before it takes the old one's place.
fn replace_with(
    path: &Utf8Path,
    content: &[u8],
    mode: u32,
    dress: &dyn Fn(&File) -> std::io::Result<()>,
) -> Result<()> {
    let fail =
        |e: std::io::Error| AgentError::new(Code::StateWriteFailed, format!("cannot write {path}: {e}"));
    let dir = path
        .parent()
        .ok_or_else(|| fail(std::io::Error::other("has no directory")))?;
    let name = path
        .file_name()
        .ok_or_else(|| fail(std::io::Error::other("has no file name")))?;
    // One fixed name: a leftover of a crash is replaced by the next write instead of piling up.
    let tmp = dir.join(format!(".{name}.tmp"));
    let written = (|| {
        let _ = std::fs::remove_file(&tmp);
        let mut f = std::fs::OpenOptions::new()
            .write(true)
            .create_new(true)
            .mode(mode)
            .open(&tmp)?;
        f.write_all(content)?;
        dress(&f)?;
        f.sync_all()?;
        std::fs::rename(&tmp, path)?;
        sync_dir(dir)
    })();
    if written.is_err() {
        let _ = std::fs::remove_file(&tmp);
    }
    written.map_err(fail)
}

/// As [`replace`], with owner, permission bits and extended attributes (SELinux labels) of the file that stands there; `mode`
/// is for a file that does not exist yet.
///
/// # Errors
/// `StateWriteFailed`; the old content then still stands.
pub fn replace_like(path: &Utf8Path, content: &[u8], mode: u32) -> Result<()> {
    use std::os::unix::fs::MetadataExt;
    let Ok(meta) = std::fs::metadata(path) else {
        return replace(path, content, mode);
    };
    let old = File::open(path).ok();
    replace_with(path, content, meta.mode() & 0o7777, &|new| {
        std::os::unix::fs::fchown(new, Some(meta.uid()), Some(meta.gid()))?;
        // Ownership clears the set-id bits.
        new.set_permissions(meta.permissions())?;
        if let Some(old) = &old {
            copy_xattrs(old, new);
        }
        Ok(())
    })
}

/// Copies extended attributes as far as both files take them.
fn copy_xattrs(from: &File, to: &File) {
    let mut names = vec![0u8; 4096];
    let Ok(n) = rustix::fs::flistxattr(from, &mut names) else {
        return;
    };
    for name in names
        .get(..n)
        .unwrap_or_default()
        .split(|b| *b == 0)
        .filter(|n| !n.is_empty())
    {
        let mut value = vec![0u8; 4096];
        if let Ok(n) = rustix::fs::fgetxattr(from, name, &mut value) {
            let value = value.get(..n).unwrap_or_default();
            let _ = rustix::fs::fsetxattr(to, name, value, rustix::fs::XattrFlags::empty());
        }
    }
}

/// Removes `path`, durably; its absence is fine.
///
/// # Errors
/// `StateWriteFailed`.
pub fn remove(path: &Utf8Path) -> Result<()> {
    let fail =
        |e: std::io::Error| AgentError::new(Code::StateWriteFailed, format!("cannot remove {path}: {e}"));
    match std::fs::remove_file(path) {
        Ok(()) => sync_dir(path.parent().unwrap_or(Utf8Path::new("."))).map_err(fail),
        Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(()),
        Err(e) => Err(fail(e)),
    }
}

fn sync_dir(dir: &Utf8Path) -> std::io::Result<()> {
    let dir = if dir.as_str().is_empty() {
        Utf8Path::new(".")
    } else {
        dir
    };
    File::open(dir)?.sync_all()
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    #[test]
    fn content_and_mode_are_replaced_and_nothing_is_left_behind() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("state.json");
        std::fs::write(path.with_file_name(".state.json.tmp"), "leftover").unwrap();
        replace(&path, b"one", 0o600).unwrap();
        replace(&path, b"two", 0o600).unwrap();
        assert_eq!(std::fs::read(&path).unwrap(), b"two");
        assert_eq!(
            std::fs::metadata(&path).unwrap().permissions().mode() & 0o777,
            0o600
        );
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 1);
        remove(&path).unwrap();
        remove(&path).unwrap();
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
    }

    #[test]
    fn a_failure_keeps_the_old_content_and_names_the_file() {
        let dir = tempfile::tempdir().unwrap();
        let path = Utf8Path::from_path(dir.path()).unwrap().join("gone/state.json");
        let e = replace(&path, b"x", 0o600).unwrap_err();
        assert_eq!(e.code, Code::StateWriteFailed);
        assert!(e.message.contains("gone/state.json"), "{e}");
    }
}
