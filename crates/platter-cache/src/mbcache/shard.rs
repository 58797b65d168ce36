//! A shard of the cache: its entries in slots, an index of them, and the CLOCK hand.

use std::sync::Arc;

use hashbrown::HashTable;

use super::design::{Place, Queues};
use super::{
    AWAITED, ENTRY_BYTES, Entry, EntryRef, Exists, Fingerprint, REFERENCED, REUSABLE, Removal,
    SWEEPS_MAX, Statistics,
};
use crate::budget::Charge;
use crate::hash::spread;
use crate::sync::{AtomicU8, AtomicU32, AtomicUsize, Condvar, Mutex, MutexGuard, Ordering, rank};

/// Entries whose keys share a part of the hash.
#[derive(Debug)]
pub(super) struct Shard {
    /// Entries by hash.
    state: Mutex<State, { rank(13, 0) }>,
    /// Notified when the last user releases an entry that is waited for.
    unused: Condvar,
    /// Number of entries, readable without the lock.
    len: AtomicUsize,
    number: usize,
    /// Set if the policy has lists; then there is no CLOCK hand.
    queues: Option<Arc<Queues>>,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Option<Arc<Entry>>>,
    free: Vec<usize>,
    /// Slots by key.
    index: HashTable<usize>,
    hand: usize,
    /// Number of entries ever added.
    next_age: u64,
    /// Charge of all entries in the table.
    charge: Option<Charge>,
    statistics: Statistics,
}

impl Shard {
    /// Creates the shard of this number, whose entries are in `queues` too.
    pub(super) fn new(number: usize, queues: Option<Arc<Queues>>) -> Self {
        Self {
            state: Mutex::default(),
            unused: Condvar::default(),
            len: AtomicUsize::new(0),
            number,
            queues,
        }
    }

    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn statistics(&self) -> Statistics {
        let state = self.state.lock();
        Statistics {
            entries: state.index.len() as u64,
            ..state.statistics
        }
    }

    pub(super) fn insert(
        &self,
        fingerprint: Fingerprint,
        value: u64,
        reusable: bool,
        charge: Charge,
    ) -> Result<(), Exists> {
        let mut state = self.state.lock();
        if state.slot_of(fingerprint.key, value).is_some() {
            return Err(Exists);
        }
        let slot = state.take_slot();
        let place = Place {
            shard: self.number,
            slot,
        };
        let entry = Entry {
            fingerprint,
            value,
            age: state.next_age,
            link: self.queues.as_ref().map(|queues| queues.push(place)),
            flags: AtomicU8::new(if reusable { REUSABLE } else { 0 }),
            users: AtomicU32::new(0),
        };
        state.next_age += 1;
        state.insert(slot, Arc::new(entry), charge);
        self.len.store(state.index.len(), Ordering::Relaxed);
        Ok(())
    }

    #[cfg(test)]
    pub(super) fn slot_of(&self, key: u32, value: u64) -> Option<usize> {
        self.state.lock().slot_of(key, value)
    }

    pub(super) fn contains(&self, key: u32, value: u64) -> bool {
        self.state.lock().slot_of(key, value).is_some()
    }

