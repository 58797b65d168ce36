//! Groups whose extents are moved to others, so that their chunks can be removed.

use std::collections::{BTreeMap, BTreeSet};
use std::io::IoSlice;

use platter_vfs::{Condition, Error, Result};

use super::held::HeldGroup;
use super::relocate::{self, CopiedData, Moving, Outcome};
use super::restripe::{self, while_thawed};
use super::{WriteContext, data_extents, space, trees, unused};
use crate::block_group::BlockGroup;
use crate::context::ListedExtent;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// Tree blocks that are free elsewhere when a group is emptied, besides what is in it and what is kept for commits.
const SPARE_BLOCKS: u64 = 256;
/// Data that moves in one commit.
const DATA_BYTES_MAX: u64 = 32 << 20;
/// Extents that do.
const EXTENTS_MAX: usize = 256;
/// The most tree blocks that a commit copies for what moves: as many of these as there is space for.
const COPIED_MAX: [u32; 3] = [1024, 256, 64];
/// Tree blocks that a handle copies, of trees that are not shared,
const UNSHARED_CREDITS: u32 = 64;
/// and the blocks in the group that these are for.
const UNSHARED_BLOCKS: usize = 4;
/// Commits in a row that make snapshots, and move nothing.
const LATER_MAX: u32 = 1000;

/// What became of a chunk.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Moved {
    /// It has other stripes.
    Whole,
    /// What was in it is in other chunks, and it is gone.
    Emptied,
    /// It was gone.
    Gone,
}

/// Moves what is in the chunk at `start`, which gets a profile, to chunks `among` these, if they have the space, and removes it. Else moves it
/// as a whole.
///
/// # Errors
/// `ENOSPC` where the devices have no space for it; `Corrupt` where something in it cannot be read. Extents that were
/// moved stay so.
pub(crate) fn move_chunk(
    fs: &WriteContext,
    start: LogicalAddr,
    profile: Profile,
    among: &BTreeSet<LogicalAddr>,
) -> Result<Moved> {
    let Ok(group) = fs.groups.find(start, 1) else {
        return Ok(Moved::Gone);
    };
    let fits = fits(fs, &group, among);
    let Some(held) = HeldGroup::hold(fs, start)? else {
        return Ok(Moved::Gone);
    };
    // Send streams are made from trees that do not change.
    if fits
        && let Some(_moving) = fs.context.reads.try_move()
        && empty(fs, held.group(), among)?
    {
        return Ok(Moved::Emptied);
    }
    restripe::move_held(fs, &held, profile)?;
    Ok(Moved::Whole)
}

/// Whether other groups have the space for what is in one.
fn fits(fs: &WriteContext, group: &BlockGroup, among: &BTreeSet<LogicalAddr>) -> bool {
    // Extents keep their owners, which are those of whole extents.
    let has_owners = fs.quotas.as_ref().is_some_and(|it| it.simple().is_some());
    if group.holds(BlockGroupFlags::SYSTEM) || has_owners || among.is_empty() {
        return false;
    }
    let others = fs.groups.iter();
    let others = others.filter(|it| among.contains(&it.start()));
    let free: u64 = others.map(|other| other.free_bytes()).sum();
    let spare = if group.holds(BlockGroupFlags::METADATA) {
        SPARE_BLOCKS * fs.node_bytes()
    } else {
        0
    };
    free >= group.space().used && space::fits_elsewhere(fs, group, spare)
}

/// Moves all that is in a group, which is held, to others, and removes it. Returns `false` if something stays.
fn empty(fs: &WriteContext, group: &BlockGroup, among: &BTreeSet<LogicalAddr>) -> Result<bool> {
    loop {
        fs.refuse_moving()?;
        let mut range = group.start().0..group.end().0;
        let extents = ListedExtent::next_of(&fs.context, &mut range)?;
        if extents.is_empty() {
            break;
        }
        let used = group.space().used;
        let (blocks, data): (Vec<_>, Vec<_>) = extents.into_iter().partition(|it| it.is_tree_block);
        let have_moved = move_data(fs, group, &data, among)? && move_blocks(fs, &blocks)?;
        fs.sync()?;
        if !have_moved || group.space().used >= used {
            return Ok(false);
        }
    }
    // What was freed last is unpinned by the commit that freed it.
    fs.sync()?;
    if group.space().used > 0 || group.space().pinned > 0 {
        return Ok(false);
    }
    let is_removed = unused::remove_held(fs, group)?;
    fs.sync()?;
    Ok(is_removed)
}

