//! Dirty pages on their way to the device: over the blocks they have, or into new ones, which the
//! map names once the data is there.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_cache::page::WritableSpace;
use platter_vfs::Result;
use platter_vfs::file::{Allocation, FileEnd, FileRun, Request, Target, write_runs};
use platter_vfs::writing::NoSpaceRetry;

use super::super::{Ext4Inode, InodeState};
use super::{reserve, steps};
use crate::alloc::{self, Allocator, Preallocation, RECORD_CREDITS, Reserve, Taken};
use crate::file::file_run;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::{Backing, Progress, ReservedSource, Run};
use crate::ondisk::{BlockNr, FileBlock};
use crate::txn::Handle;

/// Blocks of contents that one handle takes into the journal at most.
pub(super) const JOURNALED_BLOCKS_MAX: u32 = 32;

/// Where a file got blocks last. Its lock keeps others from placing blocks of the same file.
#[derive(Debug, Default)]
pub struct Placement {
    last: Option<(FileBlock, BlockNr)>,
    /// What is kept for it after them.
    preallocation: Preallocation,
}

/// Blocks of a file that are about to be mapped.
#[derive(Debug)]
pub struct Piece {
    pub(super) run: Run,
    /// Absent where they lie in a cluster that the file has.
    taken: Option<Taken>,
    /// Clusters among them that use up a reservation.
    reserved: u32,
    block_bits: u32,
}

impl Allocation for Piece {
    fn run(&self) -> FileRun {
        file_run(&self.run, self.block_bits)
    }
}

impl WritableSpace for Ext4Inode {
    fn extend(&self, end: u64) {
        self.data.file.extend(end);
    }

    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<()> {
        write_runs(self, offset, bufs)
    }
}

/// What is to be done about the first blocks of a range, and how many.
pub(super) fn target(node: &Ext4Inode, blocks: Range<FileBlock>) -> Result<(Target, u32)> {
    let bits = node.fs().geometry.block_bits;
    let state = node.state.read();
    let first = blocks.start;
    let run = state.map.lookup(node.fs(), first)?;
    let run = run.truncated(blocks.end.0 - first.0);
    let target = match run.backing {
        Backing::Written(start) => return Ok((Target::Overwrite(start.0 << bits), run.count)),
        Backing::Unwritten(start) => Target::Unwritten(start.0 << bits),
        Backing::Hole => Target::New,
    };
    let dirty = state.delayed.dirty().next(first.0);
    Ok(match dirty {
        Some(dirty) if dirty.start == first.0 => (target, run.count.min(dirty.end - first.0)),
        Some(dirty) => (Target::Nothing, run.count.min(dirty.start - first.0)),
        None => (Target::Nothing, run.count),
    })
}

/// Maps a piece as unwritten.
pub(super) fn map_unwritten(
    node: &Ext4Inode,
    piece: &mut Piece,
    placement: &mut Placement,
) -> Result<()> {
    if let Backing::Written(start) = piece.run.backing {
        piece.run.backing = Backing::Unwritten(start);
    }
    map_piece(node, piece, 0, None)?;
    placement.note(&piece.run);
    Ok(())
}

/// Frees the blocks allocated for a piece that could not be mapped.
pub(super) fn give_back(node: &Ext4Inode, piece: Piece) -> Result<()> {
    if let Some(taken) = piece.taken {
        alloc::give_back(node.sb.space()?, taken);
    }
    Ok(())
}

/// Takes blocks for the first of a range of dirty ones.
pub(super) fn take(
    node: &Ext4Inode,
    blocks: Range<FileBlock>,
    placement: &mut Placement,
) -> Result<Piece> {
    let (fs, space) = (node.fs(), node.sb.space()?);
    let ratio = fs.geometry.cluster_blocks;
    let (first, mut end) = (blocks.start, blocks.end);
    let cluster = first.0 / ratio;
    let (goal, is_reserved) = {
        let state = node.state.read();
        if let Some((block, place)) = state.map.place_in_cluster(fs, cluster)? {
            let cluster_end = (cluster + 1).saturating_mul(ratio);
            let start = BlockNr(place.0 + u64::from(first.0) - u64::from(block.0));
            return Ok(Piece {
                run: Run {
                    first,
                    count: end.0.min(cluster_end) - first.0,
                    backing: Backing::Written(start),
                },
                taken: None,
                reserved: 0,
                block_bits: fs.geometry.block_bits,
            });
        }
        end = end.min(state.map.step_end(fs, first));
        let last = (end.0 - 1) / ratio;
        if last > cluster && state.map.place_in_cluster(fs, last)?.is_some() {
            end = FileBlock(last * ratio);
        }
        let (is_reserved, until) = state.delayed.reservation_of(cluster);
        end = end.min(FileBlock(until.saturating_mul(ratio)));
        (goal(node, &state, first, placement)?, is_reserved)
    };
    let from = if is_reserved {
        Reserve::Delayed
    } else {
        Reserve::Privileged
    };
    let inside = first.0 % ratio;
    let want = end.0 - first.0 + inside;
    let taken = alloc::take_growing(space, fs, &mut placement.preallocation, goal, want, from)?;
    let start = BlockNr(taken.start().0 + u64::from(inside));
    let clusters = taken.count().div_ceil(ratio);
    Ok(Piece {
        run: Run {
            first,
            count: taken.count() - inside,
            backing: Backing::Written(start),
        },
        reserved: if is_reserved { clusters } else { 0 },
        taken: Some(taken),
        block_bits: fs.geometry.block_bits,
    })
}

