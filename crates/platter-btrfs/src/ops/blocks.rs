//! The changes of a file's extents that [`platter_vfs::file`] asks for. Data is never written over: what is dirty
//! gets new extents at writeback, and the file extents of what it replaces are dropped then.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;

use platter_cache::Mapping;
use platter_cache::page::WritableSpace;
use platter_vfs::file::{
    Allocation, Backing, BlockRuns, FileBlocks, FileData, FileEnd, FileRun, Request, Target,
    write_back_files, write_runs,
};
use platter_vfs::lock_rank::RankedRwLock;
use platter_vfs::{Condition, Error, FileKind, Result, Timestamp};

use super::BtrfsInode;
use super::state::{INODE_CREDITS, Purpose, touch_contents};
use crate::file::change::ExtentChange;
use crate::file::{self, Runs};
use crate::ondisk::LogicalAddr;
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::{InodeFlags, InodeItem};
use crate::txn::Handle;

/// Sectors are pages: filesystems with others are not written.
pub(super) const SECTOR_BITS: u32 = 12;
const SECTOR_BYTES: u64 = 1 << SECTOR_BITS;
/// The most sectors of an extent that is written.
const EXTENT_SECTORS_MAX: u64 = 1024;
/// The most extents that one handle drops.
const DROPPED_MAX: usize = 1024;
/// Tree blocks that inserting an extent copies, and dropping those that it replaces.
pub(super) const EXTENT_CREDITS: u32 = 64;
/// Times of a file that is being written are no more exact than this, as in Linux.
const TICK_NANOSECONDS: i64 = 4_000_000;

/// Space that was allocated and has no file extent yet.
#[derive(Debug)]
pub struct Allocated {
    run: FileRun,
    address: LogicalAddr,
    is_mapped: bool,
}

impl Allocated {
    fn len_bytes(&self) -> u64 {
        self.run.count << SECTOR_BITS
    }
}

impl Allocation for Allocated {
    fn run(&self) -> FileRun {
        self.run
    }
}

/// The bytes of blocks.
fn bytes_of(blocks: &Range<u64>) -> Range<u64> {
    blocks.start << SECTOR_BITS..blocks.end.min(u64::MAX >> SECTOR_BITS) << SECTOR_BITS
}

