//! What the cache guarantees: one object, one load, bounded memory, a seat until the very end.

use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Barrier};
use std::thread;

use platter_block::lock::Mutex;

use super::{InodeCache, Seat};
use crate::InodeId;

fn id(number: u64) -> InodeId {
    InodeId { tree: 0, number }
}

#[derive(Debug)]
struct Object {
    serial: usize,
    seat: Seat<Self>,
}

fn load(cache: &InodeCache<Object>, number: u64, loads: &AtomicUsize) -> Arc<Object> {
    let loaded = cache.get_or_load(id(number), |seat| {
        let serial = loads.fetch_add(1, Ordering::Relaxed);
        Ok::<_, ()>(Object { serial, seat })
    });
    loaded.unwrap()
}

#[test]
fn an_inode_in_use_is_loaded_once() {
    let (cache, loads) = (InodeCache::new(0), AtomicUsize::new(0));
    let first = load(&cache, 7, &loads);
    let second = load(&cache, 7, &loads);
    assert!(Arc::ptr_eq(&first, &second));
    assert_eq!(first.seat.id(), id(7));
    assert!(Arc::ptr_eq(&first, &cache.get(id(7)).unwrap()));
    drop((first, second));
    assert!(cache.get(id(7)).is_none());
    assert_eq!(load(&cache, 7, &loads).serial, 1);
}

#[test]
fn trees_do_not_share_inode_numbers() {
    let (cache, loads) = (InodeCache::new(8), AtomicUsize::new(0));
    let _first = load(&cache, 7, &loads);
    assert!(cache.get(InodeId { tree: 1, number: 7 }).is_none());
}

#[test]
fn recent_inodes_stay_and_their_number_is_bounded() {
    let (cache, loads) = (InodeCache::new(640), AtomicUsize::new(0));
    for number in 0..10_000 {
        load(&cache, number, &loads);
    }
    let live = cache.live();
    assert!(live.len() <= 640, "{} alive", live.len());
    assert!(live.len() >= 630, "{} alive", live.len());
    drop(live);
    cache.release_all();
    assert!(cache.live().is_empty());
}

#[test]
fn few_of_those_that_are_cheap_stay_unless_they_are_used() {
    let loads = AtomicUsize::new(0);
    let cache = InodeCache::sparing(1600, |object: &Object| {
        object.seat.id().number.is_multiple_of(2)
    });
    let held = load(&cache, 0, &loads);
    for number in 1..10_000 {
        load(&cache, 2 * number, &loads);
    }
    let live = cache.live().len();
    assert!((120..=130).contains(&live), "{live} alive");
    for number in 0..1000 {
        load(&cache, 2 * number + 1, &loads);
    }
    let is_there = |number: u64| cache.get(id(2 * number + 1)).is_some();
    assert!((0..1000).all(is_there), "what is not cheap stays");
    drop(held);
    assert!(cache.get(id(0)).is_some(), "it was in use all the time");
}

#[test]
fn what_is_used_again_and_again_is_not_evicted() {
    let (cache, loads) = (InodeCache::new(256), AtomicUsize::new(0));
    let serial = load(&cache, 1, &loads).serial;
    for number in 100..5_000 {
        load(&cache, number, &loads);
        assert_eq!(load(&cache, 1, &loads).serial, serial);
    }
}

#[test]
fn a_released_inode_goes_with_its_last_user() {
    let (cache, loads) = (InodeCache::new(64), AtomicUsize::new(0));
    let held = load(&cache, 1, &loads);
    load(&cache, 2, &loads);
    cache.release(id(1));
    cache.release(id(2));
    assert!(cache.get(id(2)).is_none());
    assert!(cache.get(id(1)).is_some(), "it is still in use");
    drop(held);
    assert!(cache.get(id(1)).is_none());
}

#[test]
fn a_failed_load_leaves_the_next_one_free() {
    let (cache, loads) = (InodeCache::<Object>::new(8), AtomicUsize::new(0));
    let failed = cache.get_or_load(id(3), |_seat| Err::<Object, _>("unreadable"));
    assert_eq!(failed.unwrap_err(), "unreadable");
    assert!(cache.get(id(3)).is_none());
    load(&cache, 3, &loads);
}

