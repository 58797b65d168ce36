//! Making changes durable: of one inode, and of all.

use std::io::IoSlice;

use platter_vfs::file::{self, write_back_files, write_back_unnamed};
use platter_vfs::writing::Reach;
use platter_vfs::{Condition, FileKind, Result};

use super::inactivation::free_inactive;
use super::{Inode, SuperBlock};

impl SuperBlock {
    /// Makes all that was done so far durable.
    pub fn sync(&self) -> Result<()> {
        let Some(log) = self.context.log() else {
            return Ok(());
        };
        let written = self.dirty.write_back(write_back_files);
        self.invalidations.wait();
        // What keeps inodes from becoming free is no error of what was written.
        let _ = free_inactive(self);
        // Data over blocks that were a file's before is in no transaction.
        let durable = self.overwrites.sync(
            || log.force_all(),
            || {
                log.force_all()?;
                Ok(self.context.device().flush()?)
            },
        );
        written.and(durable)
    }

    /// Ends all writing, and returns when no data is being written. What was not written is lost.
    pub(crate) fn cut(&self) {
        self.writes.close();
        drop(self.growing.close());
        if let Some(log) = self.context.log() {
            log.shut_down();
        }
        // Transactions that wait for it find the log shut down.
        let _ = self.context.mount().thaw();
    }

    /// Writes the inodes in use back that have no name: a freeze follows, after which nothing is written.
    ///
    /// # Errors
    /// That of any of them.
    pub(crate) fn write_unnamed(&self) -> Result<()> {
        write_back_unnamed(self.inodes.live())
    }

    /// Drops an inode that lost its last name once it has no user. Its contents need not be written.
    pub(super) fn drop_unnamed(&self, inode: &Inode) {
        self.inodes.release(inode.number.id());
        self.dirty.remove(inode);
        self.growing.remove(inode);
    }

    /// Writes data to byte `offset` of the device.
    pub(super) fn write_data(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.writes.write(|| {
            if let Some(error) = self.context.log().and_then(crate::txn::Log::failure) {
                return Err(error);
            }
            Ok(self.context.device().write_vectored_at(offset, bufs)?)
        })
    }
}

/// Says that the cache has contents that the device lacks.
pub(super) fn mark_dirty(inode: &Inode) {
    let reach = {
        let state = inode.state.read();
        Reach::new(state.inode.links, state.may_get_first_name)
    };
    let fs = &inode.superblock;
    let is_closed = || fs.writes.is_closed();
    fs.dirty
        .mark(inode, reach, |id| fs.inodes.get(id), is_closed);
}

/// See [`platter_vfs::Inode::sync`].
pub(super) fn fsync(inode: &Inode, data_only: bool) -> Result<()> {
    if inode.context().log().is_none() {
        return Ok(());
    }
    if inode.kind == FileKind::Regular {
        file::sync_data(inode, data_only)
    } else {
        commit(inode, data_only)
    }
}

/// Returns when the checkpoints that have changes of the inode are durable, and what was written to its
/// blocks.
pub(super) fn commit(inode: &Inode, data_only: bool) -> Result<()> {
    let log = inode.context().log().ok_or(Condition::ReadOnly)?;
    let sequence = {
        let state = inode.state.read();
        if data_only {
            state.data_sync
        } else {
            state.sync
        }
    };
    let sync = &inode.data.sync.writes;
    sync.sync(|| log.force(sequence), || log.force_with_data(sequence))
}