/// Moves some data of a group. Returns `false` at the first extent that cannot be moved.
fn move_data(
    fs: &WriteContext,
    group: &BlockGroup,
    extents: &[ListedExtent],
    among: &BTreeSet<LogicalAddr>,
) -> Result<bool> {
    let mut copied = Vec::new();
    let mut bytes = 0;
    for extent in extents.iter().take(EXTENTS_MAX) {
        if bytes >= DATA_BYTES_MAX {
            break;
        }
        match place(fs, group, extent, among) {
            Ok(Some(place)) => {
                bytes += extent.len_bytes;
                copied.push(place);
            }
            Ok(None) => break,
            Err(error) => {
                release(fs, &copied)?;
                return Err(error);
            }
        }
    }
    if copied.is_empty() {
        return Ok(true);
    }
    let filled = copied.iter_mut().try_for_each(|copied| fill(fs, copied));
    if let Err(error) = filled {
        release(fs, &copied)?;
        return Err(error);
    }
    let mut waiting = vec![copied];
    let mut result = Ok(true);
    while let Some(copied) = waiting.pop() {
        if copied.is_empty() {
            continue;
        }
        if result.as_ref().is_ok_and(|all| *all) {
            result = fs.refuse_moving().map(|()| true);
        }
        if !result.as_ref().is_ok_and(|all| *all) {
            release(fs, &copied)?;
            continue;
        }
        let (moving, outcome) = commit(fs, Moving::Data(copied))?;
        let Moving::Data(mut copied) = moving else {
            continue;
        };
        if outcome != Some(Outcome::Moved) && copied.len() > 1 {
            let rest = copied.split_off(copied.len() / 2);
            waiting.extend([rest, copied]);
            continue;
        }
        release(fs, &copied)?;
        result = Ok(outcome == Some(Outcome::Moved));
    }
    result
}

/// Allocates space for a copy of data; `None` if there is none in one piece.
fn place(
    fs: &WriteContext,
    group: &BlockGroup,
    extent: &ListedExtent,
    among: &BTreeSet<LogicalAddr>,
) -> Result<Option<CopiedData>> {
    let len_bytes = extent.len_bytes;
    let kind = group.flags().intersection(BlockGroupFlags::TYPES);
    if !space::try_reserve(fs, kind, len_bytes) {
        return Ok(None);
    }
    let sector_bytes = fs.context.superblock.sector_bytes.into();
    let read = |group: &BlockGroup| trees::read_free_space(fs, group);
    // Within a transaction, so that none is committed meanwhile.
    let handle = fs.begin_unreserved(0);
    let allocated = handle.and_then(|handle| {
        let found = fs
            .groups
            .allocate_in(among, (len_bytes, sector_bytes), &read)?;
        if let Some(to) = found {
            data_extents::note_allocated(fs, to, len_bytes);
        }
        drop(handle);
        Ok(found)
    });
    space::release_reserved(fs, kind, len_bytes);
    let copied = allocated?.map(|to| CopiedData {
        from: extent.start,
        to,
        len_bytes,
        checksums: BTreeMap::new(),
        is_referred_to: false,
    });
    Ok(copied)
}

