//! Ranges that files share or exchange: clones, deduplication, and copies that become clones.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{self, BlockRuns, FileBlocks, FileData};
use platter_vfs::ranges::{Deduped, Exchange, copy_or_clone, copy_through_cache};
use platter_vfs::{Condition, Result, Unsupported};

use super::super::state::{Times, touch};
use super::super::{Inode, SuperBlock};
use super::eof_blocks;
use super::steps::open;
use crate::ag::{refcount, rmap, space};
use crate::change::{Change, Cost, free_mapping, owner_of};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::inode::InodeFlags2;
use crate::ondisk::inode::edit::{self, core_mut};
use crate::ondisk::{FileBlock, ForkKind, FsBlock, InodeFlags, Mapping};

/// Parts that one transaction shares at most, each with one mapping in either file.
const SHARED_MAX: u32 = 4;
/// Records of reference counts that such a part has at most.
const COUNTS_MAX: usize = 4;
/// Mappings of both files together that an exchange moves at most, since it is one transaction.
const EXCHANGED_MAX: usize = 200;

/// Has a file share what `source` has in a range.
pub(in crate::ops) fn clone(
    file: &Inode,
    source: &dyn platter_vfs::Inode,
    range: Range<u64>,
    to: u64,
) -> Result<()> {
    with_both(file, source, |source| {
        share(file, source, &range, to, false)
    })
}

/// Shares a range where both files have the same bytes.
pub(in crate::ops) fn dedupe(
    file: &Inode,
    source: &dyn platter_vfs::Inode,
    range: Range<u64>,
    to: u64,
) -> Result<Deduped> {
    with_both(file, source, |source| {
        // What is refused is refused before anything is read.
        shared_blocks(file, source, &range, to, true)?;
        file::dedupe(file, source, &range, to, || {
            share(file, source, &range, to, true)
        })
    })
}

/// Copies a range: what is whole blocks of it by sharing.
pub(in crate::ops) fn copy(
    file: &Inode,
    source: &dyn platter_vfs::Inode,
    range: Range<u64>,
    to: u64,
) -> Result<u64> {
    if !file.context().geometry().features.has_reflink() {
        return copy_through_cache(file, source, range, to);
    }
    copy_or_clone(file, source, range, to, 1 << file.block_bits())
}

/// Calls `work` with the other file, both locked and written back.
fn with_both<T>(
    file: &Inode,
    other: &dyn platter_vfs::Inode,
    work: impl FnOnce(&Inode) -> Result<T>,
) -> Result<T> {
    file.check_write()?;
    let number = crate::ondisk::InodeNr::new(other.id().number).ok_or(Condition::Stale)?;
    let other: Arc<Inode> = file.superblock.find(number)?.ok_or(Condition::Stale)?;
    other.refuse_without_contents()?;
    if other.has_flag(InodeFlags::REALTIME) {
        return Err(super::refused("sharing or moving what a realtime file has"));
    }
    file::with_both_locked(file, &*other, || work(&other))
}

fn shared_blocks(
    file: &Inode,
    source: &Inode,
    range: &Range<u64>,
    to: u64,
    is_dedupe: bool,
) -> Result<Range<u64>> {
    if !file.context().geometry().features.has_reflink() {
        return Err(Condition::NotSupported.into());
    }
    file::shared_blocks(file, source, range, to, is_dedupe)
}

/// Shares a range. Both files are locked and written back.
fn share(file: &Inode, source: &Inode, range: &Range<u64>, to: u64, is_dedupe: bool) -> Result<()> {
    let bytes = shared_blocks(file, source, range, to, is_dedupe)?;
    let new_end = to + (range.end - range.start);
    if new_end > file.size_bytes_max() {
        return Err(Condition::FileTooLarge.into());
    }
    if new_end > file.data.size_bytes() {
        file::finish_truncation(file)?;
    }
    if to > file.data.size_bytes() {
        // Where that finds no space, it does not wait for a file that is locked here.
        eof_blocks::end_growth(source)?;
        file::resize(file, to)?;
        file::write_back(file)?;
    }
    may_share(source)?;
    may_share(file)?;
    let bits = file.block_bits();
    let (first, end) = (bytes.start >> bits, bytes.end >> bits);
    let mut at = first;
    while at < end {
        let target = (to >> bits) + (at - first);
        at = share_some(file, source, at..end, target, new_end)?;
    }
    if is_dedupe {
        return Ok(());
    }
    let now = file.superblock.clock.now();
    file.change(Cost::default(), |_, edit, _| {
        touch(edit, Times::of_contents(now))
    })
}

