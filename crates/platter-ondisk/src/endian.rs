//! Integers with a byte order in their type and an alignment of one, so that disk structures
//! are read in place. Little-endian serves ext2/3/4 and btrfs, big-endian their journal and XFS.

pub use zerocopy::byteorder::big_endian::{U16 as Be16, U32 as Be32, U64 as Be64};
pub use zerocopy::byteorder::little_endian::{U16 as Le16, U32 as Le32, U64 as Le64};

/// A 48-bit or 64-bit value that a format stores as two separate halves.
#[must_use]
pub fn join_u32(high: u32, low: u32) -> u64 {
    (u64::from(high) << 32) | u64::from(low)
}

/// A 32-bit value that a format stores as two separate halves.
#[must_use]
pub fn join_u16(high: u16, low: u16) -> u32 {
    (u32::from(high) << 16) | u32::from(low)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn halves_join_in_order() {
        assert_eq!(join_u32(0x0001_0002, 0x8000_0003), 0x0001_0002_8000_0003);
        assert_eq!(join_u16(0x8001, 0x0002), 0x8001_0002);
    }
}
