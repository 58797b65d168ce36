//! Replay of the log tree of one subvolume.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::RangeInclusive;

use platter_vfs::{FileKind, Result};
use zerocopy::IntoBytes;

use super::{extents, names};
use crate::block_group::Ranges;
use crate::context::FsContext;
use crate::items::{ItemCursor, Overlay};
use crate::ondisk::dir_log::DirLog;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key};
use crate::tree::Tree;

/// A subvolume with the changes that its log makes.
pub(super) struct Replay<'c> {
    pub(super) context: &'c FsContext,
    pub(super) tree: Tree,
    pub(super) log: Tree,
    pub(super) overlay: Overlay,
    /// Inodes that had no names when they were logged: as the kernel, a replay ignores all items of them in the log.
    unnamed: BTreeSet<u64>,
    /// Inodes whose number of names may have changed.
    pub(super) relinked: BTreeSet<u64>,
    /// Files with the first byte that has no extent: all of a file's extents before it were logged, or
    /// are those of the subvolume.
    pub(super) ends: BTreeMap<u64, u64>,
    /// Data of extents that the log has.
    pub(super) data: Ranges,
}

impl<'c> Replay<'c> {
    pub(super) fn new(context: &'c FsContext, tree: Tree, log: Tree) -> Self {
        Self {
            context,
            tree,
            log,
            overlay: Overlay::default(),
            unnamed: BTreeSet::new(),
            relinked: BTreeSet::new(),
            ends: BTreeMap::new(),
            data: Ranges::default(),
        }
    }

    pub(super) fn into_overlay(self) -> Overlay {
        self.overlay
    }

    /// Replays everything: inodes first, so that names find what they name; then names of directories;
    /// then names of inodes and extents. Checksums of data come into `checksums`.
    pub(super) fn run(&mut self, checksums: &mut Overlay) -> Result<()> {
        let inodes = self.logged(ItemKind::INODE_ITEM)?;
        for (key, data) in &inodes {
            self.inode(*key, data)?;
        }
        for (key, data) in self.logged(ItemKind::DIR_INDEX)? {
            names::replay_entry(self, key, &data)?;
        }
        for (key, _) in &inodes {
            if !self.unnamed.contains(&key.object) && self.item(key.object)?.is_some() {
                names::replay_refs(self, key.object)?;
            }
        }
        extents::replay(self)?;
        extents::replay_checksums(self, checksums)?;
        while let Some(inode) = self.relinked.pop_first() {
            names::count_links(self, inode)?;
        }
        Ok(())
    }

