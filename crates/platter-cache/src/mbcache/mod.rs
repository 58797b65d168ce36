//! The metadata block cache: from what a block contains to where an equal one lies, so that many
//! files can share it.
//!
//! It only suggests. Whoever finds an [`EntryRef`] reads the block and compares, and under the
//! block's own lock looks once more whether it may be shared: an entry that is lost costs space,
//! never correctness.
//!
//! The rules between those who share a block and those who free or rewrite it:
//! - Whoever frees a block, or rewrites it in place, first takes its entry out with
//!   [`MbCache::delete_or_get`]. While somebody else has the entry in hand that gives
//!   [`Removal::InUse`]: then the block stays as it is until [`EntryRef::wait_unused`] returns, with
//!   no lock held that the other needs, and everything is looked at anew.
//! - An entry is reusable exactly as long as the block can take one more user. That changes only
//!   under the block's own lock.
//! - Nobody has two entries in hand, nor one while waiting for another: two who did would wait for
//!   each other.

mod design;
mod shard;
mod statistics;
#[cfg(test)]
mod tests;

use std::fmt;
use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::MemoryBudget;
use crate::hash::spread;
use crate::sync::{AtomicU8, AtomicU32, Ordering};
use design::{Link, Queues};
use shard::Shard;

pub use design::Design;
pub use statistics::Statistics;

/// Shards, each with a lock and a clock hand of its own. A power of two.
const SHARDS: usize = 16;
/// Of so many entries, one gives way when there are too many.
const SHRINK_SHARE: usize = 16;
/// Entries that whoever adds one drops when there are twice too many.
const SHRINK_AT_ONCE: usize = 64;
/// Entries a cache has at most, were there memory without end: sixteen for each of 1024 chains, as
/// Linux has them.
const LIMIT_MAX: usize = 16 << 10;
/// What an entry takes of the budget: itself, its slot, and its place in the index.
const ENTRY_BYTES: usize = 96;
/// Of so much of the budget, a cache may take one part.
const BUDGET_SHARE: u64 = 64;

const REUSABLE: u8 = 1 << 0;
const REFERENCED: u8 = 1 << 1;
const AWAITED: u8 = 1 << 2;

/// Looks at entries before the sweep gives up: each is passed once with its chance and once without.
const SWEEPS_MAX: usize = 2;

/// What is known of a block's contents before it is read.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Fingerprint {
    /// The hash that the format itself keeps. Equal blocks have equal keys.
    pub key: u32,
    /// A hash of all of the contents: where it differs, the block need not be read.
    pub contents: u64,
}

/// Blocks by their contents; see the [module](self).
///
/// # Invariants
/// - A pair of key and value is there once at most.
/// - An entry leaves only when nobody has it in hand; leaving the table and being freed are one.
/// - [`len`](Self::len) is the number of entries in the table; the budget is charged for all of them.
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

/// One block that was seen.
#[derive(Debug)]
struct Entry {
    fingerprint: Fingerprint,
    value: u64,
    /// How many entries its shard had seen before. The younger is suggested first.
    age: u64,
    /// Where it stands in a queue, in a design that has one.
    link: Option<Link>,
    /// Apart from each other: each bit is set and cleared by an operation of its own.
    flags: AtomicU8,
    /// Who has it in hand. Grows only under the shard's lock.
    users: AtomicU32,
}

/// Why an entry was not added: the pair is there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the block is in the cache already")]
pub struct Exists;

/// What became of an entry that was to be taken out.
#[derive(Debug)]
#[must_use = "a block whose entry is in use must not be freed or rewritten"]
pub enum Removal<'c> {
    /// It is not in the table, and nobody comes by it any more.
    Deleted,
    /// Somebody has it in hand and may be about to share the block.
    InUse(EntryRef<'c>),
}

/// An entry in somebody's hand: it stays until this is dropped.
pub struct EntryRef<'c> {
    shard: &'c Shard,
    entry: Arc<Entry>,
}

impl MbCache {
    /// A cache of about as many entries as have room in a sixty-fourth of `budget`, but not
    /// arbitrarily many.
    #[must_use]
    pub fn new(design: Design, budget: Arc<MemoryBudget>) -> Self {
        let bytes = budget.limit_bytes() / BUDGET_SHARE;
        let entries = usize::try_from(bytes).unwrap_or(usize::MAX) / ENTRY_BYTES;
        Self::with_limit(design, entries.min(LIMIT_MAX), budget)
    }