/// Says in the inode that its blocks may be shared.
fn may_share(file: &Inode) -> Result<()> {
    if file
        .state
        .read()
        .inode
        .flags2
        .contains(InodeFlags2::REFLINK)
    {
        return Ok(());
    }
    file.change(Cost::default(), |_, edit, _| set_shares(edit))
}

/// Shares the first parts of a range of blocks. Returns where to go on.
fn share_some(
    file: &Inode,
    source: &Inode,
    blocks: Range<u64>,
    to: u64,
    size_max: u64,
) -> Result<u64> {
    let bits = file.block_bits();
    let cost = Cost {
        extents: SHARED_MAX * 4,
        forks: 2,
        ..Cost::default()
    };
    let alone = file.data.mapping.write();
    let next = file.change(cost, |change, edit, _| {
        let mut from = if source.number == file.number {
            None
        } else {
            let edit = change.inode(source.number)?;
            Some(open(change, &edit)?)
        };
        let mut fork = open(change, edit)?;
        let mut at = blocks.start;
        for _ in 0..SHARED_MAX {
            if at >= blocks.end {
                break;
            }
            let place = from.as_mut().unwrap_or(&mut fork);
            let found = place.lookup(&mut change.groups, FileBlock(at))?;
            let shared = part_at(found, at..blocks.end);
            let target = to + (at - blocks.start);
            at += share_part(change, (&mut fork, edit), shared, target)?;
        }
        fork.store(edit)?;
        let end = (to + (at - blocks.start)) << bits;
        let end = end.min(size_max);
        if end > edit.inode().size_bytes {
            edit.change(|bytes| edit::set_size(bytes, end))?;
        }
        edit.refresh(change.geometry())?;
        Ok(at)
    })?;
    file.data.extend(file.state.read().inode.size_bytes);
    drop(alone);
    let end = to + (next - blocks.start);
    // Pages that a smaller block is a part of have other bytes as well: they are read again as a whole.
    file.pages.invalidate(to << bits..end << bits);
    Ok(next)
}

/// Exchanges ranges of two files, in one transaction.
pub(in crate::ops) fn exchange(
    file: &Inode,
    other: &dyn platter_vfs::Inode,
    exchange: &Exchange,
) -> Result<()> {
    with_both(file, other, |other| {
        if file.number == other.number {
            return Err(Condition::InvalidArgument.into());
        }
        other.check_write()?;
        for one in [file, other] {
            file::finish_truncation(one)?;
            eof_blocks::end_growth(one)?;
        }
        let mine = exchanged_blocks(file, exchange.offset, exchange.len_bytes)?;
        let theirs = exchanged_blocks(other, exchange.other_offset, exchange.len_bytes)?;
        let count = (mine.end - mine.start).max(theirs.end - theirs.start);
        let (mine, theirs) = (
            mine.start..mine.start + count,
            theirs.start..theirs.start + count,
        );
        let parts = parts_to_exchange(file, other, (&mine, &theirs), exchange.written_only)?;
        if exchange.dry_run {
            return Ok(());
        }
        exchange_parts(file, other, &parts, exchange)?;
        file.pages.invalidate(0..u64::MAX);
        other.pages.invalidate(0..u64::MAX);
        Ok(())
    })
}

/// The blocks of a file that an exchange concerns.
fn exchanged_blocks(file: &Inode, offset: u64, len_bytes: Option<u64>) -> Result<Range<u64>> {
    let (size, bits) = (file.data.size_bytes(), file.block_bits());
    let end = match len_bytes {
        Some(len) => offset.checked_add(len).filter(|end| *end <= size),
        None => Some(size.next_multiple_of(1 << bits)).filter(|end| offset <= *end),
    };
    let range = offset..end.ok_or(Condition::InvalidArgument)?;
    let is_aligned = |at: u64| at.is_multiple_of(1 << bits);
    if is_aligned(range.start) && is_aligned(range.end) {
        return Ok(range.start >> bits..range.end >> bits);
    }
    Err(Condition::InvalidArgument.into())
}

