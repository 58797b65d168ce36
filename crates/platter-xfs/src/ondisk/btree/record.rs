//! Records and keys of the B-trees. Spec: `xfs/allocation_groups`, `xfs/rmapbt`, `xfs/refcountbt`,
//! `xfs/data_extents`.

use platter_ondisk::endian::{Be16, Be32, Be64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::{BtreeKind, RecordKey};
use crate::ondisk::geometry::CHUNK_INODES;
use crate::ondisk::types::{AgBlock, AgInode};

/// A free extent; also the key of both free space B-trees. Spec: `struct xfs_alloc_rec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskFreeExtent {
    /// `ar_startblock`.
    pub start: Be32,
    /// `ar_blockcount`.
    pub count: Be32,
}

/// An inode chunk. Without sparse inodes, holemask and count are the high half of the free count and
/// zero. Spec: `struct xfs_inobt_rec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskInodeChunk {
    /// `ir_startino`.
    pub start: Be32,
    /// `ir_holemask`: four inodes each, set where there are none.
    pub holes: Be16,
    /// `ir_count`: inodes that exist.
    pub count: u8,
    /// `ir_freecount`.
    pub free_count: u8,
    /// `ir_free`: set for inodes that are free or do not exist.
    pub free: Be64,
}

/// A reference count. Spec: `struct xfs_refcount_rec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskRefcount {
    /// `rc_startblock`; the highest bit marks blocks staged for copy on write.
    pub start: Be32,
    /// `rc_blockcount`.
    pub count: Be32,
    /// `rc_refcount`.
    pub references: Be32,
}

/// An owner of blocks. Spec: `struct xfs_rmap_rec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskOwner {
    /// `rm_startblock`.
    pub start: Be32,
    /// `rm_blockcount`.
    pub count: Be32,
    /// `rm_owner`: an inode, or one of [`RmapOwner`]'s special values.
    pub owner: Be64,
    /// `rm_offset`: file block, and three flags in the highest bits.
    pub offset: Be64,
}

/// One of the two keys of a pointer in a reverse mapping B-tree. Spec: `struct xfs_rmap_key`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskOwnerKey {
    /// `rm_startblock`.
    pub start: Be32,
    /// `rm_owner`.
    pub owner: Be64,
    /// `rm_offset`.
    pub offset: Be64,
}

/// A mapping of file blocks, packed into 128 bits. Spec: `struct xfs_bmbt_rec`.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskMapping {
    /// `l0`: the flag of unwritten extents, 54 bits of file block, the high 9 bits of the block.
    pub high: Be64,
    /// `l1`: the low 43 bits of the block, 21 bits of length.
    pub low: Be64,
}

const _: () = assert!(size_of::<DiskFreeExtent>() == 8);
const _: () = assert!(size_of::<DiskInodeChunk>() == 16);
const _: () = assert!(size_of::<DiskRefcount>() == 12);
const _: () = assert!(size_of::<DiskOwner>() == 24);
const _: () = assert!(size_of::<DiskOwnerKey>() == 20);
const _: () = assert!(size_of::<DiskMapping>() == 16);

impl DiskFreeExtent {
    /// What records of a tree of free extents are ordered by.
    #[must_use]
    pub fn record_key(&self, kind: BtreeKind) -> RecordKey {
        let (start, count) = (self.start.get().into(), self.count.get().into());
        if kind == BtreeKind::Cnt {
            RecordKey::of_order([count, start, 0])
        } else {
            RecordKey::of_run(start, count)
        }
    }
}

impl DiskInodeChunk {
    /// What records of an inode B-tree are ordered by.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        RecordKey::of_run(self.start.get().into(), CHUNK_INODES.into())
    }
}

impl DiskRefcount {
    /// What records of a reference count B-tree are ordered by.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        RecordKey::of_run(self.start.get().into(), self.count.get().into())
    }
}

/// An inode chunk: 64 inode numbers, some of which may be holes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeChunk {
    /// The first number.
    pub start: AgInode,
    /// Set for four inodes each that do not exist.
    pub holes: u16,
    /// Inodes that exist.
    pub count: u32,
    /// Inodes that are free.
    pub free_count: u32,
    /// Set for inodes that are free, or do not exist.
    pub free: u64,
}

impl InodeChunk {
    /// Decodes a record.
    #[must_use]
    pub fn decode(disk: &DiskInodeChunk, is_sparse: bool) -> Self {
        let start = AgInode(disk.start.get());
        let free = disk.free.get();
        if is_sparse {
            return Self {
                start,
                holes: disk.holes.get(),
                count: disk.count.into(),
                free_count: disk.free_count.into(),
                free,
            };
        }
        let [h0, h1] = disk.holes.to_bytes();
        Self {
            start,
            holes: 0,
            count: CHUNK_INODES,
            free_count: u32::from_be_bytes([h0, h1, disk.count, disk.free_count]),
            free,
        }
    }

