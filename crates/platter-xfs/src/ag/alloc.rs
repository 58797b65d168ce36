//! Which free extent is taken: by length with an alignment, or at a block; and what has to stay free.
//! Spec: `xfs/allocation_groups`, "AG Free Space B+trees".

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::writing::RangeSet;

use super::reserve::{SLACK_BLOCKS, kept_blocks};
use super::rules::GroupRule;
use super::space::min_free_list;
use super::{Group, space};
use crate::ondisk::AgBlock;
use crate::ondisk::btree::{BtreeKind, DiskFreeExtent};
use crate::tree::TreeRecord;

fn range_of(extent: DiskFreeExtent) -> Range<u32> {
    let start = extent.start.get();
    start..start.saturating_add(extent.count.get())
}

/// The first place for `count` blocks in a range at a multiple of `align`; with fewer blocks, the longest.
fn place_in(range: &Range<u32>, count: u32, align: u32) -> Option<(AgBlock, u32)> {
    let start = range.start.checked_next_multiple_of(align.max(1))?;
    let len = range.end.checked_sub(start).filter(|&len| len > 0)?;
    Some((AgBlock(start), len.min(count)))
}

/// The blocks of a free extent.
///
/// # Errors
/// That the group does not have them, which the verifiers of B-tree blocks do not find.
fn range_within(group: &Group<'_>, extent: DiskFreeExtent) -> Result<Range<u32>> {
    let range = range_of(extent);
    let is_within = range.start > 0 && range.end <= group.agf.length;
    if !is_within || extent.count.get() == 0 {
        return Err(space::space_broken(group, GroupRule::FreeExtent));
    }
    Ok(range)
}

/// The blocks that may be allocated: those that are free, without what its B-trees may come to need.
#[must_use]
pub(crate) fn available(group: &Group<'_>) -> u32 {
    if !group.keeps_reserve {
        return group.agf.free_blocks;
    }
    let wanted = min_free_list(group.agf, group.limits);
    let missing = wanted.saturating_sub(group.free_list.len());
    let missing = u32::try_from(missing).unwrap_or(u32::MAX);
    let kept = kept_blocks(group.agf, group.agi, group.limits);
    let others = missing.saturating_add(kept).saturating_add(SLACK_BLOCKS);
    let claimed = group.claims.count();
    group
        .agf
        .free_blocks
        .saturating_sub(others)
        .saturating_sub(claimed)
}

/// The smallest free place for `count` blocks at a multiple of `align`, outside the blocks to `avoid` and
/// those that are claimed; where there is none, the longest that is shorter.
pub(crate) fn find_by_length(
    group: &Group<'_>,
    count: u32,
    align: u32,
    avoid: &RangeSet<u32>,
) -> Result<Option<(AgBlock, u32)>> {
    let mut best: Option<(AgBlock, u32)> = None;
    let better = |best: Option<(AgBlock, u32)>, extent: DiskFreeExtent| -> Result<_> {
        let gaps = group.claims.gaps(range_within(group, extent)?);
        let gaps = gaps.flat_map(|gap| avoid.gaps(gap));
        let found = gaps.filter_map(|gap| place_in(&gap, count, align));
        // The first of the longest.
        let longer = |best: (AgBlock, u32), next: (AgBlock, u32)| {
            if next.1 > best.1 { next } else { best }
        };
        Ok(best.into_iter().chain(found).reduce(longer))
    };
    let mut order = (u64::from(count), 0, 0);
    while let Some(extent) = group.lookup_ge::<DiskFreeExtent>(BtreeKind::Cnt, order)? {
        best = better(best, extent)?;
        if best.is_some_and(|(_, len)| len == count) {
            return Ok(best);
        }
        let (len, start, _) = TreeRecord::order(&extent, BtreeKind::Cnt);
        order = (len, start + 1, 0);
    }
    let mut order = (u64::from(count), 0, 0);
    while let Some(extent) = group.lookup_lt::<DiskFreeExtent>(BtreeKind::Cnt, order)? {
        let (len, start, _) = TreeRecord::order(&extent, BtreeKind::Cnt);
        best = better(best, extent)?;
        if best.is_some_and(|(_, best)| u64::from(best) >= len) {
            break;
        }
        order = (len, start, 0);
    }
    Ok(best)
}

/// The free blocks from `start` on, at most so many; `None` if `start` is in use or to be avoided.
pub(crate) fn find_at(
    group: &Group<'_>,
    start: AgBlock,
    most: u32,
    avoid: &RangeSet<u32>,
) -> Result<Option<(AgBlock, u32)>> {
    let order = (u64::from(start.0) + 1, 0, 0);
    let extent: Option<DiskFreeExtent> = group.lookup_lt(BtreeKind::Bno, order)?;
    let extent = extent
        .map(|extent| range_within(group, extent))
        .transpose()?;
    let Some(end) = extent.map(|extent| extent.end).filter(|&end| end > start.0) else {
        return Ok(None);
    };
    let first = group.claims.gaps(start.0..end).next();
    let first = first.and_then(|gap| avoid.gaps(gap).next());
    let first = first.filter(|gap| gap.start == start.0);
    Ok(first.map(|gap| (start, (gap.end - gap.start).min(most))))
}

