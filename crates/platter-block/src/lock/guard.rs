//! Locks that are held.

use std::fmt;
use std::ops::{Deref, DerefMut};

use super::order::Held;

/// A lock that is held.
pub struct Guard<G> {
    pub(super) guard: G,
    pub(super) held: Held,
}

/// A [`Mutex`](super::Mutex) that is held.
pub type MutexGuard<'a, T> = Guard<parking_lot::MutexGuard<'a, T>>;
/// A part of what a held [`Mutex`](super::Mutex) guards.
pub type MappedMutexGuard<'a, T> = Guard<parking_lot::MappedMutexGuard<'a, T>>;
/// A [`RwLock`](super::RwLock) that is held shared.
pub type RwLockReadGuard<'a, T> = Guard<parking_lot::RwLockReadGuard<'a, T>>;
/// A [`RwLock`](super::RwLock) that is held exclusively.
pub type RwLockWriteGuard<'a, T> = Guard<parking_lot::RwLockWriteGuard<'a, T>>;

impl<'a, T> MutexGuard<'a, T> {
    /// The same lock, held for a part of what it guards, if there is one; else it is given up.
    pub fn try_map<U>(
        this: Self,
        part: impl FnOnce(&mut T) -> Option<&mut U>,
    ) -> Option<MappedMutexGuard<'a, U>> {
        let guard = parking_lot::MutexGuard::try_map(this.guard, part).ok()?;
        Some(Guard {
            guard,
            held: this.held,
        })
    }

    /// Calls `action` without the lock.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock that comes after this one, which it takes again.
    #[track_caller]
    pub fn unlocked<R>(this: &mut Self, action: impl FnOnce() -> R) -> R {
        let held = &this.held;
        held.assert_last();
        parking_lot::MutexGuard::unlocked(&mut this.guard, || held.suspended(action))
    }

    /// The same lock, held for a part of what it guards.
    pub fn map<U>(this: Self, part: impl FnOnce(&mut T) -> &mut U) -> MappedMutexGuard<'a, U> {
        let guard = parking_lot::MutexGuard::map(this.guard, part);
        Guard {
            guard,
            held: this.held,
        }
    }
}

impl<'a, T> RwLockWriteGuard<'a, T> {
    /// The same lock, held shared from now on.
    #[must_use]
    pub fn downgrade(this: Self) -> RwLockReadGuard<'a, T> {
        let guard = parking_lot::RwLockWriteGuard::downgrade(this.guard);
        Guard {
            guard,
            held: this.held,
        }
    }
}

impl<G: Deref> Deref for Guard<G> {
    type Target = G::Target;

    #[inline]
    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Guard<G> {
    #[inline]
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<G: fmt::Debug> fmt::Debug for Guard<G> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(out)
    }
}
