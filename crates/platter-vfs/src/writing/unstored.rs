//! Inodes that a transaction stores once, when it closes, though several of its operations changed them:
//! directories whose names come and go.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::ListedInode;
use crate::{InodeId, Result};

/// The inodes that the running transaction stores when it closes.
///
/// # Invariants
/// An inode that has a name is here exactly as long as its [lists](super::InodeLists) say so. Only a thread
/// that has its inode lock exclusively and a handle adds it; it is removed when a transaction closes, which
/// has no handles.
#[derive(Debug)]
pub struct UnstoredInodes<I> {
    /// Directories to be stored when the transaction closes.
    // Lock rank 8.4.
    inodes: Mutex<BTreeMap<InodeId, Arc<I>>>,
}

impl<I> Default for UnstoredInodes<I> {
    fn default() -> Self {
        Self {
            inodes: Mutex::default(),
        }
    }
}

impl<I: ListedInode> UnstoredInodes<I> {
    /// Adds an inode, and keeps it in memory.
    pub fn add(&self, inode: Arc<I>) {
        inode.lists().is_unstored.store(true, Ordering::Release);
        self.inodes.lock().insert(inode.id(), inode);
    }

    /// Has `store` store each inode, as part of a transaction that closes: no handle is open, so no thread
    /// waits for the list with an inode's state locked. Inodes that `store` returns `false` for stay,
    /// and after an error all others.
    ///
    /// # Errors
    /// Those of `before`, which is called first with the list locked, and of `store`.
    pub fn store_all(
        &self,
        before: impl FnOnce() -> Result<()>,
        mut store: impl FnMut(&I) -> Result<bool>,
    ) -> Result<()> {
        let mut inodes = self.inodes.lock();
        before()?;
        let (mut result, mut stored) = (Ok(()), Vec::new());
        inodes.retain(|_, inode| {
            if result.is_err() {
                return true;
            }
            match store(inode) {
                Ok(false) => return true,
                Ok(true) => {}
                Err(error) => result = Err(error),
            }
            inode.lists().is_unstored.store(false, Ordering::Release);
            stored.push(Arc::clone(inode));
            false
        });
        // The last user of an inode may free it, which is not done with the list locked.
        drop(inodes);
        result
    }

    /// Drops an inode that lost its last name.
    pub fn remove(&self, inode: &I) {
        if inode.lists().is_unstored() {
            let removed = self.inodes.lock().remove(&inode.id());
            drop(removed);
        }
    }

    /// Drops all inodes, once no transaction commits any more.
    pub fn clear(&self) {
        let inodes = std::mem::take(&mut *self.inodes.lock());
        drop(inodes);
    }
}
