//! The changes of a file's extents that [`platter_vfs::file`] asks for. Data is never written over: what is dirty
//! gets new extents at writeback, and the file extents of what it replaces are dropped then.

use platter_vfs::inode::InodeLock;
use std::io::IoSlice;
use std::ops::Range;

use platter_cache::Mapping;
use platter_cache::page::WritableSpace;
use platter_vfs::file::{
    Backing, BlockRuns, FileBlocks, FileData, FileEnd, FileRun, Request, Target, write_back_files,
    write_runs,
};
use platter_vfs::writing::Invalidations;
use platter_vfs::{Condition, Error, FileKind, Result, Timestamp};

use super::delalloc::{Ahead, Allocated};
use super::file_extents::EXTENT_CREDITS;
use super::state::{INODE_CREDITS, Purpose, SECTOR_BITS, SECTOR_BYTES, touch_contents};
use super::{BtrfsInode, delalloc, file_extents, inline, ordered_data, prealloc, sync};
use crate::file::{self, Runs};
use crate::ondisk::LogicalAddr;
use crate::ondisk::file_extent::ExtentPlace;
use crate::ondisk::inode_item::InodeFlags;
use crate::txn::{data_extents, space};

/// Times of a file that is being written are no more exact than this, as in Linux.
const TICK_NANOSECONDS: i64 = 4_000_000;

/// The bytes of blocks.
fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start << SECTOR_BITS..blocks.end.min(u64::MAX >> SECTOR_BITS) << SECTOR_BITS
}

fn has_flag(inode: &BtrfsInode, flag: InodeFlags) -> bool {
    inode.state.read().item.flags.contains(flag)
}

/// Drops all marks and reservations: the object goes.
pub(super) fn release_all(inode: &BtrfsInode) {
    FileBlocks::release(inode, 0..u64::MAX);
    inode.release_kept_bytes();
}

impl WritableSpace for BtrfsInode {
    fn extend(&self, end: u64) {
        self.data.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        write_runs(self, offset, bufs)
    }
}

impl BlockRuns for BtrfsInode {
    fn block_bits(&self) -> u32 {
        SECTOR_BITS
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        let at = block << SECTOR_BITS;
        let run = Runs::new(self.context(), self.tree(), self.id.number).at(at)?;
        let end = run.file.end.div_ceil(SECTOR_BYTES);
        let address = |place: &ExtentPlace| {
            let inside = place.offset.saturating_add(at - run.file.start);
            place.logical.0.saturating_add(inside)
        };
        let backing = match &run.backing {
            file::Backing::Hole => Backing::Hole,
            file::Backing::Prealloc(place) => Backing::Unwritten(address(place)),
            file::Backing::Inline { .. } => Backing::Written(0),
            file::Backing::Data { place, .. } => Backing::Written(address(place)),
        };
        Ok(Some(FileRun {
            first: block,
            count: end.saturating_sub(block).max(1),
            backing,
        }))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        self.state.read().delayed.next(block)
    }
}

