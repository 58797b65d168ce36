//! Records and keys of B-trees, and their order.

use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::btree::{
    BtreeKind, DiskFreeExtent, DiskInodeChunk, DiskMapping, DiskOwner, DiskOwnerKey, DiskRefcount,
    RecordKey,
};
use crate::ondisk::extent::Mapping;

/// What records and keys are compared by.
pub type Order = (u64, u64, u64);

/// A record of a B-tree.
pub trait TreeRecord:
    Copy + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + 'static
{
    /// The keys of one pointer.
    type Key: Copy + FromBytes + IntoBytes + KnownLayout + Immutable + Unaligned + 'static;

    /// The place of a record in the tree.
    fn order(&self, kind: BtreeKind) -> Order;

    /// The same, and where the next record may begin.
    fn record_key(&self, kind: BtreeKind) -> RecordKey;

    /// The key of a block with this record alone.
    fn key(&self) -> Self::Key;

    /// The place of a key in the tree.
    fn key_order(key: &Self::Key, kind: BtreeKind) -> Order;

    /// The key of a block, from those of its entries.
    fn joined(keys: &[Self::Key]) -> Option<Self::Key> {
        keys.first().copied()
    }

    /// Whether the record may follow one of a leaf, if there is one before it.
    fn follows(&self, before: Option<&Self>, kind: BtreeKind) -> bool {
        let key = self.record_key(kind);
        before.is_none_or(|before| before.record_key(kind).precedes(&key))
    }

    /// Whether the record is of something, and may lie between two of a leaf, as far as there are such.
    fn fits(&self, before: Option<&Self>, after: Option<&Self>, kind: BtreeKind) -> bool {
        let is_before = after.is_none_or(|after| after.follows(Some(self), kind));
        !self.record_key(kind).is_empty() && self.follows(before, kind) && is_before
    }
}

impl TreeRecord for DiskFreeExtent {
    type Key = Self;

    fn order(&self, kind: BtreeKind) -> Order {
        let (start, count) = (self.start.get().into(), self.count.get().into());
        if kind == BtreeKind::Cnt {
            (count, start, 0)
        } else {
            (start, 0, 0)
        }
    }

    fn record_key(&self, kind: BtreeKind) -> RecordKey {
        DiskFreeExtent::record_key(self, kind)
    }

    fn key(&self) -> Self {
        *self
    }

    fn key_order(key: &Self, kind: BtreeKind) -> Order {
        key.order(kind)
    }
}

/// The first block or inode of a record.
type StartKey = platter_ondisk::endian::Be32;

impl TreeRecord for DiskInodeChunk {
    type Key = StartKey;

    fn order(&self, _kind: BtreeKind) -> Order {
        (self.start.get().into(), 0, 0)
    }

    fn record_key(&self, _kind: BtreeKind) -> RecordKey {
        DiskInodeChunk::record_key(self)
    }

    fn key(&self) -> StartKey {
        self.start
    }

    fn key_order(key: &StartKey, _kind: BtreeKind) -> Order {
        (key.get().into(), 0, 0)
    }
}

impl TreeRecord for DiskRefcount {
    type Key = StartKey;

    fn order(&self, _kind: BtreeKind) -> Order {
        (self.start.get().into(), 0, 0)
    }

    fn record_key(&self, _kind: BtreeKind) -> RecordKey {
        DiskRefcount::record_key(self)
    }

    fn key(&self) -> StartKey {
        self.start
    }

    fn key_order(key: &StartKey, _kind: BtreeKind) -> Order {
        (key.get().into(), 0, 0)
    }
}

impl TreeRecord for DiskOwner {
    type Key = [DiskOwnerKey; 2];

    fn order(&self, _kind: BtreeKind) -> Order {
        let (start, owner, offset) = DiskOwner::order(self);
        (start.into(), owner, offset)
    }

    fn record_key(&self, _kind: BtreeKind) -> RecordKey {
        DiskOwner::record_key(self)
    }

    fn key(&self) -> Self::Key {
        self.keys()
    }

    fn key_order(key: &Self::Key, _kind: BtreeKind) -> Order {
        let [low, _] = key;
        let (start, owner, offset) = low.order();
        (start.into(), owner, offset)
    }

    fn joined(keys: &[Self::Key]) -> Option<Self::Key> {
        let [low, _] = *keys.first()?;
        let high = keys.iter().map(|[_, high]| *high);
        Some([low, high.max_by_key(DiskOwnerKey::order)?])
    }
}

/// The first file block of a mapping.
type OffsetKey = platter_ondisk::endian::Be64;

impl TreeRecord for DiskMapping {
    type Key = OffsetKey;

    fn order(&self, _kind: BtreeKind) -> Order {
        (Mapping::unpack(self).offset.0, 0, 0)
    }

    fn record_key(&self, _kind: BtreeKind) -> RecordKey {
        DiskMapping::record_key(self)
    }

    fn key(&self) -> OffsetKey {
        Mapping::unpack(self).offset.0.into()
    }

    fn key_order(key: &OffsetKey, _kind: BtreeKind) -> Order {
        (key.get(), 0, 0)
    }
}
