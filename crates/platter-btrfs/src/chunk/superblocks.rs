//! Where copies of the superblock lie in chunks.

use std::ops::Range;

use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

impl ChunkItem {
    /// The logical addresses that copies of the superblock make unusable, on whichever device they lie: whole
    /// stripes of 64 KiB.
    #[must_use]
    pub fn superblock_ranges(&self) -> Vec<Range<u64>> {
        let mut ranges = Vec::new();
        for (index, stripe) in self.stripes.iter().enumerate() {
            for offset in SUPERBLOCK_OFFSETS {
                let last = offset + SUPERBLOCK_BYTES as u64 - 1;
                for at in [offset, last] {
                    let inside = at.checked_sub(stripe.offset.0);
                    let inside = inside.filter(|&inside| inside < self.stripe_len_bytes());
                    ranges.extend(inside.map(|inside| self.row_at(index, inside)));
                }
            }
        }
        ranges.sort_by_key(|range| range.start);
        ranges.dedup();
        ranges
    }

    /// The logical addresses of what lies at byte `offset` of a stripe, in whole stripes; of parity, those of
    /// the row.
    fn row_at(&self, stripe: usize, offset: u64) -> Range<u64> {
        let row = offset / STRIPE_BYTES;
        let (count, index) = (self.stripes.len() as u64, stripe as u64);
        let (number, len) = match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1C3
            | Profile::Raid1C4 => (row, 1),
            Profile::Raid0 => (row * count + index, 1),
            Profile::Raid10 => (row * (count / 2) + index / 2, 1),
            Profile::Raid5 | Profile::Raid6 => {
                let data = self.data_stripes() as u64;
                (row * data, data)
            }
        };
        let start = self.start.0 + number * STRIPE_BYTES;
        let end = (start + len * STRIPE_BYTES).min(self.start.0 + self.len_bytes);
        start..end
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::DeviceAddr;
    use crate::ondisk::chunk_item::tests::sample;

    const START: u64 = 1 << 30;

    fn ranges(profile: Profile, stripes: u16, stripe: usize) -> Vec<(u64, u64)> {
        let mut chunk = sample(START, profile, stripes);
        for stripe in &mut chunk.stripes {
            stripe.offset = DeviceAddr(1 << 20);
        }
        // The second copy, 3 stripes after the beginning.
        chunk.stripes[stripe].offset = DeviceAddr((64 << 20) - 3 * STRIPE_BYTES);
        let inside = |range: Range<u64>| {
            (
                (range.start - START) / STRIPE_BYTES,
                (range.end - START) / STRIPE_BYTES,
            )
        };
        chunk.superblock_ranges().into_iter().map(inside).collect()
    }

    #[test]
    fn superblocks_are_found_in_all_profiles() {
        assert_eq!(ranges(Profile::Single, 1, 0), [(3, 4)]);
        assert_eq!(ranges(Profile::Dup, 2, 1), [(3, 4)]);
        assert_eq!(ranges(Profile::Raid0, 3, 1), [(10, 11)]);
        assert_eq!(ranges(Profile::Raid10, 4, 3), [(7, 8)]);
        assert_eq!(ranges(Profile::Raid5, 3, 2), [(6, 8)]);
    }

    #[test]
    fn chunk_without_superblocks_has_no_ranges() {
        let mut chunk = sample(START, Profile::Single, 1);
        chunk.stripes[0].offset = DeviceAddr(1 << 20);
        assert_eq!(chunk.superblock_ranges(), []);
    }
}
