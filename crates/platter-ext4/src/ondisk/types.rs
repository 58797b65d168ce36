//! Numbers of things: device blocks, blocks of a file, groups, inodes. Never mixed, never wrapping.

use std::fmt;
use std::num::NonZero;

use platter_vfs::InodeId;

/// A block of the filesystem, counted from its start; the boot block has number 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BlockNr(pub u64);

/// A block of a file, counted from the file's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileBlock(pub u32);

/// A block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct GroupNr(pub u32);

/// An inode. Zero means "none" on the medium and is ruled out here.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNr(NonZero<u32>);

impl BlockNr {
    /// The block `count` further on, unless that leaves the number range.
    #[must_use]
    pub fn checked_add(self, count: u64) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// The distance from `earlier` in blocks, unless that lies after this block.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl FileBlock {
    /// The last block a file can have.
    pub const MAX: Self = Self(u32::MAX);

    /// The block `count` further on, unless that leaves the number range.
    #[must_use]
    pub fn checked_add(self, count: u32) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// The distance from `earlier` in blocks, unless that lies after this block.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u32> {
        self.0.checked_sub(earlier.0)
    }
}

impl InodeNr {
    /// Where blocks found bad are kept.
    pub const BAD_BLOCKS: Self = Self::reserved(1);
    /// The root directory.
    pub const ROOT: Self = Self::reserved(2);
    /// User quota, when the superblock names no other.
    pub const USER_QUOTA: Self = Self::reserved(3);
    /// Group quota, when the superblock names no other.
    pub const GROUP_QUOTA: Self = Self::reserved(4);
    /// Blocks kept for growing the group descriptor table.
    pub const RESIZE: Self = Self::reserved(7);
    /// The journal, when the superblock names no other.
    pub const JOURNAL: Self = Self::reserved(8);

    const fn reserved(number: u32) -> Self {
        match NonZero::new(number) {
            Some(number) => Self(number),
            None => Self(NonZero::<u32>::MIN),
        }
    }

    /// The inode with this number; `None` for zero.
    #[must_use]
    pub fn new(number: u32) -> Option<Self> {
        NonZero::new(number).map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u32 {
        self.0.get()
    }

    /// Its identity among mounted inodes.
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
