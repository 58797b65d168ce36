//! Neighbouring blocks: moving items to one of them, and merging with one.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Step, TreeEditor};
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit::{self, LeafMut};
use crate::ondisk::node::KeyPointer;
use crate::ondisk::node_edit::{self, NodeMut};
use crate::ondisk::{Key, LogicalAddr};

/// A leaf that is less full is merged with a neighbour if both fit in one.
const LEAF_PARTS_MIN: usize = 3;
/// A node that is less full is.
const NODE_PARTS_MIN: usize = 4;

/// A neighbour: a pointer of the node above both.
#[derive(Debug, Clone, Copy)]
struct Neighbour {
    parent: LogicalAddr,
    index: usize,
    pointer: KeyPointer,
    level: u8,
    end: Option<Key>,
}

impl<C: CopyOnWrite> TreeEditor<'_, C> {
    /// The block left or right of that of `path` at `depth`, below the same node.
    fn neighbour(&self, path: &Path, depth: usize, is_right: bool) -> Result<Option<Neighbour>> {
        let Some(above) = depth.checked_sub(1).and_then(|at| path.steps.get(at)) else {
            return Ok(None);
        };
        let index = if is_right {
            Some(above.index + 1)
        } else {
            above.index.checked_sub(1)
        };
        let block = self.own_block(above.logical)?;
        let node = block.node();
        let found = index.and_then(|index| Some((index, node.pointer(index)?)));
        Ok(found.map(|(index, pointer)| Neighbour {
            parent: above.logical,
            index,
            pointer,
            level: block.level().saturating_sub(1),
            end: node.pointer(index + 1).map(|next| next.key).or(above.end),
        }))
    }

    fn own_neighbour(&mut self, it: &Neighbour) -> Result<LogicalAddr> {
        self.own_child(it.parent, it.index, it.pointer, it.level, it.end)
    }

    /// Makes space for an item of `needed` bytes in the leaf of `path` by moving others to a neighbour that
    /// has space. Returns whether that was done.
    pub(super) fn push_aside(&mut self, path: &Path, needed: usize) -> Result<bool> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let block = self.own_block(step.logical)?;
        let leaf = block.leaf();
        let count = leaf.len();
        if step.index >= count {
            return Ok(false);
        }
        let short = needed.saturating_sub(leaf_edit::free_bytes(block.bytes()));
        let sizes: Vec<usize> = leaf
            .iter()
            .map(|(_, data)| data.len() + ITEM_BYTES)
            .collect();
        drop(block);
        let (before, after) = sizes.split_at(step.index);
        if let Some(right) = self.neighbour(path, path.depth(), true)? {
            let free = self.free_bytes(&right)?;
            // The leaf keeps an item, as only a root may be empty.
            let movable = after.iter().rev().take(count - 1);
            if let Some(moved) = worth_moving(movable, short, free) {
                self.move_right(step, &right, count - moved..count)?;
                return Ok(true);
            }
        }
        if let Some(left) = self.neighbour(path, path.depth(), false)? {
            let free = self.free_bytes(&left)?;
            if let Some(moved) = worth_moving(before.iter(), short, free) {
                self.move_left(path, &left, moved)?;
                return Ok(true);
            }
        }
        Ok(false)
    }

    fn free_bytes(&self, it: &Neighbour) -> Result<usize> {
        let block = self.child(it.pointer, it.level, it.end)?;
        Ok(leaf_edit::free_bytes(block.bytes()))
    }

    /// Moves the last items of a leaf to the beginning of the one right of it.
    fn move_right(
        &mut self,
        step: Step,
        right: &Neighbour,
        range: std::ops::Range<usize>,
    ) -> Result<()> {
        let target = self.own_neighbour(right)?;
        let moved = self.items(step.logical, range.clone())?;
        let generation = self.cow.generation();
        self.blocks.edit(target, generation, |bytes| {
            let mut leaf = LeafMut::new(bytes);
            for (index, (key, data)) in moved.iter().enumerate() {
                leaf.insert(index, *key, data);
            }
        })?;
        self.blocks.edit(step.logical, generation, |bytes| {
            LeafMut::new(bytes).remove(range)
        })?;
        if let Some((first, _)) = moved.first() {
            self.blocks.edit(right.parent, generation, |bytes| {
                NodeMut::new(bytes).set_key(right.index, *first);
            })?;
        }
        Ok(())
    }

    /// Moves the first items of the leaf of `path` to the end of the one left of it.
    fn move_left(&mut self, path: &Path, left: &Neighbour, count: usize) -> Result<()> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let target = self.own_neighbour(left)?;
        self.append(step.logical, target, count)?;
        let generation = self.cow.generation();
        self.blocks.edit(step.logical, generation, |bytes| {
            LeafMut::new(bytes).remove(0..count)
        })?;
        let first = self.own_block(step.logical)?.leaf().key(0);
        if let Some(first) = first {
            self.set_first_key(path, path.depth(), first)?;
        }
        Ok(())
    }

    /// Copies the first `count` items of a leaf to the end of another one, which has the space.
    fn append(&mut self, from: LogicalAddr, to: LogicalAddr, count: usize) -> Result<()> {
        let len = self.own_block(from)?.leaf().len();
        let moved = self.items(from, 0..count.min(len))?;
        let generation = self.cow.generation();
        self.blocks.edit(to, generation, |bytes| {
            let mut leaf = LeafMut::new(bytes);
            let end = leaf.leaf().len();
            for (index, (key, data)) in (end..).zip(&moved) {
                leaf.insert(index, *key, data);
            }
        })
    }

    fn items(
        &self,
        logical: LogicalAddr,
        range: std::ops::Range<usize>,
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let block = self.own_block(logical)?;
        let leaf = block.leaf();
        let items = range.filter_map(|index| leaf.item(index));
        Ok(items.map(|(key, data)| (key, data.to_vec())).collect())
    }

    /// Merges the leaf of `path` with a neighbour, if it is nearly empty and both fit in one.
    pub(super) fn merge_leaf(&mut self, path: &Path) -> Result<()> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let capacity = leaf_edit::capacity(self.node_bytes());
        let used = self.used_bytes(step.logical)?;
        if path.steps.len() == 1 || used * LEAF_PARTS_MIN >= capacity {
            return Ok(());
        }
        if let Some(left) = self.neighbour(path, path.depth(), false)?
            && used <= self.free_bytes(&left)?
        {
            let target = self.own_neighbour(&left)?;
            self.append(step.logical, target, usize::MAX)?;
            self.free(step.logical, 0)?;
            return self.unlink(path, path.depth());
        }
        if let Some(right) = self.neighbour(path, path.depth(), true)?
            && self.free_bytes(&right)? + used >= capacity
        {
            let source = self.own_neighbour(&right)?;
            self.append(source, step.logical, usize::MAX)?;
            self.free(source, 0)?;
            return self.unlink_right(path, path.depth());
        }
        Ok(())
    }

    fn used_bytes(&self, logical: LogicalAddr) -> Result<usize> {
        let block = self.own_block(logical)?;
        let capacity = leaf_edit::capacity(self.node_bytes());
        Ok(capacity.saturating_sub(leaf_edit::free_bytes(block.bytes())))
    }

    /// Merges the node of `path` at `depth` with a neighbour, if it is nearly empty and both fit in one.
    pub(super) fn merge_node(&mut self, path: &Path, depth: usize) -> Result<()> {
        let Some(step) = path.steps.get(depth).filter(|_| depth > 0) else {
            return Ok(());
        };
        let capacity = node_edit::capacity(self.node_bytes());
        let block = self.own_block(step.logical)?;
        let (len, level) = (block.node().len(), block.level());
        drop(block);
        if len * NODE_PARTS_MIN >= capacity {
            return Ok(());
        }
        if let Some(left) = self.neighbour(path, depth, false)?
            && self.pointers(&left)? + len <= capacity
        {
            let target = self.own_neighbour(&left)?;
            self.append_pointers(step.logical, target)?;
            self.free(step.logical, level)?;
            return self.unlink(path, depth);
        }
        if let Some(right) = self.neighbour(path, depth, true)?
            && self.pointers(&right)? + len <= capacity
        {
            let source = self.own_neighbour(&right)?;
            self.append_pointers(source, step.logical)?;
            self.free(source, level)?;
            return self.unlink_right(path, depth);
        }
        Ok(())
    }

    fn pointers(&self, it: &Neighbour) -> Result<usize> {
        let block = self.child(it.pointer, it.level, it.end)?;
        Ok(block.node().len())
    }

    fn append_pointers(&mut self, from: LogicalAddr, to: LogicalAddr) -> Result<()> {
        let pointers: Vec<KeyPointer> = self.own_block(from)?.node().iter().collect();
        let generation = self.cow.generation();
        let fits = self.blocks.edit(to, generation, |bytes| {
            let mut node = NodeMut::new(bytes);
            let end = node.node().len();
            node.insert(end, &pointers)
        })?;
        if fits { Ok(()) } else { Err(self.shape()) }
    }

    /// Removes the pointer to the block of `path` at `depth`, which is not the only one of its node.
    pub(super) fn unlink(&mut self, path: &Path, depth: usize) -> Result<()> {
        let above = depth.checked_sub(1).and_then(|at| path.steps.get(at));
        let above = *above.ok_or_else(|| self.shape())?;
        self.remove_pointer(above.logical, above.index)?;
        if above.index == 0 {
            let first = self.own_block(above.logical)?.node().pointer(0);
            let first = first.ok_or_else(|| self.shape())?;
            self.set_first_key(path, depth - 1, first.key)?;
        }
        self.merge_node(path, depth - 1)
    }

    /// Removes the pointer to the block right of that of `path` at `depth`.
    fn unlink_right(&mut self, path: &Path, depth: usize) -> Result<()> {
        let above = depth.checked_sub(1).and_then(|at| path.steps.get(at));
        let above = *above.ok_or_else(|| self.shape())?;
        self.remove_pointer(above.logical, above.index + 1)?;
        self.merge_node(path, depth - 1)
    }

    fn remove_pointer(&mut self, node: LogicalAddr, index: usize) -> Result<()> {
        let generation = self.cow.generation();
        let is_removed = self.blocks.edit(node, generation, |bytes| {
            NodeMut::new(bytes).remove(index..index + 1)
        })?;
        if is_removed {
            Ok(())
        } else {
            Err(self.shape())
        }
    }
}

/// How many of these items are to be moved to where `free` bytes are free, so that `short` bytes become free:
/// some more, so that the next item finds space as well. `None` if that is not possible.
fn worth_moving<'s>(
    sizes: impl Iterator<Item = &'s usize>,
    short: usize,
    free: usize,
) -> Option<usize> {
    let wanted = short.max(free / 2);
    let (mut moved, mut count) = (0, 0);
    for size in sizes {
        if moved >= wanted || moved + size > free {
            break;
        }
        moved += size;
        count += 1;
    }
    (count > 0 && moved >= short).then_some(count)
}