    /// Returns the youngest reusable entry with this fingerprint.
    pub(super) fn find_first(&self, wanted: Fingerprint) -> Option<EntryRef<'_>> {
        let mut state = self.state.lock();
        let found = state.find_below(wanted, u64::MAX);
        match found {
            Some(_) => state.statistics.hits += 1,
            None => state.statistics.misses += 1,
        }
        self.take_in_hand(&state, found?)
    }

    /// Returns the next older reusable entry with the fingerprint of `entry`.
    pub(super) fn find_older(&self, entry: &Entry) -> Option<EntryRef<'_>> {
        let state = self.state.lock();
        let found = state.find_below(entry.fingerprint, entry.age)?;
        self.take_in_hand(&state, found)
    }

    pub(super) fn get(&self, key: u32, value: u64) -> Option<EntryRef<'_>> {
        let state = self.state.lock();
        let slot = state.slot_of(key, value)?;
        self.take_in_hand(&state, slot)
    }

    pub(super) fn delete_or_get(&self, key: u32, value: u64) -> Removal<'_> {
        let mut state = self.state.lock();
        let Some(slot) = state.slot_of(key, value) else {
            return Removal::Deleted;
        };
        if self.remove_unused(&mut state, slot) {
            state.statistics.deletes += 1;
            return Removal::Deleted;
        }
        match self.take_in_hand(&state, slot) {
            Some(entry) => Removal::InUse(entry),
            None => Removal::Deleted,
        }
    }

    /// Drops up to `count` entries without users and not used since the CLOCK hand last passed
    /// them. Returns how many.
    pub(super) fn shrink(&self, count: usize) -> usize {
        let mut state = self.state.lock();
        let mut dropped = 0;
        for _ in 0..state.slots.len() * SWEEPS_MAX {
            if dropped == count {
                break;
            }
            let slot = state.hand;
            state.hand = (slot + 1) % state.slots.len();
            let Some(entry) = state.entry(slot) else {
                continue;
            };
            if !entry.take_referenced() && self.remove_unused(&mut state, slot) {
                dropped += 1;
            }
        }
        state.statistics.reclaimed += dropped as u64;
        dropped
    }

    /// Drops the entry in a slot, unless it has users or its referenced bit was set. Returns
    /// whether it was dropped.
    pub(super) fn drop_unused(&self, slot: usize) -> bool {
        let mut state = self.state.lock();
        let is_referenced = state
            .entry(slot)
            .is_some_and(|entry| entry.take_referenced());
        let is_dropped = !is_referenced && self.remove_unused(&mut state, slot);
        state.statistics.reclaimed += u64::from(is_dropped);
        is_dropped
    }

    /// Records a use of an entry.
    pub(super) fn touch(&self, entry: &Entry) {
        let queued = self.queues.as_ref().zip(entry.link);
        if !queued.is_some_and(|(queues, link)| queues.used(self.number, link)) {
            entry.flags.fetch_or(REFERENCED, Ordering::Relaxed);
        }
    }

    /// Removes an entry without users. Returns whether it was removed.
    fn remove_unused(&self, state: &mut State, slot: usize) -> bool {
        if state.is_used(slot) {
            return false;
        }
        let Some(entry) = state.remove(slot) else {
            return false;
        };
        if let Some((queues, link)) = self.queues.as_ref().zip(entry.link) {
            queues.remove(self.number, link);
        }
        self.len.store(state.index.len(), Ordering::Relaxed);
        true
    }

    /// Waits until `entry` has no users.
    pub(super) fn wait_unused(&self, entry: &Entry) {
        let mut state = self.state.lock();
        // Set before the count is read; the release decrements the count before it reads the flag.
        entry.flags.fetch_or(AWAITED, Ordering::SeqCst);
        while entry.users.load(Ordering::SeqCst) > 0 {
            state = self.unused.wait(state);
        }
    }

    /// Wakes threads that wait for an entry.
    pub(super) fn notify(&self) {
        drop(self.state.lock());
        self.unused.notify_all();
    }

    fn take_in_hand(&self, state: &MutexGuard<'_, State>, slot: usize) -> Option<EntryRef<'_>> {
        let entry = Arc::clone(state.entry(slot)?);
        entry.users.fetch_add(1, Ordering::Relaxed);
        Some(EntryRef { shard: self, entry })
    }
}

impl Drop for Shard {
    fn drop(&mut self) {
        let state = self.state.lock();
        let is_used = (0..state.slots.len()).any(|slot| state.is_used(slot));
        debug_assert!(!is_used, "an entry in hand keeps the cache alive");
    }
}

impl State {
    fn entry(&self, slot: usize) -> Option<&Arc<Entry>> {
        self.slots.get(slot)?.as_ref()
    }

    fn is_used(&self, slot: usize) -> bool {
        let entry = self.entry(slot);
        entry.is_some_and(|entry| entry.users.load(Ordering::Acquire) > 0)
    }

    fn slot_of(&self, key: u32, value: u64) -> Option<usize> {
        let is_it = |&slot: &usize| {
            let entry = self.entry(slot);
            entry.is_some_and(|entry| entry.fingerprint.key == key && entry.value == value)
        };
        self.index.find(spread(key.into()), is_it).copied()
    }

    /// Returns the youngest reusable entry with this fingerprint that is older than `age`.
    fn find_below(&self, wanted: Fingerprint, age: u64) -> Option<usize> {
        let same_hash = self.index.iter_hash(spread(wanted.key.into())).copied();
        let fitting = same_hash.filter_map(|slot| {
            let entry = self.entry(slot)?;
            let fits = entry.age < age && entry.fingerprint == wanted && entry.is_reusable();
            fits.then_some((entry.age, slot))
        });
        fitting.max().map(|(_, slot)| slot)
    }

    /// Returns a free slot.
    fn take_slot(&mut self) -> usize {
        self.free.pop().unwrap_or_else(|| {
            self.slots.push(None);
            self.slots.len() - 1
        })
    }

    fn insert(&mut self, slot: usize, entry: Arc<Entry>, charge: Charge) {
        self.statistics.inserts += 1;
        match &mut self.charge {
            Some(all) => all.join(charge),
            None => self.charge = Some(charge),
        }
        let hashed = spread(entry.fingerprint.key.into());
        self.slots[slot] = Some(entry);
        let slots = &self.slots;
        let rehash = |&slot: &usize| {
            let entry: Option<&Arc<Entry>> = slots[slot].as_ref();
            entry.map_or(0, |entry| spread(entry.fingerprint.key.into()))
        };
        self.index.insert_unique(hashed, slot, rehash);
    }

    fn remove(&mut self, slot: usize) -> Option<Arc<Entry>> {
        let entry = self.slots.get_mut(slot)?.take()?;
        let hashed = spread(entry.fingerprint.key.into());
        if let Ok(found) = self.index.find_entry(hashed, |&found| found == slot) {
            found.remove();
        }
        if let Some(charge) = &mut self.charge {
            drop(charge.split(ENTRY_BYTES as u64));
        }
        self.free.push(slot);
        Some(entry)
    }
}
