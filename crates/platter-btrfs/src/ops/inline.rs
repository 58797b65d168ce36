//! Contents in the item of a file extent: they get there at writeback, and leave before the file becomes long.

use std::io::{IoSlice, IoSliceMut};
use std::sync::atomic::{AtomicBool, Ordering};

use platter_vfs::file::{FileBlocks, Request};
use platter_vfs::{Condition, Result};

use super::BtrfsInode;
use super::state::SECTOR_BYTES;
use crate::file::{Backing, Runs};
use crate::ondisk::TreeId;
use crate::txn::{WriteContext, space};

/// Whether contents may be in the item.
#[derive(Debug, Default)]
pub(super) struct InlineRule {
    /// Nothing is in the item, nor gets there. Changed with the placement locked.
    goes_long: AtomicBool,
    /// The write that is in progress leaves the file short. The inode lock is held exclusively.
    is_short: AtomicBool,
}

impl InlineRule {
    pub(super) fn goes_long(&self) -> bool {
        self.goes_long.load(Ordering::Acquire)
    }

    pub(super) fn set_goes_long(&self, goes_long: bool) {
        self.goes_long.store(goes_long, Ordering::Release);
    }

    pub(super) fn set_short(&self, is_short: bool) {
        self.is_short.store(is_short, Ordering::Relaxed);
    }

    pub(super) fn take_short(&self) -> bool {
        self.is_short.swap(false, Ordering::Relaxed)
    }
}

/// Moves what is in the item to an extent, and lets nothing get there until the file is truncated. Space for a sector of
/// the subvolume comes from `reserve`.
pub(super) fn move_to_extent(
    inode: &BtrfsInode,
    reserve: fn(&WriteContext, TreeId, u64) -> Result<()>,
) -> Result<()> {
    if inode.inline.goes_long() {
        return Ok(());
    }
    let _mapping = inode.data.mapping.read();
    let mut placement = inode.data.placement.lock();
    let run = Runs::new(inode.context(), inode.tree(), inode.id.number).at(0)?;
    let is_inline = matches!(run.backing, Backing::Inline { .. });
    if !is_inline {
        inode.inline.set_goes_long(true);
        return Ok(());
    }
    if run.file.end > SECTOR_BYTES {
        return Err(Condition::NotSupported.into());
    }
    let writing = inode.fs.transactions()?;
    let mut bytes = vec![0; usize::try_from(SECTOR_BYTES).unwrap_or(0)];
    inode
        .contents()
        .fill(0, &mut [IoSliceMut::new(&mut bytes)])?;
    reserve(writing, inode.tree_id(), 1)?;
    let was_dirty = inode.state.read().delayed.contains(0);
    let bufs = [IoSlice::new(&bytes)];
    let data = Request {
        offset: 0,
        end: SECTOR_BYTES,
        bufs: &bufs,
    };
    inode.inline.set_goes_long(true);
    let moved = FileBlocks::allocate(inode, 0..1, &data, &mut placement).and_then(|mut new| {
        let moved = inode
            .write_device(new.address.0, &bufs)
            .and_then(|()| inode.map_written(&mut new, 0, None));
        if moved.is_err() {
            inode.give_back(new)?;
        }
        moved
    });
    if moved.is_err() {
        inode.inline.set_goes_long(false);
    }
    if was_dirty && moved.is_ok() {
        // The page is written again: what was reserved here is for it.
        inode.state.write().delayed.insert(0..1);
    } else {
        space::release_delayed(writing, inode.tree_id(), 1);
    }
    moved
}
