//! Growing a directory: allocates and maps new blocks, all or none.

use std::ops::Range;

use platter_vfs::{Condition, Result};

use super::DirectoryMut;
use crate::alloc::gathering_group;
use crate::mapping::{BlockMap, MapChange, Progress, SPACE_CREDITS};
use crate::ondisk::features::Incompat;
use crate::ondisk::{BlockNr, FileBlock};

/// Maximum number of blocks that an index can address.
const BLOCKS_MAX: u32 = 1 << 28;
/// Maximum number of blocks that adding a name allocates: a leaf and two index blocks.
const GROWTH_BLOCKS_MAX: u32 = 3;

/// Returns the credits of growing a directory by [`GROWTH_BLOCKS_MAX`].
pub(super) fn growth_credits(map: &BlockMap) -> u32 {
    GROWTH_BLOCKS_MAX.saturating_mul(map.step_credits().saturating_add(SPACE_CREDITS))
}

/// Adds empty blocks at the end. Returns the first.
///
/// # Errors
/// `NoSpace`; after an error, nothing was changed.
pub(super) fn grow(directory: &mut DirectoryMut<'_, '_>, count: u32) -> Result<FileBlock> {
    let first = directory.block_count();
    let geometry = &directory.fs.geometry;
    let end = first.0.saturating_add(count);
    let size_bytes = u64::from(end) << geometry.block_bits;
    let has_wide_size = geometry.features.incompat.contains(Incompat::LARGE_DIR);
    if end > BLOCKS_MAX || !has_wide_size && size_bytes > u64::from(u32::MAX) {
        return Err(Condition::NoSpace.into());
    }
    fill_holes(directory, first..FileBlock(end))?;
    directory.inode.size_bytes = size_bytes;
    Ok(first)
}

/// Allocates and maps blocks that are holes.
///
/// # Errors
/// `NoSpace`; after an error, nothing was changed.
pub(super) fn fill_holes(
    directory: &mut DirectoryMut<'_, '_>,
    blocks: Range<FileBlock>,
) -> Result<()> {
    let mut goal = goal(directory, blocks.start)?;
    for block in (blocks.start.0..blocks.end.0).map(FileBlock) {
        match fill_hole(directory, block, goal) {
            Ok(place) => goal = BlockNr(place.0.saturating_add(1)),
            Err(error) => {
                empty(directory, blocks.start..block)?;
                return Err(error);
            }
        }
    }
    Ok(())
}

fn fill_hole(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    goal: BlockNr,
) -> Result<BlockNr> {
    let (fs, space, number) = (directory.fs, directory.space, directory.inode.number);
    let mut change = MapChange {
        fs,
        space,
        handle: directory.handle,
        inode: directory.inode,
    };
    directory.map.fill_hole(&mut change, block, |change| {
        if block == FileBlock(0) {
            space.alloc(fs, change.handle, goal)
        } else {
            space.alloc_for_directory(fs, change.handle, number, goal)
        }
    })
}

/// Returns the allocation goal of a block: the one after its predecessor.
fn goal(directory: &DirectoryMut<'_, '_>, block: FileBlock) -> Result<BlockNr> {
    let geometry = &directory.fs.geometry;
    let before = match block.0.checked_sub(1) {
        Some(before) => directory.map.block(directory.fs, FileBlock(before))?,
        None => None,
    };
    if let Some(before) = before {
        return Ok(BlockNr(before.0.saturating_add(1)));
    }
    let group = geometry.group_of_inode(directory.inode.number);
    let group = group.map(|(group, _)| group).unwrap_or_default();
    Ok(geometry.group_first_block(gathering_group(geometry, group)))
}

/// Unmaps blocks that were just mapped.
pub(super) fn empty(directory: &mut DirectoryMut<'_, '_>, blocks: Range<FileBlock>) -> Result<()> {
    if blocks.is_empty() {
        return Ok(());
    }
    let mut change = MapChange {
        fs: directory.fs,
        space: directory.space,
        handle: directory.handle,
        inode: directory.inode,
    };
    let emptied = match directory.map.remove(&mut change, blocks) {
        Ok(Progress::Done) => Ok(()),
        // The same handle has credits for what it mapped.
        Ok(Progress::More(_)) => Err(Condition::NoSpace.into()),
        Err(error) => Err(error),
    };
    directory.abort_on_error(emptied)
}
