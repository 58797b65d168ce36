//! Blocks beyond the end of a file.

use std::sync::atomic::Ordering;

use platter_vfs::Result;

use super::super::Node;
use crate::inode::{self, STORE_CREDITS};
use crate::mapping::Progress;
use crate::ondisk::FileBlock;
use crate::orphan::ORPHAN_CREDITS;

impl Node {
    /// Whether there is an inode to store a smaller size in, and a transaction for it.
    pub(super) fn prepare_shorter(&self) -> Result<()> {
        let volume = self.volume();
        inode::read_slot(volume, self.number)?;
        let credits = self.core.read().map.step_credits() + STORE_CREDITS;
        drop(volume.begin(credits.saturating_add(ORPHAN_CREDITS))?);
        Ok(())
    }

    /// Makes `size` the size, and takes the blocks from `end` on out of the map. While that takes more
    /// than one handle, the inode is among the orphans. It stays there where blocks could not be freed:
    /// the file has its new size then, and the next mount tries again.
    pub(super) fn remove_behind(&self, size: u64, end: FileBlock) -> Result<()> {
        let (volume, register) = (self.volume(), self.tree.register()?);
        let now = self.tree.clock.now();
        let mut before = FileBlock::MAX;
        self.in_steps(ORPHAN_CREDITS, |handle, core, space| {
            core.inode.size_bytes = size;
            self.data.file.truncate(size);
            core.inode.modified = now;
            core.inode.changed = now;
            let (map, mut change) = core.map_change(volume, &**space, handle);
            let removed = map.remove(&mut change, end..before);
            let is_done = matches!(removed, Ok(Progress::Done));
            self.data.is_cut_left.store(!is_done, Ordering::Release);
            if is_done {
                // One without names stays an orphan.
                if core.inode.links > 0 {
                    register.remove(volume, handle, self.number)?;
                }
            } else {
                register.add(volume, handle, self.number)?;
            }
            if let Progress::More(next) = removed? {
                before = next;
            }
            core.forget_delayed(volume, space, end..FileBlock::MAX);
            Ok(is_done)
        })
    }
}
