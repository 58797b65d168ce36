//! Blocks that files give back.

use platter_vfs::{FileKind, Result};

use super::Change;
use crate::ag::{Groups, refcount, rmap, space};
use crate::fork::{ForkEdit, InodeEdit};
use crate::ondisk::btree::{Owner, RmapOwner};
use crate::ondisk::extent::Mapping;
use crate::ondisk::inode::InodeFlags2;
use crate::ondisk::{AgNr, FileBlock, ForkKind, FsBlock, Geometry, Inode, InodeNr};
use crate::space::Claim;

/// Blocks of metadata that are freed at once: each is logged as cancelled. A multiple of the blocks of the
/// largest directory block.
const METADATA_BLOCKS_MAX: u64 = 128;

/// How an unmapping ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unmapped {
    /// All of it.
    All,
    /// What lies before this block is still mapped.
    Before(FileBlock),
}

/// The owner of the blocks of a mapping, and their group.
#[must_use]
pub fn owner_of(
    mapping: &Mapping,
    inode: InodeNr,
    kind: ForkKind,
    geometry: &Geometry,
) -> (AgNr, Owner) {
    let (ag, start) = geometry.split(FsBlock(mapping.start));
    let owner = Owner {
        offset: mapping.offset.0,
        is_attr_fork: kind == ForkKind::Attr,
        is_unwritten: mapping.is_unwritten,
        ..Owner::special(
            start,
            u32::try_from(mapping.count).unwrap_or(u32::MAX),
            RmapOwner(inode.get()),
        )
    };
    (ag, owner)
}

/// Adds the owner of blocks that the data fork of a file maps to the reverse map.
pub fn add_owner(change: &mut Change<'_>, mapping: &Mapping, inode: InodeNr) -> Result<()> {
    let (ag, owner) = owner_of(mapping, inode, ForkKind::Data, change.geometry());
    let mut group = change.groups.get(ag)?;
    space::fill_free_list(&mut group)?;
    rmap::add(&mut group, &owner)
}

/// Frees the blocks of a mapping that is gone, unless others share them.
pub fn free_mapping(
    groups: &mut Groups,
    mapping: &Mapping,
    inode: InodeNr,
    (kind, is_shared): (ForkKind, bool),
) -> Result<()> {
    let (ag, owner) = owner_of(mapping, inode, kind, &groups.geometry().clone());
    let mut group = groups.get(ag)?;
    space::fill_free_list(&mut group)?;
    rmap::remove(&mut group, &owner)?;
    let unreferenced = if is_shared {
        refcount::decrease(&mut group, owner.start, owner.count)?
    } else {
        vec![(owner.start, owner.count)]
    };
    for (start, count) in unreferenced {
        space::free_extent(&mut group, start, count)?;
    }
    Ok(())
}

/// Unmaps blocks of a file from the end on, at most so many mappings and records of reference counts in
/// them, of which there may be two at least, and frees them. Stores the fork.
pub fn unmap(
    change: &mut Change<'_>,
    edit: &mut InodeEdit,
    kind: ForkKind,
    blocks: std::ops::Range<FileBlock>,
    mappings_max: u32,
) -> Result<Unmapped> {
    let geometry = change.geometry();
    let number = edit.inode().number;
    let unit = metadata_unit(edit.inode(), kind, geometry);
    let is_directory = edit.inode().kind == FileKind::Directory;
    let is_shared = kind == ForkKind::Data && edit.inode().flags2.contains(InodeFlags2::REFLINK);
    let mut fork = ForkEdit::open(&edit.fork(kind)?, number, geometry)?;
    let mut end = blocks.end;
    let mut left = mappings_max;
    let mut outcome = Unmapped::All;
    while let Some(last) = fork.last_before(&mut change.groups, end)? {
        if last.end() <= blocks.start {
            break;
        }
        let end_here = last.end().min(end);
        let Some(after) = left.checked_sub(if is_shared { 2 } else { 1 }) else {
            outcome = Unmapped::Before(end_here);
            break;
        };
        left = after;
        let mut first = last.offset.max(blocks.start);
        if unit.is_some() {
            let most = end_here.0.saturating_sub(METADATA_BLOCKS_MAX);
            let whole = most.next_multiple_of(METADATA_BLOCKS_MAX / 2);
            first = first.max(FileBlock(whole));
        }
        if is_shared {
            let skipped = first.0 - last.offset.0;
            let (ag, start) = geometry.split(FsBlock(last.start + skipped));
            let count = u32::try_from(end_here.0 - first.0).unwrap_or(u32::MAX);
            let group = change.groups.get(ag)?;
            let (from, records) = refcount::end_with_records(&group, start, count, left + 1)?;
            left = left.saturating_sub(records.saturating_sub(1));
            first = FileBlock(first.0 + u64::from(from.0 - start.0));
        }
        let count = end_here.0.saturating_sub(first.0);
        for gone in fork.unmap(&mut change.groups, first, count)? {
            if let Some(unit) = unit {
                forget_metadata(&mut change.groups, &gone, (unit, is_directory))?;
            }
            free_mapping(&mut change.groups, &gone, number, (kind, is_shared))?;
        }
        end = first;
        if end <= blocks.start {
            break;
        }
    }
    fork.store(edit)?;
    edit.refresh(geometry)?;
    Ok(outcome)
}

/// Pieces of metadata that are about to be freed must not be replayed. Of those of a directory that lie in several
/// extents, the log has each block by itself.
fn forget_metadata(
    groups: &mut Groups,
    gone: &Mapping,
    (unit, is_directory): (u64, bool),
) -> Result<()> {
    let block_bits = groups.geometry().block_bits;
    let mut at = 0;
    while at < gone.count {
        let next = (gone.offset.0 + at + 1).next_multiple_of(unit) - gone.offset.0;
        let blocks = at..next.min(gone.count);
        at = blocks.end;
        let mut step = blocks.end - blocks.start;
        if is_directory && step < unit {
            withhold_parts(groups, FsBlock(gone.start + blocks.start), step)?;
            step = 1;
        }
        let bytes = u32::try_from(step << block_bits);
        let Some(bytes) = bytes.ok().filter(|len| len.is_power_of_two()) else {
            continue;
        };
        for skipped in blocks.step_by(usize::try_from(step).unwrap_or(usize::MAX)) {
            let place = groups.geometry().byte_offset(FsBlock(gone.start + skipped));
            groups.blocks_mut().forget(place, bytes);
        }
    }
    Ok(())
}

/// Withholds blocks that held parts of directory blocks and are about to be freed. What the log has of parts is replayed
/// over all that came to their blocks, whatever its LSN, and a cancel item is lost where that is logged under the same key.
pub fn withhold_parts(groups: &mut Groups, first: FsBlock, count: u64) -> Result<()> {
    let (ag, start) = groups.geometry().split(first);
    let count = u32::try_from(count).unwrap_or(u32::MAX);
    groups.withhold(Claim { ag, start, count })
}

/// The blocks of a piece of metadata in a fork; `None` for contents.
fn metadata_unit(inode: &Inode, kind: ForkKind, geometry: &Geometry) -> Option<u64> {
    match (kind, inode.kind) {
        (ForkKind::Attr, _) => Some(1),
        (ForkKind::Data, FileKind::Directory) => {
            Some(u64::from(geometry.dir_block_bytes()) >> geometry.block_bits)
        }
        // Each extent of a target is one.
        (ForkKind::Data, FileKind::Symlink) => Some(METADATA_BLOCKS_MAX),
        (ForkKind::Data, _) => None,
    }
}
