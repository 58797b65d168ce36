//! Changes of a tree by copy-on-write.
//!
//! A block is copied the first time that a transaction changes it, and is changed in place from then on. The
//! pointer to the copy is in its parent, which is copied before; so the tree of the last commit stays
//! as it was until the superblock leads to the new one.

mod recent;
mod split;
mod own;
mod balance;
mod prune;
mod remove;
#[cfg(test)]
pub(crate) mod tests;

use std::cell::Cell;

use platter_ondisk::{Corrupt, rules};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::Tree;
use super::blocks::{TreeBlock, TreeBlocks};
use super::cursor::Cursor;
use super::delayed::DelayedInodes;
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

pub use prune::{Cut, Pruned, prune};
pub use recent::RecentPaths;

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
    recent: RecentPaths,
    /// Inode items that are to be changed in the tree.
    delayed: Option<&'a mut DelayedInodes>,
    has_begun: bool,
    counts: Cell<EditCounts>,
}

/// What changes of a tree came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct EditCounts {
    /// Searches from the root, also to read.
    pub searches: u64,
    /// Changes of leaves.
    pub leaf_changes: u64,
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
#[derive(Debug, Clone, Copy)]
struct Path {
    steps: [Step; LEVEL_MAX as usize],
    len: usize,
}

/// Why a way to a leaf is searched.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Purpose {
    /// To change or remove items: pointers may be removed.
    Change,
    /// To insert an item that takes so many bytes: where the leaf lacks the space, each node on the way has it for
    /// two more pointers.
    Insert { needed: usize },
}

impl<'a, C: CopyOnWrite> TreeEditor<'a, C> {
    /// Changes of the tree `state` in the transaction `cow`.
    pub fn new(blocks: &'a TreeBlocks, cow: &'a C, state: &'a mut TreeState) -> Self {
        let mut recent = RecentPaths::default();
        recent.begin(cow.generation());
        Self {
            blocks,
            cow,
            state,
            recent,
            delayed: None,
            has_begun: false,
            counts: Cell::default(),
        }
    }

    /// As [`new`](Self::new), after the changes that left these paths: none was made since. Inode items that are
    /// delayed are part of the tree.
    pub fn going_on(
        blocks: &'a TreeBlocks,
        cow: &'a C,
        state: &'a mut TreeState,
        (recent, delayed): (RecentPaths, &'a mut DelayedInodes),
    ) -> Self {
        let mut recent = recent;
        recent.begin(cow.generation());
        Self {
            recent,
            delayed: Some(delayed),
            ..Self::new(blocks, cow, state)
        }
    }

    /// The paths for changes that come after these.
    #[must_use]
    pub fn into_recent(self) -> RecentPaths {
        self.recent
    }

    /// What the changes came to.
    #[must_use]
    pub fn counts(&self) -> EditCounts {
        self.counts.get()
    }

    fn count_search(&self) {
        let mut counts = self.counts.get();
        counts.searches += 1;
        self.counts.set(counts);
    }

    fn count_leaf_change(&self) {
        let mut counts = self.counts.get();
        counts.leaf_changes += 1;
        self.counts.set(counts);
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

    /// A cursor over the items as they are now, but for delayed ones.
    #[must_use]
    pub fn cursor(&self) -> Cursor<'a> {
        self.count_search();
        Cursor::new(self.blocks, self.state.tree)
    }

    /// What is delayed of an item, if anything is.
    fn delayed(&self, key: Key) -> Option<&[u8]> {
        self.delayed.as_ref()?.get(key)
    }

    /// The item, as it is with what is delayed.
    fn item(&self, (key, data): (Key, &[u8])) -> (Key, Vec<u8>) {
        (key, self.delayed(key).unwrap_or(data).to_vec())
    }

    /// Forgets what is delayed of items from `first` to `last`.
    fn cancel(&mut self, first: Key, last: Key) {
        if let Some(delayed) = &mut self.delayed
            && delayed.cancel(first, last)
        {
            self.has_begun = true;
        }
    }

    /// Changes all delayed items in the tree. Returns how many there were.
    pub fn write_delayed(&mut self) -> Result<usize> {
        let mut count = 0;
        while let Some((number, item)) = self.delayed.as_mut().and_then(|it| it.take_first()) {
            let key = Key::new(number, ItemKind::INODE_ITEM, 0);
            self.set(key, item.as_bytes())?;
            count += 1;
        }
        Ok(count)
    }

    /// The data of an item.
    pub fn get(&self, key: Key) -> Result<Option<Vec<u8>>> {
        if let Some(delayed) = self.delayed(key) {
            return Ok(Some(delayed.to_vec()));
        }
        if let Some(block) = self.recent_leaf(key)? {
            let leaf = block.leaf();
            let item = leaf.item(leaf.lower_bound(key));
            let item = item.filter(|(found, _)| *found == key);
            return Ok(item.map(|(_, data)| data.to_vec()));
        }
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        let item = cursor.item().filter(|(found, _)| *found == key);
        Ok(item.map(|(_, data)| data.to_vec()))
    }

    /// As [`get`](Self::get), of an item that is probably changed or inserted next. Its leaf becomes the transaction's
    /// own, which changes no item.
    pub fn get_for_change(&mut self, key: Key) -> Result<Option<Vec<u8>>> {
        let had_begun = self.has_begun;
        let (step, block) = self.descend(key, Purpose::Change)?;
        self.has_begun = had_begun;
        let item = block.leaf().item(step.index);
        let item = item.filter(|(found, _)| *found == key);
        Ok(item.map(|item| self.item(item).1))
    }

    /// The first item at or after a key.
    pub fn at_or_after(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        if let Some(block) = self.recent_leaf(key)? {
            let leaf = block.leaf();
            // Else it is in the next leaf.
            if let Some(item) = leaf.item(leaf.lower_bound(key)) {
                return Ok(Some(self.item(item)));
            }
        }
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.item().map(|item| self.item(item)))
    }

