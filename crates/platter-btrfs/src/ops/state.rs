//! The state of inodes while they change: one handle for each change.

use std::sync::atomic::Ordering;

use platter_block::lock::RwLockWriteGuard;
use platter_vfs::namei::LinkState;
use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, FileKind, InodeId, Result, Timestamp};

use super::{BtrfsInode, InodeState};
use crate::data::Reader;
use crate::file::Contents;
use crate::file::change::ExtentChange;
use crate::ondisk::TreeId;
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::txn::{Handle, delayed_inodes};

/// Tree blocks that a change of an inode item copies, and splits for items next to it.
pub(super) const INODE_CREDITS: u32 = 12;
/// Those of a change of names: leaves of entries by hash and by index, of references, of inode items.
pub(super) const NAME_CREDITS: u32 = 40;

/// Sectors are pages: filesystems with others are not written.
pub(super) const SECTOR_BITS: u32 = 12;
pub(super) const SECTOR_BYTES: u64 = 1 << SECTOR_BITS;

/// Whether a change needs space, or frees some.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Purpose {
    /// It takes space, within the limits of the quota groups of this subvolume. Files may be written back for that: the
    /// caller has none of their contents locked, and no lock after those of inodes.
    Change(TreeId),
    /// The same, and no file is written back.
    ChangeNow(TreeId),
    /// It takes space that quota groups do not refuse: it is little, or reserved in them.
    Update,
    /// It frees space, or has it reserved: it may use some of what is kept.
    Free,
}

/// A change of contents or names.
pub(super) fn touch_contents(item: &mut InodeItem, now: Timestamp) {
    item.modified = now;
    item.changed = now;
}

/// Stores the item of an inode with the transaction, and counts the change.
pub(super) fn store(handle: &Handle<'_>, id: InodeId, item: &mut InodeItem) -> Result<()> {
    item.transaction = handle.generation();
    item.sequence = item.sequence.wrapping_add(1);
    delayed_inodes::set_inode(handle, TreeId(id.tree), id.number, item)
}

impl BtrfsInode {
    /// Begins a handle that frees space, with what was kept for it if there is something.
    pub(super) fn begin_freeing(&self, credits: u32) -> Result<Handle<'_>> {
        let kept = self.kept_bytes.swap(0, Ordering::AcqRel);
        if kept == 0 {
            return self.fs.begin(credits, Purpose::Free);
        }
        let writing = self.fs.transactions()?;
        if self.fs.writes.is_closed() {
            writing.release_kept(kept);
            return Err(Condition::ReadOnly.into());
        }
        self.fs.changes.fetch_add(1, Ordering::Relaxed);
        writing.begin_kept(credits, kept)
    }

    /// Keeps space for a handle that will free some.
    pub(super) fn keep_for_freeing(&self, credits: u32) -> Result<()> {
        let writing = self.fs.transactions()?;
        let bytes = writing.keep_for_freeing(credits)?;
        writing.release_kept(self.kept_bytes.swap(bytes, Ordering::AcqRel));
        Ok(())
    }

    /// Returns what is kept for a handle that will free space.
    pub(super) fn release_kept_bytes(&self) {
        if let Some(writing) = self.fs.writing() {
            writing.release_kept(self.kept_bytes.swap(0, Ordering::AcqRel));
        }
    }

    /// Whether it may be changed.
    pub(super) fn can_change(&self) -> bool {
        self.fs.can_write() && self.subvolume.takes_changes()
    }

    /// Changes the inode in one handle.
    ///
    /// # Errors
    /// Nothing was changed, or the filesystem is read-only from now on.
    pub(super) fn change<R>(
        &self,
        credits: u32,
        purpose: Purpose,
        change: impl FnOnce(&Handle<'_>, &mut InodeItem) -> Result<R>,
    ) -> Result<R> {
        let handle = self.fs.begin(credits, purpose)?;
        self.change_in(&handle, change)
    }

    /// Changes the inode in a handle that was begun for that.
    ///
    /// # Errors
    /// Those of [`change`](Self::change).
    pub(super) fn change_in<R>(
        &self,
        handle: &Handle<'_>,
        change: impl FnOnce(&Handle<'_>, &mut InodeItem) -> Result<R>,
    ) -> Result<R> {
        let mut state = self.state.write();
        let mut item = state.item;
        let result = handle.whole(|handle| {
            let result = change(handle, &mut item)?;
            if self.kind == FileKind::Regular {
                let sectors = |bytes: u64| bytes.next_multiple_of(SECTOR_BYTES);
                let longer = sectors(state.item.size_bytes)..sectors(item.size_bytes);
                self.extents_in(handle).fill_holes(longer)?;
            }
            store(handle, self.id, &mut item)?;
            Ok(result)
        })?;
        state.item = item;
        drop(state);
        Ok(result)
    }

    /// Its extents in a transaction.
    pub(super) fn extents_in<'h, 'f>(&self, handle: &'h Handle<'f>) -> ExtentChange<'h, 'f> {
        ExtentChange {
            handle,
            tree: self.tree_id(),
            inode: self.id.number,
        }
    }

    /// Says that extents of the file go in a transaction: its log has to say that they are gone.
    pub(super) fn note_lost_extents(&self, handle: &Handle<'_>) {
        let generation = handle.generation().0;
        self.lost_extents.fetch_max(generation, Ordering::AcqRel);
    }

    /// Its contents, as the trees have them.
    pub(super) fn contents(&self) -> Contents<'_> {
        Contents {
            context: self.context(),
            data: &self.fs.data,
            decompressed: &self.fs.decompressed,
            tree: self.tree(),
            reader: Reader {
                tree: TreeId(self.id.tree),
                inode: self.id.number,
                is_summed: !self.item().flags.contains(InodeFlags::NODATASUM),
            },
            size_bytes: self.data.size_bytes(),
        }
    }

    /// Refuses what is asked of a file's contents where there are none.
    pub(super) fn refuse_without_contents(&self) -> Result<()> {
        self.kind.refuse_without_contents()
    }

    /// Its subvolume.
    pub(super) fn tree_id(&self) -> TreeId {
        TreeId(self.id.tree)
    }

    pub(super) fn item(&self) -> InodeItem {
        self.state.read().item
    }
}

