//! Blocks of B-trees with fixed-length records: of allocation groups, with pointers of 32 bits, and of
//! inodes, with pointers of 64 bits; and their roots in inodes.
//! Spec: `xfs/btrees`, `xfs/data_extents`.

mod record;
pub mod extent;
mod build;
#[cfg(test)]
pub(crate) mod tests;

use std::mem::offset_of;

use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::geometry::Geometry;
use super::identity::{Identity, Site};
use super::types::{AgBlock, AgNr, FsBlock};

pub use build::BuiltBlock;
pub use record::{
    DiskFreeExtent, DiskInodeChunk, DiskMapping, DiskOwner, DiskOwnerKey, DiskRefcount, InodeChunk,
    Owner, Refcount, RmapOwner,
};

/// More levels than any B-tree can have.
pub const BTREE_LEVELS_MAX: u32 = 14;

/// Which B-tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum BtreeKind {
    /// Free extents by block.
    Bno = 1,
    /// Free extents by length.
    Cnt,
    /// Inode chunks.
    Inobt,
    /// Inode chunks with free inodes.
    Finobt,
    /// Owners of blocks.
    Rmap,
    /// Reference counts of blocks.
    Refcount,
    /// Mappings of a fork.
    Bmap,
    /// Owners of realtime blocks.
    RtRmap,
    /// Reference counts of realtime blocks.
    RtRefcount,
}

/// Sizes and magic numbers of a B-tree.
struct Format {
    magic_v4: Option<u32>,
    magic_v5: u32,
    record_bytes: usize,
    /// Of all keys of one pointer.
    key_bytes: usize,
}

impl BtreeKind {
    fn format(self) -> Format {
        let format = |magic_v4, magic_v5, record_bytes, key_bytes| Format {
            magic_v4,
            magic_v5,
            record_bytes,
            key_bytes,
        };
        match self {
            Self::Bno => format(Some(0x4142_5442), 0x4142_3342, 8, 8),
            Self::Cnt => format(Some(0x4142_5443), 0x4142_3343, 8, 8),
            Self::Inobt => format(Some(0x4941_4254), 0x4941_4233, 16, 4),
            Self::Finobt => format(Some(0x4649_4254), 0x4649_4233, 16, 4),
            Self::Rmap => format(None, 0x524d_4233, 24, 40),
            Self::Refcount => format(None, 0x5233_4643, 12, 4),
            Self::Bmap => format(Some(0x424d_4150), 0x424d_4133, 16, 8),
            Self::RtRmap => format(None, 0x4d41_5052, 24, 40),
            Self::RtRefcount => format(None, 0x5243_4e54, 12, 4),
        }
    }

    /// The magic number of its blocks; `None` where the version does not have the B-tree.
    #[must_use]
    pub fn magic(self, is_v5: bool) -> Option<u32> {
        let format = self.format();
        if is_v5 {
            Some(format.magic_v5)
        } else {
            format.magic_v4
        }
    }

    /// Whether pointers have 64 bits, and the owner is an inode.
    #[must_use]
    pub fn is_long(self) -> bool {
        matches!(self, Self::Bmap | Self::RtRmap | Self::RtRefcount)
    }

    fn pointer_bytes(self) -> usize {
        if self.is_long() { 8 } else { 4 }
    }

    /// Size of the header of its blocks.
    #[must_use]
    pub fn header_bytes(self, is_v5: bool) -> usize {
        match (self.is_long(), is_v5) {
            (false, false) => size_of::<DiskShortHeader>(),
            (false, true) => size_of::<DiskShortHeaderV5>(),
            (true, false) => size_of::<DiskLongHeader>(),
            (true, true) => size_of::<DiskLongHeaderV5>(),
        }
    }

    /// How many records, or keys and pointers, fit into `bytes` after a header.
    pub(crate) fn capacity(self, level: u16, bytes: usize) -> usize {
        let format = self.format();
        let each = if level == 0 {
            format.record_bytes
        } else {
            format.key_bytes.saturating_add(self.pointer_bytes())
        };
        bytes.checked_div(each).unwrap_or_default()
    }

