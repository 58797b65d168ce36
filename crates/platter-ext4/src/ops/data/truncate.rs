//! Files that become shorter or longer.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::{Condition, Error, Result};

use super::super::Node;
use super::WriteTo;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, Progress};
use crate::ondisk::FileBlock;
use crate::orphan::ORPHAN_CREDITS;

impl Node {
    /// Makes the file `size` bytes long. The caller holds the order lock alone.
    pub(in crate::ops) fn resize(&self, size: u64) -> Result<()> {
        self.refuse_without_contents()?;
        self.refuse_change()?;
        if self.resize_inline(size)? {
            return Ok(());
        }
        let old = self.size_bytes();
        if size > old {
            self.lengthen(size)
        } else {
            self.shorten(size)
        }
    }

    pub(super) fn lengthen(&self, size: u64) -> Result<()> {
        if size > self.size_bytes_max() {
            return Err(Condition::FileTooLarge.into());
        }
        self.grow_out_of_inode()?;
        self.finish_cut()?;
        self.clear_tail(size)?;
        // So that the new size does not become durable ahead of what was written before.
        if !self.core.read().delayed.dirty().is_empty() {
            self.pages.write_back(self, 0..u64::MAX)?;
        }
        let now = self.tree.clock.now();
        self.change(0, |handle, core| {
            core.inode.size_bytes = size;
            core.inode.modified = now;
            core.inode.changed = now;
            core.data_sync = handle.transaction();
            Ok(())
        })?;
        self.size_bytes.store(size, Ordering::Release);
        Ok(())
    }

    fn shorten(&self, size: u64) -> Result<()> {
        let old = self.size_bytes();
        self.settle_edges(size..u64::MAX)?;
        self.settle_rows(0..size)?;
        // Soon the cache has lost what is cut off: what can keep the new size from the medium does so now.
        let volume = self.volume();
        inode::read_slot(volume, self.number)?;
        let credits = self.core.read().map.step_credits() + STORE_CREDITS;
        drop(volume.begin(credits.saturating_add(ORPHAN_CREDITS))?);
        let end = self.blocks_of(0..size)?.end;
        self.size_bytes.store(size, Ordering::Release);
        self.pages.truncate(size);
        let shortened = self.remove_behind(size, end);
        if let Err(error) = shortened {
            self.forget_behind(size..old, end, &error)?;
            return Err(error);
        }
        if size == 0 && old > 0 {
            self.data.is_replaced.store(true, Ordering::Release);
        }
        self.rewrite_tail(size)
    }

    /// Frees what a cut left mapped behind the end: the file is about to become longer. The caller
    /// holds the order lock alone.
    pub(super) fn finish_cut(&self) -> Result<()> {
        if !self.data.is_cut_left() {
            return Ok(());
        }
        self.pages.write_back(self, 0..u64::MAX)?;
        let size = self.size_bytes();
        self.remove_behind(size, self.blocks_of(0..size)?.end)
    }

    /// Ends a cut that failed: of the `lost` bytes, and of the blocks from `end` on, the cache has nothing
    /// any more. Where the medium does not have the new size either, it must not change any more.
    fn forget_behind(&self, lost: Range<u64>, end: FileBlock, error: &Error) -> Result<()> {
        let (volume, space) = (self.volume(), self.tree.space()?);
        let left = {
            let _alone = self.data.places.write();
            let mut core = self.core.write();
            core.forget_delayed(volume, space, end..FileBlock::MAX);
            core.inode.size_bytes.clamp(lost.start, lost.end)
        };
        self.size_bytes.store(left, Ordering::Release);
        if left > lost.start
            && let Some(log) = volume.log()
        {
            log.abort(error);
        }
        Ok(())
    }

    /// Makes `size` the size, and takes the blocks from `end` on out of the map. While that takes more
    /// than one handle, the inode is among the orphans. It stays there where blocks could not be freed:
    /// the file has its new size then, and the next mount tries again.
    fn remove_behind(&self, size: u64, end: FileBlock) -> Result<()> {
        let (volume, register) = (self.volume(), self.tree.register()?);
        let now = self.tree.clock.now();
        let mut before = FileBlock::MAX;
        let _alone = self.data.places.write();
        self.in_steps(ORPHAN_CREDITS, |handle, core, space| {
            core.inode.size_bytes = size;
            self.cut_off(size);
            core.inode.modified = now;
            core.inode.changed = now;
            let (map, mut change) = core.map_change(volume, &**space, handle);
            let removed = map.remove(&mut change, end..before);
            let is_done = matches!(removed, Ok(Progress::Done));
            self.data.is_cut_left.store(!is_done, Ordering::Release);
            if is_done {
                // One without names stays an orphan.
                if core.inode.links > 0 {
                    register.remove(volume, handle, self.number)?;
                }
            } else {
                register.add(volume, handle, self.number)?;
            }
            if let Progress::More(next) = removed? {
                before = next;
            }
            core.forget_delayed(volume, space, end..FileBlock::MAX);
            Ok(is_done)
        })
    }

    /// Has the block in which the file ends now written anew: what lies behind the end becomes
    /// zeros on the device, too.
    fn rewrite_tail(&self, size: u64) -> Result<()> {
        let geometry = &self.volume().geometry;
        let Some(last) = size.checked_sub(1) else {
            return Ok(());
        };
        if size.is_multiple_of(u64::from(geometry.block_bytes)) {
            return Ok(());
        }
        let block = self.blocks_of(last..size)?.start;
        let run = self.core.read().map.lookup(self.volume(), block)?;
        if !matches!(run.backing, Backing::Written(_)) {
            return Ok(());
        }
        let mut byte = [0];
        self.pages.read_at(self, last, &mut byte)?;
        self.write_cached(last, &byte, WriteTo::Cache)
    }
}
