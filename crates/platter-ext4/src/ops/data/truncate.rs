//! Blocks beyond the end of a file.

use std::sync::atomic::Ordering;

use platter_vfs::Result;

use super::super::Ext4Inode;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::Progress;
use crate::ondisk::FileBlock;
use crate::orphan::ORPHAN_CREDITS;

impl Ext4Inode {
    /// Whether there is an inode to store a smaller size in, and a transaction for it.
    pub(super) fn prepare_shorter(&self) -> Result<()> {
        let fs = self.fs();
        inode::read_slot(fs, self.number)?;
        let credits = self.state.read().map.step_credits() + STORE_CREDITS;
        drop(fs.begin(credits.saturating_add(ORPHAN_CREDITS))?);
        Ok(())
    }

    /// Makes `size` the size, and takes the blocks from `end` on out of the map. While that takes more
    /// than one handle, the inode is among the orphans. It stays there where blocks could not be freed:
    /// the file has its new size then, and the next mount tries again.
    pub(super) fn remove_beyond(&self, size: u64, end: FileBlock) -> Result<()> {
        let (fs, register) = (self.fs(), self.sb.register()?);
        let now = self.sb.clock.now();
        let mut before = FileBlock::MAX;
        self.in_steps(ORPHAN_CREDITS, |handle, state, space| {
            state.inode.size_bytes = size;
            self.data.file.truncate(size);
            state.inode.modified = now;
            state.inode.changed = now;
            let (map, mut change) = state.map_change(fs, &**space, handle);
            let removed = map.remove(&mut change, end..before);
            let is_done = matches!(removed, Ok(Progress::Done));
            self.data
                .is_truncation_left
                .store(!is_done, Ordering::Release);
            if is_done {
                // One without names stays an orphan.
                if state.inode.links > 0 {
                    register.remove(fs, handle, self.number)?;
                }
            } else {
                register.add(fs, handle, self.number)?;
            }
            if let Progress::More(next) = removed? {
                before = next;
            }
            state.forget_delayed(fs, space, end..FileBlock::MAX);
            Ok(is_done)
        })
    }
}