#[test]
fn a_panicking_load_leaves_the_next_one_free() {
    let (cache, loads) = (Arc::new(InodeCache::<Object>::new(8)), AtomicUsize::new(0));
    let broken = Arc::clone(&cache);
    let worker = thread::Builder::new().spawn(move || {
        let _ = broken.get_or_load(id(3), |_seat| -> Result<Object, ()> {
            panic!("a driver bug")
        });
    });
    assert!(worker.unwrap().join().is_err());
    load(&cache, 3, &loads);
}

#[test]
fn concurrent_loads_of_one_inode_run_once() {
    const THREADS: usize = 8;
    let cache = InodeCache::new(10_000);
    let (loads, start) = (AtomicUsize::new(0), Barrier::new(THREADS));
    thread::scope(|scope| {
        for _ in 0..THREADS {
            scope.spawn(|| {
                start.wait();
                for round in 0..200 {
                    assert_eq!(load(&cache, round, &loads).seat.id(), id(round));
                }
            });
        }
    });
    assert_eq!(loads.into_inner(), 200);
}

/// An inode whose drop waits for a word, as one whose last user frees its blocks would.
struct Slow {
    dropping: Sender<()>,
    go_on: Mutex<Receiver<()>>,
    _seat: Seat<Self>,
}

impl Drop for Slow {
    fn drop(&mut self) {
        self.dropping.send(()).unwrap();
        self.go_on.lock().recv().unwrap();
    }
}

#[test]
fn no_second_object_while_the_first_is_being_dropped() {
    let cache = InodeCache::new(0);
    let (dropping, dropping_seen) = channel();
    let (go_on_sender, go_on) = channel();
    let slow = cache.get_or_load(id(5), |seat| {
        Ok::<_, ()>(Slow {
            dropping,
            go_on: Mutex::new(go_on),
            _seat: seat,
        })
    });
    let loads = AtomicUsize::new(0);
    thread::scope(|scope| {
        scope.spawn(move || drop(slow));
        dropping_seen.recv().unwrap();
        assert!(
            cache.get(id(5)).is_none(),
            "a dying inode is not handed out"
        );
        let second = scope.spawn(|| {
            cache.get_or_load(id(5), |seat| {
                loads.fetch_add(1, Ordering::SeqCst);
                drop(seat);
                Err::<Slow, _>(())
            })
        });
        thread::yield_now();
        assert_eq!(loads.load(Ordering::SeqCst), 0);
        go_on_sender.send(()).unwrap();
        assert!(second.join().unwrap().is_err());
    });
    assert_eq!(loads.into_inner(), 1);
}

#[test]
#[should_panic(expected = "a loaded inode keeps its seat")]
fn an_object_without_its_seat_is_a_bug() {
    let cache = InodeCache::new(8);
    let _ = cache.get_or_load(id(1), |seat| {
        drop(seat);
        Ok::<_, ()>(0)
    });
}

#[test]
fn a_cache_dropped_with_recent_inodes_frees_them() {
    let (cache, loads) = (InodeCache::new(64), AtomicUsize::new(0));
    let object = load(&cache, 1, &loads);
    let weak = Arc::downgrade(&object);
    drop(object);
    assert!(weak.upgrade().is_some());
    drop(cache);
    assert!(weak.upgrade().is_none());
}

#[test]
fn withdrawn_inode_is_not_found_until_it_is_gone() {
    let (cache, loads) = (Arc::new(InodeCache::new(16)), AtomicUsize::new(0));
    let object = load(&cache, 7, &loads);
    let other = Arc::clone(&object);
    assert!(!cache.withdraw(id(7), &object), "it has another user");
    drop(other);
    assert!(cache.withdraw(id(7), &object));
    assert!(cache.get(id(7)).is_none());
    thread::scope(|scope| {
        let waiting = scope.spawn(|| load(&cache, 7, &loads).serial);
        thread::yield_now();
        assert_eq!(loads.load(Ordering::Relaxed), 1);
        drop(object);
        assert_eq!(waiting.join().unwrap(), 1);
    });
}
