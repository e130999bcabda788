//! Writes a tree as ext4 (kernel documentation, "ext4 data structures"), front to back: superblock and group descriptors, file
//! data in the order of the archive, directories, then bitmaps and inode tables. The file system ends where its content ends.
//!
//! It is only ever mounted read-only, so it has no journal, no reserved blocks, no spare inodes and no copies of the superblock
//! (`sparse_super2` without any): what guards it is the slot's hash. Nothing in it depends on time or chance.

use super::Out;
use super::tree::{Content, Node, Tree, XattrSet};
use crate::error::{AgentError, Result};
use os_proto::codes::Code;
use std::collections::HashMap;
use uuid::Uuid;

/// Bytes of a block.
pub const BLOCK: usize = 4096;
/// Blocks, and at most inodes, of a group: as many as a bitmap of one block has bits.
const PER_GROUP: u32 = 8 * BLOCK as u32;
const DESCRIPTOR: usize = 32;
const INODE: usize = 256;
const INODES_PER_BLOCK: u32 = (BLOCK / INODE) as u32;
/// Bytes of an inode's fields; attributes follow.
const INODE_FIELDS: usize = 160;
/// First inode that is not reserved: `lost+found`.
const FIRST_INODE: u32 = 11;
const ROOT_INODE: u32 = 2;
/// Blocks of one extent.
const EXTENT_MAX: u32 = 32768;
/// Extents inside an inode.
const INLINE_EXTENTS: usize = 4;
/// Longest target of a symbolic link inside an inode, plus one.
const FAST_SYMLINK: usize = 60;
/// Users of one block of attributes.
const XATTR_USERS: u32 = 1024;
const XATTR_MAGIC: u32 = 0xea02_0000;

/// What is decided before the first byte.
#[derive(Debug, Clone)]
pub struct Plan {
    /// Bytes of the slot.
    pub slot_size: u64,
    /// Volume name, at most 16 bytes.
    pub label: String,
    /// Id of the file system.
    pub uuid: Uuid,
}

impl Plan {
    /// Blocks before the data: the superblock's, and descriptors for as many groups as the slot could hold.
    pub fn front(&self) -> u32 {
        let groups = self
            .slot_size
            .div_ceil(u64::from(PER_GROUP) * BLOCK as u64)
            .max(1);
        1 + u32::try_from((groups * DESCRIPTOR as u64).div_ceil(BLOCK as u64)).unwrap_or(u32::MAX - 1)
    }
}

/// Size of everything.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Geometry {
    groups: u32,
    inodes_per_group: u32,
    /// Blocks up to the bitmaps.
    used: u32,
    total: u32,
}

/// PURE: the smallest geometry for so many blocks and inodes.
fn geometry(used: u32, inodes: u32) -> Option<Geometry> {
    let mut groups = inodes.div_ceil(PER_GROUP).max(used.div_ceil(PER_GROUP)).max(1);
    loop {
        let per = inodes.div_ceil(groups).next_multiple_of(INODES_PER_BLOCK);
        let tables = groups.checked_mul(per / INODES_PER_BLOCK)?;
        let total = used.checked_add(groups.checked_mul(2)?)?.checked_add(tables)?;
        // Every group has at least one block.
        let total = total.max((groups - 1).checked_mul(PER_GROUP)? + 1);
        if total.div_ceil(PER_GROUP) <= groups {
            return Some(Geometry {
                groups,
                inodes_per_group: per,
                used,
                total,
            });
        }
        groups = total.div_ceil(PER_GROUP);
    }
}

/// Little-endian fields.
struct Fields<'a>(&'a mut [u8]);

impl Fields<'_> {
    fn bytes(&mut self, at: usize, b: &[u8]) {
        if let Some(to) = self.0.get_mut(at..at + b.len()) {
            to.copy_from_slice(b);
        }
    }
    fn u8(&mut self, at: usize, v: u8) {
        self.bytes(at, &[v]);
    }
    fn u16(&mut self, at: usize, v: u16) {
        self.bytes(at, &v.to_le_bytes());
    }
    fn u32(&mut self, at: usize, v: u32) {
        self.bytes(at, &v.to_le_bytes());
    }
}

