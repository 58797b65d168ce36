//! The geometry of the profiles: which stripes hold a logical address, and where in them; where copies of the
//! superblock are among them.

use std::ops::Range;

use crate::ondisk::chunk_item::{ChunkItem, Profile, STRIPE_BYTES};
use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::ondisk::{DeviceAddr, LogicalAddr};

/// A run of logical addresses that lies in one piece on each device that holds it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Segment {
    /// Its length.
    pub len_bytes: u64,
    /// Which stripes hold it.
    pub placement: Placement,
    /// Where it begins in each of these stripes, from the beginning of the stripe.
    pub offset: u64,
}

/// The stripes that hold a segment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Placement {
    /// `count` stripes from `first` on hold a copy each.
    Copies {
        /// The first stripe.
        first: usize,
        /// How many hold a copy.
        count: usize,
    },
    /// One stripe holds it; those of its row protect it.
    Parity {
        /// The row of the chunk, by which the stripes' roles rotate.
        row: u64,
        /// Which of the row's data it is.
        data: usize,
    },
}

impl ChunkItem {
    /// The segment that begins at `logical`, which is in the chunk, of at most `len_max` bytes.
    #[must_use]
    pub fn segment(&self, logical: LogicalAddr, len_max: u64) -> Segment {
        let inside = logical.0.saturating_sub(self.start.0);
        let left = self.len_bytes.saturating_sub(inside);
        let stripes = self.stripes.len();
        let whole = |count| Segment {
            len_bytes: left.min(len_max),
            placement: Placement::Copies { first: 0, count },
            offset: inside,
        };
        let (number, within) = (inside / STRIPE_BYTES, inside % STRIPE_BYTES);
        let striped = |placement, row: u64| Segment {
            len_bytes: left.min(len_max).min(STRIPE_BYTES - within),
            placement,
            offset: row * STRIPE_BYTES + within,
        };
        // A chunk has as many stripes as its profile asks for, so no group of them is empty.
        let split = |groups: usize| {
            let groups = groups.max(1) as u64;
            let index = usize::try_from(number % groups).unwrap_or_default();
            (number / groups, index)
        };
        match self.profile {
            Profile::Single => whole(1),
            Profile::Dup | Profile::Raid1 | Profile::Raid1C3 | Profile::Raid1C4 => whole(stripes),
            Profile::Raid0 => {
                let (row, first) = split(stripes);
                striped(Placement::Copies { first, count: 1 }, row)
            }
            Profile::Raid10 => {
                let (row, pair) = split(stripes / 2);
                let first = pair * 2;
                striped(Placement::Copies { first, count: 2 }, row)
            }
            Profile::Raid5 | Profile::Raid6 => {
                let (row, data) = split(self.data_stripes());
                striped(Placement::Parity { row, data }, row)
            }
        }
    }

    /// How many stripes of each row hold data, where the others are parity.
    #[must_use]
    pub fn data_stripes(&self) -> usize {
        let parity = usize::from(self.profile.parity());
        self.stripes.len().saturating_sub(parity)
    }

