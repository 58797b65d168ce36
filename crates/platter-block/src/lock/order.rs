//! What each thread holds, in builds with debug assertions.

use std::cell::RefCell;
use std::fmt;
use std::panic::Location;

use super::{LEAF, STEPS};

/// A lock that this thread holds.
#[derive(Clone, Copy)]
struct Taken {
    rank: u16,
    nth: u64,
    at: &'static Location<'static>,
}

impl Taken {
    /// Panics unless the last of what the thread holds, in the order of ranks, is as asked.
    #[track_caller]
    fn assert_after(&self, is_before: impl FnOnce(&Self) -> bool) {
        let last = HELD.try_with(|held| {
            let held = held.borrow();
            let last = held.iter().max_by_key(|held| (held.rank, held.nth));
            last.copied()
        });
        // A second panic would abort, and hide the first.
        if let Ok(Some(last)) = last
            && !std::thread::panicking()
        {
            assert!(is_before(&last), "{self} is locked while {last} is held");
        }
    }
}

impl fmt::Display for Taken {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.rank {
            LEAF => out.write_str("a leaf")?,
            rank => write!(out, "rank {}.{}", rank / STEPS, rank % STEPS)?,
        }
        write!(out, " (number {}, {})", self.nth, self.at)
    }
}

thread_local! {
    /// What this thread holds, in the order it was taken.
    static HELD: RefCell<Vec<Taken>> = const { RefCell::new(Vec::new()) };
}

/// One entry of [`HELD`], as long as it lives.
pub(in crate::lock) struct Held(Taken);

impl Held {
    /// A lock that is waited for.
    #[track_caller]
    pub(in crate::lock) fn ordered(rank: u16, nth: u64) -> Self {
        let at = Location::caller();
        let taken = Taken { rank, nth, at };
        taken.assert_after(|last| (last.rank, last.nth) < (rank, nth));
        Self::push(taken)
    }

    /// A lock taken shared that waits only for a thread that has it exclusively. That no such thread waits for
    /// another lock of the rank is not asserted.
    #[track_caller]
    pub(in crate::lock) fn again(rank: u16) -> Self {
        let at = Location::caller();
        let taken = Taken { rank, nth: 0, at };
        taken.assert_after(|last| last.rank <= rank);
        Self::push(taken)
    }

    /// A lock that was free.
    #[track_caller]
    pub(in crate::lock) fn unordered(rank: u16) -> Self {
        let at = Location::caller();
        Self::push(Taken { rank, nth: 0, at })
    }

    /// Panics if a lock is held that comes after this one.
    #[track_caller]
    pub(in crate::lock) fn assert_last(&self) {
        let own = (self.0.rank, self.0.nth);
        self.0.assert_after(|last| (last.rank, last.nth) <= own);
    }

    fn push(taken: Taken) -> Self {
        // Destructors of other variables of a thread may run after that of this one.
        let _ = HELD.try_with(|held| held.borrow_mut().push(taken));
        Self(taken)
    }

    fn remove(&self) {
        let place = (self.0.rank, self.0.nth);
        let _ = HELD.try_with(|held| {
            let mut held = held.borrow_mut();
            let at = held.iter().rposition(|held| (held.rank, held.nth) == place);
            match at {
                Some(at) => drop(held.remove(at)),
                // A panic in the middle of `suspended`.
                None => assert!(std::thread::panicking(), "{} is not held", self.0),
            }
        });
    }

    /// Calls `action`, during which the lock is not held.
    pub(in crate::lock) fn suspended<R>(&self, action: impl FnOnce() -> R) -> R {
        self.remove();
        let result = action();
        std::mem::forget(Self::push(self.0));
        result
    }
}

impl Drop for Held {
    fn drop(&mut self) {
        self.remove();
    }
}
