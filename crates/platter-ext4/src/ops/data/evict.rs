//! Inodes that lost their last name and now their last user: all they have becomes free.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::{Context, FileKind, Result, Timestamp};

use super::super::{Ext4Inode, InodeState};
use super::{reserve, steps};
use crate::alloc::FREE_INODE_CREDITS;
use crate::mapping::Progress;
use crate::ondisk::FileBlock;
use crate::ops::xattrs;
use crate::orphan::ORPHAN_CREDITS;
use crate::txn::Handle;
use crate::xattr::{Released, change_credits};
use crate::{alloc, inode};

/// Blocks that freeing an inode changes at most that has nothing left.
pub(in crate::ops) const DELETE_CREDITS: u32 = ORPHAN_CREDITS + FREE_INODE_CREDITS;

/// Frees what the inode holds, and the inode, unless that was tried before. It is among the
/// orphans until that is done.
///
/// An error leaves it there, for the next mount.
pub(in crate::ops) fn evict(node: &Ext4Inode) -> Result<()> {
    if node.is_deleted.swap(true, Ordering::AcqRel) {
        return Ok(());
    }
    node.pages.truncate(0);
    let (has_blocks, has_attributes) = {
        let state = node.state.read();
        (state.has_blocks(), state.inode.has_attributes())
    };
    if has_blocks {
        free_blocks(node, FileBlock(0)..FileBlock::MAX)?;
    }
    if has_attributes {
        free_attributes(node)?;
    }
    let fs = node.fs();
    inode::read_slot(fs, node.number)?;
    check_freeable(node)?;
    let mut handle = fs.begin(DELETE_CREDITS)?;
    let mut state = node.state.write();
    delete(node, &mut handle, &mut state, node.sb.clock.now())
}

/// Whether it has nothing but its number and the last of its names: no blocks, no attributes.
pub(in crate::ops) fn is_bare(node: &Ext4Inode) -> bool {
    let state = node.state.read();
    node.kind != FileKind::Directory && state.inode.links == 1 && state.is_bare()
}

/// Whether its inode can be freed. If not, [`evict`] returns why, and leaves it among the orphans.
pub(in crate::ops) fn is_freeable(node: &Ext4Inode) -> bool {
    check_freeable(node).is_ok()
}

fn check_freeable(node: &Ext4Inode) -> Result<()> {
    let is_dir = node.kind == FileKind::Directory;
    alloc::check_inode_freeable(node.sb.space()?, node.fs(), node.number, is_dir)
}

/// Frees an inode that has no name and is bare, in the transaction that removes its last name at
/// `now`: it is never an orphan. The caller has the only reference to it.
pub(in crate::ops) fn delete_bare(
    node: &Ext4Inode,
    handle: &mut Handle<'_>,
    state: &mut InodeState,
    now: Timestamp,
) -> Result<()> {
    node.is_deleted.store(true, Ordering::Release);
    delete(node, handle, state, now)
}

fn delete(
    node: &Ext4Inode,
    handle: &mut Handle<'_>,
    state: &mut InodeState,
    now: Timestamp,
) -> Result<()> {
    let (fs, space, register) = (node.fs(), node.sb.space()?, node.sb.register()?);
    // The kernel keeps 32 bits of it, and 0 would not be a deletion.
    let time = u32::try_from(now.seconds).unwrap_or(u32::MAX).max(1);
    state.inode.size_bytes = 0;
    state.inode.changed = state.inode.storable(now);
    (state.sync, state.data_sync) = (handle.transaction(), handle.transaction());
    state.quota.remove(fs, handle)?;
    register.remove_deleted(fs, handle, &state.inode, time)?;
    // From here on the number may be another file's.
    let was_dir = node.kind == FileKind::Directory;
    let freed = alloc::free_inode(space, fs, handle, node.number, was_dir);
    freed.map_err(|error| handle.abort(error))
}

fn free_attributes(node: &Ext4Inode) -> Result<()> {
    let context = Context::root();
    let mut credits = change_credits(node.fs());
    loop {
        let released = node.change(credits, |handle, state| {
            xattrs::begin(node, &context, handle, state)?.release()
        })?;
        match released {
            Released::All => return Ok(()),
            Released::Some { credits: next } => credits = next,
        }
    }
}

/// Takes blocks out of the map and gives them back.
fn free_blocks(node: &Ext4Inode, mut blocks: Range<FileBlock>) -> Result<()> {
    steps::run(node, 0, |handle, state, space| {
        reserve::forget(state, node.fs(), space, blocks.clone());
        let (map, mut change) = state.map_change(node.fs(), &**space, handle);
        match map.remove(&mut change, blocks.clone())? {
            Progress::Done => return Ok(true),
            Progress::More(next) => blocks.end = next,
        }
        Ok(false)
    })
}
