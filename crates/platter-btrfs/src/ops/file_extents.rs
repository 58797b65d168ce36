//! File extents of inodes: dropped, and replaced.

use std::ops::Range;

use platter_vfs::Result;

use super::BtrfsInode;
use super::state::SECTOR_BYTES;
use crate::file::Runs;
use crate::ondisk::file_extent::{DiskExtentPlace, DiskFileExtent, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeItem;
use crate::ondisk::leaf::ITEM_BYTES;
use crate::ondisk::leaf_edit;
use crate::txn::{Handle, data_extents};

/// The most sectors of an extent that is written.
pub(super) const EXTENT_SECTORS_MAX: u64 = 1024;
/// Tree blocks that inserting an extent copies, and dropping those that it replaces.
pub(super) const EXTENT_CREDITS: u32 = 64;
/// The most extents that one handle drops.
pub(super) const DROPPED_MAX: usize = 1024;
/// What a file extent takes in its item.
const FILE_EXTENT_BYTES: usize = size_of::<DiskFileExtent>() + size_of::<DiskExtentPlace>();

/// Tree blocks that a handle copies which replaces so many extents by one with so many bytes of checksums, where
/// leaves are half full.
pub(super) fn replacing_credits(inode: &BtrfsInode, replaced: usize, checksum_bytes: usize) -> u32 {
    let half = leaf_edit::capacity(inode.context().superblock.node_bytes) / 2;
    let leaves = |bytes: usize| bytes.div_ceil(half.max(1));
    let extents = replaced.saturating_mul(ITEM_BYTES + FILE_EXTENT_BYTES);
    let more = leaves(extents).saturating_add(leaves(checksum_bytes));
    EXTENT_CREDITS.saturating_add(u32::try_from(more).unwrap_or(u32::MAX))
}

/// Drops the extents of a range, in several handles where there are many. `set` changes the item in each.
pub(super) fn drop_range(
    inode: &BtrfsInode,
    range: Range<u64>,
    set: impl Fn(&mut InodeItem),
) -> Result<()> {
    let mut start = range.start;
    loop {
        let handle = inode.begin_freeing(EXTENT_CREDITS)?;
        let next = inode.change_in(&handle, |handle, item| {
            drop_some(inode, (handle, item), (start..range.end, DROPPED_MAX), &set)
        })?;
        match next {
            Some(next) => start = next,
            None => return Ok(()),
        }
    }
}

/// Where a part of a range ends whose extents one handle drops.
pub(super) fn end_of_step(inode: &BtrfsInode, range: Range<u64>) -> Result<u64> {
    let mut runs = Runs::new(inode.context(), inode.tree(), inode.id.number);
    let mut at = range.start;
    for _ in 0..DROPPED_MAX {
        if at >= range.end {
            break;
        }
        at = runs.at(at)?.file.end;
    }
    Ok(at.clamp(range.start, range.end))
}

/// Drops the extents of parts of a [step](end_of_step), all in the handle that is kept for them: also those that
/// writeback made of them meanwhile.
pub(super) fn drop_step(inode: &BtrfsInode, parts: &[Range<u64>]) -> Result<()> {
    if parts.iter().all(Range::is_empty) {
        inode.release_kept_bytes();
        return Ok(());
    }
    let handle = inode.begin_freeing(EXTENT_CREDITS)?;
    inode.change_in(&handle, |handle, item| {
        for part in parts {
            let all = (part.clone(), usize::MAX);
            drop_some(inode, (handle, &mut *item), all, &|_: &mut InodeItem| {})?;
        }
        Ok(())
    })
}

/// Drops so many extents of a range at most. Returns where the next one begins.
fn drop_some(
    inode: &BtrfsInode,
    (handle, item): (&Handle<'_>, &mut InodeItem),
    (range, count): (Range<u64>, usize),
    set: &impl Fn(&mut InodeItem),
) -> Result<Option<u64>> {
    inode.note_lost_extents(handle);
    let extents = inode.extents_in(handle);
    let dropped = extents.drop_range(range.clone(), count)?;
    item.allocated_bytes = item.allocated_bytes.saturating_sub(dropped.bytes);
    set(item);
    let left = item.size_bytes.next_multiple_of(SECTOR_BYTES);
    let end = dropped.next.unwrap_or(range.end).min(left);
    extents.fill_holes(range.start..end.max(range.start))?;
    Ok(dropped.next)
}

/// Drops all extents of an inode that is to be deleted.
pub(super) fn drop_all(inode: &BtrfsInode) -> Result<()> {
    drop_range(inode, 0..!(SECTOR_BYTES - 1), |item| item.size_bytes = 0)
}

/// Replaces what the file has from `start` on by a new extent.
pub(super) fn replace(
    inode: &BtrfsInode,
    handle: &Handle<'_>,
    item: &mut InodeItem,
    start: u64,
    extent: &FileExtent<'_>,
    checksums: Vec<u8>,
) -> Result<()> {
    if let FileExtentKind::Regular(place) = &extent.kind
        && !checksums.is_empty()
    {
        data_extents::insert_checksums(handle, place.logical, checksums)?;
    }
    let extents = inode.extents_in(handle);
    let dropped = extents.drop_range(start..start + extent.file_bytes, usize::MAX)?;
    extents.insert(start, extent, true)?;
    let kept = item.allocated_bytes.saturating_sub(dropped.bytes);
    item.allocated_bytes = kept.saturating_add(extent.file_bytes);
    Ok(())
}
