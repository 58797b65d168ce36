//! Inodes that lost their last name and now their last user: all that they have becomes free.

use std::sync::Arc;
use std::sync::atomic::Ordering;

use platter_vfs::{FileKind, InodeId, Result};

use super::state::{NAME_CREDITS, Purpose};
use super::{BtrfsInode, SuperBlock, blocks, file_extents};
use crate::context::Subvolume;
use crate::inode;
use crate::ondisk::Key;
use crate::ondisk::key::ItemKind;
use crate::ondisk::types::ORPHAN_OBJECT;

/// Orphans that are looked up at once.
const ORPHANS_MAX: usize = 1024;

impl BtrfsInode {
    /// Deletes the inode, unless that was tried before. It is an orphan until that is done: an error leaves it to
    /// the next mount.
    pub(super) fn evict(&self) -> Result<()> {
        if self.is_deleted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.pages.truncate(0);
        blocks::release_all(self);
        if matches!(self.kind, FileKind::Regular | FileKind::Symlink) {
            file_extents::drop_all(self)?;
        }
        let number = self.id.number;
        let handle = self.fs.begin(NAME_CREDITS, Purpose::Free)?;
        handle.edit(self.tree_id(), |editor| {
            inode::change::remove_items(editor, number)?;
            inode::change::remove_orphan(editor, number)
        })
    }
}

impl SuperBlock {
    /// Deletes the orphans of all subvolumes that are not read-only. Once, before anything else is changed.
    pub fn delete_orphans(self: &Arc<Self>) -> Result<()> {
        for subvolume in self.context().subvolumes()? {
            if !subvolume.is_read_only() {
                self.delete_orphans_of(&subvolume)?;
            }
        }
        Ok(())
    }

    pub(super) fn delete_orphans_of(self: &Arc<Self>, subvolume: &Subvolume) -> Result<()> {
        let mut from = 0;
        loop {
            let orphans = self.orphans(subvolume, from)?;
            let Some(last) = orphans.last() else {
                return Ok(());
            };
            from = last.saturating_add(1);
            self.transactions()?.follow(subvolume.id)?;
            for number in orphans {
                self.delete_orphan(subvolume, number)?;
            }
        }
    }

    /// The first orphans from a number on.
    fn orphans(&self, subvolume: &Subvolume, from: u64) -> Result<Vec<u64>> {
        let mut found = Vec::new();
        let mut cursor = self.context().cursor(subvolume.tree());
        cursor.seek(Key::new(ORPHAN_OBJECT, ItemKind::ORPHAN_ITEM, from))?;
        while let Some(key) = cursor.key()
            && key.object == ORPHAN_OBJECT
            && key.kind == ItemKind::ORPHAN_ITEM
            && found.len() < ORPHANS_MAX
        {
            found.push(key.offset);
            cursor.step()?;
        }
        Ok(found)
    }

    fn delete_orphan(self: &Arc<Self>, subvolume: &Subvolume, number: u64) -> Result<()> {
        let id = InodeId {
            tree: subvolume.id.0,
            number,
        };
        let item = inode::find(self.context(), subvolume.tree(), number)?;
        let Some(item) = item.filter(|item| item.links == 0) else {
            // It was deleted, or has a name: an old kernel truncated it.
            let handle = self.begin(NAME_CREDITS, Purpose::Free)?;
            return handle.edit(subvolume.id, |editor| {
                inode::change::remove_orphan(editor, number)
            });
        };
        let shared = self.in_use.get_or_add(subvolume);
        let object = self.inodes.get_or_load(id, |seat| {
            Ok::<_, platter_vfs::Error>(self.object(id, shared, item, seat))
        })?;
        self.inodes.release(id);
        object.evict()
    }
}
