//! The memory limit of all caches, and eviction.
//!
//! A cache charges its bytes before it allocates them. A charge that does not fit evicts the
//! coldest entries of *all* caches of the budget; if nothing can be evicted it is refused, and the
//! caller continues without caching.

mod heat;
mod lru;
mod shadow;
mod spare;
#[cfg(test)]
mod tests;

use std::sync::{Arc, Weak};

use crossbeam_utils::CachePadded;

use crate::frame::Arena;
use crate::sync::{AtomicU64, AtomicUsize, Mutex, Ordering, RwLock, rank};
#[cfg(any(test, feature = "bench"))]
use crate::xarray::Insertion;
use crate::xarray::NODE_BYTES;
use lru::{Candidate, Lru};
use shadow::Ages;
use spare::Spare;

pub(crate) use heat::Heat;
pub(crate) use lru::{List, LruId};
pub(crate) use shadow::Shadow;

/// Number of entries that an evictor isolates at a time.
const ISOLATE_COUNT: usize = 32;
/// Bytes evicted beyond the requested ones, so that not every charge evicts.
const RECLAIM_AHEAD_BYTES: u64 = 128 << 10;
/// Maximum number of busy entries that one round of eviction examines; most may be dirty.
const LOOKS_MAX: usize = 512;
/// So many busy entries in a row have unused active entries evicted before further inactive ones.
const STUCK_LOOKS: usize = LOOKS_MAX / 4;
/// Maximum number of recently used entries that one round of eviction examines; they are cold in
/// the next one.
const COOLED_MAX: usize = 8192;
/// The part of the budget whose charges are refused without a scan after one that found nothing
/// evictable; a sixteenth of it if entries were only too recently used.
const UNLOOKED_PART: u64 = 256;
/// The part of the budget, and its maximum in bytes, for free blocks that are kept for reuse.
const SPARE_PART: u64 = 16;
const SPARE_BYTES_MAX: u64 = 8 << 20;
/// Rounds of eviction of a charge while other threads consume what it evicted.
const CHARGE_ATTEMPTS: usize = 8;

/// Outcome of an attempt to evict.
enum Reclaim {
    /// Bytes were freed.
    Freed,
    /// Nothing was freed, but entries were aged and can be evicted next time.
    Cooled,
    /// Nothing was freed: the scanned entries are in use.
    Busy,
}

/// Outcome for an entry that is to be evicted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Verdict {
    /// It was removed from its cache, and this many bytes were freed.
    Evicted(u64),
    /// It was used since it was inserted and belongs on the active list.
    Hot,
    /// It is in use, dirty or being read: not now.
    Busy,
    /// The cache has no such entry any more.
    Gone,
}

/// The size of an index.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub(crate) struct NodeCounts {
    pub(crate) nodes: usize,
    /// Of these, nodes with only shadow entries.
    pub(crate) shadow_nodes: usize,
}

/// A cache whose entries are in the eviction order.
pub(crate) trait Owner: Send + Sync {
    /// Returns whether the entry was used since the last call.
    fn take_heat(&self, key: u64, id: LruId) -> bool;

    /// Evicts the entry if it is unused.
    fn evict(&self, key: u64, id: LruId) -> Verdict;

    /// Drops the shadow entries, if it has any.
    fn drop_shadows(&self) {}
}

/// Identifies an [`Owner`] in the eviction order.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct OwnerId(u32);

#[derive(Default)]
struct Owners {
    slots: Vec<Option<Weak<dyn Owner>>>,
    free: Vec<u32>,
}

/// Usage and counters of the budget, since its creation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct BudgetStats {
    /// Bytes charged.
    pub used_bytes: u64,
    /// Of these, bytes of entries on the active list.
    pub active_bytes: u64,
    /// Of these, bytes of entries on the inactive list.
    pub inactive_bytes: u64,
    /// Entries evicted.
    pub evictions: u64,
    /// Charges refused because nothing could be evicted.
    pub refusals: u64,
    /// Of the bytes charged, those of the nodes that index pages.
    pub node_bytes: u64,
    /// Bytes of pages that are dirty or under writeback.
    pub dirty_bytes: u64,
    /// Refaults: pages read again after their eviction.
    pub refaults: u64,
    /// Of these, pages activated because they refaulted early.
    pub activations: u64,
}

