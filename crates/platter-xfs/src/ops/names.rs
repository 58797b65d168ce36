//! Directories: a name looked up, names listed, and what all changes of names share.

use std::sync::Arc;

use platter_vfs::{Condition, DirCursor, DirSink, Name, Result};

use super::Inode;
use crate::change::{Change, Cost};
use crate::directory;
use crate::directory::change::DirectoryChange;
use crate::mapping::ForkMap;

/// What a change of one name in a directory takes: a path of the hash tree that splits, blocks of entries
/// and of free regions, and their space.
pub(super) const NAME_COST: Cost = Cost {
    extents: 4,
    forks: 1,
    directory_blocks: 10,
    inodes: 1,
    bytes: 0,
    blocks: 0,
};

/// The inode that a name in a directory is of.
pub(super) fn lookup(directory: &Inode, name: Name<'_>) -> Result<Arc<Inode>> {
    let _order = directory.order.read();
    let found = directory
        .state
        .read()
        .directory(directory.context())?
        .lookup(name)?;
    let named = directory.superblock.named(found.inode);
    if named.is_err() && directory.state.read().inode.links == 0 {
        // What was above a directory that was removed may be gone as well.
        return Err(Condition::NotFound.into());
    }
    named
}

/// Passes the names of a directory on, from a position.
pub(super) fn list(directory: &Inode, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    let _order = directory.order.read();
    let state = directory.state.read();
    let entries = state.directory(directory.context())?;
    if state.inode.links == 0 {
        // It was removed, and has not even the two names that all have.
        return Ok(());
    }
    directory::list::read(&entries, from, sink)
}

/// Changes a directory, whose mappings before the change are at hand.
pub(super) fn change_directory(
    change: &mut Change<'_>,
    (directory, map): (&Inode, &ForkMap),
    work: impl FnOnce(&mut DirectoryChange<'_, '_>) -> Result<()>,
) -> Result<()> {
    let sound = &directory.sound;
    let edit = change.inode_at(&directory.place()?)?;
    let mut directory = DirectoryChange::open(change, edit, Some(map))?;
    directory.remember(sound);
    work(&mut directory)?;
    directory.finish()
}
