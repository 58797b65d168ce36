//! Subvolumes: their trees, names and parents.

use platter_vfs::Result;

use super::FsContext;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::key::ItemKind;
use crate::ondisk::root_item::{RootFlags, RootItem};
use crate::ondisk::root_ref::RootRef;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Generation, Key, TreeId};
use crate::tree::Tree;

/// As many subvolumes as names fit into a path.
const PATH_SUBVOLUMES_MAX: usize = 2048;

/// A subvolume.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Subvolume {
    /// Its number.
    pub id: TreeId,
    /// Its root item.
    pub item: RootItem,
}

impl Subvolume {
    /// Its tree.
    #[must_use]
    pub fn tree(&self) -> Tree {
        Tree {
            id: self.id,
            root: self.item.root,
        }
    }

    /// The inode number of its root directory.
    #[must_use]
    pub fn root_dir(&self) -> u64 {
        match self.item.root_dir {
            0 => FIRST_FREE_OBJECT,
            number => number,
        }
    }

    /// Whether it was deleted, though not all of its tree is freed yet.
    #[must_use]
    pub fn is_deleted(&self) -> bool {
        self.item.refs == 0 || self.item.flags.contains(RootFlags::DEAD)
    }

    /// Whether nothing in it may change.
    #[must_use]
    pub fn is_read_only(&self) -> bool {
        self.item.flags.contains(RootFlags::READ_ONLY)
    }
}

/// The name of a subvolume, and the directory that holds it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParentName {
    /// The parent subvolume.
    pub parent: TreeId,
    /// The directory in it.
    pub dir: u64,
    /// The name.
    pub name: Vec<u8>,
}

impl FsContext {
    /// The subvolume with this number; `None` if there is none, or it was deleted.
    pub fn subvolume(&self, id: TreeId) -> Result<Option<Subvolume>> {
        if !id.is_subvolume() {
            return Ok(None);
        }
        let item = self.root_item(id)?;
        let subvolume = item.map(|item| Subvolume { id, item });
        Ok(subvolume.filter(|subvolume| !subvolume.is_deleted()))
    }

    /// All subvolumes that were not deleted, in order of their numbers.
    pub fn subvolumes(&self) -> Result<Vec<Subvolume>> {
        let all = self.all_subvolumes()?.into_iter();
        Ok(all.filter(|it| !it.is_deleted()).collect())
    }

    /// The subvolumes whose deletion is not complete, in order of their numbers.
    pub fn deleted_subvolumes(&self) -> Result<Vec<Subvolume>> {
        let all = self.all_subvolumes()?.into_iter();
        Ok(all.filter(Subvolume::is_deleted).collect())
    }

    /// The subvolume with the least number from `from` on that was not deleted.
    pub fn next_subvolume(&self, from: TreeId) -> Result<Option<Subvolume>> {
        let mut from = from.max(TreeId::FS);
        while let Some(id) = self.next_root(from)? {
            let item = self.read_root_item(id)?;
            let subvolume = item.map(|item| Subvolume { id, item });
            if let Some(subvolume) = subvolume.filter(|it| !it.is_deleted()) {
                return Ok(Some(subvolume));
            }
            from = TreeId(id.0.saturating_add(1));
        }
        Ok(None)
    }

    /// The least number from `from` on of a subvolume that has a root item.
    fn next_root(&self, from: TreeId) -> Result<Option<TreeId>> {
        let mut cursor = self.cursor(self.root_tree());
        cursor.seek(Key::new(from.0, ItemKind::ROOT_ITEM, 0))?;
        while let Some(key) = cursor.key() {
            let id = TreeId(key.object);
            if key.kind == ItemKind::ROOT_ITEM && id.is_subvolume() {
                return Ok(Some(id));
            }
            cursor.step()?;
        }
        Ok(None)
    }