    /// The most records of a leaf, or keys of a node.
    #[must_use]
    pub fn records_max(self, level: u16, geometry: &Geometry) -> usize {
        let block = usize::try_from(geometry.block_bytes()).unwrap_or_default();
        let header = self.header_bytes(geometry.features.is_v5());
        self.capacity(level, block.saturating_sub(header))
    }
}

/// The header of a block with short pointers. Spec: `struct xfs_btree_sblock`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskShortHeader {
    /// `bb_magic`.
    pub magic: Be32,
    /// `bb_level`: zero for a leaf.
    pub level: Be16,
    /// `bb_numrecs`.
    pub records: Be16,
    /// `bb_leftsib`.
    pub left: Be32,
    /// `bb_rightsib`.
    pub right: Be32,
}

/// The header of a block with short pointers in version 5.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskShortHeaderV5 {
    /// What all versions have.
    pub common: DiskShortHeader,
    /// `bb_blkno`.
    pub block: Be64,
    /// `bb_lsn`.
    pub lsn: Be64,
    /// `bb_uuid`.
    pub uuid: [u8; 16],
    /// `bb_owner`: the allocation group.
    pub owner: Be32,
    /// `bb_crc`, of the block.
    pub checksum: Le32,
}

/// The header of a block with long pointers. Spec: `struct xfs_btree_lblock`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLongHeader {
    /// `bb_magic`.
    pub magic: Be32,
    /// `bb_level`: zero for a leaf.
    pub level: Be16,
    /// `bb_numrecs`.
    pub records: Be16,
    /// `bb_leftsib`.
    pub left: Be64,
    /// `bb_rightsib`.
    pub right: Be64,
}

/// The header of a block with long pointers in version 5.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskLongHeaderV5 {
    /// What all versions have.
    pub common: DiskLongHeader,
    /// `bb_blkno`.
    pub block: Be64,
    /// `bb_lsn`.
    pub lsn: Be64,
    /// `bb_uuid`.
    pub uuid: [u8; 16],
    /// `bb_owner`: the inode.
    pub owner: Be64,
    /// `bb_crc`, of the block.
    pub checksum: Le32,
    /// `bb_pad`.
    pub padding: Be32,
}

/// The header of a root in an inode. Spec: `struct xfs_bmdr_block`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskRootHeader {
    /// `bb_level`.
    pub level: Be16,
    /// `bb_numrecs`.
    pub records: Be16,
}

const _: () = assert!(size_of::<DiskShortHeader>() == 16);
const _: () = assert!(size_of::<DiskShortHeaderV5>() == 56);
const _: () = assert!(size_of::<DiskLongHeader>() == 24);
const _: () = assert!(size_of::<DiskLongHeaderV5>() == 72);
const _: () = assert!(size_of::<DiskRootHeader>() == 4);
const _: () = assert!(offset_of!(DiskShortHeaderV5, checksum) == 52);
const _: () = assert!(offset_of!(DiskLongHeaderV5, checksum) == 64);

rules! {
    /// What a block of a B-tree must hold to.
    pub enum BtreeRule of "B-tree block" {
        /// `bb_magic`.
        Magic => "bad magic number",
        /// `bb_crc`.
        Checksum => "bad CRC",
        /// `bb_uuid`.
        Uuid => "bad UUID",
        /// `bb_blkno`.
        BlockNumber => "block number is not where it lies",
        /// `bb_owner`.
        Owner => "bad owner",
        /// `bb_level` is one less than that of the parent.
        Level => "bad level",
        /// `bb_numrecs` fits the block; above leaves it is not zero.
        Records => "bad number of records",
        /// `bb_leftsib` and `bb_rightsib` are null or blocks that exist.
        Sibling => "bad sibling",
        /// Pointers are to blocks that exist.
        Pointer => "bad pointer",
        /// Records ascend and do not overlap.
        Order => "records out of order",
        /// A record is within what it can be.
        Record => "bad record",
    }
}

