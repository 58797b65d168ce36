//! Locks of tree blocks, many blocks to one lock.

use parking_lot::{Mutex, MutexGuard};

use crate::ondisk::LogicalAddr;

const COUNT: usize = 16;

/// Locks by address. A thread holds one at a time.
// Lock rank 10.
#[derive(Debug, Default)]
pub(super) struct StripedLocks([Mutex<()>; COUNT]);

impl StripedLocks {
    /// Locks a block, and others with it.
    pub(super) fn lock(&self, block: LogicalAddr) -> MutexGuard<'_, ()> {
        // Blocks are 4 to 64 KiB apart.
        let mixed = block.0.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 60;
        let index = usize::try_from(mixed).unwrap_or(0) % COUNT;
        self.0[index].lock()
    }
}
