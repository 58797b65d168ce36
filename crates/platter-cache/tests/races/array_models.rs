//! Lock-free lookups of the array against its writers.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};

use shuttle::thread;

use crate::Model;
use crate::xarray::{Content, Entry, Insertion, Mark, New, Old, Order, Ref, XArray};

pub(crate) const MODELS: &[Model] = &[
    Model {
        name: "a_lookup_during_a_split_never_gives_an_item_that_does_not_cover_its_index",
        schedules: 1500,
        run: lookup_against_split,
    },
    Model {
        name: "nonuniform_split_never_shows_a_tail_folio_in_anothers_slots",
        schedules: 1500,
        run: || lookup_against_splits_into_levels(71),
    },
    Model {
        name: "a_sibling_whose_canonical_slot_became_a_node_is_not_followed_into_it",
        schedules: 1500,
        run: || lookup_against_splits_into_levels(3),
    },
    Model {
        name: "a_lookup_never_gives_an_item_that_was_dropped",
        schedules: 1500,
        run: lookup_against_replacement,
    },
    Model {
        name: "an_entry_is_found_while_the_tree_above_it_grows_and_shrinks",
        schedules: 1500,
        run: lookup_against_growth,
    },
    Model {
        name: "sibling_of_sibling_lookup_loops_to_the_canonical_slot",
        schedules: 1500,
        run: lookup_against_larger_store,
    },
    Model {
        name: "eviction_and_lookup_decide_on_one_outcome",
        schedules: 1500,
        run: lookup_against_eviction,
    },
    Model {
        name: "of_two_insertions_one_wins",
        schedules: 1500,
        run: insertion_against_insertion,
    },
    Model {
        name: "insertions_over_one_large_shadow_both_succeed",
        schedules: 1500,
        run: insertions_over_a_shadow,
    },
];

/// An item that knows what it covers, and whether it was dropped.
#[derive(Debug)]
struct Item {
    first: u64,
    span: AtomicU64,
    dropped: Arc<AtomicBool>,
}

impl Item {
    fn new(first: u64, order: Order) -> Ref<Self> {
        Ref::new(Self {
            first,
            span: AtomicU64::new(order.span()),
            dropped: Arc::default(),
        })
    }

    fn assert_covers(&self, index: u64) {
        let span = self.span.load(Ordering::Relaxed);
        assert!(
            (self.first..self.first + span).contains(&index),
            "{self:?} for index {index}"
        );
        assert!(
            !self.dropped.load(Ordering::Relaxed),
            "{self:?} was dropped"
        );
    }
}

impl Drop for Item {
    fn drop(&mut self) {
        self.dropped.store(true, Ordering::Relaxed);
    }
}

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

/// Splits the item that covers `index` towards it, as a mapping splits a folio: frozen, all slots
/// leading to the original until every piece is in place.
fn split_item(array: &XArray<Item>, index: u64) -> bool {
    let item = array.get_item(index).unwrap();
    let mut locked = array.lock();
    let mut cursor = locked.cursor(index, Order::ZERO);
    let found = cursor.load().unwrap();
    let Content::Item(seen) = found.content else {
        return false;
    };
    if !seen.is(&item) {
        return false;
    }
    let Ok(frozen) = item.freeze(2) else {
        return false;
    };
    let (first, last) = (found.index, found.last_index());
    cursor.split_minimal();
    let mut piece = locked.cursor(first, Order::ZERO);
    let mut next = piece.find(last);
    while let Some(found) = next {
        if found.index == frozen.first {
            frozen.span.store(found.order.span(), Ordering::Relaxed);
        } else {
            piece.replace(Item::new(found.index, found.order)).unwrap();
        }
        next = piece.find_next(last);
    }
    drop(frozen.thaw());
    locked.assert_invariants();
    true
}

fn lookup_against_split() {
    let array = Arc::new(XArray::new());
    array.add(8, order(2), Item::new(8, order(2))).unwrap();
    let readers: Vec<_> = [9, 11]
        .into_iter()
        .map(|index| {
            let array = Arc::clone(&array);
            thread::spawn(move || {
                for _ in 0..2 {
                    array.get_item(index).unwrap().assert_covers(index);
                }
            })
        })
        .collect();
    split_item(&array, 10);
    for reader in readers {
        reader.join().unwrap();
    }
}

fn lookup_against_splits_into_levels(towards: u64) {
    let array = Arc::new(XArray::new());
    array.add(0, order(7), Item::new(0, order(7))).unwrap();
    let readers: Vec<_> = [70, 127]
        .into_iter()
        .map(|index| {
            let array = Arc::clone(&array);
            thread::spawn(move || array.get_item(index).unwrap().assert_covers(index))
        })
        .collect();
    split_item(&array, towards);
    for reader in readers {
        reader.join().unwrap();
    }
}

