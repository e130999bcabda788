//! How much room a tree needs in ext4, before anything is written.

use super::ext4::{BLOCK, INODE};
use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use std::collections::{BTreeMap, BTreeSet};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};

/// Depth down to which directories are told apart in messages.
const DEPTH: usize = 3;

/// What a tree consists of.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Usage {
    /// Files, directories, links and nodes; a hard-linked file counts once.
    pub inodes: u64,
    /// Blocks of [`BLOCK`] bytes that hold data, directories and long links.
    pub blocks: u64,
    /// Bytes below each directory of at most three levels, not counting what is in a deeper listed one.
    dirs: BTreeMap<PathBuf, u64>,
}

/// Measures a tree. Mounts below it are not entered.
///
/// # Errors
/// IO001 for a directory that cannot be read.
pub fn measure(root: &Utf8Path) -> Result<Usage> {
    let mut usage = Usage::default();
    let mut seen = BTreeSet::new();
    let top = fs_err::symlink_metadata(root).map_err(|e| BuildError::io(format!("reading {root}"), &e))?;
    let mut todo = vec![(root.as_std_path().to_owned(), PathBuf::from("/"), 0)];
    usage.inodes = 1;
    while let Some((dir, shown, depth)) = todo.pop() {
        let mut entry_bytes = 24u64;
        let entries =
            fs_err::read_dir(&dir).map_err(|e| BuildError::io(format!("reading {}", dir.display()), &e))?;
        for entry in entries {
            let entry = entry.map_err(|e| BuildError::io(format!("reading {}", dir.display()), &e))?;
            let path = entry.path();
            let meta = fs_err::symlink_metadata(&path)
                .map_err(|e| BuildError::io(format!("reading {}", path.display()), &e))?;
            entry_bytes += (8 + entry.file_name().as_bytes().len() as u64).next_multiple_of(4);
            if meta.dev() == top.dev() && meta.is_dir() {
                let name = if depth < DEPTH {
                    shown.join(entry.file_name())
                } else {
                    shown.clone()
                };
                todo.push((path, name, depth + 1));
                usage.inodes += 1;
                continue;
            }
            if meta.nlink() > 1 && !seen.insert(meta.ino()) {
                continue;
            }
            usage.inodes += 1;
            let blocks = blocks_of(&meta);
            usage.blocks += blocks;
            *usage.dirs.entry(shown.clone()).or_default() += blocks * BLOCK;
        }
        usage.blocks += entry_bytes.div_ceil(BLOCK - 12 - 200);
    }
    Ok(usage)
}

fn blocks_of(meta: &std::fs::Metadata) -> u64 {
    if meta.is_file() {
        // A sparse file takes what it has, never more than its length.
        meta.len()
            .div_ceil(BLOCK)
            .min((meta.blocks() * 512).div_ceil(BLOCK))
    } else if meta.is_symlink() && meta.len() >= 60 {
        1
    } else {
        0
    }
}

impl Usage {
    /// Bytes of the smallest file system of ours that holds the tree with this many inodes.
    pub fn need(&self, inodes: u64) -> u64 {
        let tables = (inodes * INODE).div_ceil(BLOCK);
        let data = self.blocks + tables + 16;
        // Two bitmaps, and a superblock with descriptors in some groups, for each 128 MiB; extent blocks of large files.
        let groups = data.div_ceil(32_768 - 8) + 1;
        (data + groups * 8 + self.blocks / 500) * BLOCK
    }

    /// How many inodes a read-only file system for the tree gets: some spare ones for people who look into an image.
    pub fn inodes_with_spare(&self) -> u64 {
        (self.inodes + self.inodes / 20 + 512).next_multiple_of(64)
    }

    /// The five largest directories, largest first, as `/usr/lib/firmware 611 MiB, …`.
    pub fn largest(&self) -> String {
        let mut all: Vec<(&Path, u64)> = self.dirs.iter().map(|(p, n)| (p.as_path(), *n)).collect();
        all.sort_by(|a, b| b.1.cmp(&a.1).then(a.0.cmp(b.0)));
        let lines: Vec<String> = all
            .iter()
            .take(5)
            .filter(|(_, n)| *n > 0)
            .map(|(p, n)| format!("{} {} MiB", p.display(), n.div_ceil(1 << 20)))
            .collect();
        lines.join(", ")
    }

    /// Checks that the tree fits into a slot, and returns how full the slot will be in percent.
    ///
    /// # Errors
    /// SIZE001 with need, have and the largest directories.
    pub fn check(&self, slot_bytes: u64) -> Result<u64> {
        let need = self.need(self.inodes_with_spare());
        if need > slot_bytes {
            return Err(BuildError::new(
                Kind::Space,
                "SIZE001",
                format!(
                    "root tree needs {} MiB, partition is {} MiB; largest: {}; raise disk.slot_mib or install less",
                    need.div_ceil(1 << 20),
                    slot_bytes >> 20,
                    self.largest()
                ),
            ));
        }
        Ok(need * 100 / slot_bytes)
    }
}

#[cfg(test)]
mod tests {
    #![allow(clippy::disallowed_methods)]
    use super::*;

    #[test]
    fn counts_what_ext4_will_hold() {
        let dir = tempfile::tempdir().unwrap();
        let root = Utf8Path::from_path(dir.path()).unwrap();
        std::fs::create_dir_all(root.join("usr/lib/firmware/deep/er")).unwrap();
        std::fs::write(root.join("usr/lib/firmware/deep/er/a"), vec![1; 3 << 20]).unwrap();
        std::fs::hard_link(
            root.join("usr/lib/firmware/deep/er/a"),
            root.join("usr/lib/firmware/deep/b"),
        )
        .unwrap();
        std::fs::write(root.join("usr/c"), vec![1; 1 << 20]).unwrap();
        std::os::unix::fs::symlink("x".repeat(60), root.join("l")).unwrap();
        std::fs::File::create(root.join("sparse"))
            .unwrap()
            .set_len(1 << 30)
            .unwrap();
        let u = measure(root).unwrap();
        assert_eq!(u.inodes, 10);
        assert_eq!(u.blocks, 6 + 1024 + 1);
        assert_eq!(u.check(64 << 20).unwrap(), 6);
        let e = u.check(4 << 20).unwrap_err();
        assert!(
            e.message.contains("root tree needs 5 MiB, partition is 4 MiB; "),
            "{e}"
        );
        assert!(
            e.message.contains("largest: /usr/lib/firmware 3 MiB, /usr 1 MiB"),
            "{e}"
        );
    }
}
