//! Names that are added and removed: an entry by hash, an entry by index, and a reference of the inode.

#[cfg(test)]
mod tests;

use platter_ondisk::Corrupt;
use platter_vfs::{Condition, FileKind, Result};

use super::{DirectoryRule, FIRST_INDEX};
use crate::inode;
use crate::ondisk::checksum::{extref_hash, name_hash};
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::inode_ref::InodeRef;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, TreeId};
use crate::txn::Editor;

/// Items that adding or removing a name changes at most: both entries and the reference.
pub const NAME_ITEMS: u32 = 3;

/// A name of an inode in a directory.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct EntryName<'n> {
    /// The directory.
    pub dir: u64,
    /// The name.
    pub name: &'n [u8],
    /// The inode that it names.
    pub inode: u64,
}

/// A reference of an inode: its item, what that holds without it, and its index.
struct FoundRef {
    key: Key,
    rest: Vec<u8>,
    index: u64,
}

impl EntryName<'_> {
    fn hash_key(&self) -> Key {
        Key::new(self.dir, ItemKind::DIR_ITEM, name_hash(self.name))
    }

    fn index_key(&self, index: u64) -> Key {
        Key::new(self.dir, ItemKind::DIR_INDEX, index)
    }

    fn ref_key(&self) -> Key {
        Key::new(self.inode, ItemKind::INODE_REF, self.dir)
    }

    fn extref_key(&self) -> Key {
        let hash = extref_hash(self.dir, self.name);
        Key::new(self.inode, ItemKind::INODE_EXTREF, hash)
    }

    /// Adds the name with an index that no entry of the directory has. References that do not fit in one item go
    /// to extended ones if the filesystem has them.
    ///
    /// # Errors
    /// `Exists`; `Overflow` where too many names have its hash; `TooManyLinks` where the inode has too many
    /// names. Then nothing was changed.
    pub fn add(
        &self,
        editor: &mut Editor<'_, '_>,
        transaction: Generation,
        (kind, index): (FileKind, u64),
        has_extended: bool,
    ) -> Result<()> {
        let hash_key = self.hash_key();
        let old = editor.get_for_change(hash_key)?.unwrap_or_default();
        if !old.is_empty() {
            let locus = editor.tree().locus(hash_key);
            let entries = DirItem::decode_all(hash_key, &old, locus)?;
            if entries.iter().any(|entry| entry.name == self.name) {
                return Err(Condition::Exists.into());
            }
        }
        let mut entry = Vec::new();
        DirItem {
            location: Location::Inode(self.inode),
            transaction,
            kind: Some(kind),
            name: self.name,
        }
        .encode(&mut entry);
        let by_hash = [&old[..], &entry].concat();
        if by_hash.len() > editor.item_bytes_max() {
            return Err(Condition::Overflow.into());
        }
        let (ref_key, refs) = self.with_ref(editor, index, has_extended)?;
        editor.set(hash_key, &by_hash)?;
        editor.insert(self.index_key(index), &entry)?;
        editor.set(ref_key, &refs)
    }

    /// The item that gets the reference, and what it then holds.
    fn with_ref(
        &self,
        editor: &mut Editor<'_, '_>,
        index: u64,
        has_extended: bool,
    ) -> Result<(Key, Vec<u8>)> {
        let reference = InodeRef {
            parent: self.dir,
            index,
            name: self.name,
        };
        let mut refs = editor.get_for_change(self.ref_key())?.unwrap_or_default();
        reference.encode(&mut refs);
        if refs.len() <= editor.item_bytes_max() {
            return Ok((self.ref_key(), refs));
        }
        if !has_extended {
            return Err(Condition::TooManyLinks.into());
        }
        let mut refs = editor.get(self.extref_key())?.unwrap_or_default();
        reference.encode_extended(&mut refs);
        if refs.len() > editor.item_bytes_max() {
            return Err(Condition::TooManyLinks.into());
        }
        Ok((self.extref_key(), refs))
    }

    /// Refuses the name where the inode has too many for its reference: before what has the name now is removed, after
    /// which an addition must not be refused.
    ///
    /// # Errors
    /// `TooManyLinks`.
    pub fn check_ref(&self, editor: &mut Editor<'_, '_>, has_extended: bool) -> Result<()> {
        self.with_ref(editor, 0, has_extended).map(drop)
    }

    /// Removes the name. Returns its index.
    ///
    /// # Errors
    /// `Corrupt` where one of its parts is missing; then nothing was changed.
    pub fn remove(&self, editor: &mut Editor<'_, '_>) -> Result<u64> {
        let found = self.remove_entries(editor)?;
        replace(editor, found.key, &found.rest)?;
        Ok(found.index)
    }

    /// Removes the last name of an inode without extents, with all that there is of the inode. Returns its index.
    ///
    /// # Errors
    /// As of [`remove`](Self::remove).
    pub fn remove_with_inode(&self, editor: &mut Editor<'_, '_>) -> Result<u64> {
        let found = self.remove_entries(editor)?;
        inode::change::remove_items(editor, self.inode)?;
        Ok(found.index)
    }

    /// Removes both entries. Returns the reference of the inode.
    fn remove_entries(&self, editor: &mut Editor<'_, '_>) -> Result<FoundRef> {
        let hash_key = self.hash_key();
        let broken = |editor: &Editor<'_, '_>, key, rule| {
            platter_vfs::Error::from(Corrupt::new(editor.tree().locus(key), rule))
        };
        let missing = |editor: &Editor<'_, '_>| broken(editor, hash_key, DirectoryRule::NoEntry);
        let data = editor
            .get_for_change(hash_key)?
            .ok_or_else(|| missing(editor))?;
        let entries = DirItem::decode_all(hash_key, &data, editor.tree().locus(hash_key))?;
        let at = entries.iter().position(|entry| entry.name == self.name);
        let at = at.ok_or_else(|| missing(editor))?;
        let lens = entries.iter().map(DirItem::len_bytes);
        let rest = without(&data, lens, at);
        let found = self.find_ref(editor)?;
        let found = found.ok_or_else(|| broken(editor, self.ref_key(), DirectoryRule::NoRef))?;
        let index_key = self.index_key(found.index);
        if editor.get_for_change(index_key)?.is_none() {
            return Err(broken(editor, index_key, DirectoryRule::NoIndex));
        }
        replace(editor, hash_key, &rest)?;
        editor.remove(index_key)?;
        Ok(found)
    }

    fn find_ref(&self, editor: &mut Editor<'_, '_>) -> Result<Option<FoundRef>> {
        for key in [self.ref_key(), self.extref_key()] {
            let Some(data) = editor.get_for_change(key)? else {
                continue;
            };
            let locus = editor.tree().locus(key);
            let is_extended = key.kind == ItemKind::INODE_EXTREF;
            let refs = if is_extended {
                InodeRef::decode_all_extended(&data, locus)?
            } else {
                InodeRef::decode_all(&data, self.dir, locus)?
            };
            let is_it = |it: &InodeRef<'_>| it.parent == self.dir && it.name == self.name;
            let Some(at) = refs.iter().position(is_it) else {
                continue;
            };
            let lens = refs.iter().map(|it| it.len_bytes(is_extended));
            return Ok(Some(FoundRef {
                key,
                rest: without(&data, lens, at),
                index: refs.get(at).map_or(0, |it| it.index),
            }));
        }
        Ok(None)
    }
}