/// Takes free blocks out of the free space trees; without an owner yet.
pub(crate) fn take(group: &mut Group<'_>, start: AgBlock, count: u32) -> Result<()> {
    let broken = Corrupt::new(Locus::group(group.ag.0.into()), GroupRule::NotFree);
    let end = start.0.checked_add(count).ok_or(broken)?;
    let order = (u64::from(start.0) + 1, 0, 0);
    let old: Option<DiskFreeExtent> = group.lookup_lt(BtreeKind::Bno, order)?;
    let old = old.filter(|old| range_of(*old).end >= end && count > 0);
    let old = old.ok_or(broken)?;
    let whole = range_within(group, old)?;
    let extent = |range: Range<u32>| DiskFreeExtent {
        start: range.start.into(),
        count: (range.end - range.start).into(),
    };
    group.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
    let order = old.order(BtreeKind::Bno);
    let (before, after) = (whole.start..start.0, end..whole.end);
    let mut left = [before, after].into_iter().filter(|part| !part.is_empty());
    match (left.next(), left.next()) {
        (None, _) => group.remove::<DiskFreeExtent>(BtreeKind::Bno, order)?,
        (Some(only), second) => {
            group.replace(BtreeKind::Bno, order, extent(only.clone()))?;
            group.insert(BtreeKind::Cnt, extent(only))?;
            if let Some(second) = second {
                group.insert(BtreeKind::Bno, extent(second.clone()))?;
                group.insert(BtreeKind::Cnt, extent(second))?;
            }
        }
    }
    group.agf.free_blocks = group.agf.free_blocks.saturating_sub(count);
    space::update_longest(group)
}

/// Blocks that nothing may have that has no LSN, as inodes of a new chunk, values of attributes and parts of directory
/// blocks: those that this change freed, or a checkpoint that is not durable. An older checkpoint may hold what they were,
/// which is replayed over all that has no newer LSN, unless a later checkpoint cancels it; and one that cancels it skips new
/// inodes of its own there. What nothing at all may have, as its old contents are replayed over any LSN, is
/// [withheld](super::Groups::withhold): chunks of inodes, and parts of directory blocks.
fn blocks_to_be_replayed(group: &mut Group<'_>) -> RangeSet<u32> {
    let Some(busy) = group.busy else {
        return RangeSet::default();
    };
    *group.left_busy |= !busy.is_empty();
    let mut blocks = freed_now(group);
    for (_, extent) in busy {
        blocks.insert(extent.clone());
    }
    blocks
}

/// Blocks of the group that this change freed.
fn freed_now(group: &Group<'_>) -> RangeSet<u32> {
    let mut blocks = RangeSet::default();
    for freed in group.freed.iter().filter(|freed| freed.ag == group.ag) {
        blocks.insert(freed.start.0..freed.start.0.saturating_add(freed.count));
    }
    blocks
}

/// Whether there are `count` blocks in a row for what has no LSN once the checkpoints that freed them are durable.
pub(crate) fn has_busy_run(group: &Group<'_>, count: u32) -> Result<bool> {
    if group.busy.is_none_or(<[_]>::is_empty) {
        return Ok(false);
    }
    let found = find_by_length(group, count, 1, &freed_now(group))?;
    Ok(found.is_some_and(|(_, found)| found == count))
}

/// Allocates blocks in a row, at most so many, for what has no LSN; without an owner yet. `None` if there are none.
pub(crate) fn without_lsn(group: &mut Group<'_>, most: u32) -> Result<Option<(AgBlock, u32)>> {
    space::fill_free_list(group)?;
    let avoid = blocks_to_be_replayed(group);
    let found = find_by_length(group, most, 1, &avoid)?;
    if let Some((start, count)) = found {
        take(group, start, count)?;
    }
    Ok(found)
}

/// Allocates `count` blocks for inodes in a row at a multiple of `align`, within `bounds`; without an owner yet.
/// `None` if there are none.
pub(crate) fn aligned(
    group: &mut Group<'_>,
    count: u32,
    align: u32,
    bounds: &Range<u32>,
) -> Result<Option<AgBlock>> {
    space::fill_free_list(group)?;
    let mut avoid = blocks_to_be_replayed(group);
    for range in [0..bounds.start, bounds.end..u32::MAX] {
        if !range.is_empty() {
            avoid.insert(range);
        }
    }
    let found = find_by_length(group, count, align, &avoid)?;
    let Some((start, _)) = found.filter(|(_, found)| *found == count) else {
        return Ok(None);
    };
    take(group, start, count)?;
    Ok(Some(start))
}
