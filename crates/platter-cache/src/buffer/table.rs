//! The table of a buffer cache: block number to what is known of the block, in shards.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use platter_ondisk::VerifierKey;

use super::edit::{Edit, Edited};
use super::flight::Flight;
use super::version::Version;
use crate::budget::{Heat, List, LruId, MemoryBudget, OwnerId, Verdict};
use crate::hash::spread;
use crate::sync::{Mutex, RwLock};

const SHARD_COUNT: usize = 16;

/// Bytes a cached block costs beside its contents: entry, version, place in the order, and what an
/// allocator needs to have 4 KiB at hand: an estimate.
const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// What a block with these contents is charged.
pub(super) fn cost_bytes(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + ENTRY_OVERHEAD_BYTES
}

#[derive(Debug)]
enum State {
    /// Somebody reads it.
    Reading(Arc<Flight>),
    /// As the device has it; evictable.
    Clean(Arc<Version>),
    /// Newer than the device has it; in no eviction order.
    Dirty(Arc<Version>),
    /// Whoever has the block's turn changes its version, which was dirty or clean.
    Edited { was_dirty: bool },
}

#[derive(Debug)]
struct Entry {
    block: u64,
    state: State,
    heat: Heat,
    lru: LruId,
    /// The round of the last change.
    round: Option<u64>,
}

impl Entry {
    fn version(&self) -> Option<&Arc<Version>> {
        match &self.state {
            State::Reading(_) | State::Edited { .. } => None,
            State::Clean(version) | State::Dirty(version) => Some(version),
        }
    }

    fn is_dirty(&self) -> bool {
        matches!(
            self.state,
            State::Dirty(_) | State::Edited { was_dirty: true }
        )
    }

    fn claim(&self) -> Claim {
        match &self.state {
            State::Reading(flight) => Claim::Wait(Arc::clone(flight)),
            State::Clean(version) | State::Dirty(version) => {
                self.heat.touch();
                Claim::Cached(Arc::clone(version))
            }
            State::Edited { .. } => Claim::Edited,
        }
    }
}

/// What a lookup that may start a read gives.
pub(super) enum Claim {
    /// The block is cached.
    Cached(Arc<Version>),
    /// Another thread reads it.
    Wait(Arc<Flight>),
    /// Another thread changes it, in the turn of the block.
    Edited,
    /// The caller has to read it, and to land the flight whatever happens.
    Claimed(Arc<Flight>),
}

/// What is known of the blocks of one device.
#[derive(Debug)]
pub(super) struct Table {
    shards: [CachePadded<RwLock<HashTable<Entry>>>; SHARD_COUNT],
    /// Blocks in the dirty state. Locked inside a shard's lock.
    dirty: CachePadded<Mutex<BTreeSet<u64>>>,
    budget: Arc<MemoryBudget>,
}

crate::layout!(pub(crate) LAYOUT: Table {
    ReadOnly: budget;
    Hot: shards, dirty;
});

impl Table {
    pub(super) fn new(budget: Arc<MemoryBudget>) -> Self {
        Self {
            shards: std::array::from_fn(|_| CachePadded::new(RwLock::new(HashTable::new()))),
            dirty: CachePadded::default(),
            budget,
        }
    }

    /// The block's current version, or what keeps it, if it is cached or being read.
    pub(super) fn find(&self, block: u64) -> Option<Claim> {
        let shard = self.shard(block).read();
        let entry = shard.find(spread(block), |entry| entry.block == block)?;
        Some(entry.claim())
    }

    /// Whether the block has a version. This is no use of it: who asks uses it next.
    pub(super) fn contains(&self, block: u64) -> bool {
        let shard = self.shard(block).read();
        let entry = shard.find(spread(block), |entry| entry.block == block);
        entry.is_some_and(|entry| !matches!(entry.state, State::Reading(_)))
    }

    /// The block's version, or the right or the duty to read it.
    pub(super) fn find_or_claim(&self, block: u64) -> Claim {
        if let Some(claim) = self.find(block) {
            return claim;
        }
        let mut shard = self.shard(block).write();
        match shard.entry(spread(block), |entry| entry.block == block, hash_entry) {
            TableEntry::Occupied(entry) => entry.get().claim(),
            TableEntry::Vacant(entry) => {
                let flight = Arc::new(Flight::default());
                entry.insert(Entry {
                    block,
                    state: State::Reading(Arc::clone(&flight)),
                    heat: Heat::default(),
                    lru: LruId::NONE,
                    round: None,
                });
                Claim::Claimed(flight)
            }
        }
    }

