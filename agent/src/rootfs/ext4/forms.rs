//! PURE: how inodes, directories, extents, attributes and the superblock look on the disk.

use super::{
    BLOCK, EXTENT_MAX, FIRST_INODE, Geometry, INLINE_EXTENTS, INODE, INODE_FIELDS, PER_GROUP, Places, Plan,
    ROOT_INODE, XATTR_MAGIC,
};
use crate::rootfs::tree::{Content, Node, Tree, XattrSet};

/// Little-endian fields.
pub(super) struct Fields<'a>(pub(super) &'a mut [u8]);

impl Fields<'_> {
    pub(super) fn bytes(&mut self, at: usize, b: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + b.len()) {
            to.copy_from_slice(b);
        }
    }
    pub(super) fn u8(&mut self, at: usize, v: u8) {
        self.bytes(at, &[v]);
    }
    pub(super) fn u16(&mut self, at: usize, v: u16) {
        self.bytes(at, &v.to_le_bytes());
    }
    pub(super) fn u32(&mut self, at: usize, v: u32) {
        self.bytes(at, &v.to_le_bytes());
    }
}

pub(super) fn set(map: &mut [u8], bit: u32) {
    if let Some(b) = map.get_mut(bit as usize / 8) {
        *b |= 1 << (bit % 8);
    }
}

/// The inode of a node.
pub(super) fn inode_of(node: usize) -> u32 {
    match node {
        0 => ROOT_INODE,
        n => FIRST_INODE - 1 + n as u32,
    }
}

/// The node of an inode; `None` = reserved.
pub(super) fn node_of(inode: u32) -> Option<usize> {
    match inode {
        ROOT_INODE => Some(0),
        n => n
            .checked_sub(FIRST_INODE - 1)
            .filter(|n| *n > 0)
            .map(|n| n as usize),
    }
}

pub(super) fn blocks_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(BLOCK as u64)).unwrap_or(u32::MAX)
}

/// Consecutive blocks as extents: block of the file, length, block of the disk.
pub(super) fn extents(first: u32, blocks: u32) -> Vec<(u32, u16, u32)> {
    (0..blocks)
        .step_by(EXTENT_MAX as usize)
        .map(|at| (at, (blocks - at).min(EXTENT_MAX) as u16, first + at))
        .collect()
}

pub(super) fn extent_header(f: &mut Fields<'_>, at: usize, entries: usize, max: usize, depth: u16) {
    f.u16(at, 0xf30a);
    f.u16(at + 2, entries as u16);
    f.u16(at + 4, max as u16);
    f.u16(at + 6, depth);
}

pub(super) fn extent_list(f: &mut Fields<'_>, at: usize, list: &[(u32, u16, u32)]) {
    for (i, (block, len, disk)) in list.iter().enumerate() {
        let at = at + 12 * (i + 1);
        f.u32(at, *block);
        f.u16(at + 4, *len);
        f.u32(at + 8, *disk);
    }
}

/// A leaf of the extent tree; `None` = one does not suffice (over 40 GiB).
pub(super) fn extent_block(list: &[(u32, u16, u32)]) -> Option<Vec<u8>> {
    const MAX: usize = (BLOCK - 12) / 12;
    let mut b = vec![0u8; BLOCK];
    let mut f = Fields(&mut b);
    extent_header(&mut f, 0, list.len(), MAX, 0);
    extent_list(&mut f, 0, list);
    (list.len() <= MAX).then_some(b)
}

/// Bits of the mode that say what a file is, and the number that directories keep for it.
pub(super) fn kind(content: &Content) -> (u16, u8) {
    match content {
        Content::File { .. } => (0o100_000, 1),
        Content::Dir { .. } => (0o040_000, 2),
        Content::Char(..) => (0o020_000, 3),
        Content::Block(..) => (0o060_000, 4),
        Content::Fifo => (0o010_000, 5),
        Content::Symlink(_) => (0o120_000, 7),
    }
}