/// The memory limit of the caches that share it, except for free blocks kept for reuse: at most a
/// sixteenth more, and 8 MiB.
pub struct MemoryBudget {
    limit_bytes: u64,
    #[cfg(any(test, feature = "bench"))]
    insertion: Insertion,
    used_bytes: CachePadded<AtomicU64>,
    lru: Lru,
    next_shard: CachePadded<AtomicUsize>,
    next_owner: CachePadded<AtomicUsize>,
    /// Bytes whose charges are refused before the next scan.
    unlooked_bytes: CachePadded<AtomicU64>,
    /// The caches of the budget.
    owners: CachePadded<RwLock<Owners, { rank(14, 1) }>>,
    evictions: CachePadded<AtomicU64>,
    refusals: CachePadded<AtomicU64>,
    ages: CachePadded<Ages>,
    frames: Arc<Arena>,
    /// Free blocks kept for reuse.
    spare_blocks: CachePadded<Mutex<Spare>>,
    node_count: CachePadded<AtomicUsize>,
    /// Nodes with only shadow entries.
    shadow_node_count: CachePadded<AtomicUsize>,
    dirty_bytes: CachePadded<AtomicU64>,
}

crate::layout!(pub(crate) LAYOUT: MemoryBudget {
    ReadOnly: limit_bytes, #[cfg(any(test, feature = "bench"))] insertion, frames;
    Hot: used_bytes, lru, next_shard, next_owner, owners, evictions, refusals, ages, node_count,
        shadow_node_count, dirty_bytes, unlooked_bytes, spare_blocks;
});

impl MemoryBudget {
    /// Creates a budget of `limit_bytes`.
    #[must_use]
    pub fn new(limit_bytes: u64) -> Self {
        Self {
            limit_bytes,
            #[cfg(any(test, feature = "bench"))]
            insertion: Insertion::default(),
            used_bytes: CachePadded::new(AtomicU64::new(0)),
            lru: Lru::default(),
            next_shard: CachePadded::new(AtomicUsize::new(0)),
            next_owner: CachePadded::new(AtomicUsize::new(0)),
            unlooked_bytes: CachePadded::new(AtomicU64::new(0)),
            owners: CachePadded::new(RwLock::new(Owners::default())),
            evictions: CachePadded::new(AtomicU64::new(0)),
            refusals: CachePadded::new(AtomicU64::new(0)),
            ages: CachePadded::new(Ages::default()),
            frames: Arc::new(Arena::new(limit_bytes)),
            spare_blocks: CachePadded::default(),
            node_count: CachePadded::new(AtomicUsize::new(0)),
            shadow_node_count: CachePadded::new(AtomicUsize::new(0)),
            dirty_bytes: CachePadded::new(AtomicU64::new(0)),
        }
    }

    /// Returns the limit in bytes.
    #[must_use]
    pub fn limit_bytes(&self) -> u64 {
        self.limit_bytes
    }

    /// Selects another insertion method for page indexes.
    #[cfg(any(test, feature = "bench"))]
    #[must_use]
    pub fn with_insertion(mut self, insertion: Insertion) -> Self {
        self.insertion = insertion;
        self
    }

    #[cfg(any(test, feature = "bench"))]
    pub(crate) fn insertion(&self) -> Insertion {
        self.insertion
    }

    /// Returns the bytes charged.
    #[must_use]
    pub fn used_bytes(&self) -> u64 {
        self.used_bytes.load(Ordering::Relaxed)
    }

    /// Returns usage and counters.
    #[must_use]
    pub fn stats(&self) -> BudgetStats {
        BudgetStats {
            used_bytes: self.used_bytes(),
            active_bytes: self.lru.bytes(List::Active),
            inactive_bytes: self.lru.bytes(List::Inactive),
            evictions: self.evictions.load(Ordering::Relaxed),
            refusals: self.refusals.load(Ordering::Relaxed),
            node_bytes: (self.node_count.load(Ordering::Relaxed) * NODE_BYTES) as u64,
            dirty_bytes: self.dirty_bytes(),
            refaults: self.ages.refaults(),
            activations: self.ages.activations(),
        }
    }

