//! Removal of items: empty and nearly empty blocks go.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Purpose, TreeEditor, balance};
use crate::ondisk::Key;
use crate::ondisk::leaf_edit::LeafMut;
use crate::ondisk::superblock::RootPointer;

/// Removes the items from `first` on that are in its leaf and not after `last`.
pub(super) fn from_leaf<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    first: Key,
    last: Key,
) -> Result<usize> {
    let path = editor.descend(first, Purpose::Change)?;
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let block = editor.own_block(step.logical)?;
    let leaf = block.leaf();
    let end = last
        .successor()
        .map_or(leaf.len(), |end| leaf.lower_bound(end));
    drop(block);
    let generation = editor.cow.generation();
    let is_removed = editor.blocks.edit(step.logical, generation, |bytes| {
        LeafMut::new(bytes).remove(step.index..end)
    })?;
    if !is_removed {
        return Err(editor.shape());
    }
    restore(editor, &path)?;
    Ok(end - step.index)
}

/// Restores keys and fill of the blocks of `path` after items were removed.
fn restore<C: CopyOnWrite>(editor: &mut TreeEditor<'_, C>, path: &Path) -> Result<()> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let first = editor.own_block(step.logical)?.leaf().key(0);
    match first {
        None if path.steps.len() == 1 => return Ok(()),
        None => remove_leaf(editor, path)?,
        Some(first) => {
            if step.index == 0 {
                editor.set_first_key(path, path.depth(), first)?;
            }
            balance::merge_leaf(editor, path)?;
        }
    }
    shrink(editor)
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
        let leaf_depth = path.depth();
        for (level, above) in (1..).zip(path.steps.iter().take(leaf_depth).rev()) {
            editor.free(above.logical, level)?;
        }
        editor.state.tree.root = RootPointer {
            logical: step.logical,
            generation: editor.cow.generation(),
            level: 0,
        };
        return Ok(());
    }
    for (level, below) in (0..).zip(path.steps.iter().skip(depth).rev()) {
        editor.free(below.logical, level)?;
    }
    balance::unlink(editor, path, depth)
}

fn is_only_child<C: CopyOnWrite>(
    editor: &TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
) -> Result<bool> {
    let above = depth.checked_sub(1).and_then(|at| path.steps.get(at));
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
