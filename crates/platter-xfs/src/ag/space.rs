//! Free space: freeing extents, taking blocks for trees, and the free list.
//! Spec: `xfs/allocation_groups`, "AG Free Space Management".

use std::cmp::Ordering;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Result};

use super::rules::GroupRule;
use super::{Freed, Group};
use crate::ondisk::agf::Agf;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, Owner, RmapOwner};
use crate::ondisk::{AgBlock, Geometry};
use crate::tree::TreeRecord;

/// More blocks than a free list gets or loses when it is filled.
const FILL_MAX: usize = 1024;

/// How many blocks the free list holds before a change: enough for two splits on all levels of each tree
/// that takes its blocks from there.
#[must_use]
pub fn min_free_list(agf: &Agf, geometry: &Geometry) -> usize {
    list_blocks(trees(agf, geometry).map(|(levels, most)| (levels + 1).min(most.max(levels))))
}

/// The most that [`min_free_list`] comes to, whatever the group holds.
#[must_use]
pub fn free_list_max(agf: &Agf, geometry: &Geometry) -> usize {
    list_blocks(trees(agf, geometry).map(|(levels, most)| most.max(levels)))
}

fn list_blocks(levels: impl Iterator<Item = u32>) -> usize {
    let sum: u32 = levels.map(|levels| levels.max(1) * 2 - 2).sum();
    sum as usize
}

/// The levels of the trees that take their blocks from the free list, and the most that they may have.
fn trees(agf: &Agf, geometry: &Geometry) -> impl Iterator<Item = (u32, u32)> {
    let extents = u64::from(geometry.ag_blocks).div_ceil(2);
    let mut trees = vec![
        (
            agf.bno.levels,
            levels_max(BtreeKind::Bno, geometry, extents),
        ),
        (
            agf.cnt.levels,
            levels_max(BtreeKind::Cnt, geometry, extents),
        ),
    ];
    if let Some(rmap) = agf.rmap {
        // Shared blocks have any number of records, but the tree lies in the group.
        let most = if geometry.features.has_reflink() {
            levels_within(BtreeKind::Rmap, geometry, geometry.ag_blocks.into())
        } else {
            levels_max(BtreeKind::Rmap, geometry, geometry.ag_blocks.into())
        };
        trees.push((rmap.levels, most));
    }
    trees.into_iter()
}

/// The most levels of a tree with so many records, whose blocks are half full.
#[must_use]
pub fn levels_max(kind: BtreeKind, geometry: &Geometry, records: u64) -> u32 {
    let half = |level| (kind.records_max(level, geometry) / 2).max(2) as u64;
    let mut blocks = records.div_ceil(half(0)).max(1);
    let mut levels = 1;
    while blocks > 1 {
        blocks = blocks.div_ceil(half(1));
        levels += 1;
    }
    levels
}

/// The most levels of a tree that takes no more than so many blocks, which are half full.
fn levels_within(kind: BtreeKind, geometry: &Geometry, blocks: u64) -> u32 {
    let half = (kind.records_max(1, geometry) / 2).max(2) as u64;
    // Below the root there are two blocks at least.
    let (mut levels, mut width, mut total) = (1, 2, 1_u64);
    loop {
        total = total.saturating_add(width);
        if total > blocks {
            return levels;
        }
        levels += 1;
        width = width.saturating_mul(half);
    }
}

