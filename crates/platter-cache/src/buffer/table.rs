//! The table of a buffer cache: key to what is known of the block, in shards.

use std::collections::BTreeSet;
use std::ops::Range;
use std::sync::Arc;

use crossbeam_utils::CachePadded;
use hashbrown::HashTable;
use hashbrown::hash_table::Entry as TableEntry;
use platter_ondisk::VerifierKey;

use super::edited::{Edit, Edited};
use super::flight::Flight;
use super::key::Key;
use super::version::Version;
use crate::budget::{Heat, List, LruId, MemoryBudget, OwnerId, Verdict};
use crate::hash::spread;
use crate::sync::{Mutex, RwLock, rank};

const SHARD_COUNT: usize = 16;

/// Bytes a cached block costs in addition to its contents: entry, version, place in the order, and what an
/// allocator needs to have 4 KiB at hand: an estimate.
const ENTRY_OVERHEAD_BYTES: u64 = 512;

/// What a block with these contents is charged.
pub(super) fn cost_bytes(bytes: &[u8]) -> u64 {
    bytes.len() as u64 + ENTRY_OVERHEAD_BYTES
}

#[derive(Debug)]
enum State {
    /// A thread reads it.
    Reading(Arc<Flight>),
    /// The thread that reads it rewrites bad copies: no version is published meanwhile.
    Repairing(Arc<Flight>),
    /// As the device has it; evictable.
    Clean(Arc<Version>),
    /// Newer than the device has it; in no eviction order.
    Dirty(Arc<Version>),
    /// The thread that has the block's turn changes its version, which was dirty or clean.
    Edited { was_dirty: bool },
}

#[derive(Debug)]
struct Entry {
    key: Key,
    state: State,
    heat: Heat,
    lru: LruId,
    /// The round of the last change.
    round: Option<u64>,
}

impl Entry {
    fn version(&self) -> Option<&Arc<Version>> {
        match &self.state {
            State::Reading(_) | State::Repairing(_) | State::Edited { .. } => None,
            State::Clean(version) | State::Dirty(version) => Some(version),
        }
    }

