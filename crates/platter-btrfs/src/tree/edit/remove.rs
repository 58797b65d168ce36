//! Removal of items: empty and nearly empty blocks go.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Purpose, TreeEditor};
use crate::ondisk::Key;
use crate::ondisk::leaf_edit::LeafMut;
use crate::ondisk::superblock::RootPointer;

impl<C: CopyOnWrite> TreeEditor<'_, C> {
    /// Removes an item. Returns whether there was one.
    pub fn remove(&mut self, key: Key) -> Result<bool> {
        Ok(self.remove_range(key, key)? > 0)
    }

    /// Removes the items from `first` to `last`. Returns how many there were.
    pub fn remove_range(&mut self, first: Key, last: Key) -> Result<usize> {
        let mut removed = 0;
        // Nothing is copied where there is nothing to remove.
        while let Some(found) = self.first_key_from(first)?
            && found <= last
        {
            removed += self.remove_from_leaf(found, last)?;
        }
        Ok(removed)
    }

    fn first_key_from(&self, key: Key) -> Result<Option<Key>> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        Ok(cursor.key())
    }

    /// Removes the items from `first` on that are in its leaf and not after `last`.
    fn remove_from_leaf(&mut self, first: Key, last: Key) -> Result<usize> {
        let path = self.descend(first, Purpose::Change)?;
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let block = self.own_block(step.logical)?;
        let leaf = block.leaf();
        let end = last
            .successor()
            .map_or(leaf.len(), |end| leaf.lower_bound(end));
        drop(block);
        let generation = self.cow.generation();
        let is_removed = self.blocks.edit(step.logical, generation, |bytes| {
            LeafMut::new(bytes).remove(step.index..end)
        })?;
        if !is_removed {
            return Err(self.shape());
        }
        self.restore(&path)?;
        Ok(end - step.index)
    }

    /// Restores keys and fill of the blocks of `path` after items were removed.
    fn restore(&mut self, path: &Path) -> Result<()> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let first = self.own_block(step.logical)?.leaf().key(0);
        match first {
            None if path.steps.len() == 1 => return Ok(()),
            None => self.remove_leaf(path)?,
            Some(first) => {
                if step.index == 0 {
                    self.set_first_key(path, path.depth(), first)?;
                }
                self.merge_leaf(path)?;
            }
        }
        self.shrink()
    }

    /// Removes the leaf of `path`, which is empty, and the nodes that only lead to it.
    fn remove_leaf(&mut self, path: &Path) -> Result<()> {
        let step = path.leaf().ok_or_else(|| self.shape())?;
        let mut depth = path.depth();
        while depth > 0 && self.is_only_child(path, depth)? {
            depth -= 1;
        }
        if depth == 0 {
            // The tree is empty: the leaf is its root.
            let leaf_depth = path.depth();
            for (level, above) in (1..).zip(path.steps.iter().take(leaf_depth).rev()) {
                self.free(above.logical, level)?;
            }
            self.state.tree.root = RootPointer {
                logical: step.logical,
                generation: self.cow.generation(),
                level: 0,
            };
            return Ok(());
        }
        for (level, below) in (0..).zip(path.steps.iter().skip(depth).rev()) {
            self.free(below.logical, level)?;
        }
        self.unlink(path, depth)
    }

    fn is_only_child(&self, path: &Path, depth: usize) -> Result<bool> {
        let above = depth.checked_sub(1).and_then(|at| path.steps.get(at));
        let above = above.ok_or_else(|| self.shape())?;
        Ok(self.own_block(above.logical)?.node().len() == 1)
    }

    /// Removes nodes above the root of which only one pointer is left.
    fn shrink(&mut self) -> Result<()> {
        loop {
            let root = self.root();
            if root.level == 0 {
                return Ok(());
            }
            let (logical, level) = self.own_root()?;
            let block = self.own_block(logical)?;
            let pointer = block.node().pointer(0);
            let pointer = pointer.filter(|_| block.node().len() == 1);
            drop(block);
            let Some(pointer) = pointer else {
                return Ok(());
            };
            // A root is never shared.
            let child = self.own_child(logical, 0, pointer, level - 1, None)?;
            self.free(logical, level)?;
            self.state.tree.root = RootPointer {
                logical: child,
                generation: self.cow.generation(),
                level: level - 1,
            };
        }
    }
}