/// The blocks of a directory.
pub(super) fn directory<'t>(
    tree: &Tree,
    node: usize,
    parent: usize,
    children: impl Iterator<Item = (&'t Vec<u8>, &'t usize)>,
) -> Vec<u8> {
    let mut out = Vec::new();
    let mut block = Vec::with_capacity(BLOCK);
    let mut last = 0;
    let close = |block: &mut Vec<u8>, last: usize, out: &mut Vec<u8>| {
        // The last entry reaches to the end of its block.
        let rest = (BLOCK - last) as u16;
        Fields(block).u16(last + 4, rest);
        block.resize(BLOCK, 0);
        out.append(block);
    };
    let dot = [(b".".as_slice(), node), (b"..".as_slice(), parent)];
    for (name, n) in dot
        .into_iter()
        .chain(children.map(|(name, n)| (name.as_slice(), *n)))
    {
        let len = (8 + name.len()).next_multiple_of(4);
        if block.len() + len > BLOCK {
            close(&mut block, last, &mut out);
        }
        last = block.len();
        block.resize(last + len, 0);
        let mut f = Fields(&mut block);
        f.u32(last, inode_of(n));
        f.u16(last + 4, len as u16);
        f.u8(last + 6, name.len() as u8);
        f.u8(last + 7, tree.nodes().get(n).map_or(0, |n| kind(&n.content).1));
        f.bytes(last + 8, name);
    }
    close(&mut block, last, &mut out);
    out
}

/// One inode into 256 bytes of zeros.
pub(super) fn inode(node: &Node, at: &Places, tree: &Tree, to: &mut [u8]) {
    let m = &node.meta;
    let mut f = Fields(to);
    let (kind, _) = kind(&node.content);
    let (mut size, mut blocks, mut flags) = (0u64, 0u32, 0u32);
    const EXTENTS: u32 = 0x8_0000;
    match &node.content {
        Content::File { first, size: s, .. } => {
            (size, blocks, flags) = (*s, blocks_of(*s), EXTENTS);
            let list = extents(*first, blocks);
            if at.extents == 0 {
                extent_header(&mut f, 0x28, list.len(), INLINE_EXTENTS, 0);
                extent_list(&mut f, 0x28, &list);
            } else {
                extent_header(&mut f, 0x28, 1, INLINE_EXTENTS, 1);
                f.u32(0x28 + 16, at.extents);
                blocks += 1;
            }
        }
        Content::Dir { .. } => {
            (size, blocks, flags) = (u64::from(at.blocks) * BLOCK as u64, at.blocks, EXTENTS);
            let list = extents(at.first, at.blocks);
            extent_header(&mut f, 0x28, list.len(), INLINE_EXTENTS, 0);
            extent_list(&mut f, 0x28, &list);
        }
        Content::Symlink(target) => {
            size = target.len() as u64;
            if at.blocks == 0 {
                f.bytes(0x28, target);
            } else {
                (blocks, flags) = (1, EXTENTS);
                extent_header(&mut f, 0x28, 1, INLINE_EXTENTS, 0);
                extent_list(&mut f, 0x28, &extents(at.first, 1));
            }
        }
        Content::Char(major, minor) | Content::Block(major, minor) => {
            if *major < 256 && *minor < 256 {
                f.u32(0x28, (major << 8) | minor);
            } else {
                f.u32(0x2c, (minor & 0xff) | (major << 8) | ((minor & !0xff) << 12));
            }
        }
        Content::Fifo => {}
    }
    if at.xattrs != 0 {
        blocks += 1;
    }
    f.u16(0, kind | m.mode);
    f.u16(0x02, m.uid as u16);
    f.u32(0x04, size as u32);
    // Modification, change and access alike; bits 32 and 33 of the time are in the low bits of an extra field.
    let epoch = (((m.mtime - i64::from(m.mtime as i32)) >> 32) & 3) as u32;
    for (time, extra) in [(0x08, 0x8c), (0x0c, 0x84), (0x10, 0x88), (0x90, 0x94)] {
        f.u32(time, m.mtime as u32);
        f.u32(extra, epoch);
    }
    f.u16(0x18, m.gid as u16);
    // A directory with too many others in it counts as 1 (dir_nlink).
    f.u16(0x1a, if node.links > 65_000 { 1 } else { node.links as u16 });
    f.u32(0x1c, blocks.saturating_mul(BLOCK as u32 / 512));
    f.u32(0x20, flags);
    f.u32(0x68, at.xattrs);
    f.u32(0x6c, (size >> 32) as u32);
    f.u16(0x78, (m.uid >> 16) as u16);
    f.u16(0x7a, (m.gid >> 16) as u16);
    f.u16(0x80, (INODE_FIELDS - 128) as u16);
    if at.xattrs == 0
        && let Some(set) = m.xattrs.and_then(|n| tree.xattr_sets().get(n as usize))
        && let Some(bytes) = inline_xattrs(set)
    {
        f.bytes(INODE_FIELDS, &bytes);
    }
}

