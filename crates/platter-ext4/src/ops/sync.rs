//! Making changes durable: of one inode, and of all.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{write_back_files, write_back_unnamed};
use platter_vfs::writing::{Reach, ReturnsSpace};
use platter_vfs::{Condition, Error, Result};

use super::{Ext4Inode, InodeState, OnError, SuperBlock};
use crate::alloc;
use crate::inode;
use crate::ondisk::BlockNr;
use crate::ondisk::superblock::note_error;
use crate::superblock;
use crate::txn::{CommitClient, Handle};

/// Makes all changes so far durable. Errors of files that cannot be written are reported by their
/// own syncs as well.
pub fn sync_fs(sb: &SuperBlock) -> Result<()> {
    let Some(log) = sb.fs.log() else {
        return Ok(());
    };
    let written = write_dirty(sb);
    // Data over blocks that were a file's before is in no transaction.
    let durable = sb.overwrites.sync(|| log.commit_all(), || log.sync_all());
    sb.recorded(written.and(durable))
}

/// Writes the inodes back that are dirty now, and waits for those that others write or truncate.
///
/// # Errors
/// That of any of them.
pub(super) fn write_dirty(sb: &SuperBlock) -> Result<()> {
    let written = sb.dirty.write_back(write_back_files);
    sb.invalidations.wait();
    written
}

/// Writes the inodes in use back that have no name: a freeze follows, after which nothing is written.
///
/// # Errors
/// That of any of them.
pub(crate) fn write_unnamed(sb: &SuperBlock) -> Result<()> {
    write_back_unnamed(sb.nodes.live())
}

/// Drops an inode that lost its last name once it has no user. Its contents need not be written any
/// more.
pub(super) fn drop_unnamed(sb: &SuperBlock, node: &Ext4Inode) {
    sb.nodes.release(node.number.id());
    sb.unstored.remove(node);
    sb.dirty.remove(node);
}

/// Stores the directories that changed, as part of a transaction that closes.
fn store_unstored(sb: &SuperBlock, handle: &mut Handle<'_>) -> Result<()> {
    let refuse_failed = || {
        // Names must not become durable without the directories that were dropped.
        if sb.fs.log().is_some_and(|log| log.failure().is_some()) {
            return Err(Condition::ReadOnly.into());
        }
        Ok(())
    };
    sb.unstored.store_all(refuse_failed, |node| {
        let mut state = node.state.write();
        // Without a name it was stored, and its last user takes it off the list and deletes it.
        if state.inode.links == 0 {
            return Ok(false);
        }
        state.store_data(&sb.fs, handle)?;
        Ok(true)
    })
}

/// Ends all writing because of `error`. Where that is another host, which took the filesystem, it
/// is recorded nowhere: the journal and the superblock are that host's by now.
pub(crate) fn end_writing(sb: &SuperBlock, error: &Error) {
    let Some(log) = sb.fs.log() else {
        return;
    };
    if matches!(error, Error::Condition(Condition::Busy)) {
        log.leave(error);
    } else {
        log.abort(error);
    }
}

/// Says that the cache has contents that the device lacks.
pub(super) fn mark_dirty(node: &Ext4Inode) {
    let reach = {
        let state = node.state.read();
        Reach::new(state.inode.links, state.may_get_first_name)
    };
    // Closing takes the list once, after the filesystem is marked as closed.
    let (sb, is_closed) = (&node.sb, || node.sb.is_closed());
    sb.dirty.mark(node, reach, |id| sb.nodes.get(id), is_closed);
}

/// What [`store_later`] keeps in memory, if that is not kept already. The caller
/// has the inode lock exclusively, and no handle.
pub(super) fn keeper(node: &Ext4Inode) -> Option<Arc<Ext4Inode>> {
    if node.lists.is_unstored() {
        return None;
    }
    node.sb.nodes.get(node.number.id())
}

/// As [`InodeState::store_data`], but the transaction may store the inode when it closes.
pub(super) fn store_later(
    node: &Ext4Inode,
    handle: &mut Handle<'_>,
    state: &mut InodeState,
    keeper: Option<Arc<Ext4Inode>>,
) -> Result<()> {
    let is_unstored = node.lists.is_unstored();
    if state.inode.links == 0 || !is_unstored && keeper.is_none() {
        return state.store_data(node.fs(), handle);
    }
    state.sync = handle.transaction();
    state.data_sync = handle.transaction();
    state
        .quota
        .store(node.fs(), handle, &state.inode, &state.delayed)?;
    let Some(keeper) = keeper.filter(|_| !is_unstored) else {
        return Ok(());
    };
    let joined = inode::join_slot(node.fs(), handle, node.number);
    joined.map_err(|error| handle.abort(error))?;
    node.sb.unstored.add(keeper);
    Ok(())
}

impl ReturnsSpace for SuperBlock {
    fn returned(&self) -> u64 {
        self.space.as_ref().map_or(0, |space| space.returned())
    }

    fn return_freed(&self) -> Result<()> {
        self.space
            .as_ref()
            .map_or(Ok(()), |space| alloc::finish_freed(space, &self.fs))
    }
}

impl CommitClient for SuperBlock {
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()> {
        let Some(space) = &self.space else {
            return Ok(());
        };
        if let Some(error) = space.take_corruption() {
            if self.on_error == OnError::ReadOnly {
                return Err(error);
            }
            if let Some(note) = self.note_of(&error) {
                superblock::edit(&self.fs, handle, |disk| note_error(disk, &note))?;
            }
        }
        self.note_the_rest(handle)?;
        store_unstored(self, handle)?;
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
            let _ = superblock::rewrite(&self.fs, |disk| note_error(disk, &note));
        }
    }
}
