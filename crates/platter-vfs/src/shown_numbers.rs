//! Inode numbers shown to users, where several trees number their inodes independently.
//!
//! Programs that copy and count take two files with equal numbers for hard links of one file, so that a
//! number must be unique in the whole filesystem.

use hashbrown::HashMap;
use platter_block::lock::RwLock;

use crate::InodeId;

/// Bits of a shown number that are the inode's own number; those above are the slot of its tree.
const NUMBER_BITS: u32 = 48;
/// Slots that fit above them, below [`FIRST_LISTED`].
const SLOTS_MAX: usize = 1 << (63 - NUMBER_BITS);
/// From here on up are the numbers of inodes that are listed one by one.
const FIRST_LISTED: u64 = 1 << 63;

/// Assigns each tree a slot, which no other tree has while the filesystem is mounted: an inode is shown
/// with its own number in the low 48 bits and the slot of its tree above. The first tree has slot 0, so
/// that its inodes are shown with their own numbers. Inodes whose number is longer, and those of trees
/// that got no slot, are listed one by one.
///
/// # Invariants
/// - An inode is shown with one number as long as the filesystem is mounted.
/// - A number below `FIRST_LISTED` is shown for one inode only, whether that exists or not.
#[derive(Debug)]
pub struct ShownNumbers {
    first: u64,
    /// Numbers of inodes that are shown to users.
    slots: RwLock<Slots>,
}

#[derive(Debug, Default)]
struct Slots {
    trees: Vec<u64>,
    by_tree: HashMap<u64, u64>,
    listed: Vec<InodeId>,
    by_inode: HashMap<InodeId, u64>,
}

impl ShownNumbers {
    /// Assigns slots to the existing trees, in their order.
    pub fn new(first: u64, others: impl IntoIterator<Item = u64>) -> Self {
        let mut slots = Slots::default();
        for tree in std::iter::once(first).chain(others) {
            slots.slot_of(tree);
        }
        Self {
            first,
            slots: RwLock::new(slots),
        }
    }

    /// The number to show for an inode. A tree that has no slot gets the next one.
    #[must_use]
    pub fn shown(&self, id: InodeId) -> u64 {
        if id.number < 1 << NUMBER_BITS {
            if id.tree == self.first {
                return id.number;
            }
            let known = self.slots.read().by_tree.get(&id.tree).copied();
            let slot = known.or_else(|| self.slots.write().slot_of(id.tree));
            if let Some(slot) = slot {
                return slot << NUMBER_BITS | id.number;
            }
        }
        let listed = self.slots.read().by_inode.get(&id).copied();
        listed.unwrap_or_else(|| self.slots.write().list(id))
    }

    /// The inode that is shown with this number; `None` where none can be.
    #[must_use]
    pub fn inode(&self, shown: u64) -> Option<InodeId> {
        if shown < 1 << NUMBER_BITS {
            return Some(InodeId {
                tree: self.first,
                number: shown,
            });
        }
        let slots = self.slots.read();
        if shown >= FIRST_LISTED {
            let index = usize::try_from(shown - FIRST_LISTED).ok()?;
            return slots.listed.get(index).copied();
        }
        let slot = usize::try_from(shown >> NUMBER_BITS).ok()?;
        Some(InodeId {
            tree: *slots.trees.get(slot)?,
            number: shown & ((1 << NUMBER_BITS) - 1),
        })
    }
}

impl Slots {
    /// The slot of a tree, which is its first use if it had none.
    fn slot_of(&mut self, tree: u64) -> Option<u64> {
        if let Some(&slot) = self.by_tree.get(&tree) {
            return Some(slot);
        }
        if self.trees.len() >= SLOTS_MAX {
            return None;
        }
        let slot = self.trees.len() as u64;
        self.trees.push(tree);
        self.by_tree.insert(tree, slot);
        Some(slot)
    }

    fn list(&mut self, id: InodeId) -> u64 {
        let next = FIRST_LISTED + self.listed.len() as u64;
        let number = *self.by_inode.entry(id).or_insert(next);
        if number == next {
            self.listed.push(id);
        }
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn id(tree: u64, number: u64) -> InodeId {
        InodeId { tree, number }
    }

    #[test]
    fn first_tree_shows_its_own_numbers() {
        let numbers = ShownNumbers::new(5, [256, 257]);
        assert_eq!(numbers.shown(id(5, 257)), 257);
        assert_eq!(numbers.shown(id(256, 257)), (1 << 48) + 257);
        assert_eq!(numbers.shown(id(257, 257)), (2 << 48) + 257);
    }

    #[test]
    fn shown_numbers_lead_back_to_their_inodes() {
        let numbers = ShownNumbers::new(5, [256]);
        let ids = [
            id(5, 256),
            id(256, 256),
            id(300, 1),
            id(5, 1 << 48),
            id(256, u64::MAX),
            id(u64::MAX, (1 << 48) - 1),
        ];
        let shown = ids.map(|id| numbers.shown(id));
        assert_eq!(shown.map(|number| numbers.inode(number)), ids.map(Some));
        assert_eq!(ids.map(|id| numbers.shown(id)), shown);
        for unused in [9 << 48, u64::MAX, FIRST_LISTED + 2] {
            assert_eq!(numbers.inode(unused), None);
        }
    }

    #[test]
    fn trees_beyond_the_slots_are_listed() {
        let numbers = ShownNumbers::new(0, 1..SLOTS_MAX as u64 + 3);
        let last = SLOTS_MAX as u64 - 1;
        assert_eq!(numbers.shown(id(last, 7)), last << 48 | 7);
        let listed = [last + 1, last + 2].map(|tree| numbers.shown(id(tree, 7)));
        assert_eq!(listed, [FIRST_LISTED, FIRST_LISTED + 1]);
        assert_eq!(numbers.inode(listed[1]), Some(id(last + 2, 7)));
    }
}
