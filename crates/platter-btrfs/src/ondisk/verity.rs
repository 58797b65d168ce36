//! fs-verity: the item that describes a file's descriptor. Spec: `btrfs/verity`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

/// The item at offset 0; the descriptor itself is in items from offset 1 on, the Merkle tree in items
/// of another type.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskVerityDescriptor {
    /// `size`.
    pub len_bytes: Le64,
    /// `reserved`.
    pub reserved: [Le64; 2],
    /// `encryption`.
    pub encryption: u8,
}

const _: () = assert!(size_of::<DiskVerityDescriptor>() == 25);

rules! {
    /// The rules of the item.
    pub enum VerityRule for "verity descriptor item" {
        /// It has the size of the structure.
        Size => "invalid item size",
        /// The Merkle tree is not encrypted.
        Encryption => "invalid encryption",
    }
}

/// The item at offset 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct VerityDescriptorItem {
    /// The length of the descriptor.
    pub len_bytes: u64,
}

impl VerityDescriptorItem {
    /// Decodes the item.
    pub fn decode(bytes: &[u8], locus: Locus) -> Result<Self, Corrupt<VerityRule>> {
        let disk = DiskVerityDescriptor::ref_from_bytes(bytes);
        let disk = disk.map_err(|_| Corrupt::new(locus, VerityRule::Size))?;
        if disk.encryption != 0 {
            return Err(Corrupt::new(locus, VerityRule::Encryption));
        }
        Ok(Self {
            len_bytes: disk.len_bytes.get(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn item_is_decoded() {
        let mut bytes = [0; 25];
        bytes[1] = 1;
        let decode = |bytes: &[u8]| VerityDescriptorItem::decode(bytes, Locus::UNKNOWN);
        assert_eq!(decode(&bytes).unwrap().len_bytes, 256);
        assert_eq!(decode(&bytes[1..]).unwrap_err().rule, VerityRule::Size);
        bytes[24] = 1;
        assert_eq!(decode(&bytes).unwrap_err().rule, VerityRule::Encryption);
    }
}
