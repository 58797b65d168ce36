//! Inodes with contents in the cache that the device does not have yet: kept in memory until it
//! has.

use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;

use parking_lot::Mutex;

use super::{Node, Tree};
use crate::ondisk::InodeNr;

/// The dirty inodes of a filesystem, each of which has `is_dirty` set.
#[derive(Debug, Default)]
pub(super) struct DirtyNodes {
    nodes: Mutex<HashMap<InodeNr, Arc<Node>>>,
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
            let mut nodes = self.tree.dirty.nodes.lock();
            nodes.insert(self.number, node);
        }
    }
}

impl Tree {
    /// Keeps an inode that lost its last name no longer than somebody uses it. Its contents need not
    /// be written any more.
    pub(super) fn let_go(&self, node: &Node) {
        self.nodes.release(node.number.id());
        let noted = self.dirty.nodes.lock().remove(&node.number);
        node.is_dirty.store(false, Ordering::Release);
        drop(noted);
    }

    /// Takes the inodes that are dirty now off the list: who takes them writes them back.
    pub(super) fn take_dirty(&self) -> Vec<Arc<Node>> {
        let mut nodes = self.dirty.nodes.lock();
        let taken: Vec<_> = nodes.drain().map(|(_, node)| node).collect();
        for node in &taken {
            node.is_dirty.store(false, Ordering::Release);
        }
        taken
    }
}
