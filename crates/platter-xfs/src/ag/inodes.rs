//! Inodes of an allocation group: allocating and freeing them. Spec: `xfs/allocation_groups`, "Inode B+trees".

use std::collections::HashSet;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::rules::GroupRule;
use super::{Group, alloc, rmap, space};
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk, Owner, RmapOwner};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgBlock, AgInode};
use crate::tree::{Node, TreeBlocks, TreeHost, TreeRecord, TreeRule};

/// Allocates an inode of a chunk that exists, near another one; `None` if none is free.
pub(crate) fn alloc(group: &mut Group<'_>, near: AgInode) -> Result<Option<AgInode>> {
    if group.agi.free_count == 0 {
        return Ok(None);
    }
    space::fill_free_list(group)?;
    let broken = Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::NotFreeInode);
    let is_sparse = group.geometry.features.has_sparse_inodes();
    let Some((old, leaf)) = find_chunk(group, near)? else {
        return Err(broken.into());
    };
    if !old.is_consistent() {
        return Err(broken.into());
    }
    let index = (old.free & old.existing()).trailing_zeros();
    let new = InodeChunk {
        free: old.free & !1_u64.checked_shl(index).ok_or(broken)?,
        free_count: old.free_count.checked_sub(1).ok_or(broken)?,
        ..old
    };
    let record = new.encode(is_sparse);
    let order = TreeRecord::order(&record, BtreeKind::Inobt);
    if group.agi.finobt.is_some() {
        group.replace(BtreeKind::Inobt, order, record)?;
        if new.free_count == 0 {
            group.remove::<DiskInodeChunk>(BtreeKind::Finobt, order)?;
        } else {
            replace_chunk(group, BtreeKind::Finobt, leaf, record)?;
        }
    } else {
        replace_chunk(group, BtreeKind::Inobt, leaf, record)?;
    }
    group.agi.free_count = group.agi.free_count.saturating_sub(1);
    Ok(Some(AgInode(old.start.0.saturating_add(index))))
}

/// Stores the record of a chunk; `leaf` is the leaf that has it, if known.
fn replace_chunk(
    group: &mut Group<'_>,
    tree: BtreeKind,
    leaf: Option<u64>,
    record: DiskInodeChunk,
) -> Result<()> {
    match leaf {
        Some(leaf) => group.replace_found(tree, leaf, record),
        None => group.replace(tree, TreeRecord::order(&record, tree), record),
    }
}

/// A chunk with a free inode: that of `near`, or one before or after it. Also returns the leaf that has it in the tree
/// of chunks with free inodes, if there is that tree, else in the other one, where it is known.
fn find_chunk(group: &Group<'_>, near: AgInode) -> Result<Option<(InodeChunk, Option<u64>)>> {
    let is_sparse = group.geometry.features.has_sparse_inodes();
    let tree = if group.agi.finobt.is_some() {
        BtreeKind::Finobt
    } else {
        BtreeKind::Inobt
    };
    let decoded = |record: DiskInodeChunk| InodeChunk::decode(&record, is_sparse);
    let has_free = |chunk: &InodeChunk| chunk.free_count > 0;
    let place = (u64::from(near.0) + 1, 0, 0);
    // One search finds the chunk but in an inode B-tree with chunks in use.
    let around = group.leaf_around::<DiskInodeChunk>(tree, place)?;
    let is_first = around.before.is_none() && around.left.is_none();
    let next = around.before.or(around.after.filter(|_| is_first));
    if let Some(chunk) = next.map(decoded).filter(has_free) {
        return Ok(Some((chunk, Some(around.at))));
    }
    let mut order = place;
    while let Some(record) = group.lookup_lt::<DiskInodeChunk>(tree, order)? {
        let chunk = decoded(record);
        if has_free(&chunk) {
            return Ok(Some((chunk, None)));
        }
        order = (chunk.start.0.into(), 0, 0);
    }
    let mut order = place;
    while let Some(record) = group.lookup_ge::<DiskInodeChunk>(tree, order)? {
        let chunk = decoded(record);
        if has_free(&chunk) {
            return Ok(Some((chunk, None)));
        }
        order = (u64::from(chunk.start.0) + 1, 0, 0);
    }
    Ok(None)
}

/// Allocates the blocks of a new chunk, all inodes of which are free. Returns the first; `None` if there
/// are no such blocks. The inodes are still to be initialised.
pub(crate) fn alloc_chunk(group: &mut Group<'_>) -> Result<Option<AgBlock>> {
    let blocks = group.geometry.chunk_blocks();
    if alloc::available(group) < blocks {
        return Ok(None);
    }
    let sector_bits = group.geometry.sector_units_bits();
    let bounds = group.geometry.inode_blocks(group.ag, sector_bits);
    let align = group.geometry.inode_alignment.max(1);
    let Some(start) = alloc::aligned(group, blocks, align, &bounds)? else {
        return Ok(None);
    };
    rmap::add(group, &Owner::special(start, blocks, RmapOwner::INODES))?;
    let first = group.geometry.first_ag_inode(start);
    let count = group.geometry.chunk_inodes();
    // Those of a block may have several records.
    for index in (0..count).step_by(CHUNK_INODES as usize) {
        let chunk = InodeChunk {
            start: AgInode(first.0.saturating_add(index)),
            holes: 0,
            count: CHUNK_INODES,
            free_count: CHUNK_INODES,
            free: u64::MAX,
        };
        let record = chunk.encode(group.geometry.features.has_sparse_inodes());
        group.insert(BtreeKind::Inobt, record)?;
        if group.agi.finobt.is_some() {
            group.insert(BtreeKind::Finobt, record)?;
        }
    }
    group.agi.count = group.agi.count.saturating_add(count);
    group.agi.free_count = group.agi.free_count.saturating_add(count);
    group.agi.newest = Some(first);
    Ok(Some(start))
}