/// Entries from the front and values from the back of `space` bytes; `base` = where offsets count from. `None` = no room.
pub(super) fn xattr_entries(set: &XattrSet, space: usize, base: usize, hashes: bool) -> Option<Vec<u8>> {
    let mut out = vec![0u8; space];
    let (mut front, mut back) = (0usize, space);
    for (index, name, value) in set {
        let padded = value.len().next_multiple_of(4);
        back = back.checked_sub(padded)?;
        let len = 16 + name.len().next_multiple_of(4);
        // Four zero bytes end the entries.
        if front + len + 4 > back {
            return None;
        }
        let mut f = Fields(&mut out);
        f.u8(front, name.len() as u8);
        f.u8(front + 1, *index);
        f.u16(front + 2, (base + back) as u16);
        f.u32(front + 8, value.len() as u32);
        if hashes {
            f.u32(front + 12, xattr_hash(name, value));
        }
        f.bytes(front + 16, name);
        f.bytes(back, value);
        front += len;
    }
    Some(out)
}

/// A set inside an inode, magic included; `None` = it does not fit.
pub(super) fn inline_xattrs(set: &XattrSet) -> Option<Vec<u8>> {
    let entries = xattr_entries(set, INODE - INODE_FIELDS - 4, 0, false)?;
    Some([XATTR_MAGIC.to_le_bytes().as_slice(), &entries].concat())
}

/// A set in a block of its own.
pub(super) fn xattr_block(set: &XattrSet, users: u32) -> Vec<u8> {
    const HEADER: usize = 32;
    let mut b = vec![0u8; BLOCK];
    let entries = xattr_entries(set, BLOCK - HEADER, HEADER, true).unwrap_or_default();
    let hash = set.iter().fold(0u32, |h, (_, name, value)| {
        h.rotate_left(16) ^ xattr_hash(name, value)
    });
    let mut f = Fields(&mut b);
    f.u32(0, XATTR_MAGIC);
    f.u32(4, users);
    f.u32(8, 1);
    f.u32(12, hash);
    f.bytes(HEADER, &entries);
    b
}

pub(super) fn xattr_hash(name: &[u8], value: &[u8]) -> u32 {
    let h = name.iter().fold(0u32, |h, c| h.rotate_left(5) ^ u32::from(*c));
    value.chunks(4).fold(h, |h, w| {
        let mut word = [0u8; 4];
        for (to, from) in word.iter_mut().zip(w) {
            *to = *from;
        }
        h.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

pub(super) fn superblock(plan: &Plan, g: Geometry, free: (u32, u32), to: &mut [u8]) {
    let mut f = Fields(to);
    f.u32(0x00, g.groups * g.inodes_per_group);
    f.u32(0x04, g.total);
    f.u32(0x0c, free.0);
    f.u32(0x10, free.1);
    f.u32(0x18, 2);
    f.u32(0x1c, 2);
    f.u32(0x20, PER_GROUP);
    f.u32(0x24, PER_GROUP);
    f.u32(0x28, g.inodes_per_group);
    // Never checked because of a count or of time.
    f.u16(0x36, 0xffff);
    f.u16(0x38, 0xef53);
    // Clean; errors remount read-only.
    f.u16(0x3a, 1);
    f.u16(0x3c, 2);
    f.u32(0x4c, 1);
    f.u32(0x54, FIRST_INODE);
    f.u16(0x58, INODE as u16);
    // ext_attr, sparse_super2.
    f.u32(0x5c, 0x8 | 0x200);
    // filetype, extents, flex_bg.
    f.u32(0x60, 0x2 | 0x40 | 0x200);
    // large_file, dir_nlink, extra_isize.
    f.u32(0x64, 0x2 | 0x20 | 0x40);
    f.bytes(0x68, plan.uuid.as_bytes());
    let label = plan.label.as_bytes();
    f.bytes(0x78, label.get(..label.len().min(16)).unwrap_or_default());
    f.bytes(0xec, plan.uuid.as_bytes());
    f.u8(0xfc, 1);
    let extra = (INODE_FIELDS - 128) as u16;
    f.u16(0x15c, extra);
    f.u16(0x15e, extra);
    // Directory hashes are unsigned.
    f.u32(0x160, 2);
    // One flexible group holds everything, so tables may lie anywhere.
    f.u8(0x174, 16);
}
