//! A set of blocks, as ranges.

use std::ops::Range;

/// Blocks of the whole filesystem.
///
/// # Invariants
/// The ranges are not empty, and ascending without overlaps.
#[derive(Debug)]
pub(super) struct BlockRanges(Box<[Range<u64>]>);

impl BlockRanges {
    /// The set of these ranges, which hold to the invariants.
    pub(super) fn new(ranges: Vec<Range<u64>>) -> Self {
        Self(ranges.into())
    }

    /// Returns the parts of `blocks` that are in the set, in ascending order.
    pub(super) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self.0.partition_point(|range| range.end <= blocks.start);
        let rest = self.0.get(first..).unwrap_or_default();
        rest.iter()
            .take_while({
                let end = blocks.end;
                move |range| range.start < end
            })
            .map(move |range| range.start.max(blocks.start)..range.end.min(blocks.end))
    }
}
