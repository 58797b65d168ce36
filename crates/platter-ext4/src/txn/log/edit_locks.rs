//! One writer at a time for each metadata block.

use crossbeam_utils::CachePadded;
use parking_lot::{Mutex, MutexGuard};

const LOCKS: usize = 64;

/// Locks by block number; different blocks may share one.
#[derive(Debug)]
pub(super) struct EditLocks {
    locks: [CachePadded<Mutex<()>>; LOCKS],
}

impl Default for EditLocks {
    fn default() -> Self {
        Self {
            locks: std::array::from_fn(|_| CachePadded::new(Mutex::new(()))),
        }
    }
}

impl EditLocks {
    /// Keeps other writers of `block` out. A thread holds one such lock at a time.
    pub(super) fn lock(&self, block: u64) -> MutexGuard<'_, ()> {
        self.locks[usize::try_from(block % LOCKS as u64).unwrap_or_default()].lock()
    }
}