/// Where what belongs to a node lies besides its data.
#[derive(Debug, Clone, Copy, Default)]
struct Places {
    /// First block of a directory or of a long link.
    first: u32,
    /// Its blocks.
    blocks: u32,
    /// Block with the extents of a very large file.
    extents: u32,
    /// Block with attributes.
    xattrs: u32,
}

/// Writes in order.
pub struct Writer<'a> {
    plan: Plan,
    out: &'a mut dyn Out,
    next: u32,
    /// Bytes of the current block.
    filled: usize,
}

impl<'a> Writer<'a> {
    /// Begins behind the front.
    pub fn new(plan: Plan, out: &'a mut dyn Out) -> Self {
        let next = plan.front();
        Writer {
            plan,
            out,
            next,
            filled: 0,
        }
    }

    /// The block that is written next.
    pub fn next_block(&self) -> u32 {
        self.next
    }

    /// Bytes of a file.
    ///
    /// # Errors
    /// Those of [`Out::push`]; `SlotTooSmall`.
    pub fn data(&mut self, data: &[u8]) -> Result<()> {
        self.out.push(data)?;
        let bytes = self.filled + data.len();
        self.advance(bytes / BLOCK)?;
        self.filled = bytes % BLOCK;
        Ok(())
    }

    /// Fills the last block of a file with zeros.
    ///
    /// # Errors
    /// As [`Writer::data`].
    pub fn end_of_data(&mut self) -> Result<()> {
        const ZEROS: [u8; BLOCK] = [0; BLOCK];
        if self.filled > 0 {
            self.out.push(ZEROS.get(self.filled..).unwrap_or_default())?;
            self.filled = 0;
            self.advance(1)?;
        }
        Ok(())
    }

    fn advance(&mut self, blocks: usize) -> Result<()> {
        self.next = u32::try_from(blocks)
            .ok()
            .and_then(|b| self.next.checked_add(b))
            .ok_or_else(too_large)?;
        Ok(())
    }

    /// Whole blocks; their first one.
    fn blocks(&mut self, data: &[u8]) -> Result<u32> {
        let first = self.next;
        self.data(data)?;
        self.end_of_data()?;
        Ok(first)
    }

    /// Writes what remains, and yields the front and the size of the image in bytes.
    ///
    /// # Errors
    /// As [`Writer::data`].
    pub fn finish(mut self, tree: &Tree) -> Result<(Vec<u8>, u64)> {
        let mut places = vec![Places::default(); tree.nodes().len()];
        let mut users: HashMap<u32, Vec<usize>> = HashMap::new();
        for (i, node) in tree.nodes().iter().enumerate() {
            let mut at = Places::default();
            match &node.content {
                Content::Dir { children, parent } => {
                    let entries = directory(tree, i, *parent, children.iter());
                    at.blocks = (entries.len() / BLOCK) as u32;
                    at.first = self.blocks(&entries)?;
                }
                Content::Symlink(to) if to.len() >= FAST_SYMLINK => {
                    at.first = self.blocks(to)?;
                    at.blocks = 1;
                }
                Content::File { first, size, .. } => {
                    let ext = extents(*first, blocks_of(*size));
                    if ext.len() > INLINE_EXTENTS {
                        at.extents = self.blocks(&extent_block(&ext).ok_or_else(too_large)?)?;
                    }
                }
                _ => {}
            }
            if let Some(set) = node.meta.xattrs
                && tree
                    .xattr_sets()
                    .get(set as usize)
                    .and_then(inline_xattrs)
                    .is_none()
            {
                users.entry(set).or_default().push(i);
            }
            if let Some(p) = places.get_mut(i) {
                *p = at;
            }
        }
        for (set, who) in (0u32..)
            .zip(tree.xattr_sets())
            .filter_map(|(n, s)| Some((s, users.get(&n)?)))
        {
            for some in who.chunks(XATTR_USERS as usize) {
                let block = self.blocks(&xattr_block(set, some.len() as u32))?;
                for i in some {
                    if let Some(p) = places.get_mut(*i) {
                        p.xattrs = block;
                    }
                }
            }
        }
        let inodes = FIRST_INODE - 1 + (tree.nodes().len() as u32 - 1);
        let g = geometry(self.next, inodes).ok_or_else(too_large)?;
        let size = u64::from(g.total) * BLOCK as u64;
        if size > self.plan.slot_size {
            return Err(AgentError::new(
                Code::SlotTooSmall,
                format!(
                    "as a file system the archive needs {size} bytes, the slot has {}",
                    self.plan.slot_size
                ),
            ));
        }
        let front = self.tables(tree, &places, g)?;
        // Blocks that only make the last group exist.
        while self.next < g.total {
            self.blocks(&[0; BLOCK])?;
        }
        Ok((front, size))
    }

