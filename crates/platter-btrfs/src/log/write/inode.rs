//! The inodes that are logged: names, attributes, entries of directories. What the log cannot say so that a replay
//! over the last commit comes to it is left to a commit.

use platter_vfs::{FileKind, Result};
use zerocopy::IntoBytes;

use super::file::plan_extents;
use super::notes::{LogNotes, LoggedInode};
use super::plan::{Depth, Plan};
use super::view::{LinkName, REFS, View};
use crate::ondisk::checksum::name_hash;
use crate::ondisk::dir_item::{DirItem, Location};
use crate::ondisk::dir_log::DirLog;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::ondisk::types::FIRST_FREE_OBJECT;
use crate::ondisk::{Generation, Key};

/// What plans the log of a subvolume.
#[derive(Debug)]
pub(super) struct Planner<'v> {
    pub(super) view: View<'v>,
    pub(super) notes: &'v LogNotes,
    /// The number of the log that will have it.
    pub(super) log: u64,
    pub(super) plan: Plan,
}

/// What is made durable.
#[derive(Debug, Clone, Copy)]
pub struct Target {
    /// The inode.
    pub inode: u64,
    /// Extents of it were dropped in the running transaction.
    pub lost_extents: bool,
}

impl Planner<'_> {
    /// Plans what makes an inode durable, and what the log has to be changed for.
    pub(super) fn run(&mut self, target: Target) -> Result<()> {
        let (generation, tree) = (self.view.generation, self.view.now.id);
        let (stale, dead) = self.notes.take_stale(generation, tree);
        for (dir, index) in dead {
            let key = Key::new(dir, ItemKind::DIR_INDEX, index);
            self.plan.ranges.push((key, key));
        }
        for inode in stale {
            self.plan.add(inode, Depth::Exists);
        }
        if self.view.named_inode(target.inode)?.is_none() {
            self.plan.give_up();
        }
        self.plan.add(target.inode, Depth::Whole);
        while let Some((inode, depth)) = self.plan.next()
            && !self.plan.needs_commit()
        {
            self.inode(inode, depth, target)?;
        }
        if !self.plan.needs_commit() {
            let logged = std::mem::take(&mut self.plan.logged);
            self.notes.set_logged(generation, tree, logged);
        }
        Ok(())
    }

    fn inode(&mut self, number: u64, depth: Depth, target: Target) -> Result<()> {
        let view = self.view;
        let Some(item) = view.named_inode(number)? else {
            // What the log has of it would come back.
            self.plan.own(number, ItemKind(0), ItemKind(u8::MAX));
            self.plan.logged.insert(number, None);
            return Ok(());
        };
        let old = view.committed_inode(number)?;
        self.names(number, &item, old.is_some())?;
        let is_logged = self.notes.is_logged(view.generation, view.now.id, number)
            || matches!(self.plan.logged.get(&number), Some(Some(_)));
        if depth == Depth::Exists && is_logged {
            self.plan
                .own(number, ItemKind::INODE_REF, ItemKind::INODE_EXTREF);
            return Ok(());
        }
        let xattrs = ItemKind::XATTR_ITEM..=ItemKind::XATTR_ITEM;
        for (key, data) in view.items(view.now, number, &xattrs)? {
            self.plan.want(key, data);
        }
        if item.flags.contains(InodeFlags::NODATASUM) {
            self.plan.unsummed.insert(number);
        }
        let key = Key::new(number, ItemKind::INODE_ITEM, 0);
        let mut logged = LoggedInode { whole: None };
        if depth == Depth::Whole || item.kind == FileKind::Symlink {
            self.plan.own(number, ItemKind(0), ItemKind(u8::MAX));
            self.plan.want(key, item.encode().as_bytes().to_vec());
            if item.kind == FileKind::Directory {
                self.entries(number)?;
            } else {
                // A replay finds no extents of an inode that the last commit has not.
                let all = old.is_some() && number == target.inode && target.lost_extents;
                plan_extents(&view, &mut self.plan, (number, &item), all)?;
            }
            logged.whole = Some((item.sequence, self.log));
        } else {
            self.plan.own(number, ItemKind(0), ItemKind::XATTR_ITEM);
            let item = self.known_to_exist(number, &item, old.as_ref())?;
            self.plan.want(key, item.encode().as_bytes().to_vec());
        }
        self.plan.logged.insert(number, Some(logged));
        Ok(())
    }

    /// The item of an inode that is logged so that it exists. The contents of a new file were not asked for; what
    /// the last commit has of an old inode stays.
    fn known_to_exist(
        &mut self,
        number: u64,
        item: &InodeItem,
        old: Option<&InodeItem>,
    ) -> Result<InodeItem> {
        let is_file = item.kind == FileKind::Regular;
        let Some(old) = old else {
            let size_bytes = if is_file { 0 } else { item.size_bytes };
            return Ok(InodeItem {
                size_bytes,
                ..*item
            });
        };
        if is_file {
            // Replays drop what lies beyond the end.
            let end = old
                .size_bytes
                .next_multiple_of(self.view.sector_bytes.into());
            let beyond = Key::new(number, ItemKind::EXTENT_DATA, end);
            if self.view.had_from(beyond)? {
                self.plan.give_up();
            }
        }
        Ok(InodeItem {
            generation: Generation(0),
            size_bytes: 0,
            ..*item
        })
    }

    /// Plans all names of an inode, with what they need: new directories above it, and directories that lost one.
    fn names(&mut self, number: u64, item: &InodeItem, is_old: bool) -> Result<()> {
        let view = self.view;
        for (key, data) in view.items(view.now, number, &REFS)? {
            self.plan.want(key, data);
        }
        if number == FIRST_FREE_OBJECT {
            return Ok(());
        }
        let now = view.names(view.now, number)?;
        let old = if is_old {
            view.names(view.committed, number)?
        } else {
            Vec::new()
        };
        if now.is_empty() {
            self.plan.give_up();
        }
        for name in now.iter().filter(|name| !old.contains(name)) {
            self.new_name(number, name)?;
        }
        let has_extended = now.iter().chain(&old).any(|name| name.is_extended);
        for name in old.iter().filter(|name| !now.contains(name)) {
            // An item replaces all names in a directory.
            let is_replaced = now.iter().any(|it| it.parent == name.parent);
            if has_extended || !is_replaced && item.kind == FileKind::Directory {
                self.plan.give_up();
            } else if !is_replaced {
                let parent = view.named_inode(name.parent)?;
                if parent.is_some_and(|parent| parent.kind == FileKind::Directory) {
                    self.plan.add(name.parent, Depth::Whole);
                } else {
                    self.plan.give_up();
                }
            }
        }
        Ok(())
    }

    /// A name that the last commit does not have.
    fn new_name(&mut self, number: u64, name: &LinkName) -> Result<()> {
        let view = self.view;
        if view.named_inode(name.parent)?.is_none() {
            self.plan.give_up();
            return Ok(());
        }
        if view.committed_inode(name.parent)?.is_none() {
            self.plan.add(name.parent, Depth::Exists);
            return Ok(());
        }
        if self.is_bucket_full(name)? {
            self.plan.give_up();
            return Ok(());
        }
        // What else had the name or its index loses it in a replay.
        let own = Location::Inode(number);
        if let Some(location) = view.named(view.committed, name.parent, &name.name)?
            && location != own
        {
            self.replaced(location)?;
        }
        if let Some(entry) = view.indexed(view.committed, name.parent, name.index)?
            && (entry.location != own || entry.name != name.name)
        {
            self.replaced(entry.location)?;
        }
        Ok(())
    }

    /// Whether the names with the hash of this one may not fit into an item in a replay: names that are gone are there
    /// when it is added.
    fn is_bucket_full(&self, name: &LinkName) -> Result<bool> {
        let view = self.view;
        let key = Key::new(name.parent, ItemKind::DIR_ITEM, name_hash(&name.name));
        let len = |tree| -> Result<usize> { Ok(view.get(tree, key)?.unwrap_or_default().len()) };
        let most = leaf_edit::capacity(view.blocks.format().node_bytes).saturating_sub(ITEM_BYTES);
        Ok(len(view.committed)? + len(view.now)? > most)
    }

    /// An inode loses a name in a replay.
    fn replaced(&mut self, location: Location) -> Result<()> {
        let view = self.view;
        let Location::Inode(number) = location else {
            self.plan.give_up();
            return Ok(());
        };
        let old = view.committed_inode(number)?;
        if old.is_none_or(|old| old.kind == FileKind::Directory) {
            self.plan.give_up();
            return Ok(());
        }
        if view.named_inode(number)?.is_none() {
            return Ok(());
        }
        let old = view.names(view.committed, number)?;
        let keeps_one = view.names(view.now, number)?.iter().any(|name| {
            let is_it = |it: &LinkName| it.parent == name.parent && it.name == name.name;
            old.iter().any(is_it)
        });
        if !keeps_one {
            self.plan.give_up();
        }
        Ok(())
    }

    /// Plans the entries of a directory: those that are new, and those that are gone, as ranges of indices.
    fn entries(&mut self, dir: u64) -> Result<()> {
        let view = self.view;
        let key = |index: u64| Key::new(dir, ItemKind::DIR_INDEX, index);
        let mut found = Vec::new();
        view.changed(key(0), key(u64::MAX), &mut |key, data| {
            for entry in DirItem::decode_all(key, data, view.now.locus(key))? {
                if entry.transaction >= view.generation {
                    found.push((key, data.to_vec(), entry.location));
                }
            }
            Ok(())
        })?;
        for (key, data, location) in found {
            match location {
                Location::Inode(number) => self.plan.add(number, Depth::Exists),
                Location::Subvolume(_) => self.plan.give_up(),
            }
            self.plan.want(key, data);
        }
        let removed = self.notes.removed_of(view.generation, view.now.id, dir);
        for index in removed.into_keys() {
            if let Some(entry) = view.indexed(view.committed, dir, index)? {
                self.removed_entry(dir, index, entry.location)?;
            }
        }
        Ok(())
    }

    /// An entry that the last commit has.
    fn removed_entry(&mut self, dir: u64, index: u64, location: Location) -> Result<()> {
        let view = self.view;
        let Location::Inode(number) = location else {
            self.plan.give_up();
            return Ok(());
        };
        let range = DirLog {
            first: index,
            last: index,
        };
        let key = Key::new(dir, ItemKind::DIR_LOG_INDEX, index);
        self.plan.want(key, range.encode().as_bytes().to_vec());
        let is_dir = |item: &InodeItem| item.kind == FileKind::Directory;
        let was_dir = view.committed_inode(number)?.is_some_and(|it| is_dir(&it));
        if view.named_inode(number)?.is_some() {
            // One that was moved to another directory is found in the log, or only a commit says so.
            self.plan.add(number, Depth::Exists);
        } else if was_dir && view.had_from(Key::new(number, ItemKind::DIR_INDEX, 0))? {
            // A replay removes what the last commit has in it, be it elsewhere now.
            self.plan.give_up();
        }
        Ok(())
    }
}
