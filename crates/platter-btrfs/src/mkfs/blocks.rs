//! Trees that are written as a whole: items in their order, in blocks that are full.

use std::collections::BTreeMap;
use std::ops::Range;

use crate::ondisk::header::{HEADER_BYTES, Header};
use crate::ondisk::leaf::{self, ITEM_BYTES};
use crate::ondisk::node::{self, KEY_POINTER_BYTES, KeyPointer};
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// A tree with all its items.
#[derive(Debug, Clone)]
pub(super) struct NewTree {
    pub(super) id: TreeId,
    items: Vec<(Key, Vec<u8>)>,
    /// The blocks: leaves first, the root last.
    blocks: Vec<NewBlock>,
}

/// A block of a new tree.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NewBlock {
    pub(super) level: u8,
    pub(super) first_key: Key,
    /// The items of a leaf, or the blocks below a node.
    content: Range<usize>,
}

impl NewTree {
    /// Distributes items over blocks.
    pub(super) fn new(id: TreeId, items: BTreeMap<Key, Vec<u8>>, node_bytes: u32) -> Self {
        let items: Vec<_> = items.into_iter().collect();
        let space = (node_bytes as usize).saturating_sub(HEADER_BYTES);
        let first_key = |at: usize| items.get(at).map_or(Key::MIN, |(key, _)| *key);
        let mut blocks = Vec::new();
        let (mut begin, mut used) = (0, 0);
        for (index, (_, data)) in items.iter().enumerate() {
            let len = ITEM_BYTES + data.len();
            if used + len > space {
                blocks.push(NewBlock {
                    level: 0,
                    first_key: first_key(begin),
                    content: begin..index,
                });
                (begin, used) = (index, 0);
            }
            used += len;
        }
        blocks.push(NewBlock {
            level: 0,
            first_key: first_key(begin),
            content: begin..items.len(),
        });
        let mut below = 0..blocks.len();
        let mut level = 0;
        while below.len() > 1 {
            level += 1;
            let first = blocks.len();
            let mut at = below.start;
            while at < below.end {
                let end = (at + space / KEY_POINTER_BYTES).min(below.end);
                blocks.push(NewBlock {
                    level,
                    first_key: blocks.get(at).map_or(Key::MIN, |block| block.first_key),
                    content: at..end,
                });
                at = end;
            }
            below = first..blocks.len();
        }
        Self { id, items, blocks }
    }

    pub(super) fn blocks(&self) -> &[NewBlock] {
        &self.blocks
    }

    /// Whether another tree has the same blocks, as far as their levels and first keys go.
    pub(super) fn has_blocks_of(&self, other: &Self) -> bool {
        self.blocks == other.blocks
    }

    /// Where its root lies, if its blocks lie at these addresses.
    pub(super) fn root(&self, addresses: &[LogicalAddr], header: &Header) -> RootPointer {
        RootPointer {
            logical: addresses.last().copied().unwrap_or_default(),
            generation: header.generation,
            level: self.blocks.last().map_or(0, |block| block.level),
        }
    }

    /// Encodes a block, without a checksum. Returns `false` if it does not fit.
    pub(super) fn encode(
        &self,
        index: usize,
        addresses: &[LogicalAddr],
        header: &Header,
        bytes: &mut [u8],
    ) -> bool {
        let (Some(block), Some(&logical)) = (self.blocks.get(index), addresses.get(index)) else {
            return false;
        };
        let header = Header {
            logical,
            owner: self.id,
            level: block.level,
            ..*header
        };
        if block.level == 0 {
            let items = self.items.get(block.content.clone()).unwrap_or_default();
            let items = items.iter().map(|(key, data)| (*key, data.as_slice()));
            return leaf::encode(bytes, &header, items);
        }
        let below = self.blocks.get(block.content.clone()).unwrap_or_default();
        let at = addresses.get(block.content.clone()).unwrap_or_default();
        let pointers = below.iter().zip(at).map(|(block, &logical)| KeyPointer {
            key: block.first_key,
            logical,
            generation: header.generation,
        });
        node::encode(bytes, &header, &pointers.collect::<Vec<_>>())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;
    use crate::ondisk::leaf::Leaf;
    use crate::ondisk::node::Node;
    use platter_ondisk::Locus;

    #[test]
    fn items_that_do_not_fit_in_a_leaf_get_several_and_a_node() {
        let key = |number| Key::new(number, ItemKind::INODE_ITEM, 0);
        let items = (0..40).map(|number| (key(number), vec![7; 439]));
        let tree = NewTree::new(TreeId::ROOT, items.collect(), 4096);
        assert_eq!(tree.blocks().len(), 6);
        let header = crate::ondisk::header::tests::sample(0, 0);
        let addresses: Vec<_> = (1..=6).map(|at| LogicalAddr(at * 4096)).collect();
        let mut bytes = vec![0; 4096];
        let mut seen = 0;
        for index in 0..5 {
            assert!(tree.encode(index, &addresses, &header, &mut bytes));
            let leaf = Leaf::verify(&bytes, Locus::UNKNOWN).unwrap();
            assert_eq!(leaf.key(0), Some(key(seen)));
            seen += leaf.len() as u64;
        }
        assert_eq!(seen, 40);
        assert!(tree.encode(5, &addresses, &header, &mut bytes));
        let node = Node::verify(&bytes, 4096, Locus::UNKNOWN).unwrap();
        assert_eq!(node.len(), 5);
        assert_eq!(tree.root(&addresses, &header).level, 1);
        assert!(!tree.encode(6, &addresses, &header, &mut bytes));
    }
}
