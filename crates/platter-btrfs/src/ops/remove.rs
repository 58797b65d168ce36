//! Removing names of inodes.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, NameBuf, Result};

use super::state::{NAME_CREDITS, Purpose, States};
use super::{BtrfsInode, entries, sync};
use crate::inode;
use crate::txn::Handle;

/// Takes the name of `victim` out of a directory. The caller holds both inode locks.
pub(super) fn unlink(
    directory: &BtrfsInode,
    name: &NameBuf,
    victim: &Arc<BtrfsInode>,
) -> Result<()> {
    let fs = &directory.fs;
    // An inode without other users is deleted at once. Lookups from here on wait until it is gone.
    let is_ours = is_bare(victim) && fs.inodes.withdraw(victim.id, victim) && is_bare(victim);
    let handle = fs.begin(NAME_CREDITS, Purpose::Free)?;
    let mut states = States::lock(&[directory, victim]);
    let name = name.as_name();
    let is_gone = handle.whole(|handle| {
        let number = victim.id.number;
        let is_deleted = handle.edit(directory.tree_id(), |editor| {
            if is_ours {
                return entries::remove_last(directory, handle, editor, name, number);
            }
            entries::remove(directory, handle, editor, name, number)?;
            Ok(false)
        })?;
        entries::update_size(directory, &mut states, name, false);
        if is_deleted {
            victim.is_deleted.store(true, Ordering::Release);
            states.item(victim).links = 0;
            states.store_item(handle, directory)?;
            return Ok(true);
        }
        let is_gone = drop_link(handle, &mut states, victim)?;
        states.store(handle)?;
        Ok(is_gone)
    })?;
    states.end();
    drop(handle);
    if is_gone {
        sync::drop_unnamed(fs, victim);
    }
    Ok(())
}

/// Whether an inode has nothing in memory, and no name but one.
fn is_bare(inode: &BtrfsInode) -> bool {
    let state = inode.state.read();
    inode.kind != FileKind::Directory
        && state.item.links == 1
        && state.delayed.is_empty()
        && inode.pages.page_count() == 0
}

/// Counts a name less, and makes an inode that lost its last an orphan. Returns whether it did.
pub(super) fn drop_link(
    handle: &Handle<'_>,
    states: &mut States<'_>,
    inode: &BtrfsInode,
) -> Result<bool> {
    let item = states.item(inode);
    item.links = item.links.saturating_sub(1);
    item.changed = inode.fs.clock.now();
    let is_gone = item.links == 0;
    if is_gone && !handle.delay_orphan(inode.tree_id(), inode.id.number) {
        handle.edit(inode.tree_id(), |editor| {
            inode::change::add_orphan(editor, inode.id.number)
        })?;
    }
    Ok(is_gone)
}
