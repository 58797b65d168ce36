//! Single-threaded tests: lookup, retention and eviction.

use super::*;

const DESIGNS: [Design; 5] = [
    Design::GlobalLock,
    Design::LruList,
    Design::ShardedLru,
    Design::RefBit,
    Design::ShardedClock,
];

fn cache(limit: usize) -> MbCache {
    of_design(Design::default(), limit)
}

fn of_design(design: Design, limit: usize) -> MbCache {
    MbCache::with_limit(design, limit, Arc::new(MemoryBudget::new(1 << 20)))
}

fn of(key: u32) -> Fingerprint {
    Fingerprint {
        key,
        contents: u64::from(key) << 8,
    }
}

fn values(cache: &MbCache, fingerprint: Fingerprint) -> Vec<u64> {
    let mut values = Vec::new();
    let mut found = cache.find_first(fingerprint);
    while let Some(entry) = found {
        values.push(entry.value());
        found = entry.find_next();
    }
    values
}

#[test]
fn blocks_of_one_key_are_found_youngest_first() {
    let cache = cache(1024);
    for value in 0..10 {
        cache.create(of(7), value, true).unwrap();
    }
    cache.create(of(8), 99, true).unwrap();
    assert_eq!(values(&cache, of(7)), (0..10).rev().collect::<Vec<_>>());
    assert_eq!(values(&cache, of(9)), []);
    assert_eq!(cache.len(), 11);
}

#[test]
fn duplicate_pair_is_refused() {
    let cache = cache(1024);
    cache.create(of(7), 1, true).unwrap();
    assert_eq!(cache.create(of(7), 1, false), Err(Exists));
    cache.create(of(8), 1, true).unwrap();
    assert_eq!(cache.len(), 2);
}

#[test]
fn different_contents_of_equal_key_are_not_found() {
    let cache = cache(1024);
    let (one, other) = (
        of(7),
        Fingerprint {
            contents: 1,
            ..of(7)
        },
    );
    cache.create(one, 1, true).unwrap();
    cache.create(other, 2, true).unwrap();
    assert_eq!(values(&cache, one), [1]);
    assert_eq!(values(&cache, other), [2]);
}

#[test]
fn full_block_is_not_found_until_reusable_again() {
    let cache = cache(1024);
    cache.create(of(7), 1, false).unwrap();
    assert_eq!(values(&cache, of(7)), []);
    cache.get(7, 1).unwrap().set_reusable(true);
    assert_eq!(values(&cache, of(7)), [1]);
}

#[test]
fn referenced_and_reusable_are_independent() {
    let cache = cache(1024);
    cache.create(of(7), 1, true).unwrap();
    let entry = cache.get(7, 1).unwrap();
    entry.set_reusable(false);
    entry.touch();
    assert!(!entry.is_reusable());
    assert!(entry.entry.take_referenced());
    entry.set_reusable(true);
    assert!(entry.is_reusable() && !entry.entry.take_referenced());
}

#[test]
fn used_entries_are_not_reclaimed() {
    for design in DESIGNS {
        let cache = of_design(design, 1);
        cache.create(of(7), 1, true).unwrap();
        let entry = cache.get(7, 1).unwrap();
        for _ in 0..10 {
            cache.shrink();
        }
        assert_eq!(cache.len(), 1);
        drop(entry);
        while cache.shrink() > 0 {}
        assert_eq!(cache.len(), 0, "{design:?}");
    }
}

#[test]
fn used_entry_is_returned_instead_of_deleted() {
    let cache = cache(1024);
    cache.create(of(7), 1, true).unwrap();
    let user = cache.find_first(of(7)).unwrap();
    let Removal::InUse(entry) = cache.delete_or_get(7, 1) else {
        panic!("it is in use");
    };
    drop(user);
    entry.wait_unused();
    assert!(matches!(cache.delete_or_get(7, 1), Removal::Deleted));
    assert!(cache.get(7, 1).is_none());
    assert!(matches!(cache.delete_or_get(7, 1), Removal::Deleted));
    assert!(cache.is_empty());
}