/// A name of a subvolume in a directory. Its reference is in the root tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SubvolumeName<'n> {
    /// The directory.
    pub dir: u64,
    /// The name.
    pub name: &'n [u8],
    /// The subvolume that it names.
    pub child: TreeId,
}

impl SubvolumeName<'_> {
    fn hash_key(&self) -> Key {
        Key::new(self.dir, ItemKind::DIR_ITEM, name_hash(self.name))
    }

    /// Adds both entries, with an index that no entry of the directory has.
    ///
    /// # Errors
    /// `Exists`; `Overflow` where too many names have its hash. Then nothing was changed.
    pub fn add(
        &self,
        editor: &mut Editor<'_, '_>,
        transaction: Generation,
        index: u64,
    ) -> Result<()> {
        let (by_hash, entry) = self.with_entry(editor, transaction)?;
        editor.set(self.hash_key(), &by_hash)?;
        editor.insert(Key::new(self.dir, ItemKind::DIR_INDEX, index), &entry)
    }

    /// Refuses the name before the one that the subvolume has is removed, after which an addition must not be refused.
    ///
    /// # Errors
    /// Those of [`add`](Self::add).
    pub fn check(&self, editor: &Editor<'_, '_>) -> Result<()> {
        self.with_entry(editor, Generation(0)).map(drop)
    }

    /// What the item by hash then holds, and the entry.
    fn with_entry(
        &self,
        editor: &Editor<'_, '_>,
        transaction: Generation,
    ) -> Result<(Vec<u8>, Vec<u8>)> {
        let hash_key = self.hash_key();
        let mut by_hash = editor.get(hash_key)?.unwrap_or_default();
        if !by_hash.is_empty() {
            let locus = editor.tree().locus(hash_key);
            let entries = DirItem::decode_all(hash_key, &by_hash, locus)?;
            if entries.iter().any(|entry| entry.name == self.name) {
                return Err(Condition::Exists.into());
            }
        }
        let mut entry = Vec::new();
        DirItem {
            location: Location::Subvolume(self.child.0),
            transaction,
            kind: Some(FileKind::Directory),
            name: self.name,
        }
        .encode(&mut entry);
        by_hash.extend_from_slice(&entry);
        if by_hash.len() > editor.item_bytes_max() {
            return Err(Condition::Overflow.into());
        }
        Ok((by_hash, entry))
    }

    /// Removes both entries.
    ///
    /// # Errors
    /// `Corrupt` where one of them is missing; then nothing was changed.
    pub fn remove(&self, editor: &mut Editor<'_, '_>) -> Result<()> {
        let hash_key = self.hash_key();
        let missing = |editor: &Editor<'_, '_>, key, rule| {
            platter_vfs::Error::from(Corrupt::new(editor.tree().locus(key), rule))
        };
        let no_entry = |editor: &Editor<'_, '_>| missing(editor, hash_key, DirectoryRule::NoEntry);
        let data = editor.get(hash_key)?.ok_or_else(|| no_entry(editor))?;
        let entries = DirItem::decode_all(hash_key, &data, editor.tree().locus(hash_key))?;
        let at = entries.iter().position(|entry| self.is_it(entry));
        let at = at.ok_or_else(|| no_entry(editor))?;
        let rest = without(&data, entries.iter().map(DirItem::len_bytes), at);
        let index_key = self.find_index(editor)?;
        let index_key =
            index_key.ok_or_else(|| missing(editor, hash_key, DirectoryRule::NoIndex))?;
        replace(editor, hash_key, &rest)?;
        editor.remove(index_key).map(drop)
    }

    fn is_it(&self, entry: &DirItem<'_>) -> bool {
        entry.name == self.name && entry.location == Location::Subvolume(self.child.0)
    }

    /// The entry by index. Where a snapshot has the name, nothing says which it is.
    fn find_index(&self, editor: &Editor<'_, '_>) -> Result<Option<Key>> {
        let mut cursor = editor.cursor();
        cursor.seek(Key::new(self.dir, ItemKind::DIR_INDEX, 0))?;
        while let Some((key, data)) = cursor.item()
            && key.object == self.dir
            && key.kind == ItemKind::DIR_INDEX
        {
            let entries = DirItem::decode_all(key, data, editor.tree().locus(key))?;
            if entries.iter().any(|entry| self.is_it(entry)) {
                return Ok(Some(key));
            }
            cursor.step()?;
        }
        Ok(None)
    }
}

