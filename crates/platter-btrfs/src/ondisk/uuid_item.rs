//! An item of the UUID tree: the subvolumes with one UUID. Spec: `btrfs/uuid_item`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::FromBytes;

use super::key::{ItemKind, Key};
use super::types::TreeId;

rules! {
    /// The rules of an item of the UUID tree.
    pub enum UuidItemRule of "uuid item" {
        /// It has whole tree numbers, at least one.
        Size => "invalid item size",
    }
}

/// The subvolumes with one UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UuidItem {
    /// The UUID, from the key.
    pub uuid: Uuid,
    /// The subvolumes.
    pub trees: Vec<TreeId>,
}

impl UuidItem {
    /// Decodes the item with this key.
    pub fn decode(key: Key, bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<UuidItemRule>> {
        let numbers = <[Le64]>::ref_from_bytes(bytes).ok();
        let numbers = numbers.filter(|numbers| !numbers.is_empty());
        let numbers = numbers.ok_or(Corrupt::new(locus, UuidItemRule::Size))?;
        let halves = [key.object, key.offset].map(u64::to_le_bytes);
        let mut uuid = [0; 16];
        for (to, from) in uuid.iter_mut().zip(halves.as_flattened()) {
            *to = *from;
        }
        Ok(Self {
            uuid: Uuid::from_bytes(uuid),
            trees: numbers.iter().map(|number| TreeId(number.get())).collect(),
        })
    }

    /// Encodes the item.
    #[must_use]
    pub fn encode(&self) -> Vec<u8> {
        let numbers = self.trees.iter().map(|tree| tree.0.to_le_bytes());
        numbers.flatten().collect()
    }

    /// The key of a UUID's item, of type `UUID_SUBVOL` or `UUID_RECEIVED_SUBVOL`.
    #[must_use]
    pub fn key(uuid: Uuid, kind: ItemKind) -> Key {
        let (object, offset) = uuid.as_u64_pair();
        Key::new(object.swap_bytes(), kind, offset.swap_bytes())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_survives_encoding() {
        let item = UuidItem {
            uuid: Uuid::from_u128(0x0123_4567_89ab_cdef_0011_2233_4455_6677),
            trees: vec![TreeId(256), TreeId(300)],
        };
        let key = UuidItem::key(item.uuid, ItemKind::UUID_SUBVOL);
        assert_eq!(
            key.object,
            u64::from_le_bytes(*b"\x01\x23\x45\x67\x89\xab\xcd\xef")
        );
        let bytes = item.encode();
        let decoded = UuidItem::decode(key, &bytes, Locus::UNKNOWN);
        assert_eq!(decoded.unwrap(), item);
        for len in [0, 7, 15] {
            let decoded = UuidItem::decode(key, &bytes[..len], Locus::UNKNOWN);
            assert_eq!(decoded.unwrap_err().rule, UuidItemRule::Size);
        }
    }
}
