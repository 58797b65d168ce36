//! The changes of a file's block mapping that [`platter_vfs::file`] asks for.

use platter_vfs::inode::InodeLock;
use std::io::IoSlice;
use std::ops::Range;

use platter_cache::Mapping;
use platter_cache::page::WritableSpace;
use platter_vfs::file::{
    Allocation, Backing, BlockRuns, FileBlocks, FileData, FileEnd, FileRun, Request, Target,
    write_back_files, write_runs,
};
use platter_vfs::{Condition, Error, FileKind, Result, Timestamp};

use super::super::state::{Times, touch};
use super::super::{Inode, InodeState};
use super::steps::{STEP_MAPPINGS, unmap_cost};
use crate::change::{self, Cost, Goal, Unmapped, unclaim, unmap};
use crate::ondisk::extent::MAPPING_LEN_MAX;
use crate::ondisk::inode::edit;
use crate::ondisk::{FileBlock, ForkKind, FsBlock, InodeFlags};
use crate::space::Claim;

/// The largest size of a file, as a power of two.
const SIZE_BITS_MAX: u32 = 63;
/// Times of a file that is being written are no more exact than this, as in Linux.
const TICK_NANOSECONDS: i64 = 4_000_000;

/// Where a file got blocks last: a block of it, and where that is.
#[derive(Debug, Default)]
pub struct Placement {
    last: Option<(u64, FsBlock)>,
}

/// Blocks that were claimed and are not mapped yet.
#[derive(Debug)]
pub struct Claimed {
    pub(super) run: FileRun,
    /// Absent once it is mapped.
    pub(super) claim: Option<Claim>,
    /// Blocks of the claim that follow those of the run, for the end of the file.
    pub(super) ahead: u64,
}

impl Allocation for Claimed {
    fn run(&self) -> FileRun {
        self.run
    }
}

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
        self.add_to_dirty();
    }

    fn note_failure(&self, error: &Error) {
        self.superblock.dirty.record_failure(error);
    }

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        let state = self.state.read();
        let (run, is_shared) = self.shared_run(&state, blocks.clone())?;
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
        self.follow_hint(&blocks)?;
        self.note_growth(&blocks);
        match self.retry_without_eof_blocks(|| self.reserve_new(&blocks, true)) {
            // Unwritten blocks were allocated so that they can be written in a full filesystem, too.
            Err(Error::Condition(Condition::NoSpace)) => self.reserve_new(&blocks, false),
            reserved => reserved,
        }
    }

    fn release(&self, blocks: Range<u64>) {
        let mut state = self.state.write();
        self.forget(&mut state, blocks);
    }

    fn allocate(
        &self,
        blocks: Range<u64>,
        _: &Request<'_>,
        placement: &mut Placement,
    ) -> Result<Claimed> {
        let ahead = self.reserve_ahead(&blocks)?;
        let claimed = self.claim(&blocks, ahead, placement);
        if ahead > 0 && !claimed.as_ref().is_ok_and(|claimed| claimed.ahead > 0) {
            self.return_ahead();
        }
        claimed
    }

    fn give_back(&self, allocation: Claimed) -> Result<()> {
        if let Some(claim) = allocation.claim {
            unclaim(self.context(), claim);
        }
        if allocation.ahead > 0 {
            self.return_ahead();
        }
        Ok(())
    }

    fn map_written(
        &self,
        allocation: &mut Claimed,
        end: u64,
        _journaled: Option<&Request<'_>>,
    ) -> Result<()> {
        self.map_claimed(allocation, end, false)
    }

    fn note_placed(&self, placement: &mut Placement, run: &FileRun) {
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            let end = start + (run.count << self.block_bits());
            placement.last = Some((run.end(), self.block_at(end)));
        }
    }

    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()> {
        self.convert(run, end)
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
        let _ = self.end_growth();
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
                let reserved = state.delayed.forget(first..u64::MAX);
                change.keep_reserved(reserved);
                self.data.truncate(size);
                Ok(left)
            })?;
            match left {
                Unmapped::All => return Ok(()),
                Unmapped::Before(before) => end = before,
            }
        }
    }

    fn abort(&self, error: &Error) {
        if let Some(log) = self.context().log() {
            log.fail(error.clone());
        }
    }

    fn next_shared(&self, blocks: Range<u64>) -> Result<Option<Range<u64>>> {
        let mut at = blocks.start;
        while at < blocks.end {
            let (run, is_shared) = self.run_of_files(&self.state.read(), at..blocks.end)?;
            if is_shared {
                return Ok(Some(run.first..run.end()));
            }
            at = run.end();
        }
        Ok(None)
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        self.unmap_all(blocks)
    }

    /// Holes read as zeros, too, and blocks that others share are not changed.
    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        self.unmap_all(blocks)
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        self.keep_eof_blocks()?;
        self.retry_without_eof_blocks(|| self.fill_holes(blocks.clone()))?;
        self.follow_hint(&blocks)
    }

    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        self.unmap_all(blocks.clone())?;
        self.shift_down(&blocks, size)
    }

    fn may_shift_up(&self, count: u64) -> Result<bool> {
        let state = self.state.read();
        let end = state.map.end(self.context())?;
        let most = 1_u64 << (SIZE_BITS_MAX - self.block_bits());
        Ok(end.0.checked_add(count).is_some_and(|end| end <= most))
    }

    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        // The size first: what is moved would lie past the end of the file.
        self.change(Cost::default(), |_, edit, _| {
            edit.change(|bytes| edit::set_size(bytes, size))
        })?;
        self.data.set_size(size);
        self.shift_up(&blocks)
    }

    fn commit_mapping(&self) -> Result<()> {
        let sequence = self.state.read().sync;
        let log = self.context().log().ok_or(Condition::ReadOnly)?;
        log.force(sequence)
    }

    fn commit(&self, data_only: bool) -> Result<()> {
        self.commit_inode(data_only)
    }
}

