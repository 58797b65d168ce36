//! Removing names, and files that have lost the last one.

use std::ops::Range;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, FileKind, Result, Timestamp};

use super::data::DELETE_CREDITS;
use super::names::Cores;
use super::{Ext4Inode, InodeState, SuperBlock};
use crate::FsContext;
use crate::alloc::Allocator;
use crate::directory::{CHANGE_CREDITS, Slot};
use crate::inode::{self, InodeNumberRule, STORE_CREDITS};
use crate::mapping::{BlockMap, MapChange, Progress};
use crate::ondisk::{FileBlock, InodeNr};
use crate::orphan::{ORPHAN_CREDITS, OrphanRegister};
use crate::txn::Handle;

/// Blocks that removing a name changes at most.
const REMOVE_CREDITS: u32 = CHANGE_CREDITS + 2 * STORE_CREDITS + DELETE_CREDITS;

impl Ext4Inode {
    /// Takes the name of `victim` at `slot` out of this directory. The caller holds both inode locks.
    pub(super) fn take_name(&self, slot: &Slot, victim: &Arc<Self>) -> Result<()> {
        let sb = &self.sb;
        let (fs, space) = (&sb.fs, sb.space()?);
        let register = sb.register()?;
        inode::read_slot(fs, self.number)?;
        inode::read_slot(fs, victim.number)?;
        // An inode without other users is freed at once. Lookups from here on wait until it is gone.
        let is_ours =
            victim.is_bare() && sb.nodes.withdraw(victim.number.id(), victim) && victim.is_bare();
        let keeper = self.keeper();
        let mut handle = fs.begin(REMOVE_CREDITS)?;
        let mut cores = Cores::lock(&[self, victim]);
        let now = sb.clock.now();
        let dir = cores.of(self);
        dir.directory_mut(fs, &**space, &mut handle)?
            .remove_at(slot)?;
        dir.touch_names(now);
        if victim.kind == FileKind::Directory {
            dir.discount_directory();
        }
        let is_gone = cores.of(victim).drop_link(now);
        if is_ours {
            self.store_later(&mut handle, cores.of(self), keeper)?;
            let deleted = victim.delete_bare(&mut handle, cores.of(victim), now);
            return deleted.map_err(|error| handle.abort(error));
        }
        if is_gone {
            register.add(fs, &mut handle, victim.number)?;
        }
        cores.store(fs, &mut handle)?;
        drop(cores);
        drop(handle);
        if is_gone {
            sb.drop_unnamed(victim);
        }
        Ok(())
    }

    /// Removes what a truncation that a crash interrupted left past the end of the file.
    fn finish_truncation(&self, space: &Allocator) -> Result<()> {
        let sb = &self.sb;
        let fs = &sb.fs;
        let register = sb.register()?;
        inode::read_slot(fs, self.number)?;
        let block_bytes = u64::from(fs.geometry.block_bytes);
        let mut end = FileBlock::MAX;
        loop {
            let credits = self.state.read().map.step_credits();
            let mut handle = fs.begin(credits + STORE_CREDITS + ORPHAN_CREDITS)?;
            let state = &mut *self.state.write();
            let first = u32::try_from(state.inode.size_bytes.div_ceil(block_bytes));
            let progress = match first {
                Ok(first) if self.kind == FileKind::Regular => {
                    state.remove_blocks(fs, space, &mut handle, FileBlock(first)..end)?
                }
                _ => Progress::Done,
            };
            if progress == Progress::Done {
                register.remove(fs, &mut handle, self.number)?;
            }
            state.store_data(fs, &mut handle)?;
            match progress {
                Progress::Done => return Ok(()),
                Progress::More(before) => end = before,
            }
        }
    }
}

impl InodeState {
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

    fn remove_blocks(
        &mut self,
        fs: &FsContext,
        space: &Allocator,
        handle: &mut Handle<'_>,
        blocks: Range<FileBlock>,
    ) -> Result<Progress> {
        let mut change = MapChange {
            fs,
            space,
            handle,
            inode: &mut self.inode,
        };
        let removed = self.map.remove(&mut change, blocks);
        if removed.is_err() {
            // Steps before the one that failed were taken.
            self.store(fs, handle)?;
        }
        removed
    }
}

impl SuperBlock {
    /// Ends what a crash broke off: deletes inodes that have no name, and truncates those that were
    /// about to be. Once, before anything else is changed.
    ///
    /// What is too corrupt is left to a check, and what cannot be read to the next mount.
    pub fn finish_orphans(self: &Arc<Self>) -> Result<()> {
        let register = OrphanRegister::open(&self.fs)?;
        let orphans = register.all();
        self.note_orphans_in(register);
        // After errors nothing is freed that a check has not seen, as by the kernel.
        let may_finish = !self.fs.superblock.state.has_errors();
        for number in orphans {
            if may_finish {
                match self.finish_orphan(number) {
                    Err(Error::Corrupt(_)) if self.can_write() => {}
                    // It stays an orphan: what cannot be read now may be another time.
                    Err(Error::Io(_)) if self.can_write() => continue,
                    Ok(()) => continue,
                    Err(error) => return Err(error),
                }
            }
            let mut handle = self.fs.begin(ORPHAN_CREDITS)?;
            self.register()?.forget(&self.fs, &mut handle, number)?;
        }
        Ok(())
    }

    /// Records on disk that there are no orphans, if so. No change may follow.
    pub fn close_orphans(&self) -> Result<()> {
        let Some(register) = self.register.get() else {
            return Ok(());
        };
        let mut handle = self.fs.begin(1)?;
        register.close(&self.fs, &mut handle)
    }

    fn finish_orphan(self: &Arc<Self>, number: InodeNr) -> Result<()> {
        if inode::is_reserved(&self.fs, number) {
            let locus = Locus::inode(u64::from(number.get()));
            return Err(Corrupt::new(locus, InodeNumberRule::Reserved).into());
        }
        let inode = inode::read(&self.fs, number)?;
        let map = BlockMap::decode(&self.fs, &inode)?;
        let is_deleted = inode.links == 0;
        let node = self.nodes.get_or_load(number.id(), |seat| {
            Ok::<_, Error>(self.node(inode, map, seat))
        })?;
        self.nodes.release(number.id());
        if is_deleted {
            node.evict()
        } else {
            node.finish_truncation(self.space()?)
        }
    }

    pub(super) fn can_write(&self) -> bool {
        self.fs.log().is_some_and(|log| log.failure().is_none())
    }
}
