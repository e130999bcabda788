//! Finds every file of an archive again in the file system that was made of it, with its bytes, owner and kind, as read from the
//! medium. The reader is not ours, so an error of our writer shows as well.

use super::tree::{Content, Tree};
use crate::error::{AgentError, Result};
use crate::inspect::{self, Cached};
use crate::ports::{Cancel, Report};
use crate::slots::OpenSlot;
use ext4_view::{Ext4, Ext4Error, FileType};
use os_proto::codes::Code;
use sha2::{Digest, Sha256};
use std::sync::Arc;

/// Bytes per read.
const PIECE: usize = 256 << 10;

/// Compares.
///
/// # Errors
/// `MediumCorrupt` naming the file, `Cancelled`, and the device's.
pub fn check(
    tree: &Tree,
    slot: &OpenSlot,
    size: u64,
    cancel: &Cancel,
    report: &Arc<dyn Report>,
) -> Result<()> {
    report.step("compare", Some(size));
    let name = slot.describe();
    let reader = Cached::new(Arc::clone(slot.device()), size);
    let fs = Ext4::load(Box::new(reader)).map_err(|e| inspect::damaged(name, &e))?;
    let mut done = 0;
    let mut todo = vec![(Vec::new(), 0usize)];
    let mut seen = vec![false; tree.nodes().len()];
    let mut buf = vec![0u8; PIECE];
    while let Some((path, n)) = todo.pop() {
        cancel.check()?;
        let Some(node) = tree.nodes().get(n) else { continue };
        let shown = if path.is_empty() {
            b"/".as_slice()
        } else {
            path.as_slice()
        };
        let differs = |what: &str| {
            AgentError::new(
                Code::MediumCorrupt,
                format!("{name}: {}: {what}", String::from_utf8_lossy(shown)),
            )
        };
        let fail = |e: Ext4Error| match e {
            Ext4Error::Io(_) => inspect::damaged(name, &e),
            e => differs(&e.to_string()),
        };
        let m = fs.symlink_metadata(shown).map_err(fail)?;
        if (m.mode() & 0o7777, m.uid(), m.gid()) != (node.meta.mode, node.meta.uid, node.meta.gid) {
            return Err(differs("mode or owner reads back differently"));
        }
        let want = match &node.content {
            Content::File { .. } => FileType::Regular,
            Content::Dir { .. } => FileType::Directory,
            Content::Symlink(_) => FileType::Symlink,
            Content::Char(..) => FileType::CharacterDevice,
            Content::Block(..) => FileType::BlockDevice,
            Content::Fifo => FileType::Fifo,
        };
        if m.file_type() != want {
            return Err(differs("reads back as something else"));
        }
        let first_time = seen.get_mut(n).is_some_and(|s| !std::mem::replace(s, true));
        match &node.content {
            Content::Dir { children, .. } => {
                for (child, n) in children {
                    let mut p = path.clone();
                    p.push(b'/');
                    p.extend_from_slice(child);
                    todo.push((p, *n));
                }
            }
            Content::Symlink(to) => {
                let found = fs.read_link(shown).map_err(fail)?;
                if AsRef::<[u8]>::as_ref(&found) != to.as_slice() {
                    return Err(differs("the link reads back differently"));
                }
            }
            Content::File { size, sha256, .. } if first_time => {
                let mut sha = Sha256::new();
                let mut file = fs.open(shown).map_err(fail)?;
                loop {
                    cancel.check()?;
                    let n = file.read_bytes(&mut buf).map_err(fail)?;
                    let Some(part) = buf.get(..n).filter(|p| !p.is_empty()) else {
                        break;
                    };
                    sha.update(part);
                }
                let found: [u8; 32] = sha.finalize().into();
                if m.len() != *size || found != *sha256 {
                    return Err(differs("its bytes read back differently"));
                }
                done += size;
                report.done(done);
            }
            _ => {}
        }
    }
    Ok(())
}
