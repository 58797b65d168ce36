//! Writing into the page cache. Space is promised before a byte is taken in, so that what was taken
//! in finds a place later.

use std::collections::BTreeMap;
use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_cache::AddressSpace;
use platter_cache::page::{PAGE_BYTES, WritableSpace};
use platter_vfs::{Condition, Error, Result, Timestamp};

use super::super::{Core, Node};
use crate::alloc::Space;
use crate::file::size_bytes_max;
use crate::mapping::{Backing, Run, blocks_of_row, row_of};
use crate::ondisk::{FileBlock, InodeFlags};
use crate::volume::Volume;

/// Times of a file that is being written are no more exact than this, as in Linux, so that not
/// every write changes the inode.
const TICK_NANOSECONDS: i64 = 4_000_000;
/// So many bytes at once go to the device as they come, without a copy in the cache.
const PAST_BYTES_MIN: usize = 128 << 10;

/// How far a write goes before it returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(in crate::ops) enum WriteTo {
    /// Into the cache, but for long ones.
    Cache,
    /// To the device, as `O_DIRECT` has it.
    Device,
}

impl Node {
    /// See [`platter_vfs::Inode::write_at`] and [`platter_vfs::Inode::write_through`].
    pub(in crate::ops) fn write(&self, offset: u64, data: &[u8], to: WriteTo) -> Result<()> {
        self.refuse_without_contents()?;
        self.refuse_change()?;
        if data.is_empty() {
            return Ok(());
        }
        let tree = &self.tree;
        tree.dirty
            .throttle(&tree.budget, |nodes| tree.write_back_all(nodes));
        let end = offset.checked_add(data.len() as u64);
        let _order = self.order.write();
        let end = end.filter(|&end| end <= self.size_bytes_max());
        if end.is_none() {
            return Err(Condition::FileTooLarge.into());
        }
        if !self.write_inline(offset, data)? {
            self.grow_out_of_inode()?;
            if end > Some(self.size_bytes()) {
                self.finish_cut()?;
            }
            self.clear_tail(offset)?;
            let past = self.past_cache(offset, data.len(), to);
            let (past, cached) = data.split_at(past);
            for (offset, data) in [(offset, past), (offset + past.len() as u64, cached)] {
                if !data.is_empty() {
                    self.write_cached(offset, data, to)?;
                }
            }
            self.touch()?;
            if to == WriteTo::Device {
                // What was cached went into the cache. With its data in the journal, a file has none of
                // its own to write here.
                self.pages
                    .write_back(self, offset..offset + data.len() as u64)?;
            }
            if self.data.is_replaced.load(Ordering::Acquire) {
                // An error is told to whoever syncs the file.
                let _ = self.pages.write_back(self, 0..u64::MAX);
            }
        }
        if self.core.read().inode.flags.contains(InodeFlags::SYNC) {
            self.sync_contents(false)?;
        }
        Ok(())
    }

