//! The position of a listing: the contents of a directory cursor.

use platter_vfs::DirCursor;

use super::hash::NameHash;

/// Bits of the ordinal among names with equal upper bits.
const ORDINAL_BITS: u32 = 10;
/// Bits that distinguish names with the same major hash.
const TIE_BITS: u32 = 21;
/// The bit that says that entries were skipped.
const CORRUPT: u64 = 1 << 62;

/// A position in a directory, in the order of its listing.
///
/// In a linear directory it is an offset in bytes. In an indexed one it consists, from the top, of
/// the major hash without its always clear bit, the upper bits of the minor hash, and the ordinal
/// among names that agree in both; so it stays valid when entries are added or removed, and when
/// the index is rebuilt.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Default)]
pub(super) struct Position {
    /// The position.
    pub(super) place: u64,
    /// Whether a corrupt entry before it was skipped.
    pub(super) is_corrupt: bool,
}

impl Position {
    /// Number of names with otherwise equal positions that can be distinguished.
    pub(super) const ORDINALS: usize = 1 << ORDINAL_BITS;

    pub(super) fn decode(cursor: DirCursor) -> Self {
        Self {
            place: cursor.0 & (CORRUPT - 1),
            is_corrupt: cursor.0 & CORRUPT != 0,
        }
    }

    pub(super) fn encode(self) -> DirCursor {
        let flag = if self.is_corrupt { CORRUPT } else { 0 };
        DirCursor((self.place & (CORRUPT - 1)) | flag)
    }
}

/// Returns the position of the first name with this hash.
pub(super) fn place_of_hash(hash: NameHash) -> u64 {
    place_of_major(hash.major) | u64::from(hash.minor >> (u32::BITS - TIE_BITS)) << ORDINAL_BITS
}

/// Returns the position of the first name with this major hash.
pub(super) fn place_of_major(major: u32) -> u64 {
    u64::from(major >> 1) << (TIE_BITS + ORDINAL_BITS)
}

/// Returns the major hash of names at this position.
pub(super) fn major_at(place: u64) -> u32 {
    u32::try_from(place >> (TIE_BITS + ORDINAL_BITS)).map_or(u32::MAX, |half| half << 1)
}

/// Returns the position without its ordinal: that of the first name with equal upper bits.
pub(super) fn without_ordinal(place: u64) -> u64 {
    place & !((1 << ORDINAL_BITS) - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn positions_follow_hash_order_and_fit_an_offset() {
        let hash = |major, minor| NameHash { major, minor };
        let hashes = [
            hash(0, 0),
            hash(2, 0),
            hash(2, 1 << 11),
            hash(2, u32::MAX),
            hash(4, 0),
            hash(0xffff_fffc, u32::MAX),
        ];
        let places = hashes.map(place_of_hash);
        assert!(places.is_sorted_by(|a, b| a < b));
        assert_eq!(places.map(major_at), hashes.map(|hash| hash.major));
        let last = Position {
            place: places[5] + Position::ORDINALS as u64,
            is_corrupt: true,
        };
        assert!(i64::try_from(last.encode().0).is_ok());
        assert_eq!(Position::decode(last.encode()), last);
        assert_eq!(Position::decode(DirCursor::START), Position::default());
    }

    #[test]
    fn ordinals_are_below_the_tie() {
        let place = place_of_hash(NameHash {
            major: 6,
            minor: 1 << 11,
        });
        assert_eq!(without_ordinal(place + 1023), place);
        assert_ne!(without_ordinal(place + 1024), place);
    }
}