    /// A cache of about `limit` entries, which `budget` is charged for.
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

    /// Adds the block `value`, which others may share if `reusable`.
    ///
    /// With twice too many entries it first drops some that nobody used lately.
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
        // Before the shard is locked: others may have to give memory back.
        let charge = self.budget.charge_beyond(ENTRY_BYTES as u64);
        shard.insert(fingerprint, value, reusable, charge)
    }

    /// The first block to share for these contents: the one that was added last.
    #[must_use]
    pub fn find_first(&self, fingerprint: Fingerprint) -> Option<EntryRef<'_>> {
        self.shard(fingerprint.key).find_first(fingerprint)
    }

    /// Whether the block has an entry.
    #[must_use]
    pub fn contains(&self, key: u32, value: u64) -> bool {
        self.shard(key).contains(key, value)
    }

    /// The entry of one block.
    #[must_use]
    pub fn get(&self, key: u32, value: u64) -> Option<EntryRef<'_>> {
        self.shard(key).get(key, value)
    }

    /// Takes the entry of a block out that is about to be freed or rewritten in place.
    pub fn delete_or_get(&self, key: u32, value: u64) -> Removal<'_> {
        self.shard(key).delete_or_get(key, value)
    }

    /// Drops a part of the entries that nobody used since their last chance, if there are too many.
    /// Returns how many went. For a thread that has nothing better to do.
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

    /// Of how many parts each knows the order of its entries only.
    fn parts(&self) -> usize {
        self.queues.as_ref().map_or(SHARDS, |queues| queues.len())
    }

    /// Drops up to `count` entries of a part whose turn it is.
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

    /// What it did so far.
    #[must_use]
    pub fn statistics(&self) -> Statistics {
        self.shards.iter().map(|shard| shard.statistics()).sum()
    }

    /// How many entries there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there is no entry.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn shard(&self, key: u32) -> &Shard {
        &self.shards[self.number(key)]
    }

    /// Of the shard that a key belongs to.
    fn number(&self, key: u32) -> usize {
        if self.design.is_one_shard() {
            return 0;
        }
        // The table takes its bits from both ends of the hash, the shard from the middle.
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

    /// Whether it was used since this was last asked.
    fn take_referenced(&self) -> bool {
        self.flags.fetch_and(!REFERENCED, Ordering::Relaxed) & REFERENCED != 0
    }
}

impl<'c> EntryRef<'c> {
    /// The next block to share for the same contents, instead of this one: one that was added before
    /// it, so that going on comes to an end whatever others add.
    #[must_use]
    pub fn find_next(self) -> Option<Self> {
        let shard: &'c Shard = self.shard;
        shard.find_older(&self.entry)
    }

    /// What it was found by.
    #[must_use]
    pub fn fingerprint(&self) -> Fingerprint {
        self.entry.fingerprint
    }

    /// Where the block lies.
    #[must_use]
    pub fn value(&self) -> u64 {
        self.entry.value
    }

    /// Whether the block can take one more user. Certain only under the block's lock.
    #[must_use]
    pub fn is_reusable(&self) -> bool {
        self.entry.is_reusable()
    }

    /// Says whether the block can take one more user. Called under the block's lock.
    pub fn set_reusable(&self, reusable: bool) {
        let flags = &self.entry.flags;
        if reusable {
            flags.fetch_or(REUSABLE, Ordering::Release);
        } else {
            flags.fetch_and(!REUSABLE, Ordering::Release);
        }
    }

    /// Gives the entry a second chance when its turn to be dropped comes.
    pub fn touch(&self) {
        self.shard.touch(&self.entry);
    }

    /// Lets go of the entry and waits until nobody has it in hand. The caller holds no lock that
    /// they may want.
    pub fn wait_unused(self) {
        let (shard, entry) = (self.shard, Arc::clone(&self.entry));
        drop(self);
        shard.wait_unused(&entry);
    }
}

impl Drop for EntryRef<'_> {
    fn drop(&mut self) {
        // Ordered against `wait_unused`, which says that it waits and then looks at the count.
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