identity_rules!(BtreeRule);

/// A block of a B-tree, or a root in an inode, whose header holds.
#[derive(Debug, Clone, Copy)]
pub struct BtreeBlock<'a> {
    /// Which B-tree it is of.
    pub kind: BtreeKind,
    /// Zero for a leaf.
    pub level: u16,
    /// Records of a leaf; keys and pointers of a node.
    pub count: usize,
    /// The block to the left on the same level, by its number as stored.
    pub left: Option<u64>,
    /// The block to the right on the same level, by its number as stored.
    pub right: Option<u64>,
    body: &'a [u8],
}

impl<'a> BtreeBlock<'a> {
    /// Validates the header of a block: all that can be decided without its parent.
    pub fn decode(bytes: &'a [u8], kind: BtreeKind, site: &Site<'_>) -> Result<Self, BtreeRule> {
        let is_v5 = site.geometry.features.is_v5();
        let block = if kind.is_long() {
            Self::long(bytes, kind, site, is_v5)?
        } else {
            Self::short(bytes, kind, site, is_v5)?
        };
        block.check_count()?;
        block.check_siblings(site)?;
        Ok(block)
    }

    fn short(
        bytes: &'a [u8],
        kind: BtreeKind,
        site: &Site<'_>,
        is_v5: bool,
    ) -> Result<Self, BtreeRule> {
        let (header, body) =
            DiskShortHeader::ref_from_prefix(bytes).map_err(|_| BtreeRule::Magic)?;
        check_magic(header.magic, kind, is_v5)?;
        let mut body = body;
        if is_v5 {
            let (header, after) =
                DiskShortHeaderV5::ref_from_prefix(bytes).map_err(|_| BtreeRule::Magic)?;
            let identity = Identity {
                checksum_at: offset_of!(DiskShortHeaderV5, checksum),
                uuid: header.uuid,
                block: header.block.get(),
                owner: header.owner.get().into(),
            };
            identity.check(bytes, site)?;
            body = after;
        }
        let sibling = |block: Be32| AgBlock(block.get()).non_null().map(|block| block.0.into());
        Ok(Self {
            kind,
            level: header.level.get(),
            count: header.records.get().into(),
            left: sibling(header.left),
            right: sibling(header.right),
            body,
        })
    }

    fn long(
        bytes: &'a [u8],
        kind: BtreeKind,
        site: &Site<'_>,
        is_v5: bool,
    ) -> Result<Self, BtreeRule> {
        let (header, body) =
            DiskLongHeader::ref_from_prefix(bytes).map_err(|_| BtreeRule::Magic)?;
        check_magic(header.magic, kind, is_v5)?;
        let mut body = body;
        if is_v5 {
            let (header, after) =
                DiskLongHeaderV5::ref_from_prefix(bytes).map_err(|_| BtreeRule::Magic)?;
            let identity = Identity {
                checksum_at: offset_of!(DiskLongHeaderV5, checksum),
                uuid: header.uuid,
                block: header.block.get(),
                owner: header.owner.get(),
            };
            identity.check(bytes, site)?;
            body = after;
        }
        let sibling = |block: Be64| FsBlock(block.get()).non_null().map(|block| block.0);
        Ok(Self {
            kind,
            level: header.level.get(),
            count: header.records.get().into(),
            left: sibling(header.left),
            right: sibling(header.right),
            body,
        })
    }

    /// Validates the header of a root in an inode, which fills its fork.
    pub fn decode_root(fork: &'a [u8], kind: BtreeKind) -> Result<Self, BtreeRule> {
        let (header, body) =
            DiskRootHeader::ref_from_prefix(fork).map_err(|_| BtreeRule::Records)?;
        let root = Self {
            kind,
            level: header.level.get(),
            count: header.records.get().into(),
            left: None,
            right: None,
            body,
        };
        // Mappings that fit the inode need no root.
        if root.level == 0 && kind == BtreeKind::Bmap {
            return Err(BtreeRule::Level);
        }
        if root.level == 0 && root.count == 0 {
            return Ok(root);
        }
        root.check_count()?;
        Ok(root)
    }

