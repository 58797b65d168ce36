//! Unwritten blocks that are allocated before anything is written: those that are asked for, and those around what is
//! written where an inode has a hint of its extent size.

use std::ops::Range;

use platter_vfs::file::{Backing, FileBlocks};
use platter_vfs::{Condition, Error, Result};

use super::super::Inode;
use super::blocks::Placement;
use crate::ondisk::{FileBlock, InodeFlags};

impl Inode {
    /// Allocates unwritten blocks where the file has holes, none of which is dirty.
    pub(super) fn fill_holes(&self, blocks: Range<u64>) -> Result<()> {
        let placement = &mut *self.data.placement.lock();
        {
            let mut state = self.state.write();
            let mut holes = Vec::new();
            let mut at = blocks.start;
            while at < blocks.end {
                let run = state.run(self.context(), at)?;
                let run = run.truncated(blocks.end - at);
                at = run.end();
                if run.backing == Backing::Hole {
                    holes.extend(state.delayed.unreserved(run.first..run.end()));
                }
            }
            self.reserve_blocks(&mut state, holes, &[])?;
        }
        let filled = self.fill_unwritten(blocks.clone(), placement);
        if filled.is_err() {
            self.release(blocks);
        }
        filled
    }

    /// Fills the holes around blocks that are to be allocated, to multiples of the extent size that the inode has as
    /// a hint. Without space, no more than what is needed is allocated.
    pub(super) fn follow_hint(&self, blocks: &Range<u64>) -> Result<()> {
        let parts: Vec<Range<u64>> = {
            let state = self.state.read();
            let hint = u64::from(state.inode.extent_size);
            if hint == 0 || !state.inode.flags.contains(InodeFlags::EXTSIZE) {
                return Ok(());
            }
            let start = blocks.start / hint * hint;
            let end = blocks.end.checked_next_multiple_of(hint);
            let end = end.unwrap_or(blocks.end).min(FileBlock::MAX.0);
            // What is dirty gets its blocks when it is written.
            state.delayed.dirty().gaps(start..end).collect()
        };
        for part in parts {
            match self.fill_holes(part) {
                Err(Error::Condition(Condition::NoSpace)) => return Ok(()),
                filled => filled?,
            }
        }
        Ok(())
    }

    fn fill_unwritten(&self, blocks: Range<u64>, placement: &mut Placement) -> Result<()> {
        let mut at = blocks.start;
        while at < blocks.end {
            let run = self.state.read().run(self.context(), at)?;
            let run = run.truncated(blocks.end - at);
            at = run.end();
            if run.backing != Backing::Hole {
                continue;
            }
            let mut claimed = self.claim(&(run.first..run.end()), 0, placement)?;
            if let Err(error) = self.map_claimed(&mut claimed, 0, true) {
                self.give_back(claimed)?;
                return Err(error);
            }
            self.note_placed(placement, &claimed.run);
            at = claimed.run.end();
        }
        Ok(())
    }
}
