//! Inode items that operations change in memory: the tree is changed once for each, by the commit, or when there are
//! many.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::{Handle, OpenTree, WriteContext};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, TreeId};
use crate::tree::Versions;

/// The most inodes of a subvolume that wait.
const WAITING_MAX: usize = 512;

/// Says what the item of an inode, which the tree has, holds from now on. Space to change it is kept of what the
/// handle has reserved.
///
/// # Errors
/// Those of changing the tree; the transaction is aborted.
pub(crate) fn set_inode(
    handle: &Handle<'_>,
    tree: TreeId,
    number: u64,
    item: &InodeItem,
) -> Result<()> {
    let fs = handle.fs;
    fs.inodes_recorded.fetch_add(1, Ordering::Relaxed);
    let key = Key::new(number, ItemKind::INODE_ITEM, 0);
    let disk = item.encode();
    let open = fs.tree(tree)?;
    let mut versions = open.lock();
    let Versions {
        now,
        recent,
        delayed,
        ..
    } = &mut *versions;
    handle.has_changed.store(true, Ordering::Relaxed);
    if delayed.replace(number, disk) {
        return Ok(());
    }
    // A leaf of the transaction stays its own: nothing is copied, and items in it are not split.
    let blocks = if recent.has_leaf(handle.generation, key) {
        0
    } else {
        u32::from(now.tree.root.level) + 1
    };
    if !spend_blocks(handle, blocks) {
        drop(versions);
        fs.inode_items_written.fetch_add(1, Ordering::Relaxed);
        return handle.edit(tree, |editor| editor.set(key, disk.as_bytes()));
    }
    fs.transactions
        .change(0, |running| running.delayed_blocks += blocks);
    delayed.add(number, disk, blocks);
    let are_many = delayed.len() >= WAITING_MAX;
    drop(versions);
    if are_many {
        return handle.whole(|handle| write_tree(fs, handle.generation, tree));
    }
    Ok(())
}

/// Leaves so many blocks of the reservation to what comes after the handle. Returns `false` if it has less.
fn spend_blocks(handle: &Handle<'_>, blocks: u32) -> bool {
    let bytes = u64::from(blocks) * handle.fs.node_bytes();
    let left = |reserved: u64| reserved.checked_sub(bytes);
    handle
        .reserved_bytes
        .fetch_update(Ordering::Relaxed, Ordering::Relaxed, left)
        .is_ok()
}

/// Changes the trees for all that waits. The transaction stays the running one meanwhile.
pub(super) fn write_all(fs: &WriteContext, generation: Generation) -> Result<()> {
    for (id, tree) in waiting(fs) {
        write_open(fs, generation, (id, &tree))?;
    }
    Ok(())
}

/// Changes the trees for all that waits, which needs less space than is reserved for it. The caller has no handle.
/// Returns whether space was returned.
pub(super) fn write_for_space(fs: &WriteContext) -> Result<bool> {
    let reserves = |running: &super::Running| running.delayed_blocks > 0;
    if !fs.transactions.inspect(reserves) {
        return Ok(false);
    }
    // As a handle, so that the transaction stays the running one.
    let Some(generation) = fs.transactions.gate().enter(0, u32::MAX) else {
        return Ok(false);
    };
    let written = write_all(fs, generation.into()).inspect_err(|error| fs.abort(error));
    fs.transactions.end(0);
    written.map(|()| true)
}

/// Forgets those of a tree that is dropped.
pub(super) fn forget(fs: &WriteContext, id: TreeId) -> Result<()> {
    let open = fs.tree(id)?;
    let mut versions = open.lock();
    versions.delayed.cancel_all();
    release(fs, versions.delayed.take_released());
    Ok(())
}

/// Returns the reservation of so many blocks.
pub(super) fn release(fs: &WriteContext, blocks: u32) {
    if blocks == 0 {
        return;
    }
    fs.transactions
        .change(0, |running| running.delayed_blocks -= blocks);
    fs.reservations
        .release_metadata(u64::from(blocks) * fs.node_bytes());
}

/// The trees with inodes that wait. One may be dropped meanwhile: then none waits in it.
fn waiting(fs: &WriteContext) -> Vec<(TreeId, Arc<OpenTree>)> {
    let mut open: Vec<(TreeId, Arc<OpenTree>)> = {
        let trees = fs.trees.lock();
        let subvolumes = trees.iter().filter(|(id, _)| id.is_subvolume());
        subvolumes
            .map(|(id, tree)| (*id, Arc::clone(tree)))
            .collect()
    };
    open.retain(|(_, tree)| !tree.view().delayed.is_empty());
    open
}

fn write_tree(fs: &WriteContext, generation: Generation, id: TreeId) -> Result<()> {
    let tree = fs.tree(id)?;
    write_open(fs, generation, (id, &tree))
}

fn write_open(
    fs: &WriteContext,
    generation: Generation,
    (id, tree): (TreeId, &OpenTree),
) -> Result<()> {
    fs.edit_open(generation, (id, tree), |editor| {
        let count = editor.write_delayed()? as u64;
        fs.inode_items_written.fetch_add(count, Ordering::Relaxed);
        Ok(())
    })
}
