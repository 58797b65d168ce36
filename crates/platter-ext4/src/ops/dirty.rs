//! Inodes with contents in the cache that the device does not have yet: kept in memory until it
//! has.

use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use parking_lot::Mutex;

use super::{Node, Tree};

/// The dirty inodes of a filesystem, those first that have been so for longest. Each is there once,
/// and has `is_dirty` set.
#[derive(Debug, Default)]
pub(super) struct DirtyNodes {
    nodes: Mutex<VecDeque<Arc<Node>>>,
    /// Writes over blocks that were a file's before, of all files, and those of them that a sync of
    /// everything has had flushed.
    pub(super) overwrites: AtomicU64,
    pub(super) flushed: AtomicU64,
}

impl Node {
    /// Says that the cache is about to get contents that the device has not. Keeps the inode in
    /// memory, unless nobody will find it after a crash.
    pub(super) fn note_dirty(&self) {
        if self.core.read().inode.links == 0 {
            return;
        }
        if self.is_dirty.swap(true, Ordering::AcqRel) {
            return;
        }
        // Whoever calls this uses the inode, so it is there.
        if let Some(node) = self.tree.nodes.get(self.number.id()) {
            self.tree.dirty.nodes.lock().push_back(node);
        }
    }
}

impl Tree {
    /// Keeps an inode that lost its last name no longer than somebody uses it. Its contents need not
    /// be written any more.
    pub(super) fn let_go(&self, node: &Node) {
        self.nodes.release(node.number.id());
        if !node.is_dirty.load(Ordering::Acquire) {
            return;
        }
        let noted = {
            let mut nodes = self.dirty.nodes.lock();
            let place = nodes.iter().position(|noted| noted.number == node.number);
            place.and_then(|place| nodes.remove(place))
        };
        node.is_dirty.store(false, Ordering::Release);
        drop(noted);
    }

    /// Takes the inodes that are dirty now off the list: who takes them writes them back.
    pub(super) fn take_dirty(&self) -> Vec<Arc<Node>> {
        let taken: Vec<_> = self.dirty.nodes.lock().drain(..).collect();
        for node in &taken {
            node.is_dirty.store(false, Ordering::Release);
        }
        taken
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
        let count = self.dirty.nodes.lock().len();
        for _ in 0..count {
            if budget.dirty_bytes() <= limit / 2 {
                return;
            }
            let Some(node) = self.dirty.nodes.lock().pop_front() else {
                return;
            };
            node.is_dirty.store(false, Ordering::Release);
            let _ = node.write_back();
        }
    }
}
