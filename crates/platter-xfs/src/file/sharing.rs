//! Which parts of an extent other files use as well, by the reference counts of its group.

use std::ops::{ControlFlow, Range};

use platter_vfs::{Extent, ExtentSink, Result};

use super::part;
use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::btree::{BtreeKind, DiskRefcount, Refcount};
use crate::ondisk::{AgNr, Geometry};

/// Records of reference counts that are looked at together: as many change when shared blocks are copied.
const RECORDS_MAX: usize = 8;
/// Records that are looked at together when extents are listed, with the group locked.
const LISTED_MAX: usize = 256;

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

/// Reports the parts of an extent of the data device to `sink` in order, each shared or not, until it breaks.
pub(super) fn split(
    context: &FsContext,
    extent: &Extent,
    sink: &mut ExtentSink<'_>,
) -> Result<ControlFlow<()>> {
    let Some(place) = extent.place.filter(|_| !extent.unwritten) else {
        return Ok(sink(extent.clone()));
    };
    let geometry = context.geometry();
    let group_bytes = u64::from(geometry.ag_blocks) << geometry.block_bits;
    let (ag, _) = group_block(geometry, place.offset);
    // Offsets within the group, in bytes; extents do not cross groups.
    let start = place.offset % group_bytes;
    let end = start + (extent.file.end - extent.file.start);
    let bits = u32::from(geometry.block_bits);
    let file = |block: u64| extent.file.start + ((block << bits).clamp(start, end) - start);
    let part = |(blocks, shared): (Range<u64>, bool)| {
        part(extent, file(blocks.start)..file(blocks.end), shared)
    };
    let mut left = start >> bits..end.div_ceil(1 << bits);
    let mut last: Option<(Range<u64>, bool)> = None;
    while !left.is_empty() {
        let (ranges, known) = shared_ranges(context, ag, &left, LISTED_MAX)?;
        for (blocks, shared) in alternating(left.start..known, ranges) {
            match &mut last {
                Some((before, is_shared)) if *is_shared == shared => before.end = blocks.end,
                _ => {
                    if let Some(before) = last.replace((blocks, shared))
                        && sink(part(before)).is_break()
                    {
                        return Ok(ControlFlow::Break(()));
                    }
                }
            }
        }
        left.start = known;
    }
    Ok(last.map_or(ControlFlow::Continue(()), |last| sink(part(last))))
}

/// A range as parts that are some of its ranges, in order, and parts that are not.
fn alternating(whole: Range<u64>, ranges: Vec<Range<u64>>) -> Vec<(Range<u64>, bool)> {
    let mut parts = Vec::with_capacity(2 * ranges.len() + 1);
    let mut at = whole.start;
    for range in ranges {
        parts.push((at..range.start, false));
        at = range.end;
        parts.push((range, true));
    }
    parts.push((at..whole.end, false));
    parts.retain(|(part, _)| !part.is_empty());
    parts
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
            // Leaves of a corrupt tree may overlap.
            let known = ranges.last().map_or(blocks.start, |last| last.end);
            let start = u64::from(record.start.0).max(known);
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
