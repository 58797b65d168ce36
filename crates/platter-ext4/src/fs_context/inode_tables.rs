//! Where the inode tables of groups begin, once that is known: every inode that is read or stored asks.

use std::sync::atomic::{AtomicU64, Ordering};

use crate::ondisk::{BlockNr, GroupNr};

/// Of more groups nothing is kept: 128 TiB of them at the usual size.
const GROUPS_MAX: u32 = 1 << 20;

/// The first blocks of inode tables, as far as descriptors were read: they do not change in a mount.
#[derive(Debug)]
pub struct InodeTables {
    /// Zero where it is not known: no table begins with the first block.
    starts: Box<[AtomicU64]>,
}

impl InodeTables {
    /// Of so many groups, unless those are too many to keep.
    #[must_use]
    pub fn new(groups_count: u32) -> Self {
        let kept = if groups_count > GROUPS_MAX {
            0
        } else {
            groups_count
        };
        Self {
            starts: (0..kept).map(|_| AtomicU64::default()).collect(),
        }
    }

    /// Where the table of a group begins, if that is known.
    #[must_use]
    pub fn get(&self, group: GroupNr) -> Option<BlockNr> {
        let start = self.starts.get(group.0 as usize)?;
        let start = start.load(Ordering::Relaxed);
        (start != 0).then_some(BlockNr(start))
    }

    /// Records the start of the table from a validated descriptor.
    pub fn note(&self, group: GroupNr, table: BlockNr) {
        if let Some(start) = self.starts.get(group.0 as usize) {
            start.store(table.0, Ordering::Relaxed);
        }
    }
}