    fn check_count(&self) -> Result<(), BtreeRule> {
        if u32::from(self.level) >= BTREE_LEVELS_MAX {
            return Err(BtreeRule::Level);
        }
        let is_empty_node = self.level > 0 && self.count == 0;
        if self.count > self.kind.capacity(self.level, self.body.len()) || is_empty_node {
            return Err(BtreeRule::Records);
        }
        Ok(())
    }

    fn check_siblings(&self, site: &Site<'_>) -> Result<(), BtreeRule> {
        let exists = |block: Option<u64>| {
            block.is_none_or(|block| self.exists(block, site.geometry, site.owner))
        };
        if exists(self.left) && exists(self.right) {
            Ok(())
        } else {
            Err(BtreeRule::Sibling)
        }
    }

    /// Whether a pointer as stored is to a block that can be of a B-tree.
    fn exists(&self, pointer: u64, geometry: &Geometry, owner: u64) -> bool {
        if self.kind.is_long() {
            return geometry.contains(FsBlock(pointer), 1);
        }
        let ag = AgNr(u32::try_from(owner).unwrap_or(u32::MAX));
        pointer > 0 && pointer < u64::from(geometry.ag_len(ag))
    }

    /// The records of a leaf, as the type of the B-tree; empty for a node.
    #[must_use]
    pub fn records<R: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &'a [R] {
        let is_leaf = self.level == 0 && size_of::<R>() == self.kind.format().record_bytes;
        let count = if is_leaf { self.count } else { 0 };
        slice(self.body, count)
    }

    /// The keys of a node, as the type of the B-tree; empty for a leaf.
    #[must_use]
    pub fn keys<K: FromBytes + KnownLayout + Immutable + Unaligned>(&self) -> &'a [K] {
        let is_node = self.level > 0 && size_of::<K>() == self.kind.format().key_bytes;
        let count = if is_node { self.count } else { 0 };
        slice(self.body, count)
    }

    /// The pointer of a node with this index, as stored; `None` beyond the last one.
    #[must_use]
    pub fn pointer(&self, index: usize) -> Option<u64> {
        if self.level == 0 || index >= self.count {
            return None;
        }
        let capacity = self.kind.capacity(self.level, self.body.len());
        let start = capacity.checked_mul(self.kind.format().key_bytes)?;
        let at = index.checked_mul(self.kind.pointer_bytes())?;
        let bytes = self.body.get(start.checked_add(at)?..)?;
        if self.kind.is_long() {
            let (pointer, _) = Be64::ref_from_prefix(bytes).ok()?;
            Some(pointer.get())
        } else {
            let (pointer, _) = Be32::ref_from_prefix(bytes).ok()?;
            Some(pointer.get().into())
        }
    }

    /// The block that the pointer with this index is to.
    pub fn child(
        &self,
        index: usize,
        geometry: &Geometry,
        owner: u64,
    ) -> Result<FsBlock, BtreeRule> {
        let pointer = self.pointer(index).ok_or(BtreeRule::Pointer)?;
        if !self.exists(pointer, geometry, owner) {
            return Err(BtreeRule::Pointer);
        }
        if self.kind.is_long() {
            return Ok(FsBlock(pointer));
        }
        let ag = AgNr(u32::try_from(owner).unwrap_or(u32::MAX));
        let block = AgBlock(u32::try_from(pointer).unwrap_or(u32::MAX));
        Ok(geometry.fs_block(ag, block))
    }
}

/// What records of a leaf are ordered by.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RecordKey {
    /// Ascends from record to record.
    pub order: [u64; 3],
    /// What the next record begins at or after, where records cannot overlap.
    pub end: Option<u64>,
}