impl InodeState {
    pub(super) fn new(item: InodeItem) -> Self {
        Self {
            item,
            delayed: RangeSet::default(),
            written_over: RangeSet::default(),
            may_get_first_name: false,
        }
    }

    pub(super) fn link_state(&self, flags: u32) -> LinkState {
        LinkState {
            links: self.item.links,
            may_get_first_name: self.may_get_first_name,
            flags,
            project: 0,
        }
    }
}

/// The states of several inodes, locked in the order of their identities, and their items to be changed.
pub(super) struct States<'n> {
    held: Vec<HeldState<'n>>,
}

/// The state of an inode, and its item to be changed.
struct HeldState<'n> {
    id: InodeId,
    state: RwLockWriteGuard<'n, InodeState>,
    item: InodeItem,
}

impl<'n> States<'n> {
    /// Each of `inodes` may be there more than once.
    pub(super) fn lock(inodes: &[&'n BtrfsInode]) -> Self {
        let mut inodes = inodes.to_vec();
        inodes.sort_by_key(|inode| inode.id);
        inodes.dedup_by_key(|inode| inode.id);
        let held = (0..).zip(inodes).map(|(nth, inode)| {
            let state = inode.state.write_nth(nth);
            HeldState {
                id: inode.id,
                item: state.item,
                state,
            }
        });
        Self {
            held: held.collect(),
        }
    }

    /// The item of one of them.
    pub(super) fn item(&mut self, inode: &BtrfsInode) -> &mut InodeItem {
        let held = self.held.iter_mut().find(|held| held.id == inode.id);
        &mut held.expect("it was among those to lock").item
    }

    /// Stores the item of one of them.
    pub(super) fn store_item(&mut self, handle: &Handle<'_>, inode: &BtrfsInode) -> Result<()> {
        store(handle, inode.id, self.item(inode))
    }

    /// Stores all items.
    pub(super) fn store(&mut self, handle: &Handle<'_>) -> Result<()> {
        let mut held = self.held.iter_mut();
        held.try_for_each(|held| store(handle, held.id, &mut held.item))
    }

    /// Takes over what was stored.
    pub(super) fn end(mut self) {
        for held in &mut self.held {
            held.state.item = held.item;
            held.state.may_get_first_name &= held.item.links == 0;
        }
    }
}
