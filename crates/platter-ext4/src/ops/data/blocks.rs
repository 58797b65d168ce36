//! The changes of a file's block mapping that [`platter_vfs::file`] asks for.

use std::io::IoSlice;
use std::ops::Range;

use platter_cache::Mapping;
use platter_vfs::file::{
    BlockRuns, FileBlocks, FileData, FileEnd, FileRun, Request, Target, write_back_files,
};
use platter_vfs::inode::InodeLock;
use platter_vfs::writing::Invalidations;
use platter_vfs::{Condition, Error, Result};

use super::super::Ext4Inode;
use super::writeback::{self, JOURNALED_BLOCKS_MAX, Piece, Placement};
use super::{inline, reserve, steps, truncate};
use crate::file::{file_block, file_run, next_delayed, size_bytes_max};
use crate::mapping::{Backing, Progress, Run};
use crate::ondisk::{BlockNr, FileBlock, InodeFlags};
use crate::ops::sync;

impl BlockRuns for Ext4Inode {
    fn block_bits(&self) -> u32 {
        self.fs().geometry.block_bits
    }

    fn run(&self, block: u64) -> Result<Option<FileRun>> {
        let Some(found) = file_block(block) else {
            return Ok(None);
        };
        let run = self.state.read().map.lookup(self.fs(), found)?;
        Ok(Some(file_run(&run, self.block_bits())))
    }

    fn next_delayed(&self, block: u64) -> Option<Range<u64>> {
        next_delayed(self.state.read().delayed.dirty(), block)
    }
}

impl FileBlocks for Ext4Inode {
    type Placement = Placement;
    type Allocation = Piece;

    fn pages(&self) -> &Mapping<Error> {
        &self.pages
    }

    fn data(&self) -> &FileData<Placement> {
        &self.data.file
    }

    fn inode_lock(&self) -> &InodeLock {
        &self.order
    }

    fn invalidations(&self) -> &Invalidations {
        &self.sb.invalidations
    }

    fn cluster_bytes(&self) -> u64 {
        let geometry = &self.fs().geometry;
        u64::from(geometry.block_bytes) * u64::from(geometry.cluster_blocks)
    }

    fn size_bytes_max(&self) -> u64 {
        size_bytes_max(&self.fs().geometry, &self.state.read().inode)
    }

    fn size_on_disk(&self) -> u64 {
        self.state.read().inode.size_bytes
    }

