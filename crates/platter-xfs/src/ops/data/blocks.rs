//! The changes of a file's block mapping that [`platter_vfs::file`] asks for.

use std::io::IoSlice;
use std::ops::Range;

use platter_cache::Mapping;
use platter_cache::page::WritableSpace;
use platter_vfs::file::{
    Backing, BlockRuns, FileBlocks, FileData, FileEnd, FileRun, Request, Target, write_back_files,
    write_runs,
};
use platter_vfs::inode::InodeLock;
use platter_vfs::writing::Invalidations;
use platter_vfs::{Condition, Error, FileKind, Result, Timestamp};

use super::super::state::{Times, touch};
use super::super::{Inode, sync};
use super::eof_blocks;
use super::placement::{Claimed, Placement, block_at, claim};
use super::steps::{self, Contents, STEP_MAPPINGS, unmap_cost};
use super::unwritten::{self, Purpose};
use crate::change::{Cost, Unmapped, unclaim, unmap};
use crate::ondisk::inode::edit;
use crate::ondisk::{FileBlock, ForkKind, InodeFlags};

/// The largest size of a file, as a power of two.
const SIZE_BITS_MAX: u32 = 63;
/// Times of a file that is being written are no more exact than this, as in Linux.
const TICK_NANOSECONDS: i64 = 4_000_000;

impl WritableSpace for Inode {
    fn extend(&self, end: u64) {
        self.data.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        write_runs(self, offset, bufs)
    }
}

impl BlockRuns for Inode {
    fn block_bits(&self) -> u32 {
        self.context().geometry().block_bits.into()
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        let state = self.state.read();
        state.contents(self.context()).run(block)
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        self.state.read().delayed.dirty().next(block)
    }
}

impl FileBlocks for Inode {
    type Placement = Placement;
    type Allocation = Claimed;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<Placement> {
        &self.data
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn invalidations(&self) -> &Invalidations {
        &self.superblock.invalidations
    }

    fn size_bytes_max(&self) -> u64 {
        (1 << SIZE_BITS_MAX) - 1
    }

    fn size_on_disk(&self) -> u64 {
        self.state.read().inode.size_bytes
    }

    fn check_write(&self) -> Result<()> {
        if self.kind != FileKind::Regular {
            return self.refuse_without_contents();
        }
        let log = self.context().log().ok_or(Condition::ReadOnly)?;
        if log.is_shut_down() || self.superblock.writes.is_closed() {
            return Err(Condition::ReadOnly.into());
        }
        if self.has_flag(InodeFlags::IMMUTABLE) {
            return Err(Condition::NotPermitted.into());
        }
        if self.has_flag(InodeFlags::REALTIME) {
            return Err(super::refused("writing a realtime file"));
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
        let superblock = &self.superblock;
        superblock
            .dirty
            .throttle(&superblock.budget, write_back_files);
    }

    fn note_dirty(&self) {
        sync::mark_dirty(self);
    }

    fn note_failure(&self, error: &Error) {
        self.superblock.dirty.record_failure(error);
    }

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        let state = self.state.read();
        let (run, is_shared) = steps::shared_run(self, &state, blocks.clone())?;
        let target = match run.backing {
            Backing::Written(start) if !is_shared => {
                return Ok((Target::Overwrite(start), run.count));
            }
            Backing::Unwritten(start) if !is_shared => Target::Unwritten(start),
            Backing::Written(_) | Backing::Unwritten(_) | Backing::Hole => Target::New,
        };
        Ok(match state.delayed.dirty().next(blocks.start) {
            Some(dirty) if dirty.start == blocks.start => {
                (target, run.count.min(dirty.end - blocks.start))
            }
            Some(dirty) => (Target::Nothing, run.count.min(dirty.start - blocks.start)),
            None => (Target::Nothing, run.count),
        })
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        unwritten::follow_hint(self, &blocks)?;
        eof_blocks::note_growth(self, &blocks);
        match reserve_new(self, &blocks, true) {
            // Unwritten blocks were allocated so that they can be written in a full filesystem, too.
            Err(Error::Condition(Condition::NoSpace)) => {
                eof_blocks::retry_without(self, || reserve_new(self, &blocks, false))
            }
            reserved => reserved,
        }
    }

    fn release(&self, blocks: Range<u64>) {
        let mut state = self.state.write();
        steps::forget(self, &mut state, blocks);
    }

    fn allocate(
        &self,
        blocks: Range<u64>,
        _: &Request<'_>,
        placement: &mut Placement,
    ) -> Result<Claimed> {
        let ahead = eof_blocks::reserve_ahead(self, &blocks)?;
        let claimed = claim(self, &blocks, ahead, placement);
        if ahead > 0 && !claimed.as_ref().is_ok_and(|claimed| claimed.ahead > 0) {
            eof_blocks::return_ahead(self);
        }
        claimed
    }

    fn give_back(&self, allocation: Claimed) -> Result<()> {
        if let Some(claim) = allocation.claim {
            unclaim(self.context(), claim);
        }
        if allocation.ahead > 0 {
            eof_blocks::return_ahead(self);
        }
        Ok(())
    }

    fn map_written(
        &self,
        allocation: &mut Claimed,
        end: u64,
        _journaled: Option<&Request<'_>>,
    ) -> Result<()> {
        steps::map_claimed(self, allocation, end, Contents::Written)
    }

    fn note_placed(&self, placement: &mut Placement, run: &FileRun) {
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            let end = start + (run.count << self.block_bits());
            placement.last = Some((run.end(), block_at(self, end)));
        }
    }

    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()> {
        steps::convert(self, run, end)
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.superblock.write_data(at, bufs)
    }