/// Writes a copy.
fn fill(fs: &WriteContext, copied: &mut CopiedData) -> Result<()> {
    let (from, to) = (copied.from.0, copied.to.0);
    let range = from..from + copied.len_bytes;
    let write: restripe::Write<'_> = &|at, bytes| {
        let at = LogicalAddr(to + (at - from));
        while_thawed(fs, || data_extents::write(fs, at, &[IoSlice::new(bytes)]))
    };
    restripe::copy_data(fs, &range, write)?;
    let stored = data_extents::stored_checksums(fs, &range)?;
    let moved = stored.into_iter().map(|(at, it)| (to + (at - from), it));
    copied.checksums = moved.collect();
    Ok(())
}

/// Frees copies that nothing refers to.
fn release(fs: &WriteContext, copied: &[CopiedData]) -> Result<()> {
    let mut unused = copied.iter().filter(|copied| !copied.is_referred_to);
    // Within a transaction, so that none is committed meanwhile.
    let handle = fs.begin_unreserved(0)?;
    let released = unused.try_for_each(|it| data_extents::release(fs, it.to, it.len_bytes));
    drop(handle);
    released
}

/// Has a commit move extents, `None` without the space for it.
fn commit(fs: &WriteContext, moving: Moving) -> Result<(Moving, Option<Outcome>)> {
    let mut moving = moving;
    for _ in 0..LATER_MAX {
        let most = fs.blocks_max() / 4;
        let counts = COPIED_MAX.into_iter().map(|count| count.min(most));
        let count = counts
            .into_iter()
            .find(|count| relocate::reserve_blocks(fs, *count));
        let Some(count) = count else {
            return Ok((moving, None));
        };
        let (back, outcome) = relocate::commit(fs, moving, count)?;
        if outcome != Outcome::Later {
            return Ok((back, Some(outcome)));
        }
        moving = back;
    }
    Ok((moving, None))
}

/// Moves tree blocks. Returns `false` at the first that cannot be moved.
fn move_blocks(fs: &WriteContext, extents: &[ListedExtent]) -> Result<bool> {
    let mut unshared: Vec<(TreeId, Key)> = Vec::new();
    let mut of_subvolumes = Vec::new();
    for extent in extents {
        let expected = Expected {
            generation: Some(extent.generation),
            ..Expected::default()
        };
        let block = match fs.blocks().read(extent.start, &expected) {
            Ok(block) => block,
            // It may have been freed meanwhile.
            Err(error @ Error::Io(_)) => return Err(error),
            Err(_) => continue,
        };
        let Some(header) = block.header() else {
            continue;
        };
        if header.owner.is_subvolume() {
            of_subvolumes.push(extent.start);
            continue;
        }
        let first = match block.level() {
            0 => block.leaf().key(0),
            _ => block.node().pointer(0).map(|pointer| pointer.key),
        };
        unshared.push((header.owner, first.unwrap_or(Key::MIN)));
    }
    for some in unshared.chunks(UNSHARED_BLOCKS) {
        copy_unshared(fs, some)?;
    }
    let mut waiting = vec![of_subvolumes];
    while let Some(blocks) = waiting.pop() {
        if blocks.is_empty() {
            continue;
        }
        fs.refuse_moving()?;
        let (moving, outcome) = commit(fs, Moving::Blocks(blocks))?;
        let Moving::Blocks(mut blocks) = moving else {
            continue;
        };
        if outcome == Some(Outcome::Moved) {
            continue;
        }
        if blocks.len() < 2 {
            return Ok(false);
        }
        let rest = blocks.split_off(blocks.len() / 2);
        waiting.extend([rest, blocks]);
    }
    Ok(true)
}

/// Copies the ways to blocks of trees that have no snapshots, if there is space for that.
fn copy_unshared(fs: &WriteContext, blocks: &[(TreeId, Key)]) -> Result<()> {
    let handle = match fs.begin(UNSHARED_CREDITS) {
        Err(Error::Condition(Condition::NoSpace)) => return Ok(()),
        begun => begun?,
    };
    for (tree, key) in blocks {
        // Of no tree that is known, it stays where it is.
        if *tree == TreeId::CHUNK || fs.tree(*tree).is_err() {
            continue;
        }
        handle.edit(*tree, |editor| editor.get_for_change(*key))?;
    }
    Ok(())
}
