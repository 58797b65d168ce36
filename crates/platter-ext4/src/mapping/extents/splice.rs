//! The only modification of a tree: replaces extents of a leaf by others, and updates the nodes
//! above. Full nodes are split, empty ones freed, and the root absorbs its only child if that fits.

use std::ops::Range;

use platter_vfs::Result;

use super::ExtentMap;
use super::node::{Entries, Node};
use super::path::{Level, Path};
use crate::mapping::change::{MapChange, SPACE_CREDITS};
use crate::ondisk::BlockNr;
use crate::ondisk::extent::node_capacity;
use crate::ondisk::extent::{Child, EXTENT_DEPTH_MAX, Extent, ExtentBlockRules, ExtentRule};

/// Returns the maximum number of blocks that a splice modifies in a tree of this depth: on every
/// level a node, its new sibling, and the metadata of allocating or freeing a block.
pub(in crate::mapping) fn splice_credits(depth: u16) -> u32 {
    (u32::from(depth) + 1) * (SPACE_CREDITS + 2)
}

/// Merges adjacent extents that are contiguous.
pub(super) fn coalesce(extents: &mut Vec<Extent>) {
    extents.dedup_by(|next, before| {
        let joined = before.joined(next);
        if let Some(joined) = joined {
            *before = joined;
        }
        joined.is_some()
    });
}

/// Replaces the extents `old` of the path's leaf by `new`.
///
/// # Errors
/// `NoSpace` before anything is changed.
pub(super) fn splice(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    mut path: Path,
    old: Range<usize>,
    new: Vec<Extent>,
) -> Result<()> {
    let Entries::Leaf(extents) = &mut path.leaf.node.entries else {
        return Err(map.corrupt(None, ExtentRule::Depth).into());
    };
    let is_at_end = old.end >= extents.len();
    let end = old.end.min(extents.len());
    extents.splice(old.start.min(end)..end, new);
    let spare = take_nodes(change, &path)?;
    store(map, change, path, is_at_end, spare).map_err(|error| change.handle.abort(error))
}

/// Stores the leaf and the changed nodes above it, from the leaf up.
fn store(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    path: Path,
    is_at_end: bool,
    spare: Vec<BlockNr>,
) -> Result<()> {
    let mut spare = spare.into_iter();
    let Path {
        mut above, leaf, ..
    } = path;
    let mut level = leaf;
    let mut is_at_end = is_at_end;
    while let Some(mut parent) = above.pop() {
        let (at, is_root, capacity) = (parent.at, above.is_empty(), parent.node.capacity);
        let Some((children, place)) = parent.node.children_mut().zip(level.place) else {
            return Err(map.corrupt(None, ExtentRule::Depth).into());
        };
        let Some(first) = level.node.first() else {
            change.free_node(place)?;
            children.remove(at);
            level = parent;
            continue;
        };
        let mut is_changed = is_root && children.len() == 1 && level.node.len() <= capacity;
        if let Some(child) = children.get_mut(at) {
            is_changed |= child.first != first;
            child.first = first;
        }
        if level.node.overflows() {
            is_at_end = split(map, change, &mut level, children, at, is_at_end, &mut spare)?;
            is_changed = true;
        }
        write(map, change, place, &level.node)?;
        if !is_changed {
            return Ok(());
        }
        level = parent;
    }
    store_root(map, change, level.node, &mut spare)
}

/// Moves entries of an overflowing node into a new one after it. Returns whether the node is
/// the last of its parent.
fn split(
    map: &ExtentMap,
    change: &mut MapChange<'_, '_>,
    level: &mut Level,
    siblings: &mut Vec<Child>,
    at: usize,
    is_at_end: bool,
    spare: &mut impl Iterator<Item = BlockNr>,
) -> Result<bool> {
    // A file that grows leaves full nodes.
    let kept = if is_at_end {
        level.node.capacity
    } else {
        level.node.len() / 2
    };
    let right = level.node.split_off(kept);
    let (Some(block), Some(first)) = (spare.next(), right.first()) else {
        return Err(map.corrupt(None, ExtentRule::Capacity).into());
    };
    create(map, change, block, &right)?;
    let is_last = at + 1 >= siblings.len();
    siblings.insert(at + 1, Child { first, block });
    Ok(is_last)
}

