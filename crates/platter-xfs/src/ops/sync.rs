//! Making changes durable: of one inode, and of all.

use std::io::IoSlice;

use platter_vfs::file::{self, write_back_files, write_back_unnamed};
use platter_vfs::writing::{Reach, ReturnsSpace};
use platter_vfs::{Condition, FileKind, Result};

use super::{Inode, SuperBlock};

impl SuperBlock {
    /// Makes all that was done so far durable.
    pub fn sync(&self) -> Result<()> {
        let Some(log) = self.context.log() else {
            return Ok(());
        };
        let written = self.dirty.write_back(write_back_files);
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

/// The space of a filesystem that was freed, for callers that have locks of a file: what files have beyond their end is
/// left to them.
pub(super) struct FreedSpace<'s>(pub(super) &'s SuperBlock);

impl ReturnsSpace for FreedSpace<'_> {
    fn returned(&self) -> u64 {
        self.0.context.space().returned()
    }

    fn return_freed(&self) -> Result<()> {
        let context = &self.0.context;
        let Some(log) = context.log() else {
            return Ok(());
        };
        let space = context.space();
        if space.has_busy() {
            log.force_freed()?;
            space.finish(context.geometry().groups(), log);
        }
        Ok(())
    }
}

impl ReturnsSpace for SuperBlock {
    fn returned(&self) -> u64 {
        FreedSpace(self).returned()
    }

    fn return_freed(&self) -> Result<()> {
        self.free_all_eof_blocks();
        FreedSpace(self).return_freed()
    }
}

impl Inode {
    /// Says that the cache has contents that the device lacks.
    pub(super) fn add_to_dirty(&self) {
        let reach = {
            let state = self.state.read();
            Reach::new(state.inode.links, state.may_get_first_name)
        };
        let fs = &self.superblock;
        let is_closed = || fs.writes.is_closed();
        fs.dirty
            .mark(self, reach, |id| fs.inodes.get(id), is_closed);
    }

    /// See [`platter_vfs::Inode::sync`].
    pub(super) fn sync_contents(&self, data_only: bool) -> Result<()> {
        if self.context().log().is_none() {
            return Ok(());
        }
        if self.kind == FileKind::Regular {
            file::sync_data(self, data_only)
        } else {
            self.commit_inode(data_only)
        }
    }

    /// Returns when the checkpoints that have changes of the inode are durable, and what was written to its
    /// blocks.
    pub(super) fn commit_inode(&self, data_only: bool) -> Result<()> {
        let log = self.context().log().ok_or(Condition::ReadOnly)?;
        let sequence = {
            let state = self.state.read();
            if data_only {
                state.data_sync
            } else {
                state.sync
            }
        };
        let sync = &self.data.sync.writes;
        sync.sync(|| log.force(sequence), || log.force_with_data(sequence))
    }
}
