//! Inodes with contents in the page cache that the device does not have yet: kept in memory until they
//! are written back.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::Ordering;
use std::sync::{Arc, Weak};

use platter_block::lock::{Mutex, RwLock, rank};
use platter_cache::MemoryBudget;

use super::ListedInode;
use crate::{Error, InodeId, Result};

/// Files that are written back together at most.
pub const WRITEBACK_BATCH_MAX: usize = 64;

/// The dirty inodes of a filesystem, those first that have been dirty for longest.
///
/// # Invariants
/// An inode is on the list once, exactly as long as its [lists](super::InodeLists) say so, which changes
/// with the list locked. The thread that takes it off writes it back afterwards.
#[derive(Debug)]
pub struct DirtyList<I> {
    /// Inodes with dirty pages.
    inodes: Mutex<VecDeque<Arc<I>>>,
    /// Those without a name yet, which go with their last user.
    unnamed: Mutex<HashMap<InodeId, Weak<I>>>,
    /// Held shared from taking an inode off the list until it is written back.
    in_flight: RwLock<(), { rank(2, 3) }>,
    /// Errors of writeback.
    failures: Mutex<Failures>,
}

/// What leads to an inode after a crash.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Reach {
    /// A name.
    Named,
    /// It was made without a name (`O_TMPFILE`), and may still get one.
    MayBeNamed,
    /// Nothing: it lost its last name.
    None,
}

impl Reach {
    /// That of an inode with so many links, which may or may not get its first name.
    #[must_use]
    pub fn new(links: u32, may_get_first_name: bool) -> Self {
        match (links, may_get_first_name) {
            (0, false) => Self::None,
            (0, true) => Self::MayBeNamed,
            (1.., _) => Self::Named,
        }
    }
}

/// How many files could not be written, and why the last one could not.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    last: Option<Error>,
}

impl<I> Default for DirtyList<I> {
    fn default() -> Self {
        Self {
            inodes: Mutex::default(),
            unnamed: Mutex::default(),
            in_flight: RwLock::default(),
            failures: Mutex::default(),
        }
    }
}

impl<I: ListedInode> DirtyList<I> {
    /// Adds an inode, unless it is on the list or `is_ended` says that the list was taken for the last
    /// time.
    ///
    /// Called when its dirty pages are there: earlier, the thread that writes them back might come too
    /// early.
    pub fn add(&self, inode: Arc<I>, is_ended: impl FnOnce() -> bool) {
        let mut inodes = self.inodes.lock();
        if !is_ended() && !inode.lists().is_dirty.swap(true, Ordering::AcqRel) {
            inodes.push_back(inode);
        }
    }

    /// Adds an inode without a name, which may still get one. It is not kept in memory.
    pub fn add_unnamed(&self, inode: &Arc<I>) {
        let mut unnamed = self.unnamed.lock();
        unnamed.insert(inode.id(), Arc::downgrade(inode));
    }

    /// Adds an inode once the cache has contents that the device lacks: not before, since writeback might come too
    /// early. It is kept in memory, unless nothing leads to it after a crash. `in_use` finds its object.
    pub fn mark(
        &self,
        inode: &I,
        reach: Reach,
        in_use: impl FnOnce(InodeId) -> Option<Arc<I>>,
        is_ended: impl FnOnce() -> bool,
    ) {
        if reach == Reach::None || inode.lists().is_dirty() {
            return;
        }
        // The caller uses the inode, so it is there.
        let Some(inode) = in_use(inode.id()) else {
            return;
        };
        match reach {
            Reach::Named => self.add(inode, is_ended),
            Reach::MayBeNamed | Reach::None => self.add_unnamed(&inode),
        }
    }

    /// Takes an inode off the list whose contents need not be written any more.
    pub fn remove(&self, inode: &I) {
        if !inode.lists().is_dirty() {
            return;
        }
        let removed = {
            let mut inodes = self.inodes.lock();
            let at = inodes.iter().position(|listed| listed.id() == inode.id());
            inode.lists().is_dirty.store(false, Ordering::Release);
            at.and_then(|at| inodes.remove(at))
        };
        // The last user of an inode may free it, which is not done with the list locked.
        drop(removed);
    }

    /// Records that a file could not be written, which is on the list again.
    pub fn record_failure(&self, error: &Error) {
        let mut failures = self.failures.lock();
        failures.count += 1;
        failures.last = Some(error.clone());
    }

