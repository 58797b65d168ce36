//! Removing names of inodes.

use std::sync::Arc;

use platter_vfs::{NameBuf, Result};

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
    let handle = directory.fs.begin(NAME_CREDITS, Purpose::Free)?;
    let mut states = States::lock(&[directory, victim]);
    let name = name.as_name();
    let is_gone = handle.whole(|handle| {
        handle.edit(directory.tree_id(), |editor| {
            entries::remove(directory, handle, editor, name, victim.id.number)
        })?;
        entries::update_size(directory, &mut states, name, false);
        let is_gone = drop_link(handle, &mut states, victim)?;
        states.store(handle)?;
        Ok(is_gone)
    })?;
    states.end();
    drop(handle);
    if is_gone {
        sync::drop_unnamed(&directory.fs, victim);
    }
    Ok(())
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
