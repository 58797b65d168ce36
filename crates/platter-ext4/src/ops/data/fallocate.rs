//! Space that is taken, freed or moved within a file at the caller's word.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_cache::page::PAGE_BYTES;
use platter_vfs::{Condition, FallocateMode, Result};

use super::super::Node;
use super::WriteTo;
use super::writeback::Placement;
use crate::mapping::{Backing, Progress};
use crate::ondisk::{FileBlock, InodeFlags};

/// A page, as an offset counts.
const PAGE: u64 = PAGE_BYTES as u64;

impl Node {
    /// See [`platter_vfs::Inode::fallocate`].
    pub(in crate::ops) fn change_space(
        &self,
        range: Range<u64>,
        mode: FallocateMode,
    ) -> Result<()> {
        self.refuse_without_contents()?;
        self.refuse_change()?;
        if range.is_empty() {
            return Err(Condition::InvalidArgument.into());
        }
        let _order = self.order.write();
        if range.end > self.size_bytes_max() {
            return Err(Condition::FileTooLarge.into());
        }
        let flags = self.core.read().inode.flags;
        let only_adds = matches!(mode, FallocateMode::Allocate { .. });
        if flags.contains(InodeFlags::APPEND) && !only_adds {
            return Err(Condition::NotPermitted.into());
        }
        self.grow_out_of_inode()?;
        let has_extents = self.core.read().inode.flags.contains(InodeFlags::EXTENTS);
        if !has_extents && mode != FallocateMode::PunchHole {
            return Err(Condition::NotSupported.into());
        }
        if mode != FallocateMode::PunchHole {
            self.finish_cut()?;
        }
        match mode {
            FallocateMode::Allocate { keep_size } => self.allocate(range, keep_size),
            FallocateMode::PunchHole => self.punch(range),
            FallocateMode::ZeroRange { keep_size } => self.zero(range, keep_size),
            FallocateMode::CollapseRange => self.collapse(range),
            FallocateMode::InsertRange => self.make_room(range),
        }
    }

    fn allocate(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        // What has a promise gets its place first, so that nothing is promised twice.
        self.pages.write_back(self, range.clone())?;
        self.fill_holes(self.blocks_of(range.clone())?)?;
        self.end_change(if keep_size { 0 } else { range.end })
    }

    fn punch(&self, range: Range<u64>) -> Result<()> {
        let size = self.size_bytes();
        if range.start >= size {
            return Ok(());
        }
        let end = range.end.min(size.next_multiple_of(PAGE));
        let range = range.start..end;
        self.settle_rows(0..u64::MAX)?;
        let inner = self.clear_edges(&range)?;
        self.drop_cached(&inner)?;
        let mut blocks = self.blocks_of(inner.clone())?;
        let dropped = blocks.clone();
        let alone = self.data.places.write();
        self.in_steps(0, |handle, core, space| {
            core.forget_delayed(self.volume(), space, dropped.clone());
            let (map, mut change) = core.map_change(self.volume(), &**space, handle);
            match map.remove(&mut change, blocks.clone())? {
                Progress::Done => return Ok(true),
                Progress::More(next) => blocks.end = next,
            }
            Ok(false)
        })?;
        drop(alone);
        // What others read meanwhile was still there.
        self.pages.remove_range(inner);
        self.end_change(0)
    }

    fn zero(&self, range: Range<u64>, keep_size: bool) -> Result<()> {
        let inner = self.clear_edges(&range)?;
        self.drop_cached(&inner)?;
        let blocks = self.blocks_of(inner.clone())?;
        let mut left = blocks.clone();
        let alone = self.data.places.write();
        self.in_steps(0, |handle, core, space| {
            core.forget_delayed(self.volume(), space, blocks.clone());
            let (map, mut change) = core.map_change(self.volume(), &**space, handle);
            match map.convert(&mut change, left.clone(), true)? {
                Progress::Done => return Ok(true),
                Progress::More(next) => left.start = next,
            }
            Ok(false)
        })?;
        drop(alone);
        self.pages.remove_range(inner);
        self.pages.write_back(self, range.clone())?;
        self.fill_holes(self.blocks_of(range.clone())?)?;
        self.end_change(if keep_size { 0 } else { range.end })
    }

