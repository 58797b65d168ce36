//! Searches of blocks as they are stored: their entries are not brought to memory.

use super::node::Node;
use super::record::{Order, TreeRecord};
use crate::ondisk::btree::{BtreeBlock, BtreeKind};

/// What a search finds in a block.
#[derive(Debug, Clone, Copy)]
pub enum Found<R> {
    /// It goes on in this block, on the next level.
    Below(u64),
    /// It ends in a leaf.
    Leaf(Around<R>),
}

/// The records of a leaf next to a place.
#[derive(Debug, Clone, Copy)]
pub struct Around<R> {
    /// The leaf.
    pub at: u64,
    /// The last record before the place.
    pub before: Option<R>,
    /// The first record at or after the place.
    pub after: Option<R>,
    /// The leaf to the left.
    pub left: Option<u64>,
    /// The leaf to the right.
    pub right: Option<u64>,
}

impl<R: TreeRecord> Found<R> {
    /// What is found in the block at `at`, of whose pointers `child` is asked for one.
    pub fn in_block<E>(
        block: &BtreeBlock<'_>,
        at: u64,
        order: Order,
        child: impl FnOnce(usize) -> Result<u64, E>,
    ) -> Result<Self, E> {
        if block.level > 0 {
            return Ok(Self::Below(child(branch::<R>(
                block.keys(),
                block.kind,
                order,
            ))?));
        }
        let (left, right) = (block.left, block.right);
        let around = around(block.records(), block.kind, order);
        Ok(Self::Leaf(Around {
            at,
            left,
            right,
            ..around
        }))
    }

    /// What is found in a block in memory; `None` if it has no pointer where it has a key.
    pub(super) fn in_node(node: &Node<R>, kind: BtreeKind, order: Order) -> Option<Self> {
        if node.level > 0 {
            let index = branch::<R>(&node.keys, kind, order);
            return node.pointers.get(index).copied().map(Self::Below);
        }
        let (at, left, right) = (node.at, node.left, node.right);
        let around = around(&node.records, kind, order);
        Some(Self::Leaf(Around {
            at,
            left,
            right,
            ..around
        }))
    }
}

/// The index of the entry that leads on.
fn branch<R: TreeRecord>(keys: &[R::Key], kind: BtreeKind, order: Order) -> usize {
    let after = keys.partition_point(|key| R::key_order(key, kind) <= order);
    after.saturating_sub(1)
}

fn around<R: TreeRecord>(records: &[R], kind: BtreeKind, order: Order) -> Around<R> {
    let index = records.partition_point(|record| record.order(kind) < order);
    let before = index.checked_sub(1).and_then(|before| records.get(before));
    Around {
        at: 0,
        before: before.copied(),
        after: records.get(index).copied(),
        left: None,
        right: None,
    }
}
