//! The differences between two trees of which one may be a snapshot of the other: blocks that both have are not
//! read.

use std::cmp::Ordering;

use platter_vfs::Result;

use super::Tree;
use super::blocks::{TreeBlock, TreeBlocks};
use crate::ondisk::Key;
use crate::ondisk::tree_block::Expected;

/// An item that only one tree has, or that differs.
#[derive(Debug, Clone, Copy)]
pub struct Difference<'b> {
    /// Its key.
    pub key: Key,
    /// What the first tree has.
    pub old: Option<&'b [u8]>,
    /// What the second tree has.
    pub new: Option<&'b [u8]>,
}

/// A position in a tree: at an item, at a pointer, or after the last.
struct Walk<'t> {
    blocks: &'t TreeBlocks,
    tree: Tree,
    /// Called before each block that is read.
    before_read: &'t dyn Fn() -> Result<()>,
    /// From the root down; empty after the last item.
    path: Vec<Step>,
}

struct Step {
    block: TreeBlock,
    index: usize,
    /// The keys of the block are below it.
    end: Option<Key>,
}

impl Step {
    fn key(&self) -> Option<Key> {
        match self.block.level() {
            0 => self.block.leaf().key(self.index),
            _ => self.block.node().pointer(self.index).map(|it| it.key),
        }
    }
}

impl<'t> Walk<'t> {
    /// The position at the first pointer or item of the root.
    fn begin(
        blocks: &'t TreeBlocks,
        tree: Tree,
        before_read: &'t dyn Fn() -> Result<()>,
    ) -> Result<Self> {
        let expected = Expected {
            level: Some(tree.root.level),
            generation: Some(tree.root.generation),
            tree: Some(tree.id),
            ..Expected::default()
        };
        before_read()?;
        let block = blocks.read(tree.root.logical, &expected)?;
        let path = vec![Step {
            block,
            index: 0,
            end: None,
        }];
        let mut walk = Self {
            blocks,
            tree,
            before_read,
            path,
        };
        walk.leave_ends();
        Ok(walk)
    }

    fn key(&self) -> Option<Key> {
        self.path.last()?.key()
    }

    fn level(&self) -> u8 {
        self.path.last().map_or(0, |step| step.block.level())
    }

    /// The block that the position points to.
    fn child(&self) -> Option<(u64, u64)> {
        let step = self.path.last().filter(|step| step.block.level() > 0)?;
        let pointer = step.block.node().pointer(step.index)?;
        Some((pointer.logical.0, pointer.generation.0))
    }

    fn item(&self) -> Option<(Key, &[u8])> {
        let step = self.path.last().filter(|step| step.block.level() == 0)?;
        step.block.leaf().item(step.index)
    }

