//! Making changes durable: all that was done by a commit, and single inodes by the log.

use std::sync::atomic::Ordering;

use platter_vfs::file::{self, write_back_files, write_back_unnamed};
use platter_vfs::writing::{Reach, ReturnsSpace};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::{BtrfsInode, SuperBlock};
use crate::log;
use crate::log::write::Target;
use crate::ondisk::Generation;
use crate::txn::WriteContext;

/// Tree blocks that logging an inode is expected to take.
const LOG_CREDITS: u32 = 32;

/// What logging an inode came to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Logged {
    /// It has not changed since the last commit, or the log that has it.
    Nothing,
    /// The log is on the devices.
    Durable,
    /// Only a commit makes it durable.
    NeedsCommit,
}

/// Whether the devices were flushed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Flushed {
    Yes,
    No,
}

impl SuperBlock {
    /// Makes all that was done so far durable, unless all is to be one transaction.
    pub fn sync(&self) -> Result<()> {
        self.sync_by(WriteContext::sync)
    }

    /// Makes all that was done so far durable.
    pub fn sync_all(&self) -> Result<()> {
        self.sync_by(WriteContext::sync_all)
    }

    fn sync_by(&self, sync: impl FnOnce(&WriteContext) -> Result<()>) -> Result<()> {
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
        written.and_then(|()| sync(writing))
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

    /// Writes the inodes in use back that have no name: a freeze follows, after which nothing is written. Those of
    /// subvolumes that do not change stay as they are.
    ///
    /// # Errors
    /// That of any of them.
    pub(crate) fn write_unnamed(&self) -> Result<()> {
        let mut in_use = self.inodes.live();
        in_use.retain(|inode| inode.can_change());
        write_back_unnamed(in_use)
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
    /// Says that the cache has contents that the devices lack.
    pub(super) fn add_to_dirty(&self) {
        let reach = {
            let state = self.state.read();
            Reach::new(state.item.links, state.may_get_first_name)
        };
        let (fs, is_closed) = (&self.fs, || self.fs.writes.is_closed());
        fs.dirty
            .mark(self, reach, |id| fs.inodes.get(id), is_closed);
    }

    /// See [`platter_vfs::Inode::sync`].
    pub(super) fn sync_contents(&self, data_only: bool) -> Result<()> {
        if self.fs.writing().is_none() {
            return Ok(());
        }
        if self.kind == FileKind::Regular {
            return file::sync_data(self, data_only);
        }
        self.make_durable().map(drop)
    }

    /// Makes the inode durable, and what of it was written where it was.
    pub(super) fn commit_with_contents(&self) -> Result<()> {
        let writes = &self.data.sync.writes;
        let flush = || {
            if self.make_durable()? == Flushed::No {
                let store = self.fs.transactions()?.blocks().store();
                store.flush()?;
            }
            Ok(())
        };
        writes.sync(|| self.make_durable().map(drop), flush)
    }

    /// Makes all of the inode durable that transactions know: by the log, or by a commit where the log cannot
    /// say it.
    fn make_durable(&self) -> Result<Flushed> {
        let writing = self.fs.transactions()?;
        if let Some(error) = writing.failure() {
            return Err(error);
        }
        if writing.is_one_transaction() {
            return Ok(Flushed::No);
        }
        match self.log_changes(writing)? {
            Logged::Nothing => Ok(Flushed::No),
            Logged::Durable => Ok(Flushed::Yes),
            Logged::NeedsCommit => {
                self.commit_all()?;
                Ok(Flushed::Yes)
            }
        }
    }

    fn log_changes(&self, writing: &WriteContext) -> Result<Logged> {
        if self.is_in(writing.committed()) {
            return Ok(Logged::Nothing);
        }
        let handle = match writing.begin(LOG_CREDITS) {
            Err(Error::Condition(Condition::NoSpace)) => return Ok(Logged::NeedsCommit),
            handle => handle?,
        };
        let generation = handle.generation();
        let item = self.item();
        if item.transaction < generation {
            return Ok(Logged::Nothing);
        }
        let (notes, tree) = (&self.fs.log_notes, self.tree_id());
        let (number, sequence) = (self.id.number, item.sequence);
        let known = notes.log_of(generation, tree, number, sequence);
        let log = if known.is_some() {
            known
        } else {
            // Extents are not found between a drop and what comes instead.
            let _state = self.state.read();
            let target = Target {
                inode: number,
                lost_extents: self.lost_extents.load(Ordering::Acquire) >= generation.0,
            };
            log::write::log_inode(writing, &handle, notes, tree, target)?
        };
        let is_durable = log.is_some_and(|log| handle.write_log(log));
        Ok(match (is_durable, known) {
            (false, _) => Logged::NeedsCommit,
            // The devices may have been flushed before contents were written in place.
            (true, Some(_)) => Logged::Nothing,
            (true, None) => Logged::Durable,
        })
    }

    /// Whether all changes of the inode are in a transaction, which is durable, or in those before.
    fn is_in(&self, transaction: Generation) -> bool {
        self.state.read().item.transaction <= transaction
    }

    /// Commits the running transaction, with all that others did in it.
    pub(super) fn commit_all(&self) -> Result<()> {
        self.fs.transactions()?.sync()
    }
}
