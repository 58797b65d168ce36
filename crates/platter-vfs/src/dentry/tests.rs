//! What is remembered, and what must not be.

use super::{DentryCache, Recall, Remembered, Ticket};
use crate::{InodeId, Name};

fn id(number: u64) -> InodeId {
    InodeId { tree: 0, number }
}

fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

fn file(number: u64) -> Remembered {
    Remembered::File(id(number))
}

#[track_caller]
fn ticket(cache: &DentryCache, dir: u64, text: &str) -> Ticket {
    match cache.recall(id(dir), name(text)) {
        Recall::Unknown(ticket) => ticket,
        Recall::Known(found) => panic!("{found:?} is remembered"),
    }
}

fn put(cache: &DentryCache, dir: u64, text: &str, found: Remembered) {
    let ticket = ticket(cache, dir, text);
    cache.remember(&ticket, id(dir), name(text), found);
}

#[track_caller]
fn known(cache: &DentryCache, dir: u64, text: &str) -> Remembered {
    match cache.recall(id(dir), name(text)) {
        Recall::Known(found) => found,
        Recall::Unknown(_) => panic!("{text} is not remembered"),
    }
}

#[test]
fn files_and_missing_names_are_remembered() {
    let cache = DentryCache::new(100);
    assert!(cache.is_empty());
    put(&cache, 1, "there", file(7));
    put(&cache, 1, "gone", Remembered::Missing);
    put(&cache, 2, "there", file(8));
    assert_eq!(known(&cache, 1, "there"), file(7));
    assert_eq!(known(&cache, 1, "gone"), Remembered::Missing);
    assert_eq!(known(&cache, 2, "there"), file(8));
    assert_eq!(cache.len(), 3);
}

#[test]
fn the_number_of_names_is_bounded() {
    let cache = DentryCache::new(160);
    for number in 0..5_000 {
        put(&cache, number % 100, &format!("name{number}"), file(number));
    }
    assert!(cache.len() <= 160, "{}", cache.len());
    assert!(cache.len() >= 150, "{}", cache.len());
}

#[test]
fn a_change_forgets_its_name_only() {
    let cache = DentryCache::new(100);
    put(&cache, 1, "a", file(7));
    put(&cache, 1, "b", file(8));
    drop(cache.change(id(1), name("a")));
    let _ = ticket(&cache, 1, "a");
    assert_eq!(known(&cache, 1, "b"), file(8));
}

#[test]
fn a_change_of_a_directory_forgets_all_its_names() {
    let cache = DentryCache::new(10_000);
    for number in 0..200 {
        put(&cache, 1, &format!("{number}"), file(number));
        put(&cache, 2, &format!("{number}"), file(number));
    }
    drop(cache.change_directory(id(1)));
    assert_eq!(cache.len(), 200);
    assert_eq!(known(&cache, 2, "5"), file(5));
}

#[test]
fn lookup_from_before_a_change_is_not_cached_after_it() {
    let cache = DentryCache::new(100);
    let before = ticket(&cache, 1, "a");
    let change = cache.change(id(1), name("a"));
    let during = ticket(&cache, 1, "a");
    drop(change);
    cache.remember(&before, id(1), name("a"), file(7));
    cache.remember(&during, id(1), name("a"), file(7));
    put(&cache, 1, "a", file(8));
    assert_eq!(known(&cache, 1, "a"), file(8));
}

#[test]
fn nothing_is_remembered_during_a_change() {
    let cache = DentryCache::new(100);
    let first = cache.change(id(1), name("a"));
    let second = cache.change(id(1), name("b"));
    put(&cache, 1, "a", file(7));
    drop(first);
    put(&cache, 1, "a", file(7));
    assert!(cache.is_empty(), "another change is still under way");
    drop(second);
    put(&cache, 1, "a", file(7));
    assert_eq!(known(&cache, 1, "a"), file(7));
}