    /// Moves to the first item or pointer of the block that the position points to.
    fn descend(&mut self) -> Result<()> {
        let Some(step) = self.path.last() else {
            return Ok(());
        };
        (self.before_read)()?;
        let node = step.block.node();
        let Some(pointer) = node.pointer(step.index) else {
            return Ok(());
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
        self.path.push(Step {
            block,
            index: 0,
            end,
        });
        self.leave_ends();
        Ok(())
    }

    /// Moves on, at this level or, at the end of a block, above it.
    fn advance(&mut self) {
        if let Some(step) = self.path.last_mut() {
            step.index += 1;
        }
        self.leave_ends();
    }

    fn leave_ends(&mut self) {
        while let Some(step) = self.path.last()
            && step.key().is_none()
        {
            self.path.pop();
            if let Some(above) = self.path.last_mut() {
                above.index += 1;
            }
        }
    }
}

/// Passes all items of a tree to `sink`, or, with another one before it, the items that differ between them, in
/// order of their keys. Neither changes meanwhile. `before_read` is called before each block that is read, so that it
/// can end this where nothing differs for long.
pub fn compare(
    blocks: &TreeBlocks,
    old: Option<Tree>,
    new: Tree,
    before_read: &dyn Fn() -> Result<()>,
    sink: &mut dyn FnMut(Difference<'_>) -> Result<()>,
) -> Result<()> {
    if old.is_some_and(|old| old.root == new.root) {
        return Ok(());
    }
    let mut new = Walk::begin(blocks, new, before_read)?;
    let mut old = match old {
        Some(old) => Some(Walk::begin(blocks, old, before_read)?),
        None => None,
    };
    loop {
        let old_key = old.as_ref().and_then(Walk::key);
        let old_level = old.as_ref().map_or(0, Walk::level);
        let order = match (old_key, new.key()) {
            (None, None) => return Ok(()),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            (Some(old), Some(new)) => old.cmp(&new),
        };
        let both = old_key.is_some() && new.key().is_some();
        // The one that is further up goes down; of two nodes, that which is before, or both.
        let new_goes = new.level() > 0 && (!both || new.level() > old_level);
        let old_goes = old_level > 0 && (!both || old_level > new.level());
        if let Some(old) = old.as_mut().filter(|_| old_goes) {
            old.descend()?;
            continue;
        }
        if new_goes {
            new.descend()?;
            continue;
        }
        let is_item = new.level() == 0 && old_level == 0;
        match (order, &mut old) {
            (Ordering::Less, Some(old)) if is_item => {
                if let Some((key, data)) = old.item() {
                    sink(Difference {
                        key,
                        old: Some(data),
                        new: None,
                    })?;
                }
                old.advance();
            }
            (Ordering::Less, Some(old)) => old.descend()?,
            (Ordering::Equal, Some(old)) if is_item => {
                if let (Some((key, before)), Some((_, after))) = (old.item(), new.item())
                    && before != after
                {
                    sink(Difference {
                        key,
                        old: Some(before),
                        new: Some(after),
                    })?;
                }
                old.advance();
                new.advance();
            }
            (Ordering::Equal, Some(old)) if old.child() == new.child() => {
                old.advance();
                new.advance();
            }
            (Ordering::Equal, Some(old)) => {
                old.descend()?;
                new.descend()?;
            }
            _ if is_item => {
                if let Some((key, data)) = new.item() {
                    sink(Difference {
                        key,
                        old: None,
                        new: Some(data),
                    })?;
                }
                new.advance();
            }
            _ => new.descend()?,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::cell::Cell;
    use std::collections::BTreeMap;

    use platter_vfs::{Condition, Error};

    use super::*;
    use crate::ondisk::key::ItemKind;
    use crate::tree::tests::{Sample, tree};

    fn key(object: u64) -> Key {
        Key::new(object, ItemKind::INODE_ITEM, 0)
    }

    type Items = BTreeMap<u64, Vec<u8>>;

    /// The object of a key, and whether the first tree and the second one have it.
    type Found = Vec<(u64, bool, bool)>;

    fn differences(old: Option<&Items>, new: &Items, per_leaf: [usize; 2]) -> Found {
        differences_until(old, new, per_leaf, &|| Ok(())).unwrap()
    }

    /// What differs between trees with these items, whose leaves hold `per_leaf` of them.
    fn differences_until(
        old: Option<&Items>,
        new: &Items,
        per_leaf: [usize; 2],
        before_read: &dyn Fn() -> Result<()>,
    ) -> Result<Found> {
        let mut sample = Sample::new();
        let mut build = |items: &Items, per_leaf: usize| {
            let items: Vec<_> = items
                .iter()
                .map(|(at, data)| (key(*at), &data[..]))
                .collect();
            let leaves: Vec<_> = items
                .chunks(per_leaf)
                .map(|items| sample.leaf(items))
                .collect();
            let root = if leaves.len() == 1 {
                return (leaves[0], 0);
            } else {
                sample.node(1, &leaves)
            };
            (root, 1)
        };
        let old = old.map(|old| build(old, per_leaf[0]));
        let new = build(new, per_leaf[1]);
        let blocks = sample.blocks();
        let mut found = Vec::new();
        let as_tree = |(root, level)| tree(root, level);
        let (old, new) = (old.map(as_tree), as_tree(new));
        compare(&blocks, old, new, before_read, &mut |it| {
            found.push((it.key.object, it.old.is_some(), it.new.is_some()));
            Ok(())
        })?;
        Ok(found)
    }

    fn items(objects: &[(u64, &str)]) -> Items {
        let all = objects.iter();
        all.map(|(at, data)| (*at, data.as_bytes().to_vec()))
            .collect()
    }

    #[test]
    fn differences_are_those_of_the_items() {
        let sets = [
            items(&[(1, "a")]),
            items(&[(1, "a"), (2, "b"), (3, "c"), (5, "e"), (8, "h")]),
            items(&[(2, "b"), (3, "x"), (4, "d"), (5, "e")]),
            items(&[(6, "f"), (7, "g"), (8, "h"), (9, "i")]),
            (0..60).map(|at| (at, vec![0; 4])).collect(),
            (0..60)
                .map(|at| (at, vec![u8::from(at == 31); 4]))
                .collect(),
        ];
        for old in &sets {
            for new in &sets {
                let mut expected = Vec::new();
                let mut all: Vec<_> = old.keys().chain(new.keys()).collect();
                all.sort_unstable();
                all.dedup();
                for at in all {
                    let (before, after) = (old.get(at), new.get(at));
                    if before != after {
                        expected.push((*at, before.is_some(), after.is_some()));
                    }
                }
                for per_leaf in [[2, 2], [3, 2], [100, 2], [2, 100], [100, 100]] {
                    let found = differences(Some(old), new, per_leaf);
                    assert_eq!(found, expected, "{per_leaf:?}");
                }
            }
        }
        let all = differences(None, &sets[1], [2, 2]);
        assert_eq!(all.len(), 5);
        assert!(all.iter().all(|&(_, old, new)| !old && new));
    }

    #[test]
    fn comparison_of_equal_trees_can_be_ended() {
        let same: Items = (0..200).map(|at| (at, vec![0; 4])).collect();
        let read_until = |reads_max: u32| {
            let reads = Cell::new(0);
            let found = differences_until(Some(&same), &same, [2, 2], &|| {
                reads.set(reads.get() + 1);
                if reads.get() > reads_max {
                    return Err(Condition::Stale.into());
                }
                Ok(())
            });
            (reads.get(), found)
        };
        // Two trees that have no block in common: of each, a root and 100 leaves.
        let (reads, found) = read_until(u32::MAX);
        assert_eq!((reads, found.unwrap()), (202, Vec::new()));
        let (reads, found) = read_until(5);
        assert_eq!(reads, 6);
        assert!(matches!(found, Err(Error::Condition(Condition::Stale))));
    }
}