    /// Bitmaps and inode tables, then the front.
    fn tables(&mut self, tree: &Tree, places: &[Places], g: Geometry) -> Result<Vec<u8>> {
        let descriptors = 1 + (g.groups as usize * DESCRIPTOR).div_ceil(BLOCK) as u32;
        let tables = g.inodes_per_group / INODES_PER_BLOCK;
        let end = g.used + 2 * g.groups + g.groups * tables;
        let in_use = |b: u32| b < descriptors || (self.plan.front()..end).contains(&b);
        let mut front = vec![0u8; self.plan.front() as usize * BLOCK];
        let mut free = (0u32, 0u32);
        let inodes = FIRST_INODE - 1 + (tree.nodes().len() as u32 - 1);
        let (mut block_maps, mut inode_maps) = (Vec::new(), Vec::new());
        for group in 0..g.groups {
            let begin = group * PER_GROUP;
            let mut map = vec![0u8; BLOCK];
            let mut unused = 0u32;
            for bit in 0..PER_GROUP {
                let b = begin + bit;
                // Bits behind the end count as used.
                if b >= g.total || in_use(b) {
                    set(&mut map, bit);
                } else {
                    unused += 1;
                }
            }
            block_maps.extend_from_slice(&map);
            let first = group * g.inodes_per_group;
            let taken = inodes.saturating_sub(first).min(g.inodes_per_group);
            let mut map = vec![0u8; BLOCK];
            (0..taken).for_each(|bit| set(&mut map, bit));
            (g.inodes_per_group..PER_GROUP).for_each(|bit| set(&mut map, bit));
            inode_maps.extend_from_slice(&map);
            let dirs = (0..g.inodes_per_group)
                .filter_map(|i| tree.nodes().get(node_of(first + i + 1)?))
                .filter(|n| matches!(n.content, Content::Dir { .. }))
                .count();
            free = (free.0 + unused, free.1 + g.inodes_per_group - taken);
            let mut d = [0u8; DESCRIPTOR];
            let mut f = Fields(&mut d);
            f.u32(0, g.used + group);
            f.u32(4, g.used + g.groups + group);
            f.u32(8, g.used + 2 * g.groups + group * tables);
            f.u16(12, unused.min(0xffff) as u16);
            f.u16(14, (g.inodes_per_group - taken) as u16);
            f.u16(16, dirs as u16);
            Fields(&mut front).bytes(BLOCK + group as usize * DESCRIPTOR, &d);
        }
        self.blocks(&block_maps)?;
        self.blocks(&inode_maps)?;
        drop((block_maps, inode_maps));
        let mut table = vec![0u8; BLOCK];
        for first in (0..g.groups * g.inodes_per_group).step_by(INODES_PER_BLOCK as usize) {
            table.fill(0);
            for i in 0..INODES_PER_BLOCK {
                if let Some(n) = node_of(first + i + 1)
                    && let (Some(node), Some(at)) = (tree.nodes().get(n), places.get(n))
                    && let Some(to) = table.get_mut(i as usize * INODE..(i as usize + 1) * INODE)
                {
                    inode(node, at, tree, to);
                }
            }
            self.blocks(&table)?;
        }
        if let Some(sb) = front.get_mut(1024..2048) {
            superblock(&self.plan, g, free, sb);
        }
        Ok(front)
    }
}

fn too_large() -> AgentError {
    AgentError::new(Code::SlotTooSmall, "the archive is too large for one file system")
}

fn set(map: &mut [u8], bit: u32) {
    if let Some(b) = map.get_mut(bit as usize / 8) {
        *b |= 1 << (bit % 8);
    }
}

/// The inode of a node.
fn inode_of(node: usize) -> u32 {
    match node {
        0 => ROOT_INODE,
        n => FIRST_INODE - 1 + n as u32,
    }
}

