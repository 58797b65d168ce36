//! Files that become shorter or longer.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_cache::AddressSpace;
use platter_cache::page::PAGE_BYTES;
use platter_vfs::{Condition, Result};

use super::super::Node;
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
        self.size_bytes.store(size, Ordering::Release);
        self.pages.truncate(size);
        let end = self.blocks_of(0..size)?.end;
        let shortened = self.remove_behind(size, end);
        if let Err(error) = shortened {
            self.keep_what_is_left(size..old, end)?;
            return Err(error);
        }
        if size == 0 && old > 0 {
            self.data.is_replaced.store(true, Ordering::Release);
        }
        self.rewrite_tail(size)
    }

    /// Has a file that could not be cut off, of which the cache has nothing of the `lost` bytes any
    /// more, nor of the blocks from `end` on, end where the medium says. What lies before them may be
    /// in the cache only.
    fn keep_what_is_left(&self, lost: Range<u64>, end: FileBlock) -> Result<()> {
        let (volume, space) = (self.volume(), self.tree.space()?);
        let left = {
            let _alone = self.data.places.write();
            let mut core = self.core.write();
            core.forget_delayed(volume, space, end..FileBlock::MAX);
            core.inode.size_bytes.clamp(lost.start, lost.end)
        };
        self.size_bytes.store(left, Ordering::Release);
        if left > lost.start {
            // An error is told to whoever syncs the file.
            let _ = self.restore_page(lost.start..left);
            let _ = self.write_back_from(lost.start);
        }
        Ok(())
    }

    /// Has the page that `bytes` begin in hold those that the medium has there, where it has zeros.
    fn restore_page(&self, bytes: Range<u64>) -> Result<()> {
        let start = bytes.start - bytes.start % PAGE_BYTES as u64;
        let end = bytes.end.min(start + PAGE_BYTES as u64);
        if start == bytes.start {
            return Ok(());
        }
        let within = |byte: u64| usize::try_from(byte - start).unwrap_or(PAGE_BYTES);
        let mut page = vec![0; within(end)];
        self.read_folios(start, &mut [IoSliceMut::new(&mut page)])?;
        let tail = page.get(within(bytes.start)..).unwrap_or_default();
        self.write_cached(bytes.start, tail)
    }

    /// Makes `size` the size, and takes the blocks from `end` on out of the map. While that takes more
    /// than one handle, the inode is among the orphans.
    fn remove_behind(&self, size: u64, end: FileBlock) -> Result<()> {
        let (volume, register) = (self.volume(), self.tree.register()?);
        let now = self.tree.clock.now();
        let mut before = FileBlock::MAX;
        let mut is_orphan = false;
        let _alone = self.data.places.write();
        self.in_steps(ORPHAN_CREDITS, |handle, core, space| {
            let (map, mut change) = core.map_change(volume, &**space, handle);
            let progress = map.remove(&mut change, end..before)?;
            core.forget_delayed(volume, space, end..FileBlock::MAX);
            core.inode.size_bytes = size;
            self.cut_off(size);
            core.inode.modified = now;
            core.inode.changed = now;
            match progress {
                // One without names stays an orphan.
                Progress::Done if is_orphan && core.inode.links > 0 => {
                    register.remove(volume, handle, self.number)?;
                }
                Progress::Done => {}
                Progress::More(next) => {
                    before = next;
                    is_orphan = true;
                    register.add(volume, handle, self.number)?;
                }
            }
            Ok(progress == Progress::Done)
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
        self.write_cached(last, &byte)
    }
}
