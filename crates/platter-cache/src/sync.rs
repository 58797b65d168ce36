//! The locks and atomics of the caches, and how they free memory, in one place: the race tests compile the same sources
//! against a module of this name that a model checker drives.

pub(crate) use platter_block::lock::{
    Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard, rank,
};
pub(crate) use std::sync::atomic::{
    AtomicPtr, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering,
};

/// Frees memory that other threads may have read before.
pub(crate) fn free<T: 'static>(memory: Box<T>) {
    drop(memory);
}

/// Deferred reclamation: what is deferred runs once every pin that began before has ended.
pub(crate) mod epoch {
    pub(crate) use crossbeam_epoch::{Guard, pin};
}

/// Waits for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub(crate) struct Condvar(platter_block::lock::Condvar);

impl Condvar {
    /// Releases the lock until notified; may also wake without a reason.
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
