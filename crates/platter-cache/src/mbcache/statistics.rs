//! Counters of an mbcache.

use std::iter::Sum;
use std::ops::AddAssign;

/// Counters since the cache was created.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Statistics {
    /// Current number of entries.
    pub entries: u64,
    /// Lookups that found a block to share.
    pub hits: u64,
    /// Lookups that found none.
    pub misses: u64,
    /// Entries added.
    pub inserts: u64,
    /// Entries removed because their block was freed or rewritten.
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
