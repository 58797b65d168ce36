//! Which parts of an extent other files use as well, by the reference counts of its group.

use std::ops::Range;

use platter_vfs::{Extent, Result};

use super::part;
use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::{AgNr, Geometry};

use crate::ondisk::btree::{BtreeKind, DiskRefcount, Refcount};

/// Records of reference counts that are looked at together: as many change when shared blocks are copied.
const RECORDS_MAX: usize = 8;

/// Whether the first of `count` blocks from a byte of the data device on is shared, and for how many of them
/// that holds, as far as a few reference counts say.
pub fn is_shared(context: &FsContext, place: u64, count: u64) -> Result<(u64, bool)> {
    let geometry = context.geometry();
    let (ag, first) = group_block(geometry, place);
    let blocks = first..first.saturating_add(count);
    let (ranges, end) = shared_ranges(context, ag, &blocks, RECORDS_MAX)?;
    let Some(range) = ranges.first() else {
        return Ok((end - first, false));
    };
    if range.start > first {
        return Ok((range.start - first, false));
    }
    Ok((range.end - first, true))
}

/// The group of a byte of the data device, and its block there.
#[must_use]
pub fn group_block(geometry: &Geometry, place: u64) -> (AgNr, u64) {
    let block = place >> geometry.block_bits;
    let ag_blocks = u64::from(geometry.ag_blocks).max(1);
    let ag = u32::try_from(block / ag_blocks).unwrap_or(u32::MAX);
    (AgNr(ag), block % ag_blocks)
}

/// The parts of an extent of the data device, each shared or not.
pub(super) fn split(context: &FsContext, extent: &Extent) -> Result<Vec<Extent>> {
    let Some(place) = extent.place.filter(|_| !extent.unwritten) else {
        return Ok(vec![extent.clone()]);
    };
    let geometry = context.geometry();
    let group_bytes = u64::from(geometry.ag_blocks) << geometry.block_bits;
    let (ag, _) = group_block(geometry, place.offset);
    // Offsets within the group, in bytes; extents do not cross groups.
    let start = place.offset % group_bytes;
    let end = start + (extent.file.end - extent.file.start);
    let bits = u32::from(geometry.block_bits);
    let blocks = start >> bits..end.div_ceil(1 << bits);
    let file = |at: u64| extent.file.start + (at - start);
    let mut parts = Vec::new();
    let mut at = start;
    for shared in shared_ranges(context, ag, &blocks, usize::MAX)?.0 {
        let from = (shared.start << bits).max(start);
        let to = (shared.end << bits).min(end);
        if at < from {
            parts.push(part(extent, file(at)..file(from), false));
        }
        parts.push(part(extent, file(from)..file(to), true));
        at = to;
    }
    if at < end {
        parts.push(part(extent, file(at)..extent.file.end, false));
    }
    Ok(parts)
}

/// Ranges of blocks of a group within `blocks` that are referred to more than once, by so many records at most;
/// and the block up to which that is known.
fn shared_ranges(
    context: &FsContext,
    ag: AgNr,
    blocks: &Range<u64>,
    most: usize,
) -> Result<(Vec<Range<u64>>, u64)> {
    let _group = context.space().lock(ag);
    let Some(root) = context.agf(ag)?.refcount else {
        return Ok((Vec::new(), blocks.end));
    };
    let mut left = most;
    let tree = Tree::of_group(context, BtreeKind::Refcount, ag, root);
    let mut ranges: Vec<Range<u64>> = Vec::new();
    let mut key = Some(blocks.start);
    while let Some(at) = key {
        let Some(leaf) = tree.search(at)? else {
            // All records are after it.
            key = tree
                .first_key()?
                .filter(|&first| first > at && first < blocks.end);
            continue;
        };
        let view = tree.view_leaf(&leaf)?;
        for disk in view.records::<DiskRefcount>() {
            let record = Refcount::decode(disk);
            let start = u64::from(record.start.0).max(blocks.start);
            let end = u64::from(record.start.0) + u64::from(record.count);
            let end = end.min(blocks.end);
            if start >= end || record.is_staged || record.references < 2 {
                continue;
            }
            let Some(after) = left.checked_sub(1) else {
                let end = ranges.last().map_or(start, |last| last.end);
                return Ok((ranges, end));
            };
            left = after;
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        key = leaf.next_key.filter(|&next| next > at && next < blocks.end);
    }
    Ok((ranges, blocks.end))
}