    fn overwrite(&self, request: &Request<'_>, run: &FileRun) -> Result<()> {
        if let Backing::Written(start) = run.backing {
            let bufs = request.blocks(run, self.block_bits());
            self.superblock.write_data(start, &bufs)?;
            self.data.sync.writes.record();
            self.superblock.overwrites.record();
            // Reserved while others shared them, which do not any more.
            let is_reserved = {
                let state = self.state.read();
                let dirty = state.delayed.dirty().next(run.first);
                dirty.is_some_and(|dirty| dirty.start < run.end())
            };
            if is_reserved {
                self.release(run.first..run.end());
            }
        }
        Ok(())
    }

    fn extend_on_disk(&self, end: FileEnd) -> Result<()> {
        if self.state.read().inode.size_bytes >= end.offset {
            return Ok(());
        }
        self.change(Cost::default(), |_, edit, _| {
            if !self.data.is_current(end) {
                return Ok(());
            }
            let left = end.offset.min(self.data.size_bytes());
            if left > edit.inode().size_bytes {
                edit.change(|bytes| edit::set_size(bytes, left))?;
            }
            Ok(())
        })
    }

    fn touch(&self) -> Result<()> {
        let now = self.superblock.clock.now();
        {
            let inode = &self.state.read().inode;
            if is_recent(inode.modified, now) && is_recent(inode.changed, now) {
                return Ok(());
            }
        }
        self.change(Cost::default(), |_, edit, _| {
            touch(edit, Times::of_contents(now))
        })
    }

    fn set_larger_size(&self, size: u64) -> Result<()> {
        // It would stay in the hole. Where it does, it reads as zeros.
        let _ = eof_blocks::end_growth(self);
        let now = self.superblock.clock.now();
        self.change(Cost::default(), |_, edit, _| {
            edit.change(|bytes| edit::set_size(bytes, size))?;
            touch(edit, Times::of_contents(now))
        })
    }

    fn prepare_truncate(&self, _first: u64) -> Result<()> {
        if self.superblock.can_write() {
            return Ok(());
        }
        Err(Condition::ReadOnly.into())
    }

