//! How much a file that grows gets beyond its end at a time (speculative preallocation): `allocsize=`, or by default
//! twice what it has in a row there.
//!
//! The sizes are those that kernel mounts show; the oracle test `files_that_grow_in_turn_stay_whole` has some.

use crate::ondisk::extent::MAPPING_LEN_MAX;

/// The least that is allocated beyond the end by default, and the size of files that get nothing.
pub const MIN_BYTES: u64 = 64 << 10;
/// Percents of the filesystem below which free space is low: at each, what is allocated beyond the end is halved, at the
/// first twice.
const LOW_SPACE_PERCENTS: [u64; 5] = [5, 4, 3, 2, 1];

/// What files that grow get beyond their end.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
pub enum Preallocation {
    /// As much as they have in a row there, twice, and less as space gets scarce.
    #[default]
    Dynamic,
    /// So many bytes (`-o allocsize=`).
    Fixed(u64),
    /// Nothing.
    Off,
}

/// What the size of a preallocation depends on.
#[derive(Debug, Clone, Copy)]
pub struct Growth {
    /// The size of a block as a power of two.
    pub block_bits: u8,
    /// The end of the file once it has grown, in blocks.
    pub end: u64,
    /// Blocks of the extent that ends where the file grows.
    pub before: u64,
    /// Free blocks that contents may have.
    pub free: u64,
    /// Blocks of the filesystem.
    pub total: u64,
}

impl Preallocation {
    /// Whether a file of this size, as it is on disk, gets anything when it grows.
    #[must_use]
    pub fn is_due(self, size_bytes: u64) -> bool {
        match self {
            Self::Dynamic => size_bytes >= MIN_BYTES,
            Self::Fixed(_) => true,
            Self::Off => false,
        }
    }

    /// Blocks to allocate after those that a file grows by. They are counted from the last multiple of the least size
    /// before the last of those.
    #[must_use]
    pub fn blocks(self, growth: &Growth) -> u64 {
        let least = match self {
            Self::Off => return 0,
            Self::Fixed(bytes) => bytes,
            Self::Dynamic => MIN_BYTES,
        };
        let least = (least >> growth.block_bits).max(1);
        let count = match self {
            Self::Off | Self::Fixed(_) => least.min(MAPPING_LEN_MAX),
            Self::Dynamic => growth.dynamic().max(least),
        };
        let first = growth.end.saturating_sub(1) / least * least;
        first.saturating_add(count).saturating_sub(growth.end)
    }
}

impl Growth {
    /// Twice what is before, less as space gets scarce.
    fn dynamic(&self) -> u64 {
        let twice = self.before.saturating_mul(2).min(MAPPING_LEN_MAX);
        let is_below = |percent: &&u64| self.free < self.total / 100 * **percent;
        let halvings = match LOW_SPACE_PERCENTS.iter().filter(is_below).count() {
            0 => 0,
            below => below + 1,
        };
        let mut blocks = twice >> halvings;
        while blocks > 0 && blocks >= self.free {
            blocks >>= 4;
        }
        blocks.checked_ilog2().map_or(0, |bits| 1 << bits)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn growth(before: u64, free: u64) -> Growth {
        Growth {
            block_bits: 12,
            end: 17,
            before,
            free,
            total: 1_000_000,
        }
    }

    #[test]
    fn preallocations_double_with_the_extent_before() {
        let blocks = |before| Preallocation::Dynamic.blocks(&growth(before, 900_000)) + 1;
        let found = [0, 8, 16, 100, 5000, 1 << 30].map(blocks);
        assert_eq!(found, [16, 16, 32, 128, 8192, 1 << 16]);
        let plenty = Growth {
            free: 1 << 40,
            total: 1 << 40,
            ..growth(u64::MAX, 0)
        };
        assert_eq!(Preallocation::Dynamic.blocks(&plenty), (1 << 20) - 1);
    }

    #[test]
    fn preallocations_shrink_as_space_gets_scarce() {
        let blocks = |free| Preallocation::Dynamic.blocks(&growth(2048, free)) + 1;
        let found = [50_000, 49_999, 39_999, 29_999, 19_999, 9_999, 60].map(blocks);
        assert_eq!(found, [4096, 1024, 512, 256, 128, 64, 16]);
    }

    #[test]
    fn preallocations_end_at_multiples_of_the_least_size() {
        let blocks = |end| {
            let growth = Growth {
                end,
                ..growth(16, 900_000)
            };
            end + Preallocation::Dynamic.blocks(&growth)
        };
        assert_eq!([32, 33, 47, 48, 49].map(blocks), [48, 64, 64, 64, 80]);
    }

    #[test]
    fn fixed_preallocations_are_of_their_size() {
        let fixed = Preallocation::Fixed(1 << 20);
        assert_eq!(fixed.blocks(&growth(5000, 100)), 256 - 17);
        assert!(fixed.is_due(0) && !Preallocation::Off.is_due(u64::MAX));
        assert!(!Preallocation::Dynamic.is_due(MIN_BYTES - 1));
        assert_eq!(Preallocation::Off.blocks(&growth(5000, 90_000)), 0);
    }
}