    /// The key of the first item at or after a key.
    pub fn key_from(&self, key: Key) -> Result<Option<Key>> {
        if let Some(block) = self.recent_leaf(key)? {
            let leaf = block.leaf();
            // Else it is in the next leaf.
            if let Some(key) = leaf.key(leaf.lower_bound(key)) {
                return Ok(Some(key));
            }
        }
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.key())
    }

    /// The last item at or before a key.
    pub fn at_or_before(&self, key: Key) -> Result<Option<(Key, Vec<u8>)>> {
        if let Some(block) = self.recent_leaf(key)? {
            let leaf = block.leaf();
            let after = leaf.lower_bound(key);
            let exact = leaf.item(after).filter(|(found, _)| *found == key);
            let before = after.checked_sub(1).and_then(|before| leaf.item(before));
            // Else it is in the leaf before.
            if let Some(item) = exact.or(before) {
                return Ok(Some(self.item(item)));
            }
        }
        let mut cursor = self.cursor();
        if !cursor.seek_at_or_before(key)? {
            return Ok(None);
        }
        Ok(cursor.item().map(|item| self.item(item)))
    }

    /// The most bytes that an item holds.
    #[must_use]
    pub fn item_bytes_max(&self) -> usize {
        let capacity = leaf_edit::capacity(self.node_bytes());
        capacity.saturating_sub(ITEM_BYTES)
    }

    /// Inserts an item.
    pub fn insert(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let needed = data.len().saturating_add(ITEM_BYTES);
        if needed > leaf_edit::capacity(self.node_bytes()) {
            return Err(self.broken(key, TreeEditRule::TooLarge));
        }
        if self.try_put(key, data, false)? {
            return Ok(());
        }
        for round in 0..ROUNDS_MAX {
            let (step, block) = self.descend(key, Purpose::Insert { needed })?;
            if block.leaf().key(step.index) == Some(key) {
                return Err(self.broken(key, TreeEditRule::Exists));
            }
            let fits = needed <= leaf_edit::free_bytes(block.bytes());
            drop(block);
            if fits {
                return self.insert_at(step, key, data);
            }
            let path = self.path()?;
            // Neighbours are asked once; they may have had too little.
            if round == 0 && balance::push_aside(self, &path, needed)? {
                continue;
            }
            if split::split_leaf(self, &path, key, data)? {
                return Ok(());
            }
        }
        Err(self.shape())
    }

    /// Inserts an item where the current way leads, which has the space.
    fn insert_at(&mut self, step: Step, key: Key, data: &[u8]) -> Result<()> {
        let is_inserted =
            self.edit_leaf(step.logical, |leaf| leaf.insert(step.index, key, data))?;
        if !is_inserted {
            return Err(self.shape());
        }
        self.keep_first_key(step.index, key)
    }

    /// Stores the first key of the leaf of the current way in the nodes above it, if that is what changed.
    fn keep_first_key(&mut self, index: usize, key: Key) -> Result<()> {
        if index > 0 {
            return Ok(());
        }
        let path = self.path()?;
        self.set_first_key(&path, path.depth(), key)
    }

    /// Inserts an item, or replaces its data if it `may_replace` one, in a leaf that was changed before and has the
    /// space. Returns whether that was done.
    fn try_put(&mut self, key: Key, data: &[u8], may_replace: bool) -> Result<bool> {
        let Some(step) = self.follow(key) else {
            return Ok(false);
        };
        self.has_begun = true;
        let put = self.try_edit_leaf(step.logical, |leaf| {
            let index = leaf.leaf().lower_bound(key);
            if leaf.leaf().key(index) == Some(key) {
                let is_replaced = may_replace && leaf.replace(index, data);
                return is_replaced.then_some(None);
            }
            leaf.insert(index, key, data).then_some(Some(index))
        })?;
        if let Some(Some(index)) = put {
            self.keep_first_key(index, key)?;
        }
        Ok(put.is_some())
    }

    /// Replaces the data of an item, or inserts it.
    pub fn set(&mut self, key: Key, data: &[u8]) -> Result<()> {
        self.cancel(key, key);
        if self.try_put(key, data, true)? {
            return Ok(());
        }
        let (step, block) = self.descend(key, Purpose::Change)?;
        let is_there = block.leaf().key(step.index) == Some(key);
        let free = leaf_edit::free_bytes(block.bytes());
        drop(block);
        if is_there {
            let is_replaced =
                self.edit_leaf(step.logical, |leaf| leaf.replace(step.index, data))?;
            if is_replaced {
                return Ok(());
            }
            self.remove(key)?;
        } else if data.len().saturating_add(ITEM_BYTES) <= free {
            return self.insert_at(step, key, data);
        }
        self.insert(key, data)
    }

    /// Changes the data of an item in place.
    pub fn edit<R>(&mut self, key: Key, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        if let Some(delayed) = self.delayed(key) {
            let delayed = delayed.to_vec();
            self.set(key, &delayed)?;
        }
        let (step, block) = self.descend(key, Purpose::Change)?;
        if block.leaf().key(step.index) != Some(key) {
            return Err(self.broken(key, TreeEditRule::Missing));
        }
        drop(block);
        let result = self.edit_leaf(step.logical, |leaf| leaf.data_mut(step.index).map(change))?;
        result.ok_or_else(|| self.shape())
    }

    /// Changes the key of an item, which stays between its neighbours.
    pub fn set_key(&mut self, old: Key, new: Key) -> Result<()> {
        let (step, block) = self.descend(old, Purpose::Change)?;
        let leaf = block.leaf();
        let before = step.index.checked_sub(1).and_then(|at| leaf.key(at));
        let after = leaf.key(step.index + 1).or(step.end);
        let fits = before.is_none_or(|it| it < new) && after.is_none_or(|it| new < it);
        if leaf.key(step.index) != Some(old) || !fits {
            return Err(self.broken(old, TreeEditRule::Missing));
        }
        drop(block);
        self.edit_leaf(step.logical, |leaf| leaf.set_key(step.index, new))?;
        self.keep_first_key(step.index, new)
    }

    /// Removes an item. Returns whether there was one.
    pub fn remove(&mut self, key: Key) -> Result<bool> {
        self.cancel(key, key);
        if remove::from_recent(self, key)? {
            return Ok(true);
        }
        Ok(self.remove_range(key, key)? > 0)
    }

    /// Removes the items from `first` to `last`. Returns how many there were.
    pub fn remove_range(&mut self, first: Key, last: Key) -> Result<usize> {
        self.cancel(first, last);
        let mut removed = 0;
        // Nothing is copied where there is nothing to remove.
        while let Some(found) = self.key_from(first)?
            && found <= last
        {
            let (count, is_end) = remove::from_leaf(self, found, last)?;
            removed += count;
            if is_end {
                break;
            }
        }
        Ok(removed)
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
    const EMPTY: Self = Self {
        steps: [Step {
            logical: LogicalAddr(0),
            index: 0,
            end: None,
        }; LEVEL_MAX as usize],
        len: 0,
    };

    /// Adds a step. `None` if there are as many as a tree has levels.
    fn push(&mut self, step: Step) -> Option<()> {
        *self.steps.get_mut(self.len)? = step;
        self.len += 1;
        Some(())
    }

    fn steps(&self) -> &[Step] {
        self.steps.get(..self.len).unwrap_or_default()
    }

    fn leaf(&self) -> Option<Step> {
        self.steps().last().copied()
    }

    /// The index of the leaf's step.
    fn depth(&self) -> usize {
        self.len.saturating_sub(1)
    }
}

/// More levels than a tree has: the bound of loops over them.
const ROUNDS_MAX: usize = 4 * LEVEL_MAX as usize;