/// Allocates the blocks of a part of a chunk, all inodes of which are free, where there is no space for a
/// whole one. Returns the first block and their number; `None` if there are none, or chunks have no holes.
pub(crate) fn alloc_sparse_chunk(group: &mut Group<'_>) -> Result<Option<(AgBlock, u32)>> {
    let geometry = group.geometry;
    let (align, blocks) = (geometry.inode_alignment, geometry.sparse_inode_alignment);
    let is_whole = blocks == 0 || blocks >= geometry.chunk_blocks();
    if !geometry.features.has_sparse_inodes() || align != geometry.chunk_blocks() || is_whole {
        return Ok(None);
    }
    if alloc::available(group) < blocks {
        return Ok(None);
    }
    let bounds = geometry.inode_blocks(group.ag, geometry.sector_units_bits());
    // The numbers of the whole chunk lie within the group.
    let end = bounds
        .end
        .saturating_sub(bounds.end.checked_rem(align).unwrap_or_default());
    let Some(start) = alloc::aligned(group, blocks, blocks, &(bounds.start.max(align)..end))?
    else {
        return Ok(None);
    };
    rmap::add(group, &Owner::special(start, blocks, RmapOwner::INODES))?;
    add_sparse(group, start, blocks)?;
    Ok(Some((start, blocks)))
}

/// Adds inodes of a part of a chunk to its record, or makes one.
fn add_sparse(group: &mut Group<'_>, start: AgBlock, blocks: u32) -> Result<()> {
    const INODES_PER_HOLE: u32 = 4;
    let geometry = group.geometry;
    let broken = Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::Inode);
    let whole = geometry.chunk_blocks();
    let skipped = start.0.checked_rem(whole).ok_or(broken)?;
    let first = geometry.first_ag_inode(AgBlock(start.0 - skipped));
    let count = blocks * geometry.inodes_per_block();
    let units = (1_u32 << (count / INODES_PER_HOLE).min(16)) - 1;
    let units = units << (skipped * geometry.inodes_per_block() / INODES_PER_HOLE);
    let mask = u16::try_from(units).map_err(|_| broken)?;
    let order = (u64::from(first.0), 0, 0);
    let found: Option<DiskInodeChunk> = group.lookup_ge(BtreeKind::Inobt, order)?;
    let old = found.map(|record| InodeChunk::decode(&record, true));
    let old = old.filter(|old| old.start == first);
    if old.is_some_and(|old| old.holes & mask != mask || !old.is_consistent()) {
        return Err(broken.into());
    }
    let new = InodeChunk {
        start: first,
        holes: old.map_or(u16::MAX, |old| old.holes) & !mask,
        count: old.map_or(0, |old| old.count) + count,
        free_count: old.map_or(0, |old| old.free_count) + count,
        free: old.map_or(u64::MAX, |old| old.free),
    };
    let record = new.encode(true);
    let was_free = old.is_some_and(|old| old.free_count > 0);
    for (tree, is_there) in [
        (BtreeKind::Inobt, old.is_some()),
        (BtreeKind::Finobt, was_free),
    ] {
        if tree == BtreeKind::Finobt && group.agi.finobt.is_none() {
            continue;
        }
        if is_there {
            group.replace(tree, order, record)?;
        } else {
            group.insert(tree, record)?;
        }
    }
    group.agi.count = group.agi.count.saturating_add(count);
    group.agi.free_count = group.agi.free_count.saturating_add(count);
    group.agi.newest = Some(first);
    Ok(())
}

/// Whether a chunk has no inode in use, and its blocks hold no other's.
#[must_use]
pub(crate) fn is_unused(group: &Group<'_>, chunk: &InodeChunk) -> bool {
    group.geometry.inodes_per_block() <= CHUNK_INODES
        && chunk.is_consistent()
        && chunk.free == u64::MAX
        && chunk.count == chunk.free_count
}

/// The blocks of a chunk: the first of each run, and how many they are.
#[must_use]
pub(crate) fn chunk_extents(group: &Group<'_>, chunk: &InodeChunk) -> Vec<(AgBlock, u32)> {
    let per_block = group.geometry.inodes_per_block();
    let runs = chunk.runs().into_iter();
    let extents = runs.map(|(index, count)| {
        let first = AgInode(chunk.start.0.saturating_add(index));
        let start = group.geometry.locate_ag_inode(first).0;
        (start, count.checked_div(per_block).unwrap_or_default())
    });
    extents.collect()
}

