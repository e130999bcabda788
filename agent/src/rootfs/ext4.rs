//! Writes a tree as ext4 (kernel documentation, "ext4 data structures"), front to back: superblock and group descriptors, file
//! data in the order of the archive, directories, then bitmaps and inode tables. The file system ends where its content ends.
//!
//! It is only ever mounted read-only, so it has no journal, no reserved blocks, no spare inodes and no copies of the superblock
//! (`sparse_super2` without any): what guards it is the slot's hash. Nothing in it depends on time or chance.

mod forms;

use super::Out;
use super::tree::{Content, Tree};
use crate::error::{AgentError, Result};
use forms::{
    Fields, blocks_of, directory, extent_block, extents, inline_xattrs, inode, node_of, set, superblock,
    xattr_block,
};
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

#[cfg(test)]
mod tests {
    use super::forms::inode_of;
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
