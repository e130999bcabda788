//! A root file system archive becomes an ext4 file system, block by block, in one pass: no mkfs, no mount, no root rights.
//!
//! Because nothing is mounted and no path is ever opened on this node, nothing in an archive can lead out of it: a symbolic
//! link is a member like any other, and a member below one is refused. Owners are numbers, extended attributes (capabilities,
//! SELinux labels) are kept. Two runs of the same archive yield the same bytes, so what a first attempt wrote is not written
//! again.

pub mod check;
pub mod ext4;
pub mod tar;
pub mod tree;

use crate::error::{AgentError, Result};
use os_proto::codes::Code;
use os_proto::layout::root;
use sha2::{Digest, Sha256};
use std::io::{self, Read};
use tar::{Kind, Tar};
use tree::{Content, Meta, Tree};

/// Bytes per read.
const PIECE: usize = 64 << 10;

/// Takes the image's bytes in order, beginning behind the front.
pub trait Out {
    /// The next bytes.
    ///
    /// # Errors
    /// `SlotTooSmall`, or that nobody takes them any more.
    fn push(&mut self, data: &[u8]) -> Result<()>;
}

/// What a build leaves: the front, which makes the file system mountable and belongs before everything pushed, and the tree.
pub struct Built {
    /// Bytes of the image from its first on.
    pub front: Vec<u8>,
    /// Size of the image in bytes.
    pub size: u64,
    /// What must be found in it.
    pub tree: Tree,
}

/// Builds from an archive.
///
/// # Errors
/// `PayloadCorrupt`, `NotBootable`, `UnsupportedFormat`, and those of `out` and of the archive's source.
pub fn build(archive: impl Read, name: &str, plan: ext4::Plan, out: &mut dyn Out) -> Result<Built> {
    let mut tar = Tar::new(archive);
    let mut tree = Tree::new();
    let mut writer = ext4::Writer::new(plan, out);
    let io = |e: io::Error| from_io(name, &e);
    let bad = |what: String| AgentError::new(Code::PayloadCorrupt, format!("{name}: {what}"));
    while let Some(entry) = tar.next_entry().map_err(io)? {
        let meta = Meta {
            mode: entry.mode,
            uid: entry.uid,
            gid: entry.gid,
            mtime: entry.mtime,
            xattrs: tree
                .intern(&entry.xattrs)
                .map_err(|e| bad(format!("{}: {e}", entry.shown())))?,
        };
        let content = match &entry.kind {
            Kind::Hardlink(to) => {
                tree.link(&entry.path, to).map_err(bad)?;
                continue;
            }
            Kind::Dir => {
                tree.dir(&entry.path, meta).map_err(bad)?;
                continue;
            }
            Kind::File => {
                let first = writer.next_block();
                let mut sha = Sha256::new();
                let mut buf = vec![0; PIECE];
                let mut size = 0u64;
                loop {
                    let n = tar.read(&mut buf).map_err(io)?;
                    let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else {
                        break;
                    };
                    sha.update(part);
                    writer.data(part)?;
                    size += n as u64;
                }
                writer.end_of_data()?;
                Content::File {
                    first,
                    size,
                    sha256: sha.finalize().into(),
                }
            }
            Kind::Symlink(to) if to.len() < ext4::BLOCK => Content::Symlink(to.clone()),
            Kind::Symlink(_) => return Err(bad(format!("{}: a link of over 4 KiB", entry.shown()))),
            Kind::Char(a, b) => Content::Char(*a, *b),
            Kind::Block(a, b) => Content::Block(*a, *b),
            Kind::Fifo => Content::Fifo,
        };
        tree.add(&entry.path, meta, content).map_err(bad)?;
    }
    for (path, what) in [(root::KERNEL, "kernel"), (root::INITRAMFS, "initramfs")] {
        if !tree.has_file(path) {
            return Err(AgentError::new(
                Code::NotBootable,
                format!("{name}: {what} {path} is missing in the archive; the slot could not boot"),
            ));
        }
    }
    // Only padding follows; it belongs to the file's checksum.
    io::copy(&mut tar.into_inner(), &mut io::sink()).map_err(io)?;
    let (front, size) = writer.finish(&tree)?;
    Ok(Built { front, size, tree })
}

fn from_io(name: &str, e: &io::Error) -> AgentError {
    if let Some(own) = e.get_ref().and_then(|i| i.downcast_ref::<AgentError>()) {
        return own.clone();
    }
    AgentError::new(Code::PayloadCorrupt, format!("{name}: {e}"))
}

#[cfg(test)]
mod tests;