    /// Ends a claim with what was read. Gives the block's current version, which is another one
    /// when somebody published it meanwhile; `None` if that one is being changed.
    pub(super) fn complete(
        &self,
        owner: OwnerId,
        block: u64,
        flight: &Arc<Flight>,
        read: Arc<Version>,
    ) -> Option<Arc<Version>> {
        let mut shard = self.shard(block).write();
        let Ok(mut found) = shard.find_entry(spread(block), |entry| entry.block == block) else {
            return Some(read);
        };
        let entry = found.get_mut();
        if !is_flight(entry, flight) {
            return match &entry.state {
                State::Reading(_) => Some(read),
                State::Clean(version) | State::Dirty(version) => Some(Arc::clone(version)),
                State::Edited { .. } => None,
            };
        }
        if read.is_charged() {
            entry.lru = self.enter_order(owner, block, &read);
            entry.state = State::Clean(Arc::clone(&read));
        } else {
            found.remove();
        }
        Some(read)
    }

    /// Ends a claim without a version.
    pub(super) fn give_up(&self, block: u64, flight: &Arc<Flight>) {
        let mut shard = self.shard(block).write();
        if let Ok(found) = shard.find_entry(spread(block), |entry| entry.block == block)
            && is_flight(found.get(), flight)
        {
            found.remove();
        }
    }

    /// Changes the block's version where it is, if nobody has it, and it was changed before under the
    /// rules with this key and not sealed since. Otherwise gives `change` back.
    pub(super) fn change_alone<R, E, F>(
        &self,
        block: u64,
        key: VerifierKey,
        round: u64,
        change: F,
    ) -> Result<Result<Edited<R>, E>, F>
    where
        F: FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
    {
        let mut shard = self.shard(block).write();
        let Some(entry) = shard.find_mut(spread(block), |entry| entry.block == block) else {
            return Err(change);
        };
        let State::Dirty(version) = &mut entry.state else {
            return Err(change);
        };
        if version.is_sealed() || !version.is_proven_by(key) {
            return Err(change);
        }
        // Versions are handed out under the shard's lock only: that of the table stays the only one.
        let Some(version) = Arc::get_mut(version) else {
            return Err(change);
        };
        entry.heat.touch();
        Ok(version.change(change).map(|edit| match edit {
            Edit::Kept(result) => Edited::Kept(result),
            Edit::Changed(result) => {
                let last = entry.round.replace(round);
                let is_first = last != Some(round);
                Edited::Changed { result, is_first }
            }
        }))
    }

    /// Takes the block's version out, to be changed in the turn of the block, unless somebody else
    /// than the caller has it.
    pub(super) fn check_out(
        &self,
        block: u64,
        version: Arc<Version>,
    ) -> Result<Arc<Version>, Arc<Version>> {
        let mut shard = self.shard(block).write();
        let Some(entry) = shard.find_mut(spread(block), |entry| entry.block == block) else {
            // No cache holds it.
            return if Arc::strong_count(&version) == 1 {
                Ok(version)
            } else {
                Err(version)
            };
        };
        let is_current = entry
            .version()
            .is_some_and(|current| Arc::ptr_eq(current, &version));
        // Versions are handed out under the shard's lock only: those of the table and of the caller
        // stay the only ones.
        if !is_current || Arc::strong_count(&version) > 2 {
            return Err(version);
        }
        let was_dirty = entry.is_dirty();
        entry.state = State::Edited { was_dirty };
        Ok(version)
    }

    /// Undoes a [check out](Self::check_out).
    pub(super) fn put_back(&self, block: u64, version: Arc<Version>) {
        let mut shard = self.shard(block).write();
        if let Some(entry) = shard.find_mut(spread(block), |entry| entry.block == block)
            && let State::Edited { was_dirty } = entry.state
        {
            entry.state = if was_dirty {
                State::Dirty(version)
            } else {
                State::Clean(version)
            };
        }
    }

    /// Makes `version` the block's current one, dirty. Gives whether it is the first of `round`; none
    /// of no round is.
    pub(super) fn publish(&self, block: u64, version: Arc<Version>, round: Option<u64>) -> bool {
        let mut shard = self.shard(block).write();
        let slot = shard.entry(spread(block), |entry| entry.block == block, hash_entry);
        let (replaced, was_dirty, last) = match slot {
            TableEntry::Occupied(mut found) => {
                let entry = found.get_mut();
                let was_dirty = entry.is_dirty();
                if !was_dirty {
                    self.leave_order(entry);
                    entry.lru = LruId::NONE;
                }
                let last = entry.round;
                entry.round = round.or(last);
                let replaced = std::mem::replace(&mut entry.state, State::Dirty(version));
                (Some(replaced), was_dirty, last)
            }
            TableEntry::Vacant(slot) => {
                slot.insert(Entry {
                    block,
                    state: State::Dirty(version),
                    heat: Heat::default(),
                    lru: LruId::NONE,
                    round,
                });
                (None, false, None)
            }
        };
        if !was_dirty {
            self.dirty.lock().insert(block);
        }
        drop(shard);
        drop(replaced);
        round.is_some() && last != round
    }