    /// The record of this chunk.
    #[must_use]
    pub fn encode(&self, is_sparse: bool) -> DiskInodeChunk {
        let [f0, f1, f2, f3] = self.free_count.to_be_bytes();
        let (holes, count) = if is_sparse {
            (
                self.holes.into(),
                u8::try_from(self.count).unwrap_or(u8::MAX),
            )
        } else {
            (Be16::from_bytes([f0, f1]), f2)
        };
        DiskInodeChunk {
            start: self.start.0.into(),
            holes,
            count,
            free_count: f3,
            free: self.free.into(),
        }
    }

    /// Set for each inode that exists.
    #[must_use]
    pub fn existing(&self) -> u64 {
        const INODES_PER_HOLE: u32 = 4;
        if self.holes == 0 {
            return u64::MAX;
        }
        (0..CHUNK_INODES)
            .filter(|index| {
                let hole = index.checked_div(INODES_PER_HOLE).unwrap_or_default();
                self.holes.checked_shr(hole).unwrap_or_default() & 1 == 0
            })
            .fold(0, |mask, index| mask | bit(index))
    }

    /// Runs of inodes that exist: the index of the first, and how many there are.
    #[must_use]
    pub fn runs(&self) -> Vec<(u32, u32)> {
        let existing = self.existing();
        let mut runs: Vec<(u32, u32)> = Vec::new();
        for index in (0..CHUNK_INODES).filter(|&index| existing & bit(index) != 0) {
            match runs.last_mut() {
                Some((first, count)) if first.saturating_add(*count) == index => {
                    *count = count.saturating_add(1);
                }
                _ => runs.push((index, 1)),
            }
        }
        runs
    }

    /// Whether the inode with this index exists and is not free.
    #[must_use]
    pub fn is_allocated(&self, index: u32) -> bool {
        self.existing() & !self.free & bit(index) != 0
    }

    /// Whether counts and masks agree.
    #[must_use]
    pub fn is_consistent(&self) -> bool {
        let existing = self.existing();
        let is_aligned = self.start.0.checked_rem(CHUNK_INODES) == Some(0) || self.holes == 0;
        is_aligned
            && existing.count_ones() == self.count
            && (self.free & existing).count_ones() == self.free_count
            && !existing & !self.free == 0
    }
}

fn bit(index: u32) -> u64 {
    1_u64.checked_shl(index).unwrap_or_default()
}

/// A run of blocks with a reference count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Refcount {
    /// The first block.
    pub start: AgBlock,
    /// Blocks.
    pub count: u32,
    /// References to each.
    pub references: u32,
    /// Whether the blocks are staged for copy on write.
    pub is_staged: bool,
}

const STAGED: u32 = 1 << 31;

impl Refcount {
    /// Decodes a record.
    #[must_use]
    pub fn decode(disk: &DiskRefcount) -> Self {
        Self {
            start: AgBlock(disk.start.get() & !STAGED),
            count: disk.count.get(),
            references: disk.references.get(),
            is_staged: disk.start.get() & STAGED != 0,
        }
    }

    /// The record of this run.
    #[must_use]
    pub fn encode(&self) -> DiskRefcount {
        let staged = if self.is_staged { STAGED } else { 0 };
        DiskRefcount {
            start: (self.start.0 | staged).into(),
            count: self.count.into(),
            references: self.references.into(),
        }
    }
}

/// The owner of blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct RmapOwner(pub u64);

impl RmapOwner {
    /// `XFS_RMAP_OWN_FS`: headers of the group.
    pub const FS: Self = Self::special(3);
    /// `XFS_RMAP_OWN_LOG`: the log.
    pub const LOG: Self = Self::special(4);
    /// `XFS_RMAP_OWN_AG`: free space and reverse mapping B-trees, and the free list.
    pub const AG: Self = Self::special(5);
    /// `XFS_RMAP_OWN_INOBT`: inode B-trees.
    pub const INOBT: Self = Self::special(6);
    /// `XFS_RMAP_OWN_INODES`: inode chunks.
    pub const INODES: Self = Self::special(7);
    /// `XFS_RMAP_OWN_REFC`: the reference count B-tree.
    pub const REFCOUNT: Self = Self::special(8);
    /// `XFS_RMAP_OWN_COW`: blocks staged for copy on write.
    pub const COW: Self = Self::special(9);

    const fn special(number: u64) -> Self {
        Self(number.wrapping_neg())
    }

    /// Whether it is an inode.
    #[must_use]
    pub fn is_inode(self) -> bool {
        self.0 < u64::MAX / 2
    }
}

/// A run of blocks and its owner.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Owner {
    /// The first block.
    pub start: AgBlock,
    /// Blocks.
    pub count: u32,
    /// The owner.
    pub owner: RmapOwner,
    /// The file block, if the owner is an inode and the blocks are not of a fork's B-tree.
    pub offset: u64,
    /// Whether the blocks are of an attribute fork.
    pub is_attr_fork: bool,
    /// Whether the blocks are of the B-tree of a fork.
    pub is_btree: bool,
    /// Whether the extent is unwritten.
    pub is_unwritten: bool,
}

const ATTR_FORK: u64 = 1 << 63;
const FORK_BTREE: u64 = 1 << 62;
const UNWRITTEN: u64 = 1 << 61;
const OFFSET: u64 = (1 << 54) - 1;

