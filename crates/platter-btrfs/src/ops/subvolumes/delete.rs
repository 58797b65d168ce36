//! Deleting subvolumes.

use std::sync::Arc;

use platter_vfs::namei::{self, may_delete};
use platter_vfs::{Condition, Name, Result};

use super::names;
use crate::directory;
use crate::ondisk::TreeId;
use crate::ondisk::dir_item::Location;
use crate::ondisk::key::ItemKind;
use crate::ops::state::{INODE_CREDITS, NAME_CREDITS, Purpose, States};
use crate::ops::{BtrfsInode, dead_subvolumes, sync};
use crate::subvolume;

/// Deletes the subvolume that a name of a directory names. The caller holds both inode locks.
pub(in crate::ops) fn delete_subvolume(
    directory: &BtrfsInode,
    name: Name<'_>,
    root: &Arc<BtrfsInode>,
) -> Result<()> {
    let (fs, id) = (&directory.fs, root.tree_id());
    let changing = fs.subvolume_changes.lock();
    let context = fs.context();
    let found = context.subvolume(id)?.ok_or(Condition::NotFound)?;
    if context.default_subvolume()? == id || root.id == fs.root || fs.in_use.is_sent(id) {
        return Err(Condition::NotPermitted.into());
    }
    let handle = fs.begin(2 * NAME_CREDITS + INODE_CREDITS, Purpose::Free)?;
    if subvolume::has_children(&handle, id)? {
        return Err(Condition::NotEmpty.into());
    }
    let mut states = States::lock(&[directory]);
    handle.whole(|handle| {
        names::remove(directory, handle, &mut states, name, id, false)?;
        states.store(handle)?;
        handle.insert_orphans(id)?;
        subvolume::mark_dead(handle, id)?;
        let history = found.item.history;
        for (uuid, kind) in [
            (history.uuid, ItemKind::UUID_SUBVOL),
            (history.received_uuid, ItemKind::UUID_RECEIVED_SUBVOL),
        ] {
            subvolume::remove_uuid(handle, context, uuid, kind, id)?;
        }
        Ok(())
    })?;
    states.end();
    drop(handle);
    context.forget_root_item(id);
    fs.in_use.set_deleted(id);
    drop(changing);
    // It has no name any more: callers that use it still can see that.
    root.state.write().item.links = 0;
    for inode in fs.inodes.live() {
        if inode.id.tree != id.0 {
            continue;
        }
        if inode.item().links == 0 {
            sync::drop_unnamed(fs, &inode);
        } else {
            // It may have users that read what they wrote: it stays on the dirty list until that is stored.
            fs.inodes.release(inode.id);
        }
    }
    dead_subvolumes::queue(fs, id)
}

/// Removes the name of a subvolume that is elsewhere, as snapshots have it. Returns `false` if the name is
/// none such.
pub(in crate::ops) fn remove_stub(directory: &BtrfsInode, name: Name<'_>) -> Result<bool> {
    let found = directory::lookup(
        directory.context(),
        directory.tree(),
        directory.id.number,
        name,
    )?;
    let Some(Location::Subvolume(child)) = found.map(|found| found.location) else {
        return Ok(false);
    };
    let child = TreeId(child);
    if names::find_root(directory, child, name)?.is_some() {
        return Ok(false);
    }
    namei::NamedInode::space(directory)?;
    let _order = directory.order.write();
    let state = namei::NamedInode::link_state(directory);
    may_delete(&state, &state)?;
    let handle = directory.fs.begin(NAME_CREDITS, Purpose::Free)?;
    let mut states = States::lock(&[directory]);
    handle.whole(|handle| {
        names::remove(directory, handle, &mut states, name, child, true)?;
        states.store(handle)
    })?;
    states.end();
    Ok(true)
}