/// Where `block` is best placed: after the block before it, or as far from the last one that
/// was placed as it is in the file.
fn goal(
    node: &Ext4Inode,
    state: &InodeState,
    block: FileBlock,
    placement: &Placement,
) -> Result<BlockNr> {
    if let Some(before) = block.0.checked_sub(1) {
        let run = state.map.lookup(node.fs(), FileBlock(before))?;
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            return Ok(BlockNr(start.0 + 1));
        }
    }
    let near = placement.last.and_then(|(last, place)| {
        let ahead = block.checked_since(last)?;
        let goal = place.checked_add(u64::from(ahead))?;
        node.fs().geometry.contains(goal, 1).then_some(goal)
    });
    let first = || -> Result<BlockNr> { Ok(node.sb.space()?.first_goal(node.number, node.kind)) };
    near.map_or_else(first, Ok)
}

/// Records a piece whose data is on the device: its blocks, its place in the map, and the size
/// that reaches to `end`. Data that is `journaled` becomes part of the same transaction. A piece
/// that could not be recorded still holds what it has taken.
pub(super) fn map_piece(
    node: &Ext4Inode,
    piece: &mut Piece,
    end: u64,
    journaled: Option<&Request<'_>>,
) -> Result<()> {
    let fs = node.fs();
    let space = node.sb.space()?;
    let mut retry = NoSpaceRetry::begin(&*node.sb);
    loop {
        inode::read_slot(fs, node.number)?;
        let of_data = journaled.map_or(0, |_| piece.run.count);
        let of_map = node.state.read().map.step_credits();
        let credits = of_map + RECORD_CREDITS + STORE_CREDITS + of_data;
        let mut handle = fs.begin(credits)?;
        let mut state = node.state.write();
        let of_leaf = state
            .delayed
            .leaf_reservation(&fs.geometry, piece.run.first);
        let source = ReservedSource::new(space, of_leaf);
        let (map, mut change) = state.map_change(fs, &source, &mut handle);
        if let Err(error) = map.insert(&mut change, piece.run) {
            drop(state);
            drop(handle);
            if retry.is_due(&*node.sb, &error)? {
                continue;
            }
            return Err(error);
        }
        if let Some(taken) = piece.taken.take() {
            let clusters = u64::from(taken.count().div_ceil(fs.geometry.cluster_blocks));
            let sectors = clusters.saturating_mul(change.cluster_sectors());
            change.inode.sectors = change.inode.sectors.saturating_add(sectors);
            alloc::record(space, fs, &mut handle, taken).map_err(|error| handle.abort(error))?;
        }
        let used = piece.reserved + of_leaf - source.left();
        reserve::place(&mut state, fs, space, &piece.run, used);
        if let Some(request) = journaled {
            journal_blocks(node, &mut handle, request, &piece.run)?;
        }
        state.inode.size_bytes = state.inode.size_bytes.max(end);
        return state.store_data(fs, &mut handle);
    }
}

/// Has unwritten blocks, to which data was written, read as that, and the size reach to `end`.
pub(super) fn convert_run(node: &Ext4Inode, run: &Run, end: u64) -> Result<()> {
    let mut blocks = run.first..run.end();
    steps::run(node, 0, |handle, state, space| {
        let (map, mut change) = state.map_change(node.fs(), &**space, handle);
        let progress = map.convert(&mut change, blocks.clone(), false)?;
        let done_to = match progress {
            Progress::Done => blocks.end,
            Progress::More(next) => next,
        };
        let done = Run {
            first: blocks.start,
            count: done_to.0 - blocks.start.0,
            backing: run.backing,
        };
        reserve::place(state, node.fs(), space, &done, 0);
        blocks.start = done_to;
        if progress == Progress::Done {
            state.inode.size_bytes = state.inode.size_bytes.max(end);
        }
        Ok(progress == Progress::Done)
    })
}