    /// A cursor over the subvolume as it is so far.
    pub(super) fn cursor(&self) -> ItemCursor<'_> {
        ItemCursor::new(&self.context.blocks, self.tree, Some(&self.overlay))
    }

    /// The items of one type in the log that are replayed.
    pub(super) fn logged(&self, kind: ItemKind) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut cursor = ItemCursor::new(&self.context.blocks, self.log, None);
        cursor.seek(Key::MIN)?;
        while let Some((key, data)) = cursor.item() {
            if key.kind == kind && !self.unnamed.contains(&key.object) {
                found.push((key, data.to_vec()));
            }
            cursor.step()?;
        }
        Ok(found)
    }

    /// The items of one type and inode: of the log, or of the subvolume.
    pub(super) fn items_of(
        &self,
        in_log: bool,
        inode: u64,
        kinds: &RangeInclusive<ItemKind>,
    ) -> Result<Vec<(Key, Vec<u8>)>> {
        let mut found = Vec::new();
        let mut cursor = if in_log {
            ItemCursor::new(&self.context.blocks, self.log, None)
        } else {
            self.cursor()
        };
        cursor.seek(Key::new(inode, *kinds.start(), 0))?;
        while let Some((key, data)) = cursor.item() {
            if key.object != inode || key.kind > *kinds.end() {
                break;
            }
            found.push((key, data.to_vec()));
            cursor.step()?;
        }
        Ok(found)
    }

    /// The item with a key in the subvolume as it is so far.
    pub(super) fn data(&self, key: Key) -> Result<Option<Vec<u8>>> {
        let mut cursor = self.cursor();
        cursor.seek(key)?;
        let item = cursor.item().filter(|(found, _)| *found == key);
        Ok(item.map(|(_, data)| data.to_vec()))
    }

    /// An inode of the subvolume as it is so far.
    pub(super) fn item(&self, inode: u64) -> Result<Option<InodeItem>> {
        let key = Key::new(inode, ItemKind::INODE_ITEM, 0);
        let data = self.data(key)?;
        let decode = |data: Vec<u8>| InodeItem::decode(&data, self.tree.locus(key));
        Ok(data.map(decode).transpose()?)
    }

    pub(super) fn set_item(&mut self, inode: u64, item: &InodeItem) {
        let key = Key::new(inode, ItemKind::INODE_ITEM, 0);
        self.overlay.set(key, item.encode().as_bytes());
    }

    /// Takes over an inode: its item, its attributes, what was removed from a directory, and of a file
    /// what follows its end.
    fn inode(&mut self, key: Key, data: &[u8]) -> Result<()> {
        let number = key.object;
        let logged = InodeItem::decode(data, self.log.locus(key))?;
        // It got no name before the crash, or lost its last: the log of its directory removes that.
        if logged.links == 0 {
            self.unnamed.insert(number);
            return Ok(());
        }
        self.attributes(number)?;
        if logged.kind == FileKind::Directory {
            self.removed_entries(number)?;
        }
        let old = self.item(number)?;
        let item = merged(&logged, old.as_ref(), self.context.superblock.generation);
        self.set_item(number, &item);
        self.relinked.insert(number);
        if item.kind == FileKind::Regular {
            let sector = u64::from(self.context.sector_bytes());
            let end = item.size_bytes.checked_next_multiple_of(sector);
            self.ends.insert(number, end.unwrap_or(u64::MAX));
        }
        Ok(())
    }

    /// The log has all attributes of an inode.
    fn attributes(&mut self, inode: u64) -> Result<()> {
        let kinds = ItemKind::XATTR_ITEM..=ItemKind::XATTR_ITEM;
        for (key, _) in self.items_of(false, inode, &kinds)? {
            self.overlay.remove(key);
        }
        for (key, data) in self.items_of(true, inode, &kinds)? {
            self.overlay.set(key, &data);
        }
        Ok(())
    }

    /// Removes the entries of a directory that are in a range that the log covers, and not in the log.
    fn removed_entries(&mut self, dir: u64) -> Result<()> {
        let ranges = self.items_of(
            true,
            dir,
            &(ItemKind::DIR_LOG_INDEX..=ItemKind::DIR_LOG_INDEX),
        )?;
        let kinds = ItemKind::DIR_INDEX..=ItemKind::DIR_INDEX;
        let kept: BTreeSet<Key> = self
            .items_of(true, dir, &kinds)?
            .into_iter()
            .map(|(key, _)| key)
            .collect();
        let mut entries = self.items_of(false, dir, &kinds)?.into_iter().peekable();
        for (key, data) in ranges {
            let range = DirLog::decode(key, &data, self.log.locus(key))?;
            // Ranges are in order of their beginnings, so what one passes over none has that follows.
            while let Some((key, data)) = entries.next_if(|(key, _)| key.offset <= range.last) {
                if key.offset >= range.first && !kept.contains(&key) {
                    names::remove_entry(self, key, &data)?;
                }
            }
        }
        Ok(())
    }
}

/// An inode as it is after its replay. The size of a directory follows its names. An inode that was
/// logged without its contents, which its generation says, keeps what it has.
fn merged(logged: &InodeItem, old: Option<&InodeItem>, latest: Generation) -> InodeItem {
    let is_name_only = logged.generation == Generation(0);
    let is_dir = logged.kind == FileKind::Directory;
    match old {
        Some(old) if is_name_only => {
            let is_file = logged.kind == FileKind::Regular && old.kind == FileKind::Regular;
            let size_bytes = if is_file && logged.size_bytes != 0 {
                logged.size_bytes
            } else {
                old.size_bytes
            };
            InodeItem { size_bytes, ..*old }
        }
        Some(old) if is_dir => InodeItem {
            size_bytes: old.size_bytes,
            allocated_bytes: old.allocated_bytes,
            ..*logged
        },
        // What is allocated follows from the extents.
        Some(old) => InodeItem {
            allocated_bytes: old.allocated_bytes,
            ..*logged
        },
        None => InodeItem {
            allocated_bytes: 0,
            size_bytes: if is_dir { 0 } else { logged.size_bytes },
            generation: if is_name_only {
                Generation(latest.0.saturating_add(1))
            } else {
                logged.generation
            },
            ..*logged
        },
    }
}
