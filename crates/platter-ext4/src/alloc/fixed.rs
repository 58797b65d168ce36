//! The blocks of the filesystem's fixed metadata, which are never allocated or freed.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::SpaceRule;
use super::ranges::BlockRanges;
use crate::FsContext;
use crate::groups::layout;
use crate::ondisk::features::Incompat;
use crate::ondisk::{Geometry, GroupDesc, GroupNr};

/// The blocks of superblocks, descriptors, bitmaps and inode tables, of the groups added so far.
#[derive(Debug, Default)]
pub(super) struct FixedBuilder {
    ranges: Vec<Range<u64>>,
    /// The last range of each kind: with `flex_bg`, the next group's metadata is adjacent.
    heads: Range<u64>,
    own: [Range<u64>; 3],
}

impl FixedBuilder {
    /// Adds the metadata of a group.
    pub(super) fn add(&mut self, geometry: &Geometry, group: GroupNr, desc: &GroupDesc) {
        let ranges = &mut self.ranges;
        follow(ranges, &mut self.heads, layout::head(geometry, group));
        for (last, range) in self.own.iter_mut().zip(layout::own(geometry, desc)) {
            follow(ranges, last, range);
        }
    }

    /// Checks that no two structures share a block.
    pub(super) fn build(mut self, fs: &FsContext) -> Result<BlockRanges> {
        let block = fs.superblock.mmp_block;
        let has_mmp = fs.geometry.features.incompat.contains(Incompat::MMP);
        if has_mmp && block < fs.geometry.blocks_count {
            self.ranges.push(block..block.saturating_add(1));
        }
        let last = self.own.into_iter().chain([self.heads]);
        self.ranges.extend(last.filter(|range| !range.is_empty()));
        self.ranges.sort_unstable_by_key(|range| range.start);
        let mut ranges: Vec<Range<u64>> = Vec::new();
        for range in self.ranges {
            match ranges.last_mut() {
                Some(last) if range.start < last.end => {
                    let locus = Locus::block(range.start);
                    return Err(Corrupt::new(locus, SpaceRule::Overlap).into());
                }
                Some(last) if range.start == last.end => last.end = range.end,
                _ => ranges.push(range),
            }
        }
        Ok(BlockRanges::new(ranges))
    }
}

/// Extends `last` by `range` if it is adjacent; else completes `last` and begins another one.
fn follow(ranges: &mut Vec<Range<u64>>, last: &mut Range<u64>, range: Range<u64>) {
    if range.is_empty() {
        return;
    }
    if last.end == range.start {
        last.end = range.end;
        return;
    }
    let before = std::mem::replace(last, range);
    if !before.is_empty() {
        ranges.push(before);
    }
}