/// An extent with all of a new piece of data.
fn new_extent(handle: &Handle<'_>, address: LogicalAddr, len_bytes: u64) -> FileExtent<'static> {
    FileExtent {
        generation: handle.generation(),
        ram_bytes: len_bytes,
        compression: Compression::None,
        file_bytes: len_bytes,
        kind: FileExtentKind::Regular(ExtentPlace {
            logical: address,
            disk_bytes: len_bytes,
            offset: 0,
        }),
    }
}

impl BtrfsInode {
    pub(super) fn extents_in<'h, 'f>(&self, handle: &'h Handle<'f>) -> ExtentChange<'h, 'f> {
        ExtentChange {
            handle,
            tree: self.tree_id(),
            inode: self.id.number,
        }
    }

    fn is_summed(&self) -> bool {
        !self.has_flag(InodeFlags::NODATASUM)
    }

    fn has_flag(&self, flag: InodeFlags) -> bool {
        self.state.read().item.flags.contains(flag)
    }

    /// Replaces what the file has in a range by new data.
    fn replace(
        &self,
        handle: &Handle<'_>,
        item: &mut InodeItem,
        (start, address): (u64, LogicalAddr),
        len_bytes: u64,
        checksums: Vec<u8>,
    ) -> Result<()> {
        if !checksums.is_empty() {
            handle.insert_checksums(address, checksums)?;
        }
        let extents = self.extents_in(handle);
        let dropped = extents.drop_range(start..start + len_bytes, usize::MAX)?;
        extents.insert(start, &new_extent(handle, address, len_bytes), true)?;
        let kept = item.allocated_bytes.saturating_sub(dropped.bytes);
        item.allocated_bytes = kept.saturating_add(len_bytes);
        Ok(())
    }

    /// Drops the extents of a range, in several handles where there are many. `set` changes the item in each.
    fn drop_extents(&self, range: Range<u64>, set: impl Fn(&mut InodeItem)) -> Result<()> {
        let mut start = range.start;
        loop {
            let dropped = self.change(EXTENT_CREDITS, Purpose::Free, |handle, item| {
                let extents = self.extents_in(handle);
                let dropped = extents.drop_range(start..range.end, DROPPED_MAX)?;
                item.allocated_bytes = item.allocated_bytes.saturating_sub(dropped.bytes);
                set(item);
                Ok(dropped)
            })?;
            match dropped.next {
                Some(next) => start = next,
                None => return Ok(()),
            }
        }
    }

    /// Drops all extents of an inode that is to be deleted.
    pub(super) fn drop_all_extents(&self) -> Result<()> {
        self.drop_extents(0..!(SECTOR_BYTES - 1), |_| {})
    }

    /// Drops all marks and reservations: the object goes.
    pub(super) fn release_all(&self) {
        FileBlocks::release(self, 0..u64::MAX);
    }

    /// The bytes from the start on that are in an item.
    fn inline_bytes(&self) -> Result<u64> {
        let run = Runs::new(self.context(), self.tree(), self.id.number).at(0)?;
        let is_inline = matches!(run.backing, file::Backing::Inline { .. });
        Ok(if is_inline { run.file.end } else { 0 })
    }
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
    type Placement = ();
    type Allocation = Allocated;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<()> {
        &self.data
    }

    fn inode_lock(&self) -> &RankedRwLock<()> {
        &self.order
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
        if self.has_flag(InodeFlags::IMMUTABLE) || self.has_flag(InodeFlags::VERITY) {
            return Err(Condition::NotPermitted.into());
        }
        Ok(())
    }

    fn is_sync(&self) -> bool {
        self.has_flag(InodeFlags::SYNC)
    }

    fn is_append_only(&self) -> bool {
        self.has_flag(InodeFlags::APPEND)
    }

    fn throttle(&self) {
        self.fs.dirty.throttle(&self.fs.budget, write_back_files);
    }

    fn note_dirty(&self) {
        self.add_to_dirty();
    }

    fn note_failure(&self, error: &Error) {
        self.fs.dirty.record_failure(error);
    }

    /// Moves what is in the item to an extent.
    fn leave_inline(&self) -> Result<()> {
        match self.inline_bytes()? {
            0 => return Ok(()),
            1..=SECTOR_BYTES => {}
            _ => return Err(Condition::NotSupported.into()),
        }
        let writing = self.fs.transactions()?;
        let mut bytes = vec![0; 1 << SECTOR_BITS];
        self.contents()
            .fill(0, &mut [IoSliceMut::new(&mut bytes)])?;
        writing.reserve_delayed(1)?;
        let bufs = [IoSlice::new(&bytes)];
        let data = Request {
            offset: 0,
            end: SECTOR_BYTES,
            bufs: &bufs,
        };
        let moved = FileBlocks::allocate(self, 0..1, &data, &mut ()).and_then(|mut new| {
            let moved = self
                .write_device(new.address.0, &bufs)
                .and_then(|()| self.map_written(&mut new, 0, None));
            if moved.is_err() {
                self.give_back(new)?;
            }
            moved
        });
        writing.release_delayed(1);
        moved
    }

    fn resize_inline(&self, size: u64) -> Result<bool> {
        if size > 0 {
            self.leave_inline()?;
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
        let writing = self.fs.transactions()?;
        let missing: Vec<_> = self.state.read().delayed.gaps(blocks.clone()).collect();
        let count: u64 = missing.iter().map(|range| range.end - range.start).sum();
        if count > 0 {
            writing.reserve_delayed(count)?;
        }
        // Other blocks may have been written back meanwhile; none was added.
        let mut state = self.state.write();
        for range in &missing {
            state.delayed.insert(range.clone());
        }
        Ok(missing)
    }

    fn release(&self, blocks: Range<u64>) {
        let count = self.state.write().delayed.remove(blocks);
        if let Some(writing) = self.fs.writing().filter(|_| count > 0) {
            writing.release_delayed(count);
        }
    }

    fn allocate(&self, blocks: Range<u64>, _data: &Request<'_>, (): &mut ()) -> Result<Allocated> {
        let count = (blocks.end - blocks.start).min(EXTENT_SECTORS_MAX);
        let handle = self.fs.begin(0, Purpose::Free)?;
        let (address, len_bytes) = handle.allocate_data_part(count << SECTOR_BITS)?;
        Ok(Allocated {
            run: FileRun {
                first: blocks.start,
                count: len_bytes >> SECTOR_BITS,
                backing: Backing::Written(address.0),
            },
            address,
            is_mapped: false,
        })
    }

    fn give_back(&self, allocation: Allocated) -> Result<()> {
        let len_bytes = allocation.len_bytes();
        drop(self.fs.take_checksums(allocation.address, len_bytes));
        if allocation.is_mapped || !self.fs.can_write() {
            return Ok(());
        }
        // As part of the running transaction, so that it is not used before that is durable.
        let handle = self.fs.begin(0, Purpose::Free)?;
        handle.release_data(allocation.address, len_bytes)
    }

    fn map_written(
        &self,
        allocation: &mut Allocated,
        end: u64,
        _journaled: Option<&Request<'_>>,
    ) -> Result<()> {
        let (address, len_bytes) = (allocation.address, allocation.len_bytes());
        let mut checksums = self.fs.take_checksums(address, len_bytes);
        if !self.is_summed() {
            checksums.clear();
        }
        let start = allocation.run.first << SECTOR_BITS;
        self.change(EXTENT_CREDITS, Purpose::Free, |handle, item| {
            self.replace(handle, item, (start, address), len_bytes, checksums)?;
            item.size_bytes = item.size_bytes.max(end);
            Ok(())
        })?;
        allocation.is_mapped = true;
        self.release(allocation.run.first..allocation.run.end());
        Ok(())
    }

    fn note_placed(&self, (): &mut (), _run: &FileRun) {}

    fn convert_written(&self, _run: &FileRun, _end: u64) -> Result<()> {
        // No target is unwritten.
        Ok(())
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.fs.write_data(LogicalAddr(at), bufs)
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
        self.change(INODE_CREDITS, Purpose::Change, |_, item| {
            item.size_bytes = size;
            touch_contents(item, now);
            Ok(())
        })
    }

    /// Shows that a handle can begin, while the cache has what is to be truncated.
    fn prepare_truncate(&self, _first: u64) -> Result<()> {
        if !self.can_change() {
            return Err(Condition::ReadOnly.into());
        }
        self.fs.begin(EXTENT_CREDITS, Purpose::Free).map(drop)
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
        self.drop_extents(bytes_of(&(first..u64::MAX)), |item| {
            item.size_bytes = size;
            touch_contents(item, now);
            self.data.truncate(size);
        })
    }

    fn abort(&self, error: &Error) {
        if let Some(writing) = self.fs.writing() {
            writing.fail(error);
        }
    }

    /// Preallocation is not written yet: `fallocate` refuses what needs it.
    fn has_unwritten(&self) -> bool {
        false
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        self.release(blocks.clone());
        if blocks.is_empty() {
            return Ok(());
        }
        self.drop_extents(bytes_of(&blocks), |_| {})
    }

    fn convert_unwritten(&self, _blocks: Range<u64>) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn allocate_unwritten(&self, _blocks: Range<u64>) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn collapse_blocks(&self, _blocks: Range<u64>, _size: u64) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn may_shift_up(&self, _count: u64) -> Result<bool> {
        Ok(false)
    }

    fn insert_blocks(&self, _blocks: Range<u64>, _size: u64) -> Result<()> {
        Err(Condition::NotSupported.into())
    }

    fn commit_mapping(&self) -> Result<()> {
        self.commit_all()
    }

    fn commit(&self, _data_only: bool) -> Result<()> {
        self.commit_all()
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
