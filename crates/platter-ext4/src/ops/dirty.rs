//! Inodes with contents in the cache that the device does not have yet: kept in memory until it
//! has.

use std::collections::{HashMap, VecDeque};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Weak};

use parking_lot::{Mutex, RwLock};
use platter_vfs::{Error, Result};

use super::data::TOGETHER_MAX;
use super::{Node, Tree};
use crate::ondisk::InodeNr;

/// The dirty inodes of a filesystem, those first that have been so for longest.
///
/// # Invariants
/// An inode is on the list once, exactly as long as it has `is_dirty` set, which is changed with the
/// list locked. Who takes it off writes it back afterwards.
#[derive(Debug, Default)]
pub(super) struct DirtyNodes {
    nodes: Mutex<VecDeque<Arc<Node>>>,
    /// Those without a name yet, which go with their last user.
    unnamed: Mutex<HashMap<InodeNr, Weak<Node>>>,
    /// Held shared from taking an inode off the list until it is written back.
    in_flight: RwLock<()>,
    /// Writes over blocks that were a file's before, of all files, and those of them that a sync of
    /// everything has had flushed.
    pub(super) overwrites: AtomicU64,
    pub(super) flushed: AtomicU64,
    failures: Mutex<Failures>,
}

impl DirtyNodes {
    /// Whether nothing was written over a file's blocks since a sync of everything.
    pub(super) fn is_all_flushed(&self) -> bool {
        let flushed = self.flushed.load(Ordering::Acquire);
        flushed >= self.overwrites.load(Ordering::Acquire)
    }
}

/// How many files could not be written, and why the last one could not.
#[derive(Debug, Default)]
struct Failures {
    count: u64,
    last: Option<Error>,
}

impl Node {
    /// Says that the cache has contents that the device has not. Keeps the inode in memory, unless
    /// nobody will find it after a crash.
    ///
    /// Said when they are there: before, whoever writes them back might come too early.
    pub(super) fn note_dirty(&self) {
        let (has_name, may_get_one) = {
            let core = self.core.read();
            (core.inode.links != 0, core.may_get_first_name)
        };
        if !has_name && !may_get_one || self.is_dirty.load(Ordering::Acquire) {
            return;
        }
        // Whoever calls this uses the inode, so it is there.
        if let Some(node) = self.tree.nodes.get(self.number.id()) {
            if !has_name {
                let mut unnamed = self.tree.dirty.unnamed.lock();
                unnamed.insert(self.number, Arc::downgrade(&node));
                return;
            }
            let mut nodes = self.tree.dirty.nodes.lock();
            // Whoever closes the tree takes the list once, after saying so.
            if !self.tree.is_closed() && !self.is_dirty.swap(true, Ordering::AcqRel) {
                nodes.push_back(node);
            }
        }
    }
}

impl Tree {
    /// Keeps an inode that lost its last name no longer than somebody uses it. Its contents need not
    /// be written any more.
    pub(super) fn let_go(&self, node: &Node) {
        self.nodes.release(node.number.id());
        self.keep_no_longer(node);
        if !node.is_dirty.load(Ordering::Acquire) {
            return;
        }
        let noted = {
            let mut nodes = self.dirty.nodes.lock();
            let place = nodes.iter().position(|noted| noted.number == node.number);
            node.is_dirty.store(false, Ordering::Release);
            place.and_then(|place| nodes.remove(place))
        };
        drop(noted);
    }

    /// Notes that a file could not be written, which is on the list again.
    pub(super) fn note_failure(&self, error: &Error) {
        let mut failures = self.dirty.failures.lock();
        failures.count += 1;
        failures.last = Some(error.clone());
    }

    /// Writes the inodes back that are dirty now, and waits for those that others write.
    ///
    /// # Errors
    /// That of any of them.
    pub(super) fn write_dirty(&self) -> Result<()> {
        let before = self.dirty.failures.lock().count;
        {
            let _in_flight = self.dirty.in_flight.read();
            // Errors are among the failures.
            self.write_back_all(&self.take_dirty());
        }
        drop(self.dirty.in_flight.write());
        let failures = self.dirty.failures.lock();
        match &failures.last {
            Some(error) if failures.count > before => Err(error.clone()),
            Some(_) | None => Ok(()),
        }
    }

    /// Takes the inodes that are dirty now off the list: who takes them writes them back.
    pub(super) fn take_dirty(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.dirty.nodes.lock();
        for node in &*nodes {
            node.is_dirty.store(false, Ordering::Release);
        }
        let unnamed = std::mem::take(&mut *self.dirty.unnamed.lock());
        let unnamed = unnamed.into_values().filter_map(|node| node.upgrade());
        nodes.drain(..).chain(unnamed).collect()
    }

    /// Writes files back while too much of the memory is dirty, the caller's or not: a file that
    /// nobody writes to any more would keep its pages dirty, and others from theirs. The caller
    /// holds no lock.
    ///
    /// An error is told to whoever syncs the file it belongs to.
    pub(super) fn relieve(&self) {
        let budget = &self.budget;
        let limit = budget.dirty_limit_bytes();
        if budget.dirty_bytes() <= limit {
            return;
        }
        // Each file once: one that cannot be written is back on the list.
        let mut left = self.dirty.nodes.lock().len();
        while left > 0 && budget.dirty_bytes() > limit / 2 {
            let _in_flight = self.dirty.in_flight.read();
            let nodes: Vec<_> = {
                let mut nodes = self.dirty.nodes.lock();
                let count = TOGETHER_MAX.min(left).min(nodes.len());
                for node in nodes.range(..count) {
                    node.is_dirty.store(false, Ordering::Release);
                }
                nodes.drain(..count).collect()
            };
            if nodes.is_empty() {
                return;
            }
            left -= nodes.len();
            self.write_back_all(&nodes);
        }
    }
}