    /// The flight of a repair under way.
    fn repair(&self) -> Option<&Arc<Flight>> {
        match &self.state {
            State::Repairing(flight) => Some(flight),
            State::Reading(_) | State::Clean(_) | State::Dirty(_) | State::Edited { .. } => None,
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
            State::Reading(flight) | State::Repairing(flight) => Claim::Wait(Arc::clone(flight)),
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

/// What a claim to read another copy came to.
pub(super) enum Reclaim {
    /// The caller has to read it, and to land the flight whatever happens.
    Claimed {
        flight: Arc<Flight>,
        /// The flight took the place of the bad version.
        is_in_place: bool,
    },
    /// The block has another version meanwhile, or is about to.
    Changed,
    /// The version is newer than what the copies hold.
    Unwritten,
}

/// Why a version did not become that of its block.
pub(super) enum Refusal {
    /// A repair of the block is under way.
    Repair(Arc<Version>, Arc<Flight>),
    /// It has bytes in common with another dirty block.
    Overlap(Key),
}

/// What is known of the blocks of one store.
#[derive(Debug)]
pub(super) struct Table {
    /// Blocks by address and length.
    shards: [CachePadded<RwLock<HashTable<Entry>, { rank(12, 1) }>>; SHARD_COUNT],
    /// Blocks in the dirty state. Locked inside a shard's lock.
    dirty: CachePadded<Mutex<BTreeSet<Key>, { rank(12, 2) }>>,
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
    pub(super) fn find(&self, key: Key) -> Option<Claim> {
        let shard = self.shard(key).read();
        let entry = shard.find(spread(key.to_bits()), |entry| entry.key == key)?;
        Some(entry.claim())
    }

    /// The block's current version, if it is cached and was validated under `rules`.
    pub(super) fn find_validated(&self, key: Key, rules: VerifierKey) -> Option<Arc<Version>> {
        let shard = self.shard(key).read();
        let entry = shard.find(spread(key.to_bits()), |entry| entry.key == key)?;
        let version = entry.version().filter(|it| it.is_validated_by(rules))?;
        entry.heat.touch();
        Some(Arc::clone(version))
    }

    /// Whether the block is cached. Does not mark it as recently used.
    pub(super) fn contains(&self, key: Key) -> bool {
        let shard = self.shard(key).read();
        let entry = shard.find(spread(key.to_bits()), |entry| entry.key == key);
        entry.is_some_and(|entry| {
            entry.version().is_some() || matches!(entry.state, State::Edited { .. })
        })
    }

    /// The block's version, or the right or the duty to read it.
    pub(super) fn find_or_claim(&self, key: Key) -> Claim {
        if let Some(claim) = self.find(key) {
            return claim;
        }
        let mut shard = self.shard(key).write();
        match shard.entry(spread(key.to_bits()), |entry| entry.key == key, hash_entry) {
            TableEntry::Occupied(entry) => entry.get().claim(),
            TableEntry::Vacant(entry) => {
                let flight = Arc::new(Flight::default());
                entry.insert(Entry {
                    key,
                    state: State::Reading(Arc::clone(&flight)),
                    heat: Heat::default(),
                    lru: LruId::NONE,
                    round: None,
                });
                Claim::Claimed(flight)
            }
        }
    }

    /// Claims the read of another copy of a block whose version `bad` is not what it should be, or of
    /// which no copy could be read so far.
    pub(super) fn reclaim(&self, key: Key, bad: Option<&Arc<Version>>) -> Reclaim {
        let mut shard = self.shard(key).write();
        let slot = shard.entry(spread(key.to_bits()), |entry| entry.key == key, hash_entry);
        let flight = Arc::new(Flight::default());
        match slot {
            TableEntry::Vacant(slot) => {
                slot.insert(Entry {
                    key,
                    state: State::Reading(Arc::clone(&flight)),
                    heat: Heat::default(),
                    lru: LruId::NONE,
                    round: None,
                });
                Reclaim::Claimed {
                    flight,
                    is_in_place: false,
                }
            }
            TableEntry::Occupied(mut found) => {
                let entry = found.get_mut();
                let current = entry.version().zip(bad);
                if !current.is_some_and(|(current, bad)| Arc::ptr_eq(current, bad)) {
                    return Reclaim::Changed;
                }
                if entry.is_dirty() {
                    return Reclaim::Unwritten;
                }
                self.leave_order(entry);
                entry.lru = LruId::NONE;
                entry.state = State::Reading(Arc::clone(&flight));
                Reclaim::Claimed {
                    flight,
                    is_in_place: true,
                }
            }
        }
    }

    /// Keeps versions from being published until the flight ends, if it is still that of the block.
    pub(super) fn begin_repair(&self, key: Key, flight: &Arc<Flight>) -> bool {
        let mut shard = self.shard(key).write();
        let entry = shard.find_mut(spread(key.to_bits()), |entry| entry.key == key);
        match entry.filter(|entry| is_flight(entry, flight)) {
            Some(entry) => {
                entry.state = State::Repairing(Arc::clone(flight));
                true
            }
            None => false,
        }
    }

    /// Ends a claim with what was read. Returns the block's current version, which is another one
    /// if another thread published it meanwhile; `None` if that one is being changed.
    pub(super) fn complete(
        &self,
        owner: OwnerId,
        key: Key,
        flight: &Arc<Flight>,
        read: Arc<Version>,
    ) -> Option<Arc<Version>> {
        let mut shard = self.shard(key).write();
        let Ok(mut found) = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key)
        else {
            return Some(read);
        };
        let entry = found.get_mut();
        if !is_flight(entry, flight) {
            return match &entry.state {
                State::Reading(_) | State::Repairing(_) => Some(read),
                State::Clean(version) | State::Dirty(version) => Some(Arc::clone(version)),
                State::Edited { .. } => None,
            };
        }
        if read.is_charged() {
            entry.lru = self.enter_order(owner, key, &read);
            entry.state = State::Clean(Arc::clone(&read));
        } else {
            found.remove();
        }
        Some(read)
    }

    /// Ends a claim without a version.
    pub(super) fn give_up(&self, key: Key, flight: &Arc<Flight>) {
        let mut shard = self.shard(key).write();
        if let Ok(found) = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key)
            && is_flight(found.get(), flight)
        {
            found.remove();
        }
    }

    /// Changes the block's version in place, if it is not shared, and it was changed before under the
    /// rules with this key and not sealed since. Otherwise returns `change`.
    pub(super) fn change_alone<R, E, F>(
        &self,
        key: Key,
        rules: VerifierKey,
        round: u64,
        change: F,
    ) -> Result<Result<Edited<R>, E>, F>
    where
        F: FnOnce(&mut [u8]) -> Result<Edit<R>, E>,
    {
        let mut shard = self.shard(key).write();
        let Some(entry) = shard.find_mut(spread(key.to_bits()), |entry| entry.key == key) else {
            return Err(change);
        };
        let State::Dirty(version) = &mut entry.state else {
            return Err(change);
        };
        if version.is_sealed() || !version.is_validated_by(rules) {
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

    /// Takes the block's version out, to be changed in the turn of the block, unless there are
    /// references besides those of the table and the caller.
    pub(super) fn check_out(
        &self,
        key: Key,
        version: Arc<Version>,
    ) -> Result<Arc<Version>, Arc<Version>> {
        let mut shard = self.shard(key).write();
        let Some(entry) = shard.find_mut(spread(key.to_bits()), |entry| entry.key == key) else {
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
    pub(super) fn put_back(&self, key: Key, version: Arc<Version>) {
        let mut shard = self.shard(key).write();
        if let Some(entry) = shard.find_mut(spread(key.to_bits()), |entry| entry.key == key)
            && let State::Edited { was_dirty } = entry.state
        {
            entry.state = if was_dirty {
                State::Dirty(version)
            } else {
                State::Clean(version)
            };
        }
    }

    /// Makes `version` the block's current one, dirty. Returns whether it is the first of `round`; none
    /// of no round is.
    pub(super) fn publish(
        &self,
        key: Key,
        version: Arc<Version>,
        round: Option<u64>,
    ) -> Result<bool, Refusal> {
        let mut shard = self.shard(key).write();
        let slot = shard.entry(spread(key.to_bits()), |entry| entry.key == key, hash_entry);
        let was_dirty = match &slot {
            TableEntry::Occupied(found) => {
                if let Some(flight) = found.get().repair() {
                    return Err(Refusal::Repair(version, Arc::clone(flight)));
                }
                found.get().is_dirty()
            }
            TableEntry::Vacant(_) => false,
        };
        if !was_dirty {
            insert_apart(&mut self.dirty.lock(), key)?;
        }
        let (replaced, last) = match slot {
            TableEntry::Occupied(mut found) => {
                let entry = found.get_mut();
                if !was_dirty {
                    self.leave_order(entry);
                    entry.lru = LruId::NONE;
                }
                let last = entry.round;
                entry.round = round.or(last);
                let replaced = std::mem::replace(&mut entry.state, State::Dirty(version));
                (Some(replaced), last)
            }
            TableEntry::Vacant(slot) => {
                slot.insert(Entry {
                    key,
                    state: State::Dirty(version),
                    heat: Heat::default(),
                    lru: LruId::NONE,
                    round,
                });
                (None, None)
            }
        };
        drop(shard);
        drop(replaced);
        Ok(round.is_some() && last != round)
    }

    /// Turns `version` clean if it is still the block's current one.
    pub(super) fn written(&self, owner: OwnerId, key: Key, version: &Arc<Version>) {
        let mut shard = self.shard(key).write();
        if let Some(entry) = shard.find_mut(spread(key.to_bits()), |entry| entry.key == key)
            && let State::Dirty(current) = &entry.state
            && Arc::ptr_eq(current, version)
        {
            entry.state = State::Clean(Arc::clone(version));
            entry.lru = self.enter_order(owner, key, version);
            self.dirty.lock().remove(&key);
        }
    }

    /// Forgets the block if `version` is its current one.
    pub(super) fn abandon(&self, key: Key, version: &Arc<Version>) {
        let mut shard = self.shard(key).write();
        if let Ok(found) = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key)
            && let Some(current) = found.get().version()
            && Arc::ptr_eq(current, version)
        {
            let (entry, _) = found.remove();
            self.removed(&entry);
        }
    }

    /// Up to `count` dirty blocks of `range` in ascending order, with their versions.
    pub(super) fn dirty_run(&self, range: Range<Key>, count: usize) -> Vec<(Key, Arc<Version>)> {
        let keys: Vec<Key> = self
            .dirty
            .lock()
            .range(range)
            .take(count)
            .copied()
            .collect();
        let version = |key: Key| {
            let shard = self.shard(key).read();
            let entry = shard.find(spread(key.to_bits()), |entry| entry.key == key)?;
            match &entry.state {
                State::Dirty(version) => Some((key, Arc::clone(version))),
                State::Reading(_)
                | State::Repairing(_)
                | State::Clean(_)
                | State::Edited { .. } => None,
            }
        };
        keys.into_iter().filter_map(version).collect()
    }

    pub(super) fn dirty_len(&self) -> usize {
        self.dirty.lock().len()
    }

    /// Forgets the block if its current version is `version`, clean, and not validated as anything.
    pub(super) fn distrust(&self, key: Key, version: &Arc<Version>) {
        let mut shard = self.shard(key).write();
        let Ok(found) = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key) else {
            return;
        };
        let is_this = matches!(&found.get().state, State::Clean(current)
            if Arc::ptr_eq(current, version));
        if is_this && !version.is_validated() {
            self.leave_order(found.get());
            found.remove();
        }
    }

    /// Forgets the block, a dirty version too. Returns the flight of a repair to be waited for.
    pub(super) fn forget(&self, key: Key) -> Option<Arc<Flight>> {
        let mut shard = self.shard(key).write();
        let found = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key);
        let (entry, _) = found.ok()?.remove();
        self.removed(&entry);
        entry.repair().map(Arc::clone)
    }

    /// Forgets every block that begins in `range`, dirty ones too. Returns the flights of repairs to be
    /// waited for.
    pub(super) fn forget_all(&self, range: &Range<Key>) -> Vec<Arc<Flight>> {
        let mut repairs = Vec::new();
        for shard in &self.shards {
            shard.write().retain(|entry| {
                let keep = !range.contains(&entry.key);
                if !keep {
                    self.removed(entry);
                    repairs.extend(entry.repair().map(Arc::clone));
                }
                keep
            });
        }
        repairs
    }

    pub(super) fn take_heat(&self, key: Key, id: LruId) -> bool {
        let shard = self.shard(key).read();
        let entry = shard.find(spread(key.to_bits()), |entry| entry.key == key);
        entry.is_some_and(|entry| entry.lru == id && entry.heat.take_any())
    }

    pub(super) fn evict(&self, key: Key, id: LruId) -> Verdict {
        let mut shard = self.shard(key).write();
        let Ok(found) = shard.find_entry(spread(key.to_bits()), |entry| entry.key == key) else {
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

    fn removed(&self, entry: &Entry) {
        self.leave_order(entry);
        if entry.is_dirty() {
            self.dirty.lock().remove(&entry.key);
        }
    }

    fn enter_order(&self, owner: OwnerId, key: Key, version: &Version) -> LruId {
        let lru = self.budget.lru();
        lru.insert(
            owner,
            key.to_bits(),
            cost_bytes(version.bytes()),
            List::Inactive,
        )
    }

    fn leave_order(&self, entry: &Entry) {
        self.budget.lru().remove(entry.lru);
    }

    fn shard(&self, key: Key) -> &RwLock<HashTable<Entry>, { rank(12, 1) }> {
        // The table takes its bits from both ends of the hash, the shard from the middle.
        &self.shards[(spread(key.to_bits()) >> 32) as usize % SHARD_COUNT]
    }
}

fn is_flight(entry: &Entry, flight: &Arc<Flight>) -> bool {
    matches!(&entry.state, State::Reading(current) | State::Repairing(current)
        if Arc::ptr_eq(current, flight))
}

/// Adds a block to the dirty ones, which have no bytes in common.
fn insert_apart(dirty: &mut BTreeSet<Key>, key: Key) -> Result<(), Refusal> {
    let before = dirty.range(..key).next_back();
    let after = dirty.range(key..).next();
    let overlapping = |other: &&&Key| **other != &key && other.overlaps(key);
    if let Some(&other) = before.iter().chain(&after).find(overlapping) {
        return Err(Refusal::Overlap(*other));
    }
    dirty.insert(key);
    Ok(())
}

fn hash_entry(entry: &Entry) -> u64 {
    spread(entry.key.to_bits())
}
