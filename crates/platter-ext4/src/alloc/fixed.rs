//! The blocks of the filesystem's own structures, which nothing may take or free.

use std::ops::Range;

use platter_ondisk::Locus;
use platter_vfs::Result;

use super::SpaceRule;
use crate::Volume;
use crate::groups::layout;
use crate::ondisk::features::Incompat;
use crate::ondisk::{Corrupt, Geometry, GroupDesc, GroupNr};

/// The blocks of superblocks, descriptors, bitmaps and inode tables.
///
/// # Invariants
/// The ranges are not empty, do not touch each other, and ascend.
#[derive(Debug)]
pub(super) struct FixedBlocks {
    ranges: Box<[Range<u64>]>,
}

/// Those of the groups seen so far.
#[derive(Debug, Default)]
pub(super) struct FixedBuilder {
    ranges: Vec<Range<u64>>,
}

impl FixedBuilder {
    /// Adds the structures of a group.
    pub(super) fn add(&mut self, geometry: &Geometry, group: GroupNr, desc: &GroupDesc) {
        self.push(layout::head(geometry, group));
        for range in layout::own(geometry, desc) {
            self.push(range);
        }
    }

    fn push(&mut self, range: Range<u64>) {
        match self.ranges.last_mut() {
            Some(last) if last.end == range.start => last.end = range.end,
            _ if range.is_empty() => {}
            _ => self.ranges.push(range),
        }
    }

    /// Proves that no two structures share a block.
    pub(super) fn build(mut self, volume: &Volume) -> Result<FixedBlocks> {
        let block = volume.superblock.mmp_block;
        let has_mmp = volume.geometry.features.incompat.contains(Incompat::MMP);
        if has_mmp && block < volume.geometry.blocks_count {
            self.push(block..block.saturating_add(1));
        }
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
        Ok(FixedBlocks {
            ranges: ranges.into(),
        })
    }
}

impl FixedBlocks {
    /// The parts of `blocks` that are the filesystem's own, in ascending order.
    pub(super) fn within(&self, blocks: Range<u64>) -> impl Iterator<Item = Range<u64>> + '_ {
        let first = self
            .ranges
            .partition_point(|range| range.end <= blocks.start);
        let rest = self.ranges.get(first..).unwrap_or_default();
        rest.iter()
            .take_while({
                let end = blocks.end;
                move |range| range.start < end
            })
            .map(move |range| range.start.max(blocks.start)..range.end.min(blocks.end))
    }
}
