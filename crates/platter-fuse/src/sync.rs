//! The locks of the readers of the device, in one place: the race tests compile the same sources against a module of
//! this name that a model checker drives.

pub(crate) use platter_vfs::lock::{Mutex, MutexGuard};

/// Waits for a change of what a [`Mutex`] guards.
#[derive(Debug, Default)]
pub(crate) struct Condvar(platter_vfs::lock::Condvar);

impl Condvar {
    /// Releases the lock until notified; may also wake without a reason.
    pub(crate) fn wait<'a, T>(&self, mut guard: MutexGuard<'a, T>) -> MutexGuard<'a, T> {
        self.0.wait(&mut guard);
        guard
    }

    pub(crate) fn notify_one(&self) {
        self.0.notify_one();
    }

    pub(crate) fn notify_all(&self) {
        self.0.notify_all();
    }
}
