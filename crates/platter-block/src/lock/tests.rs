//! The order is asserted, and costs nothing where it is not.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use super::*;

type Upper = Mutex<i32, { rank(3, 0) }>;
type Lower = RwLock<i32, { rank(7, 0) }>;

fn two() -> (Upper, Lower) {
    (Mutex::new(1), RwLock::new(2))
}

/// What a wrong order panics with.
#[cfg(debug_assertions)]
fn refusal(lock: impl FnOnce()) -> String {
    let panic = catch_unwind(AssertUnwindSafe(lock)).unwrap_err();
    *panic.downcast::<String>().unwrap()
}

#[test]
fn locks_are_as_large_as_those_below() {
    assert_eq!(size_of::<Upper>(), size_of::<parking_lot::Mutex<i32>>());
    assert_eq!(size_of::<Lower>(), size_of::<parking_lot::RwLock<i32>>());
}

#[test]
fn locks_are_taken_downwards() {
    let (upper, lower) = two();
    let mut first = upper.lock();
    *first += *lower.read();
    *lower.write() += 1;
    drop(first);
    let below = lower.read();
    drop(below);
    assert_eq!((*upper.lock(), *lower.read()), (3, 3));
}

#[test]
#[cfg(debug_assertions)]
fn taking_one_upwards_panics() {
    let (upper, lower) = two();
    let held = lower.read();
    let message = refusal(|| drop(upper.lock()));
    assert!(message.starts_with("rank 3.0 (number 0, "), "{message}");
    assert!(message.contains(" is locked while rank 7.0 ("), "{message}");
    drop(held);
    drop(upper.lock());
}

#[test]
#[cfg(debug_assertions)]
fn taking_another_after_a_leaf_panics() {
    let leaves: [Mutex<()>; 2] = [Mutex::new(()), Mutex::new(())];
    let held = leaves[0].lock();
    let message = refusal(|| drop(leaves[1].lock()));
    assert!(message.starts_with("a leaf ("), "{message}");
    assert!(leaves[1].try_lock().is_some());
    drop(held);
}

#[test]
fn several_of_one_rank_are_taken_in_the_order_of_their_numbers() {
    let (first, second) = (two().1, two().1);
    let _first = first.write();
    let held = second.write_nth(1);
    drop(held);
    let _second = second.read_nth(2);
    #[cfg(debug_assertions)]
    {
        let third = two().1;
        let wrong = catch_unwind(AssertUnwindSafe(|| drop(third.read_nth(1))));
        assert!(wrong.is_err());
    }
}

#[test]
fn waiting_gives_the_lock_up() {
    let pair = Arc::new((two().0, Condvar::new()));
    let other = Arc::clone(&pair);
    let notifier = std::thread::Builder::new().spawn(move || {
        *other.0.lock() = 7;
        other.1.notify_all();
    });
    let mut guard = pair.0.lock();
    pair.1.wait_while(&mut guard, |value| *value != 7);
    drop(guard);
    notifier.unwrap().join().unwrap();
}

#[test]
fn part_of_what_is_guarded_is_held() {
    let pair = Mutex::<_, { rank(1, 2) }>::new((1, 2));
    let part = MutexGuard::map(pair.lock(), |pair| &mut pair.1);
    assert_eq!((*part, pair.try_lock().is_none()), (2, true));
    drop(part);
    let whole = RwLock::<_, { rank(1, 3) }>::new(5);
    let shared = RwLockWriteGuard::downgrade(whole.write());
    assert_eq!((*shared, whole.try_read().is_some()), (5, true));
}
