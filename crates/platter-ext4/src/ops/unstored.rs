//! Directories whose inode a transaction stores once, when it closes, though each of its names that
//! came or went changed it.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;
use platter_vfs::{Condition, Result};

use super::{Core, Node, Tree};
use crate::inode;
use crate::ondisk::InodeNr;
use crate::txn::Handle;

/// The directories of which the running transaction has the block of the inode table, and memory what
/// goes there.
///
/// # Invariants
/// A directory that has a name is here exactly as long as it has `is_unstored` set. Only who has its
/// order lock to change it and a handle sets that; it is cleared when a transaction closes, which has
/// no handles.
#[derive(Debug, Default)]
pub(super) struct Unstored {
    nodes: Mutex<BTreeMap<InodeNr, Arc<Node>>>,
}

impl Node {
    /// What [`store_later`](Self::store_later) keeps in memory, if that is not kept already. The caller
    /// has the order lock to change this directory, and no handle.
    pub(super) fn keeper(&self) -> Option<Arc<Self>> {
        if self.is_unstored.load(Ordering::Acquire) {
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
        let is_unstored = self.is_unstored.load(Ordering::Acquire);
        if core.inode.links == 0 || !is_unstored && keeper.is_none() {
            return core.store_data(self.volume(), handle);
        }
        core.sync = handle.transaction();
        core.data_sync = handle.transaction();
        let Some(keeper) = keeper.filter(|_| !is_unstored) else {
            return Ok(());
        };
        let joined = inode::join_slot(self.volume(), handle, self.number);
        joined.map_err(|error| handle.abort(error))?;
        self.is_unstored.store(true, Ordering::Release);
        self.tree.unstored.nodes.lock().insert(self.number, keeper);
        Ok(())
    }
}

impl Tree {
    /// Stores what is kept, as part of a transaction that closes: nobody has a handle, so nobody waits
    /// for the list with an inode's state locked.
    pub(super) fn store_kept(&self, handle: &mut Handle<'_>) -> Result<()> {
        let mut kept = self.unstored.nodes.lock();
        // Names must not become durable without the directories that were let go of.
        if self.volume.log().is_some_and(|log| log.failure().is_some()) {
            return Err(Condition::ReadOnly.into());
        }
        let (mut result, mut stored) = (Ok(()), Vec::new());
        kept.retain(|_, node| {
            let mut core = node.core.write();
            // Without a name it was stored, and its last user, who takes it off, will delete it.
            if core.inode.links == 0 || result.is_err() {
                return true;
            }
            result = core.store_data(&self.volume, handle);
            node.is_unstored.store(false, Ordering::Release);
            stored.push(Arc::clone(node));
            false
        });
        drop(kept);
        result
    }

    /// Keeps a directory that lost its name no longer for its inode.
    pub(super) fn keep_no_longer(&self, node: &Node) {
        if node.is_unstored.load(Ordering::Acquire) {
            let kept = self.unstored.nodes.lock().remove(&node.number);
            drop(kept);
        }
    }

    /// Lets go of all that is kept, after the log was [cut](crate::txn::Log::cut).
    pub(super) fn drop_kept(&self) {
        let kept = std::mem::take(&mut *self.unstored.nodes.lock());
        drop(kept);
    }
}
