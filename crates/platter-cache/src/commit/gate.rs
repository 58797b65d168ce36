//! The handles of the running transaction and the blocks that they may add, counted in one atomic word:
//! a handle begins and ends without a lock.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use super::TransactionId;

/// Blocks of the transaction and credits of its handles, together.
const BLOCKS: u64 = u32::MAX as u64;
/// One handle. There are fewer than 2^30.
const HANDLE: u64 = 1 << 32;
const HANDLES: u64 = ((1 << 30) - 1) << 32;
/// A thread waits for space in the transaction, and is to be woken when a handle ends.
const AWAITED: u64 = 1 << 62;
/// No handle begins: the transaction closes, or the filesystem takes no changes any more.
const SHUT: u64 = 1 << 63;

/// Counts the handles of the running transaction, and the blocks that it has or may get.
///
/// # Invariants
/// - Handles begin and end at any time. All else is done under the lock that guards the running
///   transaction: resizing, shutting and opening, beginning the next transaction, and waking threads
///   that wait.
/// - All orders of the word's changes agree, as of any one atomic. A thread that waits has set `SHUT` or
///   `AWAITED` before it looks at the count under the lock; so a handle that ends is either not in
///   that count, or sees the mark, takes the lock, and wakes the thread after the wait has begun.
/// - Each change of the word releases, and all but the first of a transaction acquire: a thread that
///   finds the last handle gone sees what all of them did, and a handle that begins sees the transaction
///   that the gate was opened with.
#[derive(Debug)]
pub struct HandleGate {
    word: AtomicU64,
    /// The running transaction. It stays the same as long as a handle is open.
    transaction: AtomicU64,
    /// Handles begun since the mount; of those begun concurrently, some are not counted.
    begun: AtomicU32,
}

/// A handle could not begin because the transaction is full.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Blocked {
    /// Open handles at that moment.
    pub handles: u32,
}

impl HandleGate {
    /// An open gate whose first transaction is `first`.
    #[must_use]
    pub fn new(first: TransactionId) -> Self {
        Self {
            word: AtomicU64::new(0),
            transaction: AtomicU64::new(first.0),
            begun: AtomicU32::new(0),
        }
    }

    /// Begins a handle with `credits`, if the gate is open and the transaction then has at most
    /// `blocks_max` blocks. Returns the transaction.
    pub fn enter(&self, credits: u32, blocks_max: u32) -> Option<TransactionId> {
        self.try_change(|word| Some(grown(word, credits, blocks_max)? + HANDLE))
            .then(|| self.entered())
    }

    /// As [`enter`](Self::enter), for a caller that holds the lock and found the gate open. A blocked
    /// caller is woken when a handle ends after this moment.
    pub fn enter_or_await(&self, credits: u32, blocks_max: u32) -> Result<TransactionId, Blocked> {
        let mut blocked = None;
        self.try_change(|word| {
            if let Some(word) = grown(word, credits, blocks_max) {
                blocked = None;
                return Some(word + HANDLE);
            }
            blocked = Some(Blocked {
                handles: handles(word),
            });
            Some(word | AWAITED)
        });
        blocked.map_or_else(|| Ok(self.entered()), Err)
    }

    /// Adds credits to a handle, under the conditions of [`enter`](Self::enter).
    pub fn extend(&self, credits: u32, blocks_max: u32) -> bool {
        self.try_change(|word| grown(word, credits, blocks_max))
    }

    /// Ends a handle with the credits that are left. Returns whether waiting threads are to be woken.
    pub fn leave(&self, credits: u32) -> bool {
        let parting = HANDLE + u64::from(credits);
        let before = self.word.fetch_sub(parting, Ordering::AcqRel);
        debug_assert!(handles(before) > 0, "a handle that ends has begun");
        debug_assert!(before & BLOCKS >= u64::from(credits));
        let is_drained = before & SHUT != 0 && handles(before) == 1;
        is_drained || before & AWAITED != 0
    }

    /// Replaces `from` blocks and credits by `to`.
    pub fn resize(&self, from: u32, to: u32) {
        if to > from {
            self.word.fetch_add(u64::from(to - from), Ordering::AcqRel);
        } else if to < from {
            self.word.fetch_sub(u64::from(from - to), Ordering::AcqRel);
        }
    }

