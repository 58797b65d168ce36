//! Locks with a rank, which are taken in one order only: `ARCHITECTURE.md` has the table. Builds with debug
//! assertions panic where the order is broken, before a schedule comes that deadlocks; in other builds these
//! are the locks of `parking_lot`, and of their size.
//!
//! The rank is a part of the type, `Mutex<T, { rank(8, 1) }>`. Without one a lock is a [`LEAF`]: no other lock
//! is taken while it is held. Callers that need several locks of one rank at once have an order of their own
//! among them, and number them as they take them.

#[cfg(debug_assertions)]
mod order;
#[cfg(not(debug_assertions))]
#[path = "unordered.rs"]
mod order;
mod guard;
mod condvar;
#[cfg(test)]
mod tests;

use std::fmt;

use order::Held;

pub use condvar::Condvar;
pub use guard::{Guard, MappedMutexGuard, MutexGuard, RwLockReadGuard, RwLockWriteGuard};

/// The rank of locks with which no other lock is taken.
pub const LEAF: u16 = u16::MAX;

/// A place in the order of locks: while a lock is held, only ones with higher ranks may be taken.
///
/// # Panics
/// For more than 4,094 ranks or 15 steps: at compile time, as a rank is part of a type.
#[must_use]
pub const fn rank(rank: u16, step: u16) -> u16 {
    assert!(rank < LEAF / STEPS && step < STEPS, "ranks have less steps");
    rank * STEPS + step
}

/// More than a rank has steps.
const STEPS: u16 = 16;

/// A mutex with a rank.
#[derive(Default)]
pub struct Mutex<T, const RANK: u16 = LEAF>(parking_lot::Mutex<T>);

/// A readers-writer lock with a rank.
#[derive(Default)]
pub struct RwLock<T, const RANK: u16 = LEAF>(parking_lot::RwLock<T>);

impl<T, const RANK: u16> Mutex<T, RANK> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::Mutex::new(value))
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock of this rank or a higher one.
    #[inline]
    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.lock_nth(0)
    }

    /// [Takes](Self::lock) the lock as number `nth` of several of its rank, which all threads take in one order.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock of this rank with the same number or a higher one,
    /// or a lock of a higher rank.
    #[inline]
    #[track_caller]
    pub fn lock_nth(&self, nth: u64) -> MutexGuard<'_, T> {
        // Before the lock is waited for: a wrong order panics also where it would deadlock.
        let held = Held::ordered(RANK, nth);
        let guard = self.0.lock();
        Guard { guard, held }
    }

    /// Takes the lock if it is free, which never waits and so needs no order.
    #[inline]
    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        let guard = self.0.try_lock()?;
        let held = Held::unordered(RANK);
        Some(Guard { guard, held })
    }

    /// What the lock guards: no other thread has a reference to it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// What the lock guarded.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T, const RANK: u16> RwLock<T, RANK> {
    /// A lock that is free.
    pub const fn new(value: T) -> Self {
        Self(parking_lot::RwLock::new(value))
    }

    /// Takes the lock shared.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock of this rank or a higher one: to take it shared
    /// twice deadlocks too, if another thread waits in between.
    #[inline]
    #[track_caller]
    pub fn read(&self) -> RwLockReadGuard<'_, T> {
        self.read_nth(0)
    }

    /// [Takes](Self::read) the lock shared as number `nth` of several of its rank, which all threads take in one
    /// order.
    ///
    /// # Panics
    /// As [`Mutex::lock_nth`].
    #[inline]
    #[track_caller]
    pub fn read_nth(&self, nth: u64) -> RwLockReadGuard<'_, T> {
        let held = Held::ordered(RANK, nth);
        let guard = self.0.read();
        Guard { guard, held }
    }

    /// Takes the lock shared, also where this thread holds it shared already, or another of its rank: a thread
    /// that waits for it exclusively does not come first.
    ///
    /// # Panics
    /// With debug assertions, where the thread holds a lock of a higher rank.
    #[inline]
    #[track_caller]
    pub fn read_recursive(&self) -> RwLockReadGuard<'_, T> {
        let held = Held::again(RANK);
        let guard = self.0.read_recursive();
        Guard { guard, held }
    }

    /// Takes the lock shared if no thread holds it exclusively or waits to.
    #[inline]
    #[track_caller]
    pub fn try_read(&self) -> Option<RwLockReadGuard<'_, T>> {
        let guard = self.0.try_read()?;
        let held = Held::unordered(RANK);
        Some(Guard { guard, held })
    }

    /// Takes the lock exclusively.
    ///
    /// # Panics
    /// As [`Mutex::lock`].
    #[inline]
    #[track_caller]
    pub fn write(&self) -> RwLockWriteGuard<'_, T> {
        self.write_nth(0)
    }

    /// [Takes](Self::write) the lock exclusively as number `nth` of several of its rank, which all threads take
    /// in one order.
    ///
    /// # Panics
    /// As [`Mutex::lock_nth`].
    #[inline]
    #[track_caller]
    pub fn write_nth(&self, nth: u64) -> RwLockWriteGuard<'_, T> {
        let held = Held::ordered(RANK, nth);
        let guard = self.0.write();
        Guard { guard, held }
    }

    /// Takes the lock exclusively if it is free.
    #[inline]
    #[track_caller]
    pub fn try_write(&self) -> Option<RwLockWriteGuard<'_, T>> {
        let guard = self.0.try_write()?;
        let held = Held::unordered(RANK);
        Some(Guard { guard, held })
    }

    /// What the lock guards: no other thread has a reference to it.
    #[inline]
    pub fn get_mut(&mut self) -> &mut T {
        self.0.get_mut()
    }

    /// What the lock guarded.
    #[inline]
    pub fn into_inner(self) -> T {
        self.0.into_inner()
    }
}

impl<T: fmt::Debug, const RANK: u16> fmt::Debug for Mutex<T, RANK> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}

impl<T: fmt::Debug, const RANK: u16> fmt::Debug for RwLock<T, RANK> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(out)
    }
}
