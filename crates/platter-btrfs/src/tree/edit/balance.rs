//! Neighbouring blocks: moving items to one of them, and merging with one.

use platter_vfs::Result;

use super::{CopyOnWrite, Path, Step, TreeEditor};
use crate::ondisk::leaf::Leaf;
use crate::ondisk::leaf_edit::{self, Items};
use crate::ondisk::node::KeyPointer;
use crate::ondisk::node_edit::{self, NodeMut};
use crate::ondisk::{Key, LogicalAddr};

/// A leaf that is less full is merged with a neighbour if both fit in one.
const LEAF_PARTS_MIN: usize = 3;
/// Parts of a leaf: whether it can be merged is looked at when one more of them has become empty.
const MERGE_PARTS: usize = 16;
/// Items are moved to a leaf if one such part of it is free: else the next item finds none again.
const FREE_PARTS: usize = 16;
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

/// The block left or right of that of `path` at `depth`, below the same node.
fn neighbour<C: CopyOnWrite>(
    editor: &TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
    is_right: bool,
) -> Result<Option<Neighbour>> {
    let Some(above) = depth.checked_sub(1).and_then(|at| path.steps().get(at)) else {
        return Ok(None);
    };
    let index = if is_right {
        Some(above.index + 1)
    } else {
        above.index.checked_sub(1)
    };
    let block = editor.own_block(above.logical)?;
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

fn own_neighbour<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    it: &Neighbour,
) -> Result<LogicalAddr> {
    editor.own_child(it.parent, it.index, it.pointer, it.level, it.end)
}

/// Makes space for an item of `needed` bytes in the leaf of `path` by moving others to a neighbour that
/// has space. Returns whether that was done.
pub(super) fn push_aside<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    needed: usize,
) -> Result<bool> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let block = editor.own_block(step.logical)?;
    let leaf = block.leaf();
    let count = leaf.len();
    if step.index >= count {
        return Ok(false);
    }
    let short = needed.saturating_sub(leaf_edit::free_bytes(block.bytes()));
    let least = leaf_edit::capacity(editor.node_bytes()) / FREE_PARTS;
    if let Some(right) = neighbour(editor, path, path.depth(), true)? {
        let free = free_bytes(editor, &right)?;
        // The leaf keeps an item, as only a root may be empty.
        let after = (step.index.max(1)..count).rev();
        let moved = (free >= least).then(|| worth_moving(leaf, after, short, free));
        if let Some(moved) = moved.flatten() {
            drop(block);
            move_right(editor, step, &right, count - moved..count)?;
            return Ok(true);
        }
    }
    if let Some(left) = neighbour(editor, path, path.depth(), false)? {
        let free = free_bytes(editor, &left)?;
        let moved = (free >= least).then(|| worth_moving(leaf, 0..step.index, short, free));
        if let Some(moved) = moved.flatten() {
            drop(block);
            move_left(editor, path, &left, moved)?;
            return Ok(true);
        }
    }
    Ok(false)
}

fn free_bytes<C: CopyOnWrite>(editor: &TreeEditor<'_, C>, it: &Neighbour) -> Result<usize> {
    let block = editor.child(it.pointer, it.level, it.end)?;
    Ok(leaf_edit::free_bytes(block.bytes()))
}

/// Moves the last items of a leaf to the beginning of the one right of it.
fn move_right<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    step: Step,
    right: &Neighbour,
    range: std::ops::Range<usize>,
) -> Result<()> {
    let target = own_neighbour(editor, right)?;
    let moved = items(editor, step.logical, range.clone())?;
    let is_inserted = editor.edit_leaf(target, |leaf| leaf.insert_items(0, &moved))?;
    let is_moved = is_inserted && editor.edit_leaf(step.logical, |leaf| leaf.remove(range))?;
    let first = moved.first_key().filter(|_| is_moved);
    let first = first.ok_or_else(|| editor.shape())?;
    let generation = editor.cow.generation();
    let old = editor.blocks.edit(right.parent, generation, |bytes| {
        NodeMut::new(bytes).set_key(right.index, first)
    })?;
    let old = old.ok_or_else(|| editor.shape())?;
    editor.recent.move_bound(target, old, first);
    Ok(())
}

/// Moves the first items of the leaf of `path` to the end of the one left of it.
fn move_left<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    left: &Neighbour,
    count: usize,
) -> Result<()> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let target = own_neighbour(editor, left)?;
    append(editor, step.logical, target, count)?;
    editor.edit_leaf(step.logical, |leaf| leaf.remove(0..count))?;
    let first = editor.own_block(step.logical)?.leaf().key(0);
    if let Some(first) = first {
        editor.set_first_key(path, path.depth(), first)?;
    }
    Ok(())
}

/// Copies the first `count` items of a leaf to the end of another one, which has the space.
fn append<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    from: LogicalAddr,
    to: LogicalAddr,
    count: usize,
) -> Result<()> {
    let len = editor.own_block(from)?.leaf().len();
    let moved = items(editor, from, 0..count.min(len))?;
    let is_appended = editor.edit_leaf(to, |leaf| {
        let end = leaf.leaf().len();
        leaf.insert_items(end, &moved)
    })?;
    is_appended.then_some(()).ok_or_else(|| editor.shape())
}

fn items<C: CopyOnWrite>(
    editor: &TreeEditor<'_, C>,
    logical: LogicalAddr,
    range: std::ops::Range<usize>,
) -> Result<Items> {
    let block = editor.own_block(logical)?;
    Items::of(&block.leaf(), range).ok_or_else(|| editor.shape())
}

