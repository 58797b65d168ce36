//! A part of the cache: its entries in slots, an index of them, and the hand of the clock.

use std::sync::Arc;

use hashbrown::HashTable;

use super::{AWAITED, Entry, EntryRef, Exists, Fingerprint, Removal};
use crate::hash::spread;
use crate::sync::{AtomicUsize, Condvar, Mutex, MutexGuard, Ordering};

/// Looks at entries before the sweep gives up: each is passed once with its chance and once without.
const SWEEPS_MAX: usize = 2;

/// Entries whose keys have one part of the hash in common.
#[derive(Debug, Default)]
pub(super) struct Shard {
    state: Mutex<State>,
    /// Rung when somebody lets go of an entry that is waited for.
    unused: Condvar,
    /// As long as the table is, to be looked at without the lock.
    len: AtomicUsize,
}

#[derive(Debug, Default)]
struct State {
    slots: Vec<Option<Arc<Entry>>>,
    free: Vec<usize>,
    /// Slots by key.
    index: HashTable<usize>,
    hand: usize,
}

impl Shard {
    pub(super) fn len(&self) -> usize {
        self.len.load(Ordering::Relaxed)
    }

    pub(super) fn insert(&self, entry: Entry) -> Result<(), Exists> {
        let mut state = self.state.lock();
        if state.slot_of(entry.fingerprint.key, entry.value).is_some() {
            return Err(Exists);
        }
        state.insert(Arc::new(entry));
        self.len.store(state.index.len(), Ordering::Relaxed);
        Ok(())
    }

    /// The reusable entry with this fingerprint in the lowest slot from `slot` on.
    pub(super) fn find_from(&self, wanted: Fingerprint, slot: usize) -> Option<EntryRef<'_>> {
        let state = self.state.lock();
        let fits = |&slot: &usize| {
            let entry = state.entry(slot);
            entry.is_some_and(|entry| entry.fingerprint == wanted && entry.is_reusable())
        };
        let same_hash = state.index.iter_hash(spread(wanted.key.into())).copied();
        let slot = same_hash
            .filter(|found| *found >= slot)
            .filter(fits)
            .min()?;
        self.take_in_hand(&state, slot)
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
        if !state.is_used(slot) {
            state.remove(slot);
            self.len.store(state.index.len(), Ordering::Relaxed);
            return Removal::Deleted;
        }
        match self.take_in_hand(&state, slot) {
            Some(entry) => Removal::InUse(entry),
            None => Removal::Deleted,
        }
    }

    /// Drops up to `count` entries that nobody has in hand and nobody used since the hand of the
    /// clock last passed them. Returns how many.
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
            let is_referenced = entry.take_referenced();
            if !is_referenced && !state.is_used(slot) {
                state.remove(slot);
                dropped += 1;
            }
        }
        self.len.store(state.index.len(), Ordering::Relaxed);
        dropped
    }

    /// Waits until nobody has `entry` in hand.
    pub(super) fn wait_unused(&self, entry: &Entry) {
        let mut state = self.state.lock();
        // Said before the count is looked at, and whoever lets go looks the other way round.
        entry.flags.fetch_or(AWAITED, Ordering::SeqCst);
        while entry.users.load(Ordering::SeqCst) > 0 {
            state = self.unused.wait(state);
        }
    }

    /// Wakes those who wait for an entry.
    pub(super) fn notify(&self) {
        drop(self.state.lock());
        self.unused.notify_all();
    }

    fn take_in_hand(&self, state: &MutexGuard<'_, State>, slot: usize) -> Option<EntryRef<'_>> {
        let entry = Arc::clone(state.entry(slot)?);
        entry.users.fetch_add(1, Ordering::Relaxed);
        Some(EntryRef {
            shard: self,
            entry,
            slot,
        })
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

    fn insert(&mut self, entry: Arc<Entry>) {
        let hashed = spread(entry.fingerprint.key.into());
        let slot = if let Some(slot) = self.free.pop() {
            self.slots[slot] = Some(entry);
            slot
        } else {
            self.slots.push(Some(entry));
            self.slots.len() - 1
        };
        let slots = &self.slots;
        let rehash = |&slot: &usize| {
            let entry: Option<&Arc<Entry>> = slots[slot].as_ref();
            entry.map_or(0, |entry| spread(entry.fingerprint.key.into()))
        };
        self.index.insert_unique(hashed, slot, rehash);
    }

    fn remove(&mut self, slot: usize) {
        let Some(entry) = self.slots[slot].take() else {
            return;
        };
        let hashed = spread(entry.fingerprint.key.into());
        if let Ok(found) = self.index.find_entry(hashed, |&found| found == slot) {
            found.remove();
        }
        self.free.push(slot);
    }
}
