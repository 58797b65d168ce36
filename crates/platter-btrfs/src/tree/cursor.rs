//! A position in a tree, from which items are read in order of their keys.

use platter_vfs::Result;

use super::Tree;
use super::blocks::{TreeBlock, TreeBlocks};
use crate::ondisk::header::LEVEL_MAX;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr};

/// A position in a tree: at an item, or after the last.
///
/// Each block on the way is checked against the pointer that led to it: level, generation, tree, first
/// key, and that its keys end before the next pointer's. So the keys of the items ascend whatever the
/// bytes are, and no block is visited twice.
#[derive(Debug)]
pub struct Cursor<'t> {
    blocks: &'t TreeBlocks,
    tree: Tree,
    /// From the root down to a leaf; empty before the first search.
    path: Vec<Step>,
}

/// A block on the way, and the index in it.
#[derive(Debug)]
struct Step {
    block: TreeBlock,
    index: usize,
    /// The keys of the block are below it.
    end: Option<Key>,
}

impl<'t> Cursor<'t> {
    /// A cursor without a position.
    #[must_use]
    pub fn new(blocks: &'t TreeBlocks, tree: Tree) -> Self {
        Self {
            blocks,
            tree,
            path: Vec::with_capacity(usize::from(LEVEL_MAX)),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.tree
    }

    /// The address of the leaf that the position is in.
    #[must_use]
    pub fn leaf_addr(&self) -> Option<LogicalAddr> {
        self.path.last().map(|step| step.block.logical())
    }

    /// The blocks from the root down to the leaf that the position is in.
    pub fn path(&self) -> impl Iterator<Item = &TreeBlock> {
        self.path.iter().map(|step| &step.block)
    }

    /// Moves to the first item at or after `key`.
    pub fn seek(&mut self, key: Key) -> Result<()> {
        self.descend_to(key)?;
        self.skip_leaf_ends()
    }

    /// Moves to the last item at or before `key`. Returns whether there is one; without, the position
    /// is at the first item.
    pub fn seek_at_or_before(&mut self, key: Key) -> Result<bool> {
        self.seek(key)?;
        if self.key() == Some(key) {
            return Ok(true);
        }
        self.step_back()
    }

    /// The item at the position; `None` after the last.
    #[must_use]
    pub fn item(&self) -> Option<(Key, &[u8])> {
        let leaf = self.path.last()?;
        leaf.block.leaf().item(leaf.index)
    }

    /// The key of the item at the position.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        let leaf = self.path.last()?;
        leaf.block.leaf().key(leaf.index)
    }

    /// Moves to the next item.
    pub fn step(&mut self) -> Result<()> {
        if let Some(leaf) = self.path.last_mut() {
            leaf.index += 1;
        }
        self.skip_leaf_ends()
    }

    /// Moves to the item before. Returns `false`, without moving, if there is none.
    pub fn step_back(&mut self) -> Result<bool> {
        if let Some(leaf) = self.path.last_mut()
            && leaf.index > 0
        {
            leaf.index -= 1;
            return Ok(true);
        }
        let before = self.path.iter().rposition(|step| step.index > 0);
        let Some(depth) = before.filter(|depth| depth + 1 < self.path.len()) else {
            return Ok(false);
        };
        self.path.truncate(depth + 1);
        if let Some(step) = self.path.last_mut() {
            step.index -= 1;
        }
        self.descend(|block| match block.level() {
            0 => block.leaf().len().saturating_sub(1),
            _ => block.node().len().saturating_sub(1),
        })?;
        Ok(true)
    }

    /// Builds the path to the place of `key`, which may be after the last item of its leaf.
    fn descend_to(&mut self, key: Key) -> Result<()> {
        let is_inside = |step: &Step| {
            let leaf = step.block.leaf();
            leaf.key(0).is_some_and(|first| first <= key) && step.end.is_none_or(|end| key < end)
        };
        // Neighbours are mostly in the leaf that was read last.
        if let Some(step) = self.path.last_mut()
            && is_inside(step)
        {
            step.index = step.block.leaf().lower_bound(key);
            return Ok(());
        }
        self.path.clear();
        let block = self.blocks.read_root(self.tree)?;
        let choose = |block: &TreeBlock| match block.level() {
            0 => block.leaf().lower_bound(key),
            _ => block.node().index_for(key),
        };
        let index = choose(&block);
        self.path.push(Step {
            block,
            index,
            end: None,
        });
        self.descend(choose)
    }

    /// Follows pointers from the last block of the path to a leaf.
    fn descend(&mut self, choose: impl Fn(&TreeBlock) -> usize) -> Result<()> {
        while let Some(step) = self.path.last()
            && step.block.level() > 0
        {
            let node = step.block.node();
            let Some(pointer) = node.pointer(step.index) else {
                break;
            };
            if step.block.level() == 1 {
                self.blocks.read_leaf_ahead(&node, step.index);
            }
            let next = node.pointer(step.index + 1).map(|next| next.key);
            let end = next.or(step.end);
            let expected = Expected {
                level: Some(step.block.level() - 1),
                generation: Some(pointer.generation),
                tree: Some(self.tree.id),
                first_key: Some(pointer.key),
                end_key: end,
            };
            let block = self.blocks.read(pointer.logical, &expected)?;
            let index = choose(&block);
            self.path.push(Step { block, index, end });
        }
        Ok(())
    }

    /// Moves from the end of a leaf to the beginning of the next.
    fn skip_leaf_ends(&mut self) -> Result<()> {
        let Some(leaf) = self.path.last() else {
            return Ok(());
        };
        if leaf.index < leaf.block.leaf().len() {
            return Ok(());
        }
        let depth = self.path.len() - 1;
        let above = &self.path[..depth];
        let has_next = |step: &Step| step.index + 1 < step.block.node().len();
        // After the last item the position stays at the end of the last leaf.
        let Some(depth) = above.iter().rposition(has_next) else {
            return Ok(());
        };
        self.path.truncate(depth + 1);
        if let Some(step) = self.path.last_mut() {
            step.index += 1;
        }
        self.descend(|_| 0)
    }
}
