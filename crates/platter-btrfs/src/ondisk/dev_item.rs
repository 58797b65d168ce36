//! A device item: one member of the filesystem. Spec: `btrfs/dev_item`.

use platter_ondisk::endian::{Le32, Le64};
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::Key;
use super::types::{DEV_ITEMS_OBJECT, DeviceId, Generation};

/// A device item.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskDevItem {
    /// `devid`.
    pub id: Le64,
    /// `total_bytes`.
    pub total_bytes: Le64,
    /// `bytes_used`.
    pub bytes_used: Le64,
    /// `io_align`.
    pub io_align: Le32,
    /// `io_width`.
    pub io_width: Le32,
    /// `sector_size`.
    pub sector_bytes: Le32,
    /// `type`.
    pub kind: Le64,
    /// `generation`.
    pub generation: Le64,
    /// `start_offset`.
    pub start_offset: Le64,
    /// `dev_group`.
    pub group: Le32,
    /// `seek_speed`.
    pub seek_speed: u8,
    /// `bandwidth`.
    pub bandwidth: u8,
    /// `uuid`.
    pub uuid: [u8; 16],
    /// `fsid`.
    pub fsid: [u8; 16],
}

const _: () = assert!(size_of::<DiskDevItem>() == 98);

rules! {
    /// The rules of a device item.
    pub enum DevItemRule of "device item" {
        /// Its key has the object of device items.
        Object => "invalid objectid",
        /// It has the size of the structure.
        Size => "invalid item size",
        /// The number of the device is that of the key.
        Id => "devid mismatch with key",
        /// `bytes_used` is at most `total_bytes`.
        BytesUsed => "bytes used exceed total bytes",
    }
}

/// A validated device item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DevItem {
    /// The device's number.
    pub id: DeviceId,
    /// Its size in bytes.
    pub total_bytes: u64,
    /// Bytes of it that chunks use.
    pub bytes_used: u64,
    /// The transaction that last changed the device.
    pub generation: Generation,
    /// `sector_size`.
    pub sector_bytes: u32,
    /// `io_align` and `io_width`.
    pub io: (u32, u32),
    /// `type`; no value is defined.
    pub kind: u64,
    /// `start_offset`.
    pub start_offset: u64,
    /// `dev_group`, `seek_speed` and `bandwidth`, which nothing uses.
    pub hints: (u32, u8, u8),
    /// Its UUID.
    pub uuid: Uuid,
    /// The UUID of the filesystem it was made for: another one than that of a sprout for its seed.
    pub fsid: Uuid,
}

impl DevItem {
    /// Decodes an item.
    pub fn decode(key: Key, bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<DevItemRule>> {
        if key.object != DEV_ITEMS_OBJECT {
            return Err(Corrupt::new(locus, DevItemRule::Object));
        }
        let disk = DiskDevItem::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, DevItemRule::Size))?;
        let item = Self::decode_disk(disk);
        if item.id.0 != key.offset {
            return Err(Corrupt::new(locus, DevItemRule::Id));
        }
        if item.bytes_used > item.total_bytes {
            return Err(Corrupt::new(locus, DevItemRule::BytesUsed));
        }
        Ok(item)
    }

    /// Decodes the item in the superblock, of which the kernel reads the number and UUIDs alone.
    #[must_use]
    pub fn decode_disk(disk: &DiskDevItem) -> Self {
        Self {
            id: DeviceId(disk.id.get()),
            total_bytes: disk.total_bytes.get(),
            bytes_used: disk.bytes_used.get(),
            generation: Generation(disk.generation.get()),
            sector_bytes: disk.sector_bytes.get(),
            io: (disk.io_align.get(), disk.io_width.get()),
            kind: disk.kind.get(),
            start_offset: disk.start_offset.get(),
            hints: (disk.group.get(), disk.seek_speed, disk.bandwidth),
            uuid: Uuid::from_bytes(disk.uuid),
            fsid: Uuid::from_bytes(disk.fsid),
        }
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> DiskDevItem {
        let (io_align, io_width) = self.io;
        let (group, seek_speed, bandwidth) = self.hints;
        DiskDevItem {
            id: self.id.0.into(),
            total_bytes: self.total_bytes.into(),
            bytes_used: self.bytes_used.into(),
            io_align: io_align.into(),
            io_width: io_width.into(),
            sector_bytes: self.sector_bytes.into(),
            kind: self.kind.into(),
            generation: self.generation.0.into(),
            start_offset: self.start_offset.into(),
            group: group.into(),
            seek_speed,
            bandwidth,
            uuid: self.uuid.into_bytes(),
            fsid: self.fsid.into_bytes(),
        }
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::key::ItemKind;
    use super::*;

    fn key(device: u64) -> Key {
        Key::new(DEV_ITEMS_OBJECT, ItemKind::DEV_ITEM, device)
    }

    /// A device of 1 GiB.
    pub(crate) fn sample(id: u64) -> DevItem {
        DevItem {
            id: DeviceId(id),
            total_bytes: 1 << 30,
            bytes_used: 1 << 20,
            generation: Generation(0),
            sector_bytes: 4096,
            io: (4096, 4096),
            kind: 0,
            start_offset: 0,
            hints: (0, 0, 0),
            uuid: Uuid::from_u128(u128::from(id)),
            fsid: Uuid::from_u128(77),
        }
    }

    #[test]
    fn item_survives_encoding() {
        let item = sample(3);
        let disk = item.encode();
        let decoded = DevItem::decode(key(3), disk.as_bytes(), Locus::UNKNOWN);
        assert_eq!(decoded, Ok(item));
    }

    #[test]
    fn broken_items_are_refused() {
        let disk = sample(1).encode();
        let of_key = |key, bytes: &[u8]| {
            let decoded = DevItem::decode(key, bytes, Locus::UNKNOWN);
            decoded.unwrap_err().rule
        };
        let rule = |bytes: &[u8]| of_key(key(1), bytes);
        assert_eq!(rule(&disk.as_bytes()[1..]), DevItemRule::Size);
        assert_eq!(of_key(key(2), disk.as_bytes()), DevItemRule::Id);
        let elsewhere = Key::new(2, ItemKind::DEV_ITEM, 1);
        assert_eq!(of_key(elsewhere, disk.as_bytes()), DevItemRule::Object);
        let full = DiskDevItem {
            bytes_used: ((1 << 30) + 1).into(),
            ..disk
        };
        assert_eq!(rule(full.as_bytes()), DevItemRule::BytesUsed);
    }
}