    /// Whether its last row is incomplete: it has more of some stripes than of others.
    #[must_use]
    pub fn has_incomplete_row(&self) -> bool {
        let columns = match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1C3
            | Profile::Raid1C4 => return false,
            Profile::Raid0 => self.stripes.len(),
            Profile::Raid10 => self.stripes.len() / 2,
            Profile::Raid5 | Profile::Raid6 => self.data_stripes(),
        };
        let row_bytes = columns.max(1) as u64 * STRIPE_BYTES;
        !self.len_bytes.is_multiple_of(row_bytes)
    }

    /// The stripe with a role in a row: data from 0 on, then P, then Q.
    #[must_use]
    pub fn stripe_of_role(&self, row: u64, role: usize) -> usize {
        let stripes = self.stripes.len().max(1) as u64;
        let index = (row % stripes + role as u64) % stripes;
        usize::try_from(index).unwrap_or_default()
    }

    /// The role of a stripe in a row: data from 0 on, then P, then Q.
    #[must_use]
    pub fn role_of_stripe(&self, row: u64, stripe: usize) -> usize {
        let stripes = self.stripes.len().max(1) as u64;
        let role = (stripe as u64 + stripes - row % stripes) % stripes;
        usize::try_from(role).unwrap_or_default()
    }

    /// Where byte `offset` of a stripe lies on its device.
    #[must_use]
    pub fn device_addr(&self, stripe: usize, offset: u64) -> DeviceAddr {
        let start = self.stripes.get(stripe).map_or(0, |stripe| stripe.offset.0);
        DeviceAddr(start.saturating_add(offset))
    }

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
                    ranges.extend(inside.and_then(|inside| self.row_at(index, inside)));
                }
            }
        }
        ranges.sort_by_key(|range| range.start);
        ranges.dedup();
        ranges
    }

    /// The logical addresses of what lies at byte `offset` of a stripe, in whole stripes; of parity, those of
    /// the row. `None` where the chunk ends before them, in an incomplete row.
    fn row_at(&self, stripe: usize, offset: u64) -> Option<Range<u64>> {
        let row = offset / STRIPE_BYTES;
        let (count, index) = (self.stripes.len() as u64, stripe as u64);
        let nth = |columns: u64, index: u64| row.saturating_mul(columns).saturating_add(index);
        let (number, len) = match self.profile {
            Profile::Single
            | Profile::Dup
            | Profile::Raid1
            | Profile::Raid1C3
            | Profile::Raid1C4 => (row, 1),
            Profile::Raid0 => (nth(count, index), 1),
            Profile::Raid10 => (nth(count / 2, index / 2), 1),
            Profile::Raid5 | Profile::Raid6 => {
                let data = self.data_stripes() as u64;
                (nth(data, 0), data)
            }
        };
        let after = |stripes: u64| {
            let bytes = stripes.saturating_mul(STRIPE_BYTES).min(self.len_bytes);
            self.start.0.saturating_add(bytes)
        };
        let (start, end) = (after(number), after(number.saturating_add(len)));
        (start < end).then_some(start..end)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::chunk_item::tests::sample;

    const START: u64 = 1 << 30;

    fn segment(chunk: &ChunkItem, inside: u64) -> Segment {
        chunk.segment(LogicalAddr(START + inside), u64::MAX)
    }

    #[test]
    fn mirrors_hold_the_chunk_in_one_piece() {
        let chunk = sample(START, Profile::Raid1C3, 3);
        let found = segment(&chunk, 70_000);
        assert_eq!(found.len_bytes, (1 << 20) - 70_000);
        assert_eq!(found.offset, 70_000);
        assert_eq!(found.placement, Placement::Copies { first: 0, count: 3 });
    }

    #[test]
    fn stripes_alternate() {
        let chunk = sample(START, Profile::Raid0, 3);
        let found = segment(&chunk, 4 * STRIPE_BYTES + 5);
        assert_eq!(found.placement, Placement::Copies { first: 1, count: 1 });
        assert_eq!(found.offset, STRIPE_BYTES + 5);
        assert_eq!(found.len_bytes, STRIPE_BYTES - 5);
        let chunk = sample(START, Profile::Raid10, 4);
        let found = segment(&chunk, 3 * STRIPE_BYTES);
        assert_eq!(found.placement, Placement::Copies { first: 2, count: 2 });
        assert_eq!(found.offset, STRIPE_BYTES);
    }

    #[test]
    fn parity_rotates_with_the_rows() {
        let chunk = sample(START, Profile::Raid5, 3);
        let found = segment(&chunk, 3 * STRIPE_BYTES);
        assert_eq!(found.placement, Placement::Parity { row: 1, data: 1 });
        assert_eq!(found.offset, STRIPE_BYTES);
        let roles = [0, 1, 2].map(|role| chunk.stripe_of_role(1, role));
        assert_eq!(roles, [1, 2, 0]);
        for row in 0..7 {
            for role in 0..3 {
                let stripe = chunk.stripe_of_role(row, role);
                assert_eq!(chunk.role_of_stripe(row, stripe), role);
            }
        }
    }

    #[test]
    fn chunks_are_of_whole_rows_or_not() {
        for (profile, stripes) in [
            (Profile::Raid0, 3),
            (Profile::Raid10, 6),
            (Profile::Raid5, 4),
            (Profile::Raid6, 5),
        ] {
            let mut chunk = sample(START, profile, stripes);
            assert!(!chunk.has_incomplete_row());
            chunk.len_bytes -= STRIPE_BYTES;
            assert!(chunk.has_incomplete_row());
        }
        let mut chunk = sample(START, Profile::Raid1, 2);
        chunk.len_bytes -= 4096;
        assert!(!chunk.has_incomplete_row());
    }

    #[test]
    fn segments_end_with_the_request_and_the_chunk() {
        let chunk = sample(START, Profile::Raid0, 2);
        let request = chunk.segment(LogicalAddr(START), 10);
        assert_eq!(request.len_bytes, 10);
        let last = segment(&chunk, (2 << 20) - 1);
        assert_eq!(last.len_bytes, 1);
    }

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
    fn stripes_without_a_part_of_an_incomplete_row_have_none() {
        let superblocks = |profile, stripes, start: u64| {
            let mut chunk = sample(start, profile, stripes);
            chunk.len_bytes = STRIPE_BYTES;
            for stripe in &mut chunk.stripes {
                stripe.offset = DeviceAddr(1 << 20);
            }
            chunk.stripes.last_mut().unwrap().offset = DeviceAddr(64 << 20);
            chunk.superblock_ranges()
        };
        // The last one that there can be.
        for start in [START, u64::MAX - (1 << 20) + 1] {
            for (profile, stripes) in [(Profile::Raid0, 4), (Profile::Raid10, 4)] {
                assert_eq!(superblocks(profile, stripes, start), []);
            }
            let row = start..start + STRIPE_BYTES;
            assert_eq!(superblocks(Profile::Raid5, 4, start), [row]);
        }
    }

    #[test]
    fn chunk_without_superblocks_has_no_ranges() {
        let mut chunk = sample(START, Profile::Single, 1);
        chunk.stripes[0].offset = DeviceAddr(1 << 20);
        assert_eq!(chunk.superblock_ranges(), []);
    }
}
