//! Locks of tree blocks, many blocks to one lock.

use platter_block::lock::{Mutex, MutexGuard, rank};

use crate::ondisk::LogicalAddr;

const COUNT: usize = 16;

/// Their place among trees: after those that share a block, before the extent tree, which has its references.
const SHARED_BLOCK: u64 = 1;

/// Locks by address. A thread holds one at a time.
#[derive(Debug, Default)]
pub(super) struct StripedLocks([Mutex<(), { rank(9, 1) }>; COUNT]);

impl StripedLocks {
    /// Locks a block, and others with it.
    pub(super) fn lock(&self, block: LogicalAddr) -> MutexGuard<'_, ()> {
        // Blocks are 4 to 64 KiB apart.
        let mixed = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let index = usize::try_from(mixed).unwrap_or(0) % COUNT;
        self.0[index].lock_nth(SHARED_BLOCK)
    }
}
