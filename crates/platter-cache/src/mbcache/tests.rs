//! One thread at a time: what is found, what stays, what goes.

use super::*;

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
    values.sort_unstable();
    values
}

#[test]
fn blocks_of_one_key_are_found_one_after_the_other() {
    let cache = MbCache::new(1024);
    for value in 0..10 {
        cache.create(of(7), value, true).unwrap();
    }
    cache.create(of(8), 99, true).unwrap();
    assert_eq!(values(&cache, of(7)), (0..10).collect::<Vec<_>>());
    assert_eq!(values(&cache, of(9)), []);
    assert_eq!(cache.len(), 11);
}

#[test]
fn a_pair_is_there_once() {
    let cache = MbCache::new(1024);
    cache.create(of(7), 1, true).unwrap();
    assert_eq!(cache.create(of(7), 1, false), Err(Exists));
    cache.create(of(8), 1, true).unwrap();
    assert_eq!(cache.len(), 2);
}

#[test]
fn other_contents_under_the_same_key_are_not_suggested() {
    let cache = MbCache::new(1024);
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
fn a_full_block_is_not_suggested_until_it_has_room_again() {
    let cache = MbCache::new(1024);
    cache.create(of(7), 1, false).unwrap();
    assert_eq!(values(&cache, of(7)), []);
    cache.get(7, 1).unwrap().set_reusable(true);
    assert_eq!(values(&cache, of(7)), [1]);
}

#[test]
fn referenced_and_reusable_do_not_touch_each_other() {
    let cache = MbCache::new(1024);
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
    let cache = MbCache::new(1);
    cache.create(of(7), 1, true).unwrap();
    let entry = cache.get(7, 1).unwrap();
    for _ in 0..10 {
        cache.shrink();
    }
    assert_eq!(cache.len(), 1);
    drop(entry);
    while cache.shrink() > 0 {}
    assert_eq!(cache.len(), 0);
}

#[test]
fn an_entry_in_hand_is_given_instead_of_deleted() {
    let cache = MbCache::new(1024);
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
fn what_is_used_stays_when_entries_have_to_go() {
    const LIMIT: usize = 256;
    let cache = MbCache::new(LIMIT);
    let favourites: Vec<u32> = (0..32).collect();
    for &key in &favourites {
        cache.create(of(key), 1, true).unwrap();
    }
    for key in 1000..20_000 {
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
    assert_eq!(left.count(), favourites.len());
    while cache.shrink() > 0 {}
    assert!(cache.len() <= LIMIT + SHARDS);
}

#[test]
fn slots_are_used_again() {
    let cache = MbCache::new(1024);
    for round in 0..1000 {
        cache.create(of(7), round, true).unwrap();
        assert!(matches!(cache.delete_or_get(7, round), Removal::Deleted));
    }
    cache.create(of(7), 1, true).unwrap();
    assert_eq!(cache.find_first(of(7)).unwrap().slot, 0);
}
