//! Which free extent is taken: by length with an alignment, or at a block; and what has to stay free.
//! Spec: `xfs/allocation_groups`, "AG Free Space B+trees".

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use platter_vfs::writing::RangeSet;

use super::Group;
use super::reserve::{SLACK_BLOCKS, kept_blocks};
use super::rules::GroupRule;
use super::space::min_free_list;
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

impl Group<'_> {
    /// The blocks of a free extent.
    ///
    /// # Errors
    /// That the group does not have them, which the verifiers of B-tree blocks do not find.
    fn range_within(&self, extent: DiskFreeExtent) -> Result<Range<u32>> {
        let range = range_of(extent);
        let is_within = range.start > 0 && range.end <= self.agf.length;
        if !is_within || extent.count.get() == 0 {
            return Err(self.space_broken(GroupRule::FreeExtent));
        }
        Ok(range)
    }

    /// The blocks that may be allocated: those that are free, without what its B-trees may come to need.
    #[must_use]
    pub fn available(&self) -> u32 {
        if !self.keeps_reserve {
            return self.agf.free_blocks;
        }
        let wanted = min_free_list(self.agf, &self.geometry);
        let missing = wanted.saturating_sub(self.free_list.len());
        let missing = u32::try_from(missing).unwrap_or(u32::MAX);
        let kept = kept_blocks(self.agf, self.agi, &self.geometry);
        let others = missing.saturating_add(kept).saturating_add(SLACK_BLOCKS);
        let claimed: u32 = self
            .claims
            .within(0..u32::MAX)
            .map(|range| range.end - range.start)
            .sum();
        self.agf
            .free_blocks
            .saturating_sub(others)
            .saturating_sub(claimed)
    }

    /// The smallest free place for `count` blocks at a multiple of `align`, outside the blocks to `avoid` and
    /// those that are claimed; where there is none, the longest that is shorter.
    pub fn find_by_length(
        &self,
        count: u32,
        align: u32,
        avoid: &RangeSet<u32>,
    ) -> Result<Option<(AgBlock, u32)>> {
        let mut best: Option<(AgBlock, u32)> = None;
        let better = |best: Option<(AgBlock, u32)>, extent: DiskFreeExtent| -> Result<_> {
            let gaps = self.claims.gaps(self.range_within(extent)?);
            let gaps = gaps.flat_map(|gap| avoid.gaps(gap));
            let found = gaps.filter_map(|gap| place_in(&gap, count, align));
            // The first of the longest.
            let longer = |best: (AgBlock, u32), next: (AgBlock, u32)| {
                if next.1 > best.1 { next } else { best }
            };
            Ok(best.into_iter().chain(found).reduce(longer))
        };
        let mut order = (u64::from(count), 0, 0);
        while let Some(extent) = self.lookup_ge::<DiskFreeExtent>(BtreeKind::Cnt, order)? {
            best = better(best, extent)?;
            if best.is_some_and(|(_, len)| len == count) {
                return Ok(best);
            }
            let (len, start, _) = TreeRecord::order(&extent, BtreeKind::Cnt);
            order = (len, start + 1, 0);
        }
        let mut order = (u64::from(count), 0, 0);
        while let Some(extent) = self.lookup_lt::<DiskFreeExtent>(BtreeKind::Cnt, order)? {
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
    pub fn find_at(
        &self,
        start: AgBlock,
        most: u32,
        avoid: &RangeSet<u32>,
    ) -> Result<Option<(AgBlock, u32)>> {
        let order = (u64::from(start.0) + 1, 0, 0);
        let extent: Option<DiskFreeExtent> = self.lookup_lt(BtreeKind::Bno, order)?;
        let extent = extent.map(|extent| self.range_within(extent)).transpose()?;
        let Some(end) = extent.map(|extent| extent.end).filter(|&end| end > start.0) else {
            return Ok(None);
        };
        let first = self.claims.gaps(start.0..end).next();
        let first = first.and_then(|gap| avoid.gaps(gap).next());
        let first = first.filter(|gap| gap.start == start.0);
        Ok(first.map(|gap| (start, (gap.end - gap.start).min(most))))
    }

    /// Takes free blocks out of the free space trees; without an owner yet.
    pub fn take_range(&mut self, start: AgBlock, count: u32) -> Result<()> {
        let broken = Corrupt::new(Locus::group(self.ag.0.into()), GroupRule::NotFree);
        let end = start.0.checked_add(count).ok_or(broken)?;
        let order = (u64::from(start.0) + 1, 0, 0);
        let old: Option<DiskFreeExtent> = self.lookup_lt(BtreeKind::Bno, order)?;
        let old = old.filter(|old| range_of(*old).end >= end && count > 0);
        let old = old.ok_or(broken)?;
        let whole = self.range_within(old)?;
        let extent = |range: Range<u32>| DiskFreeExtent {
            start: range.start.into(),
            count: (range.end - range.start).into(),
        };
        self.remove::<DiskFreeExtent>(BtreeKind::Cnt, old.order(BtreeKind::Cnt))?;
        let order = old.order(BtreeKind::Bno);
        let (before, after) = (whole.start..start.0, end..whole.end);
        let mut left = [before, after].into_iter().filter(|part| !part.is_empty());
        match (left.next(), left.next()) {
            (None, _) => self.remove::<DiskFreeExtent>(BtreeKind::Bno, order)?,
            (Some(only), second) => {
                self.replace(BtreeKind::Bno, order, extent(only.clone()))?;
                self.insert(BtreeKind::Cnt, extent(only))?;
                if let Some(second) = second {
                    self.insert(BtreeKind::Bno, extent(second.clone()))?;
                    self.insert(BtreeKind::Cnt, extent(second))?;
                }
            }
        }
        self.agf.free_blocks = self.agf.free_blocks.saturating_sub(count);
        self.update_longest()
    }

    /// Allocates `count` blocks in a row at a multiple of `align`, within `bounds`; without an owner yet.
    /// `None` if there are none.
    pub fn alloc_aligned(
        &mut self,
        count: u32,
        align: u32,
        bounds: &Range<u32>,
    ) -> Result<Option<AgBlock>> {
        self.fill_free_list()?;
        let mut outside = RangeSet::default();
        for range in [0..bounds.start, bounds.end..u32::MAX] {
            if !range.is_empty() {
                outside.insert(range);
            }
        }
        let found = self.find_by_length(count, align, &outside)?;
        let Some((start, _)) = found.filter(|(_, found)| *found == count) else {
            return Ok(None);
        };
        self.take_range(start, count)?;
        Ok(Some(start))
    }
}
