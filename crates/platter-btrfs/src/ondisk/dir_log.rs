//! A range of directory indices that a log tree covers: what is in the range and not in the log was
//! deleted. Spec: `btrfs/dir_log`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::Key;

/// The end of the range; its beginning is the key's offset.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDirLog {
    /// `end`: the last index.
    pub end: Le64,
}

const _: () = assert!(size_of::<DiskDirLog>() == 8);

rules! {
    /// The rules of a logged range.
    pub enum DirLogRule of "dir log item" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// It does not end before it begins.
        Range => "range ends before it begins",
    }
}

/// A range of directory indices.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DirLog {
    /// The first index.
    pub first: u64,
    /// The last index.
    pub last: u64,
}

impl DirLog {
    /// Decodes the item with this key.
    pub fn decode(key: Key, bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<DirLogRule>> {
        let disk = DiskDirLog::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, DirLogRule::Size))?;
        let range = Self {
            first: key.offset,
            last: disk.end.get(),
        };
        if range.last < range.first {
            return Err(Corrupt::new(locus, DirLogRule::Range));
        }
        Ok(range)
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskDirLog {
        DiskDirLog {
            end: self.last.into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;

    #[test]
    fn item_survives_encoding() {
        let range = DirLog { first: 5, last: 9 };
        let disk = range.encode();
        let decode = |first, bytes: &[u8]| {
            let key = Key::new(257, ItemKind::DIR_LOG_INDEX, first);
            let decoded = DirLog::decode(key, bytes, Locus::UNKNOWN);
            decoded.map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(5, disk.as_bytes()), Ok(range));
        assert_eq!(decode(10, disk.as_bytes()), Err(DirLogRule::Range));
        assert_eq!(decode(5, &[0; 7]), Err(DirLogRule::Size));
    }
}