/// Stores the root; an overflowing one moves into a block, one level further down.
fn store_root(
    map: &mut ExtentMap,
    change: &mut MapChange<'_, '_>,
    mut root: Node,
    spare: &mut impl Iterator<Item = BlockNr>,
) -> Result<()> {
    if let Some(first) = root.first().filter(|_| root.overflows()) {
        let Some(block) = spare.next() else {
            return Err(map.corrupt(None, ExtentRule::Capacity).into());
        };
        let capacity = root.capacity;
        root.capacity = node_capacity(change.fs.geometry.block_bytes as usize);
        create(map, change, block, &root)?;
        root = Node {
            depth: root.depth + 1,
            capacity,
            entries: Entries::Inner(vec![Child { first, block }]),
        };
    } else if root.len() == 0 {
        root = Node::empty(root.capacity);
    }
    let root = absorb(map, change, root)?;
    root.encode(&mut map.root);
    change.inode.block = map.root;
    Ok(())
}

/// Absorbs the only child of a root, as long as it fits and can be freed.
fn absorb(map: &ExtentMap, change: &mut MapChange<'_, '_>, mut root: Node) -> Result<Node> {
    while let [child] = *root.children() {
        let buffer = map.read(change.fs, child, root.depth)?;
        let node = Node::new(&map.node(&buffer, Some(child))?, &buffer);
        let can_free = || change.check_freeable(&mut [(child.block, 1)]).is_ok();
        if node.len() > root.capacity || !can_free() {
            break;
        }
        change.free_node(child.block)?;
        root = Node {
            capacity: root.capacity,
            ..node
        };
    }
    Ok(root)
}

fn write(
    map: &ExtentMap,
    change: &mut MapChange<'_, '_>,
    block: BlockNr,
    node: &Node,
) -> Result<()> {
    let rules = ExtentBlockRules {
        geometry: &change.fs.geometry,
        inode_seed: map.inode_seed,
    };
    change.handle.edit(block, &rules, |bytes| {
        node.encode(bytes);
        Ok(())
    })
}

fn create(
    map: &ExtentMap,
    change: &mut MapChange<'_, '_>,
    block: BlockNr,
    node: &Node,
) -> Result<()> {
    let rules = ExtentBlockRules {
        geometry: &change.fs.geometry,
        inode_seed: map.inode_seed,
    };
    let mut bytes = vec![0; change.fs.geometry.block_bytes as usize];
    node.encode(&mut bytes);
    change.handle.create(block, &rules, bytes)?;
    Ok(())
}

/// Allocates the blocks that storing the path will need.
fn take_nodes(change: &mut MapChange<'_, '_>, path: &Path) -> Result<Vec<BlockNr>> {
    let mut count = 0;
    if path.leaf.node.overflows() {
        let full = |level: &&Level| level.node.len() >= level.node.capacity;
        count = 1 + path.above.iter().rev().take_while(full).count();
    }
    if count > path.above.len() && path.depth() >= EXTENT_DEPTH_MAX {
        // The tree has the maximum depth and is full.
        return Err(platter_vfs::Condition::NoSpace.into());
    }
    let near = path.leaf.place;
    let near = near.or_else(|| path.extents().first().map(|extent| extent.start));
    let goal = near.unwrap_or_default();
    let mut taken = Vec::with_capacity(count);
    for _ in 0..count {
        match change.alloc_node(goal) {
            Ok(block) => taken.push(block),
            Err(error) => {
                for block in taken {
                    change
                        .free_node(block)
                        .map_err(|error| change.handle.abort(error))?;
                }
                return Err(error);
            }
        }
    }
    Ok(taken)
}
