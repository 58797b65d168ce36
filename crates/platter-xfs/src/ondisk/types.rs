//! Numbers of things: blocks, allocation groups, inodes, positions in the log. Never mixed, never
//! wrapping. Spec: `xfs/common_types`.

use std::fmt;
use std::num::NonZero;

use platter_vfs::InodeId;

/// An allocation group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AgNr(pub u32);

/// A block of an allocation group, counted from the group's start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AgBlock(pub u32);

/// An inode number within its allocation group.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct AgInode(pub u32);

/// A filesystem block number: the allocation group in the high bits, the block within it in the low
/// ones. Numbers of neighbouring groups need not follow each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FsBlock(pub u64);

/// A block of a realtime device, counted from its start; with realtime groups, the group is in the
/// high bits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct RtBlock(pub u64);

/// A block of a file or fork, counted from its start.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct FileBlock(pub u64);

/// A position on a device in units of 512 bytes, as metadata blocks store their own
/// (`xfs_daddr_t`).
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct BasicBlock(pub u64);

/// A log sequence number: the cycle in the high half, the basic block within the log in the low
/// one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Lsn(pub u64);

/// An absolute inode number. Neither zero nor all ones, which mean "none".
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct InodeNr(NonZero<u64>);

impl AgBlock {
    /// `NULLAGBLOCK`: no block.
    pub const NULL: Self = Self(u32::MAX);

    /// The block `count` further on, unless that leaves the number range.
    #[must_use]
    pub fn checked_add(self, count: u32) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// The block, unless it is [`NULL`](Self::NULL).
    #[must_use]
    pub fn non_null(self) -> Option<Self> {
        (self != Self::NULL).then_some(self)
    }
}

impl AgInode {
    /// `NULLAGINO`: no inode.
    pub const NULL: Self = Self(u32::MAX);

    /// The inode number, unless it is [`NULL`](Self::NULL).
    #[must_use]
    pub fn non_null(self) -> Option<Self> {
        (self != Self::NULL).then_some(self)
    }
}

impl FsBlock {
    /// `NULLFSBLOCK`: no block.
    pub const NULL: Self = Self(u64::MAX);

    /// The block `count` further on, unless that leaves the number range.
    #[must_use]
    pub fn checked_add(self, count: u64) -> Option<Self> {
        self.0.checked_add(count).map(Self)
    }

    /// The block, unless it is [`NULL`](Self::NULL).
    #[must_use]
    pub fn non_null(self) -> Option<Self> {
        (self != Self::NULL).then_some(self)
    }
}

impl FileBlock {
    /// The last block a fork can have: extent records hold 54 bits.
    pub const MAX: Self = Self((1 << 54) - 1);

    /// The block `count` further on, unless that leaves the number range of forks.
    #[must_use]
    pub fn checked_add(self, count: u64) -> Option<Self> {
        let sum = self.0.checked_add(count)?;
        (sum <= Self::MAX.0.saturating_add(1)).then_some(Self(sum))
    }

    /// The distance from `earlier` in blocks, unless that lies after this block.
    #[must_use]
    pub fn checked_since(self, earlier: Self) -> Option<u64> {
        self.0.checked_sub(earlier.0)
    }
}

impl BasicBlock {
    /// Size of a basic block in bytes.
    pub const BYTES: u64 = 512;

    /// The basic block at a byte offset, rounded down.
    #[must_use]
    pub fn of_byte(offset: u64) -> Self {
        Self(offset.checked_div(Self::BYTES).unwrap_or_default())
    }

    /// Its first byte.
    #[must_use]
    pub fn byte_offset(self) -> u64 {
        self.0.saturating_mul(Self::BYTES)
    }
}

impl Lsn {
    /// `NULLCOMMITLSN`.
    pub const NULL: Self = Self(u64::MAX);

    /// A position in the log.
    #[must_use]
    pub fn new(cycle: u32, block: u32) -> Self {
        Self(platter_ondisk::endian::join_u32(cycle, block))
    }

    /// How often the log wrapped.
    #[must_use]
    pub fn cycle(self) -> u32 {
        u32::try_from(self.0.checked_shr(32).unwrap_or_default()).unwrap_or_default()
    }

    /// The basic block within the log.
    #[must_use]
    pub fn block(self) -> u32 {
        u32::try_from(self.0 & u64::from(u32::MAX)).unwrap_or_default()
    }
}

impl InodeNr {
    /// The inode with this number; `None` for zero and `NULLFSINO`.
    #[must_use]
    pub fn new(number: u64) -> Option<Self> {
        NonZero::new(number)
            .filter(|number| number.get() != u64::MAX)
            .map(Self)
    }

    /// The number.
    #[must_use]
    pub fn get(self) -> u64 {
        self.0.get()
    }

    /// Its identity among mounted inodes.
    #[must_use]
    pub fn id(self) -> InodeId {
        InodeId {
            tree: 0,
            number: self.get(),
        }
    }
}

macro_rules! shown_as_number {
    ($($name:ident),+) => {
        $(impl fmt::Display for $name {
            fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(out)
            }
        })+
    };
}

shown_as_number!(
    AgNr, AgBlock, AgInode, FsBlock, RtBlock, FileBlock, BasicBlock, InodeNr
);

impl fmt::Display for Lsn {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "{}:{}", self.cycle(), self.block())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_never_wrap() {
        assert_eq!(FsBlock(u64::MAX).checked_add(1), None);
        assert_eq!(AgBlock(u32::MAX).checked_add(1), None);
        assert_eq!(FileBlock::MAX.checked_add(2), None);
        assert_eq!(FileBlock(9).checked_since(FileBlock(4)), Some(5));
        assert_eq!(FileBlock(3).checked_since(FileBlock(4)), None);
    }

    #[test]
    fn null_numbers_name_nothing() {
        assert_eq!(InodeNr::new(0), None);
        assert_eq!(InodeNr::new(u64::MAX), None);
        assert_eq!(InodeNr::new(128).map(|inode| inode.id().number), Some(128));
        assert_eq!(AgBlock(u32::MAX).non_null(), None);
        assert_eq!(AgInode(5).non_null(), Some(AgInode(5)));
        assert_eq!(FsBlock(u64::MAX).non_null(), None);
    }

    #[test]
    fn lsn_splits_into_cycle_and_block() {
        let lsn = Lsn::new(3, 0x8000_0001);
        assert_eq!((lsn.cycle(), lsn.block()), (3, 0x8000_0001));
        assert_eq!(lsn.to_string(), "3:2147483649");
    }
}