impl RecordKey {
    /// The key of a record of so many blocks or inodes, which no other record may have.
    fn of_run(start: u64, count: u64) -> Self {
        Self {
            order: [start, 0, 0],
            end: Some(start.saturating_add(count)),
        }
    }

    /// The key of a record that may overlap others.
    fn of_order(order: [u64; 3]) -> Self {
        Self { order, end: None }
    }

    /// Whether it is of nothing.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        let [start, ..] = self.order;
        self.end.is_some_and(|end| end <= start)
    }

    /// Whether a record may follow one with this key.
    #[must_use]
    pub fn precedes(&self, next: &Self) -> bool {
        let [start, ..] = next.order;
        self.order < next.order && self.end.is_none_or(|end| end <= start)
    }
}

impl BtreeBlock<'_> {
    /// What the record of a leaf with this index is ordered by; `None` beyond the last one.
    #[must_use]
    pub fn record_key(&self, index: usize) -> Option<RecordKey> {
        Some(match self.kind {
            BtreeKind::Bno | BtreeKind::Cnt => {
                let record = self.records::<DiskFreeExtent>().get(index)?;
                record.record_key(self.kind)
            }
            BtreeKind::Inobt | BtreeKind::Finobt => {
                self.records::<DiskInodeChunk>().get(index)?.record_key()
            }
            BtreeKind::Rmap | BtreeKind::RtRmap => {
                self.records::<DiskOwner>().get(index)?.record_key()
            }
            BtreeKind::Refcount | BtreeKind::RtRefcount => {
                self.records::<DiskRefcount>().get(index)?.record_key()
            }
            BtreeKind::Bmap => self.records::<DiskMapping>().get(index)?.record_key(),
        })
    }

    /// Checks that the records of a leaf ascend and do not overlap, and that none is empty.
    pub fn check_records(&self) -> Result<(), BtreeRule> {
        let mut previous: Option<RecordKey> = None;
        let count = if self.level == 0 { self.count } else { 0 };
        for index in 0..count {
            let key = self.record_key(index).ok_or(BtreeRule::Records)?;
            if key.is_empty() {
                return Err(BtreeRule::Record);
            }
            if previous.is_some_and(|previous| !previous.precedes(&key)) {
                return Err(BtreeRule::Order);
            }
            previous = Some(key);
        }
        Ok(())
    }
}

fn check_magic(found: Be32, kind: BtreeKind, is_v5: bool) -> Result<(), BtreeRule> {
    if Some(found.get()) == kind.magic(is_v5) {
        Ok(())
    } else {
        Err(BtreeRule::Magic)
    }
}

fn slice<T: FromBytes + KnownLayout + Immutable + Unaligned>(bytes: &[u8], count: usize) -> &[T] {
    <[T]>::ref_from_prefix_with_elems(bytes, count).map_or(&[], |(items, _)| items)
}

/// The records of a leaf of version 5 of an allocation group, which was verified, to be changed in place; `None` for
/// another block.
#[must_use]
pub fn leaf_records_mut<R>(bytes: &mut [u8], kind: BtreeKind) -> Option<&mut [R]>
where
    R: FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned,
{
    let (header, body) = DiskShortHeaderV5::mut_from_prefix(bytes).ok()?;
    let header = &header.common;
    let is_leaf = header.level.get() == 0 && Some(header.magic.get()) == kind.magic(true);
    if kind.is_long() || !is_leaf || size_of::<R>() != kind.format().record_bytes {
        return None;
    }
    let count = header.records.get().into();
    let records = <[R]>::mut_from_prefix_with_elems(body, count);
    records.ok().map(|(records, _)| records)
}

/// Where the checksum of a block of this B-tree lies.
#[must_use]
pub fn checksum_offset(kind: BtreeKind) -> usize {
    if kind.is_long() {
        offset_of!(DiskLongHeaderV5, checksum)
    } else {
        offset_of!(DiskShortHeaderV5, checksum)
    }
}
