//! A node: keys and pointers to the blocks of the level below. Spec: `btrfs/node`.

use platter_ondisk::endian::Le64;
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::header::{DiskHeader, HEADER_BYTES, Header};
use super::key::{DiskKey, Key};
use super::types::{Generation, LogicalAddr};

/// A key and a pointer.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned,
)]
#[repr(C)]
pub struct DiskKeyPointer {
    /// `key`: the first of the block.
    pub key: DiskKey,
    /// `blockptr`.
    pub logical: Le64,
    /// `generation`.
    pub generation: Le64,
}

/// The size of a key and a pointer.
pub const KEY_POINTER_BYTES: usize = 33;

const _: () = assert!(size_of::<DiskKeyPointer>() == KEY_POINTER_BYTES);

rules! {
    /// The rules of a node.
    pub enum NodeRule of "node" {
        /// There is a pointer, and all are within the block.
        PointerCount => "invalid nritems",
        /// Keys ascend.
        KeyOrder => "bad key order",
        /// No pointer is zero.
        Null => "invalid NULL node pointer",
        /// Pointers are aligned to the sector size.
        Alignment => "unaligned node pointer",
    }
}

/// A key and a pointer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct KeyPointer {
    /// The first key of the block.
    pub key: Key,
    /// Where it lies.
    pub logical: LogicalAddr,
    /// Its generation.
    pub generation: Generation,
}

/// A view of the pointers of a node.
#[derive(Debug, Clone, Copy)]
pub struct Node<'a> {
    pointers: &'a [DiskKeyPointer],
}

impl<'a> Node<'a> {
    /// The node in `bytes`, a whole block. One whose pointers are not within the block has none:
    /// [`verify`](Self::verify) refuses it.
    #[must_use]
    pub fn new(bytes: &'a [u8]) -> Self {
        let Ok((header, area)) = DiskHeader::ref_from_prefix(bytes) else {
            return Self { pointers: &[] };
        };
        let count = usize::try_from(header.item_count.get()).unwrap_or(usize::MAX);
        let pointers = <[DiskKeyPointer]>::ref_from_prefix_with_elems(area, count);
        Self {
            pointers: pointers.map_or(&[], |(pointers, _)| pointers),
        }
    }

    /// Checks the rules of a node.
    pub fn verify(
        bytes: &'a [u8],
        sector_bytes: u32,
        locus: Locus,
    ) -> Result<Self, Corrupt<NodeRule>> {
        let node = Self::new(bytes);
        if node.pointers.is_empty() {
            return Err(Corrupt::new(locus, NodeRule::PointerCount));
        }
        let mut last: Option<Key> = None;
        for pointer in node.iter() {
            let broken = |rule| Err(Corrupt::new(locus.at_key(pointer.key.into()), rule));
            if last.is_some_and(|last| last >= pointer.key) {
                return broken(NodeRule::KeyOrder);
            }
            if pointer.logical.0 == 0 {
                return broken(NodeRule::Null);
            }
            if !pointer.logical.0.is_multiple_of(u64::from(sector_bytes)) {
                return broken(NodeRule::Alignment);
            }
            last = Some(pointer.key);
        }
        Ok(node)
    }

    /// How many pointers it has.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pointers.len()
    }

    /// Whether it has no pointers.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pointers.is_empty()
    }

    /// A pointer.
    #[must_use]
    pub fn pointer(&self, index: usize) -> Option<KeyPointer> {
        self.pointers.get(index).map(KeyPointer::decode)
    }

    /// The index of the last pointer whose key is at or before `key`; the first if there is none.
    #[must_use]
    pub fn index_for(&self, key: Key) -> usize {
        let after = self
            .pointers
            .partition_point(|pointer| Key::decode(&pointer.key) <= key);
        after.saturating_sub(1)
    }

    /// All pointers.
    pub fn iter(&self) -> impl Iterator<Item = KeyPointer> + use<'a> {
        self.pointers.iter().map(KeyPointer::decode)
    }
}

impl KeyPointer {
    fn decode(disk: &DiskKeyPointer) -> Self {
        Self {
            key: Key::decode(&disk.key),
            logical: LogicalAddr(disk.logical.get()),
            generation: Generation(disk.generation.get()),
        }
    }

    pub(super) fn encode(&self) -> DiskKeyPointer {
        DiskKeyPointer {
            key: self.key.encode(),
            logical: self.logical.0.into(),
            generation: self.generation.0.into(),
        }
    }
}

/// Encodes a node with `pointers` into `block`, without a checksum. Returns `false`, and leaves
/// `block` undefined, if they do not fit.
pub fn encode(block: &mut [u8], header: &Header, pointers: &[KeyPointer]) -> bool {
    block.fill(0);
    let Ok(count) = u32::try_from(pointers.len()) else {
        return false;
    };
    let header = Header {
        item_count: count,
        ..*header
    };
    let Some((front, area)) = block.split_at_mut_checked(HEADER_BYTES) else {
        return false;
    };
    front.copy_from_slice(header.encode().as_bytes());
    let slots = <[DiskKeyPointer]>::mut_from_prefix_with_elems(area, pointers.len());
    let Ok((slots, _)) = slots else {
        return false;
    };
    for (slot, pointer) in slots.iter_mut().zip(pointers) {
        *slot = pointer.encode();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::header::tests::sample;
    use crate::ondisk::key::ItemKind;

    fn pointer(object: u64, logical: u64) -> KeyPointer {
        KeyPointer {
            key: Key::new(object, ItemKind::INODE_ITEM, 0),
            logical: LogicalAddr(logical),
            generation: Generation(3),
        }
    }

    fn verify(pointers: &[KeyPointer]) -> Result<Vec<KeyPointer>, NodeRule> {
        let mut block = vec![0; 4096];
        assert!(encode(&mut block, &sample(0, 1), pointers));
        let node = Node::verify(&block, 4096, Locus::UNKNOWN);
        let node = node.map_err(|corrupt| corrupt.rule)?;
        Ok(node.iter().collect())
    }

    #[test]
    fn node_survives_encoding() {
        let pointers = [pointer(1, 4096), pointer(7, 8192)];
        assert_eq!(verify(&pointers), Ok(pointers.to_vec()));
    }

    #[test]
    fn keys_lead_to_the_block_that_may_hold_them() {
        let mut block = vec![0; 4096];
        let pointers = [pointer(2, 4096), pointer(7, 8192)];
        assert!(encode(&mut block, &sample(0, 1), &pointers));
        let node = Node::new(&block);
        let index = |object| node.index_for(Key::new(object, ItemKind::INODE_ITEM, 0));
        assert_eq!([1, 2, 6, 7, 8].map(index), [0, 0, 0, 1, 1]);
    }

    #[test]
    fn broken_nodes_are_refused() {
        assert_eq!(verify(&[]), Err(NodeRule::PointerCount));
        let twice = [pointer(1, 4096), pointer(1, 8192)];
        assert_eq!(verify(&twice), Err(NodeRule::KeyOrder));
        assert_eq!(verify(&[pointer(1, 0)]), Err(NodeRule::Null));
        assert_eq!(verify(&[pointer(1, 4097)]), Err(NodeRule::Alignment));
        let pointers = vec![pointer(1, 4096); 200];
        assert!(!encode(&mut vec![0; 4096], &sample(0, 1), &pointers));
    }
}