impl FileBlocks for BtrfsInode {
    type Placement = Ahead;
    type Allocation = Allocated;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<Ahead> {
        &self.data
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn invalidations(&self) -> &Invalidations {
        &self.fs.invalidations
    }

    fn size_bytes_max(&self) -> u64 {
        i64::MAX.unsigned_abs()
    }

    fn size_on_disk(&self) -> u64 {
        self.item().size_bytes
    }

    fn check_write(&self) -> Result<()> {
        if self.kind != FileKind::Regular {
            return self.refuse_without_contents();
        }
        if !self.can_change() {
            return Err(Condition::ReadOnly.into());
        }
        if has_flag(self, InodeFlags::IMMUTABLE) || has_flag(self, InodeFlags::VERITY) {
            return Err(Condition::NotPermitted.into());
        }
        Ok(())
    }

    fn is_sync(&self) -> bool {
        has_flag(self, InodeFlags::SYNC)
    }

    fn is_append_only(&self) -> bool {
        has_flag(self, InodeFlags::APPEND)
    }

    fn throttle(&self) {
        self.fs.dirty.throttle(&self.fs.budget, write_back_files);
    }

    fn note_dirty(&self) {
        sync::mark_dirty(self);
    }

    fn note_failure(&self, error: &Error) {
        self.fs.dirty.record_failure(error);
    }

    /// Says that short contents may stay in the item, or get there, at the next writeback.
    fn write_inline(&self, offset: u64, data: &[u8]) -> Result<bool> {
        let end = offset.saturating_add(data.len() as u64);
        let end = end.max(self.data.size_bytes());
        let is_short = !self.inline.goes_long() && delalloc::may_be_inline(self, end)?;
        self.inline.set_short(is_short);
        Ok(false)
    }

    fn leave_inline(&self) -> Result<()> {
        if self.inline.take_short() {
            return Ok(());
        }
        inline::move_to_extent(self, space::reserve_delayed)
    }

    fn resize_inline(&self, size: u64) -> Result<bool> {
        if size > self.data.size_bytes() {
            self.leave_inline()?;
        } else if size > 0 {
            inline::move_to_extent(self, space::reserve_to_shorten)?;
        }
        Ok(false)
    }

    fn copies_on_write(&self) -> bool {
        true
    }

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        Ok((Target::New, blocks.end - blocks.start))
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let (writing, tree) = (self.fs.transactions()?, self.tree_id());
        let gaps = || -> (Vec<Range<u64>>, u64) {
            let missing: Vec<_> = self.state.read().delayed.gaps(blocks.clone()).collect();
            let count = missing.iter().map(|range| range.end - range.start).sum();
            (missing, count)
        };
        let (mut missing, mut count) = gaps();
        let mut takes_data = true;
        if count > 0 {
            let mut reserved = space::reserve_delayed(writing, tree, count);
            if self.fs.leaves_more_when_written_back(&reserved, tree) {
                // What is written back of these has no reservation any more.
                (missing, count) = gaps();
                reserved = space::reserve_delayed(writing, tree, count);
            }
            match reserved {
                Err(Error::Condition(Condition::NoSpace | Condition::QuotaExceeded))
                    if delalloc::is_written_over(self, &blocks)? =>
                {
                    space::reserve_written_over(writing, count)?;
                    takes_data = false;
                }
                reserved => reserved?,
            }
        }
        // Other blocks may have been written back meanwhile; none was added.
        let mut state = self.state.write();
        for range in &missing {
            state.delayed.insert(range.clone());
            if !takes_data {
                state.written_over.insert(range.clone());
            }
        }
        Ok(missing)
    }

    fn release(&self, blocks: Range<u64>) {
        let (count, over) = {
            let mut state = self.state.write();
            let over = state.written_over.remove(blocks.clone());
            (state.delayed.remove(blocks) - over, over)
        };
        if let Some(writing) = self.fs.writing().filter(|_| count + over > 0) {
            space::release_delayed(writing, self.tree_id(), count);
            space::release_written_over(writing, over);
        }
    }

    fn are_reserved(&self, blocks: Range<u64>) -> bool {
        self.state.read().delayed.gaps(blocks).next().is_none()
    }

    fn allocate(
        &self,
        blocks: Range<u64>,
        data: &Request<'_>,
        ahead: &mut Ahead,
    ) -> Result<Allocated> {
        delalloc::allocate(self, blocks, data, ahead)
    }

    fn give_back(&self, allocation: Allocated) -> Result<()> {
        let disk_bytes = allocation.disk_bytes();
        drop(ordered_data::take_checksums(
            &self.fs,
            allocation.address,
            disk_bytes,
        ));
        if allocation.is_mapped || !allocation.is_new() || !self.fs.can_write() {
            return Ok(());
        }
        // Within a transaction, so that none is committed meanwhile.
        let handle = self.fs.begin(0, Purpose::Free)?;
        data_extents::release(handle.fs(), allocation.address, disk_bytes)
    }

    fn map_written(
        &self,
        allocation: &mut Allocated,
        end: u64,
        _journaled: Option<&Request<'_>>,
    ) -> Result<()> {
        delalloc::map_stored(self, allocation, end, (EXTENT_CREDITS, Purpose::Free))?;
        allocation.is_mapped = true;
        self.release(allocation.run.first..allocation.run.end());
        Ok(())
    }

    fn note_placed(&self, _ahead: &mut Ahead, _run: &FileRun) {}

    fn convert_written(&self, _run: &FileRun, _end: u64) -> Result<()> {
        // No target is unwritten.
        Ok(())
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        // Also for neighbours of other files: those without checksums leave them aside when they are mapped.
        ordered_data::write(&self.fs, LogicalAddr(at), bufs)
    }

