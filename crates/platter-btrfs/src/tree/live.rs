//! Trees of the running transaction, which readers follow as well.

use std::fmt;
use std::sync::{Arc, OnceLock};

use parking_lot::{RwLock, RwLockReadGuard};

use super::edit::TreeState;
use crate::ondisk::{Key, TreeId};

/// A tree now, and what is stored of it.
#[derive(Debug)]
pub struct Versions {
    /// In the running transaction.
    pub now: TreeState,
    /// What its root item, or the superblock, says.
    pub stored: TreeState,
    /// The key of its root item; `None` if the superblock has its root.
    pub item: Option<Key>,
}

/// The trees that transactions change. None is removed, so that a reader holds the lock of one for as long as it
/// has a position in it.
#[derive(Default)]
pub struct LiveTrees {
    first: OnceLock<Box<Node>>,
}

struct Node {
    id: TreeId,
    /// The tree, and its root.
    // Lock rank 9.1.
    versions: Arc<RwLock<Versions>>,
    next: OnceLock<Box<Node>>,
}

impl LiveTrees {
    /// Adds a tree, which is not among them.
    pub fn add(&self, id: TreeId, versions: Arc<RwLock<Versions>>) {
        let mut node = Box::new(Node {
            id,
            versions,
            next: OnceLock::new(),
        });
        let mut place = &self.first;
        while let Err(back) = place.set(node) {
            node = back;
            let Some(there) = place.get() else { return };
            place = &there.next;
        }
    }

    /// Keeps a tree as it is now; `None` if no transaction changes it. A thread may read a tree that it reads
    /// already.
    pub fn read(&self, id: TreeId) -> Option<RwLockReadGuard<'_, Versions>> {
        let mut place = &self.first;
        while let Some(node) = place.get() {
            if node.id == id {
                return Some(node.versions.read_recursive());
            }
            place = &node.next;
        }
        None
    }
}

impl Drop for LiveTrees {
    /// One after the other: there may be many.
    fn drop(&mut self) {
        let mut next = self.first.take();
        while let Some(mut node) = next {
            next = node.next.take();
        }
    }
}

impl fmt::Debug for LiveTrees {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LiveTrees").finish_non_exhaustive()
    }
}
