//! Making changes durable: of one inode, and of all.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::write_back_files;
use platter_vfs::writing::ReturnsSpace;
use platter_vfs::{Condition, Error, Result};

use super::{Core, Node, OnError, Tree};
use crate::inode;
use crate::ondisk::BlockNr;
use crate::superblock;
use crate::txn::{CommitClient, Handle};

impl Tree {
    /// Makes all changes so far durable. Errors of files that cannot be written are reported by their
    /// own syncs as well.
    pub fn sync(&self) -> Result<()> {
        let Some(log) = self.volume.log() else {
            return Ok(());
        };
        let written = self.write_dirty();
        // Data over blocks that were a file's before is in no transaction.
        let durable = self.overwrites.sync(|| log.commit_all(), || log.sync_all());
        self.noted(written.and(durable))
    }

    /// Writes the inodes back that are dirty now, and waits for those that others write.
    ///
    /// # Errors
    /// That of any of them.
    pub(super) fn write_dirty(&self) -> Result<()> {
        self.dirty.write_back(write_back_files)
    }

    /// Drops an inode that lost its last name once it has no user. Its contents need not be written any
    /// more.
    pub(super) fn drop_unnamed(&self, node: &Node) {
        self.nodes.release(node.number.id());
        self.unstored.remove(node);
        self.dirty.remove(node);
    }

    /// Stores the directories that changed, as part of a transaction that closes.
    fn store_unstored(&self, handle: &mut Handle<'_>) -> Result<()> {
        let refuse_failed = || {
            // Names must not become durable without the directories that were dropped.
            if self.volume.log().is_some_and(|log| log.failure().is_some()) {
                return Err(Condition::ReadOnly.into());
            }
            Ok(())
        };
        self.unstored.store_all(refuse_failed, |node| {
            let mut core = node.core.write();
            // Without a name it was stored, and its last user takes it off the list and deletes it.
            if core.inode.links == 0 {
                return Ok(false);
            }
            core.store_data(&self.volume, handle)?;
            Ok(true)
        })
    }

    /// Ends all writing because of `error`. Where that is another host, which took the filesystem, it
    /// is noted nowhere: the journal and the superblock are that host's by now.
    pub(crate) fn end_writing(&self, error: &Error) {
        let Some(log) = self.volume.log() else {
            return;
        };
        if matches!(error, Error::Condition(Condition::Busy)) {
            log.leave(error);
        } else {
            log.abort(error);
        }
    }
}

impl Node {
    /// Marks the inode as having contents in the cache that the device lacks. Keeps it in memory,
    /// unless it would not be found after a crash.
    ///
    /// Called once the contents are in the cache: before, writeback might come too early.
    pub(super) fn add_to_dirty(&self) {
        let (has_name, may_get_one) = {
            let core = self.core.read();
            (core.inode.links != 0, core.may_get_first_name)
        };
        if !has_name && !may_get_one || self.lists.is_dirty() {
            return;
        }
        // The caller uses the inode, so it is there.
        if let Some(node) = self.tree.nodes.get(self.number.id()) {
            if has_name {
                // Closing takes the list once, after the tree is marked as closed.
                self.tree.dirty.add(node, || self.tree.is_closed());
            } else {
                self.tree.dirty.add_unnamed(&node);
            }
        }
    }

    /// What [`store_later`](Self::store_later) keeps in memory, if that is not kept already. The caller
    /// has the inode lock exclusively, and no handle.
    pub(super) fn keeper(&self) -> Option<Arc<Self>> {
        if self.lists.is_unstored() {
            return None;
        }
        self.tree.nodes.get(self.number.id())
    }

    /// As [`Core::store_data`], but the transaction may store the inode when it closes.
    pub(super) fn store_later(
        &self,
        handle: &mut Handle<'_>,
        core: &mut Core,
        keeper: Option<Arc<Self>>,
    ) -> Result<()> {
        let is_unstored = self.lists.is_unstored();
        if core.inode.links == 0 || !is_unstored && keeper.is_none() {
            return core.store_data(self.volume(), handle);
        }
        core.sync = handle.transaction();
        core.data_sync = handle.transaction();
        core.store_charge(self.volume(), handle)?;
        let Some(keeper) = keeper.filter(|_| !is_unstored) else {
            return Ok(());
        };
        let joined = inode::join_slot(self.volume(), handle, self.number);
        joined.map_err(|error| handle.abort(error))?;
        self.tree.unstored.add(keeper);
        Ok(())
    }
}

impl ReturnsSpace for Tree {
    fn returned(&self) -> u64 {
        self.space.as_ref().map_or(0, |space| space.returned())
    }

    fn return_freed(&self) -> Result<()> {
        self.space
            .as_ref()
            .map_or(Ok(()), |space| space.finish(&self.volume))
    }
}

impl CommitClient for Tree {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        if let Some(damage) = space.take_damage() {
            if self.on_error == OnError::ReadOnly {
                return Err(damage);
            }
            if let Some(note) = self.note_of(&damage) {
                superblock::edit(&self.volume, handle, |disk| disk.note_error(&note))?;
            }
        }
        self.note_the_rest(handle)?;
        self.store_unstored(handle)?;
        space.closing(handle)
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        if let Some(space) = &self.space {
            space.committed(freed);
        }
    }

    fn failed(&self, error: &Error) {
        if let Some(note) = self.note_of(error) {
            // The device may be what failed.
            let _ = superblock::rewrite(&self.volume, |disk| disk.note_error(&note));
        }
    }
}
