//! Free space: freeing extents, taking blocks for trees, and the free list.
//! Spec: `xfs/allocation_groups`, "AG Free Space Management".

use std::cmp::Ordering;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Result};

use super::rules::GroupRule;
use super::{AgExtent, Group, alloc, rmap};
use crate::ondisk::agf::Agf;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent, Owner, RmapOwner};
use crate::ondisk::{AgBlock, Geometry};
use crate::space::TreeLimits;
use crate::tree::TreeRecord;

/// More blocks than a free list gets or loses when it is filled.
const FILL_MAX: usize = 1024;

/// How many blocks the free list holds before a change: enough for two splits on all levels of each tree
/// that takes its blocks from there.
#[must_use]
pub fn min_free_list(agf: &Agf, limits: &TreeLimits) -> usize {
    list_blocks(trees(agf, limits).map(|(levels, most)| (levels + 1).min(most.max(levels))))
}

/// The most that [`min_free_list`] comes to, whatever the group holds.
#[must_use]
pub fn free_list_max(agf: &Agf, limits: &TreeLimits) -> usize {
    list_blocks(trees(agf, limits).map(|(levels, most)| most.max(levels)))
}

fn list_blocks(levels: impl Iterator<Item = u32>) -> usize {
    let sum: u32 = levels.map(|levels| levels.max(1) * 2 - 2).sum();
    sum as usize
}

/// The levels of the trees that take their blocks from the free list, and the most that they may have.
fn trees(agf: &Agf, limits: &TreeLimits) -> impl Iterator<Item = (u32, u32)> {
    let rmap = agf.rmap.map(|rmap| rmap.levels);
    let trees = [Some(agf.bno.levels), Some(agf.cnt.levels), rmap];
    let trees = trees.into_iter().zip(limits.levels);
    trees.filter_map(|(levels, most)| Some((levels?, most)))
}

