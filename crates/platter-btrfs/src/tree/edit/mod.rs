//! Changes of a tree by copy-on-write.
//!
//! A block is copied the first time that a transaction changes it, and is changed in place from then on. The
//! pointer to the copy is in its parent, which is copied before; so the tree of the last commit stays
//! as it was until the superblock leads to the new one.

mod balance;
mod insert;
mod own;
mod prune;
mod remove;
#[cfg(test)]
pub(crate) mod tests;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;

use super::Tree;
use super::blocks::{TreeBlock, TreeBlocks};
use super::cursor::Cursor;
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

pub use prune::{Cut, Pruned};

rules! {
    /// The rules of a tree that is changed.
    pub enum TreeEditRule of "tree" {
        /// A new item has a key that no item has.
        Exists => "item exists already",
        /// An item that is changed is there.
        Missing => "item is missing",
        /// An item fits in a leaf.
        TooLarge => "item is too large for a leaf",
        /// A tree has at most 8 levels.
        TooHigh => "tree has more than 8 levels",
        /// A block has the shape that its header says.
        Shape => "tree block changed its shape",
    }
}

/// A tree in the running transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeState {
    /// The tree, and its root now.
    pub tree: Tree,
    /// The last snapshot: blocks that are not younger may be shared.
    pub last_snapshot: Generation,
    /// Whether it is a subvolume, whose blocks snapshots share.
    pub is_shareable: bool,
    /// The bytes of its blocks.
    pub used_bytes: u64,
}

impl TreeState {
    /// The number of the tree.
    #[must_use]
    pub fn id(&self) -> TreeId {
        self.tree.id
    }
}

/// What a tree needs of the transaction: blocks, and references to what they refer to.
pub trait CopyOnWrite {
    /// The number of the transaction.
    fn generation(&self) -> Generation;

    /// Whether a block of this generation is changed in place.
    fn owns(&self, logical: LogicalAddr, generation: Generation) -> bool {
        let _ = logical;
        generation == self.generation()
    }

    /// Allocates a block, and adds the reference of the tree to it.
    fn allocate(
        &self,
        tree: &TreeState,
        level: u8,
        first_key: Key,
        near: LogicalAddr,
    ) -> Result<LogicalAddr>;

    /// Changes the references for the copy `new` of the block `old`, which `tree` does not refer to any
    /// more. `is_root` says whether it was the root.
    fn copied(&self, tree: &TreeState, old: &TreeBlock, new: &[u8], is_root: bool) -> Result<()>;

    /// Drops the reference of the tree to one of its blocks of this transaction.
    fn freed(&self, tree: &TreeState, logical: LogicalAddr, level: u8) -> Result<()>;
}

/// A tree that is being changed, under its lock.
#[derive(Debug)]
pub struct TreeEditor<'a, C> {
    blocks: &'a TreeBlocks,
    cow: &'a C,
    state: &'a mut TreeState,
    has_begun: bool,
}

/// A block on the way from the root, which belongs to the transaction, and the index in it.
#[derive(Debug, Clone, Copy)]
struct Step {
    logical: LogicalAddr,
    index: usize,
    /// The keys of the block are below it.
    end: Option<Key>,
}

/// From the root to a leaf.
#[derive(Debug, Default)]
struct Path {
    steps: Vec<Step>,
}

/// Why a way to a leaf is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To change or remove items: pointers may be removed.
    Change,
    /// To insert an item: each node on the way has space for two more pointers.
    Insert,
}

impl<'a, C: CopyOnWrite> TreeEditor<'a, C> {
    /// Changes of the tree `state` in the transaction `cow`.
    pub fn new(blocks: &'a TreeBlocks, cow: &'a C, state: &'a mut TreeState) -> Self {
        Self {
            blocks,
            cow,
            state,
            has_begun: false,
        }
    }

    /// Whether a change of items was begun, be it that it failed.
    #[must_use]
    pub fn has_begun(&self) -> bool {
        self.has_begun
    }

    /// The tree as it is now.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.state.tree
    }

    /// A cursor over the items as they are now.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'a> {
        Cursor::new(self.blocks, self.state.tree)
    }

    /// The data of an item.
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        let item = cursor.item().filter(|(found, _)| *found == key);
        Ok(item.map(|(_, data)| data.to_vec()))
    }

    /// The first item at or after a key.
    pub fn at_or_after(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.item().map(|(key, data)| (key, data.to_vec())))
    }

    /// The last item at or before a key.
    pub fn at_or_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        let mut cursor = self.cursor();
        if !cursor.seek_at_or_before(key)? {
            return Ok(None);
        }
        Ok(cursor.item().map(|(key, data)| (key, data.to_vec())))
    }

    /// The most bytes that an item holds.
    #[must_use]
    pub fn item_bytes_max(&self) -> usize {
        let capacity = crate::ondisk::leaf_edit::capacity(self.node_bytes());
        capacity.saturating_sub(crate::ondisk::leaf::ITEM_BYTES)
    }

    fn node_bytes(&self) -> u32 {
        self.blocks.format().node_bytes
    }

    fn root(&self) -> RootPointer {
        self.state.tree.root
    }

    fn broken(&self, key: Key, rule: TreeEditRule) -> platter_vfs::Error {
        Corrupt::new(self.state.tree.locus(key), rule).into()
    }

    /// The error of a block that is not what was read before.
    fn shape(&self) -> platter_vfs::Error {
        self.broken(Key::MIN, TreeEditRule::Shape)
    }
}

impl Path {
    fn leaf(&self) -> Option<Step> {
        self.steps.last().copied()
    }

    /// The index of the leaf's step.
    fn depth(&self) -> usize {
        self.steps.len().saturating_sub(1)
    }
}

/// More levels than a tree has: the bound of loops over them.
const ROUNDS_MAX: usize = 4 * LEVEL_MAX as usize;