    /// Returns the bytes of pages that are dirty or under writeback.
    #[must_use]
    pub fn dirty_bytes(&self) -> u64 {
        self.dirty_bytes.load(Ordering::Relaxed)
    }

    /// Returns the number of dirty bytes from which writers are throttled: half of the budget.
    #[must_use]
    pub fn dirty_limit_bytes(&self) -> u64 {
        self.limit_bytes / 2
    }

    /// Charges `bytes`, evicting if necessary; `None` if that does not suffice, or did not a moment
    /// ago.
    ///
    /// Called without any lock of an [`Owner`] held.
    pub(crate) fn charge(self: &Arc<Self>, bytes: u64) -> Option<Charge> {
        for attempt in 0..CHARGE_ATTEMPTS {
            if self.try_add(bytes) {
                return Some(Charge {
                    budget: Arc::clone(self),
                    bytes,
                });
            }
            if bytes > self.limit_bytes || self.goes_unlooked(bytes) {
                break;
            }
            let part = match self.reclaim(bytes) {
                Reclaim::Freed => continue,
                Reclaim::Cooled if attempt == 0 => continue,
                Reclaim::Cooled => 16 * UNLOOKED_PART,
                Reclaim::Busy => UNLOOKED_PART,
            };
            let unlooked = self.limit_bytes / part;
            self.unlooked_bytes.store(unlooked, Ordering::Relaxed);
            break;
        }
        self.refusals.fetch_add(1, Ordering::Relaxed);
        None
    }

    /// Charges `bytes` even beyond the limit: for memory that is required, such as a version of a
    /// block not written yet. Evicts first.
    pub(crate) fn charge_beyond(self: &Arc<Self>, bytes: u64) -> Charge {
        self.charge(bytes).unwrap_or_else(|| {
            if bytes > self.limit_bytes {
                self.reclaim(bytes);
            }
            self.used_bytes.fetch_add(bytes, Ordering::Relaxed);
            Charge {
                budget: Arc::clone(self),
                bytes,
            }
        })
    }

    /// Returns the allocator of page memory.
    pub(crate) fn frames(&self) -> &Arc<Arena> {
        &self.frames
    }

    /// Allocates a block of `len` bytes with unspecified contents.
    pub(crate) fn take_block(&self, len: usize) -> Box<[u8]> {
        let spare = self.spare_blocks.lock().take(len);
        spare.unwrap_or_else(|| vec![0; len].into())
    }

    /// Allocates a block with these contents.
    pub(crate) fn copy_block(&self, bytes: &[u8]) -> Box<[u8]> {
        let spare = self.spare_blocks.lock().take(bytes.len());
        match spare {
            Some(mut block) => {
                block.copy_from_slice(bytes);
                block
            }
            None => bytes.into(),
        }
    }

    /// Keeps a freed block for reuse.
    pub(crate) fn keep_block(&self, block: Box<[u8]>) {
        let bytes_max = (self.limit_bytes / SPARE_PART).min(SPARE_BYTES_MAX);
        self.spare_blocks.lock().keep(block, bytes_max);
    }

    /// Returns the shadow entry of an entry of `bytes` that is being evicted.
    pub(crate) fn shadow(&self, bytes: u64) -> Shadow {
        self.ages.shadow(bytes)
    }

    /// Returns the list for an entry of `bytes` that refaults on `shadow`: active if a smaller
    /// active list would have kept it.
    pub(crate) fn list_after(&self, shadow: Option<Shadow>, bytes: u64) -> List {
        let active_bytes = self.lru.bytes(List::Active);
        match shadow {
            Some(shadow) if self.ages.refault(shadow, bytes, active_bytes) => List::Active,
            Some(_) | None => List::Inactive,
        }
    }

    /// Updates the charge of an index from one size to another, in nodes and nodes with only
    /// shadows. Nodes are charged beyond the limit: pages are evicted at the next charge.
    pub(crate) fn recount_nodes(&self, before: NodeCounts, after: NodeCounts) {
        let bytes = |nodes: usize| (nodes * NODE_BYTES) as u64;
        let relaxed = Ordering::Relaxed;
        self.used_bytes.fetch_add(bytes(after.nodes), relaxed);
        self.used_bytes.fetch_sub(bytes(before.nodes), relaxed);
        self.node_count.fetch_add(after.nodes, relaxed);
        self.node_count.fetch_sub(before.nodes, relaxed);
        self.shadow_node_count
            .fetch_add(after.shadow_nodes, relaxed);
        self.shadow_node_count
            .fetch_sub(before.shadow_nodes, relaxed);
    }

