//! `SEEK_DATA` and `SEEK_HOLE`: what was never written is a hole, whether it takes space or not.

use platter_vfs::{Condition, Result, SeekTarget};

use super::{Contents, RunBudget};
use crate::mapping::Backing;
use crate::ondisk::{FileBlock, InodeFlags};

impl Contents<'_> {
    /// The first byte of data, or of a hole, at or after `offset`. The end of the file counts as a
    /// hole.
    ///
    /// # Errors
    /// `NoSuchAddress` at or beyond the end of the file, or where no data follows.
    pub fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        let size = self.inode.size_bytes;
        if offset >= size {
            return Err(Condition::NoSuchAddress.into());
        }
        let nothing = || match target {
            SeekTarget::Data => Err(Condition::NoSuchAddress.into()),
            SeekTarget::Hole => Ok(size),
        };
        if self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            return match target {
                SeekTarget::Data => Ok(offset),
                SeekTarget::Hole => Ok(size),
            };
        }
        let bits = self.volume.geometry.block_bits;
        let mut budget = RunBudget::new(self.volume.geometry.blocks_count);
        let mut at = offset;
        while at < size {
            // Behind the last block that can be mapped there is a hole.
            let run = match u32::try_from(at >> bits) {
                Ok(block) => Some(self.counted_run(FileBlock(block), &mut budget)?),
                Err(_) => None,
            };
            let is_data = run.is_some_and(|run| matches!(run.backing, Backing::Written(_)));
            if is_data == (target == SeekTarget::Data) {
                return Ok(at);
            }
            let Some(run) = run else {
                return nothing();
            };
            at = (u64::from(run.first.0) + u64::from(run.count)) << bits;
        }
        nothing()
    }
}
