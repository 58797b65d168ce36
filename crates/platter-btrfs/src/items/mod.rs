//! Items of a tree with changes over them that are only in memory, such as those of a log tree that
//! was replayed.

use std::collections::BTreeMap;
use std::ops::Bound;

use platter_block::lock::RwLockReadGuard;
use platter_vfs::Result;

use crate::ondisk::Key;
use crate::tree::{Cursor, Tree, TreeBlock, TreeBlocks, Versions};

/// Changes to the items of one tree: what each key holds instead, or that it holds nothing.
#[derive(Debug, Clone, Default)]
pub struct Overlay {
    items: BTreeMap<Key, Option<Box<[u8]>>>,
}

impl Overlay {
    /// Whether there are none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.items.is_empty()
    }

    /// Replaces or adds an item.
    pub fn set(&mut self, key: Key, data: &[u8]) {
        self.items.insert(key, Some(data.into()));
    }

    /// Removes an item.
    pub fn remove(&mut self, key: Key) {
        self.items.insert(key, None);
    }

    /// The changes in order of their keys.
    pub fn iter(&self) -> impl Iterator<Item = (Key, Option<&[u8]>)> {
        self.items.iter().map(|(key, data)| (*key, data.as_deref()))
    }

    fn at_or_after(&self, key: Key) -> Option<(Key, Option<&[u8]>)> {
        let (key, data) = self.items.range(key..).next()?;
        Some((*key, data.as_deref()))
    }

    fn before(&self, key: Key) -> Option<(Key, Option<&[u8]>)> {
        let below = (Bound::Unbounded, Bound::Excluded(key));
        let (key, data) = self.items.range(below).next_back()?;
        Some((*key, data.as_deref()))
    }
}

/// A position among the items of a tree and of the changes over it.
#[derive(Debug)]
pub struct ItemCursor<'t> {
    base: Cursor<'t>,
    /// Absent where nothing is changed, which is the usual case.
    overlay: Option<&'t Overlay>,
    /// Where the overlay has the item at the position.
    over: Option<(Key, &'t [u8])>,
    /// Whether there is an item at the position.
    is_at_item: bool,
    /// Keeps a tree that transactions change as it is, with what is delayed of it.
    stay: Option<RwLockReadGuard<'t, Versions>>,
}

impl<'t> ItemCursor<'t> {
    /// A cursor without a position.
    #[must_use]
    pub fn new(blocks: &'t TreeBlocks, tree: Tree, overlay: Option<&'t Overlay>) -> Self {
        Self {
            base: Cursor::new(blocks, tree),
            overlay: overlay.filter(|overlay| !overlay.is_empty()),
            over: None,
            is_at_item: false,
            stay: None,
        }
    }

    /// A cursor over a tree of the running transaction, which stays as it is meanwhile.
    #[must_use]
    pub fn of_live(blocks: &'t TreeBlocks, stay: RwLockReadGuard<'t, Versions>) -> Self {
        Self {
            base: Cursor::new(blocks, stay.now.tree),
            overlay: None,
            over: None,
            is_at_item: false,
            stay: Some(stay),
        }
    }

