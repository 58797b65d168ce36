//! `fallocate(2)`: space that is allocated, punched out or moved within a file.

use std::ops::Range;

use super::map::is_written;
use super::truncate::{finish_truncation, lengthen, while_invalidating};
use super::write::write_reserved;
use super::{FileBlocks, WriteTo, blocks_of, cached_unit_bytes};
use crate::{Condition, FallocateMode, Result};

/// Shared bytes that are written anew at once.
const UNSHARED_BYTES: u64 = 1 << 20;

/// Allocates, frees or moves space.
///
/// # Errors
/// `InvalidArgument` for ranges that cannot be moved, `NotSupported` where the mapping has no unwritten
/// blocks, or none that files share, `NotPermitted` for an append-only file, `FileTooLarge`, `NoSpace`; else the
/// driver's.
pub fn fallocate<F: FileBlocks>(file: &F, range: Range<u64>, mode: FallocateMode) -> Result<()> {
    file.check_write()?;
    if range.is_empty() {
        return Err(Condition::InvalidArgument.into());
    }
    let _lock = file.inode_lock().write();
    if range.end > file.size_bytes_max() {
        return Err(Condition::FileTooLarge.into());
    }
    let only_adds = matches!(mode, FallocateMode::Allocate { .. });
    if file.is_append_only() && !only_adds {
        return Err(Condition::NotPermitted.into());
    }
    file.leave_inline()?;
    if mode != FallocateMode::PunchHole {
        if !file.has_unwritten() {
            return Err(Condition::NotSupported.into());
        }
        finish_truncation(file)?;
    }
    match mode {
        FallocateMode::Allocate { keep_size } => allocate(file, range, keep_size),
        FallocateMode::PunchHole => punch(file, range),
        FallocateMode::ZeroRange { keep_size } => zero(file, range, keep_size),
        FallocateMode::CollapseRange => collapse(file, range),
        FallocateMode::InsertRange => insert(file, range),
        FallocateMode::UnshareRange { keep_size } => unshare(file, range, keep_size),
    }
}

/// Writes shared blocks anew, which gives them a place of their own, a part at a time.
fn unshare<F: FileBlocks>(file: &F, range: Range<u64>, keep_size: bool) -> Result<()> {
    let bits = file.block_bits();
    let size = file.data().size_bytes();
    // What is dirty there gets blocks of its own by itself.
    file.pages().write_back(file, range.clone())?;
    let blocks = blocks_of(file, &(range.start..range.end.min(size).max(range.start)));
    let mut at = blocks.start;
    while let Some(shared) = file.next_shared(at..blocks.end)? {
        let count = (shared.end - shared.start).min((UNSHARED_BYTES >> bits).max(1));
        at = shared.start + count;
        let bytes = shared.start << bits..(at << bits).min(size);
        let mut copy = vec![0; usize::try_from(bytes.end - bytes.start).unwrap_or_default()];
        let len = file.pages().read_at(file, bytes.start, &mut copy)?;
        copy.truncate(len);
        write_reserved(file, bytes.start, &copy, WriteTo::Cache)?;
        file.pages().write_back(file, bytes)?;
    }
    allocate(file, range, keep_size)
}

fn allocate<F: FileBlocks>(file: &F, range: Range<u64>, keep_size: bool) -> Result<()> {
    // What has a reservation is allocated first, so that nothing is reserved twice.
    file.pages().write_back(file, range.clone())?;
    file.allocate_unwritten(blocks_of(file, &range))?;
    end_change(file, if keep_size { 0 } else { range.end })
}

fn punch<F: FileBlocks>(file: &F, range: Range<u64>) -> Result<()> {
    let size = file.data().size_bytes();
    if range.start >= size {
        return Ok(());
    }
    let end = range.end.min(
        size.checked_next_multiple_of(cached_unit_bytes(file))
            .unwrap_or(size),
    );
    file.write_back_shared_reservations(0..u64::MAX)?;
    let inner = clear_edges(file, &(range.start..end))?;
    drop_in_steps(file, inner, F::punch_blocks)?;
    end_change(file, 0)
}

/// Has `drop` take blocks from the mapping, and takes them out of the cache. Where it fails, the rest is as it was.
fn drop_in_steps<F: FileBlocks>(
    file: &F,
    range: Range<u64>,
    drop: impl Fn(&F, Range<u64>) -> Result<()>,
) -> Result<()> {
    let bits = file.block_bits();
    let mut blocks = blocks_of(file, &range);
    loop {
        let step = file.prepare_punch(blocks.clone())?;
        let bytes = step.start << bits..step.end << bits;
        while_invalidating(file, || {
            drop_cached(file, &bytes)?;
            let _alone = file.data().mapping.write();
            drop(file, step.clone())
        })?;
        // What others read meanwhile was still there.
        file.pages().remove_range(bytes);
        blocks.start = step.end;
        if blocks.is_empty() {
            return Ok(());
        }
    }
}

fn zero<F: FileBlocks>(file: &F, range: Range<u64>, keep_size: bool) -> Result<()> {
    let inner = clear_edges(file, &range)?;
    drop_in_steps(file, inner, F::convert_unwritten)?;
    file.pages().write_back(file, range.clone())?;
    file.allocate_unwritten(blocks_of(file, &range))?;
    end_change(file, if keep_size { 0 } else { range.end })
}