    fn check_write(&self) -> Result<()> {
        super::refuse_without_contents(self)?;
        let log = self.fs().log().ok_or(Condition::ReadOnly)?;
        if log.failure().is_some() {
            return Err(Condition::ReadOnly.into());
        }
        let flags = self.state.read().inode.flags;
        if flags.intersects(InodeFlags::IMMUTABLE | InodeFlags::VERITY) {
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
        let sb = &self.sb;
        sb.dirty.throttle(&sb.budget, write_back_files);
    }

    fn note_dirty(&self) {
        sync::mark_dirty(self);
    }

    fn note_failure(&self, error: &Error) {
        self.sb.dirty.record_failure(error);
    }

    fn write_inline(&self, offset: u64, data: &[u8]) -> Result<bool> {
        inline::write(self, offset, data)
    }

    fn resize_inline(&self, size: u64) -> Result<bool> {
        inline::resize(self, size)
    }

    fn leave_inline(&self) -> Result<()> {
        inline::leave(self)
    }

    fn write_target(&self, blocks: Range<u64>) -> Result<(Target, u64)> {
        let (target, count) = writeback::target(self, file_blocks(&blocks)?)?;
        Ok((target, u64::from(count)))
    }

    fn reserve(&self, blocks: Range<u64>) -> Result<Vec<Range<u64>>> {
        let blocks = file_blocks(&blocks)?;
        let (fs, space) = (self.fs(), self.sb.space()?);
        let reserved = reserve::dirty(&mut self.state.write(), fs, space, blocks)?;
        if reserved.is_empty() {
            return Ok(Vec::new());
        }
        let reserved = reserved.into_iter();
        Ok(reserved
            .map(|run| u64::from(run.start)..u64::from(run.end))
            .collect())
    }

    fn release(&self, blocks: Range<u64>) {
        let Ok(space) = self.sb.space() else {
            return;
        };
        let block = |block| FileBlock(u32::try_from(block).unwrap_or(u32::MAX));
        let blocks = block(blocks.start)..block(blocks.end);
        let mut state = self.state.write();
        reserve::forget(&mut state, self.fs(), space, blocks);
    }

    fn allocate(
        &self,
        blocks: Range<u64>,
        _: &Request<'_>,
        placement: &mut Placement,
    ) -> Result<Piece> {
        writeback::take(self, file_blocks(&blocks)?, placement)
    }

    fn give_back(&self, piece: Piece) -> Result<()> {
        writeback::give_back(self, piece)
    }

    fn map_written(
        &self,
        piece: &mut Piece,
        end: u64,
        journaled: Option<&Request<'_>>,
    ) -> Result<()> {
        writeback::map_piece(self, piece, end, journaled)
    }

    fn note_placed(&self, placement: &mut Placement, run: &FileRun) {
        placement.note(&own_run(run, self.block_bits()));
    }

    fn convert_written(&self, run: &FileRun, end: u64) -> Result<()> {
        writeback::convert_run(self, &own_run(run, self.block_bits()), end)
    }

    fn write_device(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        self.sb.write_data(at, bufs)
    }

    fn overwrite(&self, request: &Request<'_>, run: &FileRun) -> Result<()> {
        writeback::write_over(self, request, &own_run(run, self.block_bits()))
    }

    fn journaled_blocks_max(&self) -> Option<u64> {
        writeback::journals_data(self).then_some(JOURNALED_BLOCKS_MAX.into())
    }

    fn extend_on_disk(&self, end: FileEnd) -> Result<()> {
        writeback::extend_on_disk(self, end)
    }

    fn touch(&self) -> Result<()> {
        reserve::touch(self)
    }

    fn set_larger_size(&self, size: u64) -> Result<()> {
        let now = self.sb.clock.now();
        self.change(0, |handle, state| {
            state.inode.size_bytes = size;
            state.inode.modified = now;
            state.inode.changed = now;
            state.data_sync = handle.transaction();
            Ok(())
        })
    }

    fn prepare_truncate(&self, first: u64) -> Result<()> {
        file_blocks(&(0..first))?;
        truncate::prepare(self)
    }

    fn is_truncation_left(&self) -> bool {
        self.data.is_truncation_left()
    }

    fn truncate_blocks(&self, size: u64, first: u64) -> Result<()> {
        let end = file_blocks(&(0..first))?.end;
        truncate::remove_beyond(self, size, end)
    }

    fn abort(&self, error: &Error) {
        if let Some(log) = self.fs().log() {
            log.abort(error);
        }
    }

    fn write_back_shared_reservations(&self, range: Range<u64>) -> Result<()> {
        if self.state.read().delayed.has_leaves() {
            self.pages.write_back(self, range)?;
        }
        Ok(())
    }

    fn has_unwritten(&self) -> bool {
        has_flag(self, InodeFlags::EXTENTS)
    }

    fn punch_blocks(&self, blocks: Range<u64>) -> Result<()> {
        let dropped = file_blocks(&blocks)?;
        let mut left = dropped.clone();
        steps::run(self, 0, |handle, state, space| {
            reserve::forget(state, self.fs(), space, dropped.clone());
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            match map.remove(&mut change, left.clone())? {
                Progress::Done => return Ok(true),
                Progress::More(next) => left.end = next,
            }
            Ok(false)
        })
    }

    fn convert_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        let blocks = file_blocks(&blocks)?;
        let mut left = blocks.clone();
        steps::run(self, 0, |handle, state, space| {
            reserve::forget(state, self.fs(), space, blocks.clone());
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            match map.convert(&mut change, left.clone(), true)? {
                Progress::Done => return Ok(true),
                Progress::More(next) => left.start = next,
            }
            Ok(false)
        })
    }

    fn allocate_unwritten(&self, blocks: Range<u64>) -> Result<()> {
        let blocks = file_blocks(&blocks)?;
        let space = self.sb.space()?;
        let placement = &mut *self.data.file.placement.lock();
        reserve::holes(&mut self.state.write(), self.fs(), space, blocks.clone())?;
        let filled = fill_reserved(self, blocks.clone(), placement);
        if filled.is_err() {
            let mut state = self.state.write();
            reserve::forget(&mut state, self.fs(), space, blocks);
        }
        filled
    }