    /// Refuses what changes contents where nothing can be changed.
    pub(super) fn refuse_change(&self) -> Result<()> {
        let log = self.volume().log().ok_or(Condition::ReadOnly)?;
        if log.failure().is_some() {
            return Err(Condition::ReadOnly.into());
        }
        let flags = self.core.read().inode.flags;
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
            return Err(Condition::NotPermitted.into());
        }
        Ok(())
    }

    /// The largest size that this file can have.
    pub(super) fn size_bytes_max(&self) -> u64 {
        size_bytes_max(&self.volume().geometry, &self.core.read().inode)
    }

    /// Notes a change of contents, unless one was noted just now.
    pub(super) fn touch(&self) -> Result<()> {
        let now = self.tree.clock.now();
        {
            let inode = &self.core.read().inode;
            if is_recent(inode.modified, now) && is_recent(inode.changed, now) {
                return Ok(());
            }
        }
        self.change(0, |_, core| {
            core.inode.modified = now;
            core.inode.changed = now;
            Ok(())
        })
    }

    /// Has what lies between the end of the file and the end of its block, or `offset` if that comes
    /// earlier, written as zeros, to the device too: whatever the medium holds there is about to
    /// become part of the file, and the size may be durable before what is in the cache.
    pub(super) fn clear_tail(&self, offset: u64) -> Result<()> {
        let geometry = &self.volume().geometry;
        let size = self.size_bytes();
        let end = size.next_multiple_of(u64::from(geometry.block_bytes));
        let end = end.min(offset);
        let Ok(block) = u32::try_from(size >> geometry.block_bits) else {
            return Ok(());
        };
        if size >= end {
            return Ok(());
        }
        let run = self
            .core
            .read()
            .map
            .lookup(self.volume(), FileBlock(block))?;
        if !matches!(run.backing, Backing::Written(_)) {
            return Ok(());
        }
        let zeros = vec![0; usize::try_from(end - size).unwrap_or_default()];
        self.write_cached(size, &zeros, WriteTo::Cache)?;
        self.pages.write_back(self, size..end)
    }

    /// How many of the first bytes of a write are so many whole pages that they are not worth a copy in
    /// the cache, or have to be on the device anyway.
    fn past_cache(&self, offset: u64, len: usize, to: WriteTo) -> usize {
        let whole = len - len % PAGE_BYTES;
        let is_aligned = offset.is_multiple_of(PAGE_BYTES as u64);
        let is_worth_a_copy = to == WriteTo::Cache && whole < PAST_BYTES_MIN;
        if whole == 0 || is_worth_a_copy || !is_aligned || self.journals_data() {
            return 0;
        }
        whole
    }

    /// Writes back what lies before `offset` behind the end that the medium knows: what is written past
    /// the cache moves that end, and it would be a hole after a power cut.
    fn write_back_before(&self, offset: u64) -> Result<()> {
        if self.core.read().inode.size_bytes < self.size_bytes().min(offset) {
            self.pages.write_back(self, 0..offset)?;
        }
        Ok(())
    }

    /// Writes what has to become part of the file, with a promise of space: into the cache, or past it.
    pub(super) fn write_cached(&self, offset: u64, data: &[u8], to: WriteTo) -> Result<()> {
        let end = offset + data.len() as u64;
        let passes = self.past_cache(offset, data.len(), to) == data.len();
        if passes {
            self.write_back_before(offset)?;
        }
        let blocks = self.blocks_of(offset..end)?;
        let space = self.tree.space()?;
        let promised = self.core.write().promise(self.volume(), space, blocks)?;
        let call = WriteCall {
            node: self,
            copied_to: AtomicU64::new(offset),
        };
        let past = passes.then(|| {
            let write = || self.write_folios(offset, &[IoSlice::new(data)]);
            self.pages.write_past(offset..end, write)
        });
        let written = match past.flatten() {
            Some(Ok(())) => {
                call.extend(end);
                self.extend_on_medium(self.end().at(end))
            }
            Some(Err(error)) => {
                // Some of it may have become part of the file.
                let size = self.core.read().inode.size_bytes;
                self.extend(size);
                Err(error)
            }
            None => {
                let written = self.pages.write_at(&call, offset, data);
                self.note_dirty();
                written
            }
        };
        if written.is_err() {
            let copied = call.copied_to.load(Ordering::Relaxed);
            let kept = self.blocks_of(offset..copied)?.end;
            let mut core = self.core.write();
            for blocks in promised {
                let start = kept.max(FileBlock(blocks.start));
                let withdrawn = start..FileBlock(blocks.end);
                core.forget_delayed(self.volume(), space, withdrawn);
            }
        }
        written
    }

    /// The blocks that a range of bytes touches.
    pub(super) fn blocks_of(&self, bytes: Range<u64>) -> Result<Range<FileBlock>> {
        let bits = self.volume().geometry.block_bits;
        let block = |nr| u32::try_from(nr).map(FileBlock).ok();
        let start = block(bytes.start >> bits);
        let end = block(bytes.end.div_ceil(1 << bits));
        let blocks = start.zip(end).map(|(start, end)| start..end.max(start));
        Ok(blocks.ok_or(Condition::FileTooLarge)?)
    }
}

impl Core {
    /// Marks blocks as about to be dirty, with a promise of space where they have none. Gives those
    /// that were not dirty, as far as the map does not say where they lie.
    fn promise(
        &mut self,
        volume: &Volume,
        space: &Space,
        blocks: Range<FileBlock>,
    ) -> Result<Vec<Range<u32>>> {
        let unplaced = self.promise_holes(volume, space, blocks)?;
        let added = unplaced.into_iter().map(|run| self.delayed.add(run));
        Ok(added.flatten().collect())
    }

