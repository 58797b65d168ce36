//! Exact per-thread costs of operations: descents from the head, nodes allocated.

use std::cell::Cell;

/// Counters of this thread, for all arrays. Costs are differences of two of these.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Counts {
    /// Descents from the head of an array.
    pub walks: u64,
    /// Nodes allocated from the thread's magazine or the heap.
    pub nodes: u64,
}

impl Counts {
    /// Returns the thread's current counters.
    #[must_use]
    pub fn now() -> Self {
        COUNTS.with(Cell::get)
    }

    /// Returns the difference to `earlier`.
    #[must_use]
    pub fn since(self, earlier: Self) -> Self {
        Self {
            walks: self.walks - earlier.walks,
            nodes: self.nodes - earlier.nodes,
        }
    }
}

thread_local! {
    static COUNTS: Cell<Counts> = const { Cell::new(Counts { walks: 0, nodes: 0 }) };
}

pub(super) fn walk() {
    COUNTS.with(|cell| {
        let mut counts = cell.get();
        counts.walks += 1;
        cell.set(counts);
    });
}

pub(super) fn node_taken() {
    COUNTS.with(|cell| {
        let mut counts = cell.get();
        counts.nodes += 1;
        cell.set(counts);
    });
}
