//! Steps of changes of a file's mapping, each a transaction of its own.

use std::ops::Range;

use platter_vfs::file::{Backing, FileRun};
use platter_vfs::writing::NoSpaceRetry;
use platter_vfs::{Condition, Result};

use super::super::Inode;
use super::super::space::FreedSpace;
use super::super::state::InodeState;
use super::super::state::{Times, touch};
use super::placement::Claimed;
use crate::ag::{rmap, space};
use crate::change::{Change, Cost, Unmapped, add_owner, free_mapping, owner_of, unmap};
use crate::file::{group_block, is_shared};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::inode::{InodeFlags2, edit};
use crate::ondisk::{FileBlock, ForkKind, InodeFlags, Mapping};
use crate::space::Claim;

/// What blocks have that are about to be mapped.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Contents {
    /// Data, which is on the device.
    Written,
    /// Nothing: they read as zeros.
    Unwritten,
    /// Nothing, and they are the last that a caller asked for.
    LastAsked,
}

/// Mappings that one step removes or moves at most.
pub(super) const STEP_MAPPINGS: u32 = 8;

/// The run that the first of some blocks lies in, as far as either all or nothing of it must not be written in
/// its place: other files share it, or a crash would bring it back to others, or all that is in use is kept.
pub(super) fn shared_run(
    file: &Inode,
    state: &InodeState,
    blocks: Range<u64>,
) -> Result<(FileRun, bool)> {
    let context = file.context();
    if context.space().keeps_old() {
        let run = state.run(context, blocks.start)?;
        let run = run.truncated(blocks.end - blocks.start);
        return Ok((run, run.backing != Backing::Hole));
    }
    let (run, is_shared) = run_of_files(file, state, blocks)?;
    let (Backing::Written(start), Some(log)) = (run.backing, context.log()) else {
        return Ok((run, is_shared));
    };
    if is_shared {
        return Ok((run, is_shared));
    }
    let (ag, first) = group_block(context.geometry(), start);
    let extent = first..first.saturating_add(run.count);
    let (count, may_be) = context.space().may_be_shared_again(ag, &extent, log);
    Ok((run.truncated(count), may_be))
}

/// The run that the first of some blocks lies in, as far as either all or nothing of it is other files' as well.
pub(super) fn run_of_files(
    file: &Inode,
    state: &InodeState,
    blocks: Range<u64>,
) -> Result<(FileRun, bool)> {
    let context = file.context();
    let run = state.run(context, blocks.start)?;
    let run = run.truncated(blocks.end - blocks.start);
    let may_share = state.inode.flags2.contains(InodeFlags2::REFLINK);
    let Backing::Written(start) = run.backing else {
        return Ok((run, false));
    };
    if !may_share {
        return Ok((run, false));
    }
    let (count, shared) = is_shared(context, start, run.count)?;
    Ok((run.truncated(count), shared))
}

/// Reserves free blocks to parts of the file that have none, and to what its tree of mappings may need for them, and
/// for unwritten blocks once they are `converted` to written ones.
///
/// # Errors
/// `NoSpace`, and nothing is reserved.
pub(super) fn reserve_blocks(
    file: &Inode,
    state: &mut InodeState,
    parts: &[Range<u64>],
    converted: &[Range<u64>],
) -> Result<()> {
    let context = file.context();
    let free_blocks = context.mount().free_blocks();
    let tree = state.mapping_tree(context);
    let reserve = |count: u64| {
        let count = i64::try_from(count);
        count.is_ok_and(|count| free_blocks.try_sub(count, context.space().floor()))
    };
    let reserved = state.delayed.reserve(parts, converted, &tree, reserve);
    context.return_reserved(reserved.ok_or(Condition::NoSpace)?);
    Ok(())
}

/// Drops marks and reservations of blocks.
pub(super) fn forget(file: &Inode, state: &mut InodeState, blocks: Range<u64>) {
    let reserved = state.forget(file.context(), blocks);
    file.context().return_reserved(reserved);
}

/// Says in the inode that blocks beyond its end were asked for, which stay (`XFS_DIFLAG_PREALLOC`).
pub(super) fn set_preallocated(edit: &mut InodeEdit) -> Result<()> {
    let flags = edit.inode().flags | InodeFlags::PREALLOC;
    edit.change(|bytes| {
        edit::core_mut(bytes)?.core.flags.set(flags.bits());
        Some(())
    })
}

/// Drops all reservations: the object goes.
pub(in crate::ops) fn release_all(file: &Inode) {
    let mut state = file.state.write();
    forget(file, &mut state, 0..u64::MAX);
}

