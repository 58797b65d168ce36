//! A device extent: a range of a device that a chunk uses. Spec: `btrfs/dev_extent`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::key::Key;
use super::types::{DeviceAddr, DeviceId, LogicalAddr};

/// A device extent.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDevExtent {
    /// `chunk_tree`.
    pub chunk_tree: Le64,
    /// `chunk_objectid`.
    pub chunk_object: Le64,
    /// `chunk_offset`.
    pub chunk: Le64,
    /// `length`.
    pub len_bytes: Le64,
    /// `chunk_tree_uuid`.
    pub chunk_tree_uuid: [u8; 16],
}

const _: () = assert!(size_of::<DiskDevExtent>() == 48);

rules! {
    /// The rules of a device extent.
    pub enum DevExtentRule of "device extent" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// It begins and ends at sectors, and ends within the address space.
        Range => "invalid start or length",
    }
}

/// A validated device extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevExtent {
    /// The device.
    pub device: DeviceId,
    /// Where it begins.
    pub start: DeviceAddr,
    /// Its length.
    pub len_bytes: u64,
    /// The chunk that uses it.
    pub chunk: LogicalAddr,
    /// `chunk_tree`.
    pub chunk_tree: u64,
    /// `chunk_objectid`.
    pub chunk_object: u64,
    /// `chunk_tree_uuid`.
    pub chunk_tree_uuid: Uuid,
}

impl DevExtent {
    /// Decodes the item with this key.
    pub fn decode(
        key: Key,
        bytes: &[u8],
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<DevExtentRule>> {
        let broken = |rule| Corrupt::new(locus, rule);
        let disk = DiskDevExtent::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| broken(DevExtentRule::Size))?;
        let extent = Self {
            device: DeviceId(key.object),
            start: DeviceAddr(key.offset),
            len_bytes: disk.len_bytes.get(),
            chunk: LogicalAddr(disk.chunk.get()),
            chunk_tree: disk.chunk_tree.get(),
            chunk_object: disk.chunk_object.get(),
            chunk_tree_uuid: Uuid::from_bytes(disk.chunk_tree_uuid),
        };
        let is_aligned = |number: u64| number.is_multiple_of(u64::from(sector_bytes));
        let end = extent.start.0.checked_add(extent.len_bytes);
        let is_valid = is_aligned(extent.start.0) && is_aligned(extent.len_bytes);
        if !is_valid || extent.len_bytes == 0 || end.is_none() {
            return Err(broken(DevExtentRule::Range));
        }
        Ok(extent)
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskDevExtent {
        DiskDevExtent {
            chunk_tree: self.chunk_tree.into(),
            chunk_object: self.chunk_object.into(),
            chunk: self.chunk.0.into(),
            len_bytes: self.len_bytes.into(),
            chunk_tree_uuid: self.chunk_tree_uuid.into_bytes(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;

    #[test]
    fn item_survives_encoding_and_its_range_is_checked() {
        let extent = DevExtent {
            device: DeviceId(1),
            start: DeviceAddr(1 << 20),
            len_bytes: 1 << 23,
            chunk: LogicalAddr(5 << 20),
            chunk_tree: 3,
            chunk_object: 256,
            chunk_tree_uuid: Uuid::from_u128(5),
        };
        let key = |start| Key::new(1, ItemKind::DEV_EXTENT, start);
        let disk = extent.encode();
        let decode = |start, bytes: &[u8]| {
            let decoded = DevExtent::decode(key(start), bytes, 4096, Locus::UNKNOWN);
            decoded.map_err(|corrupt| corrupt.rule)
        };
        assert_eq!(decode(1 << 20, disk.as_bytes()), Ok(extent));
        assert_eq!(decode(1, disk.as_bytes()), Err(DevExtentRule::Range));
        assert_eq!(decode(0, &[0; 48]), Err(DevExtentRule::Range));
        assert_eq!(decode(0, &[0; 47]), Err(DevExtentRule::Size));
        let last = !4095;
        assert_eq!(decode(last, disk.as_bytes()), Err(DevExtentRule::Range));
    }
}
