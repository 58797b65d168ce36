//! One writer at a time for each block, where it changes a copy of it. A block whose version is not
//! shared is changed under the lock of the table.

use crossbeam_utils::CachePadded;

use super::key::Key;
use crate::sync::{Mutex, MutexGuard, rank};

const LOCKS: usize = 64;

/// Locks by block; different blocks may share one.
#[derive(Debug)]
pub(super) struct Turns {
    /// The turns to change a block; a thread has one.
    locks: [CachePadded<Mutex<(), { rank(10, 4) }>>; LOCKS],
}

/// The right to change a copy of a block, and to put it in its place.
pub(super) type Turn<'t> = MutexGuard<'t, ()>;

impl Default for Turns {
    fn default() -> Self {
        Self {
            locks: std::array::from_fn(|_| CachePadded::new(Mutex::new(()))),
        }
    }
}

impl Turns {
    /// Waits for the turn to change a block. A thread has one at a time.
    pub(super) fn take(&self, key: Key) -> Turn<'_> {
        self.locks[usize::try_from(key.number() % LOCKS as u64).unwrap_or_default()].lock()
    }

    /// Waits until no thread has the turn of a block.
    pub(super) fn wait(&self, key: Key) {
        drop(self.take(key));
    }
}
