//! A block group item, in the extent tree or the block group tree. Spec: `btrfs/block_group`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::chunk_item::{BlockGroupFlags, Profile};
use super::key::Key;
use super::types::LogicalAddr;

/// A block group item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskBlockGroup {
    /// `used`.
    pub used_bytes: Le64,
    /// `chunk_objectid`.
    pub chunk_object: Le64,
    /// `flags`.
    pub flags: Le64,
}

const _: () = assert!(size_of::<DiskBlockGroup>() == 24);

rules! {
    /// The rules of a block group item.
    pub enum BlockGroupRule of "block group item" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// It is not empty, and ends within the address space.
        Length => "invalid block group size",
        /// `used` is at most the length.
        Used => "used exceeds the block group",
        /// There is one profile.
        Profile => "invalid profile",
        /// It holds data, metadata or the chunk tree; data and the chunk tree never together.
        Kind => "invalid block group type",
    }
}

/// A validated block group item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockGroupItem {
    /// The first logical address.
    pub start: LogicalAddr,
    /// The length.
    pub len_bytes: u64,
    /// Bytes of allocated extents.
    pub used_bytes: u64,
    /// `chunk_objectid`.
    pub chunk_object: u64,
    /// What it holds, and how.
    pub flags: BlockGroupFlags,
}

impl BlockGroupItem {
    /// Decodes the item with this key.
    pub fn decode(key: Key, bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<BlockGroupRule>> {
        let broken = |rule| Err(Corrupt::new(locus, rule));
        let Ok(disk) = DiskBlockGroup::ref_from_bytes(bytes) else {
            return broken(BlockGroupRule::Size);
        };
        let group = Self {
            start: LogicalAddr(key.object),
            len_bytes: key.offset,
            used_bytes: disk.used_bytes.get(),
            chunk_object: disk.chunk_object.get(),
            flags: BlockGroupFlags::from_bits_retain(disk.flags.get()),
        };
        if group.len_bytes == 0 || group.start.checked_add(group.len_bytes).is_none() {
            return broken(BlockGroupRule::Length);
        }
        if group.used_bytes > group.len_bytes {
            return broken(BlockGroupRule::Used);
        }
        if Profile::of(group.flags).is_none() {
            return broken(BlockGroupRule::Profile);
        }
        let kinds = group.flags.intersection(BlockGroupFlags::TYPES);
        let is_system = kinds.contains(BlockGroupFlags::SYSTEM);
        if kinds.is_empty() || (is_system && kinds != BlockGroupFlags::SYSTEM) {
            return broken(BlockGroupRule::Kind);
        }
        Ok(group)
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskBlockGroup {
        DiskBlockGroup {
            used_bytes: self.used_bytes.into(),
            chunk_object: self.chunk_object.into(),
            flags: self.flags.bits().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;

    const GROUP: BlockGroupItem = BlockGroupItem {
        start: LogicalAddr(1 << 20),
        len_bytes: 1 << 23,
        used_bytes: 4096,
        chunk_object: 256,
        flags: BlockGroupFlags::METADATA.union(BlockGroupFlags::DUP),
    };

    fn decode(group: &BlockGroupItem) -> Result<BlockGroupItem, BlockGroupRule> {
        let key = Key::new(group.start.0, ItemKind::BLOCK_GROUP_ITEM, group.len_bytes);
        let decoded = BlockGroupItem::decode(key, group.encode().as_bytes(), Locus::UNKNOWN);
        decoded.map_err(|corrupt| corrupt.rule)
    }

    #[test]
    fn item_survives_encoding() {
        assert_eq!(decode(&GROUP), Ok(GROUP));
    }

    #[test]
    fn broken_items_are_refused() {
        let rule = |change: &dyn Fn(&mut BlockGroupItem)| {
            let mut group = GROUP;
            change(&mut group);
            decode(&group).unwrap_err()
        };
        assert_eq!(rule(&|it| it.len_bytes = 0), BlockGroupRule::Length);
        assert_eq!(rule(&|it| it.len_bytes = u64::MAX), BlockGroupRule::Length);
        assert_eq!(rule(&|it| it.used_bytes = 1 << 30), BlockGroupRule::Used);
        let two = rule(&|it| it.flags |= BlockGroupFlags::RAID1);
        assert_eq!(two, BlockGroupRule::Profile);
        let none = rule(&|it| it.flags = BlockGroupFlags::DUP);
        assert_eq!(none, BlockGroupRule::Kind);
        let corrupt = BlockGroupItem::decode(Key::MIN, &[0; 23], Locus::UNKNOWN);
        assert_eq!(corrupt.unwrap_err().rule, BlockGroupRule::Size);
    }
}
