//! The budget with an owner that keeps numbered charges.

use std::collections::HashMap;

use proptest::prelude::*;

use super::*;
use crate::sync::{Mutex, rank};

/// A cache of empty entries, each with a charge.
struct Store {
    entries: Mutex<HashMap<u64, Stored>, { rank(14, 0) }>,
    registration: Registration,
    looks: AtomicUsize,
}

struct Stored {
    charge: Charge,
    bytes: u64,
    id: LruId,
    heat: Heat,
    pinned: bool,
}

impl Store {
    fn new(budget: &Arc<MemoryBudget>) -> Arc<Self> {
        Arc::new_cyclic(|store| {
            let store: Weak<Self> = store.clone();
            Self {
                entries: Mutex::default(),
                registration: budget.register(store),
                looks: AtomicUsize::new(0),
            }
        })
    }

    fn insert(&self, budget: &Arc<MemoryBudget>, key: u64, bytes: u64) -> bool {
        self.insert_on(List::Inactive, budget, key, bytes)
    }

    fn insert_on(&self, list: List, budget: &Arc<MemoryBudget>, key: u64, bytes: u64) -> bool {
        let Some(charge) = budget.charge(bytes) else {
            return false;
        };
        let id = budget
            .lru()
            .insert(self.registration.id(), key, bytes, list);
        let stored = Stored {
            charge,
            bytes,
            id,
            heat: Heat::default(),
            pinned: false,
        };
        if let Some(old) = self.entries.lock().insert(key, stored) {
            budget.lru().remove(old.id);
        }
        true
    }

    fn touch(&self, key: u64) -> bool {
        let entries = self.entries.lock();
        let entry = entries.get(&key);
        entry.inspect(|entry| entry.heat.touch()).is_some()
    }

    fn has(&self, key: u64) -> bool {
        self.entries.lock().contains_key(&key)
    }
}

impl Owner for Store {
    fn take_heat(&self, key: u64, id: LruId) -> bool {
        let entries = self.entries.lock();
        let entry = entries.get(&key);
        entry.is_some_and(|entry| entry.id == id && entry.heat.take_any())
    }

    fn evict(&self, key: u64, id: LruId) -> Verdict {
        self.looks.fetch_add(1, Ordering::Relaxed);
        let mut entries = self.entries.lock();
        let Some(entry) = entries.get(&key).filter(|entry| entry.id == id) else {
            return Verdict::Gone;
        };
        if entry.pinned {
            return Verdict::Busy;
        }
        if entry.heat.take_hot() {
            return Verdict::Hot;
        }
        let Some(Stored { charge, bytes, .. }) = entries.remove(&key) else {
            return Verdict::Gone;
        };
        drop(charge);
        Verdict::Evicted(bytes)
    }
}

#[test]
fn charges_stay_within_the_limit_and_evict_the_oldest() {
    let budget = Arc::new(MemoryBudget::new(1000));
    let store = Store::new(&budget);
    for key in 0..100 {
        assert!(store.insert(&budget, key, 100));
        assert!(budget.used_bytes() <= 1000);
    }
    assert!(store.has(99));
    assert!(!store.has(0));
    assert!(budget.stats().evictions >= 90);
}

#[test]
fn entries_used_twice_outlive_a_scan() {
    let budget = Arc::new(MemoryBudget::new(64 * 100));
    let store = Store::new(&budget);
    for key in 0..10 {
        store.insert(&budget, key, 100);
        store.touch(key);
        store.touch(key);
    }
    for key in 1000..3000 {
        store.insert(&budget, key, 100);
        store.touch(key);
    }
    for key in 0..10 {
        assert!(store.has(key), "{key} was evicted by a scan");
    }
    assert!(budget.stats().active_bytes >= 1000);
}

#[test]
fn cold_active_entries_are_evicted() {
    let budget = Arc::new(MemoryBudget::new(32 * 100));
    let store = Store::new(&budget);
    for key in 0..30 {
        store.insert(&budget, key, 100);
        store.touch(key);
        store.touch(key);
    }
    for key in 1000..1400 {
        store.insert(&budget, key, 100);
        store.touch(key);
        store.touch(key);
    }
    for key in 0..30 {
        assert!(!store.has(key), "{key} stayed although it went cold");
    }
}

/// Dirty pages and pinned buffers, which are inactive, are more than half.
#[test]
fn cold_active_entries_give_way_to_busy_ones() {
    let budget = Arc::new(MemoryBudget::new(4000 * 100));
    let store = Store::new(&budget);
    for key in 0..1900 {
        assert!(store.insert_on(List::Active, &budget, key * 512, 100));
    }
    let insert_busy = |key: u64| {
        let is_there = store.insert(&budget, key * 512, 100);
        let mut entries = store.entries.lock();
        if let Some(stored) = entries.get_mut(&(key * 512)) {
            stored.pinned = true;
        }
        is_there
    };
    for key in 1900..4000 {
        assert!(insert_busy(key));
    }
    let before = store.looks.load(Ordering::Relaxed);
    for key in 4000..4500 {
        assert!(insert_busy(key), "{key}");
    }
    let looks = store.looks.load(Ordering::Relaxed) - before;
    assert!(looks < 8 * 500, "{looks}");
}

