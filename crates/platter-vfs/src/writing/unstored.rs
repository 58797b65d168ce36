//! Inodes that a transaction stores once, when it closes, though several of its operations changed them:
//! directories whose names come and go.

use std::collections::BTreeMap;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use platter_block::lock::{Mutex, rank};

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
    /// Held while a transaction that closes stores inodes, to which it has references. The last user of one without a
    /// name waits, so that the transaction never has the last reference, and does not have to delete the inode.
    storing: Mutex<(), { rank(6, 9) }>,
    /// Directories to be stored when the transaction closes.
    inodes: Mutex<BTreeMap<InodeId, Arc<I>>, { rank(8, 4) }>,
}

impl<I> Default for UnstoredInodes<I> {
    fn default() -> Self {
        Self {
            storing: Mutex::default(),
            inodes: Mutex::default(),
        }
    }
}

/// A copy of an entry of the list.
fn of_list<I>((id, inode): (&InodeId, &Arc<I>)) -> (InodeId, Arc<I>) {
    (*id, Arc::clone(inode))
}

impl<I: ListedInode> UnstoredInodes<I> {
    /// Adds an inode, and keeps it in memory.
    pub fn add(&self, inode: Arc<I>) {
        inode.lists().is_unstored.store(true, Ordering::Release);
        self.inodes.lock().insert(inode.id(), inode);
    }

    /// Has `store` store each inode, as part of a transaction that closes. Inodes that `store` returns `false`
    /// for stay, and after an error all others. `check` fails where inodes may have been [dropped](Self::clear)
    /// meanwhile, which the transaction would need.
    ///
    /// # Errors
    /// Those of `store` and `check`.
    pub fn store_all(
        &self,
        check: impl FnOnce() -> Result<()>,
        mut store: impl FnMut(&I) -> Result<bool>,
    ) -> Result<()> {
        // Dropped after `storing`: an inode that goes takes locks that come before it.
        let mut stored = Vec::new();
        let _storing = self.storing.lock();
        let mut next = self.inodes.lock().first_key_value().map(of_list);
        while let Some((id, inode)) = next {
            // Not with the list locked: operations lock it after the state of an inode.
            if store(&inode)? {
                inode.lists().is_unstored.store(false, Ordering::Release);
                self.inodes.lock().remove(&id);
                stored.push(inode);
            }
            let after = (Bound::Excluded(id), Bound::Unbounded);
            next = self.inodes.lock().range(after).next().map(of_list);
        }
        check()
    }

    /// Drops an inode that lost its last name. Waits for a transaction that stores inodes: the caller
    /// has no handle, and no inode state locked.
    pub fn remove(&self, inode: &I) {
        if inode.lists().is_unstored() {
            let storing = self.storing.lock();
            let removed = self.inodes.lock().remove(&inode.id());
            drop(storing);
            drop(removed);
        }
    }

    /// Drops all inodes, once no transaction commits any more.
    pub fn clear(&self) {
        let storing = self.storing.lock();
        let inodes = std::mem::take(&mut *self.inodes.lock());
        drop(storing);
        drop(inodes);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc::{Receiver, Sender, channel};
    use std::thread::{self, ThreadId};
    use std::time::Duration;

    use super::super::InodeLists;
    use super::*;

    /// Says which thread had the last reference, and takes a lock as inodes do that go.
    struct Listed {
        lists: InodeLists,
        cache: Arc<Mutex<(), { rank(3, 0) }>>,
        dropped: Sender<ThreadId>,
    }

    impl ListedInode for Listed {
        fn id(&self) -> InodeId {
            InodeId { tree: 0, number: 9 }
        }

        fn lists(&self) -> &InodeLists {
            &self.lists
        }
    }

    impl Drop for Listed {
        fn drop(&mut self) {
            drop(self.cache.lock());
            self.dropped.send(thread::current().id()).unwrap();
        }
    }

    fn inode() -> (Arc<Listed>, Receiver<ThreadId>) {
        let (dropped, drops) = channel();
        let inode = Listed {
            lists: InodeLists::default(),
            cache: Arc::default(),
            dropped,
        };
        (Arc::new(inode), drops)
    }

    #[test]
    fn last_user_of_an_inode_deletes_it_not_the_transaction() {
        let list = UnstoredInodes::default();
        let (inode, drops) = inode();
        list.add(Arc::clone(&inode));
        let (storing, is_storing) = channel();
        thread::scope(|scope| {
            let list = &list;
            scope.spawn(move || {
                let store = |_: &Listed| {
                    storing.send(()).unwrap();
                    thread::sleep(Duration::from_millis(50));
                    Ok(false)
                };
                list.store_all(|| Ok(()), store).unwrap();
            });
            is_storing.recv().unwrap();
            list.remove(&inode);
            drop(inode);
            assert_eq!(drops.recv().unwrap(), thread::current().id());
        });
    }

    #[test]
    fn stored_inode_without_users_goes_with_no_lock_held() {
        let list = UnstoredInodes::default();
        let (inode, drops) = inode();
        list.add(inode);
        list.store_all(|| Ok(()), |_| Ok(true)).unwrap();
        drops.try_recv().unwrap();
    }
}