    /// Takes the inodes that are dirty now off the list: the caller writes them back.
    pub fn take(&self) -> Vec<Arc<I>> {
        let unnamed = std::mem::take(&mut *self.unnamed.lock());
        let mut inodes = self.inodes.lock();
        for inode in &*inodes {
            inode.lists().is_dirty.store(false, Ordering::Release);
        }
        let unnamed = unnamed.into_values().filter_map(|inode| inode.upgrade());
        inodes.drain(..).chain(unnamed).collect()
    }

    /// Has `write_back` write the inodes that are dirty now, and waits for those that other threads
    /// write. It [records](Self::record_failure) its errors.
    ///
    /// # Errors
    /// That of any of them.
    pub fn write_back(&self, write_back: impl FnOnce(&[Arc<I>])) -> Result<()> {
        let before = self.failures.lock().count;
        {
            let _in_flight = self.in_flight.read();
            write_back(&self.take());
        }
        drop(self.in_flight.write());
        let failures = self.failures.lock();
        match &failures.last {
            Some(error) if failures.count > before => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Has `write_back` write files while too much of the memory is dirty, the caller's or not: a file
    /// that is not written to any more would keep its pages dirty, and others from having any
    /// (`balance_dirty_pages`). The caller holds no lock.
    ///
    /// An error is reported by the next sync of the file it belongs to.
    pub fn throttle(&self, budget: &MemoryBudget, write_back: impl Fn(&[Arc<I>])) {
        let limit = budget.dirty_limit_bytes();
        if budget.dirty_bytes() <= limit {
            return;
        }
        // Each file once: one that cannot be written is back on the list.
        let mut left = self.inodes.lock().len();
        while left > 0 && budget.dirty_bytes() > limit / 2 {
            let _in_flight = self.in_flight.read();
            let batch: Vec<_> = {
                let mut inodes = self.inodes.lock();
                let count = WRITEBACK_BATCH_MAX.min(left).min(inodes.len());
                for inode in inodes.range(..count) {
                    inode.lists().is_dirty.store(false, Ordering::Release);
                }
                inodes.drain(..count).collect()
            };
            if batch.is_empty() {
                return;
            }
            left -= batch.len();
            write_back(&batch);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::InodeLists;
    use super::*;
    use crate::Condition;

    struct Listed {
        number: u64,
        lists: InodeLists,
    }

    impl ListedInode for Listed {
        fn id(&self) -> InodeId {
            InodeId {
                tree: 0,
                number: self.number,
            }
        }

        fn lists(&self) -> &InodeLists {
            &self.lists
        }
    }

    fn inode(number: u64) -> Arc<Listed> {
        Arc::new(Listed {
            number,
            lists: InodeLists::default(),
        })
    }

    fn numbers(inodes: &[Arc<Listed>]) -> Vec<u64> {
        inodes.iter().map(|inode| inode.number).collect()
    }

    #[test]
    fn inode_is_on_the_list_once_until_it_is_taken() {
        let list = DirtyList::default();
        let (first, second) = (inode(1), inode(2));
        for inode in [&first, &second, &first] {
            list.add(Arc::clone(inode), || false);
        }
        list.add(inode(3), || true);
        assert!(first.lists().is_dirty());
        list.remove(&second);
        assert!(!second.lists().is_dirty());
        assert_eq!(numbers(&list.take()), [1]);
        assert!(!first.lists().is_dirty() && list.take().is_empty());
    }

    #[test]
    fn unnamed_inode_is_written_while_it_is_in_use() {
        let list = DirtyList::default();
        let (kept, dropped) = (inode(1), inode(2));
        list.add_unnamed(&kept);
        list.add_unnamed(&dropped);
        drop(dropped);
        assert_eq!(numbers(&list.take()), [1]);
    }

    #[test]
    fn write_back_returns_errors_of_its_own_time_only() {
        let list = DirtyList::<Listed>::default();
        list.record_failure(&Condition::NoSpace.into());
        list.write_back(|_| ()).unwrap();
        let failed = list.write_back(|_| list.record_failure(&Condition::NoSpace.into()));
        assert!(failed.is_err());
    }

    #[test]
    fn writers_below_the_dirty_limit_are_not_throttled() {
        let list = DirtyList::default();
        list.add(inode(1), || false);
        let budget = MemoryBudget::new(1 << 20);
        list.throttle(&budget, |_| panic!("nothing is to be written"));
    }
}
