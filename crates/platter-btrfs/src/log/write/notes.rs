//! What is remembered of the running transaction: names that were removed in it, and what its logs have.

use std::collections::{BTreeMap, BTreeSet};

use platter_block::lock::Mutex;

use crate::ondisk::{Generation, TreeId};

/// The most names whose removal is remembered.
const REMOVED_MAX: usize = 1 << 16;

/// What inodes' operations and the logs of a mount remember.
#[derive(Debug, Default)]
pub struct LogNotes {
    /// What is remembered. Changed with the tree of the subvolume locked, or while it does not change.
    of_transaction: Mutex<Notes>,
}

/// An inode that the log has.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct LoggedInode {
    /// The sequence of its item when all of it was logged, and the number of that log.
    pub(super) whole: Option<(u64, u64)>,
}

/// What is remembered of one transaction, by subvolume.
#[derive(Debug, Default)]
struct Notes {
    generation: Generation,
    of_trees: BTreeMap<TreeId, TreeNotes>,
    removed: usize,
}

/// What is remembered of a subvolume.
#[derive(Debug, Default)]
struct TreeNotes {
    /// Removed names by directory and index, with the inodes that had them.
    removed: BTreeMap<u64, BTreeMap<u64, u64>>,
    /// Inodes in the log.
    logged: BTreeMap<u64, LoggedInode>,
    /// Those of them whose names are others by now.
    stale: BTreeSet<u64>,
    /// Removed names of directories in the log: by directory and index.
    dead: BTreeSet<(u64, u64)>,
}

impl Notes {
    fn at(&mut self, generation: Generation) -> &mut Self {
        if self.generation != generation {
            *self = Self {
                generation,
                ..Self::default()
            };
        }
        self
    }
}

impl LogNotes {
    /// An inode gets a name. The tree is locked.
    pub fn add_name(&self, generation: Generation, tree: TreeId, inode: u64) {
        let mut notes = self.of_transaction.lock();
        if let Some(notes) = notes.at(generation).of_trees.get_mut(&tree)
            && notes.logged.contains_key(&inode)
        {
            notes.stale.insert(inode);
        }
    }

    /// An inode loses the name that a directory has under an index. The tree is locked. Returns `false` if there
    /// are too many to remember.
    #[must_use]
    pub fn remove_name(
        &self,
        generation: Generation,
        tree: TreeId,
        (dir, index): (u64, u64),
        inode: u64,
    ) -> bool {
        let mut guard = self.of_transaction.lock();
        let all = guard.at(generation);
        all.removed += 1;
        if all.removed > REMOVED_MAX {
            return false;
        }
        let notes = all.of_trees.entry(tree).or_default();
        // The first one that had the index may be that of the last commit.
        notes
            .removed
            .entry(dir)
            .or_default()
            .entry(index)
            .or_insert(inode);
        if notes.logged.contains_key(&inode) {
            notes.stale.insert(inode);
        }
        if notes.logged.contains_key(&dir) {
            notes.dead.insert((dir, index));
        }
        true
    }

    /// The greatest index of the names that a directory lost. A log that gives it to another name cannot be replayed by
    /// Linux, which inserts entries before it removes others.
    #[must_use]
    pub fn last_removed(&self, generation: Generation, tree: TreeId, dir: u64) -> Option<u64> {
        let mut notes = self.of_transaction.lock();
        let notes = notes.at(generation).of_trees.get(&tree)?;
        let (index, _) = notes.removed.get(&dir)?.last_key_value()?;
        Some(*index)
    }

    /// The log that has all of an inode as it is, which its sequence says.
    #[must_use]
    pub fn log_of(
        &self,
        generation: Generation,
        tree: TreeId,
        inode: u64,
        sequence: u64,
    ) -> Option<u64> {
        let mut notes = self.of_transaction.lock();
        let notes = notes.at(generation).of_trees.get(&tree)?;
        let (logged, log) = notes.logged.get(&inode)?.whole?;
        (logged == sequence).then_some(log)
    }

    /// Takes what the log of a subvolume has to be changed for: inodes with other names, and removed names of
    /// directories. The tree is locked.
    pub(super) fn take_stale(
        &self,
        generation: Generation,
        tree: TreeId,
    ) -> (BTreeSet<u64>, BTreeSet<(u64, u64)>) {
        let mut notes = self.of_transaction.lock();
        match notes.at(generation).of_trees.get_mut(&tree) {
            Some(notes) => (
                std::mem::take(&mut notes.stale),
                std::mem::take(&mut notes.dead),
            ),
            None => Default::default(),
        }
    }

    /// Whether the log has an inode.
    pub(super) fn is_logged(&self, generation: Generation, tree: TreeId, inode: u64) -> bool {
        let mut notes = self.of_transaction.lock();
        let notes = notes.at(generation).of_trees.get(&tree);
        notes.is_some_and(|notes| notes.logged.contains_key(&inode))
    }

    /// The names that a directory lost: their indices, with the inodes that had them.
    pub(super) fn removed_of(
        &self,
        generation: Generation,
        tree: TreeId,
        dir: u64,
    ) -> BTreeMap<u64, u64> {
        let mut notes = self.of_transaction.lock();
        let notes = notes.at(generation).of_trees.get(&tree);
        let removed = notes.and_then(|notes| notes.removed.get(&dir));
        removed.cloned().unwrap_or_default()
    }

    /// Says what is logged from the tree as it is, which is locked, and what is not in the log any more.
    pub(super) fn set_logged(
        &self,
        generation: Generation,
        tree: TreeId,
        logged: impl IntoIterator<Item = (u64, Option<LoggedInode>)>,
    ) {
        let mut notes = self.of_transaction.lock();
        let notes = notes.at(generation).of_trees.entry(tree).or_default();
        for (inode, state) in logged {
            let Some(state) = state else {
                notes.logged.remove(&inode);
                continue;
            };
            let known = notes.logged.entry(inode).or_insert(state);
            if state.whole.is_some() {
                *known = state;
            }
        }
    }
}
