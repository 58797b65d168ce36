//! What of a file is only in the page cache: dirty blocks that get others at writeback, and the space that
//! is reserved to them.

use std::ops::Range;

use platter_vfs::writing::RangeSet;

use crate::mapping::ForkMap;
use crate::ondisk::Geometry;
use crate::ondisk::btree::BtreeKind;

/// Dirty blocks where the mapping has a hole, unwritten blocks, or shared ones.
///
/// # Invariants
/// A dirty block of a hole, or of shared blocks, has a reservation of one free block. No more is reserved for the B-tree
/// of mappings than all that is reserved and converted may need together.
#[derive(Debug, Default)]
pub(in crate::ops) struct Delayed {
    dirty: RangeSet<u64>,
    reserved: CountedRanges,
    /// Dirty unwritten blocks that the B-tree of mappings has reservations for.
    converted: CountedRanges,
    /// Blocks that are reserved for the B-tree of mappings.
    indirect: u64,
    /// Blocks that are reserved for the end of the file, with those for the B-tree, while they are allocated.
    ahead: u64,
}

/// The B-tree of a file's mappings, as far as its growth depends on it.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct MappingTree {
    /// Levels of blocks below the inode: none while it holds the mappings itself.
    levels: u64,
    /// The fewest records of a leaf, and the fewest keys of a node.
    records_min: [u64; 2],
}

/// Ranges of blocks, with how many there are.
#[derive(Debug, Default)]
struct CountedRanges {
    ranges: RangeSet<u64>,
    count: u64,
    blocks: u64,
}

impl MappingTree {
    /// The tree of a file's data.
    pub(super) fn new(map: &ForkMap, geometry: &Geometry) -> Self {
        let min = |level| (BtreeKind::Bmap.records_max(level, geometry) / 2).max(2) as u64;
        Self {
            levels: map.levels().into(),
            records_min: [0, 1].map(min),
        }
    }

    /// Returns how many blocks the tree may grow by where so many ranges, of so many blocks in all, get mappings: each
    /// range may split a leaf that is full, and each further half leaf of mappings fills another; what is above
    /// grows by a key for each leaf, and by one level (`xfs_bmap_worst_indlen`).
    pub(in crate::ops) fn growth_max(&self, ranges: u64, blocks: u64) -> u64 {
        let [leaf, node] = self.records_min;
        let mut added = match ranges {
            0 => return 0,
            ranges => ranges + blocks / leaf,
        };
        let mut total = added;
        let mut level = 0;
        while level < self.levels || added > 1 {
            added = added.div_ceil(node);
            total += added;
            level += 1;
        }
        total
    }
}

impl CountedRanges {
    /// Adds a range, of which parts may be there.
    fn insert(&mut self, range: &Range<u64>) {
        while let Some(gap) = self.missing(range) {
            self.count += 1;
            self.count -= self.neighbours(&gap);
            self.blocks += self.ranges.insert(gap);
        }
    }

    /// The first part of a range that is not there.
    fn missing(&self, range: &Range<u64>) -> Option<Range<u64>> {
        self.ranges.gaps(range.clone()).next()
    }

    /// Takes a range out, of which parts may be missing. Returns how many blocks were there.
    fn remove(&mut self, range: Range<u64>) -> u64 {
        let parts: Vec<Range<u64>> = self.ranges.within(range).collect();
        let before = self.blocks;
        for part in parts {
            self.count += self.neighbours(&part);
            self.count -= 1;
            self.blocks -= self.ranges.remove(part);
        }
        before - self.blocks
    }

    /// How many of the blocks next to a range are there.
    fn neighbours(&self, range: &Range<u64>) -> u64 {
        let before = range.start.checked_sub(1);
        let is_before = before.is_some_and(|before| self.ranges.contains(before));
        u64::from(is_before) + u64::from(self.ranges.contains(range.end))
    }
}

impl Delayed {
    pub(super) fn dirty(&self) -> &RangeSet<u64> {
        &self.dirty
    }