    fn all_subvolumes(&self) -> Result<Vec<Subvolume>> {
        let mut ids = Vec::new();
        let tree = self.root_tree();
        let mut cursor = self.cursor(tree);
        cursor.seek(Key::new(TreeId::FS.0, ItemKind::ROOT_ITEM, 0))?;
        while let Some(key) = cursor.key() {
            let id = TreeId(key.object);
            if key.kind == ItemKind::ROOT_ITEM && id.is_subvolume() && ids.last() != Some(&id) {
                ids.push(id);
            }
            cursor.step()?;
        }
        let mut found = Vec::new();
        drop(cursor);
        for id in ids {
            let item = self.read_root_item(id)?;
            found.extend(item.map(|item| Subvolume { id, item }));
        }
        Ok(found)
    }

    /// The offset in the key of a root item: of a snapshot, the transaction that made it.
    pub fn root_item_offset(&self, id: TreeId) -> Result<Generation> {
        let mut cursor = self.cursor(self.root_tree());
        let last = Key::new(id.0, ItemKind::ROOT_ITEM, u64::MAX);
        let is_found = cursor.seek_at_or_before(last)?;
        let key = cursor.key().filter(|_| is_found);
        let key = key.filter(|key| key.object == id.0 && key.kind == ItemKind::ROOT_ITEM);
        Ok(Generation(key.map_or(0, |key| key.offset)))
    }

    /// The subvolumes that a subvolume is in, the innermost first. Not all, where that has no end.
    pub fn ancestors(&self, id: TreeId) -> Result<Vec<TreeId>> {
        let mut above = Vec::new();
        let mut at = id;
        while let Some(name) = self.parent_name(at)?
            && above.len() < PATH_SUBVOLUMES_MAX
        {
            above.push(name.parent);
            at = name.parent;
        }
        Ok(above)
    }

    /// Where a subvolume is named; `None` for one without a name.
    pub fn parent_name(&self, id: TreeId) -> Result<Option<ParentName>> {
        let tree = self.root_tree();
        let mut cursor = self.cursor(tree);
        cursor.seek(Key::new(id.0, ItemKind::ROOT_BACKREF, 0))?;
        let item = cursor.item();
        let item = item.filter(|(key, _)| key.object == id.0 && key.kind == ItemKind::ROOT_BACKREF);
        let Some((key, data)) = item else {
            return Ok(None);
        };
        let reference = RootRef::decode(data, tree.locus(key))?;
        Ok(Some(ParentName {
            parent: TreeId(key.offset),
            dir: reference.dir,
            name: reference.name.to_vec(),
        }))
    }

    /// Whether `parent` names the subvolume `child` so in its directory `dir`. Entries that say so and
    /// are not meant are in snapshots: the subvolume itself is elsewhere.
    pub fn names_subvolume(
        &self,
        parent: TreeId,
        child: TreeId,
        dir: u64,
        name: &[u8],
    ) -> Result<bool> {
        let tree = self.root_tree();
        let key = Key::new(parent.0, ItemKind::ROOT_REF, child.0);
        let found = self.find(tree, key, |data| {
            let reference = RootRef::decode(data, tree.locus(key))?;
            Ok(reference.dir == dir && reference.name == name)
        })?;
        Ok(found.unwrap_or(false))
    }

    /// The subvolume that is mounted unless another one is asked for.
    pub fn default_subvolume(&self) -> Result<TreeId> {
        let tree = self.root_tree();
        let name = b"default";
        let hash = crate::ondisk::checksum::name_hash(name);
        let key = Key::new(self.superblock.root_dir, ItemKind::DIR_ITEM, hash);
        let found = self.find(tree, key, |data| {
            let entries = DirItem::decode_all(key, data, tree.locus(key))?;
            let entry = entries.iter().find(|entry| entry.name == name);
            Ok(entry.and_then(|entry| match entry.location {
                Location::Subvolume(id) => Some(TreeId(id)),
                Location::Inode(_) => None,
            }))
        })?;
        Ok(found.flatten().unwrap_or(TreeId::FS))
    }
}