#[test]
fn recently_used_entries_survive_eviction() {
    for design in DESIGNS {
        keep_what_is_used(design);
    }
}

fn keep_what_is_used(design: Design) {
    const LIMIT: usize = 256;
    let cache = of_design(design, LIMIT);
    let favourites: Vec<u32> = (0..32).collect();
    for &key in &favourites {
        cache.create(of(key), 1, true).unwrap();
    }
    for key in 1000..10_000 {
        cache.create(of(key), 1, true).unwrap();
        for &key in &favourites {
            if let Some(entry) = cache.find_first(of(key)) {
                entry.touch();
            }
        }
        assert!(cache.len() <= 3 * LIMIT, "{}", cache.len());
    }
    let left = favourites
        .iter()
        .filter(|&&key| cache.get(key, 1).is_some());
    assert_eq!(left.count(), favourites.len(), "{design:?}");
    while cache.shrink() > 0 {}
    assert!(cache.len() <= LIMIT + SHARDS);
}

#[test]
fn slots_are_reused() {
    for design in DESIGNS {
        let cache = of_design(design, 1024);
        for round in 0..1000 {
            cache.create(of(7), round, true).unwrap();
            assert!(matches!(cache.delete_or_get(7, round), Removal::Deleted));
        }
        cache.create(of(7), 1, true).unwrap();
        let slot = cache.shard(7).slot_of(7, 1);
        assert_eq!(slot, Some(0), "{design:?}");
    }
}

#[test]
fn iteration_ends_while_entries_are_added() {
    let cache = cache(1024);
    cache.create(of(7), 0, true).unwrap();
    let mut found = cache.find_first(of(7));
    let mut seen = 0;
    while let Some(entry) = found {
        seen += 1;
        cache.create(of(7), seen, true).unwrap();
        found = entry.find_next();
    }
    assert_eq!(seen, 1);
}

#[test]
fn entry_count_does_not_underflow() {
    let cache = cache(1);
    for value in 0..100 {
        cache.create(of(7), value, true).unwrap();
        while cache.shrink() > 0 {}
        assert!(matches!(cache.delete_or_get(7, value), Removal::Deleted));
        assert!(cache.len() <= 1, "{}", cache.len());
    }
    assert!(cache.is_empty());
    let all = cache.statistics();
    assert_eq!((all.entries, all.inserts), (0, 100));
    assert_eq!(all.deletes + all.reclaimed, 100);
}

#[test]
fn number_of_blocks_of_one_key_is_limited() {
    const LIMIT: usize = 1024;
    let cache = cache(LIMIT);
    for value in 0..50_000 {
        cache.create(of(7), value, true).unwrap();
        assert!(cache.len() <= 2 * LIMIT / SHARDS + 1);
    }
    assert_eq!(cache.find_first(of(7)).unwrap().value(), 49_999);
}

#[test]
fn memory_is_charged_per_entry() {
    let budget = Arc::new(MemoryBudget::new(1 << 20));
    let cache = MbCache::new(Design::default(), Arc::clone(&budget));
    for key in 0..10_000 {
        cache.create(of(key), 1, true).unwrap();
        let _ = cache.create(of(key), 1, true);
    }
    let bytes = (cache.len() * ENTRY_BYTES) as u64;
    assert_eq!(budget.used_bytes(), bytes);
    assert!(bytes <= 2 * budget.limit_bytes() / BUDGET_SHARE + (2 * SHARDS * ENTRY_BYTES) as u64);
    drop(cache);
    assert_eq!(budget.used_bytes(), 0);
}

#[test]
fn operations_are_counted() {
    let cache = cache(1024);
    let _ = cache.create(of(7), 1, true);
    let _ = cache.create(of(7), 1, true);
    drop(cache.find_first(of(7)));
    drop(cache.find_first(of(8)));
    drop(cache.get(7, 1));
    assert!(cache.contains(7, 1) && !cache.contains(7, 2));
    let expected = Statistics {
        entries: 1,
        hits: 1,
        misses: 1,
        inserts: 1,
        ..Statistics::default()
    };
    assert_eq!(cache.statistics(), expected);
}
