//! Files of a node's layer of /etc that hide what the image brings.
//!
//! A slot's /etc is an overlay: the image's own directory below, `PERSIST/etc/<slot>` above. What lies above wins for
//! good, also over a file that a later image changed. This lists such files, for `doctor` and for people. The decision
//! ([`compare`]) is PURE; [`running`] reads the two trees.

use crate::error::{AgentError, Result};
use crate::slots::Layout;
use camino::{Utf8Path, Utf8PathBuf};
use os_proto::codes::Code;
use os_proto::layout::persist;
use serde::Serialize;
use sha2::{Digest, Sha256};
use std::collections::BTreeMap;
use std::io::Read;
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileTypeExt, MetadataExt};

/// Entries of one layer that are looked at.
const ENTRIES: usize = 50_000;
/// overlayfs marks a directory that hides everything below it with this (Documentation/filesystems/overlayfs.rst).
const OPAQUE: &str = "trusted.overlay.opaque";

/// What an entry of a layer is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Kind {
    /// A file with this content.
    File([u8; 32]),
    /// A link to this.
    Link(String),
    /// A directory that merges with the one below.
    Dir,
    /// A directory that hides the one below.
    OpaqueDir,
    /// Deleted: hides what is below.
    Removed,
    /// A socket, device or pipe.
    Other,
}

/// An entry of a layer.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Entry {
    /// What it is.
    pub kind: Kind,
    /// Time of its last change, Unix seconds.
    pub mtime: i64,
}

/// A layer: paths below /etc, without it.
pub type Tree = BTreeMap<String, Entry>;

/// How something of the image is hidden.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "kebab-case")]
pub enum How {
    /// Another content wins.
    Replaced,
    /// It was deleted on the node.
    Removed,
    /// A directory of the node shows nothing of the image's.
    Opaque,
}

/// Something of the image that nobody sees.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Hidden {
    /// Path, with /etc.
    pub path: String,
    /// How.
    pub how: How,
    /// The image's is newer than the node's: the node's was made for an older image.
    pub image_newer: bool,
    /// When the node's was last changed, Unix seconds.
    pub node_mtime: i64,
    /// When the image's was last changed, Unix seconds.
    pub image_mtime: i64,
}

/// Compares a node's layer with the image's directory: what differs, in order of paths. Equal content hides nothing.
pub fn compare(node: &Tree, image: &Tree) -> Vec<Hidden> {
    let mut out = Vec::new();
    for (path, above) in node {
        let Some(below) = image.get(path) else { continue };
        let how = match (&above.kind, &below.kind) {
            (Kind::Removed, _) => How::Removed,
            (Kind::OpaqueDir, Kind::Dir | Kind::OpaqueDir) => How::Opaque,
            (Kind::Dir, Kind::Dir | Kind::OpaqueDir) => continue,
            (a, b) if a == b => continue,
            _ => How::Replaced,
        };
        out.push(Hidden {
            path: format!("/etc/{path}"),
            how,
            image_newer: below.mtime > above.mtime,
            node_mtime: above.mtime,
            image_mtime: below.mtime,
        });
    }
    out
}

/// What the running slot's layer hides of its image. Needs root.
///
/// # Errors
/// `NotPermitted` without root; `StateWriteFailed` when PERSIST is not there; why there are no slots.
pub fn running(layout: &Layout) -> Result<Vec<Hidden>> {
    let upper = Utf8Path::new(crate::health::PERSIST).join(persist::etc_upper(layout.running()));
    if !upper.is_dir() {
        return Err(AgentError::new(
            Code::StateWriteFailed,
            format!(
                "{upper} is not there: expected slot {}'s layer of /etc; see status",
                layout.running()
            ),
        ));
    }
    // The image's directory is below the overlay: a copy of the root's mount shows it without anything mounted on it.
    use rustix::mount::{OpenTreeFlags, open_tree};
    let flags = OpenTreeFlags::OPEN_TREE_CLONE | OpenTreeFlags::OPEN_TREE_CLOEXEC;
    let root = open_tree(rustix::fs::CWD, "/", flags).map_err(|e| {
        AgentError::new(
            Code::NotPermitted,
            format!("cannot look below the overlay on /etc (run as root): {e}"),
        )
    })?;
    let image = Utf8PathBuf::from(format!("/proc/self/fd/{}/etc", root.as_raw_fd()));
    let node = read(&upper, |_| true)?;
    let found = read(&image, |path| node.contains_key(path))?;
    Ok(compare(&node, &found))
}

/// Reads a tree; of files that are not `wanted` the content is not looked at.
///
/// # Errors
/// `Internal` naming the directory that cannot be read.
pub fn read(root: &Utf8Path, wanted: impl Fn(&str) -> bool) -> Result<Tree> {
    let mut tree = Tree::new();
    let mut todo = vec![Utf8PathBuf::new()];
    while let Some(dir) = todo.pop() {
        let at = root.join(&dir);
        let list = at
            .read_dir_utf8()
            .map_err(|e| AgentError::new(Code::Internal, format!("{at}: {e}")))?;
        for e in list.flatten() {
            let path = dir.join(e.file_name());
            let Ok(meta) = e.path().symlink_metadata() else {
                continue;
            };
            if meta.is_dir() {
                todo.push(path.clone());
            }
            if !wanted(path.as_str()) {
                continue;
            }
            if tree.len() >= ENTRIES {
                return Ok(tree);
            }
            let kind = kind(e.path(), &meta);
            tree.insert(
                path.into_string(),
                Entry {
                    kind,
                    mtime: meta.mtime(),
                },
            );
        }
    }
    Ok(tree)
}

fn kind(path: &Utf8Path, meta: &std::fs::Metadata) -> Kind {
    let t = meta.file_type();
    if t.is_dir() {
        let mut value = [0u8; 8];
        let opaque = rustix::fs::lgetxattr(path.as_str(), OPAQUE, &mut value)
            .is_ok_and(|n| value.get(..n) == Some(b"y"));
        if opaque { Kind::OpaqueDir } else { Kind::Dir }
    } else if t.is_symlink() {
        Kind::Link(
            path.read_link_utf8()
                .map(Utf8PathBuf::into_string)
                .unwrap_or_default(),
        )
    } else if t.is_char_device() && meta.rdev() == 0 {
        Kind::Removed
    } else if t.is_file() {
        Kind::File(hash(path))
    } else {
        Kind::Other
    }
}

fn hash(path: &Utf8Path) -> [u8; 32] {
    let mut h = Sha256::new();
    let mut buf = [0u8; 16 << 10];
    if let Ok(mut f) = std::fs::File::open(path) {
        while let Ok(n) = f.read(&mut buf) {
            match buf.get(..n) {
                Some(part) if n > 0 => h.update(part),
                _ => break,
            }
        }
    }
    h.finalize().into()
}

#[cfg(test)]
mod tests;
