//! Making changes durable: by a commit of all that was done.

use std::sync::atomic::Ordering;

use platter_vfs::file::{self, write_back_files};
use platter_vfs::writing::ReturnsSpace;
use platter_vfs::{Condition, Error, FileKind, Result};

use super::{BtrfsInode, SuperBlock};

impl SuperBlock {
    /// Makes all that was done so far durable.
    pub fn sync(&self) -> Result<()> {
        let Some(writing) = self.writing() else {
            return Ok(());
        };
        let written = self.dirty.write_back(write_back_files);
        if self.drops_in_sync.load(Ordering::Relaxed) && self.has_dead_subvolumes() {
            match self.drop_all_dead_subvolumes() {
                Err(Error::Condition(Condition::NoSpace)) => {}
                dropped => dropped?,
            }
        }
        written.and(writing.sync())
    }

    /// Has trees of deleted subvolumes dropped by syncs: no thread does.
    pub(crate) fn drop_subvolumes_in_sync(&self) {
        self.drops_in_sync.store(true, Ordering::Relaxed);
    }

    /// Ends all writing, and returns when nothing is being written. What was not committed is lost.
    pub(crate) fn cut(&self) {
        self.writes.close();
        if let Some(writing) = self.writing() {
            writing.end();
        }
    }

    /// Drops an inode that lost its last name once it has no user. Its contents need not be written.
    pub(super) fn drop_unnamed(&self, inode: &BtrfsInode) {
        self.inodes.release(inode.id);
        self.dirty.remove(inode);
    }
}

/// Reservations commit what was freed themselves.
impl ReturnsSpace for SuperBlock {
    fn returned(&self) -> u64 {
        0
    }

    fn return_freed(&self) -> Result<()> {
        Ok(())
    }
}

impl BtrfsInode {
    /// Says that the cache has contents that the devices have not. Keeps the inode in memory, unless nothing leads
    /// to it after a crash.
    pub(super) fn add_to_dirty(&self) {
        let (has_name, may_get_one) = {
            let state = self.state.read();
            (state.item.links != 0, state.may_get_first_name)
        };
        if !has_name && !may_get_one || self.lists.is_dirty() {
            return;
        }
        let fs = &self.fs;
        // The caller uses the inode, so it is there.
        if let Some(inode) = fs.inodes.get(self.id) {
            if has_name {
                fs.dirty.add(inode, || fs.writes.is_closed());
            } else {
                fs.dirty.add_unnamed(&inode);
            }
        }
    }

    /// See [`platter_vfs::Inode::sync`].
    pub(super) fn sync_contents(&self, data_only: bool) -> Result<()> {
        if self.fs.writing().is_none() {
            return Ok(());
        }
        if self.kind == FileKind::Regular {
            return file::sync_data(self, data_only);
        }
        self.commit_all()
    }

    /// Commits the running transaction, with all that others did in it.
    pub(super) fn commit_all(&self) -> Result<()> {
        self.fs.transactions()?.sync()
    }
}
