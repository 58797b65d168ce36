//! Inode items that changed and are not in their tree yet: it is changed once for all changes of one.

use std::collections::BTreeMap;

use zerocopy::IntoBytes;

use crate::ondisk::Key;
use crate::ondisk::inode_item::DiskInodeItem;
use crate::ondisk::key::ItemKind;

/// What inode items of one tree are to hold. Readers of the tree find that already.
///
/// # Invariants
/// - The tree has an item of each of these inodes.
/// - Blocks are reserved for each one whose leaf was not the transaction's own.
#[derive(Debug, Default)]
pub struct DelayedInodes {
    /// By inode number.
    items: BTreeMap<u64, DelayedInode>,
    /// Blocks that were reserved for those that are gone.
    released: u32,
}

#[derive(Debug)]
struct DelayedInode {
    item: DiskInodeItem,
    /// Blocks that are reserved to copy the way to its leaf.
    blocks: u32,
}

/// The inode of an item that may be delayed.
fn inode_of(key: Key) -> Option<u64> {
    (key.kind == ItemKind::INODE_ITEM && key.offset == 0).then_some(key.object)
}

impl DelayedInodes {
    /// How many there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.items.len()
    }

    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// What the item of a key is to hold, if that is delayed.
    #[must_use]
    pub fn get(&self, key: Key) -> Option<&[u8]> {
        let delayed = self.items.get(&inode_of(key)?)?;
        Some(delayed.item.as_bytes())
    }

    /// Replaces what is delayed of an inode. Returns `false` if nothing is.
    #[must_use]
    pub fn replace(&mut self, number: u64, item: DiskInodeItem) -> bool {
        let Some(delayed) = self.items.get_mut(&number) else {
            return false;
        };
        delayed.item = item;
        true
    }

    /// Delays the item of an inode for which nothing is delayed, with so many blocks reserved.
    pub fn add(&mut self, number: u64, item: DiskInodeItem, blocks: u32) {
        self.items.insert(number, DelayedInode { item, blocks });
    }

    /// Takes the first one, by inode number.
    pub fn take_first(&mut self) -> Option<(u64, DiskInodeItem)> {
        let (number, delayed) = self.items.pop_first()?;
        self.released += delayed.blocks;
        Some((number, delayed.item))
    }

    /// Forgets those with keys from `first` to `last`: the tree holds something else, or nothing. Returns whether there
    /// were any.
    pub fn cancel(&mut self, first: Key, last: Key) -> bool {
        let is_other = first == last && inode_of(first).is_none();
        if self.items.is_empty() || first > last || is_other {
            return false;
        }
        let key = |number| Key::new(number, ItemKind::INODE_ITEM, 0);
        let gone = |number: &u64| (first..=last).contains(&key(*number));
        let found = self.items.range(first.object..=last.object);
        let found: Vec<u64> = found.map(|(number, _)| *number).filter(gone).collect();
        for number in &found {
            let delayed = self.items.remove(number);
            self.released += delayed.map_or(0, |delayed| delayed.blocks);
        }
        !found.is_empty()
    }

    /// Forgets all: the tree goes.
    pub fn cancel_all(&mut self) {
        while self.take_first().is_some() {}
    }

    /// Takes the number of blocks that were reserved for those that are gone.
    #[must_use]
    pub fn take_released(&mut self) -> u32 {
        std::mem::take(&mut self.released)
    }
}

#[cfg(test)]
mod tests {
    use zerocopy::FromZeros;

    use super::*;

    fn item(fill: u64) -> DiskInodeItem {
        let mut item = DiskInodeItem::new_zeroed();
        item.size_bytes = fill.into();
        item
    }

    fn key(number: u64) -> Key {
        Key::new(number, ItemKind::INODE_ITEM, 0)
    }

    #[test]
    fn blocks_are_released_with_what_they_were_reserved_for() {
        let mut delayed = DelayedInodes::default();
        for number in 1..=5 {
            assert!(!delayed.replace(number, item(number)));
            delayed.add(number, item(number), 3);
        }
        assert!(delayed.replace(2, item(7)));
        assert_eq!(delayed.get(key(2)), Some(item(7).as_bytes()));
        assert_eq!(delayed.get(Key::new(2, ItemKind::INODE_REF, 0)), None);
        assert_eq!(delayed.take_released(), 0);

        let all = |number| {
            (
                Key::new(number, ItemKind(0), 0),
                Key::new(number, ItemKind(u8::MAX), u64::MAX),
            )
        };
        let (first, last) = all(3);
        assert!(delayed.cancel(first, last));
        assert_eq!(delayed.get(key(3)), None);
        assert_eq!(delayed.take_released(), 3);
        // Other items of an inode are not delayed.
        let names = |number| Key::new(number, ItemKind::INODE_REF, 0);
        assert!(!delayed.cancel(names(4), names(4)));
        assert_eq!((delayed.len(), delayed.take_released()), (4, 0));

        let first = delayed
            .take_first()
            .map(|(number, item)| (number, item.size_bytes.get()));
        assert_eq!((first, delayed.take_released()), (Some((1, 1)), 3));
        delayed.cancel_all();
        assert!(delayed.is_empty());
        assert_eq!(delayed.take_released(), 9);
    }
}
