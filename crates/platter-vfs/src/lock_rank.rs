//! Locks with a rank, taken in one order only. Debug builds panic where the order is broken, before
//! a schedule comes that deadlocks. Callers that need several locks of one rank at once have an order of
//! their own among them, and number them as they take them.
//!
//! The table of all ranks is in `ARCHITECTURE.md`; those below are the ones at and above this crate.
//! Locks of the caches and devices come after all of them, and call nothing up here.

use std::fmt;
use std::ops::{Deref, DerefMut};

use parking_lot::{Condvar, Mutex, MutexGuard, RwLock, RwLockReadGuard, RwLockWriteGuard};

/// The place of a lock in the order. While a lock is held, only ones further down may be taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockRank {
    /// The numbers a FUSE session gives to inodes.
    NodeNumbers,
    /// A part of a FUSE session's node table.
    NodeTable,
    /// What orders the operations on one inode: changes of a directory's names, of a file's size.
    InodeOrder,
    /// A part of an inode cache.
    InodeCache,
    /// A part of a dentry cache.
    Dentries,
    /// The state of one inode, or of a whole small filesystem.
    InodeState,
}

/// A mutex with a rank.
pub struct RankedMutex<T> {
    rank: LockRank,
    inner: Mutex<T>,
}

/// A readers-writer lock with a rank.
pub struct RankedRwLock<T> {
    rank: LockRank,
    inner: RwLock<T>,
}

/// A held lock of some kind.
pub struct Ranked<G> {
    guard: G,
    _held: Held,
}

/// What a held [`RankedMutex`] is.
pub type RankedMutexGuard<'a, T> = Ranked<MutexGuard<'a, T>>;

impl<T> RankedMutex<T> {
    /// A mutex of this rank.
    pub const fn new(rank: LockRank, value: T) -> Self {
        let inner = Mutex::new(value);
        Self { rank, inner }
    }

    /// Takes the lock.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank or one further down.
    #[track_caller]
    pub fn lock(&self) -> RankedMutexGuard<'_, T> {
        // The order is checked first, so that a wrong one panics also where it would deadlock.
        let held = Held::new(self.rank);
        let guard = self.inner.lock();
        Ranked { guard, _held: held }
    }
}

impl<T> RankedRwLock<T> {
    /// A lock of this rank.
    pub const fn new(rank: LockRank, value: T) -> Self {
        let inner = RwLock::new(value);
        Self { rank, inner }
    }

    /// Takes the lock among readers.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank or one further down: reading twice
    /// deadlocks too, as soon as a writer waits in between.
    #[track_caller]
    pub fn read(&self) -> Ranked<RwLockReadGuard<'_, T>> {
        self.read_nth(0)
    }

    /// As [`read`](Self::read), as number `nth` of several locks of this rank. The caller ensures
    /// that all threads that take several of them do so in one order.
    ///
    /// # Panics
    /// In debug builds, when the thread holds a lock of this rank with the same number or a higher
    /// one, or a lock further down.
    #[track_caller]
    pub fn read_nth(&self, nth: u8) -> Ranked<RwLockReadGuard<'_, T>> {
        let held = Held::nth(self.rank, nth);
        let guard = self.inner.read();
        Ranked { guard, _held: held }
    }

    /// Takes the lock alone.
    ///
    /// # Panics
    /// As [`read`](Self::read).
    #[track_caller]
    pub fn write(&self) -> Ranked<RwLockWriteGuard<'_, T>> {
        self.write_nth(0)
    }

    /// As [`write`](Self::write), as number `nth` of several locks of this rank; see
    /// [`read_nth`](Self::read_nth).
    #[track_caller]
    pub fn write_nth(&self, nth: u8) -> Ranked<RwLockWriteGuard<'_, T>> {
        let held = Held::nth(self.rank, nth);
        let guard = self.inner.write();
        Ranked { guard, _held: held }
    }
}

impl<T> Ranked<MutexGuard<'_, T>> {
    /// Releases the lock until `condvar` is notified; may also wake spuriously.
    pub fn wait(&mut self, condvar: &Condvar) {
        condvar.wait(&mut self.guard);
    }
}

impl<G: Deref> Deref for Ranked<G> {
    type Target = G::Target;

    fn deref(&self) -> &G::Target {
        &self.guard
    }
}

impl<G: DerefMut> DerefMut for Ranked<G> {
    fn deref_mut(&mut self) -> &mut G::Target {
        &mut self.guard
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedMutex<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(out)
    }
}

