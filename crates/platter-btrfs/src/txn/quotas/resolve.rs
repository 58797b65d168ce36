//! Usage by the subvolumes that reach an extent: before the commit, references are followed in the trees of the last one, and after it
//! in those of this one. So nothing has to be known of what happened in between.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::Quotas;
use crate::context::TreesRule;
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};
use crate::qgroup::{Moves, Resolver, Sets, Uncounted};
use crate::tree::{Cursor, Tree, TreeBlock};
use crate::txn::{WriteContext, trees};

/// The data that a leaf refers to, as often as it does.
pub(super) fn data_of(fs: &WriteContext, leaf: &TreeBlock) -> Result<Vec<LogicalAddr>> {
    let sector_bytes = fs.context.superblock.sector_bytes;
    let mut data = Vec::new();
    for (key, item) in leaf.leaf().iter() {
        if key.kind != ItemKind::EXTENT_DATA {
            continue;
        }
        let locus = Locus::block(leaf.logical().0).at_key(key.into());
        let extent = FileExtent::decode(item, key.offset, sector_bytes, locus)?;
        if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind {
            data.push(place.logical);
        }
    }
    Ok(data)
}

/// Visits the extents below the root of a tree, blocks and data: each as often as something refers to it.
fn walk(
    fs: &WriteContext,
    root: RootPointer,
    blocks_max: usize,
    visit: &mut dyn FnMut(LogicalAddr) -> Result<(), Uncounted>,
) -> Result<(), Uncounted> {
    let mut left = blocks_max;
    let expected = Expected {
        level: Some(root.level),
        generation: Some(root.generation),
        ..Expected::default()
    };
    let mut waiting = vec![(root.logical, expected)];
    while let Some((logical, expected)) = waiting.pop() {
        left = left.checked_sub(1).ok_or(Uncounted::Snapshot)?;
        let block = fs.blocks().read(logical, &expected)?;
        let Some(below) = block.level().checked_sub(1) else {
            data_of(fs, &block)?.into_iter().try_for_each(&mut *visit)?;
            continue;
        };
        for pointer in block.node().iter() {
            visit(pointer.logical)?;
            let expected = Expected {
                level: Some(below),
                generation: Some(pointer.generation),
                first_key: Some(pointer.key),
                ..Expected::default()
            };
            waiting.push((pointer.logical, expected));
        }
    }
    Ok(())
}

/// Counts the extents that were traced.
pub(super) fn count_traced(
    fs: &WriteContext,
    quotas: &Quotas,
    traced: &BTreeSet<LogicalAddr>,
) -> Result<(), Uncounted> {
    let extents_before = Tree {
        id: TreeId::EXTENT,
        root: fs.tree(TreeId::EXTENT)?.commit_root(),
    };
    let extents_now = fs.tree(TreeId::EXTENT)?.view().now.tree;
    let find_before = |id| commit_root_of(fs, id);
    let find_now = |id| root_now(fs, id);
    let left = Cell::new(quotas.limits.looks_max);
    let mut before = Resolver::new(fs.blocks(), extents_before, &find_before, &left);
    let mut now = Resolver::new(fs.blocks(), extents_now, &find_now, &left);
    let (mut sets, mut moves) = (Sets::default(), Moves::default());
    for address in traced {
        let (old, old_bytes) = before.subvolumes_of(&mut sets, *address)?;
        let (new, new_bytes) = now.subvolumes_of(&mut sets, *address)?;
        // The same extent, if it is in both: freed space is not used again before the commit.
        moves.add(old, new, old_bytes.max(new_bytes));
    }
    let mut groups = quotas.groups.lock();
    groups.apply(&sets, &moves, &quotas.limits)
}

/// Counts all that the source of a snapshot reaches as reached by the snapshot as well.
pub(super) fn count_shared(
    fs: &WriteContext,
    quotas: &Quotas,
    source: TreeId,
    snapshot: TreeId,
) -> Result<(), Uncounted> {
    let extents = fs.tree(TreeId::EXTENT)?.view().now.tree;
    let find = |id| root_now(fs, id);
    let left = Cell::new(quotas.limits.looks_max);
    let mut now = Resolver::new(fs.blocks(), extents, &find, &left);
    let (mut sets, mut moves) = (Sets::default(), Moves::default());
    let none = sets.of([].into()).ok_or(Uncounted::Subvolumes)?;
    let alone = sets.of([snapshot].into()).ok_or(Uncounted::Subvolumes)?;
    moves.add(none, alone, fs.node_bytes());
    let root = fs.tree(source)?.view().now.tree.root;
    let mut seen = HashSet::new();
    walk(fs, root, quotas.limits.walk_blocks_max, &mut |address| {
        if seen.insert(address) {
            if seen.len() > quotas.limits.traced_max {
                return Err(Uncounted::Snapshot);
            }
            let (set, bytes) = now.subvolumes_of(&mut sets, address)?;
            let more = sets.union(set, alone).ok_or(Uncounted::Subvolumes)?;
            moves.add(set, more, bytes);
        }
        Ok(())
    })?;
    let mut groups = quotas.groups.lock();
    groups.apply(&sets, &moves, &quotas.limits)
}

/// The root of a tree in the transaction before; `None` if there was none.
fn commit_root_of(fs: &WriteContext, id: TreeId) -> Result<Option<RootPointer>> {
    let root = fs.tree(TreeId::ROOT)?.commit_root();
    let tree = Tree {
        id: TreeId::ROOT,
        root,
    };
    root_in(fs, tree, id)
}

/// The root of a tree now; `None` if there is none.
fn root_now(fs: &WriteContext, id: TreeId) -> Result<Option<RootPointer>> {
    let tree = fs.tree(TreeId::ROOT)?.view().now.tree;
    let stored = root_in(fs, tree, id)?;
    let open = trees::root_of_open(fs, id);
    Ok(stored.map(|stored| open.unwrap_or(stored)))
}

fn root_in(fs: &WriteContext, root_tree: Tree, id: TreeId) -> Result<Option<RootPointer>> {
    let mut cursor = Cursor::new(fs.blocks(), root_tree);
    let last = Key::new(id.0, ItemKind::ROOT_ITEM, u64::MAX);
    if !cursor.seek_at_or_before(last)? {
        return Ok(None);
    }
    let is_it = |key: Key| key.object == id.0 && key.kind == ItemKind::ROOT_ITEM;
    let Some((key, data)) = cursor.item().filter(|(key, _)| is_it(*key)) else {
        return Ok(None);
    };
    let sector_bytes = fs.context.superblock.sector_bytes;
    let item = RootItem::decode(data, sector_bytes, root_tree.locus(key))?;
    if item.root.logical.0 == 0 {
        return Err(Corrupt::new(root_tree.locus(key), TreesRule::MissingTree).into());
    }
    Ok(Some(item.root))
}