    fn collapse(&self, range: Range<u64>) -> Result<()> {
        self.refuse_unaligned(&range)?;
        let size = self.size_bytes();
        if range.end >= size {
            return Err(Condition::InvalidArgument.into());
        }
        let blocks = self.blocks_of(range.clone())?;
        let count = blocks.end.0 - blocks.start.0;
        self.write_back_from(range.start)?;
        let mut left = blocks.clone();
        let new_size = size - (range.end - range.start);
        let mut from = blocks.end;
        self.move_contents(range.start, || {
            self.in_steps(0, |handle, core, space| {
                let (map, mut change) = core.map_change(self.volume(), &**space, handle);
                match map.remove(&mut change, left.clone())? {
                    Progress::Done => return Ok(true),
                    Progress::More(next) => left.end = next,
                }
                Ok(false)
            })?;
            self.in_steps(0, |handle, core, space| {
                let (map, mut change) = core.map_change(self.volume(), &**space, handle);
                match map.shift_down(&mut change, from, count)? {
                    Progress::Done => {
                        core.inode.size_bytes = new_size;
                        self.cut_off(new_size);
                    }
                    Progress::More(next) => {
                        from = next;
                        return Ok(false);
                    }
                }
                Ok(true)
            })
        })
    }

    fn make_room(&self, range: Range<u64>) -> Result<()> {
        self.refuse_unaligned(&range)?;
        let size = self.size_bytes();
        if range.start >= size {
            return Err(Condition::InvalidArgument.into());
        }
        let len = range.end - range.start;
        let new_size = size.checked_add(len);
        let new_size = new_size.filter(|&size| size <= self.size_bytes_max());
        let new_size = new_size.ok_or(Condition::FileTooLarge)?;
        let blocks = self.blocks_of(range.clone())?;
        let count = blocks.end.0 - blocks.start.0;
        self.write_back_from(range.start)?;
        let has_room = {
            let core = self.core.read();
            core.map.has_room_above(self.volume(), count)?
        };
        if !has_room {
            return Err(Condition::InvalidArgument.into());
        }
        let mut left = blocks.start..FileBlock::MAX;
        self.move_contents(range.start, || {
            // What takes space first, so that the file is whole where there is none. Nobody who writes
            // what lies before it joins the parts again.
            self.in_steps(0, |handle, core, space| {
                let (map, mut change) = core.map_change(self.volume(), &**space, handle);
                map.part(&mut change, blocks.start)?;
                Ok(true)
            })?;
            // The size next: what is moved would lie behind the end of the file.
            self.change(0, |handle, core| {
                core.inode.size_bytes = new_size;
                core.data_sync = handle.transaction();
                Ok(())
            })?;
            self.size_bytes.store(new_size, Ordering::Release);
            self.in_steps(0, |handle, core, space| {
                let (map, mut change) = core.map_change(self.volume(), &**space, handle);
                match map.shift_up(&mut change, left.clone(), count)? {
                    Progress::Done => return Ok(true),
                    Progress::More(next) => left.end = next,
                }
                Ok(false)
            })
        })
    }

    /// Has `work` move blocks of the map from byte `start` on, and makes it durable. What is written
    /// next goes straight to them, and would be found at their former offsets after a power cut.
    fn move_contents(&self, start: u64, work: impl FnOnce() -> Result<()>) -> Result<()> {
        let alone = self.data.places.write();
        let moved = work();
        drop(alone);
        // Others read what lay there before, and some of it may have moved, whatever came of it.
        self.pages.invalidate(start..u64::MAX);
        moved?;
        self.end_change(0)?;
        let moved = self.core.read().sync;
        self.volume().log().map_or(Ok(()), |log| log.commit(moved))
    }

    /// Ranges are moved in whole clusters.
    fn refuse_unaligned(&self, range: &Range<u64>) -> Result<()> {
        let geometry = &self.volume().geometry;
        let unit = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
        if range.start.is_multiple_of(unit) && range.end.is_multiple_of(unit) {
            return Ok(());
        }
        Err(Condition::InvalidArgument.into())
    }

