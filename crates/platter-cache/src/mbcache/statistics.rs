//! What a cache of shared blocks did, for measuring.

use std::iter::Sum;
use std::ops::AddAssign;

/// Counts since the cache was made.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Entries that are there now.
    pub entries: u64,
    /// Searches that began with a block to share.
    pub hits: u64,
    /// Searches that found none.
    pub misses: u64,
    /// Entries added.
    pub inserts: u64,
    /// Entries taken out because their block was freed or rewritten.
    pub deletes: u64,
    /// Entries dropped because there were too many.
    pub reclaimed: u64,
}

impl AddAssign for Statistics {
    fn add_assign(&mut self, other: Self) {
        self.entries += other.entries;
        self.hits += other.hits;
        self.misses += other.misses;
        self.inserts += other.inserts;
        self.deletes += other.deletes;
        self.reclaimed += other.reclaimed;
    }
}

impl Sum for Statistics {
    fn sum<I: Iterator<Item = Self>>(all: I) -> Self {
        all.fold(Self::default(), |mut sum, one| {
            sum += one;
            sum
        })
    }
}