/// Maps blocks that were claimed; what was mapped there is freed. A claim that could not be mapped is
/// kept.
pub(super) fn map_claimed(
    file: &Inode,
    claimed: &mut Claimed,
    end: u64,
    contents: Contents,
) -> Result<()> {
    let Some(claim) = claimed.claim else {
        return Ok(());
    };
    let cost = Cost {
        extents: if claimed.ahead > 0 { 8 } else { 6 },
        forks: 2,
        ..Cost::default()
    };
    let geometry = file.context().geometry();
    let run = claimed.run;
    let mapping = Mapping {
        offset: FileBlock(run.first),
        start: geometry.fs_block(claim.ag, claim.start).0,
        count: run.count,
        is_unwritten: contents != Contents::Written,
    };
    let ahead = Mapping {
        offset: mapping.end(),
        start: mapping.start + run.count,
        count: claimed.ahead,
        is_unwritten: true,
    };
    let mappings = [mapping, ahead];
    let mappings = &mappings[..if claimed.ahead > 0 { 2 } else { 1 }];
    let space = FreedSpace(&file.superblock);
    let mut retry = NoSpaceRetry::begin(&space);
    loop {
        let mapped = file.change(cost, |change, edit, state| {
            map_over(change, edit, mappings, claim)?;
            if contents == Contents::LastAsked {
                set_preallocated(edit)?;
            }
            if end > edit.inode().size_bytes {
                edit.change(|bytes| edit::set_size(bytes, end))?;
            }
            let reserved = state.forget(file.context(), run.first..run.end());
            change.keep_reserved(reserved + state.delayed.take_ahead());
            Ok(())
        });
        match mapped {
            Ok(()) => break,
            Err(error) if retry.is_due(&space, &error)? => {}
            Err(error) => return Err(error),
        }
    }
    claimed.claim = None;
    Ok(())
}

/// Has unwritten blocks, to which data was written, read as that, and the size reach to `end`.
pub(super) fn convert(file: &Inode, run: &FileRun, end: u64) -> Result<()> {
    let cost = Cost {
        extents: 4,
        forks: 3,
        ..Cost::default()
    };
    let space = FreedSpace(&file.superblock);
    let mut retry = NoSpaceRetry::begin(&space);
    loop {
        let converted = file.change(cost, |change, edit, state| {
            convert_run(change, edit, run)?;
            if end > edit.inode().size_bytes {
                edit.change(|bytes| edit::set_size(bytes, end))?;
            }
            let reserved = state.forget(file.context(), run.first..run.end());
            change.keep_reserved(reserved);
            Ok(())
        });
        match converted {
            Err(error) if retry.is_due(&space, &error)? => {}
            converted => return converted,
        }
    }
}

/// Frees all blocks of a range.
pub(super) fn unmap_all(file: &Inode, blocks: Range<u64>) -> Result<()> {
    // What lies in a part of a block leaves no whole one.
    if blocks.is_empty() {
        return Ok(());
    }
    let mut end = FileBlock(blocks.end);
    let space = FreedSpace(&file.superblock);
    let mut retry = NoSpaceRetry::begin(&space);
    loop {
        let left = file.change(unmap_cost(), |change, edit, state| {
            let range = FileBlock(blocks.start)..end;
            let left = unmap(change, edit, ForkKind::Data, range, STEP_MAPPINGS)?;
            let reserved = state.forget(file.context(), blocks.clone());
            change.keep_reserved(reserved);
            Ok(left)
        });
        match left {
            Ok(Unmapped::All) => return Ok(()),
            Ok(Unmapped::Before(before)) => end = before,
            Err(error) if retry.is_due(&space, &error)? => {}
            Err(error) => return Err(error),
        }
    }
}

/// Moves what follows a range that is not mapped down to its start, and sets the size at last.
pub(super) fn shift_down(file: &Inode, gap: &Range<u64>, size: u64) -> Result<()> {
    let by = gap.end - gap.start;
    let mut from = gap.end;
    loop {
        let next = file.change(unmap_cost(), |change, edit, _| {
            let mut fork = open(change, edit)?;
            let mut next = Some(from);
            for _ in 0..STEP_MAPPINGS / 2 {
                let Some(at) = next else { break };
                let found = fork.lookup(&mut change.groups, FileBlock(at))?;
                next = found.map(|mapping| mapping.end().0);
                let Some(mapping) = found else { break };
                let target = mapping.offset.0.saturating_sub(by);
                shift(change, &mut fork, &mapping, target, edit)?;
            }
            fork.store(edit)?;
            if next.is_none() {
                edit.change(|bytes| edit::set_size(bytes, size))?;
            }
            Ok(next)
        })?;
        let Some(next) = next else {
            file.data.truncate(size);
            return Ok(());
        };
        from = next;
    }
}