    /// Turns `version` clean if it is still the block's current one.
    pub(super) fn written(&self, owner: OwnerId, block: u64, version: &Arc<Version>) {
        let mut shard = self.shard(block).write();
        if let Some(entry) = shard.find_mut(spread(block), |entry| entry.block == block)
            && let State::Dirty(current) = &entry.state
            && Arc::ptr_eq(current, version)
        {
            entry.state = State::Clean(Arc::clone(version));
            entry.lru = self.enter_order(owner, block, version);
            self.dirty.lock().remove(&block);
        }
    }

    /// Forgets the block if `version` is its current one.
    pub(super) fn abandon(&self, block: u64, version: &Arc<Version>) {
        let mut shard = self.shard(block).write();
        if let Ok(found) = shard.find_entry(spread(block), |entry| entry.block == block)
            && let Some(current) = found.get().version()
            && Arc::ptr_eq(current, version)
        {
            let (entry, _) = found.remove();
            self.forget(&entry);
        }
    }

    /// Up to `count` dirty blocks of `range` in ascending order, with their versions.
    pub(super) fn dirty_run(&self, range: Range<u64>, count: usize) -> Vec<(u64, Arc<Version>)> {
        let blocks: Vec<u64> = self
            .dirty
            .lock()
            .range(range)
            .take(count)
            .copied()
            .collect();
        let version = |block: u64| {
            let shard = self.shard(block).read();
            let entry = shard.find(spread(block), |entry| entry.block == block)?;
            match &entry.state {
                State::Dirty(version) => Some((block, Arc::clone(version))),
                State::Reading(_) | State::Clean(_) | State::Edited { .. } => None,
            }
        };
        blocks.into_iter().filter_map(version).collect()
    }

    pub(super) fn dirty_len(&self) -> usize {
        self.dirty.lock().len()
    }

    /// Forgets the block if its current version is `version`, clean, and proven to be nothing.
    pub(super) fn distrust(&self, block: u64, version: &Arc<Version>) {
        let mut shard = self.shard(block).write();
        let Ok(found) = shard.find_entry(spread(block), |entry| entry.block == block) else {
            return;
        };
        let is_this = matches!(&found.get().state, State::Clean(current)
            if Arc::ptr_eq(current, version));
        if is_this && !version.is_proven() {
            self.leave_order(found.get());
            found.remove();
        }
    }

    /// Forgets every block of `range`, dirty ones too.
    pub(super) fn invalidate(&self, range: Range<u64>) {
        let span = range.end.saturating_sub(range.start);
        if span <= SHARD_COUNT as u64 {
            for block in range {
                let mut shard = self.shard(block).write();
                if let Ok(found) = shard.find_entry(spread(block), |entry| entry.block == block) {
                    let (entry, _) = found.remove();
                    self.forget(&entry);
                }
            }
            return;
        }
        for shard in &self.shards {
            shard.write().retain(|entry| {
                let keep = !range.contains(&entry.block);
                if !keep {
                    self.forget(entry);
                }
                keep
            });
        }
    }

    pub(super) fn take_heat(&self, block: u64, id: LruId) -> bool {
        let shard = self.shard(block).read();
        let entry = shard.find(spread(block), |entry| entry.block == block);
        entry.is_some_and(|entry| entry.lru == id && entry.heat.take_any())
    }

    pub(super) fn evict(&self, block: u64, id: LruId) -> Verdict {
        let mut shard = self.shard(block).write();
        let Ok(found) = shard.find_entry(spread(block), |entry| entry.block == block) else {
            return Verdict::Gone;
        };
        let entry = found.get();
        if entry.lru != id {
            return Verdict::Gone;
        }
        let State::Clean(version) = &entry.state else {
            return Verdict::Busy;
        };
        // Versions are handed out under the shard's lock only, so a count of one stays one.
        if Arc::strong_count(version) > 1 {
            return Verdict::Busy;
        }
        if entry.heat.take_hot() {
            return Verdict::Hot;
        }
        let bytes = cost_bytes(version.bytes());
        let (entry, _) = found.remove();
        drop(shard);
        drop(entry);
        Verdict::Evicted(bytes)
    }

    pub(super) fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    fn forget(&self, entry: &Entry) {
        self.leave_order(entry);
        if entry.is_dirty() {
            self.dirty.lock().remove(&entry.block);
        }
    }

    fn enter_order(&self, owner: OwnerId, block: u64, version: &Version) -> LruId {
        let lru = self.budget.lru();
        lru.insert(owner, block, cost_bytes(version.bytes()), List::Inactive)
    }

    fn leave_order(&self, entry: &Entry) {
        self.budget.lru().remove(entry.lru);
    }

    fn shard(&self, block: u64) -> &RwLock<HashTable<Entry>> {
        // The table takes its bits from both ends of the hash, the shard from the middle.
        &self.shards[(spread(block) >> 32) as usize % SHARD_COUNT]
    }
}

fn is_flight(entry: &Entry, flight: &Arc<Flight>) -> bool {
    matches!(&entry.state, State::Reading(current) if Arc::ptr_eq(current, flight))
}

fn hash_entry(entry: &Entry) -> u64 {
    spread(entry.block)
}
