//! A transaction that has the log for itself, and may take all of it.

use std::collections::BTreeMap;

use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Result};

use super::{Durability, Log};
use crate::ondisk::jbd2::descriptor::tags_max;

/// How many blocks one transaction can change that has the log for itself.
#[must_use]
pub fn whole_blocks_max(log: &Log) -> usize {
    let Durability::Journal(journaled) = &log.durability else {
        return usize::MAX;
    };
    // A commit block, and one that separates the end from the beginning.
    let capacity = (journaled.len_blocks() as usize).saturating_sub(2);
    let tags = tags_max(journaled.format());
    capacity - capacity.div_ceil(tags.saturating_add(1)).min(capacity)
}

/// Writes whole blocks, all in one transaction, and makes it durable. They are sealed
/// already, and nothing was changed through this log before.
///
/// # Errors
/// `NoSpace` for more than [`whole_blocks_max`], and nothing is written;
/// `ReadOnly` after a failure of the log, and the device's.
pub fn commit_whole(log: &Log, blocks: BTreeMap<u64, Box<[u8]>>) -> Result<()> {
    if blocks.len() > whole_blocks_max(log) {
        return Err(Condition::NoSpace.into());
    }
    for (block, bytes) in blocks {
        log.fs_device.buffers.publish(block, bytes, &Unverified)?;
        log.add(block, false, 0);
    }
    log.commit_all()
}
