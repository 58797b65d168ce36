//! Trees of the running transaction, which readers follow as well.

use std::fmt;
use std::sync::{Arc, OnceLock};

use platter_block::lock::{RwLock, RwLockReadGuard, rank};

use super::delayed::DelayedInodes;
use super::edit::{RecentPaths, TreeState};
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
    /// The ways to what was changed last.
    pub recent: RecentPaths,
    /// What is in none of these yet.
    pub delayed: DelayedInodes,
}

/// The trees that transactions change. None is removed, so that a reader holds the lock of one for as long as it
/// has a position in it.
///
/// They are found by the digits of a hash, which no two numbers share: a node has a tree, and those below it whose
/// hashes go on with each digit.
#[derive(Default)]
pub struct LiveTrees {
    root: OnceLock<Box<Node>>,
}

/// Bits of a digit.
const DIGIT_BITS: u32 = 4;
/// An odd number, so that products with it differ where numbers do (2^64 over the golden ratio).
const MIX: u64 = 0x9e37_79b9_7f4a_7c15;

struct Node {
    id: TreeId,
    /// The tree, and its root.
    versions: Arc<RwLock<Versions, { rank(9, 1) }>>,
    below: [OnceLock<Box<Node>>; 1 << DIGIT_BITS],
}

/// The digits of a tree's hash.
fn digits(id: TreeId) -> impl Iterator<Item = usize> {
    let hash = id.0.wrapping_mul(MIX);
    let shifts = (0..u64::BITS / DIGIT_BITS).map(|nth| u64::BITS - (nth + 1) * DIGIT_BITS);
    shifts.map(move |shift| ((hash >> shift) & ((1 << DIGIT_BITS) - 1)) as usize)
}

impl LiveTrees {
    /// Adds a tree, which is not among them.
    pub fn add(&self, id: TreeId, versions: Arc<RwLock<Versions, { rank(9, 1) }>>) {
        debug_assert!(self.read(id).is_none(), "{id:?} is among them");
        let mut node = Box::new(Node {
            id,
            versions,
            below: Default::default(),
        });
        let (mut place, mut digits) = (&self.root, digits(id));
        while let Err(back) = place.set(node) {
            node = back;
            let below = place.get().map(|there| &there.below);
            let next = digits.next().and_then(|digit| below?.get(digit));
            let Some(next) = next else { return };
            place = next;
        }
    }

    /// Keeps a tree as it is now; `None` if no transaction changes it. A thread may read a tree that it reads
    /// already.
    pub fn read(&self, id: TreeId) -> Option<RwLockReadGuard<'_, Versions>> {
        let (mut place, mut digits) = (&self.root, digits(id));
        loop {
            let node = place.get()?;
            if node.id == id {
                return Some(node.versions.read_recursive());
            }
            place = node.below.get(digits.next()?)?;
        }
    }
}

impl fmt::Debug for LiveTrees {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("LiveTrees").finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::Generation;
    use crate::ondisk::superblock::RootPointer;
    use crate::tree::Tree;

    fn versions(id: TreeId) -> Arc<RwLock<Versions, { rank(9, 1) }>> {
        let root = RootPointer::default();
        let now = TreeState {
            tree: Tree { id, root },
            last_snapshot: Generation(0),
            is_shareable: true,
            used_bytes: 0,
        };
        Arc::new(RwLock::new(Versions {
            now,
            stored: now,
            item: None,
            recent: RecentPaths::default(),
            delayed: DelayedInodes::default(),
        }))
    }

    impl LiveTrees {
        /// The nodes on the way to a tree.
        fn depth_of(&self, id: TreeId) -> usize {
            let (mut place, mut digits, mut depth) = (&self.root, digits(id), 1);
            while let Some(node) = place.get().filter(|node| node.id != id) {
                place = &node.below[digits.next().unwrap()];
                depth += 1;
            }
            depth
        }
    }

    #[test]
    fn each_of_many_trees_is_found_on_a_short_way() {
        let live = LiveTrees::default();
        let numbers = (1..12)
            .chain(256..5000)
            .chain([u64::MAX - 8, u64::MAX - 255]);
        for id in numbers.clone().map(TreeId) {
            assert!(live.read(id).is_none());
            live.add(id, versions(id));
        }
        for id in numbers.map(TreeId) {
            let found = live.read(id).unwrap();
            assert_eq!(found.now.id(), id);
            assert!(live.depth_of(id) <= 8, "{id:?}");
        }
        assert!(live.read(TreeId(5000)).is_none());
    }
}