/// Extends the size on disk to `end`, up to which data is there, unless the file was truncated
/// meanwhile: then the transaction that its inode was last changed in has a smaller one. During a
/// truncation, extends it to the remaining size at most.
pub(super) fn extend_on_disk(node: &Ext4Inode, end: FileEnd) -> Result<()> {
    if node.state.read().inode.size_bytes >= end.offset {
        return Ok(());
    }
    let fs = node.fs();
    inode::read_slot(fs, node.number)?;
    let mut handle = fs.begin(STORE_CREDITS)?;
    let mut state = node.state.write();
    if !node.data.file.is_current(end) {
        return Ok(());
    }
    let left = end.offset.min(node.size_bytes());
    state.inode.size_bytes = state.inode.size_bytes.max(left);
    state.store_data(fs, &mut handle)
}

/// Writes the bytes of a run of blocks over what the file has there, or has them journaled.
pub(super) fn write_over(node: &Ext4Inode, request: &Request<'_>, run: &Run) -> Result<()> {
    if !journals_data(node) {
        leave_journal(node)?;
        write_blocks(node, request, run)?;
        node.data.file.sync.writes.record();
        node.sb.overwrites.record();
        return Ok(());
    }
    let fs = node.fs();
    let mut left = *run;
    while left.count > 0 {
        let part = left.truncated(JOURNALED_BLOCKS_MAX);
        inode::read_slot(fs, node.number)?;
        let mut handle = fs.begin(part.count + STORE_CREDITS)?;
        let mut state = node.state.write();
        journal_blocks(node, &mut handle, request, &part)?;
        state.store_data(fs, &mut handle)?;
        left = left.starting_at(part.end());
    }
    Ok(())
}

/// Whether contents go through the journal.
pub(super) fn journals_data(node: &Ext4Inode) -> bool {
    node.fs().journals_data(&node.state.read().inode)
}

/// Takes the bytes of a run of blocks into the transaction.
fn journal_blocks(
    node: &Ext4Inode,
    handle: &mut Handle<'_>,
    request: &Request<'_>,
    run: &Run,
) -> Result<()> {
    let Backing::Written(start) = run.backing else {
        return Ok(());
    };
    node.data.is_journaled.store(true, Ordering::Release);
    let geometry = &node.fs().geometry;
    for (block, place) in (u64::from(run.first.0)..)
        .zip(start.0..)
        .take(run.count as usize)
    {
        let first = block << geometry.block_bits;
        let mut bytes = Vec::with_capacity(geometry.block_bytes as usize);
        for part in request.bytes(first..first + u64::from(geometry.block_bytes)) {
            bytes.extend_from_slice(&part);
        }
        bytes.resize(geometry.block_bytes as usize, 0);
        handle
            .journal_data(BlockNr(place), bytes)
            .map_err(|error| handle.abort(error))?;
    }
    Ok(())
}

/// Checkpoints contents that were journaled before the file's data mode changed: what is written
/// straight to the device now must not be overwritten by them later.
pub(in crate::ops) fn leave_journal(node: &Ext4Inode) -> Result<()> {
    if !node.data.is_journaled.load(Ordering::Acquire) {
        return Ok(());
    }
    if let Some(log) = node.fs().log() {
        log.commit_all()?;
        log.checkpoint_all()?;
    }
    node.data.is_journaled.store(false, Ordering::Release);
    Ok(())
}

/// Writes the bytes of a run of blocks to where it lies.
fn write_blocks(node: &Ext4Inode, request: &Request<'_>, run: &Run) -> Result<()> {
    let Backing::Written(start) = run.backing else {
        return Ok(());
    };
    let bits = node.fs().geometry.block_bits;
    let bufs = request.blocks(&file_run(run, bits), bits);
    node.sb.write_data(start.0 << bits, &bufs)
}

impl Placement {
    /// Releases the preallocation of the file.
    pub(in crate::ops) fn close(&mut self, space: &Allocator) {
        alloc::close_preallocation(space, &mut self.preallocation);
    }

    /// Records blocks that were placed.
    pub(super) fn note(&mut self, run: &Run) {
        if let Backing::Written(start) | Backing::Unwritten(start) = run.backing {
            let last = BlockNr(start.0 + u64::from(run.count) - 1);
            self.last = Some((FileBlock(run.end().0 - 1), last));
        }
    }
}