/// Moves what lies from the start of a range on up to its end.
pub(super) fn shift_up(file: &Inode, gap: &Range<u64>) -> Result<()> {
    let by = gap.end - gap.start;
    let mut before = u64::MAX;
    let now = file.superblock.clock.now();
    loop {
        let (is_done, limit) = file.change(unmap_cost(), |change, edit, _| {
            let mut fork = open(change, edit)?;
            let (mut is_done, mut limit) = (false, before);
            for _ in 0..STEP_MAPPINGS / 2 {
                let last = fork.last_before(&mut change.groups, FileBlock(limit))?;
                let Some(last) = last.filter(|last| last.end().0 > gap.start) else {
                    is_done = true;
                    break;
                };
                let skipped = gap.start.saturating_sub(last.offset.0);
                let moved = Mapping {
                    offset: FileBlock(last.offset.0 + skipped),
                    start: last.start + skipped,
                    count: last.count - skipped,
                    ..last
                };
                shift(change, &mut fork, &moved, moved.offset.0 + by, edit)?;
                limit = moved.offset.0;
                if limit <= gap.start {
                    is_done = true;
                    break;
                }
            }
            fork.store(edit)?;
            touch(edit, Times::of_contents(now))?;
            Ok((is_done, limit))
        })?;
        if is_done {
            return Ok(());
        }
        before = limit;
    }
}

/// What a step takes.
pub(super) fn unmap_cost() -> Cost {
    // Of shared blocks, each mapping may be several records of reference counts.
    Cost {
        extents: STEP_MAPPINGS * 2,
        forks: 2,
        ..Cost::default()
    }
}

pub(super) fn open(change: &Change<'_>, edit: &InodeEdit) -> Result<ForkEdit> {
    let number = edit.inode().number;
    ForkEdit::open(&edit.fork(ForkKind::Data)?, number, change.geometry())
}

/// Maps the blocks of a claim, in the place of those that are mapped there.
fn map_over(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    mappings: &[Mapping],
    claim: Claim,
) -> Result<()> {
    let number = edit.inode().number;
    let shares = edit.inode().flags2.contains(InodeFlags2::REFLINK);
    change.groups.take_claim(claim)?;
    let mut fork = open(change, edit)?;
    for mapping in mappings {
        add_owner(change, mapping, number)?;
        let gone = fork.unmap(&mut change.groups, mapping.offset, mapping.count)?;
        for gone in gone {
            free_mapping(&mut change.groups, &gone, number, (ForkKind::Data, shares))?;
        }
        fork.map(&mut change.groups, *mapping)?;
    }
    fork.store(edit)?;
    edit.refresh(change.geometry())
}

/// Makes the unwritten blocks of a run written ones.
fn convert_run(change: &mut Change<'_>, edit: &mut InodeEdit, run: &FileRun) -> Result<()> {
    let number = edit.inode().number;
    let mut fork = open(change, edit)?;
    let parts = fork.unmap(&mut change.groups, FileBlock(run.first), run.count)?;
    for part in parts {
        let written = Mapping {
            is_unwritten: false,
            ..part
        };
        if part.is_unwritten {
            let (ag, owner) = owner_of(&written, number, ForkKind::Data, change.geometry());
            let mut group = change.groups.get(ag)?;
            space::fill_free_list(&mut group)?;
            rmap::convert(&mut group, &owner)?;
        }
        fork.map(&mut change.groups, written)?;
    }
    fork.store(edit)?;
    edit.refresh(change.geometry())
}

/// Moves a mapping to another block of the file.
fn shift(
    change: &mut Change<'_>,
    fork: &mut ForkEdit,
    mapping: &Mapping,
    target: u64,
    edit: &InodeEdit,
) -> Result<()> {
    let number = edit.inode().number;
    let geometry = change.geometry();
    for gone in fork.unmap(&mut change.groups, mapping.offset, mapping.count)? {
        let moved = Mapping {
            offset: FileBlock(target + (gone.offset.0 - mapping.offset.0)),
            ..gone
        };
        let (ag, old) = owner_of(&gone, number, ForkKind::Data, geometry);
        let (_, new) = owner_of(&moved, number, ForkKind::Data, geometry);
        let mut group = change.groups.get(ag)?;
        group.note_moved(old.start, old.count);
        space::fill_free_list(&mut group)?;
        rmap::remove(&mut group, &old)?;
        space::fill_free_list(&mut group)?;
        rmap::add(&mut group, &new)?;
        fork.map(&mut change.groups, moved)?;
    }
    Ok(())
}