    /// Blocks that are reserved to contents.
    pub(in crate::ops) fn reserved(&self) -> u64 {
        self.reserved.blocks
    }

    /// Returns how many more mappings there may be once all dirty blocks are written: one for each that has a
    /// reservation, two for each other one, which may lie between unwritten blocks.
    pub(super) fn new_mappings_max(&self) -> u64 {
        let dirty = self.dirty.count();
        dirty.saturating_mul(2).saturating_sub(self.reserved())
    }

    /// Adds dirty blocks. Returns those that were not.
    pub(super) fn add(&mut self, blocks: Range<u64>) -> Vec<Range<u64>> {
        let new = self.dirty.gaps(blocks.clone()).collect();
        self.dirty.insert(blocks);
        new
    }

    /// The blocks of a range that have no reservation.
    pub(super) fn unreserved(&self, blocks: Range<u64>) -> Vec<Range<u64>> {
        self.reserved.ranges.gaps(blocks).collect()
    }

    /// Records reservations for blocks that have none: `parts` get others, and `converted` are unwritten. `reserve`
    /// takes so many free blocks, or says that there are none; then nothing is recorded. Returns blocks that are not
    /// needed any more since ranges have become one, or nothing where there was no space.
    pub(super) fn reserve(
        &mut self,
        parts: &[Range<u64>],
        converted: &[Range<u64>],
        tree: &MappingTree,
        reserve: impl FnOnce(u64) -> bool,
    ) -> Option<u64> {
        let (blocks, needed) = (self.reserved.blocks, self.indirect_max(tree));
        for part in parts {
            self.reserved.insert(part);
        }
        for part in converted {
            self.converted.insert(part);
        }
        let indirect = self.indirect_max(tree).saturating_sub(needed);
        let wanted = self.reserved.blocks - blocks + indirect;
        if wanted > 0 && !reserve(wanted) {
            for part in parts {
                self.reserved.remove(part.clone());
            }
            for part in converted {
                self.converted.remove(part.clone());
            }
            return None;
        }
        self.indirect += indirect;
        Some(self.take_surplus(tree))
    }

    /// Records blocks that are reserved for the end of the file.
    pub(super) fn reserve_ahead(&mut self, count: u64) {
        self.ahead += count;
    }

    /// Whether blocks are reserved for the end of the file.
    pub(super) fn has_ahead(&self) -> bool {
        self.ahead > 0
    }

    /// Takes out what is reserved for the end of the file.
    pub(super) fn take_ahead(&mut self) -> u64 {
        std::mem::take(&mut self.ahead)
    }

    /// Whether no block is dirty, and nothing is reserved to contents.
    pub(super) fn is_empty(&self) -> bool {
        let counted = [&self.reserved, &self.converted];
        self.dirty.is_empty()
            && counted.into_iter().all(|counted| counted.ranges.is_empty())
            && self.indirect == 0
    }

    /// Takes blocks out that are on the device, or are not to be written any more. Returns the reserved blocks
    /// that are not needed any more.
    pub(super) fn forget(&mut self, blocks: Range<u64>, tree: &MappingTree) -> u64 {
        self.dirty.remove(blocks.clone());
        self.converted.remove(blocks.clone());
        self.reserved.remove(blocks) + self.take_surplus(tree)
    }

    /// What the tree may need for all that has reservations.
    fn indirect_max(&self, tree: &MappingTree) -> u64 {
        let ranges = self.reserved.count + self.converted.count;
        tree.growth_max(ranges, self.reserved.blocks + self.converted.blocks)
    }

