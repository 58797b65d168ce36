//! The way into the running transaction and out of it, without the lock of the log: who is inside and
//! what they may still add is one word.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crate::ondisk::jbd2::Sequence;

/// Blocks of the transaction and credits of its handles, together.
const BLOCKS: u64 = u32::MAX as u64;
/// One handle. There are fewer than 2^30.
const HANDLE: u64 = 1 << 32;
const HANDLES: u64 = ((1 << 30) - 1) << 32;
/// Somebody waits for room, and is to be rung when a handle ends.
const AWAITED: u64 = 1 << 62;
/// Nobody comes in: the transaction closes, or nothing is begun any more.
const SHUT: u64 = 1 << 63;

/// Counts the handles of the running transaction, and the blocks that it has or may get.
///
/// # Invariants
/// - Handles come in and go at any time. All else is done under the lock of the log: to resize, to shut
///   and to open, to begin another transaction, and to ring who waits.
/// - All orders of the word's changes agree, as of any one atomic. Who waits has set `SHUT` or
///   `AWAITED` before looking at the count under the lock; so a handle that ends is either not in
///   that count, or sees the mark, takes the lock, and rings after the wait has begun.
/// - Each change of the word releases, and all but the first of a transaction acquire: who finds the
///   last handle gone sees what all did, and who comes in sees the transaction that it was opened
///   with.
#[derive(Debug)]
pub(super) struct Gate {
    word: AtomicU64,
    /// The running transaction. It stays the same as long as anybody is inside.
    sequence: AtomicU32,
    /// Handles begun since the mount; of those begun concurrently, some are not counted.
    begun: AtomicU32,
}

/// Who was refused for want of room found so much inside.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) handles: u32,
}

impl Gate {
    pub(super) fn new(first: Sequence) -> Self {
        Self {
            word: AtomicU64::new(0),
            sequence: AtomicU32::new(first.0),
            begun: AtomicU32::new(0),
        }
    }

    /// Comes in with so many credits, if the gate is open and the transaction then has at most
    /// `blocks_max`. Gives the transaction.
    pub(super) fn enter(&self, credits: u32, blocks_max: u32) -> Option<Sequence> {
        self.try_change(|word| Some(grown(word, credits, blocks_max)? + HANDLE))
            .then(|| self.entered())
    }

    /// The same, for who has the lock and found the gate open; who is refused is rung when a handle ends
    /// after this moment.
    pub(super) fn enter_or_await(
        &self,
        credits: u32,
        blocks_max: u32,
    ) -> Result<Sequence, Refused> {
        let mut refused = None;
        self.try_change(|word| {
            if let Some(word) = grown(word, credits, blocks_max) {
                refused = None;
                return Some(word + HANDLE);
            }
            refused = Some(Refused {
                handles: handles(word),
            });
            Some(word | AWAITED)
        });
        refused.map_or_else(|| Ok(self.entered()), Err)
    }

    /// Reserves more for a handle, under the conditions of [`enter`](Self::enter).
    pub(super) fn extend(&self, credits: u32, blocks_max: u32) -> bool {
        self.try_change(|word| grown(word, credits, blocks_max))
    }

    /// Goes out with the credits that are left. Gives whether somebody is to be rung.
    pub(super) fn leave(&self, credits: u32) -> bool {
        let parting = HANDLE + u64::from(credits);
        let before = self.word.fetch_sub(parting, Ordering::AcqRel);
        debug_assert!(handles(before) > 0, "who goes out has come in");
        debug_assert!(before & BLOCKS >= u64::from(credits));
        let is_drained = before & SHUT != 0 && handles(before) == 1;
        is_drained || before & AWAITED != 0
    }

    /// What were `from` blocks and credits are `to` now.
    pub(super) fn resize(&self, from: u32, to: u32) {
        if to > from {
            self.word.fetch_add(u64::from(to - from), Ordering::AcqRel);
        } else if to < from {
            self.word.fetch_sub(u64::from(from - to), Ordering::AcqRel);
        }
    }

