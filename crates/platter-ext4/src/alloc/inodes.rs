//! Allocating and freeing inodes. Spec: `ext4/bitmaps`.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Error, FileKind, Result};

use super::group_inodes::Inodes;
use super::orlov::Regions;
use super::{Allocator, SpaceRule, preallocation, record, recording, slot};
use crate::FsContext;
use crate::ondisk::{GroupNr, Inode, InodeNr};
use crate::txn::Handle;

/// Whether an inode is marked in use in the bitmaps of a read-only filesystem.
pub fn is_inode_in_use(fs: &FsContext, number: InodeNr) -> Result<bool> {
    let Some((group, index)) = fs.geometry.group_of_inode(number) else {
        return Ok(false);
    };
    Ok(Inodes::load(fs, group, false)?.is_taken(index))
}

/// Allocates an inode for a new file of directory `parent`, near it; directories in a top-level
/// directory are spread over the groups by `random`. The contents of the inode's slot are
/// undefined. Modifies [`ALLOC_INODE_CREDITS`](super::ALLOC_INODE_CREDITS) blocks.
///
/// # Errors
/// `NoSpace` if no inode is free. `Corrupt` or `Io` if the only free ones are in unusable
/// groups. Nothing is changed.
pub fn alloc_inode(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    parent: &Inode,
    kind: FileKind,
    random: u64,
) -> Result<InodeNr> {
    let first = Regions::of(space).inode_group(parent, kind, random).0;
    let mut failure = None;
    for group in (first..space.geometry.groups_count).chain(0..first) {
        match alloc_inode_in(space, fs, handle, GroupNr(group), kind) {
            Ok(Some(number)) => {
                space.pass_by(failure);
                return Ok(number);
            }
            Ok(None) => {}
            Err(error @ Error::Corrupt(_)) => {
                space.slot(GroupNr(group)).lose_inodes();
                failure.get_or_insert(error);
            }
            Err(error @ Error::Io(_)) => {
                failure.get_or_insert(error);
            }
            Err(error) => return Err(error),
        }
    }
    Err(failure.unwrap_or(Condition::NoSpace.into()))
}

/// Allocates an inode of one group; returns `None` if it has none that is free.
pub(super) fn alloc_inode_in(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    group: GroupNr,
    kind: FileKind,
) -> Result<Option<InodeNr>> {
    let slot = space.slot(group);
    if !slot.has_inodes() {
        return Ok(None);
    }
    let geometry = &space.geometry;
    let mut held = slot::inodes(space, fs, group)?;
    if held.free() == 0 {
        return Ok(None);
    }
    let index = held.first_free(first_index(space, group));
    let index = index.ok_or_else(|| held.corrupt(SpaceRule::FreeInodes))?;
    let number = u64::from(group.0) * u64::from(geometry.inodes_per_group);
    let number = number + u64::from(index) + 1;
    let number = u32::try_from(number).ok().and_then(InodeNr::new);
    let number = number.ok_or_else(|| held.corrupt(SpaceRule::FreeInodes))?;
    let untouched = held.untouched(geometry, index)?;
    if !held.has_block_bitmap {
        // A group in use has both bitmaps.
        record::initialize_bitmap(space, fs, handle, group)?;
        held.has_block_bitmap = true;
    }
    recording::join(space, handle, group, &mut held.recording)?;
    if let Some(block) = untouched {
        let zeros = vec![0; geometry.block_bytes as usize];
        handle.create(block, &Unverified, zeros)?;
    }
    let is_directory = kind == FileKind::Directory;
    held.take(index, is_directory);
    slot.note_inodes(&held);
    space.counters.free_inodes.sub(1);
    if is_directory {
        space.counters.directories.add(1);
    }
    Ok(Some(number))
}

/// Frees an inode; `was_dir` says whether it is a directory. It can be allocated again at once.
/// Modifies [`FREE_INODE_CREDITS`](super::FREE_INODE_CREDITS) blocks.
///
/// # Errors
/// `Corrupt` if it is free already or cannot be freed: nothing is changed.
pub fn free_inode(
    space: &Allocator,
    fs: &FsContext,
    handle: &mut Handle<'_>,
    number: InodeNr,
    was_dir: bool,
) -> Result<()> {
    let (group, index) = freeable(space, number)?;
    if was_dir {
        let mut preallocation = space.directories.lock().remove(number);
        preallocation::close_preallocation(space, &mut preallocation);
    }
    let mut held = slot::inodes(space, fs, group)?;
    check_taken(space, &held, number, index, was_dir)?;
    recording::join(space, handle, group, &mut held.recording)?;
    held.give(index, was_dir);
    space.slot(group).note_inodes(&held);
    space.counters.free_inodes.add(1);
    if was_dir {
        space.counters.directories.sub(1);
    }
    Ok(())
}

/// Checks that an inode can be freed, which reads the bitmap of its group: before an operation that
/// frees it after other changes. In a replay, nothing is checked: the bitmaps may be older than its records.
///
/// # Errors
/// Those of [`free_inode`].
pub fn check_inode_freeable(
    space: &Allocator,
    fs: &FsContext,
    number: InodeNr,
    was_dir: bool,
) -> Result<()> {
    if space.excluded.is_some() {
        return Ok(());
    }
    let (group, index) = freeable(space, number)?;
    let held = slot::inodes(space, fs, group)?;
    check_taken(space, &held, number, index, was_dir)
}

/// Returns the group of an inode that is not reserved, and the index in the group.
fn freeable(space: &Allocator, number: InodeNr) -> Result<(GroupNr, u32)> {
    let place = space.geometry.group_of_inode(number);
    let place = place.filter(|_| number.get() >= space.geometry.first_inode);
    let locus = Locus::inode(u64::from(number.get()));
    Ok(place.ok_or(Corrupt::new(locus, SpaceRule::FreedReserved))?)
}

/// Checks that an inode is in use, and that the counts of its group include it.
fn check_taken(
    space: &Allocator,
    held: &Inodes,
    number: InodeNr,
    index: u32,
    is_directory: bool,
) -> Result<()> {
    if !held.is_taken(index) {
        let locus = Locus::inode(u64::from(number.get()));
        return Err(Corrupt::new(locus, SpaceRule::InodeFreedTwice).into());
    }
    if is_directory && held.directories() == 0 {
        return Err(held.corrupt(SpaceRule::UsedDirs));
    }
    if held.free() >= space.geometry.inodes_per_group {
        return Err(held.corrupt(SpaceRule::FreeInodes));
    }
    Ok(())
}

/// Returns the first allocatable inode of a group.
fn first_index(space: &Allocator, group: GroupNr) -> u32 {
    let before = u64::from(group.0) * u64::from(space.geometry.inodes_per_group);
    let reserved = u64::from(space.geometry.first_inode.saturating_sub(1));
    u32::try_from(reserved.saturating_sub(before)).unwrap_or(u32::MAX)
}
