//! A moment as inodes and root items store it. Spec: `btrfs/inode`, struct `btrfs_timespec`.

use platter_ondisk::endian::{Le32, Le64};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// A moment.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskTimestamp {
    /// `sec`, signed.
    pub seconds: Le64,
    /// `nsec`.
    pub nanoseconds: Le32,
}

const _: () = assert!(size_of::<DiskTimestamp>() == 12);

/// One nanosecond more than a timestamp's second can have.
const SECOND: u32 = 1_000_000_000;

impl DiskTimestamp {
    /// The moment. A fraction of a second or more, which no driver writes, counts as none.
    #[must_use]
    pub fn decode(&self) -> Timestamp {
        let nanoseconds = self.nanoseconds.get();
        Timestamp {
            seconds: self.seconds.get().cast_signed(),
            nanoseconds: if nanoseconds < SECOND { nanoseconds } else { 0 },
        }
    }

    /// Encodes a moment.
    #[must_use]
    pub fn encode(time: Timestamp) -> Self {
        Self {
            seconds: time.seconds.cast_unsigned().into(),
            nanoseconds: time.nanoseconds.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn moments_before_1970_survive() {
        let time = Timestamp {
            seconds: -5,
            nanoseconds: 999_999_999,
        };
        assert_eq!(DiskTimestamp::encode(time).decode(), time);
    }

    #[test]
    fn fraction_of_a_second_or_more_counts_as_none() {
        let mut disk = DiskTimestamp::encode(Timestamp::default());
        disk.nanoseconds.set(SECOND);
        assert_eq!(disk.decode(), Timestamp::default());
    }
}
