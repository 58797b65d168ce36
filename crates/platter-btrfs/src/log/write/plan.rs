//! What a log is to have of some inodes, and the changes that this takes.

use std::collections::{BTreeMap, BTreeSet};

use platter_vfs::Result;

use super::notes::LoggedInode;
use super::view::View;
use crate::context::FsContext;
use crate::data::Checksums;
use crate::ondisk::file_extent::{Compression, FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::txn::{LogEditor, LogTurn};

/// The most items of inodes that are looked at for one call.
const ITEMS_MAX: usize = 4096;
/// The most inodes.
const INODES_MAX: usize = 256;

/// How much of an inode is logged.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Depth {
    /// That it exists, with its names and attributes.
    Exists,
    /// All of it that changed.
    Whole,
}

/// What a log is to have.
#[derive(Debug, Default)]
pub(super) struct Plan {
    /// Items.
    pub(super) wanted: BTreeMap<Key, Vec<u8>>,
    /// Ranges of keys in which the log has no other items.
    pub(super) ranges: Vec<(Key, Key)>,
    /// Files without checksums.
    pub(super) unsummed: BTreeSet<u64>,
    /// What the log has of inodes from then on.
    pub(super) logged: BTreeMap<u64, Option<LoggedInode>>,
    /// Inodes that are to be planned, and how much of those that are.
    queue: Vec<(u64, Depth)>,
    planned: BTreeMap<u64, Depth>,
    /// What changed cannot be logged.
    needs_commit: bool,
}

impl Plan {
    /// Adds an inode to those that are to be logged.
    pub(super) fn add(&mut self, inode: u64, depth: Depth) {
        if self
            .planned
            .get(&inode)
            .is_none_or(|planned| *planned < depth)
        {
            self.planned.insert(inode, depth);
            self.queue.push((inode, depth));
        }
        self.needs_commit |= self.planned.len() > INODES_MAX;
    }

    /// The next inode to be planned.
    pub(super) fn next(&mut self) -> Option<(u64, Depth)> {
        self.queue.pop()
    }

    /// Adds an item.
    pub(super) fn want(&mut self, key: Key, data: Vec<u8>) {
        self.wanted.insert(key, data);
        self.needs_commit |= self.wanted.len() > ITEMS_MAX;
    }

    /// Lets the log have no other items of an inode and of these types.
    pub(super) fn own(&mut self, inode: u64, first: ItemKind, last: ItemKind) {
        let range = (Key::new(inode, first, 0), Key::new(inode, last, u64::MAX));
        self.ranges.push(range);
    }

    /// Says that only a commit makes the changes durable.
    pub(super) fn give_up(&mut self) {
        self.needs_commit = true;
    }

    pub(super) fn needs_commit(&self) -> bool {
        self.needs_commit
    }

    /// Makes the log of a subvolume have what it should. Returns the items of extents that it did not have.
    fn change(&self, editor: &mut LogEditor<'_, '_>) -> Result<Vec<Key>> {
        let mut extents = Vec::new();
        for (first, last) in &self.ranges {
            let mut other = Vec::new();
            let mut cursor = editor.cursor();
            cursor.seek(*first)?;
            while let Some(key) = cursor.key().filter(|key| key <= last) {
                if !self.wanted.contains_key(&key) {
                    other.push(key);
                }
                cursor.step()?;
            }
            drop(cursor);
            for key in other {
                editor.remove(key)?;
            }
        }
        for (key, data) in &self.wanted {
            if editor.get(*key)?.as_ref() == Some(data) {
                continue;
            }
            editor.set(*key, data)?;
            if key.kind == ItemKind::EXTENT_DATA {
                extents.push(*key);
            }
        }
        Ok(extents)
    }

    /// Logs what was planned. Returns `false` where only a commit makes it durable. No tree is locked.
    pub(super) fn log(
        &self,
        context: &FsContext,
        turn: &mut LogTurn<'_>,
        (tree, generation): (TreeId, Generation),
    ) -> Result<bool> {
        let extents = turn.edit(tree, |editor| self.change(editor))?;
        for key in extents {
            let data = self.wanted.get(&key).map(Vec::as_slice);
            if self.unsummed.contains(&key.object) {
                continue;
            }
            let found = summed(context, key, data.unwrap_or_default(), generation)?;
            let Some((address, len_bytes)) = found else {
                continue;
            };
            let checksums = Checksums::read(context, address, len_bytes)?;
            let Some(bytes) = checksums.all() else {
                // The file is changed meanwhile, or has sectors without checksums.
                return Ok(false);
            };
            turn.set_checksums(tree, address, bytes.to_vec())?;
        }
        Ok(true)
    }
}

/// The data of an extent of the running transaction that has checksums.
fn summed(
    context: &FsContext,
    key: Key,
    data: &[u8],
    generation: Generation,
) -> Result<Option<(LogicalAddr, u64)>> {
    let locus = platter_ondisk::Locus::tree(TreeId::TREE_LOG.0).at_key(key.into());
    let extent = FileExtent::decode(data, key.offset, context.sector_bytes(), locus)?;
    let FileExtentKind::Regular(place) = extent.kind else {
        return Ok(None);
    };
    if extent.generation < generation {
        return Ok(None);
    }
    Ok(Some(if extent.compression == Compression::None {
        let address = place.logical.0.saturating_add(place.offset);
        (LogicalAddr(address), extent.file_bytes)
    } else {
        (place.logical, place.disk_bytes)
    }))
}

/// Whether an extent of a file was made in the running transaction.
pub(super) fn is_new_extent(view: &View<'_>, key: Key, data: &[u8]) -> Result<bool> {
    let locus = view.now.locus(key);
    let extent = FileExtent::decode(data, key.offset, view.sector_bytes, locus)?;
    Ok(extent.generation >= view.generation)
}