/// The node of an inode; `None` = reserved.
fn node_of(inode: u32) -> Option<usize> {
    match inode {
        ROOT_INODE => Some(0),
        n => n
            .checked_sub(FIRST_INODE - 1)
            .filter(|n| *n > 0)
            .map(|n| n as usize),
    }
}

fn blocks_of(size: u64) -> u32 {
    u32::try_from(size.div_ceil(BLOCK as u64)).unwrap_or(u32::MAX)
}

/// Consecutive blocks as extents: block of the file, length, block of the disk.
fn extents(first: u32, blocks: u32) -> Vec<(u32, u16, u32)> {
    (0..blocks)
        .step_by(EXTENT_MAX as usize)
        .map(|at| (at, (blocks - at).min(EXTENT_MAX) as u16, first + at))
        .collect()
}

fn extent_header(f: &mut Fields<'_>, at: usize, entries: usize, max: usize, depth: u16) {
    f.u16(at, 0xf30a);
    f.u16(at + 2, entries as u16);
    f.u16(at + 4, max as u16);
    f.u16(at + 6, depth);
}

fn extent_list(f: &mut Fields<'_>, at: usize, list: &[(u32, u16, u32)]) {
    for (i, (block, len, disk)) in list.iter().enumerate() {
        let at = at + 12 * (i + 1);
        f.u32(at, *block);
        f.u16(at + 4, *len);
        f.u32(at + 8, *disk);
    }
}

/// A leaf of the extent tree; `None` = one does not suffice (over 40 GiB).
fn extent_block(list: &[(u32, u16, u32)]) -> Option<Vec<u8>> {
    const MAX: usize = (BLOCK - 12) / 12;
    let mut b = vec![0u8; BLOCK];
    let mut f = Fields(&mut b);
    extent_header(&mut f, 0, list.len(), MAX, 0);
    extent_list(&mut f, 0, list);
    (list.len() <= MAX).then_some(b)
}

/// Bits of the mode that say what a file is, and the number that directories keep for it.
fn kind(content: &Content) -> (u16, u8) {
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
fn directory<'t>(
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
fn inode(node: &Node, at: &Places, tree: &Tree, to: &mut [u8]) {
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
fn xattr_entries(set: &XattrSet, space: usize, base: usize, hashes: bool) -> Option<Vec<u8>> {
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
fn inline_xattrs(set: &XattrSet) -> Option<Vec<u8>> {
    let entries = xattr_entries(set, INODE - INODE_FIELDS - 4, 0, false)?;
    Some([XATTR_MAGIC.to_le_bytes().as_slice(), &entries].concat())
}

/// A set in a block of its own.
fn xattr_block(set: &XattrSet, users: u32) -> Vec<u8> {
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

fn xattr_hash(name: &[u8], value: &[u8]) -> u32 {
    let h = name.iter().fold(0u32, |h, c| h.rotate_left(5) ^ u32::from(*c));
    value.chunks(4).fold(h, |h, w| {
        let mut word = [0u8; 4];
        for (to, from) in word.iter_mut().zip(w) {
            *to = *from;
        }
        h.rotate_left(16) ^ u32::from_le_bytes(word)
    })
}

fn superblock(plan: &Plan, g: Geometry, free: (u32, u32), to: &mut [u8]) {
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_geometry_holds_what_it_must() {
        for used in [2, 300, 32_767, 32_768, 40_000, 1_000_000] {
            for inodes in [11, 12, 1000, 33_000, 100_000] {
                let g = geometry(used, inodes).unwrap();
                assert!(g.groups * g.inodes_per_group >= inodes, "{g:?}");
                assert!(g.inodes_per_group <= PER_GROUP && g.inodes_per_group.is_multiple_of(16));
                let tables = g.groups * g.inodes_per_group / INODES_PER_BLOCK;
                assert!(g.total >= used + 2 * g.groups + tables);
                assert_eq!(g.total.div_ceil(PER_GROUP), g.groups, "{g:?}");
            }
        }
        assert!(geometry(u32::MAX - 5, 11).is_none());
    }

    #[test]
    fn nodes_and_inodes_correspond() {
        for n in [0usize, 1, 2, 500] {
            assert_eq!(node_of(inode_of(n)), Some(n));
        }
        for reserved in [1, 3, 10] {
            assert_eq!(node_of(reserved), None);
        }
    }
}