/// Frees a chunk that is [unused](is_unused), with its blocks.
pub(crate) fn free_chunk(group: &mut Group<'_>, chunk: &InodeChunk) -> Result<()> {
    let broken = Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::Inode);
    let order = (u64::from(chunk.start.0), 0, 0);
    group.remove::<DiskInodeChunk>(BtreeKind::Inobt, order)?;
    if group.agi.finobt.is_some() {
        group.remove::<DiskInodeChunk>(BtreeKind::Finobt, order)?;
    }
    let count = group.agi.count.checked_sub(chunk.count);
    group.agi.count = count.ok_or(broken)?;
    let free_count = group.agi.free_count.checked_sub(chunk.free_count);
    group.agi.free_count = free_count.ok_or(broken)?;
    for (start, count) in chunk_extents(group, chunk) {
        rmap::remove(group, &Owner::special(start, count, RmapOwner::INODES))?;
        space::free_extent(group, start, count)?;
    }
    Ok(())
}

/// Counts the blocks of the inode B-trees anew, for the header: from then on they are counted as they change.
pub(crate) fn count_tree_blocks(group: &mut Group<'_>) -> Result<()> {
    let finobt = group.agi.finobt;
    let of_finobt = finobt.map(|_| tree_blocks(group, BtreeKind::Finobt));
    let of_inobt = tree_blocks(group, BtreeKind::Inobt)?;
    group.agi.free_btree_blocks = of_finobt.transpose()?.unwrap_or_default();
    group.agi.inode_btree_blocks = of_inobt;
    Ok(())
}

/// The blocks of an inode B-tree, by the pointers to them, of which each block has one.
fn tree_blocks(group: &Group<'_>, kind: BtreeKind) -> Result<u32> {
    let root: Node<DiskInodeChunk> = group.load_root(kind)?;
    let mut seen = HashSet::from([root.at]);
    let mut nodes = vec![(root.level, root.pointers)];
    while let Some((level, pointers)) = nodes.pop() {
        for at in pointers {
            if !seen.insert(at) || seen.len() >= group.agf.length as usize {
                return Err(group.broken(TreeRule::Shape));
            }
            if level > 1 {
                let node: Node<DiskInodeChunk> = group.load(kind, at, level - 1)?;
                nodes.push((node.level, node.pointers));
            }
        }
    }
    Ok(u32::try_from(seen.len()).unwrap_or(u32::MAX))
}

/// The first inode of a list of unlinked inodes.
#[must_use]
pub(crate) fn unlinked_head(group: &Group<'_>, bucket: usize) -> Option<AgInode> {
    group.agi.unlinked.get(bucket).copied().flatten()
}

/// Makes an inode the first one of a list of unlinked inodes.
pub(crate) fn set_unlinked_head(group: &mut Group<'_>, bucket: usize, head: Option<AgInode>) {
    if let Some(slot) = group.agi.unlinked.get_mut(bucket) {
        *slot = head;
    }
}

/// Marks an inode free in the inode B-trees and the header.
pub(crate) fn free(group: &mut Group<'_>, inode: AgInode) -> Result<()> {
    free_of_chunk(group, inode).map(drop)
}

/// The same. Returns its chunk as it is after that.
pub(crate) fn free_of_chunk(group: &mut Group<'_>, inode: AgInode) -> Result<InodeChunk> {
    space::fill_free_list(group)?;
    let broken = Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::Inode);
    let is_sparse = group.geometry.features.has_sparse_inodes();
    let place = (u64::from(inode.0) + 1, 0, 0);
    let around = group.leaf_around::<DiskInodeChunk>(BtreeKind::Inobt, place)?;
    let leaf = around.before.map(|_| around.at);
    let record = match around.before {
        Some(record) => Some(record),
        None => group.lookup_lt(BtreeKind::Inobt, place)?,
    };
    let old = record.map(|record| InodeChunk::decode(&record, is_sparse));
    let old = old.ok_or(broken)?;
    let index = inode.0 - old.start.0;
    if index >= 64 || !old.is_consistent() || !old.is_allocated(index) {
        return Err(broken.into());
    }
    let free_count = group.agi.free_count.checked_add(1).ok_or(broken)?;
    let new = InodeChunk {
        free: old.free | (1 << index),
        free_count: old.free_count + 1,
        ..old
    };
    let record = new.encode(is_sparse);
    let order = TreeRecord::order(&record, BtreeKind::Inobt);
    replace_chunk(group, BtreeKind::Inobt, leaf, record)?;
    if group.agi.finobt.is_some() {
        if old.free_count == 0 {
            group.insert(BtreeKind::Finobt, record)?;
        } else {
            group.replace(BtreeKind::Finobt, order, record)?;
        }
    }
    group.agi.free_count = free_count;
    Ok(new)
}

/// Empties the lists of unlinked inodes.
pub(crate) fn clear_unlinked(group: &mut Group<'_>) {
    group.agi.unlinked.fill(None);
}