    fn collapse_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        let blocks = file_blocks(&blocks)?;
        let count = blocks.end.0 - blocks.start.0;
        let mut left = blocks.clone();
        steps::run(self, 0, |handle, state, space| {
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            match map.remove(&mut change, left.clone())? {
                Progress::Done => return Ok(true),
                Progress::More(next) => left.end = next,
            }
            Ok(false)
        })?;
        let mut from = blocks.end;
        steps::run(self, 0, |handle, state, space| {
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            match map.shift_down(&mut change, from, count)? {
                Progress::Done => {
                    state.inode.size_bytes = size;
                    self.data.file.truncate(size);
                    Ok(true)
                }
                Progress::More(next) => {
                    from = next;
                    Ok(false)
                }
            }
        })
    }

    fn may_shift_up(&self, count: u64) -> Result<bool> {
        let Ok(count) = u32::try_from(count) else {
            return Ok(false);
        };
        self.state.read().map.has_space_above(self.fs(), count)
    }

    fn insert_blocks(&self, blocks: Range<u64>, size: u64) -> Result<()> {
        let blocks = file_blocks(&blocks)?;
        let count = blocks.end.0 - blocks.start.0;
        // The split, which may need space, comes first, so that ENOSPC leaves the file as it was.
        // Writes of the blocks before it do not merge the parts again.
        steps::run(self, 0, |handle, state, space| {
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            map.part(&mut change, blocks.start)?;
            Ok(true)
        })?;
        // The size next: what is moved would lie past the end of the file.
        self.change(0, |handle, state| {
            state.inode.size_bytes = size;
            state.data_sync = handle.transaction();
            Ok(())
        })?;
        self.data.file.set_size(size);
        let mut left = blocks.start..FileBlock::MAX;
        steps::run(self, 0, |handle, state, space| {
            let (map, mut change) = state.map_change(self.fs(), &**space, handle);
            match map.shift_up(&mut change, left.clone(), count)? {
                Progress::Done => return Ok(true),
                Progress::More(next) => left.end = next,
            }
            Ok(false)
        })
    }

    fn commit_mapping(&self) -> Result<()> {
        let changed = self.state.read().sync;
        self.fs().log().map_or(Ok(()), |log| log.commit(changed))
    }

    fn commit(&self, data_only: bool) -> Result<()> {
        commit_inode(self, data_only)
    }
}

fn has_flag(node: &Ext4Inode, flag: InodeFlags) -> bool {
    node.state.read().inode.flags.contains(flag)
}

/// Returns when the transactions that changed the inode are durable, and what was written to its
/// blocks.
pub(in crate::ops) fn commit_inode(node: &Ext4Inode, data_only: bool) -> Result<()> {
    let Some(log) = node.fs().log() else {
        return Ok(());
    };
    let transaction = {
        let state = node.state.read();
        if data_only {
            state.data_sync
        } else {
            state.sync
        }
    };
    let writes = &node.data.file.sync.writes;
    writes.sync(|| log.commit(transaction), || log.sync(transaction))
}

fn fill_reserved(
    node: &Ext4Inode,
    blocks: Range<FileBlock>,
    placement: &mut Placement,
) -> Result<()> {
    let mut at = blocks.start;
    while at < blocks.end {
        let run = node.state.read().map.lookup(node.fs(), at)?;
        let run = run.truncated(blocks.end.0 - at.0);
        at = run.end();
        if run.backing != Backing::Hole {
            continue;
        }
        let mut piece = writeback::take(node, run.first..run.end(), placement)?;
        let filled = writeback::map_unwritten(node, &mut piece, placement);
        if let Err(error) = filled {
            writeback::give_back(node, piece)?;
            return Err(error);
        }
        at = piece.run.end();
    }
    Ok(())
}

/// The blocks of a range, as far as a file may have them.
///
/// # Errors
/// `FileTooLarge`.
fn file_blocks(blocks: &Range<u64>) -> Result<Range<FileBlock>> {
    let block = |nr| u32::try_from(nr).map(FileBlock).ok();
    let found = block(blocks.start).zip(block(blocks.end));
    let (start, end) = found.ok_or(Condition::FileTooLarge)?;
    Ok(start..end)
}

/// A run of blocks that a file may have.
fn own_run(run: &FileRun, block_bits: u32) -> Run {
    use platter_vfs::file::Backing as Found;
    let number = |nr| u32::try_from(nr).unwrap_or(u32::MAX);
    Run {
        first: FileBlock(number(run.first)),
        count: number(run.count),
        backing: match run.backing {
            Found::Hole => Backing::Hole,
            Found::Written(offset) => Backing::Written(BlockNr(offset >> block_bits)),
            Found::Unwritten(offset) => Backing::Unwritten(BlockNr(offset >> block_bits)),
        },
    }
}
