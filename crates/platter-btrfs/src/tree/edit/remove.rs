//! Removal of items: empty and nearly empty blocks go.

use std::ops::Range;

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Purpose, TreeEditor, balance};
use crate::ondisk::Key;
use crate::ondisk::leaf_edit::{self, LeafMut};
use crate::ondisk::superblock::RootPointer;

/// What is left in a leaf.
struct Left {
    /// Where it was removed.
    index: usize,
    first: Option<Key>,
    used_before: usize,
    used: usize,
}

/// Removes items of a leaf. `None` if there are none such.
fn remove(leaf: &mut LeafMut<'_>, range: Range<usize>, capacity: usize) -> Option<Left> {
    let used_before = capacity.saturating_sub(leaf.free_bytes());
    let index = range.start;
    leaf.remove(range).then(|| Left {
        index,
        first: leaf.leaf().key(0),
        used_before,
        used: capacity.saturating_sub(leaf.free_bytes()),
    })
}

/// Removes the item of a key, if there is one in a leaf that was changed before. Returns whether it did.
pub(super) fn from_recent<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    key: Key,
) -> Result<bool> {
    let Some(step) = editor.follow(key) else {
        return Ok(false);
    };
    let capacity = leaf_edit::capacity(editor.node_bytes());
    let left = editor.try_edit_leaf(step.logical, |leaf| {
        let index = leaf.leaf().lower_bound(key);
        let is_there = leaf.leaf().key(index) == Some(key);
        is_there.then(|| remove(leaf, index..index + 1, capacity))?
    })?;
    let Some(left) = left else {
        return Ok(false);
    };
    editor.has_begun = true;
    restore(editor, &left)?;
    Ok(true)
}

/// Removes the items from `first` on that are in its leaf and not after `last`. Returns how many there were, and
/// whether there are none in other leaves.
pub(super) fn from_leaf<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    first: Key,
    last: Key,
) -> Result<(usize, bool)> {
    let (step, block) = editor.descend(first, Purpose::Change)?;
    let leaf = block.leaf();
    let end = last
        .successor()
        .map_or(leaf.len(), |end| leaf.lower_bound(end));
    let is_end = end < leaf.len() || step.end.is_none_or(|end| last < end);
    drop(block);
    let capacity = leaf_edit::capacity(editor.node_bytes());
    let left = editor.edit_leaf(step.logical, |leaf| remove(leaf, step.index..end, capacity))?;
    restore(editor, &left.ok_or_else(|| editor.shape())?)?;
    Ok((end - step.index, is_end))
}

/// Restores keys and fill of the blocks of the current way after items were removed from its leaf.
fn restore<C: CopyOnWrite>(editor: &mut TreeEditor<'_, C>, left: &Left) -> Result<()> {
    let is_root = editor.root().level == 0;
    let capacity = leaf_edit::capacity(editor.node_bytes());
    let is_merge_due = !is_root && balance::is_merge_due(capacity, left.used_before, left.used);
    if is_root || left.index > 0 && !is_merge_due {
        // No node says anything of what is gone.
        return Ok(());
    }
    let path = editor.path()?;
    let has_fewer_blocks = match left.first {
        None => {
            remove_leaf(editor, &path)?;
            true
        }
        Some(first) => {
            if left.index == 0 {
                editor.set_first_key(&path, path.depth(), first)?;
            }
            is_merge_due && balance::merge_leaf(editor, &path, left.used)?
        }
    };
    if has_fewer_blocks {
        shrink(editor)?;
    }
    Ok(())
}

/// Removes the leaf of `path`, which is empty, and the nodes that only lead to it.
fn remove_leaf<C: CopyOnWrite>(editor: &mut TreeEditor<'_, C>, path: &Path) -> Result<()> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let mut depth = path.depth();
    while depth > 0 && is_only_child(editor, path, depth)? {
        depth -= 1;
    }
    if depth == 0 {
        // The tree is empty: the leaf is its root.
        editor.recent.forget_all();
        let leaf_depth = path.depth();
        for (level, above) in (1..).zip(path.steps().iter().take(leaf_depth).rev()) {
            editor.free(above.logical, level)?;
        }
        editor.state.tree.root = RootPointer {
            logical: step.logical,
            generation: editor.cow.generation(),
            level: 0,
        };
        return Ok(());
    }
    for (level, below) in (0..).zip(path.steps().iter().skip(depth).rev()) {
        editor.free(below.logical, level)?;
    }
    balance::unlink(editor, path, depth)
}

fn is_only_child<C: CopyOnWrite>(
    editor: &TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
) -> Result<bool> {
    let above = depth.checked_sub(1).and_then(|at| path.steps().get(at));
    let above = above.ok_or_else(|| editor.shape())?;
    Ok(editor.own_block(above.logical)?.node().len() == 1)
}

/// Removes nodes above the root of which only one pointer is left.
fn shrink<C: CopyOnWrite>(editor: &mut TreeEditor<'_, C>) -> Result<()> {
    loop {
        let root = editor.root();
        if root.level == 0 {
            return Ok(());
        }
        let (logical, level) = editor.own_root()?;
        let block = editor.own_block(logical)?;
        let pointer = block.node().pointer(0);
        let pointer = pointer.filter(|_| block.node().len() == 1);
        drop(block);
        let Some(pointer) = pointer else {
            return Ok(());
        };
        // A root is never shared.
        let child = editor.own_child(logical, 0, pointer, level - 1, None)?;
        editor.free(logical, level)?;
        editor.state.tree.root = RootPointer {
            logical: child,
            generation: editor.cow.generation(),
            level: level - 1,
        };
    }
}
