//! What of a file is only in the page cache: dirty blocks that get others at writeback, and the space that
//! is reserved to them.

use std::ops::Range;

use platter_vfs::writing::RangeSet;

/// Dirty blocks where the mapping has a hole, unwritten blocks, or shared ones.
///
/// # Invariants
/// A dirty block of a hole, or of shared blocks, has a reservation of one free block.
#[derive(Debug, Default)]
pub(in crate::ops) struct Delayed {
    dirty: RangeSet<u64>,
    reserved: RangeSet<u64>,
    /// Blocks that are reserved for the B-tree of mappings.
    indirect: u64,
    /// Blocks that are reserved for the end of the file, with those for the B-tree, while they are allocated.
    ahead: u64,
}

impl Delayed {
    pub(super) fn dirty(&self) -> &RangeSet<u64> {
        &self.dirty
    }

    /// Blocks that are reserved to contents.
    pub(in crate::ops) fn reserved(&self) -> u64 {
        let ranges = self.reserved.within(0..u64::MAX);
        ranges.map(|range| range.end - range.start).sum()
    }

    /// Adds dirty blocks. Returns those that were not.
    pub(super) fn add(&mut self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let new = self.dirty.gaps(blocks.clone()).collect();
        self.dirty.insert(blocks);
        new
    }

    /// The blocks of a range that have no reservation.
    pub(super) fn unreserved(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.reserved.gaps(blocks).collect()
    }

    /// Records reserved, and so many for the B-tree.
    pub(super) fn reserve_blocks(&mut self, parts: Vec<Range<u64>>, indirect: u64) {
        for blocks in parts {
            self.reserved.insert(blocks);
        }
        self.indirect += indirect;
    }

    /// Records blocks that are reserved for the end of the file.
    pub(super) fn reserve_ahead(&mut self, count: u64) {
        self.ahead += count;
    }

    /// Takes out what is reserved for the end of the file.
    pub(super) fn take_ahead(&mut self) -> u64 {
        std::mem::take(&mut self.ahead)
    }

    /// Takes blocks out that are on the device, or are not to be written any more. Returns the reserved blocks
    /// that are not needed any more.
    pub(super) fn forget(&mut self, blocks: Range<u64>) -> u64 {
        self.dirty.remove(blocks.clone());
        let mut count = self.reserved.remove(blocks);
        if self.dirty.is_empty() && self.reserved.is_empty() {
            count += std::mem::take(&mut self.indirect);
        }
        count
    }
}