/// The ranges of both files, by their first blocks, that trade places, with the mappings in them.
fn parts_to_exchange(
    file: &Inode,
    other: &Inode,
    (mine, theirs): (&Range<u64>, &Range<u64>),
    written_only: bool,
) -> Result<Vec<(u64, u64, u64)>> {
    let (my_state, their_state) = if file.number < other.number {
        let mine = file.state.read();
        (mine, other.state.read_nth(1))
    } else {
        let theirs = other.state.read();
        (file.state.read_nth(1), theirs)
    };
    let mut parts = Vec::new();
    let mut moved = 0;
    let mut at = 0;
    let count = mine.end - mine.start;
    while at < count {
        let one = my_state.run(file.context(), mine.start + at)?;
        let two = their_state.run(file.context(), theirs.start + at)?;
        let len = one.count.min(two.count).min(count - at);
        let is_hole = |run: &file::FileRun| run.backing == file::Backing::Hole;
        let is_written = matches!(two.backing, file::Backing::Written(_));
        // Holes stay as they are, and so do blocks that both files share there.
        if one.backing != two.backing && (is_written || !written_only) {
            moved += usize::from(!is_hole(&one)) + usize::from(!is_hole(&two));
            parts.push((mine.start + at, theirs.start + at, len));
        }
        if moved > EXCHANGED_MAX {
            return Err(Unsupported {
                filesystem: "xfs",
                feature: "an exchange of contents in many extents".to_owned(),
                reason: Some("of up to 200 it can be made at once"),
            }
            .into());
        }
        at += len.max(1);
    }
    Ok(parts)
}

fn exchange_parts(
    file: &Inode,
    other: &Inode,
    parts: &[(u64, u64, u64)],
    exchange: &Exchange,
) -> Result<()> {
    let cost = Cost {
        extents: u32::try_from(parts.len() * 2).unwrap_or(u32::MAX),
        forks: 2,
        inodes: 2,
        ..Cost::default()
    };
    let superblock: &SuperBlock = &file.superblock;
    let (size, other_size) = (file.data.size_bytes(), other.data.size_bytes());
    let now = superblock.clock.now();
    let mine = (file.number.id(), &file.data);
    let _mappings = FileData::lock_both(mine, (other.number.id(), &other.data));
    let sizes = superblock.change(&cost, &[file, other], |change, _| {
        let (mut mine, mut theirs) = (change.inode(file.number)?, change.inode(other.number)?);
        let shares = |edit: &InodeEdit| edit.inode().flags2.contains(InodeFlags2::REFLINK);
        if shares(&mine) || shares(&theirs) {
            set_shares(&mut mine)?;
            set_shares(&mut theirs)?;
        }
        let (mut my_fork, mut their_fork) = (open(change, &mine)?, open(change, &theirs)?);
        for &(my_block, their_block, count) in parts {
            let one = my_fork.unmap(&mut change.groups, FileBlock(my_block), count)?;
            let two = their_fork.unmap(&mut change.groups, FileBlock(their_block), count)?;
            for mapping in one {
                let moved = at_block(&mapping, my_block, their_block);
                give(change, &mapping, &moved, (&mine, &theirs))?;
                their_fork.map(&mut change.groups, moved)?;
            }
            for mapping in two {
                let moved = at_block(&mapping, their_block, my_block);
                give(change, &mapping, &moved, (&theirs, &mine))?;
                my_fork.map(&mut change.groups, moved)?;
            }
        }
        my_fork.store(&mut mine)?;
        their_fork.store(&mut theirs)?;
        let mut sizes = (size, other_size);
        if exchange.len_bytes.is_none() {
            sizes.0 = exchange.offset + (other_size - exchange.other_offset.min(other_size));
            sizes.1 = exchange.other_offset + (size - exchange.offset.min(size));
        }
        for (edit, size) in [(&mut mine, sizes.0), (&mut theirs, sizes.1)] {
            edit.change(|bytes| edit::set_size(bytes, size))?;
            touch(edit, Times::of_contents(now))?;
            edit.refresh(change.geometry())?;
        }
        change.put(mine);
        change.put(theirs);
        Ok(sizes)
    })?;
    file.data.truncate(sizes.0);
    other.data.truncate(sizes.1);
    Ok(())
}

