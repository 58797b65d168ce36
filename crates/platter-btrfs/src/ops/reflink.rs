//! Extents that files share: clones, deduplication, and copies that become clones.

use std::ops::Range;
use std::sync::Arc;

use platter_vfs::file::{self, FileBlocks};
use platter_vfs::ranges::Deduped;
use platter_vfs::{Condition, Inode, Result};

use super::BtrfsInode;
use super::file_extents::{DROPPED_MAX, EXTENT_CREDITS};
use super::state::{Purpose, SECTOR_BITS, SECTOR_BYTES, touch_contents};
use crate::file::change::ExtentChange;
use crate::file::{Backing, Runs};
use crate::ondisk::inode_item::InodeFlags;
use crate::txn::Charge;

/// Extents that one handle shares at most.
const SHARED_MAX: usize = 32;

/// Has a file share what `source` has in a range.
pub(super) fn clone(
    inode: &BtrfsInode,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<()> {
    with_both(inode, source, |source| {
        share(inode, source, &range, to, false)
    })
}

/// Shares a range where both files have the same bytes.
pub(super) fn dedupe(
    inode: &BtrfsInode,
    source: &dyn Inode,
    range: Range<u64>,
    to: u64,
) -> Result<Deduped> {
    with_both(inode, source, |source| {
        // What is refused is refused before anything is read.
        shared_blocks(inode, source, &range, to, true)?;
        file::dedupe(inode, source, &range, to, || {
            share(inode, source, &range, to, true)
        })
    })
}

/// Calls `work` with the source, both files locked and written back.
fn with_both<T>(
    inode: &BtrfsInode,
    source: &dyn Inode,
    work: impl FnOnce(&BtrfsInode) -> Result<T>,
) -> Result<T> {
    inode.check_write()?;
    let source: Arc<BtrfsInode> = inode.fs.load(source.id())?.ok_or(Condition::Stale)?;
    source.refuse_without_contents()?;
    file::with_both_locked(inode, &*source, || work(&source))
}

fn shared_blocks(
    inode: &BtrfsInode,
    source: &BtrfsInode,
    range: &Range<u64>,
    to: u64,
    is_dedupe: bool,
) -> Result<Range<u64>> {
    let is_summed = |file: &BtrfsInode| !file.item().flags.contains(InodeFlags::NODATASUM);
    if is_summed(inode) != is_summed(source) {
        return Err(Condition::InvalidArgument.into());
    }
    file::shared_blocks(inode, source, range, to, is_dedupe)
}

/// Shares a range. Both files are locked and written back.
fn share(
    inode: &BtrfsInode,
    source: &BtrfsInode,
    range: &Range<u64>,
    to: u64,
    is_dedupe: bool,
) -> Result<()> {
    let blocks = shared_blocks(inode, source, range, to, is_dedupe)?;
    let new_end = to + (range.end - range.start);
    if new_end > inode.size_bytes_max() {
        return Err(Condition::FileTooLarge.into());
    }
    // What limits of quota groups refuse is refused before anything changes.
    let tree = inode.tree_id();
    let charge = || inode.fs.transactions()?.charge(tree, EXTENT_CREDITS);
    let mut charged = charge();
    if inode.fs.leaves_more_when_written_back(&charged, tree) {
        charged = charge();
    }
    let mut charge = Some(charged?);
    inode.leave_inline()?;
    if new_end > inode.data.size_bytes() {
        file::finish_truncation(inode)?;
    }
    if to > inode.data.size_bytes() {
        file::resize(inode, to)?;
    }
    let mut start = blocks.start;
    while start < blocks.end {
        let run = Runs::new(source.context(), source.tree(), source.id.number).at(start)?;
        if let Backing::Inline { .. } = run.backing {
            // Of a corrupt filesystem, one may be longer than what is reserved.
            let end = run.file.end.min(blocks.end).min(start + SECTOR_BYTES);
            drop(charge.take());
            copy_inline(inode, source, start..end, to + (start - blocks.start))?;
            start = end;
            continue;
        }
        start = share_some(
            inode,
            source,
            start..blocks.end,
            to + (start - blocks.start),
            charge.as_ref(),
        )?;
        charge = None;
    }
    let now = inode.fs.clock.now();
    inode.change(EXTENT_CREDITS, Purpose::Update, |_, item| {
        item.size_bytes = item.size_bytes.max(new_end);
        if !is_dedupe {
            touch_contents(item, now);
        }
        inode.data.extend(new_end);
        Ok(())
    })
}

/// Writes a sector of what the source has in its item.
fn copy_inline(inode: &BtrfsInode, source: &BtrfsInode, range: Range<u64>, to: u64) -> Result<()> {
    let count = range.end.min(source.data.size_bytes()) - range.start;
    let mut bytes = vec![0; usize::try_from(count).unwrap_or_default()];
    source.pages.read_at(source, range.start, &mut bytes)?;
    let first = to >> SECTOR_BITS;
    let reserved = inode.reserve(first..first + 1)?;
    let written = inode.pages.write_at(inode, to, &bytes);
    if written.is_err() {
        for blocks in reserved {
            inode.release(blocks);
        }
    }
    inode.note_dirty();
    written?;
    file::write_back(inode)
}

/// Shares the first extents of a range, none of which is in the item, within the limits of quota groups: with `charge` it
/// has been compared with them. Returns where to go on.
fn share_some(
    inode: &BtrfsInode,
    source: &BtrfsInode,
    range: Range<u64>,
    to: u64,
    charge: Option<&Charge<'_>>,
) -> Result<u64> {
    let alone = inode.data.mapping.write();
    let purpose = match charge {
        Some(_) => Purpose::Update,
        None => Purpose::ChangeNow(inode.tree_id()),
    };
    let next = inode.change(EXTENT_CREDITS, purpose, |handle, item| {
        let from = ExtentChange {
            handle,
            tree: source.tree_id(),
            inode: source.id.number,
        };
        let into = inode.extents_in(handle);
        inode.note_lost_extents(handle);
        // The references come first: an extent of the target must not lose its last one to get it again.
        let shared = from.share(range.clone(), SHARED_MAX, &into, to)?;
        let replaced = to..to + (shared.next - range.start);
        let dropped = into.drop_range(replaced.clone(), DROPPED_MAX)?;
        item.allocated_bytes = item.allocated_bytes.saturating_sub(dropped.bytes);
        // Where the target has more extents, the next handle goes on.
        let end = dropped.next.unwrap_or(replaced.end);
        for (offset, extent) in &shared.extents {
            let inserted = into.insert_shared(*offset, extent, end)?;
            item.allocated_bytes = item.allocated_bytes.saturating_add(inserted);
        }
        into.fill_holes(to..end)?;
        Ok(range.start + (end - to))
    })?;
    drop(alone);
    inode.pages.remove_range(to..to + (next - range.start));
    Ok(next)
}
