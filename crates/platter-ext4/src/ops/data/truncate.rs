//! Blocks beyond the end of a file.

use std::sync::atomic::Ordering;

use platter_vfs::Result;

use super::super::Ext4Inode;
use super::{reserve, steps};
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::Progress;
use crate::ondisk::FileBlock;
use crate::orphan::ORPHAN_CREDITS;

/// Whether there is an inode to store a smaller size in, and a transaction for it.
pub(super) fn prepare(node: &Ext4Inode) -> Result<()> {
    let fs = node.fs();
    inode::read_slot(fs, node.number)?;
    let credits = node.state.read().map.step_credits() + STORE_CREDITS;
    drop(fs.begin(credits.saturating_add(ORPHAN_CREDITS))?);
    Ok(())
}

/// Makes `size` the size, and takes the blocks from `end` on out of the map. While that takes more
/// than one handle, the inode is among the orphans. It stays there where blocks could not be freed:
/// the file has its new size then, and the next mount tries again.
pub(super) fn remove_beyond(node: &Ext4Inode, size: u64, end: FileBlock) -> Result<()> {
    let (fs, register) = (node.fs(), node.sb.register()?);
    let now = node.sb.clock.now();
    let mut before = FileBlock::MAX;
    steps::run(node, ORPHAN_CREDITS, |handle, state, space| {
        state.inode.size_bytes = size;
        node.data.file.truncate(size);
        state.inode.modified = now;
        state.inode.changed = now;
        let (map, mut change) = state.map_change(fs, &**space, handle);
        let removed = map.remove(&mut change, end..before);
        let is_done = matches!(removed, Ok(Progress::Done));
        node.data
            .is_truncation_left
            .store(!is_done, Ordering::Release);
        if is_done {
            // One without names stays an orphan.
            if state.inode.links > 0 {
                register.remove(fs, handle, node.number)?;
            }
        } else {
            register.add(fs, handle, node.number)?;
        }
        if let Progress::More(next) = removed? {
            before = next;
        }
        reserve::forget(state, fs, space, end..FileBlock::MAX);
        Ok(is_done)
    })
}