#[test]
fn charge_is_refused_if_nothing_is_evictable() {
    let budget = Arc::new(MemoryBudget::new(1000));
    let store = Store::new(&budget);
    for key in 0..10 {
        assert!(store.insert(&budget, key, 100));
        store
            .entries
            .lock()
            .values_mut()
            .for_each(|stored| stored.pinned = true);
    }
    assert!(!store.insert(&budget, 10, 100));
    assert_eq!(budget.stats().refusals, 1);
    assert!(budget.charge(1001).is_none());
    let beyond = budget.charge_beyond(100);
    assert_eq!(budget.used_bytes(), 1100);
    drop(beyond);
    assert_eq!(budget.used_bytes(), 1000);
}

#[test]
fn excess_charges_rarely_scan_if_all_is_busy() {
    let budget = Arc::new(MemoryBudget::new(256_000));
    let store = Store::new(&budget);
    for key in 0..100 {
        assert!(store.insert(&budget, key, 2560));
    }
    for entry in store.entries.lock().values_mut() {
        entry.pinned = true;
    }
    let beyond: Vec<_> = (0..1100).map(|_| budget.charge_beyond(100)).collect();
    let looks = store.looks.load(Ordering::Relaxed);
    assert!(looks <= 1100 / 11 * 512, "{looks} looks");
    for entry in store.entries.lock().values_mut() {
        entry.pinned = false;
    }
    drop(beyond);
    let _beyond: Vec<_> = (0..100).map(|_| budget.charge_beyond(100)).collect();
    assert!(budget.used_bytes() <= 256_000 + 1000, "{budget:?}");
}

#[test]
fn excess_charges_scan_while_entries_cool_down() {
    const ENTRIES: u64 = 40_000;
    let budget = Arc::new(MemoryBudget::new(100 * ENTRIES));
    let store = Store::new(&budget);
    for key in 0..ENTRIES {
        assert!(store.insert(&budget, key, 100));
        assert!(store.touch(key));
    }
    let beyond: Vec<_> = (0..100).map(|_| budget.charge_beyond(100)).collect();
    assert!(
        budget.used_bytes() <= 100 * (ENTRIES + 20),
        "{budget:?} after {} looks",
        store.looks.load(Ordering::Relaxed)
    );
    drop(beyond);
}

#[test]
fn entries_of_a_dropped_owner_are_removed() {
    let budget = Arc::new(MemoryBudget::new(1000));
    let store = Store::new(&budget);
    for key in 0..10 {
        store.insert(&budget, key, 100);
    }
    drop(store);
    assert_eq!(budget.used_bytes(), 0);
    let other = Store::new(&budget);
    for key in 0..100 {
        assert!(other.insert(&budget, key, 100));
    }
    assert!(budget.lru().len() <= 20);
}

#[test]
fn stale_position_does_not_match_its_next_entry() {
    let lru = Lru::default();
    let old = lru.insert(OwnerId(0), 1, 10, List::Inactive);
    lru.remove(old);
    let new = lru.insert(OwnerId(0), 1, 20, List::Inactive);
    assert_ne!(old, new);
    lru.remove(old);
    lru.put_back(old, List::Active);
    assert_eq!(lru.bytes(List::Inactive), 20);
    assert_eq!(lru.len(), 1);
}

proptest! {
    #[test]
    fn accounting_is_exact(steps in prop::collection::vec((0u64..40, 1u64..400, 0u8..4), 1..300)) {
        let budget = Arc::new(MemoryBudget::new(2000));
        let store = Store::new(&budget);
        for (key, bytes, step) in steps {
            match step {
                0 | 1 => { store.insert(&budget, key, bytes); }
                2 => { store.touch(key); }
                _ => {
                    let removed = store.entries.lock().remove(&key);
                    if let Some(stored) = removed {
                        budget.lru().remove(stored.id);
                    }
                }
            }
            let entries = store.entries.lock();
            let sum: u64 = entries.values().map(|stored| stored.bytes).sum();
            prop_assert_eq!(sum, budget.used_bytes());
            prop_assert!(sum <= 2000);
            let stats = budget.stats();
            prop_assert_eq!(stats.active_bytes + stats.inactive_bytes, sum);
            prop_assert_eq!(entries.len(), budget.lru().len());
        }
    }
}