    /// Also what a crash left: contents beyond the end must not come into view. What cannot be read may be such
    /// contents.
    fn is_truncation_left(&self) -> bool {
        let state = self.state.read();
        let size = self.data.size_bytes();
        let end = size.div_ceil(1 << self.block_bits());
        let mut at = FileBlock(end);
        loop {
            match state.map.next(self.context(), at) {
                Ok(Some(run)) if matches!(run.backing, crate::mapping::Backing::Written(_)) => {
                    return true;
                }
                Ok(Some(run)) => at = run.end(),
                Ok(None) => return false,
                Err(_) => return true,
            }
        }
    }

    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()> {
        let now = self.superblock.clock.now();
        let mut end = FileBlock(u64::MAX);
        loop {
            let left = self.change(unmap_cost(), |change, edit, state| {
                let left = unmap(
                    change,
                    edit,
                    ForkKind::Data,
                    FileBlock(first)..end,
                    STEP_MAPPINGS,
                )?;
                edit.change(|bytes| edit::set_size(bytes, size))?;
                touch(edit, Times::of_contents(now))?;
                let reserved = state.forget(self.context(), first..u64::MAX);
                change.keep_reserved(reserved);
                self.data.truncate(size);
                Ok(left)
            })?;
            match left {
                Unmapped::All => break,
                Unmapped::Before(before) => end = before,
            }
        }
        eof_blocks::note_truncation(self);
        Ok(())
    }

    fn abort(&self, error: &Error) {
        if let Some(log) = self.context().log() {
            log.fail(error.clone());
        }
    }

    fn next_shared(&self, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
        let mut at = blocks.start;
        while at < blocks.end {
            let (run, is_shared) = steps::run_of_files(self, &self.state.read(), at..blocks.end)?;
            if is_shared {
                return Ok(Some(run.first..run.end()));
            }
            at = run.end();
        }
        Ok(None)
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        steps::unmap_all(self, blocks)
    }

    /// Holes read as zeros, too, and blocks that others share are not changed.
    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        steps::unmap_all(self, blocks)
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        // What nothing asked for must not stay with what is asked for.
        eof_blocks::free(self)?;
        eof_blocks::retry_without(self, || {
            unwritten::fill_holes(self, blocks.clone(), Purpose::Asked)
        })
        .inspect_err(|_| {
            let _ = eof_blocks::free(self);
        })?;
        unwritten::follow_hint(self, &blocks)
    }

    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        eof_blocks::end_growth_locked(self)?;
        steps::unmap_all(self, blocks.clone())?;
        steps::shift_down(self, &blocks, size)
    }

    fn may_shift_up(&self, count: u64) -> Result<bool> {
        let state = self.state.read();
        let end = state.map.end(self.context())?;
        let most = 1_u64 << (SIZE_BITS_MAX - self.block_bits());
        Ok(end.0.checked_add(count).is_some_and(|end| end <= most))
    }

    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        eof_blocks::end_growth_locked(self)?;
        // The size first: what is moved would lie past the end of the file.
        self.change(Cost::default(), |_, edit, _| {
            edit.change(|bytes| edit::set_size(bytes, size))
        })?;
        self.data.set_size(size);
        steps::shift_up(self, &blocks)
    }

    fn commit_mapping(&self) -> Result<()> {
        let sequence = self.state.read().sync;
        let log = self.context().log().ok_or(Condition::ReadOnly)?;
        log.force(sequence)
    }

    fn commit(&self, data_only: bool) -> Result<()> {
        sync::commit(self, data_only)
    }
}

/// Marks blocks as about to be dirty, with a reservation of space where they have none, and `for_conversions`
/// also one for what the tree of mappings may need once unwritten blocks are written.
fn reserve_new(
    file: &Inode,
    blocks: &Range<u64>,
    for_conversions: bool,
) -> Result<Vec<Range<u64>>> {
    let mut state = file.state.write();
    let (mut delayed, mut missing, mut converted) = (Vec::new(), Vec::new(), Vec::new());
    let mut at = blocks.start;
    while at < blocks.end {
        let (run, is_shared) = steps::shared_run(file, &state, at..blocks.end)?;
        at = run.end();
        let range = run.first..run.end();
        match run.backing {
            Backing::Written(_) if !is_shared => continue,
            Backing::Unwritten(_) if !is_shared => {
                if for_conversions {
                    converted.extend(state.delayed.dirty().gaps(range.clone()));
                }
            }
            Backing::Written(_) | Backing::Unwritten(_) | Backing::Hole => {
                missing.extend(state.delayed.unreserved(range.clone()));
            }
        }
        delayed.push(range);
    }
    steps::reserve_blocks(file, &mut state, &missing, &converted)?;
    let added = delayed.into_iter().map(|range| state.delayed.add(range));
    Ok(added.flatten().collect())
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
