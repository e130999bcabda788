//! Reads the inode tables of an ext4 image: which are used, and their times. Only what our own images have.

use crate::error::{BuildError, Kind, Result};
use camino::Utf8Path;
use std::fs::File;
use std::os::unix::fs::FileExt;

/// Times and owner of a used inode. Field offsets: Linux, Documentation/filesystems/ext4, "Index Nodes".
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Inode {
    pub(super) number: u32,
    pub(super) uid: u32,
    pub(super) gid: u32,
    pub(super) atime: u32,
    pub(super) ctime: u32,
    pub(super) mtime: u32,
    pub(super) crtime: u32,
    pub(super) atime_extra: u32,
    pub(super) ctime_extra: u32,
    pub(super) mtime_extra: u32,
    pub(super) crtime_extra: u32,
}

/// All used inodes that can hold something of the host: the root directory and everything from 11 on.
pub(super) fn read(image: &Utf8Path) -> Result<Vec<Inode>> {
    let file = fs_err::File::open(image).map_err(|e| BuildError::io(format!("reading {image}"), &e))?;
    read_from(file.file()).map_err(|what| BuildError::new(Kind::Build, "EXT002", format!("{image}: {what}")))
}

fn read_from(file: &File) -> std::result::Result<Vec<Inode>, String> {
    let mut sb = [0u8; 1024];
    file.read_exact_at(&mut sb, 1024)
        .map_err(|e| format!("superblock: {e}"))?;
    if u16_at(&sb, 56) != 0xef53 {
        return Err("no ext4 superblock".to_owned());
    }
    let block = 1024u64 << u32_at(&sb, 24);
    let blocks = u64::from(u32_at(&sb, 4));
    let (per_group, inodes) = (u32_at(&sb, 40), u32_at(&sb, 0));
    let blocks_per_group = u64::from(u32_at(&sb, 32));
    let size = usize::from(u16_at(&sb, 88));
    let incompat_64bit = u32_at(&sb, 96) & 0x80 != 0;
    if incompat_64bit || size < 160 || per_group == 0 || blocks_per_group == 0 || inodes == 0 {
        return Err("not a file system that this program made".to_owned());
    }
    let groups = blocks.div_ceil(blocks_per_group);
    let mut out = Vec::new();
    for group in 0..groups {
        let mut gd = [0u8; 32];
        let at = block + group * 32; // first block is 0 with 4 KiB blocks
        file.read_exact_at(&mut gd, at)
            .map_err(|e| format!("group {group}: {e}"))?;
        let uninit = u16_at(&gd, 18) & 1 != 0;
        if uninit {
            continue;
        }
        let bitmap_at = u64::from(u32_at(&gd, 4)) * block;
        let table_at = u64::from(u32_at(&gd, 8)) * block;
        let mut bitmap = vec![0u8; (per_group as usize).div_ceil(8)];
        file.read_exact_at(&mut bitmap, bitmap_at)
            .map_err(|e| format!("bitmap {group}: {e}"))?;
        for i in 0..per_group {
            if bitmap[(i / 8) as usize] & (1 << (i % 8)) == 0 {
                continue;
            }
            let number = u32::try_from(group).map_err(|e| e.to_string())? * per_group + i + 1;
            if number > inodes || (number < 11 && number != 2) {
                continue;
            }
            let mut raw = vec![0u8; size];
            file.read_exact_at(&mut raw, table_at + u64::from(i) * size as u64)
                .map_err(|e| format!("inode {number}: {e}"))?;
            out.push(inode(number, &raw));
        }
    }
    Ok(out)
}

fn inode(number: u32, raw: &[u8]) -> Inode {
    let high = |low: usize, high: usize| u32::from(u16_at(raw, low)) | (u32::from(u16_at(raw, high)) << 16);
    Inode {
        number,
        uid: high(2, 120),
        gid: high(24, 122),
        atime: u32_at(raw, 8),
        ctime: u32_at(raw, 12),
        mtime: u32_at(raw, 16),
        ctime_extra: u32_at(raw, 132),
        mtime_extra: u32_at(raw, 136),
        atime_extra: u32_at(raw, 140),
        crtime: u32_at(raw, 144),
        crtime_extra: u32_at(raw, 148),
    }
}

fn u16_at(b: &[u8], at: usize) -> u16 {
    u16::from_le_bytes([b[at], b[at + 1]])
}

fn u32_at(b: &[u8], at: usize) -> u32 {
    u32::from_le_bytes([b[at], b[at + 1], b[at + 2], b[at + 3]])
}
