//! Directories: where entries, leaves and free indexes lie in the data fork, and the types of files in
//! entries. Spec: `xfs/directories`.

pub mod leaf;
pub mod data;
pub mod free;
pub mod build;
pub mod index;
pub mod short;

use platter_vfs::FileKind;

use super::geometry::Geometry;
use super::types::FileBlock;

/// Where the leaves begin in the data fork, in bytes.
const LEAF_OFFSET: u64 = 1 << 35;
/// Where the free indexes begin in the data fork, in bytes.
const FREE_OFFSET: u64 = 2 << 35;
/// The longest name.
pub const NAME_BYTES_MAX: usize = 255;
/// Alignment of entries in a directory block.
const ENTRY_ALIGNMENT: usize = 8;

/// The position of an entry in the data fork, in units of 8 bytes: what leaves point to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct DataPointer(pub u32);

impl DataPointer {
    /// The position at byte `offset` of directory block `block`; `None` beyond the entries' part of
    /// the fork.
    #[must_use]
    pub fn new(geometry: &Geometry, block: u32, offset: usize) -> Option<Self> {
        let start = u64::from(block).checked_shl(geometry.dir_block_bits.into())?;
        let byte = start.checked_add(u64::try_from(offset).ok()?)?;
        let units = byte.checked_div(ENTRY_ALIGNMENT as u64)?;
        u32::try_from(units).ok().map(Self)
    }

    /// The directory block, and the byte in it.
    #[must_use]
    pub fn split(self, geometry: &Geometry) -> (u32, usize) {
        let byte = u64::from(self.0).saturating_mul(ENTRY_ALIGNMENT as u64);
        let block = byte
            .checked_shr(geometry.dir_block_bits.into())
            .unwrap_or_default();
        let size = u64::from(geometry.dir_block_bytes());
        let offset = byte.checked_rem(size).unwrap_or_default();
        (
            u32::try_from(block).unwrap_or(u32::MAX),
            usize::try_from(offset).unwrap_or_default(),
        )
    }
}

/// The file block where directory block `block` of the entries begins.
#[must_use]
pub fn data_block(geometry: &Geometry, block: u32) -> FileBlock {
    FileBlock(u64::from(block).saturating_mul(geometry.dir_block_blocks().into()))
}

/// The first file block of leaves; entries end before it.
#[must_use]
pub fn leaf_start(geometry: &Geometry) -> FileBlock {
    FileBlock(
        LEAF_OFFSET
            .checked_shr(geometry.block_bits.into())
            .unwrap_or_default(),
    )
}

/// The first file block of free indexes; leaves end before it.
#[must_use]
pub fn free_start(geometry: &Geometry) -> FileBlock {
    FileBlock(
        FREE_OFFSET
            .checked_shr(geometry.block_bits.into())
            .unwrap_or_default(),
    )
}

/// The type of a file in an entry; `None` where it is not known, as of whiteouts and unknown numbers.
#[must_use]
pub fn file_kind(stored: u8) -> Option<FileKind> {
    Some(match stored {
        1 => FileKind::Regular,
        2 => FileKind::Directory,
        3 => FileKind::CharDevice,
        4 => FileKind::BlockDevice,
        5 => FileKind::Fifo,
        6 => FileKind::Socket,
        7 => FileKind::Symlink,
        _ => return None,
    })
}

/// The number that stands for a type in an entry.
#[must_use]
pub fn stored_kind(kind: FileKind) -> u8 {
    match kind {
        FileKind::Regular => 1,
        FileKind::Directory => 2,
        FileKind::CharDevice => 3,
        FileKind::BlockDevice => 4,
        FileKind::Fifo => 5,
        FileKind::Socket => 6,
        FileKind::Symlink => 7,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn pointers_count_units_of_eight_bytes() {
        let mut geometry = sample_geometry();
        geometry.dir_block_bits = 14;
        let pointer = DataPointer::new(&geometry, 3, 64).unwrap();
        assert_eq!(pointer, DataPointer((3 * 16384 + 64) / 8));
        assert_eq!(pointer.split(&geometry), (3, 64));
        assert_eq!(DataPointer::new(&geometry, u32::MAX, 0), None);
        assert_eq!(data_block(&geometry, 3), FileBlock(12));
        assert_eq!(leaf_start(&geometry), FileBlock(8_388_608));
        assert_eq!(free_start(&geometry), FileBlock(16_777_216));
    }

    #[test]
    fn types_survive_encoding() {
        for stored in 1..=7 {
            assert_eq!(file_kind(stored).map(stored_kind), Some(stored));
        }
        assert_eq!((file_kind(0), file_kind(8)), (None, None));
    }
}