/// The most levels of the trees that take their blocks from the free list: those of free space, and that of owners.
pub(super) fn list_levels_max(geometry: &Geometry) -> [u32; 3] {
    let extents = u64::from(geometry.ag_blocks).div_ceil(2);
    // Shared blocks have any number of records, but the tree lies in the group.
    let rmap = if geometry.features.has_reflink() {
        levels_within(BtreeKind::Rmap, geometry, geometry.ag_blocks.into())
    } else {
        levels_max(BtreeKind::Rmap, geometry, geometry.ag_blocks.into())
    };
    let of = |kind| levels_max(kind, geometry, extents);
    [of(BtreeKind::Bno), of(BtreeKind::Cnt), rmap]
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

/// The error for space that is not as a rule says.
pub(super) fn space_broken(group: &Group<'_>, rule: GroupRule) -> platter_vfs::Error {
    Corrupt::new(Locus::group(group.ag.0.into()), rule).into()
}

/// Adds an extent to the free space trees. Its owner must be gone already.
pub fn free_extent(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    fill_free_list(group)?;
    add_free(group, start, count)
}

fn add_free(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    let end = start.checked_add(count).map(|end| end.0);
    let Some(end) = end.filter(|&end| count > 0 && start.0 > 0 && end <= group.agf.length) else {
        return Err(space_broken(group, GroupRule::DoubleFree));
    };
    let free_blocks = group.agf.free_blocks.saturating_add(count);
    if free_blocks > group.agf.length {
        return Err(space_broken(group, GroupRule::DoubleFree));
    }
    let order = (u64::from(start.0), 0, 0);
    let left: Option<DiskFreeExtent> = group.lookup_lt(BtreeKind::Bno, order)?;
    let right: Option<DiskFreeExtent> = group.lookup_ge(BtreeKind::Bno, order)?;
    let end_of = |extent: &DiskFreeExtent| extent.start.get().saturating_add(extent.count.get());
    if left.as_ref().is_some_and(|left| end_of(left) > start.0)
        || right.as_ref().is_some_and(|right| right.start.get() < end)
    {
        return Err(space_broken(group, GroupRule::DoubleFree));
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
        group.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
    }
    match (left, right) {
        (Some(left), Some(right)) => {
            group.remove::<DiskFreeExtent>(BtreeKind::Bno, right.order(BtreeKind::Bno))?;
            group.replace(BtreeKind::Bno, left.order(BtreeKind::Bno), merged)?;
        }
        (Some(old), None) | (None, Some(old)) => {
            group.replace(BtreeKind::Bno, old.order(BtreeKind::Bno), merged)?;
        }
        (None, None) => group.insert(BtreeKind::Bno, merged)?,
    }
    group.insert(BtreeKind::Cnt, merged)?;
    let ag = group.ag;
    group.freed.push(AgExtent { ag, start, count });
    group.agf.free_blocks = free_blocks;
    update_longest(group)
}

/// Takes blocks in a row out of free space, at most so many; without an owner yet. `None` if there is no
/// free space.
fn take_free(group: &mut Group<'_>, most: u32) -> Result<Option<(AgBlock, u32)>> {
    let found = alloc::find_by_length(group, most, 1, &RangeSet::default())?;
    if let Some((start, count)) = found {
        alloc::take(group, start, count)?;
    }
    Ok(found)
}

/// Allocates blocks in a row, at most so many; without an owner yet. `None` if there is no free space.
pub fn alloc_extent(group: &mut Group<'_>, most: u32) -> Result<Option<(AgBlock, u32)>> {
    fill_free_list(group)?;
    take_free(group, most)
}

/// Records the length of the longest free extent in the header.
pub(super) fn update_longest(group: &mut Group<'_>) -> Result<()> {
    let last: Option<DiskFreeExtent> =
        group.lookup_lt(BtreeKind::Cnt, (u64::MAX, u64::MAX, u64::MAX))?;
    group.agf.longest = last.map_or(0, |last| last.count.get());
    Ok(())
}

/// Brings the free list to the length that one change of all trees needs, as far as there is free space.
pub(crate) fn fill_free_list(group: &mut Group<'_>) -> Result<()> {
    let wanted = min_free_list(group.agf, group.limits);
    for _ in 0..FILL_MAX {
        match group.free_list.len().cmp(&wanted) {
            Ordering::Less => {
                let Some((block, _)) = take_free(group, 1)? else {
                    break;
                };
                Arc::make_mut(group.free_list).push_back(block);
                rmap::add(group, &Owner::special(block, 1, RmapOwner::AG))?;
            }
            Ordering::Greater => {
                let Some(block) = Arc::make_mut(group.free_list).pop_front() else {
                    break;
                };
                rmap::remove(group, &Owner::special(block, 1, RmapOwner::AG))?;
                add_free(group, block, 1)?;
            }
            Ordering::Equal => break,
        }
    }
    Ok(())
}

/// A block for a tree: from the free list for the trees that keep account of free space, else from
/// free space.
pub(super) fn alloc_tree_block(group: &mut Group<'_>, kind: BtreeKind) -> Result<AgBlock> {
    let block = if let Some(owner) = owner_of(kind) {
        fill_free_list(group)?;
        let (block, _) = take_free(group, 1)?.ok_or(Condition::NoSpace)?;
        rmap::add(group, &Owner::special(block, 1, owner))?;
        block
    } else {
        let block = Arc::make_mut(group.free_list).pop_front();
        block.ok_or_else(|| space_broken(group, GroupRule::FreeList))?
    };
    count_tree_block(group, kind, 1);
    // What the block held before does not matter, its LSN least of all.
    let at = group
        .geometry
        .byte_offset(group.geometry.fs_block(group.ag, block));
    group
        .blocks
        .create(at, vec![0; group.geometry.block_bytes() as usize]);
    Ok(block)
}

pub(super) fn free_tree_block(
    group: &mut Group<'_>,
    kind: BtreeKind,
    block: AgBlock,
) -> Result<()> {
    count_tree_block(group, kind, -1);
    let at = group
        .geometry
        .byte_offset(group.geometry.fs_block(group.ag, block));
    group.blocks.forget(at, group.geometry.block_bytes());
    if let Some(owner) = owner_of(kind) {
        rmap::remove(group, &Owner::special(block, 1, owner))?;
        return free_extent(group, block, 1);
    }
    Arc::make_mut(group.free_list).push_back(block);
    Ok(())
}

fn count_tree_block(group: &mut Group<'_>, kind: BtreeKind, change: i32) {
    let add = |count: &mut u32| *count = count.saturating_add_signed(change);
    // A count that is not zero is from `count_tree_blocks`, as the tree has a block: it is kept from then on, also before
    // the superblock has INOBTCNT.
    let is_counted = group.agi.inode_btree_blocks > 0;
    let counts_inodes = group.geometry.features.has_inobtcount() || is_counted;
    match kind {
        BtreeKind::Bno | BtreeKind::Cnt => add(&mut group.agf.btree_blocks),
        BtreeKind::Rmap => {
            add(&mut group.agf.btree_blocks);
            add(&mut group.agf.rmap_blocks);
        }
        BtreeKind::Refcount => add(&mut group.agf.refcount_blocks),
        BtreeKind::Inobt if counts_inodes => add(&mut group.agi.inode_btree_blocks),
        BtreeKind::Finobt if counts_inodes => add(&mut group.agi.free_btree_blocks),
        BtreeKind::Inobt
        | BtreeKind::Finobt
        | BtreeKind::Bmap
        | BtreeKind::RtRmap
        | BtreeKind::RtRefcount => {}
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
