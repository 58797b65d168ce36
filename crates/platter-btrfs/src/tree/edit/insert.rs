//! Insertion of items: splitting of leaves and nodes.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Purpose, ROUNDS_MAX, Step, TreeEditRule, TreeEditor};
use crate::ondisk::leaf::{self, ITEM_BYTES, Leaf};
use crate::ondisk::leaf_edit::{self, LeafMut};
use crate::ondisk::node::{self, KeyPointer};
use crate::ondisk::node_edit::NodeMut;
use crate::ondisk::{Key, LogicalAddr};

impl<C: CopyOnWrite> TreeEditor<'_, C> {
    /// Inserts an item.
    pub fn insert(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let needed = data.len().saturating_add(ITEM_BYTES);
        if needed > leaf_edit::capacity(self.node_bytes()) {
            return Err(self.broken(key, TreeEditRule::TooLarge));
        }
        let generation = self.cow.generation();
        for round in 0..ROUNDS_MAX {
            let path = self.descend(key, Purpose::Insert)?;
            let step = path.leaf().ok_or_else(|| self.shape())?;
            let block = self.own_block(step.logical)?;
            if block.leaf().key(step.index) == Some(key) {
                return Err(self.broken(key, TreeEditRule::Exists));
            }
            let fits = needed <= leaf_edit::free_bytes(block.bytes());
            drop(block);
            if fits {
                let is_inserted = self.blocks.edit(step.logical, generation, |bytes| {
                    LeafMut::new(bytes).insert(step.index, key, data)
                })?;
                if !is_inserted {
                    return Err(self.shape());
                }
                if step.index == 0 {
                    self.set_first_key(&path, path.depth(), key)?;
                }
                return Ok(());
            }
            // Neighbours are asked once; they may have had too little.
            if round == 0 && self.push_aside(&path, needed)? {
                continue;
            }
            if self.split_leaf(&path, key, data)? {
                return Ok(());
            }
        }
        Err(self.shape())
    }

    /// Replaces the data of an item, or inserts it.
    pub fn set(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let path = self.descend(key, Purpose::Change)?;
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let is_there = self.own_block(step.logical)?.leaf().key(step.index) == Some(key);
        if is_there {
            let generation = self.cow.generation();
            let is_replaced = self.blocks.edit(step.logical, generation, |bytes| {
                LeafMut::new(bytes).replace(step.index, data)
            })?;
            if is_replaced {
                return Ok(());
            }
            self.remove(key)?;
        }
        self.insert(key, data)
    }

    /// Changes the data of an item in place.
    pub fn edit<R>(&mut self, key: Key, change: impl FnOnce(&mut [u8]) -> R) -> Result<R> {
        let path = self.descend(key, Purpose::Change)?;
        let step = path.leaf().ok_or_else(|| self.shape())?;
        if self.own_block(step.logical)?.leaf().key(step.index) != Some(key) {
            return Err(self.broken(key, TreeEditRule::Missing));
        }
        let generation = self.cow.generation();
        let result = self.blocks.edit(step.logical, generation, |bytes| {
            LeafMut::new(bytes).data_mut(step.index).map(change)
        })?;
        result.ok_or_else(|| self.shape())
    }

    /// Changes the key of an item, which stays between its neighbours.
    pub fn set_key(&mut self, old: Key, new: Key) -> Result<()> {
        let path = self.descend(old, Purpose::Change)?;
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let block = self.own_block(step.logical)?;
        let leaf = block.leaf();
        let before = step.index.checked_sub(1).and_then(|at| leaf.key(at));
        let after = leaf.key(step.index + 1).or(step.end);
        let fits = before.is_none_or(|it| it < new) && after.is_none_or(|it| new < it);
        if leaf.key(step.index) != Some(old) || !fits {
            return Err(self.broken(old, TreeEditRule::Missing));
        }
        drop(block);
        let generation = self.cow.generation();
        self.blocks.edit(step.logical, generation, |bytes| {
            LeafMut::new(bytes).set_key(step.index, new);
        })?;
        if step.index == 0 {
            self.set_first_key(&path, path.depth(), new)?;
        }
        Ok(())
    }

    /// Splits the leaf of `path` for an item that goes to where the path leads. Returns whether it was
    /// inserted as well, which it is where it is alone in a leaf.
    fn split_leaf(&mut self, path: &Path, key: Key, data: &[u8]) -> Result<bool> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        if path.steps.len() == 1 {
            // The next search finds a node above it.
            return self.grow().map(|()| false);
        }
        let block = self.own_block(step.logical)?;
        let capacity = leaf_edit::capacity(self.node_bytes());
        let needed = data.len() + ITEM_BYTES;
        let at = split_point(block.leaf(), step.index, needed, capacity);
        let moved: Vec<(Key, Vec<u8>)> = (at..block.leaf().len())
            .filter_map(|index| block.leaf().item(index))
            .map(|(key, data)| (key, data.to_vec()))
            .collect();
        drop(block);
        let is_alone = moved.is_empty();
        let first = moved.first().map_or(key, |(first, _)| *first);
        let (header, mut bytes) = self.new_block(step.logical, 0, first)?;
        let is_encoded = if is_alone {
            leaf::encode(&mut bytes, &header, [(key, data)])
        } else {
            let items = moved.iter().map(|(key, data)| (*key, &data[..]));
            leaf::encode(&mut bytes, &header, items)
        };
        if !is_encoded {
            return Err(self.shape());
        }
        self.blocks.create(header.logical, bytes)?;
        self.insert_pointer(path, path.depth(), first, header.logical)?;
        if is_alone {
            return Ok(true);
        }
        let generation = self.cow.generation();
        let is_emptied = at == 0;
        self.blocks.edit(step.logical, generation, |bytes| {
            let mut leaf = LeafMut::new(bytes);
            leaf.remove(at..at + moved.len());
            if is_emptied {
                leaf.insert(0, key, data);
            }
        })?;
        if is_emptied {
            self.set_first_key(path, path.depth(), key)?;
        }
        Ok(is_emptied)
    }

    /// Inserts a pointer to a new block after that of `path` at `depth`.
    fn insert_pointer(
        &mut self,
        path: &Path,
        depth: usize,
        key: Key,
        logical: LogicalAddr,
    ) -> Result<()> {
        let generation = self.cow.generation();
        let above = depth.checked_sub(1).and_then(|at| path.steps.get(at));
        let above: &Step = above.ok_or_else(|| self.shape())?;
        let pointer = KeyPointer {
            key,
            logical,
            generation,
        };
        let is_inserted = self.blocks.edit(above.logical, generation, |bytes| {
            NodeMut::new(bytes).insert(above.index + 1, &[pointer])
        })?;
        if is_inserted {
            Ok(())
        } else {
            Err(self.shape())
        }
    }

    /// Splits the last node of `path`, above which the nodes have space, in half.
    pub(super) fn split_node(&mut self, path: &Path) -> Result<()> {
        if path.steps.len() == 1 {
            return self.grow();
        }
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let block = self.own_block(step.logical)?;
        let level = block.level();
        let at = block.node().len() / 2;
        let moved: Vec<KeyPointer> = block.node().iter().skip(at).collect();
        drop(block);
        let first = moved.first().map(|pointer| pointer.key);
        let first = first.ok_or_else(|| self.shape())?;
        let (header, mut bytes) = self.new_block(step.logical, level, first)?;
        if !node::encode(&mut bytes, &header, &moved) {
            return Err(self.shape());
        }
        self.blocks.create(header.logical, bytes)?;
        let generation = self.cow.generation();
        self.blocks.edit(step.logical, generation, |bytes| {
            NodeMut::new(bytes).remove(at..at + moved.len())
        })?;
        self.insert_pointer(path, path.depth(), first, header.logical)
    }
}

/// Where a leaf is split for an item of `needed` bytes at `index`: the first item of the right part.
///
/// An item before the first of the right part goes to the end of the left one. At the end of the leaf, it is
/// alone in the right part: items that come in order fill leaves. Where it fits in no part, the left
/// one ends where it goes, and the next split leaves it alone. At the beginning of the leaf, all items
/// move.
fn split_point(leaf: Leaf<'_>, index: usize, needed: usize, capacity: usize) -> usize {
    let count = leaf.len();
    if index >= count {
        return count;
    }
    let sizes = leaf.iter().map(|(_, data)| data.len() + ITEM_BYTES);
    let total: usize = leaf.iter().map(|(_, data)| data.len() + ITEM_BYTES).sum();
    let mut best = (usize::MAX, index);
    let mut left = 0;
    for (at, size) in (0..).zip(sizes) {
        let (with_left, with_right) = if index <= at {
            (left + needed, total - left)
        } else {
            (left, total - left + needed)
        };
        let fits = with_left <= capacity && with_right <= capacity;
        if at > 0 && fits && with_left.abs_diff(with_right) < best.0 {
            best = (with_left.abs_diff(with_right), at);
        }
        left += size;
    }
    best.1
}
