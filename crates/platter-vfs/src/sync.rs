//! The locks of the caches, in one place: the race tests compile the same sources against a module
//! of this name that a model checker drives.

pub(crate) use crate::lock_rank::{LockRank, RankedMutex as Mutex, RankedMutexGuard as MutexGuard};

/// Waits for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub(crate) struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// Releases the lock until notified; may also wake spuriously.
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        guard.wait(&self.0);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