/// The first part of a range that is one mapping, or nothing that is written, and its length.
fn part_at(found: Option<Mapping>, blocks: Range<u64>) -> (Option<Mapping>, u64) {
    let Range { start, end } = blocks;
    match found {
        Some(mapping) if mapping.offset.0 <= start => {
            let skipped = start - mapping.offset.0;
            let count = mapping.end().0.min(end) - start;
            let part = Mapping {
                offset: FileBlock(start),
                start: mapping.start + skipped,
                count,
                ..mapping
            };
            ((!mapping.is_unwritten).then_some(part), count)
        }
        Some(mapping) => (None, mapping.offset.0.min(end) - start),
        None => (None, end - start),
    }
}

/// Makes the target have what the source has in a part of a range, as far as the target has one mapping there.
/// Returns how many blocks that were.
fn share_part(
    change: &mut Change<'_>,
    (fork, edit): (&mut ForkEdit, &InodeEdit),
    (shared, count): (Option<Mapping>, u64),
    target: u64,
) -> Result<u64> {
    let number = edit.inode().number;
    let there = fork.lookup(&mut change.groups, FileBlock(target))?;
    let mut count = match there {
        Some(there) if there.offset.0 <= target => count.min(there.end().0 - target),
        Some(there) => count.min(there.offset.0 - target),
        None => count,
    };
    for mapping in [shared, there.filter(|there| there.offset.0 <= target)] {
        let Some(mapping) = mapping else { continue };
        let skipped = target.saturating_sub(mapping.offset.0);
        let start = if shared == Some(mapping) {
            mapping.start
        } else {
            mapping.start + skipped
        };
        let (ag, block) = change.geometry().split(FsBlock(start));
        let blocks = u32::try_from(count).unwrap_or(u32::MAX);
        let group = change.groups.get(ag)?;
        count = count.min(refcount::counted_alike(&group, block, blocks, COUNTS_MAX)?.into());
    }
    let new = shared.map(|shared| Mapping {
        offset: FileBlock(target),
        count,
        ..shared
    });
    if let (Some(new), Some(there)) = (new, there)
        && let Some(skipped) = target.checked_sub(there.offset.0)
        && there.start + skipped == new.start
        && !there.is_unwritten
    {
        return Ok(count);
    }
    if let Some(new) = &new {
        let (ag, owner) = owner_of(new, number, ForkKind::Data, change.geometry());
        // The references come first: blocks of the target must not lose their last one to get it again.
        refcount::increase(&mut change.groups.get(ag)?, owner.start, owner.count)?;
        let mut group = change.groups.get(ag)?;
        space::fill_free_list(&mut group)?;
        rmap::add(&mut group, &owner)?;
    }
    for gone in fork.unmap(&mut change.groups, FileBlock(target), count)? {
        free_mapping(&mut change.groups, &gone, number, (ForkKind::Data, true))?;
    }
    if let Some(new) = new {
        fork.map(&mut change.groups, new)?;
    }
    Ok(count)
}

/// A mapping as far from `to` as it was from `from`.
fn at_block(mapping: &Mapping, from: u64, to: u64) -> Mapping {
    Mapping {
        offset: FileBlock(to + (mapping.offset.0 - from)),
        ..*mapping
    }
}

/// Makes another file the owner of the blocks of a mapping.
fn give(
    change: &mut Change<'_>,
    mapping: &Mapping,
    moved: &Mapping,
    (from, to): (&InodeEdit, &InodeEdit),
) -> Result<()> {
    let geometry = change.geometry();
    let (ag, old) = owner_of(mapping, from.inode().number, ForkKind::Data, geometry);
    let (_, new) = owner_of(moved, to.inode().number, ForkKind::Data, geometry);
    let mut group = change.groups.get(ag)?;
    group.note_moved(old.start, old.count);
    space::fill_free_list(&mut group)?;
    rmap::remove(&mut group, &old)?;
    space::fill_free_list(&mut group)?;
    rmap::add(&mut group, &new)
}

fn set_shares(edit: &mut InodeEdit) -> Result<()> {
    edit.change(|bytes| {
        let disk = core_mut(bytes)?;
        let flags = disk.flags2.get() | InodeFlags2::REFLINK.bits();
        disk.flags2.set(flags);
        Some(())
    })
}