fn collapse<F: FileBlocks>(file: &F, range: Range<u64>) -> Result<()> {
    refuse_unaligned(file, &range)?;
    let size = file.data().size_bytes();
    if range.end >= size {
        return Err(Condition::InvalidArgument.into());
    }
    write_back_from(file, range.start)?;
    let new_size = size - (range.end - range.start);
    move_contents(file, range.start, || {
        file.collapse_blocks(blocks_of(file, &range), new_size)
    })
}

fn insert<F: FileBlocks>(file: &F, range: Range<u64>) -> Result<()> {
    refuse_unaligned(file, &range)?;
    let size = file.data().size_bytes();
    if range.start >= size {
        return Err(Condition::InvalidArgument.into());
    }
    let new_size = size.checked_add(range.end - range.start);
    let new_size = new_size.filter(|&size| size <= file.size_bytes_max());
    let new_size = new_size.ok_or(Condition::FileTooLarge)?;
    let blocks = blocks_of(file, &range);
    write_back_from(file, range.start)?;
    if !file.may_shift_up(blocks.end - blocks.start)? {
        return Err(Condition::InvalidArgument.into());
    }
    move_contents(file, range.start, || file.insert_blocks(blocks, new_size))
}

/// Has `work` move blocks of the mapping from byte `start` on, and makes it durable. What is written next
/// goes straight to them, and would be found at their former offsets after a crash.
fn move_contents<F: FileBlocks>(
    file: &F,
    start: u64,
    work: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let alone = file.data().mapping.write();
    let moved = work();
    drop(alone);
    // Others read what lay there before, and some of it may have moved, whatever came of it.
    file.pages().invalidate(start..u64::MAX);
    moved?;
    end_change(file, 0)?;
    file.commit_mapping()
}

/// Ranges are moved in whole clusters.
fn refuse_unaligned<F: FileBlocks>(file: &F, range: &Range<u64>) -> Result<()> {
    let unit = file.cluster_bytes();
    if range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit) {
        return Ok(());
    }
    Err(Condition::InvalidArgument.into())
}

/// Writes zeros to the blocks that a range covers in part, as far as they have contents. Returns the rest:
/// whole blocks, or nothing.
fn clear_edges<F: FileBlocks>(file: &F, range: &Range<u64>) -> Result<Range<u64>> {
    let block_bytes = 1 << file.block_bits();
    let inner_start = range.start.next_multiple_of(block_bytes);
    let inner_end = range.end - range.end % block_bytes;
    let size = file.data().size_bytes();
    let edges = if inner_start > inner_end {
        [range.clone(), 0..0]
    } else {
        [range.start..inner_start, inner_end..range.end]
    };
    for edge in edges {
        let edge = edge.start..edge.end.min(size);
        if edge.is_empty() || !has_contents(file, edge.start)? {
            continue;
        }
        let zeros = vec![0; usize::try_from(edge.end - edge.start).unwrap_or_default()];
        write_reserved(file, edge.start, &zeros, WriteTo::Cache)?;
    }
    Ok(inner_start..inner_end.max(inner_start))
}

/// Whether the block of a byte has contents, on the device or in the cache.
fn has_contents<F: FileBlocks>(file: &F, offset: u64) -> Result<bool> {
    let block = offset >> file.block_bits();
    let is_delayed = || {
        let delayed = file.next_delayed(block);
        delayed.is_some_and(|delayed| delayed.start == block)
    };
    // In this order: a writeback maps what is delayed.
    Ok(is_delayed() || is_written(file, block)?)
}

/// Takes whole blocks out of the cache, written or not.
fn drop_cached<F: FileBlocks>(file: &F, range: &Range<u64>) -> Result<()> {
    write_back_partial_clusters(file, range.clone())?;
    file.pages().remove_range(range.clone());
    Ok(())
}

/// Writes back dirty pages of clusters that a range covers in part: their space may be freed with the
/// range, and a reservation would be missing.
pub(super) fn write_back_partial_clusters<F: FileBlocks>(
    file: &F,
    range: Range<u64>,
) -> Result<()> {
    let unit = file.cluster_bytes();
    if unit == 1 << file.block_bits() {
        return Ok(());
    }
    for edge in [range.start, range.end] {
        if !edge.is_multiple_of(unit) && edge != u64::MAX {
            let start = edge - edge % unit;
            file.pages().write_back(file, start..start + unit)?;
        }
    }
    Ok(())
}

/// Writes what is dirty from a byte on, and takes it out of the cache.
fn write_back_from<F: FileBlocks>(file: &F, start: u64) -> Result<()> {
    file.pages().write_back(file, start..u64::MAX)?;
    file.pages().invalidate(start..u64::MAX);
    Ok(())
}

/// Sets the times of a change, and has the file end at `end` at least.
fn end_change<F: FileBlocks>(file: &F, end: u64) -> Result<()> {
    if end > file.data().size_bytes() {
        lengthen(file, end)
    } else {
        file.touch()
    }
}