    /// The number of open handles.
    pub fn handles(&self) -> u32 {
        handles(self.word.load(Ordering::Acquire))
    }

    /// Lets no handle begin. The last one that ends wakes the waiting threads.
    pub fn shut(&self) {
        self.word.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Whether no handle begins.
    pub fn is_shut(&self) -> bool {
        self.word.load(Ordering::Acquire) & SHUT != 0
    }

    /// Lets handles begin again.
    pub fn open(&self) {
        self.word.fetch_and(!SHUT, Ordering::AcqRel);
    }

    /// Says that the threads that wait for space are woken.
    pub fn note_wake(&self) {
        self.word.fetch_and(!AWAITED, Ordering::AcqRel);
    }

    /// Begins the next transaction, which is empty, and opens the gate unless it `stays_shut`. The gate
    /// is shut, and no handle open.
    pub fn renew(&self, next: TransactionId, stays_shut: bool) {
        debug_assert_eq!(self.handles(), 0);
        self.transaction.store(next.0, Ordering::Relaxed);
        let word = if stays_shut { SHUT } else { 0 };
        self.word.store(word, Ordering::Release);
    }

    /// A count that differs from an earlier one if handles were begun in between; it is not exact.
    pub fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Counts a handle that began, and returns its transaction.
    fn entered(&self) -> TransactionId {
        // Not one atomic step: two concurrent handles may count as one, and the count stays cheap.
        let begun = self.begun.load(Ordering::Relaxed);
        self.begun.store(begun.wrapping_add(1), Ordering::Relaxed);
        TransactionId(self.transaction.load(Ordering::Relaxed))
    }

    /// The blocks of the transaction and the credits of its handles.
    pub fn blocks(&self) -> u32 {
        u32::try_from(self.word.load(Ordering::Acquire) & BLOCKS).unwrap_or(u32::MAX)
    }

    fn try_change(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        let changed = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        changed.is_ok()
    }
}

/// The word with `credits` more, if there is space and the gate is open.
fn grown(word: u64, credits: u32, blocks_max: u32) -> Option<u64> {
    let blocks = (word & BLOCKS) + u64::from(credits);
    (word & SHUT == 0 && blocks <= u64::from(blocks_max)).then(|| word + u64::from(credits))
}

fn handles(word: u64) -> u32 {
    u32::try_from((word & HANDLES) / HANDLE).unwrap_or(u32::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    const FIRST: TransactionId = TransactionId(7);
    const SECOND: TransactionId = TransactionId(8);

    #[test]
    fn blocks_and_credits_share_one_limit() {
        let gate = HandleGate::new(FIRST);
        assert_eq!(gate.enter(10, 15), Some(FIRST));
        assert_eq!(gate.enter(6, 15), None);
        assert!(!gate.extend(6, 15));
        assert!(gate.extend(5, 15));
        assert_eq!((gate.handles(), gate.blocks()), (1, 15));
        gate.resize(1, 3);
        gate.resize(4, 0);
        assert!(!gate.leave(13));
        assert_eq!((gate.handles(), gate.blocks()), (0, 0));
    }

    #[test]
    fn last_handle_inside_a_shut_gate_wakes() {
        let gate = HandleGate::new(FIRST);
        assert!(gate.enter(1, 15).is_some() && gate.enter(1, 15).is_some());
        gate.shut();
        assert!(gate.enter(0, 15).is_none() && !gate.extend(0, 15));
        assert!(!gate.leave(1), "another one is open");
        assert!(gate.leave(1));
        gate.renew(SECOND, true);
        assert_eq!(gate.enter(1, 15), None);
        gate.open();
        assert_eq!(gate.enter(15, 15), Some(SECOND));
        assert!(!gate.leave(15), "no thread waits");
    }

    #[test]
    fn each_handle_that_ends_wakes_a_blocked_one() {
        let gate = HandleGate::new(FIRST);
        assert!(gate.enter(9, 15).is_some() && gate.enter(5, 15).is_some());
        assert_eq!(gate.enter_or_await(15, 15), Err(Blocked { handles: 2 }));
        assert!(gate.leave(5) && gate.leave(9));
        gate.note_wake();
        assert_eq!(gate.enter_or_await(15, 15), Ok(FIRST));
        assert!(!gate.leave(15));
    }
}
