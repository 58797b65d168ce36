//! A subvolume as it is in the running transaction, and what the last commit has of it.

use std::ops::RangeInclusive;

use platter_ondisk::Corrupt;
use platter_vfs::Result;

use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key};
use crate::tree::edit::TreeEditRule;
use crate::tree::{Cursor, DelayedInodes, Tree, TreeBlock, TreeBlocks};

/// The types of items that have names of an inode.
pub(super) const REFS: RangeInclusive<ItemKind> = ItemKind::INODE_REF..=ItemKind::INODE_EXTREF;

/// Both versions. Neither changes meanwhile.
#[derive(Debug, Clone, Copy)]
pub(super) struct View<'t> {
    pub(super) blocks: &'t TreeBlocks,
    pub(super) now: Tree,
    /// Inode items that are to be changed in it.
    pub(super) delayed: &'t DelayedInodes,
    pub(super) committed: Tree,
    /// The running transaction.
    pub(super) generation: Generation,
    pub(super) sector_bytes: u32,
    /// Whether holes of files have no items.
    pub(super) leaves_holes: bool,
}

/// A name of an inode.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct LinkName {
    pub(super) parent: u64,
    pub(super) index: u64,
    pub(super) name: Vec<u8>,
    pub(super) is_extended: bool,
}

/// An entry of a directory.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Entry {
    pub(super) location: Location,
    pub(super) name: Vec<u8>,
}

impl View<'_> {
    pub(super) fn get(&self, tree: Tree, key: Key) -> Result<Option<Vec<u8>>> {
        let mut cursor = Cursor::new(self.blocks, tree);
        cursor.seek(key)?;
        let item = cursor.item().filter(|(found, _)| *found == key);
        Ok(item.map(|(_, data)| data.to_vec()))
    }

    /// An inode that has a name now.
    pub(super) fn named_inode(&self, number: u64) -> Result<Option<InodeItem>> {
        let key = Key::new(number, ItemKind::INODE_ITEM, 0);
        let item = match self.delayed.get(key) {
            Some(delayed) => Some(InodeItem::decode(delayed, self.now.locus(key))?),
            None => self.inode(self.now, key)?,
        };
        Ok(item.filter(|item| item.links > 0))
    }

    /// An inode that the last commit has.
    pub(super) fn committed_inode(&self, number: u64) -> Result<Option<InodeItem>> {
        self.inode(self.committed, Key::new(number, ItemKind::INODE_ITEM, 0))
    }

    fn inode(&self, tree: Tree, key: Key) -> Result<Option<InodeItem>> {
        let data = self.get(tree, key)?;
        let decode = |data: Vec<u8>| InodeItem::decode(&data, tree.locus(key));
        Ok(data.map(decode).transpose()?)
    }

    /// The items of one inode and of some types.
    pub(super) fn items(
        &self,
        tree: Tree,
        number: u64,
        kinds: &RangeInclusive<ItemKind>,
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut cursor = Cursor::new(self.blocks, tree);
        cursor.seek(Key::new(number, *kinds.start(), 0))?;
        while let Some((key, data)) = cursor.item()
            && key.object == number
            && key.kind <= *kinds.end()
        {
            found.push((key, data.to_vec()));
            cursor.step()?;
        }
        Ok(found)
    }

    /// The names of an inode.
    pub(super) fn names(&self, tree: Tree, number: u64) -> Result<Vec<LinkName>> {
        let mut names = Vec::new();
        for (key, data) in self.items(tree, number, &REFS)? {
            let is_extended = key.kind == ItemKind::INODE_EXTREF;
            let refs = if is_extended {
                InodeRef::decode_all_extended(&data, tree.locus(key))?
            } else {
                InodeRef::decode_all(&data, key.offset, tree.locus(key))?
            };
            names.extend(refs.iter().map(|it| LinkName {
                parent: it.parent,
                index: it.index,
                name: it.name.to_vec(),
                is_extended,
            }));
        }
        Ok(names)
    }

    /// What a directory has under a name.
    pub(super) fn named(&self, tree: Tree, dir: u64, name: &[u8]) -> Result<Option<Location>> {
        let key = Key::new(dir, ItemKind::DIR_ITEM, name_hash(name));
        let Some(data) = self.get(tree, key)? else {
            return Ok(None);
        };
        let entries = DirItem::decode_all(key, &data, tree.locus(key))?;
        let entry = entries.iter().find(|entry| entry.name == name);
        Ok(entry.map(|entry| entry.location))
    }

    /// What a directory has under an index.
    pub(super) fn indexed(&self, tree: Tree, dir: u64, index: u64) -> Result<Option<Entry>> {
        let key = Key::new(dir, ItemKind::DIR_INDEX, index);
        let Some(data) = self.get(tree, key)? else {
            return Ok(None);
        };
        let entries = DirItem::decode_all(key, &data, tree.locus(key))?;
        Ok(entries.first().map(|entry| Entry {
            location: entry.location,
            name: entry.name.to_vec(),
        }))
    }

    /// Whether the last commit has an item of an inode from a key on, of the key's type.
    pub(super) fn had_from(&self, key: Key) -> Result<bool> {
        let mut cursor = Cursor::new(self.blocks, self.committed);
        cursor.seek(key)?;
        let found = cursor.key();
        Ok(found.is_some_and(|found| (found.object, found.kind) == (key.object, key.kind)))
    }

    /// Passes the items from `first` to `last` that are in leaves of the running transaction: all that changed in
    /// it, and others next to them.
    pub(super) fn changed(
        &self,
        first: Key,
        last: Key,
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let root = self.now.root;
        if root.generation < self.generation {
            return Ok(());
        }
        let expected = Expected {
            level: Some(root.level),
            generation: Some(root.generation),
            tree: Some(self.now.id),
            ..Expected::default()
        };
        let block = self.blocks.read(root.logical, &expected)?;
        self.changed_below(&block, None, (first, last), visit)
    }

    /// As [`changed`](Self::changed), below a block, whose level bounds the depth.
    fn changed_below(
        &self,
        block: &TreeBlock,
        end: Option<Key>,
        (first, last): (Key, Key),
        visit: &mut dyn FnMut(Key, &[u8]) -> Result<()>,
    ) -> Result<()> {
        let Some(level) = block.level().checked_sub(1) else {
            let leaf = block.leaf();
            for index in leaf.lower_bound(first)..leaf.len() {
                match leaf.item(index) {
                    Some((key, data)) if key <= last => visit(key, data)?,
                    Some(_) | None => break,
                }
            }
            return Ok(());
        };
        let node = block.node();
        for index in node.index_for(first)..node.len() {
            let broken = || Corrupt::new(self.now.locus(first), TreeEditRule::Shape);
            let pointer = node.pointer(index).ok_or_else(broken)?;
            if pointer.key > last {
                break;
            }
            if pointer.generation < self.generation {
                continue;
            }
            let end = node.pointer(index + 1).map(|next| next.key).or(end);
            let expected = Expected {
                level: Some(level),
                generation: Some(pointer.generation),
                tree: Some(self.now.id),
                first_key: Some(pointer.key),
                end_key: end,
            };
            let child = self.blocks.read(pointer.logical, &expected)?;
            self.changed_below(&child, end, (first, last), visit)?;
        }
        Ok(())
    }
}
