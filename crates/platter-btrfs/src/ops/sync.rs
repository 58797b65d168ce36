//! Making changes durable: all that was done by a commit, and single inodes by the log.

use std::sync::atomic::Ordering;

use platter_vfs::file::{self, write_back_files, write_back_unnamed};
use platter_vfs::writing::{Reach, ReturnsSpace};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::{BtrfsInode, SuperBlock, dead_subvolumes};
use crate::log;
use crate::log::write::Target;
use crate::ondisk::Generation;
use crate::txn::{WriteContext, log_trees};

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

/// Makes all that was done so far durable, unless all is to be one transaction.
pub(crate) fn sync_fs(superblock: &SuperBlock) -> Result<()> {
    sync_by(superblock, WriteContext::sync)
}

/// Makes all that was done so far durable.
pub(crate) fn sync_all(superblock: &SuperBlock) -> Result<()> {
    sync_by(superblock, WriteContext::sync_all)
}

fn sync_by(superblock: &SuperBlock, sync: impl Fn(&WriteContext) -> Result<()>) -> Result<()> {
    let Some(writing) = superblock.writing() else {
        return Ok(());
    };
    let written = write_dirty(superblock);
    let is_dropping =
        superblock.dead_subvolumes.are_dropped_in_syncs() && !superblock.dead_subvolumes.is_empty();
    let dropped = if is_dropping {
        dead_subvolumes::drop_all(superblock)
    } else {
        Ok(())
    };
    // A tree that cannot be dropped does not keep what was written from the devices.
    let synced = written.and_then(|()| flush_overwrites(superblock, || sync(writing)));
    synced.and(match dropped {
        Err(Error::Condition(Condition::NoSpace)) => Ok(()),
        dropped => dropped,
    })
}

/// Writes the inodes back that are dirty now, and waits for those that others write or truncate.
///
/// # Errors
/// That of any of them.
pub(super) fn write_dirty(superblock: &SuperBlock) -> Result<()> {
    let written = superblock.dirty.write_back(write_back_files);
    superblock.invalidations.wait();
    written
}

/// Commits by `commit`, and makes durable what was written in place before: there may be nothing to commit.
fn flush_overwrites(superblock: &SuperBlock, commit: impl Fn() -> Result<()>) -> Result<()> {
    let flush = || {
        commit()?;
        Ok(superblock.transactions()?.blocks().store().flush()?)
    };
    superblock.overwrites.sync(&commit, flush)
}

/// Ends all writing, and returns when nothing is being written. What was not committed is lost.
pub(crate) fn end_writes(superblock: &SuperBlock) {
    superblock.writes.close();
    if let Some(writing) = superblock.writing() {
        writing.end();
    }
}

/// Writes the inodes in use back that have no name: a freeze follows, after which nothing is written. Those of
/// subvolumes that do not change stay as they are.
///
/// # Errors
/// That of any of them.
pub(crate) fn write_unnamed(superblock: &SuperBlock) -> Result<()> {
    let mut in_use = superblock.inodes.live();
    in_use.retain(|inode| inode.can_change());
    write_back_unnamed(in_use)
}

/// Drops an inode that lost its last name once it has no user. Its contents need not be written.
pub(super) fn drop_unnamed(superblock: &SuperBlock, inode: &BtrfsInode) {
    superblock.inodes.release(inode.id);
    superblock.dirty.remove(inode);
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

/// Says that the cache has contents that the devices lack.
pub(super) fn mark_dirty(inode: &BtrfsInode) {
    let reach = {
        let state = inode.state.read();
        Reach::new(state.item.links, state.may_get_first_name)
    };
    let (fs, is_closed) = (&inode.fs, || inode.fs.writes.is_closed());
    fs.dirty
        .mark(inode, reach, |id| fs.inodes.get(id), is_closed);
}

/// See [`platter_vfs::Inode::sync`].
pub(super) fn fsync(inode: &BtrfsInode, data_only: bool) -> Result<()> {
    if inode.fs.writing().is_none() {
        return Ok(());
    }
    if inode.kind == FileKind::Regular {
        return file::sync_data(inode, data_only);
    }
    make_durable(inode).map(drop)
}

/// Makes the inode durable, and what of it was written where it was.
pub(super) fn sync_file(inode: &BtrfsInode) -> Result<()> {
    let writes = &inode.data.sync.writes;
    let flush = || {
        if make_durable(inode)? == Flushed::No {
            let writing = inode.fs.transactions()?;
            // What was written in place may be where the last commit does not look.
            writing.wait_for_moves()?;
            writing.blocks().store().flush()?;
        }
        Ok(())
    };
    writes.sync(|| make_durable(inode).map(drop), flush)
}

/// Makes all of the inode durable that transactions know: by the log, or by a commit where the log cannot
/// say it.
fn make_durable(inode: &BtrfsInode) -> Result<Flushed> {
    let writing = inode.fs.transactions()?;
    if let Some(error) = writing.failure() {
        return Err(error);
    }
    if writing.is_one_transaction() {
        return Ok(Flushed::No);
    }
    match log_changes(inode, writing)? {
        Logged::Nothing => Ok(Flushed::No),
        Logged::Durable => Ok(Flushed::Yes),
        Logged::NeedsCommit => {
            flush_overwrites(&inode.fs, || commit(inode))?;
            Ok(Flushed::Yes)
        }
    }
}

fn log_changes(inode: &BtrfsInode, writing: &WriteContext) -> Result<Logged> {
    if is_committed(inode, writing.committed()) {
        return Ok(Logged::Nothing);
    }
    let handle = match writing.begin(LOG_CREDITS) {
        Err(Error::Condition(Condition::NoSpace)) => return Ok(Logged::NeedsCommit),
        handle => handle?,
    };
    // The log is of the transaction that the superblocks lead to, and what was done before has to be in it.
    handle.wait_for_earlier()?;
    let generation = handle.generation();
    let item = inode.item();
    if item.transaction < generation {
        return Ok(Logged::Nothing);
    }
    let (notes, tree) = (&inode.fs.log_notes, inode.tree_id());
    let (number, sequence) = (inode.id.number, item.sequence);
    let known = notes.log_of(generation, tree, number, sequence);
    let log = if known.is_some() {
        known
    } else {
        // Extents are not found between a drop and what comes instead.
        let _state = inode.state.read();
        let target = Target {
            inode: number,
            lost_extents: inode.lost_extents.load(Ordering::Acquire) >= generation.0,
        };
        log::write::log_inode(writing, &handle, notes, tree, target)?
    };
    let is_durable = log.is_some_and(|log| log_trees::sync(&handle, log));
    Ok(match (is_durable, known) {
        (false, _) => Logged::NeedsCommit,
        // The devices may have been flushed before contents were written in place.
        (true, Some(_)) => Logged::Nothing,
        (true, None) => Logged::Durable,
    })
}

/// Whether all changes of the inode are in a transaction, which is durable, or in those before.
fn is_committed(inode: &BtrfsInode, transaction: Generation) -> bool {
    inode.state.read().item.transaction <= transaction
}

/// Commits the running transaction, with all that others did in it.
pub(super) fn commit(inode: &BtrfsInode) -> Result<()> {
    inode.fs.transactions()?.sync()
}
