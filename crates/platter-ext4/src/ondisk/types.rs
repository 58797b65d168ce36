//! Types for block, group and inode numbers, with checked arithmetic.

use std::fmt;
use std::num::NonZero;

use platter_vfs::InodeId;

/// Number of a filesystem block; the boot block has number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockNr(pub u64);

/// Logical block number in a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileBlock(pub u32);

/// Number of a block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNr(pub u32);

/// Number of an inode. Zero, which means "none" on disk, is excluded.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNr(NonZero<u32>);

impl BlockNr {
    /// Returns the block `count` blocks later; `None` on overflow.
    #[must_use]
    pub fn checked_add(self, count: u64) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// Returns the distance from `earlier` in blocks; `None` if that is after this block.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl FileBlock {
    /// The last block a file can have.
    pub const MAX: Self = Self(u32::MAX);

    /// Returns the block `count` blocks later; `None` on overflow.
    #[must_use]
    pub fn checked_add(self, count: u32) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// Returns the distance from `earlier` in blocks; `None` if that is after this block.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u32> {
        self.0.checked_sub(earlier.0)
    }
}

impl InodeNr {
    /// The bad blocks inode.
    pub const BAD_BLOCKS: Self = Self::reserved(1);
    /// The root directory.
    pub const ROOT: Self = Self::reserved(2);
    /// User quota, unless the superblock names another inode.
    pub const USER_QUOTA: Self = Self::reserved(3);
    /// Group quota, unless the superblock names another inode.
    pub const GROUP_QUOTA: Self = Self::reserved(4);
    /// The resize inode, which reserves blocks for growing the group descriptor table.
    pub const RESIZE: Self = Self::reserved(7);
    /// The journal, unless the superblock names another inode.
    pub const JOURNAL: Self = Self::reserved(8);

    const fn reserved(number: u32) -> Self {
        match NonZero::new(number) {
            Some(number) => Self(number),
            None => Self(NonZero::<u32>::MIN),
        }
    }

    /// Returns the inode with this number; `None` for zero.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZero::new(number).map(Self)
    }

    /// Returns the number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Returns the inode's id in the VFS.
    #[must_use]
    pub fn id(self) -> InodeId {
        InodeId {
            tree: 0,
            number: u64::from(self.get()),
        }
    }
}

impl fmt::Display for BlockNr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for FileBlock {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for GroupNr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl fmt::Display for InodeNr {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_wrap() {
        assert_eq!(BlockNr(u64::MAX).checked_add(1), None);
        assert_eq!(BlockNr(3).checked_since(BlockNr(4)), None);
        assert_eq!(FileBlock::MAX.checked_add(1), None);
        assert_eq!(FileBlock(9).checked_since(FileBlock(4)), Some(5));
        assert_eq!(InodeNr::new(0), None);
        assert_eq!(InodeNr::ROOT.id().number, 2);
    }
}
