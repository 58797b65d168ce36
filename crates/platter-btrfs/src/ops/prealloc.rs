//! Space that is allocated before it is written.

use std::ops::Range;
use std::sync::atomic::Ordering;

use platter_vfs::file::FileBlocks;
use platter_vfs::{Condition, Result};

use super::file_extents::EXTENT_CREDITS;
use super::state::{Purpose, SECTOR_BYTES};
use super::{BtrfsInode, file_extents};
use crate::file::{Backing, Runs};
use crate::ondisk::file_extent::{Compression, ExtentPlace, FileExtent, FileExtentKind};
use crate::ondisk::inode_item::InodeFlags;
use crate::txn::{data_extents, space};

/// The most bytes of an extent that is preallocated.
const EXTENT_BYTES_MAX: u64 = 128 << 20;

/// Allocates what of a range of whole sectors is a hole, or nothing.
pub(super) fn allocate(inode: &BtrfsInode, range: Range<u64>) -> Result<()> {
    let holes = parts(inode, &range, |backing| matches!(backing, Backing::Hole))?;
    let bytes = holes.iter().map(|hole| hole.end - hole.start).sum();
    let writing = inode.fs.transactions()?;
    if bytes == 0 {
        return Ok(());
    }
    let tree = inode.tree_id();
    let kept = inode.kept_data_bytes.swap(0, Ordering::AcqRel);
    if kept < bytes {
        let reserved = space::reserve_data(writing, tree, bytes - kept);
        reserved.inspect_err(|_| space::release_reserved_data(writing, tree, kept))?;
    }
    let mut reserved = bytes.max(kept);
    let mut done = Vec::new();
    let filled = holes.into_iter().try_for_each(|hole| {
        let mut at = hole.start;
        while at < hole.end {
            let len_bytes = preallocate_some(inode, at..hole.end)?;
            space::release_reserved_data(writing, tree, len_bytes);
            reserved -= len_bytes;
            done.push(at..at + len_bytes);
            at += len_bytes;
        }
        Ok(())
    });
    space::release_reserved_data(writing, tree, reserved);
    filled.inspect_err(|_| {
        for range in done {
            // What cannot be taken back stays allocated.
            let _ = file_extents::drop_range(inode, range, |_| {});
        }
    })
}

/// Has `zero` make a range of a file zero, of which all is allocated in the end. Space for what is not preallocated is
/// reserved before any of it changes.
///
/// # Errors
/// `ENOSPC`, `EDQUOT`; those of `zero`.
pub(super) fn with_kept_data(
    inode: &BtrfsInode,
    range: &Range<u64>,
    zero: impl FnOnce() -> Result<()>,
) -> Result<()> {
    let is_possible = inode.can_change() && range.end <= inode.size_bytes_max();
    let Some(writing) = inode.fs.writing().filter(|_| is_possible) else {
        return zero();
    };
    let end = range.end.checked_next_multiple_of(SECTOR_BYTES);
    let sectors = range.start - range.start % SECTOR_BYTES..end.unwrap_or(range.end);
    let is_missing = |backing: &Backing| !matches!(backing, Backing::Prealloc(_));
    let missing = parts(inode, &sectors, is_missing)?;
    let bytes = missing.iter().map(|part| part.end - part.start).sum();
    if bytes == 0 {
        return zero();
    }
    let tree = inode.tree_id();
    let mut reserved = space::reserve_data(writing, tree, bytes);
    if inode.fs.leaves_more_when_written_back(&reserved, tree) {
        reserved = space::reserve_data(writing, tree, bytes);
    }
    reserved?;
    let before = inode.kept_data_bytes.swap(bytes, Ordering::AcqRel);
    space::release_reserved_data(writing, tree, before);
    let done = zero();
    let left = inode.kept_data_bytes.swap(0, Ordering::AcqRel);
    space::release_reserved_data(writing, tree, left);
    done
}

/// Frees what whole sectors of a range have beyond the end of the file, as the kernel's btrfs does. No lock is held.
///
/// # Errors
/// `InvalidArgument` for a range without bytes; else those of changing the file.
pub(super) fn free_beyond_end(inode: &BtrfsInode, range: &Range<u64>) -> Result<()> {
    inode.check_write()?;
    if range.is_empty() {
        return Err(Condition::InvalidArgument.into());
    }
    let _lock = inode.order.write();
    if inode.is_append_only() || range.end > inode.size_bytes_max() {
        return Ok(());
    }
    let start = inode.data.size_bytes().max(range.start);
    let sectors = start.next_multiple_of(SECTOR_BYTES)..range.end - range.end % SECTOR_BYTES;
    if parts(inode, &sectors, |backing| backing.place().is_some())?.is_empty() {
        return Ok(());
    }
    {
        let _alone = inode.data.mapping.write();
        file_extents::drop_range(inode, sectors, |_| {})?;
    }
    inode.touch()
}

/// Allocates as much of a hole as there is in one piece. Returns how long that is.
fn preallocate_some(inode: &BtrfsInode, hole: Range<u64>) -> Result<u64> {
    let wanted = (hole.end - hole.start).min(EXTENT_BYTES_MAX);
    inode.change(EXTENT_CREDITS, Purpose::Update, |handle, item| {
        let (logical, len_bytes) = data_extents::allocate_part(handle, wanted)?;
        let extents = inode.extents_in(handle);
        // A hole may have an item.
        extents.drop_range(hole.start..hole.start + len_bytes, usize::MAX)?;
        let extent = FileExtent {
            generation: handle.generation(),
            ram_bytes: len_bytes,
            compression: Compression::None,
            file_bytes: len_bytes,
            kind: FileExtentKind::Prealloc(ExtentPlace {
                logical,
                disk_bytes: len_bytes,
                offset: 0,
            }),
        };
        extents.insert(hole.start, &extent, true)?;
        let end = item.size_bytes.next_multiple_of(SECTOR_BYTES);
        extents.fill_holes(end..hole.start.max(end))?;
        item.flags.insert(InodeFlags::PREALLOC);
        item.allocated_bytes = item.allocated_bytes.saturating_add(len_bytes);
        Ok(len_bytes)
    })
}

/// The parts of a range that have contents.
pub(super) fn written(inode: &BtrfsInode, range: &Range<u64>) -> Result<Vec<Range<u64>>> {
    parts(inode, range, |backing| {
        matches!(backing, Backing::Data { .. })
    })
}

/// The parts of a range that are backed in a way.
fn parts(
    inode: &BtrfsInode,
    range: &Range<u64>,
    is_one: impl Fn(&Backing) -> bool,
) -> Result<Vec<Range<u64>>> {
    let mut found: Vec<Range<u64>> = Vec::new();
    let mut runs = Runs::new(inode.context(), inode.tree(), inode.id.number);
    let mut at = range.start;
    while at < range.end {
        let run = runs.at(at)?;
        let end = run.file.end.min(range.end);
        if is_one(&run.backing) {
            match found.last_mut().filter(|last| last.end == at) {
                Some(last) => last.end = end,
                None => found.push(at..end),
            }
        }
        at = end;
    }
    Ok(found)
}
