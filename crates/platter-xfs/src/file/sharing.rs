//! Which parts of an extent other files use as well, by the reference counts of its group.

use std::ops::Range;

use platter_vfs::{Extent, Place, Result};

use super::part;
use crate::btree::Tree;
use crate::context::FsContext;
use crate::ondisk::AgNr;
use crate::ondisk::btree::{BtreeKind, DiskRefcount, Refcount};

/// Whether the first of `count` blocks from a byte of the data device on is shared, and for how many of them
/// that holds.
pub fn is_shared(context: &FsContext, place: u64, count: u64) -> Result<(u64, bool)> {
    let bits = u32::from(context.geometry().block_bits);
    let extent = Extent {
        place: Some(Place {
            member: 0,
            offset: place,
        }),
        ..Extent::of(0..count << bits)
    };
    let parts = split(context, &extent)?;
    let first = parts.first();
    Ok(first.map_or((count, false), |first| {
        (first.file.end >> bits, first.shared)
    }))
}

/// The parts of an extent of the data device, each shared or not.
pub(super) fn split(context: &FsContext, extent: &Extent) -> Result<Vec<Extent>> {
    let Some(place) = extent.place.filter(|_| !extent.unwritten) else {
        return Ok(vec![extent.clone()]);
    };
    let geometry = context.geometry();
    let group_bytes = u64::from(geometry.ag_blocks) << geometry.block_bits;
    let ag = AgNr(u32::try_from(place.offset / group_bytes).unwrap_or(u32::MAX));
    // Offsets within the group, in bytes; extents do not cross groups.
    let start = place.offset % group_bytes;
    let end = start + (extent.file.end - extent.file.start);
    let bits = u32::from(geometry.block_bits);
    let blocks = start >> bits..end.div_ceil(1 << bits);
    let file = |at: u64| extent.file.start + (at - start);
    let mut parts = Vec::new();
    let mut at = start;
    for shared in shared_ranges(context, ag, &blocks)? {
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

/// Ranges of blocks of a group within `blocks` that are referred to more than once.
fn shared_ranges(context: &FsContext, ag: AgNr, blocks: &Range<u64>) -> Result<Vec<Range<u64>>> {
    let Some(root) = context.agf(ag)?.refcount else {
        return Ok(Vec::new());
    };
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
            match ranges.last_mut() {
                Some(last) if last.end == start => last.end = end,
                _ => ranges.push(start..end),
            }
        }
        key = leaf.next_key.filter(|&next| next > at && next < blocks.end);
    }
    Ok(ranges)
}