    /// Adds bytes that became dirty.
    pub(crate) fn add_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_add(bytes, Ordering::Relaxed);
    }

    /// Subtracts bytes that are clean again, or dropped.
    pub(crate) fn sub_dirty(&self, bytes: u64) {
        self.dirty_bytes.fetch_sub(bytes, Ordering::Relaxed);
    }

    /// Returns the eviction order.
    pub(crate) fn lru(&self) -> &Lru {
        &self.lru
    }

    /// Registers an owner in the eviction order until the registration is dropped.
    pub(crate) fn register(self: &Arc<Self>, owner: Weak<dyn Owner>) -> Registration {
        let mut owners = self.owners.write();
        let index = owners.free.pop().unwrap_or_else(|| {
            owners.slots.push(None);
            u32::try_from(owners.slots.len() - 1).unwrap_or(u32::MAX)
        });
        owners.slots[index as usize] = Some(owner);
        Registration {
            budget: Arc::clone(self),
            id: OwnerId(index),
        }
    }

    fn owner(&self, id: OwnerId) -> Option<Arc<dyn Owner>> {
        let owners = self.owners.read();
        owners.slots.get(id.0 as usize)?.as_ref()?.upgrade()
    }

    fn try_add(&self, bytes: u64) -> bool {
        let add = |used: u64| {
            let sum = used.checked_add(bytes)?;
            (sum <= self.limit_bytes).then_some(sum)
        };
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.used_bytes.fetch_update(set, fetch, add).is_ok()
    }

    /// Whether a charge is refused without a scan.
    fn goes_unlooked(&self, bytes: u64) -> bool {
        let less = |left: u64| left.checked_sub(bytes);
        let (set, fetch) = (Ordering::Relaxed, Ordering::Relaxed);
        self.unlooked_bytes.fetch_update(set, fetch, less).is_ok()
    }

    /// Evicts at least `wanted` bytes if possible.
    fn reclaim(&self, wanted: u64) -> Reclaim {
        let ahead = RECLAIM_AHEAD_BYTES.min(self.limit_bytes / 16);
        let goal = wanted.saturating_add(ahead);
        // Each entry is scanned at most once per list and pass; if most cannot be evicted, the next
        // charge continues.
        let all = 3 * self.lru.len() + 2 * Lru::SHARDS;
        let (mut looks, mut coolings) = (all.min(LOOKS_MAX), all.min(COOLED_MAX));
        let mut freed = 0;
        // Busy entries in a row: all inactive ones may be dirty while unused ones are active.
        let mut busy = 0;
        let mut batch = Vec::with_capacity(ISOLATE_COUNT);
        while freed < goal && looks > 0 && coolings > 0 {
            let shard = self.next_shard.fetch_add(1, Ordering::Relaxed) % Lru::SHARDS;
            let before = coolings;
            let is_stuck = busy >= STUCK_LOOKS;
            if is_stuck || self.lru.is_active_heavy() {
                self.age_active(shard, is_stuck, &mut batch);
                coolings = coolings.saturating_sub(batch.len());
            }
            batch.clear();
            self.lru
                .isolate(shard, List::Inactive, ISOLATE_COUNT, &mut batch);
            let mut turns = batch.iter();
            while freed < goal
                && let Some(&candidate) = turns.next()
            {
                let verdict = self.evict(candidate);
                busy = if verdict == Verdict::Busy {
                    busy + 1
                } else {
                    0
                };
                match verdict {
                    Verdict::Evicted(bytes) => freed += bytes,
                    Verdict::Hot => coolings = coolings.saturating_sub(1),
                    Verdict::Busy | Verdict::Gone => looks = looks.saturating_sub(1),
                }
            }
            for candidate in turns.rev() {
                self.lru.put_back_oldest(candidate.id, List::Inactive);
            }
            if coolings == before {
                looks = looks.saturating_sub(1);
            }
        }
        self.limit_shadows();
        match (freed, coolings) {
            (1.., _) => Reclaim::Freed,
            (0, 0) => Reclaim::Cooled,
            (0, _) => Reclaim::Busy,
        }
    }

    /// Makes owners drop shadow entries when these use a thirty-second of the budget.
    fn limit_shadows(&self) {
        let limit = usize::try_from(self.limit_bytes / 32).unwrap_or(usize::MAX) / NODE_BYTES;
        let count = || self.shadow_node_count.load(Ordering::Relaxed);
        if count() <= limit {
            return;
        }
        let owners = self.owners.read().slots.len();
        for _ in 0..owners {
            let turn = self.next_owner.fetch_add(1, Ordering::Relaxed) % owners;
            let id = OwnerId(u32::try_from(turn).unwrap_or_default());
            if let Some(owner) = self.owner(id) {
                owner.drop_shadows();
            }
            if count() <= limit / 2 {
                return;
            }
        }
    }

    /// Moves active entries that were not used lately to the inactive list, where they are next if `is_stuck`.
    fn age_active(&self, shard: usize, is_stuck: bool, batch: &mut Vec<Candidate>) {
        batch.clear();
        self.lru.isolate(shard, List::Active, ISOLATE_COUNT, batch);
        if is_stuck {
            // The oldest becomes the oldest of the inactive ones last.
            batch.reverse();
        }
        for candidate in batch {
            let owner = self.owner(candidate.owner);
            if owner.is_some_and(|owner| owner.take_heat(candidate.key, candidate.id)) {
                self.lru.put_back(candidate.id, List::Active);
            } else if is_stuck {
                self.lru.put_back_oldest(candidate.id, List::Inactive);
            } else {
                self.lru.put_back(candidate.id, List::Inactive);
            }
        }
    }

    fn evict(&self, candidate: Candidate) -> Verdict {
        let verdict = self.owner(candidate.owner).map_or(Verdict::Gone, |owner| {
            owner.evict(candidate.key, candidate.id)
        });
        match verdict {
            Verdict::Evicted(_) => {
                self.lru.remove(candidate.id);
                self.evictions.fetch_add(1, Ordering::Relaxed);
            }
            Verdict::Gone => self.lru.remove(candidate.id),
            Verdict::Hot => self.lru.put_back(candidate.id, List::Active),
            Verdict::Busy => self.lru.put_back(candidate.id, List::Inactive),
        }
        verdict
    }
}

