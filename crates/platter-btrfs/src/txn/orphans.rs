//! Inodes that lost their last name in the running transaction. Their items are inserted when it is committed: most
//! are deleted before.

use std::collections::BTreeSet;

use platter_block::lock::Mutex;
use platter_vfs::Result;

use super::{Handle, WriteContext};
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::ORPHAN_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};

/// The most inodes that wait: their items fit in a leaf.
const DELAYED_MAX: usize = 64;
/// Tree blocks that inserting their items takes: a path to a leaf, split on all levels.
const DELAYED_BLOCKS: u64 = 16;

/// Inodes of one subvolume.
#[derive(Debug, Default)]
pub(super) struct DelayedOrphans {
    /// Those whose items the commit inserts.
    waiting: Mutex<Waiting>,
}

#[derive(Debug, Default)]
struct Waiting {
    tree: TreeId,
    inodes: BTreeSet<u64>,
}

/// The key of the item that makes the next mount delete an inode.
#[must_use]
pub(crate) fn orphan_key(inode: u64) -> Key {
    Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, inode)
}

fn reserved_bytes(fs: &WriteContext) -> u64 {
    DELAYED_BLOCKS * fs.node_bytes()
}

impl Handle<'_> {
    /// Makes the commit of this transaction insert the item of an orphan. Returns `false` if that has to be done now.
    #[must_use]
    pub fn delay_orphan(&self, tree: TreeId, inode: u64) -> bool {
        let mut waiting = self.fs.orphans.waiting.lock();
        let is_first = waiting.inodes.is_empty();
        if !is_first && (waiting.tree != tree || waiting.inodes.len() >= DELAYED_MAX) {
            return false;
        }
        waiting.tree = tree;
        waiting.inodes.insert(inode);
        if is_first {
            // This handle has reserved as much, and does not need it.
            let bytes = reserved_bytes(self.fs);
            self.fs.reservations.keep_metadata(bytes);
        }
        true
    }

    /// Says that the item of an orphan is not needed. Returns `false` if it has been inserted.
    #[must_use]
    pub fn withdraw_orphan(&self, tree: TreeId, inode: u64) -> bool {
        let mut waiting = self.fs.orphans.waiting.lock();
        let is_waiting = waiting.tree == tree && waiting.inodes.remove(&inode);
        if is_waiting && waiting.inodes.is_empty() {
            self.fs
                .reservations
                .release_metadata(reserved_bytes(self.fs));
        }
        is_waiting
    }

    /// Inserts the items of the orphans of a subvolume now.
    pub fn insert_orphans(&self, tree: TreeId) -> Result<()> {
        insert(self.fs, self.generation, &take(self.fs, Some(tree)))
    }
}

/// Inserts the items of all that wait. No handle is open.
pub(super) fn insert_all(fs: &WriteContext, generation: Generation) -> Result<()> {
    insert(fs, generation, &take(fs, None))
}

/// Forgets those of a tree that is dropped.
pub(super) fn forget(fs: &WriteContext, tree: TreeId) {
    let _ = take(fs, Some(tree));
}

fn take(fs: &WriteContext, tree: Option<TreeId>) -> Waiting {
    let mut waiting = fs.orphans.waiting.lock();
    if waiting.inodes.is_empty() || tree.is_some_and(|tree| tree != waiting.tree) {
        return Waiting::default();
    }
    fs.reservations.release_metadata(reserved_bytes(fs));
    std::mem::take(&mut *waiting)
}

fn insert(fs: &WriteContext, generation: Generation, orphans: &Waiting) -> Result<()> {
    if orphans.inodes.is_empty() {
        return Ok(());
    }
    fs.edit(generation, orphans.tree, |editor| {
        let mut keys = orphans.inodes.iter().copied().map(orphan_key);
        keys.try_for_each(|key| editor.set(key, &[]))
    })
}
