//! Changes of the pointers of a node in place. Spec: `btrfs/node`.

use std::ops::Range;

use zerocopy::FromBytes;

use super::header::{DiskHeader, HEADER_BYTES};
use super::key::Key;
use super::node::{DiskKeyPointer, KEY_POINTER_BYTES, KeyPointer, Node};

/// A verified node that is being changed. Its checksum is not kept.
#[derive(Debug)]
pub struct NodeMut<'a> {
    block: &'a mut [u8],
}

/// How many pointers a node holds.
#[must_use]
pub fn capacity(node_bytes: u32) -> usize {
    let area = usize::try_from(node_bytes)
        .unwrap_or(usize::MAX)
        .saturating_sub(HEADER_BYTES);
    area.checked_div(KEY_POINTER_BYTES).unwrap_or_default()
}

impl<'a> NodeMut<'a> {
    /// The node in `block`, a whole block.
    pub fn new(block: &'a mut [u8]) -> Self {
        Self { block }
    }

    /// The node as it is.
    #[must_use]
    pub fn node(&self) -> Node<'_> {
        Node::new(self.block)
    }

    /// Inserts pointers at `index`. Returns `false`, without a change, if they do not fit.
    pub fn insert(&mut self, index: usize, pointers: &[KeyPointer]) -> bool {
        self.try_insert(index, pointers).is_some()
    }

    fn try_insert(&mut self, index: usize, pointers: &[KeyPointer]) -> Option<()> {
        let count = self.node().len();
        let new_count = count.checked_add(pointers.len())?;
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let bytes = |index: usize| index.checked_mul(KEY_POINTER_BYTES);
        if index > count || bytes(new_count)? > area.len() {
            return None;
        }
        let after = index.checked_add(pointers.len())?;
        area.copy_within(bytes(index)?..bytes(count)?, bytes(after)?);
        self.set_count(new_count)?;
        for (at, pointer) in (index..).zip(pointers) {
            *self.slot(at)? = pointer.encode();
        }
        Some(())
    }

    /// Removes pointers. Returns `false`, without a change, if there are none such.
    pub fn remove(&mut self, range: Range<usize>) -> bool {
        self.try_remove(range).is_some()
    }

    fn try_remove(&mut self, range: Range<usize>) -> Option<()> {
        let count = self.node().len();
        if range.end > count || range.is_empty() {
            return None;
        }
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let bytes = |index: usize| index.checked_mul(KEY_POINTER_BYTES);
        area.copy_within(bytes(range.end)?..bytes(count)?, bytes(range.start)?);
        self.set_count(count.checked_sub(range.len())?)
    }

    /// Replaces a pointer.
    pub fn set(&mut self, index: usize, pointer: KeyPointer) {
        if let Some(slot) = self.slot(index) {
            *slot = pointer.encode();
        }
    }

    /// Changes the key of a pointer. Returns what it was; `None` if there is no such pointer.
    pub fn set_key(&mut self, index: usize, key: Key) -> Option<Key> {
        let slot = self.slot(index)?;
        let old = Key::decode(&slot.key);
        slot.key = key.encode();
        Some(old)
    }

    fn slot(&mut self, index: usize) -> Option<&mut DiskKeyPointer> {
        let count = self.node().len();
        let area = self.block.get_mut(HEADER_BYTES..)?;
        let slots = <[DiskKeyPointer]>::mut_from_prefix_with_elems(area, count);
        slots.ok()?.0.get_mut(index)
    }

    fn set_count(&mut self, count: usize) -> Option<()> {
        let (header, _) = DiskHeader::mut_from_prefix(self.block).ok()?;
        header.item_count.set(u32::try_from(count).ok()?);
        Some(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::header::tests::sample;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::node;
    use crate::ondisk::{Generation, LogicalAddr};

    fn pointer(object: u64) -> KeyPointer {
        KeyPointer {
            key: Key::new(object, ItemKind::INODE_ITEM, 0),
            logical: LogicalAddr(object * 4096),
            generation: Generation(object),
        }
    }

    #[test]
    fn pointers_are_inserted_and_removed_in_place() {
        let mut block = vec![0; 4096];
        assert!(node::encode(&mut block, &sample(0, 1), &[pointer(1)]));
        let mut node = NodeMut::new(&mut block);
        assert!(node.insert(1, &[pointer(4), pointer(5)]));
        assert!(node.insert(1, &[pointer(2), pointer(3)]));
        assert!(node.remove(2..4));
        assert!(!node.remove(2..4) && !node.insert(4, &[pointer(9)]));
        node.set(2, pointer(7));
        node.set_key(1, pointer(3).key);
        let found: Vec<_> = node.node().iter().collect();
        let second = KeyPointer {
            key: pointer(3).key,
            ..pointer(2)
        };
        assert_eq!(found, [pointer(1), second, pointer(7)]);
        let most = capacity(4096);
        let more: Vec<_> = (10..).take(most - 3).map(pointer).collect();
        assert!(node.insert(3, &more));
        assert!(!node.insert(0, &[pointer(0)]));
        assert_eq!(node.node().len(), most);
    }
}