/// Whether a leaf is to be merged with a neighbour if that is possible, after items were removed: when it becomes
/// nearly empty, and once in a while from then on.
pub(super) fn is_merge_due(capacity: usize, before: usize, after: usize) -> bool {
    let part = (capacity / MERGE_PARTS).max(1);
    let was_due = before * LEAF_PARTS_MIN < capacity;
    after * LEAF_PARTS_MIN < capacity && !(was_due && before / part == after / part)
}

/// Merges the leaf of `path`, in which so many bytes are used, with a neighbour, if both fit in one. Returns whether
/// that was done.
pub(super) fn merge_leaf<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    used: usize,
) -> Result<bool> {
    let step = path.leaf().ok_or_else(|| editor.shape())?;
    let capacity = leaf_edit::capacity(editor.node_bytes());
    if let Some(left) = neighbour(editor, path, path.depth(), false)?
        && used <= free_bytes(editor, &left)?
    {
        let target = own_neighbour(editor, &left)?;
        append(editor, step.logical, target, usize::MAX)?;
        editor.free(step.logical, 0)?;
        unlink(editor, path, path.depth())?;
        return Ok(true);
    }
    if let Some(right) = neighbour(editor, path, path.depth(), true)?
        && free_bytes(editor, &right)? + used >= capacity
    {
        let source = own_neighbour(editor, &right)?;
        append(editor, source, step.logical, usize::MAX)?;
        editor.free(source, 0)?;
        unlink_right(editor, path, path.depth())?;
        return Ok(true);
    }
    Ok(false)
}

/// Merges the node of `path` at `depth` with a neighbour, if it is nearly empty and both fit in one.
pub(super) fn merge_node<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
) -> Result<()> {
    let Some(step) = path.steps().get(depth).filter(|_| depth > 0) else {
        return Ok(());
    };
    let capacity = node_edit::capacity(editor.node_bytes());
    let block = editor.own_block(step.logical)?;
    let (len, level) = (block.node().len(), block.level());
    drop(block);
    if len * NODE_PARTS_MIN >= capacity {
        return Ok(());
    }
    if let Some(left) = neighbour(editor, path, depth, false)?
        && pointers(editor, &left)? + len <= capacity
    {
        let target = own_neighbour(editor, &left)?;
        append_pointers(editor, step.logical, target)?;
        editor.free(step.logical, level)?;
        return unlink(editor, path, depth);
    }
    if let Some(right) = neighbour(editor, path, depth, true)?
        && pointers(editor, &right)? + len <= capacity
    {
        let source = own_neighbour(editor, &right)?;
        append_pointers(editor, source, step.logical)?;
        editor.free(source, level)?;
        return unlink_right(editor, path, depth);
    }
    Ok(())
}

fn pointers<C: CopyOnWrite>(editor: &TreeEditor<'_, C>, it: &Neighbour) -> Result<usize> {
    let block = editor.child(it.pointer, it.level, it.end)?;
    Ok(block.node().len())
}

fn append_pointers<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    from: LogicalAddr,
    to: LogicalAddr,
) -> Result<()> {
    let pointers: Vec<KeyPointer> = editor.own_block(from)?.node().iter().collect();
    let fits = editor.edit_node(to, |node| {
        let end = node.node().len();
        node.insert(end, &pointers)
    })?;
    if fits { Ok(()) } else { Err(editor.shape()) }
}

/// Removes the pointer to the block of `path` at `depth`, which is not the only one of its node.
pub(super) fn unlink<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
) -> Result<()> {
    let above = depth.checked_sub(1).and_then(|at| path.steps().get(at));
    let above = *above.ok_or_else(|| editor.shape())?;
    remove_pointer(editor, above.logical, above.index)?;
    if above.index == 0 {
        let first = editor.own_block(above.logical)?.node().pointer(0);
        let first = first.ok_or_else(|| editor.shape())?;
        editor.set_first_key(path, depth - 1, first.key)?;
    }
    merge_node(editor, path, depth - 1)
}

/// Removes the pointer to the block right of that of `path` at `depth`.
fn unlink_right<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    path: &Path,
    depth: usize,
) -> Result<()> {
    let above = depth.checked_sub(1).and_then(|at| path.steps().get(at));
    let above = *above.ok_or_else(|| editor.shape())?;
    remove_pointer(editor, above.logical, above.index + 1)?;
    merge_node(editor, path, depth - 1)
}

fn remove_pointer<C: CopyOnWrite>(
    editor: &mut TreeEditor<'_, C>,
    node: LogicalAddr,
    index: usize,
) -> Result<()> {
    let is_removed = editor.edit_node(node, |node| node.remove(index..index + 1))?;
    if is_removed {
        Ok(())
    } else {
        Err(editor.shape())
    }
}

/// How many of these items are to be moved to where `free` bytes are free, so that `short` bytes become free:
/// some more, so that the next item finds space as well. `None` if that is not possible.
fn worth_moving(
    leaf: Leaf<'_>,
    items: impl Iterator<Item = usize>,
    short: usize,
    free: usize,
) -> Option<usize> {
    let wanted = short.max(free / 2);
    let (mut moved, mut count) = (0, 0);
    for index in items {
        let size = leaf.item_bytes(index);
        if moved >= wanted || moved + size > free {
            break;
        }
        moved += size;
        count += 1;
    }
    (count > 0 && moved >= short).then_some(count)
}