impl Owner {
    /// Blocks of an owner that is no inode.
    #[must_use]
    pub fn special(start: AgBlock, count: u32, owner: RmapOwner) -> Self {
        Self {
            start,
            count,
            owner,
            offset: 0,
            is_attr_fork: false,
            is_btree: false,
            is_unwritten: false,
        }
    }

    /// Decodes a record.
    #[must_use]
    pub fn decode(disk: &DiskOwner) -> Self {
        let offset = disk.offset.get();
        Self {
            start: AgBlock(disk.start.get()),
            count: disk.count.get(),
            owner: RmapOwner(disk.owner.get()),
            offset: offset & OFFSET,
            is_attr_fork: offset & ATTR_FORK != 0,
            is_btree: offset & FORK_BTREE != 0,
            is_unwritten: offset & UNWRITTEN != 0,
        }
    }

    /// The record of this run.
    #[must_use]
    pub fn encode(&self) -> DiskOwner {
        let flag = |on: bool, flag: u64| if on { flag } else { 0 };
        let offset = self.offset & OFFSET
            | flag(self.is_attr_fork, ATTR_FORK)
            | flag(self.is_btree, FORK_BTREE)
            | flag(self.is_unwritten, UNWRITTEN);
        DiskOwner {
            start: self.start.0.into(),
            count: self.count.into(),
            owner: self.owner.0.into(),
            offset: offset.into(),
        }
    }
}

impl DiskOwner {
    /// The keys of the record: of its first and of its last block.
    #[must_use]
    pub fn keys(&self) -> [DiskOwnerKey; 2] {
        let first = DiskOwnerKey {
            start: self.start,
            owner: self.owner,
            offset: self.offset,
        };
        let further = self.count.get().saturating_sub(1);
        let has_offset = RmapOwner(self.owner.get()).is_inode();
        let is_tree = self.offset.get() & FORK_BTREE != 0;
        let offset = if has_offset && !is_tree {
            self.offset.get().saturating_add(further.into())
        } else {
            self.offset.get()
        };
        let last = DiskOwnerKey {
            start: self.start.get().saturating_add(further).into(),
            owner: self.owner,
            offset: offset.into(),
        };
        [first, last]
    }

    /// What records are ordered by: whether the extent is unwritten does not count.
    #[must_use]
    pub fn order(&self) -> (u32, u64, u64) {
        let offset = self.offset.get() & !UNWRITTEN;
        (self.start.get(), self.owner.get(), offset)
    }

    /// The same as the key of a record.
    #[must_use]
    pub fn record_key(&self) -> RecordKey {
        let (start, owner, offset) = self.order();
        RecordKey::of_order([start.into(), owner, offset])
    }
}

impl DiskOwnerKey {
    /// What keys are ordered by: whether the extent is unwritten does not count.
    #[must_use]
    pub fn order(&self) -> (u32, u64, u64) {
        let offset = self.offset.get() & !UNWRITTEN;
        (self.start.get(), self.owner.get(), offset)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn chunks_survive_encoding_with_and_without_holes() {
        let chunk = InodeChunk {
            start: AgInode(128),
            holes: 0xff00,
            count: 32,
            free_count: 3,
            free: 0xffff_ffff_0000_0007,
        };
        assert!(chunk.is_consistent());
        assert_eq!(InodeChunk::decode(&chunk.encode(true), true), chunk);
        assert!(chunk.is_allocated(3) && !chunk.is_allocated(2) && !chunk.is_allocated(40));
        let whole = InodeChunk {
            holes: 0,
            count: 64,
            free: 7,
            ..chunk
        };
        assert!(whole.is_consistent());
        let disk = whole.encode(false);
        assert_eq!((disk.holes.get(), disk.count, disk.free_count), (0, 0, 3));
        assert_eq!(InodeChunk::decode(&disk, false), whole);
    }

    #[test]
    fn chunk_with_wrong_counts_is_inconsistent() {
        let chunk = InodeChunk {
            start: AgInode(64),
            holes: 1,
            count: 60,
            free_count: 0,
            free: 0xf,
        };
        assert!(chunk.is_consistent());
        assert!(!InodeChunk { free: 0x7, ..chunk }.is_consistent());
        assert!(!InodeChunk { count: 64, ..chunk }.is_consistent());
        assert!(
            !InodeChunk {
                free_count: 1,
                ..chunk
            }
            .is_consistent()
        );
    }

    #[test]
    fn owners_and_references_survive_encoding() {
        let owner = Owner {
            start: AgBlock(5),
            count: 7,
            owner: RmapOwner(131),
            offset: 1 << 53,
            is_attr_fork: true,
            is_btree: false,
            is_unwritten: true,
        };
        assert_eq!(Owner::decode(&owner.encode()), owner);
        assert!(owner.owner.is_inode() && !RmapOwner::COW.is_inode());
        let refcount = Refcount {
            start: AgBlock(9),
            count: 1,
            references: 1,
            is_staged: true,
        };
        assert_eq!(Refcount::decode(&refcount.encode()), refcount);
    }
}