impl<T: fmt::Debug> fmt::Debug for RankedRwLock<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.inner.fmt(out)
    }
}

impl<G: fmt::Debug> fmt::Debug for Ranked<G> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.guard.fmt(out)
    }
}

#[cfg(debug_assertions)]
mod order {
    use std::cell::RefCell;

    use super::LockRank;

    /// A rank, and which of several locks of that rank it is.
    type Place = (LockRank, u8);

    thread_local! {
        /// What this thread holds, in the order it was taken.
        static HELD: RefCell<Vec<Place>> = const { RefCell::new(Vec::new()) };
    }

    /// One entry of [`HELD`], as long as it lives.
    pub(super) struct Held(Place);

    impl Held {
        #[track_caller]
        pub(super) fn new(rank: LockRank) -> Self {
            Self::nth(rank, 0)
        }

        #[track_caller]
        pub(super) fn nth(rank: LockRank, nth: u8) -> Self {
            let place = (rank, nth);
            let lowest = HELD.with_borrow(|held| held.iter().max().copied());
            if let Some(lowest) = lowest {
                assert!(
                    lowest < place,
                    "{rank:?} is taken while {:?} is held",
                    lowest.0
                );
            }
            HELD.with_borrow_mut(|held| held.push(place));
            Self(place)
        }
    }

    impl Drop for Held {
        fn drop(&mut self) {
            HELD.with_borrow_mut(|held| {
                let place = held.iter().rposition(|&place| place == self.0);
                held.remove(place.expect("a lock is given up by the thread that took it"));
            });
        }
    }
}

#[cfg(not(debug_assertions))]
mod order {
    use super::LockRank;

    pub(super) struct Held;

    impl Held {
        pub(super) fn new(_: LockRank) -> Self {
            Self
        }

        pub(super) fn nth(_: LockRank, _: u8) -> Self {
            Self
        }
    }
}

use order::Held;

#[cfg(test)]
mod tests {
    use std::panic::catch_unwind;
    use std::sync::Arc;

    use super::*;

    fn two() -> (RankedMutex<i32>, RankedRwLock<i32>) {
        let upper = RankedMutex::new(LockRank::InodeCache, 1);
        let lower = RankedRwLock::new(LockRank::InodeState, 2);
        (upper, lower)
    }

    #[test]
    fn locks_are_taken_downwards() {
        let (upper, lower) = two();
        let mut first = upper.lock();
        *first += *lower.read();
        *lower.write() += 1;
        drop(first);
        let below = lower.read();
        drop(below);
        assert_eq!((*upper.lock(), *lower.read()), (3, 3));
    }

    #[test]
    #[cfg(debug_assertions)]
    fn taking_one_upwards_panics() {
        let (upper, lower) = two();
        let _held = lower.read();
        let panic = catch_unwind(std::panic::AssertUnwindSafe(|| drop(upper.lock())));
        let message = panic.unwrap_err().downcast::<String>().unwrap();
        assert_eq!(*message, "InodeCache is taken while InodeState is held");
    }

    #[test]
    #[cfg(debug_assertions)]
    fn taking_two_of_one_rank_panics() {
        let (first, second) = (two().0, two().0);
        let held = first.lock();
        assert!(catch_unwind(std::panic::AssertUnwindSafe(|| drop(second.lock()))).is_err());
        drop(held);
        drop(second.lock());
    }

    #[test]
    fn several_of_one_rank_are_taken_in_the_order_of_their_numbers() {
        let (first, second) = (two().1, two().1);
        let _first = first.write();
        let held = second.write_nth(1);
        drop(held);
        let _second = second.read_nth(2);
        #[cfg(debug_assertions)]
        {
            let third = two().1;
            let wrong = catch_unwind(std::panic::AssertUnwindSafe(|| drop(third.read_nth(1))));
            assert!(wrong.is_err());
        }
    }

    #[test]
    fn waiting_gives_the_lock_up() {
        let pair = Arc::new((two().0, Condvar::new()));
        let other = Arc::clone(&pair);
        let notifier = std::thread::Builder::new().spawn(move || {
            *other.0.lock() = 7;
            other.1.notify_all();
        });
        let mut guard = pair.0.lock();
        while *guard != 7 {
            guard.wait(&pair.1);
        }
        drop(guard);
        notifier.unwrap().join().unwrap();
    }
}
