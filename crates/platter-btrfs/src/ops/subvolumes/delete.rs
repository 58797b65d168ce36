//! Deleting subvolumes, and dropping their trees afterwards, in steps.

use std::sync::Arc;

use platter_vfs::namei::{self, may_delete};
use platter_vfs::{Condition, Name, Result};

use crate::context::Subvolume;
use crate::directory;
use crate::directory::change::SubvolumeName;
use crate::ondisk::dir_item::Location;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, TreeId};
use crate::ops::state::{INODE_CREDITS, NAME_CREDITS, Purpose, States, touch_contents};
use crate::ops::{BtrfsInode, SuperBlock};
use crate::subvolume;
use crate::txn::{Handle, PruneProgress};

/// Tree blocks that a step of dropping a tree changes besides those that it frees.
const STEP_CREDITS: u32 = 64;

/// A subvolume whose tree is to be dropped.
#[derive(Debug, Clone, Copy)]
pub(in crate::ops) struct DeadSubvolume {
    id: TreeId,
    /// The transaction that made it a snapshot.
    since: Generation,
    progress: PruneProgress,
}

impl BtrfsInode {
    /// A name of a subvolume in this directory.
    pub(in crate::ops) fn subvolume_name<'n>(
        &self,
        name: &'n Name<'_>,
        child: TreeId,
    ) -> SubvolumeName<'n> {
        SubvolumeName {
            dir: self.id.number,
            name: name.as_bytes(),
            child,
        }
    }

    /// Removes the name of a subvolume from this directory. The state of the directory is locked; it is not stored.
    pub(in crate::ops) fn remove_subvolume(
        &self,
        handle: &Handle<'_>,
        states: &mut States<'_>,
        name: Name<'_>,
        child: TreeId,
        is_stub: bool,
    ) -> Result<()> {
        let entry = self.subvolume_name(&name, child);
        handle.require_commit();
        handle.edit(self.tree_id(), |editor| entry.remove(editor))?;
        if !is_stub {
            subvolume::remove_name(handle, self.tree_id(), child)?;
        }
        let item = states.item(self);
        item.size_bytes = item.size_bytes.saturating_sub(2 * name.len() as u64);
        touch_contents(item, self.fs.clock.now());
        Ok(())
    }

    /// Deletes the subvolume that a name of this directory names. The caller holds both inode locks.
    pub(in crate::ops) fn delete_subvolume(&self, name: Name<'_>, root: &Arc<Self>) -> Result<()> {
        let (fs, id) = (&self.fs, root.tree_id());
        let changing = fs.subvolume_changes.lock();
        let context = fs.context();
        let found = context.subvolume(id)?.ok_or(Condition::NotFound)?;
        if context.default_subvolume()? == id || root.id == fs.root {
            return Err(Condition::NotPermitted.into());
        }
        let handle = fs.begin(2 * NAME_CREDITS + INODE_CREDITS, Purpose::Free)?;
        if subvolume::has_children(&handle, id)? {
            return Err(Condition::NotEmpty.into());
        }
        let mut states = States::lock(&[self]);
        handle.whole(|handle| {
            self.remove_subvolume(handle, &mut states, name, id, false)?;
            states.store(handle)?;
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
                fs.drop_unnamed(&inode);
            } else {
                // It may have users that read what they wrote: it stays on the dirty list until that is stored.
                fs.inodes.release(inode.id);
            }
        }
        fs.drop_later(id)
    }

    /// Removes the name of a subvolume that is elsewhere, as snapshots have it. Returns `false` if the name is
    /// none such.
    pub(in crate::ops) fn remove_stub(&self, name: Name<'_>) -> Result<bool> {
        let found = directory::lookup(self.context(), self.tree(), self.id.number, name)?;
        let Some(Location::Subvolume(child)) = found.map(|found| found.location) else {
            return Ok(false);
        };
        let child = TreeId(child);
        if self.names_subvolume(child, name)?.is_some() {
            return Ok(false);
        }
        namei::NamedInode::space(self)?;
        let _order = self.order.write();
        let state = namei::NamedInode::link_state(self);
        may_delete(&state, &state)?;
        let handle = self.fs.begin(NAME_CREDITS, Purpose::Free)?;
        let mut states = States::lock(&[self]);
        handle.whole(|handle| {
            self.remove_subvolume(handle, &mut states, name, child, true)?;
            states.store(handle)
        })?;
        states.end();
        Ok(true)
    }
}

impl SuperBlock {
    /// Queues the subvolumes that were deleted before the mount: their trees are to be dropped.
    pub fn find_dead_subvolumes(&self) -> Result<()> {
        for subvolume in self.context().deleted_subvolumes()? {
            self.add_dead(&subvolume)?;
        }
        Ok(())
    }

    fn drop_later(&self, id: TreeId) -> Result<()> {
        if let Some(item) = self.context().read_root_item(id)? {
            self.add_dead(&Subvolume { id, item })?;
        }
        Ok(())
    }

    fn add_dead(&self, subvolume: &Subvolume) -> Result<()> {
        if subvolume.item.drop_progress != Key::MIN {
            // The kernel began, and did not change the tree: it has pointers to blocks that are gone.
            return Ok(());
        }
        let context = self.context();
        let since = context.root_item_offset(subvolume.id)?;
        self.dead.lock().push_back(DeadSubvolume {
            id: subvolume.id,
            since,
            progress: PruneProgress::default(),
        });
        Ok(())
    }

    /// Whether trees are to be dropped.
    pub(crate) fn has_dead_subvolumes(&self) -> bool {
        !self.dead.lock().is_empty()
    }

    /// Drops a part of the trees of subvolumes that were deleted and are not in use. Returns whether there is
    /// more to do now.
    pub(crate) fn drop_dead_subvolumes(&self) -> Result<bool> {
        if !self.can_write() {
            return Ok(false);
        }
        // One thread at a time.
        let Some(_dropping) = self.dropping.try_lock() else {
            return Ok(false);
        };
        let next = {
            let mut dead = self.dead.lock();
            let free = dead.iter().position(|it| self.in_use.get(it.id).is_none());
            free.and_then(|at| dead.remove(at))
        };
        let Some(mut next) = next else {
            return Ok(false);
        };
        let dropped = self.drop_step(&mut next);
        if !matches!(dropped, Ok(true)) {
            self.dead.lock().push_front(next);
        }
        dropped.map(|_| true)
    }

    fn drop_step(&self, dead: &mut DeadSubvolume) -> Result<bool> {
        let handle = self.begin(STEP_CREDITS, Purpose::Free)?;
        let is_gone = handle.prune(dead.id, dead.since, &mut dead.progress)?;
        if is_gone {
            handle.whole(|handle| subvolume::clear_dead(handle, dead.id))?;
            drop(handle);
            self.context().forget_root_item(dead.id);
        } else {
            drop(handle);
        }
        let writing = self.transactions()?;
        if writing.has_many_traced() {
            writing.sync()?;
        }
        Ok(is_gone)
    }

    /// Drops all that can be dropped, unless the filesystem is frozen.
    pub(crate) fn drop_all_dead_subvolumes(&self) -> Result<()> {
        while let Some(_writer) = self.writers.try_enter()
            && self.drop_dead_subvolumes()?
        {}
        Ok(())
    }
}