impl Group<'_> {
    pub(super) fn space_broken(&self, rule: GroupRule) -> platter_vfs::Error {
        Corrupt::new(Locus::group(self.ag.0.into()), rule).into()
    }

    /// Adds an extent to the free space trees. Its owner must be gone already.
    pub fn free_extent(&mut self, start: AgBlock, count: u32) -> Result<()> {
        self.fill_free_list()?;
        self.add_free(start, count)
    }

    /// Makes the group reach so far. What lies between is to be freed afterwards, or was taken before.
    pub fn set_len(&mut self, len: u32) {
        self.agf.length = len;
        self.agi.length = len;
    }

    fn add_free(&mut self, start: AgBlock, count: u32) -> Result<()> {
        let end = start.checked_add(count).map(|end| end.0);
        let Some(end) = end.filter(|&end| count > 0 && start.0 > 0 && end <= self.agf.length)
        else {
            return Err(self.space_broken(GroupRule::DoubleFree));
        };
        let free_blocks = self.agf.free_blocks.saturating_add(count);
        if free_blocks > self.agf.length {
            return Err(self.space_broken(GroupRule::DoubleFree));
        }
        let order = (u64::from(start.0), 0, 0);
        let left: Option<DiskFreeExtent> = self.lookup_lt(BtreeKind::Bno, order)?;
        let right: Option<DiskFreeExtent> = self.lookup_ge(BtreeKind::Bno, order)?;
        let end_of =
            |extent: &DiskFreeExtent| extent.start.get().saturating_add(extent.count.get());
        if left.as_ref().is_some_and(|left| end_of(left) > start.0)
            || right.as_ref().is_some_and(|right| right.start.get() < end)
        {
            return Err(self.space_broken(GroupRule::DoubleFree));
        }
        let left = left.filter(|left| end_of(left) == start.0);
        let right = right.filter(|right| right.start.get() == end);
        let first = left.map_or(start.0, |left| left.start.get());
        let last = right.map_or(end, |right| end_of(&right));
        let merged = DiskFreeExtent {
            start: first.into(),
            count: (last - first).into(),
        };
        for old in [left, right].into_iter().flatten() {
            self.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
        }
        match (left, right) {
            (Some(left), Some(right)) => {
                self.remove::<DiskFreeExtent>(BtreeKind::Bno, right.order(BtreeKind::Bno))?;
                self.replace(BtreeKind::Bno, left.order(BtreeKind::Bno), merged)?;
            }
            (Some(old), None) | (None, Some(old)) => {
                self.replace(BtreeKind::Bno, old.order(BtreeKind::Bno), merged)?;
            }
            (None, None) => self.insert(BtreeKind::Bno, merged)?,
        }
        self.insert(BtreeKind::Cnt, merged)?;
        let ag = self.ag;
        self.freed.push(Freed { ag, start, count });
        self.agf.free_blocks = free_blocks;
        self.update_longest()
    }

    /// Takes blocks in a row out of free space, at most so many; without an owner yet. `None` if there is no
    /// free space.
    fn take_free(&mut self, most: u32) -> Result<Option<(AgBlock, u32)>> {
        let found = self.find_by_length(most, 1, &RangeSet::default())?;
        if let Some((start, count)) = found {
            self.take_range(start, count)?;
        }
        Ok(found)
    }

    /// Allocates blocks in a row, at most so many; without an owner yet. `None` if there is no free space.
    pub fn alloc_extent(&mut self, most: u32) -> Result<Option<(AgBlock, u32)>> {
        self.fill_free_list()?;
        self.take_free(most)
    }

    pub(super) fn update_longest(&mut self) -> Result<()> {
        let last: Option<DiskFreeExtent> =
            self.lookup_lt(BtreeKind::Cnt, (u64::MAX, u64::MAX, u64::MAX))?;
        self.agf.longest = last.map_or(0, |last| last.count.get());
        Ok(())
    }

    /// Brings the free list to the length that one change of all trees needs, as far as there is free space.
    pub fn fill_free_list(&mut self) -> Result<()> {
        let wanted = min_free_list(self.agf, &self.geometry);
        for _ in 0..FILL_MAX {
            match self.free_list.len().cmp(&wanted) {
                Ordering::Less => {
                    let Some((block, _)) = self.take_free(1)? else {
                        break;
                    };
                    self.free_list.push_back(block);
                    self.add_owner(&Owner::special(block, 1, RmapOwner::AG))?;
                }
                Ordering::Greater => {
                    let Some(block) = self.free_list.pop_front() else {
                        break;
                    };
                    self.remove_owner(&Owner::special(block, 1, RmapOwner::AG))?;
                    self.add_free(block, 1)?;
                }
                Ordering::Equal => break,
            }
        }
        Ok(())
    }

    /// A block for a tree: from the free list for the trees that keep account of free space, else from
    /// free space.
    pub(super) fn alloc_tree_block(&mut self, kind: BtreeKind) -> Result<AgBlock> {
        let block = if let Some(owner) = owner_of(kind) {
            self.fill_free_list()?;
            let (block, _) = self.take_free(1)?.ok_or(Condition::NoSpace)?;
            self.add_owner(&Owner::special(block, 1, owner))?;
            block
        } else {
            let block = self.free_list.pop_front();
            block.ok_or_else(|| self.space_broken(GroupRule::FreeList))?
        };
        self.count_tree_block(kind, 1);
        // What the block held before does not matter, its LSN least of all.
        let at = self
            .geometry
            .byte_offset(self.geometry.fs_block(self.ag, block));
        self.blocks
            .create(at, vec![0; self.geometry.block_bytes() as usize]);
        Ok(block)
    }

    pub(super) fn free_tree_block(&mut self, kind: BtreeKind, block: AgBlock) -> Result<()> {
        self.count_tree_block(kind, -1);
        let at = self
            .geometry
            .byte_offset(self.geometry.fs_block(self.ag, block));
        self.blocks.forget(at, self.geometry.block_bytes());
        if let Some(owner) = owner_of(kind) {
            self.remove_owner(&Owner::special(block, 1, owner))?;
            return self.free_extent(block, 1);
        }
        self.free_list.push_back(block);
        Ok(())
    }

    fn count_tree_block(&mut self, kind: BtreeKind, change: i32) {
        let add = |count: &mut u32| *count = count.saturating_add_signed(change);
        let counts_inodes = self.geometry.features.has_inobtcount();
        match kind {
            BtreeKind::Bno | BtreeKind::Cnt => add(&mut self.agf.btree_blocks),
            BtreeKind::Rmap => {
                add(&mut self.agf.btree_blocks);
                add(&mut self.agf.rmap_blocks);
            }
            BtreeKind::Refcount => add(&mut self.agf.refcount_blocks),
            BtreeKind::Inobt if counts_inodes => add(&mut self.agi.inode_btree_blocks),
            BtreeKind::Finobt if counts_inodes => add(&mut self.agi.free_btree_blocks),
            BtreeKind::Inobt
            | BtreeKind::Finobt
            | BtreeKind::Bmap
            | BtreeKind::RtRmap
            | BtreeKind::RtRefcount => {}
        }
    }
}

/// The owner of blocks that do not come from the free list.
fn owner_of(kind: BtreeKind) -> Option<RmapOwner> {
    match kind {
        BtreeKind::Inobt | BtreeKind::Finobt => Some(RmapOwner::INOBT),
        BtreeKind::Refcount => Some(RmapOwner::REFCOUNT),
        BtreeKind::Bno
        | BtreeKind::Cnt
        | BtreeKind::Rmap
        | BtreeKind::Bmap
        | BtreeKind::RtRmap
        | BtreeKind::RtRefcount => None,
    }
}