    /// How many are inside.
    pub(super) fn handles(&self) -> u32 {
        handles(self.word.load(Ordering::Acquire))
    }

    /// Lets nobody in. The last one who leaves rings.
    pub(super) fn shut(&self) {
        self.word.fetch_or(SHUT, Ordering::AcqRel);
    }

    /// Lets handles in again.
    pub(super) fn open(&self) {
        self.word.fetch_and(!SHUT, Ordering::AcqRel);
    }

    /// Whoever waits for room is about to look again.
    pub(super) fn note_ring(&self) {
        self.word.fetch_and(!AWAITED, Ordering::AcqRel);
    }

    /// Begins the next transaction, which has nothing yet, and opens the gate unless it `stays_shut`. It
    /// is shut, and nobody inside.
    pub(super) fn renew(&self, next: Sequence, stays_shut: bool) {
        debug_assert_eq!(self.handles(), 0);
        self.sequence.store(next.0, Ordering::Relaxed);
        let word = if stays_shut { SHUT } else { 0 };
        self.word.store(word, Ordering::Release);
    }

    /// What is inside and what may come, in blocks.
    #[cfg(test)]
    pub(super) fn blocks(&self) -> u32 {
        u32::try_from(self.word.load(Ordering::Acquire) & BLOCKS).unwrap()
    }

    /// A count that differs from an earlier one if handles were begun in between; it is not exact.
    pub(super) fn begun(&self) -> u32 {
        self.begun.load(Ordering::Relaxed)
    }

    /// Counts a handle that came in, and returns its transaction.
    fn entered(&self) -> Sequence {
        // Not one atomic step: two concurrent handles may count as one, and the count stays cheap.
        let begun = self.begun.load(Ordering::Relaxed);
        self.begun.store(begun.wrapping_add(1), Ordering::Relaxed);
        self.sequence()
    }

    /// The running transaction, for who is inside.
    fn sequence(&self) -> Sequence {
        Sequence(self.sequence.load(Ordering::Relaxed))
    }

    fn try_change(&self, change: impl FnMut(u64) -> Option<u64>) -> bool {
        let changed = self
            .word
            .fetch_update(Ordering::AcqRel, Ordering::Acquire, change);
        changed.is_ok()
    }
}

/// The word with so many credits more, if there is room and the gate is open.
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

    #[test]
    fn room_is_what_blocks_and_credits_leave() {
        let gate = Gate::new(Sequence(7));
        assert_eq!(gate.enter(10, 15), Some(Sequence(7)));
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
    fn nobody_comes_through_a_shut_gate_and_the_last_inside_rings() {
        let gate = Gate::new(Sequence(7));
        assert!(gate.enter(1, 15).is_some() && gate.enter(1, 15).is_some());
        gate.shut();
        assert!(gate.enter(0, 15).is_none() && !gate.extend(0, 15));
        assert!(!gate.leave(1), "another one is inside");
        assert!(gate.leave(1));
        gate.renew(Sequence(8), true);
        assert_eq!(gate.enter(1, 15), None);
        gate.open();
        assert_eq!(gate.enter(15, 15), Some(Sequence(8)));
        assert!(!gate.leave(15), "nobody waits");
    }

    #[test]
    fn who_waits_for_room_is_rung_by_each_who_leaves() {
        let gate = Gate::new(Sequence(7));
        assert!(gate.enter(9, 15).is_some() && gate.enter(5, 15).is_some());
        assert_eq!(gate.enter_or_await(15, 15), Err(Refused { handles: 2 }));
        assert!(gate.leave(5) && gate.leave(9));
        gate.note_ring();
        assert_eq!(gate.enter_or_await(15, 15), Ok(Sequence(7)));
        assert!(!gate.leave(15));
    }
}
