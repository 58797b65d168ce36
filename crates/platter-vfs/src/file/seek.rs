//! `SEEK_DATA` and `SEEK_HOLE`: what was never written is a hole, whether it takes space or not.

use super::map::counted_run;
use super::{Backing, FileMap, FileRun, RunBudget};
use crate::{Condition, Result, SeekTarget};

/// The first byte of data, or of a hole, at or after `offset`. Delayed blocks are data, and the file ends at
/// `size` with them. The end of the file counts as a hole.
///
/// # Errors
/// `NoSuchAddress` at or beyond the end of the file, or where no data follows.
pub fn seek<M: FileMap + ?Sized>(
    map: &M,
    offset: u64,
    target: SeekTarget,
    size: u64,
) -> Result<u64> {
    if offset >= size {
        return Err(Condition::NoSuchAddress.into());
    }
    let nothing = || match target {
        SeekTarget::Data => Err(Condition::NoSuchAddress.into()),
        SeekTarget::Hole => Ok(size),
    };
    let bits = map.block_bits();
    let mut budget = RunBudget::new(map.filesystem_blocks());
    let mut at = offset;
    while at < size {
        // After the last block that can be mapped there is a hole.
        let Some(run) = counted_run(map, at >> bits, &mut budget)? else {
            return match target {
                SeekTarget::Data => nothing(),
                SeekTarget::Hole => Ok(at),
            };
        };
        let (is_data, count) = match run.backing {
            Backing::Written(_) => (true, run.count),
            Backing::Hole | Backing::Unwritten(_) => delayed_part(map, &run),
        };
        if is_data == (target == SeekTarget::Data) {
            return Ok(at);
        }
        at = run.first.saturating_add(count) << bits;
        if count < run.count {
            budget.give_back(run.backing == Backing::Hole, run.count - count);
        }
    }
    nothing()
}

/// Whether the first blocks of a run without contents on the device are delayed, and how many.
fn delayed_part<M: FileMap + ?Sized>(map: &M, run: &FileRun) -> (bool, u64) {
    let Some(found) = map.next_delayed(run.first) else {
        return (false, run.count);
    };
    let is_delayed = found.start == run.first;
    let end = if is_delayed { found.end } else { found.start };
    (is_delayed, run.count.min(end - run.first))
}