fn lookup_against_replacement() {
    let array = Arc::new(XArray::new());
    array
        .add(3, Order::ZERO, Item::new(3, Order::ZERO))
        .unwrap();
    array
        .add(4, Order::ZERO, Item::new(4, Order::ZERO))
        .unwrap();
    let reader = {
        let array = Arc::clone(&array);
        thread::spawn(move || {
            for _ in 0..3 {
                if let Some(item) = array.get_item(3) {
                    item.assert_covers(3);
                }
            }
        })
    };
    for _ in 0..2 {
        let old = array.lock().cursor(3, Order::ZERO).remove();
        assert!(matches!(old, Old::Item(_)));
        drop(old);
        array
            .add(3, Order::ZERO, Item::new(3, Order::ZERO))
            .unwrap();
    }
    reader.join().unwrap();
    array.lock().assert_invariants();
}

fn lookup_against_growth() {
    let array = Arc::new(XArray::new());
    array
        .add(0, Order::ZERO, Item::new(0, Order::ZERO))
        .unwrap();
    let readers: Vec<_> = (0..2)
        .map(|_| {
            let array = Arc::clone(&array);
            thread::spawn(move || array.get_item(0).unwrap().assert_covers(0))
        })
        .collect();
    for index in [1, 64] {
        array
            .add(index, Order::ZERO, Item::new(index, Order::ZERO))
            .unwrap();
        array.lock().cursor(index, Order::ZERO).remove();
    }
    for reader in readers {
        reader.join().unwrap();
    }
    array.lock().assert_invariants();
    assert_eq!(array.node_count(), 0);
}

fn lookup_against_larger_store() {
    let array = Arc::new(XArray::<Item>::new());
    array
        .lock()
        .cursor(2, order(1))
        .store(New::Value(7))
        .unwrap();
    let reader = {
        let array = Arc::clone(&array);
        thread::spawn(move || match array.get(3).unwrap() {
            Entry::Value(value) => assert_eq!(value, 7),
            Entry::Item(item) => item.assert_covers(3),
        })
    };
    let shadow = array.add(0, order(2), Item::new(0, order(2))).unwrap();
    assert_eq!(shadow, Some(7));
    reader.join().unwrap();
    array.get_item(3).unwrap().assert_covers(3);
}

/// Replaces the item by a shadow unless another thread uses it.
fn evict(array: &XArray<Item>, index: u64) -> bool {
    let mut locked = array.lock();
    let mut cursor = locked.cursor(index, Order::ZERO);
    let Some(Content::Item(item)) = cursor.load().map(|found| found.content) else {
        return false;
    };
    let Some(Ok(frozen)) = item.try_get().map(|item| item.freeze(2)) else {
        return false;
    };
    cursor.store(New::Value(1)).unwrap();
    assert_eq!(frozen.thaw().count(), 1);
    true
}

fn lookup_against_eviction() {
    let array = Arc::new(XArray::new());
    array
        .add(1, Order::ZERO, Item::new(1, Order::ZERO))
        .unwrap();
    let reader = {
        let array = Arc::clone(&array);
        thread::spawn(move || match array.get(1).unwrap() {
            Entry::Value(value) => assert_eq!(value, 1),
            Entry::Item(item) => item.assert_covers(1),
        })
    };
    let evicted = evict(&array, 1);
    assert_eq!(evicted, array.get_item(1).is_none());
    reader.join().unwrap();
    array.lock().assert_invariants();
}

fn insertion_against_insertion() {
    let array = Arc::new(XArray::new());
    let wins = Arc::new(AtomicUsize::new(0));
    let other = {
        let (array, wins) = (Arc::clone(&array), Arc::clone(&wins));
        thread::spawn(move || {
            let items = (4..7).map(|index| (Item::new(index, Order::ZERO), Order::ZERO));
            let added = array.lock().add_range(4, items, |_, _| {});
            wins.fetch_add(usize::from(added == 3), Ordering::Relaxed);
        })
    };
    let added = array.add(4, order(2), Item::new(4, order(2)));
    wins.fetch_add(usize::from(added.is_ok()), Ordering::Relaxed);
    drop(added);
    other.join().unwrap();
    assert_eq!(wins.load(Ordering::Relaxed), 1);
    for index in 4..7 {
        array.get_item(index).unwrap().assert_covers(index);
    }
    array.lock().assert_invariants();
}

fn insertions_over_a_shadow() {
    let array = Arc::new(XArray::new());
    array
        .lock()
        .cursor(0, order(7))
        .store(New::Value(9))
        .unwrap();
    let other = {
        let array = Arc::clone(&array);
        thread::spawn(move || {
            let item = Item::new(70, Order::ZERO);
            let shadow = array
                .add_by(Insertion::OneWalk, 70, Order::ZERO, item)
                .unwrap();
            assert_eq!(shadow, Some(9));
        })
    };
    let shadow = array.add_by(
        Insertion::OneWalk,
        71,
        Order::ZERO,
        Item::new(71, Order::ZERO),
    );
    assert_eq!(shadow.unwrap(), Some(9));
    other.join().unwrap();
    for index in 0..128 {
        match array.get(index).unwrap() {
            Entry::Value(value) => assert!(value == 9 && index / 2 != 35),
            Entry::Item(item) => item.assert_covers(index),
        }
    }
    array.lock().assert_invariants();
}
