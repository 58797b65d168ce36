//! The metadata block cache (mbcache): finds a block by its contents, so that many files can share it.
//!
//! Its results are hints. A caller that finds an [`EntryRef`] reads the block and compares it, and
//! checks again under the block's own lock whether it may be shared: a lost entry costs space, never
//! correctness.
//!
//! The rules between threads that share a block and those that free or rewrite it:
//! - A thread that frees a block, or rewrites it in place, first removes its entry with
//!   [`MbCache::delete_or_get`]. While another thread uses the entry, that returns
//!   [`Removal::InUse`]: then the block stays unchanged until [`EntryRef::wait_unused`] returns, called
//!   without any lock that the other thread needs, and everything is checked again.
//! - An entry is reusable exactly as long as the block can take one more reference. That changes only
//!   under the block's own lock.
//! - A thread holds at most one entry, and none while it waits for another: otherwise two threads
//!   could deadlock.

#[cfg(any(test, feature = "bench"))]
mod design;
#[cfg(not(any(test, feature = "bench")))]
mod clock;
mod statistics;
mod shard;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::MemoryBudget;
use crate::hash::spread;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
#[cfg(not(any(test, feature = "bench")))]
use clock as design;
use design::{Link, Queues};
use shard::Shard;

pub use design::Design;
pub use statistics::Statistics;

/// Number of shards, each with its own lock and CLOCK hand. A power of two.
const SHARDS: usize = 16;
/// Fraction of the entries that a background shrink drops when there are too many.
const SHRINK_SHARE: usize = 16;
/// Number of entries that an insertion drops when there are twice too many.
const SHRINK_AT_ONCE: usize = 64;
/// Maximum number of entries of a cache, whatever the budget: sixteen for each of 1024 hash chains,
/// as in Linux.
const LIMIT_MAX: usize = 16 << 10;
/// Memory charged for an entry in bytes: itself, its slot, and its index entry.
const ENTRY_BYTES: usize = 96;
/// Fraction of the budget that a cache may use.
const BUDGET_SHARE: u64 = 64;

const REUSABLE: u8 = 1 << 0;
const REFERENCED: u8 = 1 << 1;
const AWAITED: u8 = 1 << 2;

/// Number of passes of the CLOCK hand before a shrink gives up: one clears the bits, one drops
/// entries.
const SWEEPS_MAX: usize = 2;

/// The contents of a block, as far as they are known without reading it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The hash stored by the format. Equal blocks have equal keys.
    pub key: u32,
    /// A hash of the whole contents: if it differs, the block need not be read.
    pub contents: u64,
}

/// Blocks by their contents; see the [module](self).
///
/// # Invariants
/// - A pair of key and value exists at most once.
/// - An entry is removed only while it has no users; removal from the table and freeing are one
///   step.
/// - [`len`](Self::len) is the number of entries in the table; the budget is charged for all of
///   them.
pub struct MbCache {
    shards: [CachePadded<Shard>; SHARDS],
    design: Design,
    queues: Option<Arc<Queues>>,
    limit: usize,
    budget: Arc<MemoryBudget>,
}

crate::layout!(pub(crate) LAYOUT: MbCache {
    ReadOnly: design, queues, limit, budget;
    Hot: shards;
});

/// An entry for one block.
#[derive(Debug)]
struct Entry {
    fingerprint: Fingerprint,
    value: u64,
    /// Number of entries added to its shard before. The youngest is suggested first.
    age: u64,
    /// Its position in a list, if the policy has one.
    link: Option<Link>,
    /// Independent flags: each bit is set and cleared by its own atomic operation.
    flags: AtomicU8,
    /// Number of users. Grows only under the shard's lock.
    users: AtomicU32,
}

/// The entry was not added because the pair exists.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the block is in the cache already")]
pub struct Exists;

/// Result of removing an entry.
#[derive(Debug)]
#[must_use = "a block whose entry is in use must not be freed or rewritten"]
pub enum Removal<'c> {
    /// It is not in the table any more.
    Deleted,
    /// Another thread uses it and may be about to share the block.
    InUse(EntryRef<'c>),
}

/// A reference to an entry, which stays until this is dropped.
pub struct EntryRef<'c> {
    shard: &'c Shard,
    entry: Arc<Entry>,
}

impl MbCache {
    /// Creates a cache limited to a sixty-fourth of `budget`, and to 16,384 entries.
    #[must_use]
    pub fn new(design: Design, budget: Arc<MemoryBudget>) -> Self {
        let bytes = budget.limit_bytes() / BUDGET_SHARE;
        let entries = usize::try_from(bytes).unwrap_or(usize::MAX) / ENTRY_BYTES;
        Self::with_limit(design, entries.min(LIMIT_MAX), budget)
    }

    /// Creates a cache of about `limit` entries, charged to `budget`.
    #[must_use]
    pub fn with_limit(design: Design, limit: usize, budget: Arc<MemoryBudget>) -> Self {
        let queues = Queues::new(design, SHARDS).map(Arc::new);
        let shard = |number| CachePadded::new(Shard::new(number, queues.clone()));
        Self {
            shards: std::array::from_fn(shard),
            design,
            limit: limit.max(1),
            queues,
            budget,
        }
    }

