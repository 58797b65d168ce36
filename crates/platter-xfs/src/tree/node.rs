//! A block of a tree in memory.

use zerocopy::IntoBytes;

use super::record::TreeRecord;
use crate::ondisk::btree::BtreeBlock;

/// A block of a tree in memory.
#[derive(Debug, Clone)]
pub struct Node<R: TreeRecord> {
    /// Where it is, in the pointers of its tree.
    pub at: u64,
    /// Zero for a leaf.
    pub level: u16,
    /// The block to the left on the same level.
    pub left: Option<u64>,
    /// The block to the right on the same level.
    pub right: Option<u64>,
    /// Of a leaf.
    pub records: Vec<R>,
    /// Of a node, with its pointers.
    pub keys: Vec<R::Key>,
    /// Of a node.
    pub pointers: Vec<u64>,
}

impl<R: TreeRecord> Node<R> {
    /// The contents of a block, whose pointers were validated.
    #[must_use]
    pub fn new(at: u64, block: &BtreeBlock<'_>, pointers: Vec<u64>) -> Self {
        Self {
            at,
            level: block.level,
            left: block.left,
            right: block.right,
            records: block.records().to_vec(),
            keys: block.keys().to_vec(),
            pointers,
        }
    }

    /// A node above others.
    #[must_use]
    pub fn above(at: u64, level: u16, children: Vec<(R::Key, u64)>) -> Self {
        let (keys, pointers) = children.into_iter().unzip();
        Self {
            at,
            level,
            left: None,
            right: None,
            records: Vec::new(),
            keys,
            pointers,
        }
    }

    /// Number of entries.
    #[must_use]
    #[expect(clippy::len_without_is_empty, reason = "only roots can be empty")]
    pub fn len(&self) -> usize {
        if self.level == 0 {
            self.records.len()
        } else {
            self.pointers.len()
        }
    }

    /// The key of the block; `None` if it has no entries.
    #[must_use]
    pub fn key(&self) -> Option<R::Key> {
        if self.level == 0 {
            let keys: Vec<R::Key> = self.records.iter().map(R::key).collect();
            return R::joined(&keys);
        }
        R::joined(&self.keys)
    }

    /// The bytes of records or keys.
    #[must_use]
    pub fn entries(&self) -> &[u8] {
        if self.level == 0 {
            self.records.as_slice().as_bytes()
        } else {
            self.keys.as_slice().as_bytes()
        }
    }

    /// The blocks below whose keys are `wanted`.
    pub(super) fn children(&self, wanted: &impl Fn(&R::Key) -> bool) -> Vec<u64> {
        let pairs = self.keys.iter().zip(&self.pointers);
        let pairs = pairs.filter(|(key, _)| wanted(key));
        pairs.map(|(_, &at)| at).collect()
    }

    pub(super) fn set_key(&mut self, index: usize, key: R::Key) {
        if let Some(slot) = self.keys.get_mut(index) {
            *slot = key;
        }
    }

    /// Removes the pointer to a block below, and its key.
    pub(super) fn remove(&mut self, index: usize) {
        if index < self.pointers.len() && index < self.keys.len() {
            self.keys.remove(index);
            self.pointers.remove(index);
        }
    }

    /// The entries from `index` on, as a block of their own.
    pub(super) fn split_off(&mut self, index: usize, at: u64) -> Self {
        let (records, keys) = (self.records.len(), self.keys.len());
        Self {
            at,
            level: self.level,
            left: Some(self.at),
            right: self.right,
            records: self.records.split_off(index.min(records)),
            keys: self.keys.split_off(index.min(keys)),
            pointers: self.pointers.split_off(index.min(keys)),
        }
    }

    pub(super) fn append(&mut self, other: &mut Self) {
        self.records.append(&mut other.records);
        self.keys.append(&mut other.keys);
        self.pointers.append(&mut other.pointers);
    }

    /// Moves the first entry to the end of the left neighbour.
    pub(super) fn move_first(&mut self, left: &mut Self) {
        left.records
            .extend(self.records.drain(..1.min(self.records.len())));
        left.keys.extend(self.keys.drain(..1.min(self.keys.len())));
        left.pointers
            .extend(self.pointers.drain(..1.min(self.pointers.len())));
    }

    /// Moves the last entry to the start of the right neighbour.
    pub(super) fn move_last(&mut self, right: &mut Self) {
        right.records.splice(..0, self.records.pop());
        right.keys.splice(..0, self.keys.pop());
        right.pointers.splice(..0, self.pointers.pop());
    }
}
