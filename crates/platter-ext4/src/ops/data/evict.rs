//! Inodes that lost their last name and now their last user: all they have becomes free.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::{Context, FileKind, Result, Timestamp};

use super::super::{Core, Node};
use crate::alloc::FREE_INODE_CREDITS;
use crate::inode;
use crate::mapping::Progress;
use crate::ondisk::FileBlock;
use crate::orphan::ORPHAN_CREDITS;
use crate::txn::Handle;
use crate::xattr::{Released, change_credits};

/// Blocks that freeing an inode changes at most that has nothing left.
pub(in crate::ops) const DELETE_CREDITS: u32 = ORPHAN_CREDITS + FREE_INODE_CREDITS;

impl Node {
    /// Frees what the inode holds, and the inode, unless that was tried before. It is among the
    /// orphans until that is done.
    ///
    /// An error leaves it there, for the next mount.
    pub(in crate::ops) fn evict(&self) -> Result<()> {
        if self.is_deleted.swap(true, Ordering::AcqRel) {
            return Ok(());
        }
        self.pages.truncate(0);
        let (has_blocks, has_attributes) = {
            let core = self.core.read();
            (core.has_blocks(), core.inode.has_attributes())
        };
        if has_blocks {
            self.free_blocks(FileBlock(0)..FileBlock::MAX)?;
        }
        if has_attributes {
            self.free_attributes()?;
        }
        let volume = self.volume();
        inode::read_slot(volume, self.number)?;
        let mut handle = volume.begin(DELETE_CREDITS)?;
        let mut core = self.core.write();
        self.delete(&mut handle, &mut core, self.tree.clock.now())
    }

    /// Whether it has nothing but its number and the last of its names: no blocks, no attributes.
    pub(in crate::ops) fn is_bare(&self) -> bool {
        let core = self.core.read();
        self.kind != FileKind::Directory && core.inode.links == 1 && core.is_bare()
    }

    /// Frees an inode that has no name and is bare, in the transaction that removes its last name at
    /// `now`: it is never an orphan. The caller has the only reference to it.
    pub(in crate::ops) fn delete_bare(
        &self,
        handle: &mut Handle<'_>,
        core: &mut Core,
        now: Timestamp,
    ) -> Result<()> {
        self.is_deleted.store(true, Ordering::Release);
        self.delete(handle, core, now)
    }

    fn delete(&self, handle: &mut Handle<'_>, core: &mut Core, now: Timestamp) -> Result<()> {
        let (volume, space, register) = (self.volume(), self.tree.space()?, self.tree.register()?);
        // The kernel keeps 32 bits of it, and 0 would not be a deletion.
        let time = u32::try_from(now.seconds).unwrap_or(u32::MAX).max(1);
        core.inode.size_bytes = 0;
        core.inode.changed = core.inode.storable(now);
        (core.sync, core.data_sync) = (handle.transaction(), handle.transaction());
        core.drop_charge(volume, handle)?;
        register.remove_deleted(volume, handle, &core.inode, time)?;
        // From here on the number may be another file's.
        let was_dir = self.kind == FileKind::Directory;
        let freed = space.free_inode(volume, handle, self.number, was_dir);
        freed.map_err(|error| handle.abort(error))
    }

    fn free_attributes(&self) -> Result<()> {
        let context = Context::root();
        let mut credits = change_credits(self.volume());
        loop {
            let released = self.change(credits, |handle, core| {
                self.xattr_change(&context, handle, core)?.release()
            })?;
            match released {
                Released::All => return Ok(()),
                Released::Some { credits: next } => credits = next,
            }
        }
    }

    /// Takes blocks out of the map and gives them back.
    fn free_blocks(&self, mut blocks: Range<FileBlock>) -> Result<()> {
        self.in_steps(0, |handle, core, space| {
            core.forget_delayed(self.volume(), space, blocks.clone());
            let (map, mut change) = core.map_change(self.volume(), &**space, handle);
            match map.remove(&mut change, blocks.clone())? {
                Progress::Done => return Ok(true),
                Progress::More(next) => blocks.end = next,
            }
            Ok(false)
        })
    }
}

impl Core {
    /// Whether it has blocks, or a reservation of some.
    fn has_blocks(&self) -> bool {
        !(self.map.is_empty() && self.delayed.is_empty())
    }

    fn is_bare(&self) -> bool {
        !self.has_blocks() && !self.inode.has_attributes()
    }
}