    /// Writes zeros to the blocks that a range covers in part, as far as they have contents. Gives
    /// the rest: whole blocks, or nothing.
    fn clear_edges(&self, range: &Range<u64>) -> Result<Range<u64>> {
        let block_bytes = u64::from(self.volume().geometry.block_bytes);
        let inner_start = range.start.next_multiple_of(block_bytes);
        let inner_end = range.end - range.end % block_bytes;
        let size = self.size_bytes();
        let edges = if inner_start > inner_end {
            [range.clone(), 0..0]
        } else {
            [range.start..inner_start, inner_end..range.end]
        };
        for edge in edges {
            let edge = edge.start..edge.end.min(size);
            if edge.is_empty() || !self.has_contents(edge.start)? {
                continue;
            }
            let zeros = vec![0; usize::try_from(edge.end - edge.start).unwrap_or_default()];
            self.write_cached(edge.start, &zeros, WriteTo::Cache)?;
        }
        Ok(inner_start..inner_end.max(inner_start))
    }

    /// Whether the block of a byte has contents, on the device or in the cache.
    fn has_contents(&self, offset: u64) -> Result<bool> {
        let block = self.blocks_of(offset..offset)?.start;
        let core = self.core.read();
        let run = core.map.lookup(self.volume(), block)?;
        let is_written = matches!(run.backing, Backing::Written(_));
        Ok(is_written || core.delayed.dirty().contains(block.0))
    }

    /// Takes whole blocks out of the cache, written or not.
    fn drop_cached(&self, range: &Range<u64>) -> Result<()> {
        self.settle_edges(range.clone())?;
        self.pages.remove_range(range.clone());
        Ok(())
    }

    /// Gives a place to what is dirty in clusters that a range covers in part: their space may be
    /// freed with the range, and a promise would be missing.
    pub(super) fn settle_edges(&self, range: Range<u64>) -> Result<()> {
        let geometry = &self.volume().geometry;
        if geometry.cluster_blocks == 1 {
            return Ok(());
        }
        let unit = u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks);
        for edge in [range.start, range.end] {
            if !edge.is_multiple_of(unit) && edge != u64::MAX {
                let start = edge - edge % unit;
                self.pages.write_back(self, start..start + unit)?;
            }
        }
        Ok(())
    }

    /// Gives a place to what is dirty in `range` and has a promise of blocks of numbers: it shares
    /// those above them with other parts of the file, with which they might be freed.
    pub(super) fn settle_rows(&self, range: Range<u64>) -> Result<()> {
        if self.core.read().delayed.has_rows() {
            self.pages.write_back(self, range)?;
        }
        Ok(())
    }

    /// Writes what is dirty from a byte on, and takes it out of the cache.
    pub(super) fn write_back_from(&self, start: u64) -> Result<()> {
        self.pages.write_back(self, start..u64::MAX)?;
        self.pages.invalidate(start..u64::MAX);
        Ok(())
    }

    /// Gives all holes of a range space that reads as zeros, or none of them.
    fn fill_holes(&self, blocks: Range<FileBlock>) -> Result<()> {
        let space = self.tree.space()?;
        let placement = &mut *self.data.placement.lock();
        self.core
            .write()
            .promise_holes(self.volume(), space, blocks.clone())?;
        let filled = self.fill_promised(blocks.clone(), placement);
        if filled.is_err() {
            let mut core = self.core.write();
            core.forget_delayed(self.volume(), space, blocks);
        }
        filled
    }

    fn fill_promised(&self, blocks: Range<FileBlock>, placement: &mut Placement) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.core.read().map.lookup(self.volume(), at)?;
            let run = run.truncated(blocks.end.0 - at.0);
            at = run.end();
            if run.backing != Backing::Hole {
                continue;
            }
            let mut piece = self.take(run.first..run.end(), placement)?;
            let filled = self.map_unwritten(&mut piece, placement);
            if let Err(error) = filled {
                self.give_back(piece)?;
                return Err(error);
            }
            at = piece.run.end();
        }
        Ok(())
    }

    /// Notes that contents changed, and has the file end at `end` at least.
    fn end_change(&self, end: u64) -> Result<()> {
        if end > self.size_bytes() {
            self.lengthen(end)
        } else {
            self.touch()
        }
    }
}
