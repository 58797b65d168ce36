//! Splitting of leaves and nodes.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Step, TreeEditor};
use crate::ondisk::leaf::{self, ITEM_BYTES, Leaf};
use crate::ondisk::leaf_edit::{self, Items, LeafMut};
use crate::ondisk::node::{self, KeyPointer};
use crate::ondisk::{Key, LogicalAddr};

/// Splits the leaf of `path` for an item that goes to where the path leads. Returns whether it was
/// inserted as well, which it is where it is alone in a leaf.
pub(super) fn split_leaf<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    key: Key,
    data: &[u8],
) -> Result<bool> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    if path.depth() == 0 {
        // The next search finds a node above it.
        return editor.grow().map(|()| false);
    }
    let block = editor.own_block(step.logical)?;
    let capacity = leaf_edit::capacity(editor.node_bytes());
    let needed = data.len() + ITEM_BYTES;
    let at = split_point(block.leaf(), step.index, needed, capacity);
    let count = block.leaf().len();
    let moved = Items::of(&block.leaf(), at..count);
    drop(block);
    let first = moved.as_ref().and_then(Items::first_key).unwrap_or(key);
    let (header, mut bytes) = editor.new_block(step.logical, 0, first)?;
    let is_encoded = leaf::encode(&mut bytes, &header, []) && {
        let mut leaf = LeafMut::new(&mut bytes);
        match &moved {
            Some(moved) => leaf.insert_items(0, moved),
            None => leaf.insert(0, key, data),
        }
    };
    if !is_encoded {
        return Err(editor.shape());
    }
    editor.blocks.create(header.logical, bytes)?;
    insert_pointer(editor, path, path.depth(), first, header.logical)?;
    if moved.is_none() {
        return Ok(true);
    }
    let is_emptied = at == 0;
    editor.edit_leaf(step.logical, |leaf| {
        leaf.remove(at..count);
        if is_emptied {
            leaf.insert(0, key, data);
        }
    })?;
    if is_emptied {
        editor.set_first_key(path, path.depth(), key)?;
    }
    Ok(is_emptied)
}

/// Inserts a pointer to a new block after that of `path` at `depth`.
fn insert_pointer<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
    key: Key,
    logical: LogicalAddr,
) -> Result<()> {
    let generation = editor.cow.generation();
    let above = depth.checked_sub(1).and_then(|at| path.steps().get(at));
    let above: &Step = above.ok_or_else(|| editor.shape())?;
    let pointer = KeyPointer {
        key,
        logical,
        generation,
    };
    let (logical, after) = (above.logical, above.index + 1);
    let is_inserted = editor.edit_node(logical, |node| node.insert(after, &[pointer]))?;
    if is_inserted {
        Ok(())
    } else {
        Err(editor.shape())
    }
}

/// Splits the last node of `path`, above which the nodes have space, in half.
pub(super) fn split_node<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
) -> Result<()> {
    if path.depth() == 0 {
        return editor.grow();
    }
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let block = editor.own_block(step.logical)?;
    let level = block.level();
    let at = block.node().len() / 2;
    let moved: Vec<KeyPointer> = block.node().iter().skip(at).collect();
    drop(block);
    let first = moved.first().map(|pointer| pointer.key);
    let first = first.ok_or_else(|| editor.shape())?;
    let (header, mut bytes) = editor.new_block(step.logical, level, first)?;
    if !node::encode(&mut bytes, &header, &moved) {
        return Err(editor.shape());
    }
    editor.blocks.create(header.logical, bytes)?;
    editor.edit_node(step.logical, |node| node.remove(at..at + moved.len()))?;
    insert_pointer(editor, path, path.depth(), first, header.logical)
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
    let sizes = (0..count).map(|index| leaf.item_bytes(index));
    let total: usize = sizes.clone().sum();
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
