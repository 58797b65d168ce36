//! Threads on one array, for memory errors that a model of the atomics cannot show.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use crate::xarray::{Content, Entry, New, Order, Ref, XArray};

const ROUNDS: u64 = if cfg!(miri) { 20 } else { 5000 };

/// An item that knows its range, in memory of its own.
#[derive(Debug)]
struct Item(Box<(u64, u64)>);

fn item(index: u64, order: Order) -> Ref<Item> {
    Ref::new(Item(Box::new((index, index + order.span()))))
}

#[test]
fn lookups_run_while_entries_change() {
    let array = XArray::<Item>::new();
    let stop = AtomicBool::new(false);
    let order = Order::new(7).unwrap();
    thread::scope(|scope| {
        let reader = |seed: u64| {
            let (array, stop) = (&array, &stop);
            move || {
                let mut random = seed;
                while !stop.load(Ordering::Relaxed) {
                    random = random
                        .wrapping_mul(6_364_136_223_846_793_005)
                        .wrapping_add(1);
                    let index = random >> 57;
                    if let Some(Entry::Item(found)) = array.get(index) {
                        let (first, end) = *found.0;
                        assert!((first..end).contains(&index), "{first}..{end} for {index}");
                    }
                }
            }
        };
        let readers = [scope.spawn(reader(1)), scope.spawn(reader(2))];
        for round in 0..ROUNDS {
            array.add(0, order, item(0, order)).unwrap();
            split(&array, round % 128);
            array
                .add(1 << (round % 40 + 7), Order::ZERO, item(0, Order::ZERO))
                .unwrap();
            let mut locked = array.lock();
            let mut cursor = locked.cursor(0, Order::ZERO);
            let mut found = cursor.find(u64::MAX);
            while found.is_some() {
                drop(cursor.remove());
                found = cursor.find_next(u64::MAX);
            }
            locked.assert_invariants();
            let shadow = locked.cursor(0, order).store(New::Value(round));
            assert!(shadow.is_ok());
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}

/// Splits the item at 0 towards `index` if no reader uses it.
fn split(array: &XArray<Item>, index: u64) {
    let whole = array.get_item(0).unwrap();
    let mut locked = array.lock();
    let Ok(_frozen) = whole.freeze(2) else {
        return;
    };
    let mut cursor = locked.cursor(index, Order::ZERO);
    cursor.split_minimal();
    cursor.seek(0, Order::ZERO);
    let mut found = cursor.find(127);
    while let Some(piece) = found {
        assert!(matches!(piece.content, Content::Item(_)));
        cursor.replace(item(piece.index, piece.order)).unwrap();
        found = cursor.find_next(127);
    }
}

#[test]
fn item_is_freed_after_all_readers_left() {
    let array = XArray::<Item>::new();
    let order = Order::ZERO;
    array.add(0, order, item(0, order)).unwrap();
    let stop = AtomicBool::new(false);
    thread::scope(|scope| {
        let reader = || {
            while !stop.load(Ordering::Relaxed) {
                if let Some(Entry::Item(found)) = array.get(0) {
                    assert_eq!(*found.0, (0, 1));
                }
            }
        };
        let readers = [scope.spawn(reader), scope.spawn(reader)];
        for _ in 0..20 * ROUNDS {
            drop(array.lock().cursor(0, order).remove());
            array.add(0, order, item(0, order)).unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        for reader in readers {
            reader.join().unwrap();
        }
    });
}