impl std::fmt::Debug for MemoryBudget {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("MemoryBudget")
            .field("limit_bytes", &self.limit_bytes)
            .field("stats", &self.stats())
            .finish_non_exhaustive()
    }
}

/// Bytes charged to a budget, released on drop.
#[derive(Debug)]
#[must_use]
pub(crate) struct Charge {
    budget: Arc<MemoryBudget>,
    bytes: u64,
}

impl Charge {
    /// Returns its budget.
    pub(crate) fn budget(&self) -> &MemoryBudget {
        &self.budget
    }

    /// Merges a charge to the same budget into this one.
    pub(crate) fn join(&mut self, mut other: Self) {
        debug_assert!(Arc::ptr_eq(&self.budget, &other.budget), "one budget");
        self.bytes += std::mem::take(&mut other.bytes);
    }

    /// Splits `bytes` off this charge.
    ///
    /// # Panics
    /// If it is smaller.
    pub(crate) fn split(&mut self, bytes: u64) -> Self {
        assert!(bytes <= self.bytes, "a part is not larger than the whole");
        self.bytes -= bytes;
        Self {
            budget: Arc::clone(&self.budget),
            bytes,
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget
            .used_bytes
            .fetch_sub(self.bytes, Ordering::Relaxed);
    }
}

/// The registration of an owner.
#[derive(Debug)]
pub(crate) struct Registration {
    budget: Arc<MemoryBudget>,
    id: OwnerId,
}

impl Registration {
    pub(crate) fn id(&self) -> OwnerId {
        self.id
    }
}

impl Drop for Registration {
    fn drop(&mut self) {
        let mut owners = self.budget.owners.write();
        let owner = owners
            .slots
            .get_mut(self.id.0 as usize)
            .and_then(Option::take);
        owners.free.push(self.id.0);
        drop(owners);
        // A weak reference may be the last to a cache's allocation: it is freed without the lock.
        drop(owner);
    }
}
