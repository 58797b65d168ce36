//! Directories: looking a name up, listing names, and what all changes of names share.

use std::sync::Arc;

use platter_block::lock::RwLockWriteGuard;
use platter_vfs::{Condition, DirCursor, DirSink, Name, Result};

use super::{Ext4Inode, InodeState};
use crate::FsContext;
use crate::ondisk::InodeNr;
use crate::txn::Handle;

/// See [`platter_vfs::Inode::lookup`].
pub(super) fn lookup(node: &Ext4Inode, name: Name<'_>) -> Result<Arc<Ext4Inode>> {
    let _order = node.order.read();
    let found = node.state.read().directory(node.fs())?.lookup(name)?;
    let named = node.sb.named(found.inode);
    if named.is_err() && node.state.read().inode.links == 0 {
        // What was above a directory that was removed may be gone as well.
        return Err(Condition::NotFound.into());
    }
    named
}

/// See [`platter_vfs::Inode::read_dir`].
pub(super) fn list(node: &Ext4Inode, from: DirCursor, sink: &mut DirSink<'_>) -> Result<()> {
    let _order = node.order.read();
    let state = node.state.read();
    let directory = state.directory(node.fs())?;
    if state.inode.links == 0 {
        // It was removed, and has not even the two names that all have.
        return Ok(());
    }
    directory.read(from, sink)
}

/// The states of several inodes, locked in the order of their numbers.
pub(super) struct Cores<'n> {
    held: Vec<(InodeNr, RwLockWriteGuard<'n, InodeState>)>,
}

impl<'n> Cores<'n> {
    /// Each of `nodes` may be there more than once.
    pub(super) fn lock(nodes: &[&'n Ext4Inode]) -> Self {
        let mut nodes = nodes.to_vec();
        nodes.sort_by_key(|node| node.number);
        nodes.dedup_by_key(|node| node.number);
        let held = (0..).zip(nodes);
        let held = held.map(|(nth, node)| (node.number, node.state.write_nth(nth)));
        Self {
            held: held.collect(),
        }
    }

    /// The state of one of them.
    pub(super) fn of(&mut self, node: &Ext4Inode) -> &mut InodeState {
        let held = self.held.iter_mut();
        let mut found = held.filter(|(number, _)| *number == node.number);
        let (_, state) = found.next().expect("it was among those to lock");
        state
    }

    /// Takes all of them into their tables.
    pub(super) fn store(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        for (_, state) in &mut self.held {
            state.store_data(fs, handle)?;
        }
        Ok(())
    }
}
