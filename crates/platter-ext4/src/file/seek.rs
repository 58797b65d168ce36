//! `SEEK_DATA` and `SEEK_HOLE`: what was never written is a hole, whether it takes space or not.

use platter_vfs::writing::RangeSet;
use platter_vfs::{Condition, Result, SeekTarget};

use super::{Contents, RunBudget};
use crate::mapping::{Backing, Run};
use crate::ondisk::{FileBlock, InodeFlags};

impl Contents<'_> {
    /// The first byte of data, or of a hole, at or after `offset`. What is `pending` in the cache is
    /// data, and the file ends at `size` with it. The end of the file counts as a hole.
    ///
    /// # Errors
    /// `NoSuchAddress` at or beyond the end of the file, or where no data follows.
    pub fn seek(
        &self,
        offset: u64,
        target: SeekTarget,
        size: u64,
        pending: &RangeSet<u32>,
    ) -> Result<u64> {
        if offset >= size {
            return Err(Condition::NoSuchAddress.into());
        }
        let nothing = || match target {
            SeekTarget::Data => Err(Condition::NoSuchAddress.into()),
            SeekTarget::Hole => Ok(size),
        };
        if self.inode.flags.contains(InodeFlags::INLINE_DATA) {
            let end = self.inline_end()?.min(size);
            return match target {
                SeekTarget::Data if offset < end => Ok(offset),
                SeekTarget::Data => nothing(),
                SeekTarget::Hole => Ok(end.max(offset)),
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
            let Some(run) = run else {
                return match target {
                    SeekTarget::Data => nothing(),
                    SeekTarget::Hole => Ok(at),
                };
            };
            let (is_data, count) = match run.backing {
                Backing::Written(_) => (true, run.count),
                Backing::Hole | Backing::Unwritten(_) => pending_part(&run, pending),
            };
            if is_data == (target == SeekTarget::Data) {
                return Ok(at);
            }
            at = (u64::from(run.first.0) + u64::from(count)) << bits;
            if count < run.count {
                budget.give_back(&run, count);
            }
        }
        nothing()
    }
}

/// Whether the first blocks of a run without contents on the device are pending in the cache, and how
/// many.
fn pending_part(run: &Run, pending: &RangeSet<u32>) -> (bool, u32) {
    let first = run.first.0;
    let Some(found) = pending.next(first) else {
        return (false, run.count);
    };
    let is_pending = found.start == first;
    let end = if is_pending { found.end } else { found.start };
    (is_pending, run.count.min(end - first))
}
