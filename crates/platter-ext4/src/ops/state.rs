//! The on-disk state of an inode in use, and what all changes of it share.

use platter_vfs::namei::LinkState;
use platter_vfs::{FileKind, Result, Timestamp};

use super::delayed::Delayed;
use super::inode_quota::InodeQuota;
use crate::FsContext;
use crate::directory::{Directory, DirectoryMut, LINKS_MAX};
use crate::file::Contents;
use crate::inode;
use crate::mapping::{BlockMap, BlockSource, MapChange};
use crate::ondisk::jbd2::Sequence;
use crate::ondisk::{Geometry, Inode};
use crate::txn::Handle;

/// The on-disk state of an inode, as of the running transaction.
pub(super) struct InodeState {
    pub(super) inode: Inode,
    pub(super) map: BlockMap,
    /// What of the contents has no place on the device yet.
    pub(super) delayed: Delayed,
    /// What it counts for in the quota files.
    pub(super) quota: InodeQuota,
    /// It was made without a name, and may still get its first.
    pub(super) may_get_first_name: bool,
    /// The last transaction that changed the inode.
    pub(super) sync: Sequence,
    /// The last transaction that changed what is needed to reach its contents.
    pub(super) data_sync: Sequence,
}

impl InodeState {
    pub(super) fn contents<'c>(&'c self, fs: &'c FsContext) -> Contents<'c> {
        Contents {
            fs,
            inode: &self.inode,
            map: &self.map,
        }
    }

    /// Takes the inode as it is now into its table. Without that, the changes that led to it must
    /// not become durable.
    pub(super) fn store(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        self.sync = handle.transaction();
        // What is shown is what will be found again.
        let inode = &mut self.inode;
        inode.modified = inode.storable(inode.modified);
        inode.changed = inode.storable(inode.changed);
        self.quota.store(fs, handle, &self.inode, &self.delayed)?;
        inode::store(fs, handle, &self.inode).map_err(|error| handle.abort(error))
    }

    /// As [`store`](Self::store), after a change of size or map.
    pub(super) fn store_data(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        self.data_sync = handle.transaction();
        self.store(fs, handle)
    }

    /// The map, and what changes it.
    pub(super) fn map_change<'c, 'h>(
        &'c mut self,
        fs: &'c FsContext,
        space: &'c dyn BlockSource,
        handle: &'c mut Handle<'h>,
    ) -> (&'c mut BlockMap, MapChange<'c, 'h>) {
        let change = MapChange {
            fs,
            space,
            handle,
            inode: &mut self.inode,
        };
        (&mut self.map, change)
    }

    /// Whether writeback may allocate another number of blocks than is reserved: tree blocks, and fewer indirect blocks,
    /// as one that several leaf arrays lack is reserved for each.
    pub(super) fn has_estimated_space(&self, geometry: &Geometry) -> bool {
        let delayed = &self.delayed;
        !delayed.is_empty()
            && (delayed.has_leaves() || !self.map.fits_in_root(delayed.new_extents_max(geometry)))
    }

    /// Whether it has blocks, or a reservation of some.
    pub(super) fn has_blocks(&self) -> bool {
        !(self.map.is_empty() && self.delayed.is_empty())
    }

    /// Whether it has neither blocks nor attributes.
    pub(super) fn is_bare(&self) -> bool {
        !self.has_blocks() && !self.inode.has_attributes()
    }

    pub(super) fn directory<'c>(&'c self, fs: &'c FsContext) -> Result<Directory<'c>> {
        Directory::open(fs, &self.inode, &self.map)
    }

    pub(super) fn directory_mut<'c, 'h>(
        &'c mut self,
        fs: &'c FsContext,
        space: &'c dyn BlockSource,
        handle: &'c mut Handle<'h>,
    ) -> Result<DirectoryMut<'c, 'h>> {
        DirectoryMut::open(fs, space, handle, &mut self.inode, &mut self.map)
    }

    pub(super) fn link_state(&self) -> LinkState {
        LinkState {
            links: self.inode.links,
            may_get_first_name: self.may_get_first_name,
            flags: self.inode.flags.bits(),
            project: self.inode.project,
        }
    }

    /// Records that names of this directory changed.
    pub(super) fn touch_names(&mut self, now: Timestamp) {
        let now = self.inode.storable(now);
        (self.inode.modified, self.inode.changed) = (now, now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Records that attributes changed.
    pub(super) fn touch(&mut self, now: Timestamp) {
        self.inode.changed = self.inode.storable(now);
        self.inode.version = self.inode.version.wrapping_add(1);
    }

    /// Counts a directory added to this one. More than can be counted are stored as one link.
    pub(super) fn count_directory(&mut self) {
        let links = self.inode.links.saturating_add(1);
        self.inode.links = match links {
            0..=2 => 1,
            3..=LINKS_MAX => links,
            _ => 1,
        };
    }

    /// Counts a directory that left this one.
    pub(super) fn discount_directory(&mut self) {
        if self.inode.links > 2 {
            self.inode.links -= 1;
        }
    }

    /// Drops one link of the inode. Returns whether it was the last.
    pub(super) fn drop_link(&mut self, now: Timestamp) -> bool {
        let inode = &mut self.inode;
        inode.links = if inode.kind == FileKind::Directory {
            0
        } else {
            inode.links.saturating_sub(1)
        };
        let is_gone = inode.links == 0;
        self.touch(now);
        is_gone
    }
}