/// What is left of an item of several parts, of these lengths, without one of them.
pub(crate) fn without(data: &[u8], lens: impl Iterator<Item = usize>, at: usize) -> Vec<u8> {
    let mut rest = data;
    let mut left = Vec::with_capacity(data.len());
    for (index, len) in lens.enumerate() {
        let (part, after) = rest.split_at(len.min(rest.len()));
        if index != at {
            left.extend_from_slice(part);
        }
        rest = after;
    }
    left
}

/// Sets what is left of an item, or removes it if that is nothing.
pub(crate) fn replace(editor: &mut Editor<'_, '_>, key: Key, rest: &[u8]) -> Result<()> {
    if rest.is_empty() {
        return editor.remove(key).map(drop);
    }
    editor.set(key, rest)
}

/// The index of the next entry of a directory.
///
/// # Errors
/// `NoSpace` where there is none.
pub fn next_index(editor: &Editor<'_, '_>, dir: u64) -> Result<u64> {
    let last = editor.at_or_before(Key::new(dir, ItemKind::DIR_INDEX, u64::MAX))?;
    let is_index = |key: &Key| key.object == dir && key.kind == ItemKind::DIR_INDEX;
    match last.map(|(key, _)| key).filter(is_index) {
        Some(key) => Ok(key.offset.checked_add(1).ok_or(Condition::NoSpace)?),
        None => Ok(FIRST_INDEX),
    }
}

/// Whether a directory has no entries.
pub fn is_empty(editor: &Editor<'_, '_>, dir: u64) -> Result<bool> {
    let first = editor.at_or_after(Key::new(dir, ItemKind::DIR_INDEX, 0))?;
    Ok(!first.is_some_and(|(key, _)| key.object == dir && key.kind == ItemKind::DIR_INDEX))
}