    fn overwrite(&self, _request: &Request<'_>, _run: &FileRun) -> Result<()> {
        // No target is written over.
        Ok(())
    }

    fn extend_on_disk(&self, end: FileEnd) -> Result<()> {
        if self.item().size_bytes >= end.offset {
            return Ok(());
        }
        self.change(INODE_CREDITS, Purpose::Free, |_, item| {
            if self.data.is_current(end) {
                let left = end.offset.min(self.data.size_bytes());
                item.size_bytes = item.size_bytes.max(left);
            }
            Ok(())
        })
    }

    fn touch(&self) -> Result<()> {
        let now = self.fs.clock.now();
        let item = self.item();
        if is_recent(item.modified, now) && is_recent(item.changed, now) {
            return Ok(());
        }
        self.change(INODE_CREDITS, Purpose::Free, |_, item| {
            touch_contents(item, now);
            Ok(())
        })
    }

    fn set_larger_size(&self, size: u64) -> Result<()> {
        let now = self.fs.clock.now();
        self.change(INODE_CREDITS, Purpose::Update, |_, item| {
            item.size_bytes = size;
            touch_contents(item, now);
            Ok(())
        })
    }

    /// Keeps space for the first handle, while the cache has what is to be truncated.
    fn prepare_truncate(&self, _first: u64) -> Result<()> {
        if !self.can_change() {
            return Err(Condition::ReadOnly.into());
        }
        self.keep_for_freeing(EXTENT_CREDITS)
    }

    fn prepare_punch(&self, blocks: Range<u64>) -> Result<Range<u64>> {
        let end = file_extents::end_of_step(self, bytes_of(&blocks))?;
        self.keep_for_freeing(EXTENT_CREDITS)?;
        Ok(blocks.start..blocks.end.min(end >> SECTOR_BITS))
    }

    /// Also what a crash left: contents beyond the end must not come into view.
    fn is_truncation_left(&self) -> bool {
        let size = self.data.size_bytes();
        let mut at = size.next_multiple_of(SECTOR_BYTES);
        let mut runs = Runs::new(self.context(), self.tree(), self.id.number);
        while at < u64::MAX {
            // What cannot be read is an error of the truncation that follows.
            let Ok(run) = runs.at(at) else { return true };
            if matches!(run.backing, file::Backing::Data { .. }) {
                return true;
            }
            at = run.file.end;
        }
        false
    }

    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()> {
        let now = self.fs.clock.now();
        self.release(first..u64::MAX);
        file_extents::drop_range(self, bytes_of(&(first..u64::MAX)), |item| {
            item.size_bytes = size;
            touch_contents(item, now);
            self.data.truncate(size);
        })?;
        self.inline.set_goes_long(false);
        Ok(())
    }

    fn abort(&self, error: &Error) {
        if let Some(writing) = self.fs.writing() {
            writing.fail(error);
        }
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        self.release(blocks.clone());
        file_extents::drop_step(self, &[bytes_of(&blocks)])
    }

    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        self.release(blocks.clone());
        let written = prealloc::written(self, &bytes_of(&blocks));
        let written = written.inspect_err(|_| self.release_kept_bytes())?;
        file_extents::drop_step(self, &written)
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        prealloc::allocate(self, bytes_of(&blocks))
    }

    fn collapse_blocks(&self, _blocks: Range<u64>, _size: u64) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn may_shift_up(&self, _count: u64) -> Result<bool> {
        Err(Condition::NotSupported.into())
    }

    fn insert_blocks(&self, _blocks: Range<u64>, _size: u64) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn commit_mapping(&self) -> Result<()> {
        sync::commit(self)
    }

    fn commit(&self, _data_only: bool) -> Result<()> {
        sync::sync_file(self)
    }
}

/// Whether a time lies at most a tick before `now`.
fn is_recent(time: Timestamp, now: Timestamp) -> bool {
    let nanoseconds = |time: Timestamp| {
        let seconds = time.seconds.checked_mul(1_000_000_000)?;
        seconds.checked_add(time.nanoseconds.into())
    };
    match (nanoseconds(time), nanoseconds(now)) {
        (Some(time), Some(now)) => (0..TICK_NANOSECONDS).contains(&now.saturating_sub(time)),
        _ => false,
    }
}