impl Inode {
    pub(super) fn has_flag(&self, flag: InodeFlags) -> bool {
        self.state.read().inode.flags.contains(flag)
    }

    /// The block of the filesystem at a byte of the device.
    pub(super) fn block_at(&self, offset: u64) -> FsBlock {
        let geometry = self.context().geometry();
        let block = offset >> self.block_bits();
        let ag_blocks = u64::from(geometry.ag_blocks).max(1);
        let ag = crate::ondisk::AgNr(u32::try_from(block / ag_blocks).unwrap_or(u32::MAX));
        let within = u32::try_from(block % ag_blocks).unwrap_or(u32::MAX);
        geometry.fs_block(ag, crate::ondisk::AgBlock(within))
    }

    /// Marks blocks as about to be dirty, with a reservation of space where they have none, and `for_conversions`
    /// also one for what the tree of mappings may need once unwritten blocks are written.
    fn reserve_new(&self, blocks: &Range<u64>, for_conversions: bool) -> Result<Vec<Range<u64>>> {
        let mut state = self.state.write();
        let (mut delayed, mut missing, mut converted) = (Vec::new(), Vec::new(), Vec::new());
        let mut at = blocks.start;
        while at < blocks.end {
            let (run, is_shared) = self.shared_run(&state, at..blocks.end)?;
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
        self.reserve_blocks(&mut state, missing, &converted)?;
        let added = delayed.into_iter().map(|range| state.delayed.add(range));
        Ok(added.flatten().collect())
    }

    /// Claims blocks for the first of a range, and up to so many after all of it.
    pub(super) fn claim(
        &self,
        blocks: &Range<u64>,
        ahead: u64,
        placement: &Placement,
    ) -> Result<Claimed> {
        let context = self.context();
        let at = {
            let state = self.state.read();
            self.goal(&state, blocks.start, placement)?
        };
        let (group, _) = context.geometry().split_inode(self.number);
        let wanted = blocks.end - blocks.start;
        let most = (wanted + ahead).min(MAPPING_LEN_MAX);
        let most = u32::try_from(most).unwrap_or(u32::MAX);
        let claim = change::claim(context, most, &Goal { at, group })?;
        let start = context.geometry().fs_block(claim.ag, claim.start);
        let count = wanted.min(claim.count.into());
        Ok(Claimed {
            ahead: u64::from(claim.count) - count,
            run: FileRun {
                first: blocks.start,
                count,
                backing: Backing::Written(context.geometry().byte_offset(start)),
            },
            claim: Some(claim),
        })
    }

    /// Where a block is best placed: after the block before it, or as far from the last one as in the file.
    fn goal(
        &self,
        state: &InodeState,
        block: u64,
        placement: &Placement,
    ) -> Result<Option<FsBlock>> {
        if let Some(before) = block.checked_sub(1) {
            let run = state.run(self.context(), before)?;
            if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
                return Ok(Some(self.block_at(start + (1 << self.block_bits()))));
            }
        }
        Ok(placement.last.and_then(|(last, place)| {
            let ahead = block.checked_sub(last)?;
            place.0.checked_add(ahead).map(FsBlock)
        }))
    }
}

impl InodeState {
    /// The run that a block lies in.
    pub(super) fn run(&self, context: &crate::FsContext, block: u64) -> Result<FileRun> {
        let run = self.contents(context).run(block)?;
        Ok(run.unwrap_or(FileRun {
            first: block,
            count: 1,
            backing: Backing::Hole,
        }))
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