    /// Adds the block `value`, which may be shared if `reusable`.
    ///
    /// With twice too many entries it first drops some that were not used lately.
    pub fn create(
        &self,
        fingerprint: Fingerprint,
        value: u64,
        reusable: bool,
    ) -> Result<(), Exists> {
        let number = self.number(fingerprint.key);
        let shard = &self.shards[number];
        let parts = self.parts();
        let len = if parts == 1 { self.len() } else { shard.len() };
        if len >= 2 * self.limit.div_ceil(parts) {
            self.shrink_part(number, SHRINK_AT_ONCE.div_ceil(parts));
        }
        // Before the shard is locked: the charge may evict from other caches.
        let charge = self.budget.charge_beyond(ENTRY_BYTES as u64);
        shard.insert(fingerprint, value, reusable, charge)
    }

    /// Returns the first block to share for these contents: the one added last.
    #[must_use]
    pub fn find_first(&self, fingerprint: Fingerprint) -> Option<EntryRef<'_>> {
        self.shard(fingerprint.key).find_first(fingerprint)
    }

    /// Whether the block has an entry.
    #[must_use]
    pub fn contains(&self, key: u32, value: u64) -> bool {
        self.shard(key).contains(key, value)
    }

    /// Returns the entry of one block.
    #[must_use]
    pub fn get(&self, key: u32, value: u64) -> Option<EntryRef<'_>> {
        self.shard(key).get(key, value)
    }

    /// Removes the entry of a block that is about to be freed or rewritten in place.
    pub fn delete_or_get(&self, key: u32, value: u64) -> Removal<'_> {
        self.shard(key).delete_or_get(key, value)
    }

    /// Drops a fraction of the entries not used since the last pass, if there are too many. Returns
    /// how many. Meant for a background thread.
    pub fn shrink(&self) -> usize {
        let parts = self.parts();
        let limit = self.limit.div_ceil(parts);
        let is_too_large = |&number: &usize| match parts {
            1 => self.len() >= limit,
            _ => self.shards[number].len() >= limit,
        };
        let too_large = (0..parts).filter(is_too_large);
        let shrink = |number| self.shrink_part(number, limit.div_ceil(SHRINK_SHARE));
        too_large.map(shrink).sum()
    }

    /// Returns the number of independently ordered parts.
    fn parts(&self) -> usize {
        self.queues.as_ref().map_or(SHARDS, |queues| queues.len())
    }

    /// Drops up to `count` entries of a part.
    fn shrink_part(&self, number: usize, count: usize) -> usize {
        let Some(queues) = &self.queues else {
            return self.shards[number].shrink(count);
        };
        let mut dropped = 0;
        for _ in 0..self.len() * SWEEPS_MAX {
            let Some(place) = queues.next_to_go(number).filter(|_| dropped < count) else {
                break;
            };
            dropped += usize::from(self.shards[place.shard].drop_unused(place.slot));
        }
        dropped
    }

    /// Returns the counters.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shards.iter().map(|shard| shard.statistics()).sum()
    }

    /// Returns the number of entries.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether the cache is empty.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: u32) -> &Shard {
        &self.shards[self.number(key)]
    }

    /// Returns the shard of a key.
    fn number(&self, key: u32) -> usize {
        if self.design.is_one_shard() {
            return 0;
        }
        // The table uses the bits at both ends of the hash, the shard those in the middle.
        (spread(key.into()) >> 32) as usize % SHARDS
    }
}

impl fmt::Debug for MbCache {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("MbCache")
            .field("len", &self.len())
            .finish_non_exhaustive()
    }
}

impl Entry {
    fn is_reusable(&self) -> bool {
        self.flags.load(Ordering::Acquire) & REUSABLE != 0
    }

    /// Returns and clears the referenced bit.
    fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}

impl<'c> EntryRef<'c> {
    /// Returns the next block to share for the same contents: an older one, so that the iteration
    /// ends although other threads add entries.
    #[must_use]
    pub fn find_next(self) -> Option<Self> {
        let shard: &'c Shard = self.shard;
        shard.find_older(&self.entry)
    }

    /// Returns the contents that it was found by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.entry.fingerprint
    }

    /// Returns the location of the block.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.entry.value
    }

    /// Whether the block can take one more reference. Stable only under the block's lock.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.entry.is_reusable()
    }

    /// Sets whether the block can take one more reference. Called under the block's lock.
    pub fn set_reusable(&self, reusable: bool) {
        let flags = &self.entry.flags;
        if reusable {
            flags.fetch_or(REUSABLE, Ordering::Release);
        } else {
            flags.fetch_and(!REUSABLE, Ordering::Release);
        }
    }

    /// Sets the referenced bit, which gives the entry a second chance.
    pub fn touch(&self) {
        self.shard.touch(&self.entry);
    }

    /// Releases the entry and waits until it has no users. The caller holds no lock that they may
    /// need.
    pub fn wait_unused(self) {
        let (shard, entry) = (self.shard, Arc::clone(&self.entry));
        drop(self);
        shard.wait_unused(&entry);
    }
}

impl Drop for EntryRef<'_> {
    fn drop(&mut self) {
        // Ordered against `wait_unused`, which sets its flag and then reads the count.
        self.entry.users.fetch_sub(1, Ordering::SeqCst);
        if self.entry.flags.load(Ordering::SeqCst) & AWAITED != 0 {
            self.shard.notify();
        }
    }
}

impl fmt::Debug for EntryRef<'_> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.entry.fmt(out)
    }
}
