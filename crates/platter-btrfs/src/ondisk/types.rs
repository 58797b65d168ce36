//! Addresses and numbers: logical and device addresses, generations, trees, devices. Never mixed.

use std::fmt;

/// A byte address in the filesystem's logical address space, which chunks map to devices.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct LogicalAddr(pub u64);

/// A byte address on one device.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceAddr(pub u64);

/// A transaction's number (`transid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Generation(pub u64);

/// A device's number in its filesystem (`devid`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct DeviceId(pub u64);

/// The object id of a tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct TreeId(pub u64);

impl LogicalAddr {
    /// The address `len_bytes` further on, unless that leaves the address space.
    #[must_use]
    pub fn checked_add(self, len_bytes: u64) -> Option<Self> {
        self.0.checked_add(len_bytes).map(Self)
    }

    /// The distance from `earlier`, unless that lies after this address.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl TreeId {
    /// The tree of tree roots.
    pub const ROOT: Self = Self(1);
    /// Allocated extents and their references.
    pub const EXTENT: Self = Self(2);
    /// Chunks and devices.
    pub const CHUNK: Self = Self(3);
    /// Extents of devices.
    pub const DEV: Self = Self(4);
    /// The top-level subvolume.
    pub const FS: Self = Self(5);
    /// Checksums of data.
    pub const CSUM: Self = Self(7);
    /// Quota groups.
    pub const QUOTA: Self = Self(8);
    /// Subvolumes by UUID.
    pub const UUID: Self = Self(9);
    /// Free space of block groups.
    pub const FREE_SPACE: Self = Self(10);
    /// Block group items, with the block-group-tree feature.
    pub const BLOCK_GROUP: Self = Self(11);
    /// Logs of fsync: the tree of log trees, and each of them.
    pub const TREE_LOG: Self = Self(u64::MAX - 5);
    /// Trees under relocation.
    pub const TREE_RELOC: Self = Self(u64::MAX - 7);
    /// Data under relocation.
    pub const DATA_RELOC: Self = Self(u64::MAX - 8);

    /// Whether the number is one that subvolumes have.
    #[must_use]
    pub fn is_subvolume(self) -> bool {
        self == Self::FS || (FIRST_FREE_OBJECT..QGROUP_LEVEL_ONE).contains(&self.0)
    }
}

/// The first object id for inodes and subvolumes; the root directory of each subvolume has it.
pub const FIRST_FREE_OBJECT: u64 = 256;
/// The last object id for inodes and subvolumes.
pub const LAST_FREE_OBJECT: u64 = u64::MAX - 255;
/// The first number of a quota group that is not of a subvolume; numbers below it may be of one.
pub const QGROUP_LEVEL_ONE: u64 = 1 << 48;
/// The directory in the root tree that names the default subvolume.
pub const ROOT_TREE_DIR: u64 = 6;
/// Object of the device items in the chunk tree.
pub const DEV_ITEMS_OBJECT: u64 = 1;
/// Object of the chunk items in the chunk tree.
pub const CHUNK_OBJECT: u64 = 256;
/// Object of the checksum items in the checksum tree.
pub const EXTENT_CSUM_OBJECT: u64 = u64::MAX - 9;
/// Object of the orphan items in each subvolume and in the root tree.
pub const ORPHAN_OBJECT: u64 = u64::MAX - 4;
/// Object of the balance item in the root tree.
pub const BALANCE_OBJECT: u64 = u64::MAX - 3;
/// Object of the free space cache headers in the root tree.
pub const FREE_SPACE_OBJECT: u64 = u64::MAX - 10;
/// Inode number of the directory that stands for a nested subvolume in a snapshot.
pub const EMPTY_SUBVOL_DIR: u64 = 2;

macro_rules! display_number {
    ($($name:ident),+) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        })+
    };
}

display_number!(LogicalAddr, DeviceAddr, Generation, DeviceId, TreeId);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn subvolumes_have_numbers_of_their_own() {
        assert!(TreeId::FS.is_subvolume() && TreeId(256).is_subvolume());
        for tree in [
            TreeId::ROOT,
            TreeId::DATA_RELOC,
            TreeId::TREE_LOG,
            TreeId(255),
        ] {
            assert!(!tree.is_subvolume(), "{tree}");
        }
        // The number of the data relocation tree is -9, of log trees -6.
        assert_eq!(TreeId::DATA_RELOC.0.cast_signed(), -9);
        assert_eq!(TreeId::TREE_LOG.0.cast_signed(), -6);
        assert_eq!(TreeId::TREE_RELOC.0.cast_signed(), -8);
    }

    #[test]
    fn addresses_do_not_wrap() {
        assert_eq!(LogicalAddr(u64::MAX).checked_add(1), None);
        assert_eq!(LogicalAddr(5).checked_since(LogicalAddr(6)), None);
        assert_eq!(LogicalAddr(6).checked_since(LogicalAddr(5)), Some(1));
    }
}