    /// The tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        self.base.tree()
    }

    /// The blocks from the root down to the leaf that has the item at the position; none where a change
    /// has it.
    pub fn path(&self) -> impl Iterator<Item = &TreeBlock> {
        let is_stored = self.over.is_none();
        self.base.path().filter(move |_| is_stored)
    }

    /// The item at the position; `None` after the last.
    #[must_use]
    pub fn item(&self) -> Option<(Key, &[u8])> {
        if !self.is_at_item {
            return None;
        }
        let (key, data) = self.over.or_else(|| self.base.item())?;
        let stay = self.stay.as_ref();
        let delayed = stay.and_then(|stay| stay.delayed.get(key));
        Some((key, delayed.unwrap_or(data)))
    }

    /// The key of the item at the position.
    #[must_use]
    pub fn key(&self) -> Option<Key> {
        self.item().map(|(key, _)| key)
    }

    /// Moves to the first item at or after `key`.
    pub fn seek(&mut self, key: Key) -> Result<()> {
        self.over = None;
        self.base.seek(key)?;
        if let Some(overlay) = self.overlay {
            self.merge_forward(overlay, key)?;
        }
        self.is_at_item = self.over.is_some() || self.base.item().is_some();
        Ok(())
    }

    /// Moves on from the base's position, which is the first at or after `from`, to the first item that
    /// is not removed.
    fn merge_forward(&mut self, overlay: &'t Overlay, from: Key) -> Result<()> {
        let mut from = from;
        loop {
            let base = self.base.key();
            let Some((key, data)) = overlay.at_or_after(from) else {
                return Ok(());
            };
            if base.is_some_and(|base| base < key) {
                return Ok(());
            }
            if let Some(data) = data {
                self.over = Some((key, data));
                return Ok(());
            }
            let Some(next) = key.successor() else {
                return Ok(());
            };
            if base == Some(key) {
                self.base.step()?;
            }
            from = next;
        }
    }

    /// Moves to the next item.
    pub fn step(&mut self) -> Result<()> {
        if self.overlay.is_none() {
            self.base.step()?;
            self.is_at_item = self.base.item().is_some();
            return Ok(());
        }
        if let Some(next) = self.key().and_then(Key::successor) {
            return self.seek(next);
        }
        self.is_at_item = false;
        Ok(())
    }

    /// Moves to the last item at or before `key`. Returns whether there is one.
    pub fn seek_at_or_before(&mut self, key: Key) -> Result<bool> {
        self.over = None;
        self.is_at_item = self.base.seek_at_or_before(key)?;
        let Some(overlay) = self.overlay else {
            return Ok(self.is_at_item);
        };
        // The first key that is not looked at; none if all are.
        let mut end = key.successor();
        loop {
            let changed = match end {
                Some(end) => overlay.before(end),
                None => overlay.before(Key::MAX).max(overlay.at_or_after(Key::MAX)),
            };
            let base = self.base.key().filter(|_| self.is_at_item);
            let Some((key, data)) = changed else {
                return Ok(self.is_at_item);
            };
            if base.is_some_and(|base| base > key) {
                return Ok(true);
            }
            if let Some(data) = data {
                self.over = Some((key, data));
                self.is_at_item = true;
                return Ok(true);
            }
            if base == Some(key) {
                self.is_at_item = self.base.step_back()?;
            }
            end = Some(key);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::key::ItemKind;
    use crate::tree::tests::{Sample, tree};

    fn key(object: u64) -> Key {
        Key::new(object, ItemKind::INODE_ITEM, 0)
    }

    /// The objects at each search and step agree with those of a map.
    fn agree(base: &[u64], set: &[u64], removed: &[u64]) {
        let mut sample = Sample::new();
        let items: Vec<_> = base.iter().map(|&at| (key(at), &b"base"[..])).collect();
        let root = sample.leaf(&items);
        let blocks = sample.blocks();
        let mut overlay = Overlay::default();
        let mut model: BTreeMap<u64, &[u8]> = base.iter().map(|&at| (at, &b"base"[..])).collect();
        for &at in set {
            overlay.set(key(at), b"over");
            model.insert(at, b"over");
        }
        for &at in removed {
            overlay.remove(key(at));
            model.remove(&at);
        }
        let mut cursor = ItemCursor::new(&blocks, tree(root, 0), Some(&overlay));
        let found =
            |cursor: &ItemCursor<'_>| cursor.item().map(|(key, data)| (key.object, data.to_vec()));
        let of = |entry: Option<(&u64, &&[u8])>| entry.map(|(at, data)| (*at, data.to_vec()));
        for at in 0..12 {
            cursor.seek(key(at)).unwrap();
            assert_eq!(found(&cursor), of(model.range(at..).next()), "seek {at}");
            let exists = cursor.seek_at_or_before(key(at)).unwrap();
            let expected = of(model.range(..=at).next_back());
            assert_eq!(exists, expected.is_some(), "before {at}");
            if exists {
                assert_eq!(found(&cursor), expected, "before {at}");
            }
        }
        cursor.seek(Key::MIN).unwrap();
        for entry in &model {
            assert_eq!(found(&cursor), of(Some(entry)));
            cursor.step().unwrap();
        }
        assert_eq!(cursor.item(), None);
    }

    #[test]
    fn changes_are_merged_in_order() {
        agree(&[2, 4, 6, 8], &[], &[]);
        agree(&[2, 4, 6, 8], &[1, 4, 5, 9], &[]);
        agree(&[2, 4, 6, 8], &[3], &[2, 8]);
        agree(&[2, 4, 6, 8], &[], &[2, 4, 6, 8]);
        agree(&[2, 4, 6, 8], &[7], &[4, 5, 6, 8]);
        agree(&[5], &[0, 11], &[5]);
    }
}
