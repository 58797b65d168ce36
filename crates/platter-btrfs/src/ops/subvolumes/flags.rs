//! What is said of a subvolume as a whole: that it is read-only, the default one, or what it was received from.

use platter_ondisk::Uuid;
use platter_vfs::subvolumes::Transfer;
use platter_vfs::{Condition, Result};

use crate::context::Subvolume;
use crate::ondisk::features::Incompat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::{RootFlags, RootHistory};
use crate::ondisk::{Generation, TreeId};
use crate::ops::state::{NAME_CREDITS, Purpose};
use crate::ops::{SuperBlock, sync};
use crate::subvolume;
use crate::txn::Handle;

fn existing(superblock: &SuperBlock, id: TreeId) -> Result<Subvolume> {
    Ok(superblock
        .context()
        .subvolume(id)?
        .ok_or(Condition::NotFound)?)
}

/// See [`platter_vfs::Subvolumes::set_default`].
pub(super) fn set_default(superblock: &SuperBlock, id: TreeId) -> Result<()> {
    let _changing = superblock.subvolume_changes.lock();
    existing(superblock, id)?;
    let handle = superblock.begin(NAME_CREDITS, Purpose::Update)?;
    handle.add_feature(Incompat::DEFAULT_SUBVOL);
    subvolume::set_default(&handle, superblock.context().superblock.root_dir, id)
}

/// See [`platter_vfs::Subvolumes::set_read_only`]. One that takes changes is not any more what was received.
pub(super) fn set_read_only(superblock: &SuperBlock, id: TreeId, read_only: bool) -> Result<()> {
    if read_only {
        // What is in the cache is written while it may be.
        sync::write_dirty(superblock)?;
    }
    let _changing = superblock.subvolume_changes.lock();
    let found = existing(superblock, id)?;
    if found.is_read_only() == read_only {
        return Ok(());
    }
    if superblock.in_use.is_sent(id) {
        return Err(Condition::NotPermitted.into());
    }
    let handle = superblock.begin(NAME_CREDITS, Purpose::Update)?;
    handle.whole(|handle| {
        if !read_only {
            change_received(superblock, handle, &found, |history| {
                history.received_uuid = Uuid::nil();
            })?;
        }
        subvolume::change_root(handle, id, |item| {
            item.flags.set(RootFlags::READ_ONLY, read_only);
        })
    })?;
    drop(handle);
    superblock.context().forget_root_item(id);
    superblock.in_use.set_read_only(id, read_only);
    Ok(())
}

/// See [`platter_vfs::Subvolumes::set_received`].
pub(super) fn set_received(
    superblock: &SuperBlock,
    id: TreeId,
    uuid: Uuid,
    sent: Transfer,
) -> Result<()> {
    let _changing = superblock.subvolume_changes.lock();
    let found = existing(superblock, id)?;
    if found.is_read_only() {
        return Err(Condition::ReadOnly.into());
    }
    let handle = superblock.begin(NAME_CREDITS, Purpose::Update)?;
    handle.whole(|handle| {
        change_received(superblock, handle, &found, |history| {
            history.received_uuid = uuid;
            history.send_transaction = Generation(sent.generation);
            history.receive_transaction = handle.generation();
            history.sent = sent.time;
            history.received = superblock.clock.now();
        })
    })?;
    drop(handle);
    superblock.context().forget_root_item(id);
    Ok(())
}

fn change_received(
    superblock: &SuperBlock,
    handle: &Handle<'_>,
    found: &Subvolume,
    change: impl Fn(&mut RootHistory),
) -> Result<()> {
    let kind = ItemKind::UUID_RECEIVED_SUBVOL;
    let old = found.item.history.received_uuid;
    let mut history = found.item.history;
    change(&mut history);
    let new = history.received_uuid;
    if new != old {
        // It comes first because it may be refused.
        subvolume::add_uuid(handle, superblock.context(), new, kind, found.id)?;
        subvolume::remove_uuid(handle, superblock.context(), old, kind, found.id)?;
    }
    subvolume::change_root(handle, found.id, |item| change(&mut item.history))
}