    /// Takes out what is reserved for the tree beyond what it may need.
    fn take_surplus(&mut self, tree: &MappingTree) -> u64 {
        let surplus = self.indirect.saturating_sub(self.indirect_max(tree));
        self.indirect -= surplus;
        surplus
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LEAF: u64 = 125;
    const INLINE: MappingTree = tree(0);

    const fn tree(levels: u64) -> MappingTree {
        MappingTree {
            levels,
            records_min: [LEAF, LEAF],
        }
    }

    #[test]
    fn tree_grows_by_leaves_and_what_is_above_them() {
        let of = |levels, ranges, blocks| tree(levels).growth_max(ranges, blocks);
        assert_eq!([of(0, 0, 0), of(3, 0, 0)], [0, 0]);
        // A leaf, and a block on each level.
        assert_eq!([0, 1, 3].map(|levels| of(levels, 1, 1)), [1, 2, 4]);
        assert_eq!([of(0, 1, LEAF - 1), of(0, 1, LEAF)], [1, 2 + 1]);
        assert_eq!(of(0, 1, 200 * LEAF), 201 + 2 + 1);
        assert_eq!(of(0, 500, 500), 504 + 5 + 1);
    }

    #[test]
    fn merged_ranges_give_reservations_back() {
        let mut delayed = Delayed::default();
        assert!(delayed.is_empty());
        let mut reserve = |range: Range<u64>| {
            let mut taken = 0;
            let surplus = delayed.reserve(&[range], &[], &INLINE, |count| {
                taken = count;
                true
            });
            (taken, surplus.unwrap())
        };
        assert_eq!(reserve(0..10), (11, 0));
        assert_eq!(reserve(10..20), (10, 0));
        // Two leaves, and a block above them.
        assert_eq!(reserve(30..40), (10 + 2, 0));
        assert_eq!(reserve(20..30), (10, 2));
        assert!(!delayed.is_empty());
        assert_eq!(delayed.forget(0..u64::MAX, &INLINE), 40 + 1);
        assert!(delayed.is_empty());
    }

    #[test]
    fn nothing_is_recorded_without_space() {
        let mut delayed = Delayed::default();
        let (part, converted) = (5..9, 20..30);
        let taken = delayed.reserve(&[part], &[converted], &INLINE, |_| false);
        assert!(taken.is_none());
        assert_eq!(delayed.reserved(), 0);
        assert_eq!(delayed.forget(0..u64::MAX, &INLINE), 0);
        let unreserved = delayed.unreserved(0..20);
        assert!(unreserved.into_iter().eq(std::iter::once(0..20)));
    }

    /// All that was reserved comes back, and what is reserved for the tree is never more than the worst case.
    #[test]
    fn reservations_are_those_of_the_ranges_that_are_left() {
        let mut random = 1_u32;
        let mut below = |bound: u32| {
            random = random.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            u64::from((random >> 8) % bound)
        };
        for round in 0..200 {
            let tree = tree(round % 3);
            let mut delayed = Delayed::default();
            let mut held = 0;
            for _ in 0..60 {
                let start = below(400);
                let range = start..start + 1 + below(200);
                match below(3) {
                    0 => held -= delayed.forget(range, &tree),
                    kind => {
                        let mut gaps = delayed.unreserved(range);
                        gaps.retain(|gap| {
                            delayed.converted.ranges.gaps(gap.clone()).eq([gap.clone()])
                        });
                        let (parts, converted) = if kind == 1 {
                            (gaps, Vec::new())
                        } else {
                            (Vec::new(), gaps)
                        };
                        let surplus = delayed.reserve(&parts, &converted, &tree, |count| {
                            held += count;
                            true
                        });
                        held -= surplus.unwrap();
                    }
                }
                for counted in [&delayed.reserved, &delayed.converted] {
                    let found: Vec<Range<u64>> = counted.ranges.within(0..u64::MAX).collect();
                    let blocks: u64 = found.iter().map(|range| range.end - range.start).sum();
                    assert_eq!(
                        (found.len() as u64, blocks),
                        (counted.count, counted.blocks)
                    );
                }
                assert_eq!(held, delayed.reserved() + delayed.indirect);
                assert!(delayed.indirect <= delayed.indirect_max(&tree));
            }
            assert_eq!(delayed.forget(0..u64::MAX, &tree), held);
        }
    }
}
