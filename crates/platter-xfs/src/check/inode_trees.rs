//! B-trees of inode chunks of a group: all of them, and those with free inodes.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::groups::{GroupState, Known};
use super::{Checker, ChunkRule, Flow, GroupUseRule, trees};
use crate::ondisk::agf::TreeRoot;
use crate::ondisk::agi::Agi;
use crate::ondisk::btree::{BtreeKind, DiskInodeChunk, InodeChunk, RmapOwner};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::{AgBlock, AgNr};

/// Walks the B-trees that an AGI names, claims the chunks, and compares what is counted.
pub(super) fn check(checker: &mut Checker<'_>, agi: &Agi, state: &mut GroupState) -> Flow {
    let ag = agi.ag;
    let locus = Locus::group(ag.0.into());
    let mut chunks = Vec::new();
    let inobt = walk_chunks(checker, BtreeKind::Inobt, ag, agi.inobt, &mut chunks)?;
    let has_counts = checker.context.geometry().features.has_inobtcount();
    if inobt.0 && has_counts && inobt.1 != u64::from(agi.inode_btree_blocks) {
        checker.found(locus, GroupUseRule::InodeTreeBlocks)?;
    }
    let mut is_whole = inobt.0;
    if inobt.0 {
        let sum = |count: fn(&InodeChunk) -> u32| {
            chunks
                .iter()
                .map(|chunk| u64::from(count(chunk)))
                .sum::<u64>()
        };
        if sum(|chunk| chunk.count) != u64::from(agi.count) {
            checker.found(locus, GroupUseRule::Inodes)?;
        }
        if sum(|chunk| chunk.free_count) != u64::from(agi.free_count) {
            checker.found(locus, GroupUseRule::FreeInodes)?;
        }
    }
    if let Some(root) = agi.finobt {
        let mut free = Vec::new();
        let finobt = walk_chunks(checker, BtreeKind::Finobt, ag, root, &mut free)?;
        is_whole &= finobt.0;
        if finobt.0 && has_counts && finobt.1 != u64::from(agi.free_btree_blocks) {
            checker.found(locus, GroupUseRule::FreeInodeTreeBlocks)?;
        }
        let with_free = chunks.iter().filter(|chunk| chunk.free_count > 0);
        if inobt.0 && finobt.0 && !with_free.eq(&free) {
            checker.found(locus, GroupUseRule::InodeTreesDiffer)?;
        }
    }
    let mut kept = Vec::new();
    let mut last = None;
    for chunk in chunks {
        if claim_chunk(checker, ag, &chunk, &mut last)? {
            kept.push(chunk);
        }
    }
    if !inobt.0 {
        checker.lose_chunks();
    }
    state.chunks = kept;
    if !is_whole {
        state.known.remove(Known::CLAIMS);
    }
    Ok(())
}

/// Returns whether the whole tree was read, and its blocks.
fn walk_chunks(
    checker: &mut Checker<'_>,
    kind: BtreeKind,
    ag: AgNr,
    root: TreeRoot,
    chunks: &mut Vec<InodeChunk>,
) -> Flow<(bool, u64)> {
    let is_sparse = checker.context.geometry().features.has_sparse_inodes();
    let walk = trees::walk_group(checker, kind, ag, root, &mut |checker, leaf| {
        for record in leaf.records::<DiskInodeChunk>() {
            let chunk = InodeChunk::decode(record, is_sparse);
            if !check_chunk(checker, ag, &chunk, kind)? {
                continue;
            }
            chunks.push(chunk);
        }
        Ok(())
    })?;
    Ok((walk.is_whole, walk.blocks))
}

/// Checks a record. Returns whether its inodes can be read.
fn check_chunk(
    checker: &mut Checker<'_>,
    ag: AgNr,
    chunk: &InodeChunk,
    kind: BtreeKind,
) -> Flow<bool> {
    let geometry = checker.context.geometry();
    let (block, offset) = geometry.locate_ag_inode(chunk.start);
    let locus = checker.locus_in(ag, block.0);
    let per_block = geometry.inodes_per_block();
    let is_whole_block = offset == 0 || per_block > CHUNK_INODES;
    let last = chunk.start.0.saturating_add(CHUNK_INODES - 1);
    let exists = geometry.is_ag_inode(ag, chunk.start);
    // The end of a group may cut the holes of a chunk off.
    let is_inside = (0..CHUNK_INODES).all(|index| {
        let inode = crate::ondisk::AgInode(chunk.start.0.saturating_add(index));
        chunk.existing() >> index & 1 == 0 || geometry.is_ag_inode(ag, inode)
    });
    if !exists || !is_inside || last < chunk.start.0 || !is_whole_block {
        checker.found(locus, ChunkRule::Location)?;
        return Ok(false);
    }
    let is_aligned = match geometry.inode_alignment {
        0 => true,
        alignment => block.0.is_multiple_of(alignment),
    };
    if !is_aligned || !chunk.start.0.is_multiple_of(CHUNK_INODES.min(per_block)) {
        checker.found(locus, ChunkRule::Alignment)?;
    }
    if !chunk.is_consistent() {
        checker.found(locus, ChunkRule::Counts)?;
    }
    if kind == BtreeKind::Finobt && chunk.free_count == 0 {
        checker.found(locus, ChunkRule::NoneFree)?;
    }
    Ok(true)
}

/// Claims the blocks of a chunk but `last`, which the chunk before it claimed. Returns whether it
/// overlaps no other one.
fn claim_chunk(
    checker: &mut Checker<'_>,
    ag: AgNr,
    chunk: &InodeChunk,
    last: &mut Option<AgBlock>,
) -> Flow<bool> {
    let geometry = checker.context.geometry();
    let (block, _) = geometry.locate_ag_inode(chunk.start);
    let Some(first) = geometry.inode_nr(ag, chunk.start) else {
        return Ok(false);
    };
    if !checker.inodes.add_chunk(first.get()) {
        checker.found(checker.locus_in(ag, block.0), ChunkRule::Overlap)?;
        return Ok(false);
    }
    let per_block = geometry.inodes_per_block().min(CHUNK_INODES);
    let existing = chunk.existing();
    for nth in 0..geometry.chunk_blocks() {
        let mut inodes = nth * per_block..(nth + 1) * per_block;
        let is_there = inodes.any(|index| existing >> index.min(63) & 1 != 0);
        let block = AgBlock(block.0.saturating_add(nth));
        if is_there && last.replace(block) != Some(block) {
            checker.claims.add_special(ag, block, 1, RmapOwner::INODES);
        }
    }
    Ok(true)
}
