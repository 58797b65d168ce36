//! Names of cached blocks: an address, and a length from 64 bytes to 64 KiB.

use std::ops::Range;

use crate::block_size::{BlockSize, UNIT_BYTES};

/// Binary logarithm of the alignment of blocks.
const UNIT_SHIFT: u32 = UNIT_BYTES.trailing_zeros();
/// Bits of a [`Key`] that hold the length.
const SIZE_BITS: u32 = 4;
const SIZE_MASK: u64 = (1 << SIZE_BITS) - 1;

/// Address and length of a metadata block.
///
/// The address counts in the unit that the cache was [made with](Addressing). An address alone stands
/// for a block of the cache's usual length.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct BlockAt {
    address: u64,
    size: Option<BlockSize>,
}

impl From<u64> for BlockAt {
    fn from(address: u64) -> Self {
        Self {
            address,
            size: None,
        }
    }
}

impl From<(u64, BlockSize)> for BlockAt {
    fn from((address, size): (u64, BlockSize)) -> Self {
        Self {
            address,
            size: Some(size),
        }
    }
}

impl BlockAt {
    pub(super) fn address(self) -> u64 {
        self.address
    }
}

/// What the addresses given to a cache count, and the usual length of its blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Addressing {
    /// Bytes of one step of an address, a power of two: the block size where blocks are numbered, 512
    /// for addresses in sectors, 1 for addresses in bytes.
    pub unit_bytes: u32,
    /// The length of a block that is named by its address alone.
    pub usual: BlockSize,
}

impl Addressing {
    /// The addressing by block number, of blocks of one length.
    #[must_use]
    pub const fn by_number(size: BlockSize) -> Self {
        Self {
            unit_bytes: size.bytes(),
            usual: size,
        }
    }

    fn shift(self) -> u32 {
        self.unit_bytes.trailing_zeros()
    }

    /// The block's key; `None` if the address is not aligned to 64 bytes, or beyond 2^64 bytes.
    pub(super) fn locate(self, block: BlockAt) -> Option<Key> {
        let shift = self.shift();
        let at = block.address << shift;
        if at >> shift != block.address || !at.is_multiple_of(u64::from(UNIT_BYTES)) {
            return None;
        }
        let size = block.size.unwrap_or(self.usual);
        Some(Key((at >> UNIT_SHIFT) << SIZE_BITS | size.index() as u64))
    }

    /// The address of a key.
    pub(super) fn address(self, key: Key) -> u64 {
        key.at() >> self.shift()
    }

    /// The keys of all blocks that begin in a range of addresses.
    pub(super) fn keys(self, range: &Range<u64>) -> Range<Key> {
        let first = |address: u64| {
            let at = address.saturating_mul(u64::from(self.unit_bytes));
            Key(at.div_ceil(u64::from(UNIT_BYTES)) << SIZE_BITS)
        };
        first(range.start)..first(range.end)
    }

    /// The distance of neighbouring blocks of the usual length.
    pub(super) fn step(self) -> u64 {
        u64::from(self.usual.bytes() / self.unit_bytes).max(1)
    }
}

/// Byte address and length of a block in one word. Keys are ordered by address.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub(super) struct Key(u64);

impl Key {
    /// The key as a number.
    pub(super) fn to_bits(self) -> u64 {
        self.0
    }

    /// The key that [`to_bits`](Self::to_bits) returned.
    pub(super) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }

    /// The byte address.
    pub(super) fn at(self) -> u64 {
        (self.0 >> SIZE_BITS) << UNIT_SHIFT
    }

    /// The byte address after the block.
    pub(super) fn end(self) -> u64 {
        self.at().saturating_add(u64::from(self.len_bytes()))
    }

    /// The next key in their order.
    pub(super) fn after(self) -> Self {
        Self(self.0 + 1)
    }

    /// The length in bytes.
    pub(super) fn len_bytes(self) -> u32 {
        UNIT_BYTES << (self.0 & SIZE_MASK)
    }

    /// The block's number where blocks have one length: neighbours have neighbouring ones.
    pub(super) fn number(self) -> u64 {
        self.0 >> SIZE_BITS >> (self.0 & SIZE_MASK)
    }

    /// Whether two blocks have bytes in common.
    pub(super) fn overlaps(self, other: Self) -> bool {
        self.at() < other.end() && other.at() < self.end()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_hold_address_and_length() {
        let sizes = [64, 512, 1024, 2048, 4096, 8192, 16384, 32768, 65536];
        for bytes in sizes {
            let size = BlockSize::new(bytes).unwrap();
            assert_eq!(size.bytes(), bytes);
            let sectors = Addressing {
                unit_bytes: 512,
                usual: BlockSize::new(4096).unwrap(),
            };
            let key = sectors.locate((7, size).into()).unwrap();
            assert_eq!((key.at(), key.len_bytes()), (7 * 512, bytes));
            assert_eq!(sectors.address(key), 7);
            assert_eq!(Key::from_bits(key.to_bits()), key);
        }
        for bytes in [0, 1, 32, 513, 6144, 131_072, u32::MAX] {
            assert_eq!(BlockSize::new(bytes), None);
        }
    }

    #[test]
    fn unaligned_addresses_have_no_key() {
        let node = BlockSize::new(16384).unwrap();
        let bytes = Addressing {
            unit_bytes: 1,
            usual: node,
        };
        assert_eq!(bytes.locate(0x5000.into()).unwrap().at(), 0x5000);
        assert_eq!(bytes.locate(0x5001.into()), None);
        assert_eq!(bytes.step(), 16384);
        let numbered = Addressing::by_number(node);
        assert_eq!(numbered.locate(u64::MAX.into()), None);
        assert_eq!(numbered.step(), 1);
        let last = numbered.locate((u64::MAX >> 14).into()).unwrap();
        assert!(numbered.keys(&(0..u64::MAX)).contains(&last));
    }

    #[test]
    fn overlap_is_distinguished_from_adjacency() {
        let sectors = Addressing {
            unit_bytes: 512,
            usual: BlockSize::new(4096).unwrap(),
        };
        let small = BlockSize::new(512).unwrap();
        let block = sectors.locate(8.into()).unwrap();
        for (at, overlaps) in [(7, false), (8, true), (15, true), (16, false)] {
            let sector = sectors.locate((at, small).into()).unwrap();
            assert_eq!(sector.overlaps(block), overlaps, "sector {at}");
            assert_eq!(block.overlaps(sector), overlaps, "sector {at}");
        }
        assert_eq!(block.number(), 1);
    }
}
