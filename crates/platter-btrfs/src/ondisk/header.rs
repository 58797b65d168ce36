//! The header of a tree block. Spec: `btrfs/header`.

use std::mem::offset_of;

use bitflags::bitflags;
use platter_ondisk::Uuid;
use platter_ondisk::endian::{Le32, Le64};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::types::{Generation, LogicalAddr, TreeId};

/// The header.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskHeader {
    /// `csum`, of all that follows in the block.
    pub checksum: [u8; 32],
    /// `fsid`: the filesystem's metadata UUID.
    pub fsid: [u8; 16],
    /// `bytenr`: the block's logical address.
    pub logical: Le64,
    /// `flags`, with the revision of references in the highest byte.
    pub flags: Le64,
    /// `chunk_tree_uuid`.
    pub chunk_tree_uuid: [u8; 16],
    /// `generation`.
    pub generation: Le64,
    /// `owner`.
    pub owner: Le64,
    /// `nritems`.
    pub item_count: Le32,
    /// `level`.
    pub level: u8,
}

/// The size of the header.
pub const HEADER_BYTES: usize = 101;
/// The number of levels that a tree may have.
pub const LEVEL_MAX: u8 = 8;

const _: () = assert!(size_of::<DiskHeader>() == HEADER_BYTES);
const _: () = assert!(offset_of!(DiskHeader, level) == 0x64);

bitflags! {
    /// `flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct HeaderFlags: u64 {
        /// The block was written.
        const WRITTEN = 1 << 0;
        /// The block belongs to a tree under relocation.
        const RELOC = 1 << 1;
        /// References have the current form: revision 1.
        const MIXED_BACKREF = 1 << 56;
    }
}

/// A header.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Header {
    /// The filesystem's metadata UUID.
    pub fsid: Uuid,
    /// The block's logical address.
    pub logical: LogicalAddr,
    /// Flags.
    pub flags: HeaderFlags,
    /// The UUID of the chunk tree.
    pub chunk_tree_uuid: Uuid,
    /// The transaction that wrote the block.
    pub generation: Generation,
    /// The tree that wrote it first.
    pub owner: TreeId,
    /// How many items or pointers follow.
    pub item_count: u32,
    /// 0 for a leaf.
    pub level: u8,
}

impl Header {
    /// Decodes a header; whether it fits its block is checked with the block.
    #[must_use]
    pub fn decode(disk: &DiskHeader) -> Self {
        Self {
            fsid: Uuid::from_bytes(disk.fsid),
            logical: LogicalAddr(disk.logical.get()),
            flags: HeaderFlags::from_bits_retain(disk.flags.get()),
            chunk_tree_uuid: Uuid::from_bytes(disk.chunk_tree_uuid),
            generation: Generation(disk.generation.get()),
            owner: TreeId(disk.owner.get()),
            item_count: disk.item_count.get(),
            level: disk.level,
        }
    }

    /// Encodes the header, without a checksum.
    #[must_use]
    pub fn encode(&self) -> DiskHeader {
        DiskHeader {
            checksum: [0; 32],
            fsid: self.fsid.into_bytes(),
            logical: self.logical.0.into(),
            flags: self.flags.bits().into(),
            chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
            generation: self.generation.0.into(),
            owner: self.owner.0.into(),
            item_count: self.item_count.into(),
            level: self.level,
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A header of a block at `logical`.
    pub(crate) fn sample(logical: u64, level: u8) -> Header {
        Header {
            fsid: Uuid::from_u128(77),
            logical: LogicalAddr(logical),
            flags: HeaderFlags::WRITTEN | HeaderFlags::MIXED_BACKREF,
            chunk_tree_uuid: Uuid::from_u128(78),
            generation: Generation(9),
            owner: TreeId::FS,
            item_count: 0,
            level,
        }
    }

    #[test]
    fn header_survives_encoding() {
        let header = sample(1 << 20, 3);
        assert_eq!(Header::decode(&header.encode()), header);
    }
}
