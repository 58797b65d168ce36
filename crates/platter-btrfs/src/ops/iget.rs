//! Inodes that are found by their identities, and loaded.

use std::sync::atomic::{AtomicBool, AtomicU64};
use std::sync::{Arc, OnceLock};

use platter_block::lock::Mutex;
use platter_block::lock::RwLock;
use platter_cache::Mapping;
use platter_vfs::file::FileData;
use platter_vfs::inode_cache::Seat;
use platter_vfs::writing::InodeLists;
use platter_vfs::{Condition, Error, InodeId, Result};

use super::inline::InlineRule;
use super::properties::load_item;
use super::stub::StubDir;
use super::subvolumes::in_use::InUse;
use super::{BtrfsInode, InodeState, SuperBlock};
use crate::inode;
use crate::ondisk::TreeId;
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::types::{FIRST_FREE_OBJECT, LAST_FREE_OBJECT};
use crate::tree::Tree;
use crate::txn::trees;

impl SuperBlock {
    /// The inode with this identity; `None` if there is none.
    pub fn find(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<dyn platter_vfs::Inode>>> {
        if let Some(place) = self.stubs.place(id) {
            return Ok(Some(Arc::new(StubDir::new(Arc::clone(self), id, place))));
        }
        let found = self.load(id)?;
        Ok(found.map(|inode| -> Arc<dyn platter_vfs::Inode> { inode }))
    }

    /// As [`find`](Self::find), for an identity that may be of a subvolume deleted long ago.
    pub fn find_by_handle(
        self: &Arc<Self>,
        id: InodeId,
    ) -> Result<Option<Arc<dyn platter_vfs::Inode>>> {
        let subvolume = self.in_use.get(TreeId(id.tree));
        if subvolume.is_some_and(|it| it.is_deleted()) {
            return Ok(None);
        }
        self.find(id)
    }

    pub(super) fn load(self: &Arc<Self>, id: InodeId) -> Result<Option<Arc<BtrfsInode>>> {
        let loaded = self.inodes.get_or_load(id, |seat| self.read(id, seat));
        let is_deleted = (loaded.as_ref()).is_ok_and(|inode| inode.subvolume.is_deleted());
        if is_deleted || self.writes.is_closed() {
            self.inodes.release(id);
        }
        match loaded {
            Ok(inode) => Ok(Some(inode)),
            Err(Error::Condition(Condition::Stale)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn read(self: &Arc<Self>, id: InodeId, seat: Seat<BtrfsInode>) -> Result<BtrfsInode> {
        let subvolume = self.use_subvolume(TreeId(id.tree))?;
        if !(FIRST_FREE_OBJECT..=LAST_FREE_OBJECT).contains(&id.number) {
            return Err(Condition::Stale.into());
        }
        if let Some(writing) = self.writing() {
            trees::follow(writing, subvolume.id())?;
        }
        let item = load_item(self.context(), subvolume.tree(), id.number)?;
        // One without names is an orphan that is to be deleted.
        let item = item.filter(|item| item.links > 0).ok_or(Condition::Stale)?;
        Ok(self.object(id, subvolume, item, seat))
    }

    /// What the inodes of a subvolume share.
    pub(super) fn use_subvolume(&self, id: TreeId) -> Result<Arc<InUse>> {
        // One that was deleted is there until its last user is gone.
        if let Some(known) = self.in_use.get(id) {
            return Ok(known);
        }
        let context = self.context();
        loop {
            let changes = context.root_item_changes();
            let subvolume = context.subvolume(id)?.ok_or(Condition::Stale)?;
            let shared = self.in_use.get_or_add(&subvolume);
            shared.set_read_only(subvolume.is_read_only());
            // A thread that changes it from now on finds what the inodes share.
            if context.root_item_changes() == changes {
                return Ok(shared);
            }
        }
    }

    /// The object of an inode.
    pub(super) fn object(
        self: &Arc<Self>,
        id: InodeId,
        subvolume: Arc<InUse>,
        item: InodeItem,
        seat: Seat<BtrfsInode>,
    ) -> BtrfsInode {
        BtrfsInode {
            fs: Arc::clone(self),
            id,
            kind: item.kind,
            subvolume,
            order: RwLock::new(()),
            data: FileData::new(item.size_bytes, !self.overwrites.is_flushed()),
            inline: InlineRule::default(),
            verity: OnceLock::new(),
            property: Mutex::default(),
            state: RwLock::new(InodeState::new(item)),
            pages: Mapping::new(Arc::clone(&self.budget)),
            lists: InodeLists::default(),
            kept_bytes: AtomicU64::new(0),
            kept_data_bytes: AtomicU64::new(0),
            lost_extents: AtomicU64::new(item.transaction.0),
            is_deleted: AtomicBool::new(false),
            _seat: seat,
        }
    }

    /// The object of an inode that was just made.
    pub(super) fn adopt(
        self: &Arc<Self>,
        dir: &BtrfsInode,
        number: u64,
        item: InodeItem,
    ) -> Result<Arc<BtrfsInode>> {
        let id = InodeId {
            tree: dir.id.tree,
            number,
        };
        let is_unnamed = item.links == 0;
        let inode = self.inodes.get_or_load(id, |seat| {
            let inode = self.object(id, Arc::clone(&dir.subvolume), item, seat);
            inode.state.write().may_get_first_name = is_unnamed;
            Ok::<_, Error>(inode)
        });
        if is_unnamed {
            // Without a name, it goes with its last user.
            self.inodes.release(id);
        }
        inode
    }

    /// The inode that an entry of a directory names.
    pub(super) fn named(
        self: &Arc<Self>,
        tree: Tree,
        id: InodeId,
    ) -> Result<Arc<dyn platter_vfs::Inode>> {
        let found = self.find(id)?;
        Ok(found.ok_or_else(|| inode::missing(tree, id.number))?)
    }
}