    /// Has all holes of a range have a promise of space. Gives the parts of the range that have no
    /// contents on the device.
    pub(super) fn promise_holes(
        &mut self,
        volume: &Volume,
        space: &Space,
        blocks: Range<FileBlock>,
    ) -> Result<Vec<Range<FileBlock>>> {
        let (mut unplaced, mut clusters) = (Vec::new(), Vec::new());
        let mut rows = BTreeMap::new();
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.map.lookup(volume, at)?.truncated(blocks.end.0 - at.0);
            at = run.end();
            match run.backing {
                Backing::Written(_) => continue,
                Backing::Unwritten(_) => {}
                Backing::Hole => {
                    let missing = self.missing_clusters(volume, &run)?;
                    clusters.extend(self.delayed.unpromised(missing));
                    self.count_missing_rows(volume, &run, &mut rows)?;
                }
            }
            unplaced.push(run.first..run.end());
        }
        let of_clusters: u64 = clusters
            .iter()
            .map(|run| u64::from(run.end - run.start))
            .sum();
        let of_rows: u64 = rows.values().map(|&count| u64::from(count)).sum();
        space.reserve_delayed(of_clusters + of_rows, space.contents_from())?;
        for run in clusters {
            self.delayed.promise(run);
        }
        for (row, count) in rows {
            self.delayed.promise_row(row, count);
        }
        Ok(unplaced)
    }

    /// Adds the rows that a hole lies in and that have no promise yet, with the blocks of numbers they
    /// need. Rows that miss one above them count it each.
    fn count_missing_rows(
        &self,
        volume: &Volume,
        hole: &Run,
        rows: &mut BTreeMap<u32, u32>,
    ) -> Result<()> {
        if self.inode.flags.contains(InodeFlags::EXTENTS) {
            return Ok(());
        }
        let mut at = hole.first;
        while at < hole.end() {
            let row = row_of(&volume.geometry, at);
            let missing = self.map.missing_nodes(volume, at)?;
            if missing > 0 && !self.delayed.has_row(row) {
                rows.insert(row, missing);
            }
            at = FileBlock(blocks_of_row(&volume.geometry, row).end);
        }
        Ok(())
    }

    /// The clusters of a hole that no block of the file lies in.
    fn missing_clusters(&self, volume: &Volume, hole: &Run) -> Result<Range<u32>> {
        let ratio = volume.geometry.cluster_blocks;
        let mut start = hole.first.0 / ratio;
        let mut end = hole.end().0.div_ceil(ratio);
        if ratio > 1 {
            if self.map.place_in_cluster(volume, start)?.is_some() {
                start += 1;
            }
            if start < end && self.map.place_in_cluster(volume, end - 1)?.is_some() {
                end -= 1;
            }
        }
        Ok(start..end.max(start))
    }

    /// Takes back the promises of blocks that will not be written.
    pub(super) fn forget_delayed(
        &mut self,
        volume: &Volume,
        space: &Space,
        blocks: Range<FileBlock>,
    ) {
        if blocks.start < blocks.end {
            let promised = self.delayed.forget(&volume.geometry, blocks);
            space.release_delayed(u64::from(promised));
        }
    }
}

/// Whether a time is no more than a tick before `now`.
fn is_recent(time: Timestamp, now: Timestamp) -> bool {
    let nanoseconds = |time: Timestamp| {
        time.seconds
            .saturating_mul(1_000_000_000)
            .saturating_add(i64::from(time.nanoseconds))
    };
    let age = nanoseconds(now).saturating_sub(nanoseconds(time));
    (0..TICK_NANOSECONDS).contains(&age)
}

/// A file that is being written, and how far.
struct WriteCall<'a> {
    node: &'a Node,
    copied_to: AtomicU64,
}

impl AddressSpace for WriteCall<'_> {
    type Error = Error;

    fn size_bytes(&self) -> u64 {
        self.node.size_bytes()
    }

    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<()> {
        self.node.read_folios(offset, bufs)
    }
}

impl WritableSpace for WriteCall<'_> {
    fn extend(&self, end: u64) {
        self.copied_to.store(end, Ordering::Relaxed);
        self.node.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.node.write_folios(offset, bufs)
    }
}
