//! Waiting for a change of what a lock guards.

use std::time::Duration;

use super::MutexGuard;

/// Waits for a change of what a [`Mutex`](super::Mutex) guards.
#[derive(Debug, Default)]
pub struct Condvar(parking_lot::Condvar);

impl Condvar {
    /// One for which no thread waits.
    #[must_use]
    pub const fn new() -> Self {
        Self(parking_lot::Condvar::new())
    }

    /// Releases the lock until notified; may also wake without a reason.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock that comes after this one, which it takes again.
    #[track_caller]
    pub fn wait<T>(&self, guard: &mut MutexGuard<'_, T>) {
        guard.held.assert_last();
        self.0.wait(&mut guard.guard);
    }

    /// [Waits](Self::wait) no longer than `timeout`. Returns whether that time is over.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_for<T>(&self, guard: &mut MutexGuard<'_, T>, timeout: Duration) -> bool {
        guard.held.assert_last();
        self.0.wait_for(&mut guard.guard, timeout).timed_out()
    }

    /// [Waits](Self::wait) until `condition` is false.
    ///
    /// # Panics
    /// As [`wait`](Self::wait).
    #[track_caller]
    pub fn wait_while<T>(
        &self,
        guard: &mut MutexGuard<'_, T>,
        condition: impl FnMut(&mut T) -> bool,
    ) {
        guard.held.assert_last();
        self.0.wait_while(&mut guard.guard, condition);
    }

    /// Wakes one thread that waits.
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    /// Wakes all threads that wait.
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}
