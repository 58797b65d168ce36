//! Bugs of page caches, each as a regression test.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use crate::sync::epoch;
use crate::xarray::raw::{NodeBox, Stored};
use crate::xarray::{
    Content, Entry, Insertion, New, Old, Order, Ref, Seen, SplitPlan, SplitReserve, XArray,
    load_covering,
};

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn shadowed(value: u64, k: u8) -> XArray<u32> {
    let array = XArray::new();
    array
        .lock()
        .cursor(0, order(k))
        .store(New::Value(value))
        .unwrap();
    array
}

fn reserve(array: &XArray<u32>) -> SplitReserve<u32> {
    let mut locked = array.lock();
    let found = locked.cursor(5, Order::ZERO).load().unwrap();
    let plan = SplitPlan::new(&found, Order::ZERO);
    drop(locked);
    SplitReserve::new(plan)
}

/// Splitting with an order that was read before the lock was taken corrupted page caches: pages
/// of one file position turned up at another.
#[test]
fn split_with_stale_order_is_refused() {
    let array = shadowed(7, 9);
    let stale = reserve(&array);
    assert_eq!(array.lock().cursor(256, order(8)).split_minimal(), 0);
    let mut locked = array.lock();
    let plan = stale.plan();
    let refused = locked.cursor(5, Order::ZERO).split(stale).unwrap_err();
    assert_eq!(refused.plan(), plan);
    let found = locked.cursor(5, Order::ZERO).load().unwrap();
    assert_eq!(found.order, order(8), "nothing was split");
    locked.assert_invariants();
}

#[test]
fn split_of_another_entry_is_refused() {
    let array = shadowed(7, 9);
    let stale = reserve(&array);
    array
        .lock()
        .cursor(0, order(9))
        .store(New::Value(8))
        .unwrap();
    assert!(array.lock().cursor(5, Order::ZERO).split(stale).is_err());
    let stale = reserve(&array);
    array.lock().cursor(0, order(9)).remove();
    assert!(array.lock().cursor(5, Order::ZERO).split(stale).is_err());
    let item = Ref::new(1);
    array.add(0, order(9), item.clone()).unwrap();
    let stale = reserve(&array);
    array
        .lock()
        .cursor(0, order(9))
        .replace(Ref::new(2))
        .unwrap();
    assert!(array.lock().cursor(5, Order::ZERO).split(stale).is_err());
    array.lock().assert_invariants();
}

/// The insertion retries with a new reserve when another thread splits the shadow between the
/// preparation and the lock.
#[test]
fn insertion_survives_a_concurrent_split() {
    let array = shadowed(7, 9);
    let stale = reserve(&array);
    array.add(0, Order::ZERO, Ref::new(1)).unwrap();
    assert!(array.lock().cursor(5, Order::ZERO).split(stale).is_err());
    assert_eq!(
        array
            .add_by(Insertion::OneWalk, 5, Order::ZERO, Ref::new(2))
            .unwrap(),
        Some(7)
    );
    for (index, number) in [(0, 1), (5, 2)] {
        assert_eq!(*array.get_item(index).unwrap(), number);
    }
    assert!(matches!(array.get(4), Some(Entry::Value(7))));
    array.lock().assert_invariants();
}

/// A lookup that loads a sibling while a larger entry is stored over it finds a sibling again.
#[test]
fn sibling_of_sibling_lookup_loops_to_the_canonical_slot() {
    let node = NodeBox::<u32>::new(0);
    let slot = |offset| node.as_node().slot(offset);
    slot(0).swap(Stored::Value(7));
    slot(4).swap(Stored::Sibling(0));
    slot(5).swap(Stored::Sibling(4));
    let pin = epoch::pin();
    let loaded = load_covering(node.as_node(), 5, &pin).ok().unwrap();
    assert!(matches!(loaded.seen(), Seen::Value(7)));
}

/// A sibling whose canonical slot turned into a node is stale: that node belongs to another range.
#[test]
fn sibling_of_a_new_node_restarts_the_lookup() {
    let node = NodeBox::<u32>::new(6);
    let slot = |offset| node.as_node().slot(offset);
    let below = NodeBox::new(0);
    below.as_node().slot(0).swap(Stored::Value(7));
    slot(4).swap(Stored::Node(below));
    slot(5).swap(Stored::Sibling(4));
    let pin = epoch::pin();
    assert!(load_covering(node.as_node(), 5 << 6, &pin).is_err());
    assert!(load_covering(node.as_node(), 4 << 6, &pin).is_ok());
}

/// Complete splits once worked for one level only, which limited the order of folios to 11.
#[test]
fn order_above_11_splits() {
    for k in [12, 13, 17] {
        let array = shadowed(7, k);
        assert_eq!(
            array.add((1 << k) - 1, Order::ZERO, Ref::new(1)).unwrap(),
            Some(7)
        );
        assert_eq!(*array.get_item((1 << k) - 1).unwrap(), 1);
        assert!(matches!(array.get((1 << k) - 2), Some(Entry::Value(7))));
        array.lock().assert_invariants();
    }
    let array = shadowed(7, 12);
    assert_eq!(
        array
            .add_by(Insertion::OneWalk, 77, Order::ZERO, Ref::new(1))
            .unwrap(),
        Some(7)
    );
    assert_eq!(array.node_count(), 1 + 1 + 64);
    for index in 0..4096 {
        let expected = matches!(array.get(index), Some(Entry::Value(7)));
        assert_eq!(expected, index != 77);
    }
    array.lock().assert_invariants();
}

/// While an item is split and until the pieces are stored, every slot of the old range refers to
/// the frozen original, which readers cannot get.
#[test]
fn slots_refer_to_the_frozen_original_during_a_split() {
    let array = XArray::new();
    let original = Ref::new(0);
    array.add(0, order(9), original.clone()).unwrap();
    let mut locked = array.lock();
    let frozen = original.freeze(2).unwrap();
    let mut cursor = locked.cursor(300, Order::ZERO);
    cursor.split_minimal();
    assert_eq!(frozen.count(), 0);
    let mut pieces = Vec::new();
    let mut cursor = locked.cursor(0, Order::ZERO);
    let mut found = cursor.find(u64::MAX);
    while let Some(piece) = found {
        let Content::Item(item) = piece.content else {
            panic!("only items were stored");
        };
        assert!(item.is(&frozen));
        assert!(item.try_get().is_none(), "frozen");
        pieces.push((piece.index, piece.order));
        found = cursor.find_next(u64::MAX);
    }
    assert_eq!(pieces.len(), 10, "orders 8 to 0, and 0 again");
    for (number, &(index, order)) in pieces.iter().enumerate().skip(1) {
        let piece = Ref::new(u32::try_from(number).unwrap());
        let old = locked.cursor(index, order).replace(piece).unwrap();
        assert!(old.is_same(&frozen));
    }
    let original = frozen.thaw();
    assert_eq!(
        original.count(),
        2,
        "the array's one for the first piece, and ours"
    );
    locked.assert_invariants();
    drop(locked);
    for (number, (index, order)) in pieces.into_iter().enumerate() {
        for index in index..index + order.span() {
            assert_eq!(*array.get_item(index).unwrap() as usize, number);
        }
    }
}

#[test]
fn item_with_other_references_cannot_be_frozen() {
    let array = XArray::new();
    let item = Ref::new(0);
    array.add(0, Order::ZERO, item.clone()).unwrap();
    let reader = array.get_item(0).unwrap();
    let item = item.freeze(2).unwrap_err();
    drop(reader);
    let frozen = item.freeze(2).unwrap();
    drop(frozen);
    assert!(array.get_item(0).is_some());
}

/// A refused insertion leaves counts and contents unchanged.
#[test]
fn refused_insertion_changes_nothing() {
    let array = shadowed(7, 9);
    let present = Ref::new(1);
    array.add(100, Order::ZERO, present.clone()).unwrap();
    let before = array.node_count();
    let item = Ref::new(2);
    let refused = array.add(0, order(9), item.clone()).unwrap_err().0;
    assert!(refused.is_same(&item));
    drop(refused);
    assert_eq!((item.count(), present.count()), (1, 2));
    assert_eq!(array.node_count(), before);
    assert!(matches!(array.get(99), Some(Entry::Value(7))));
    array.lock().assert_invariants();
}

/// An item is dropped exactly once, and not before its last slot and reference is gone.
#[test]
fn item_is_dropped_with_its_last_reference() {
    #[derive(Debug)]
    struct Counted(Arc<AtomicUsize>);
    impl Drop for Counted {
        fn drop(&mut self) {
            self.0.fetch_add(1, Ordering::Relaxed);
        }
    }
    let drops = Arc::new(AtomicUsize::new(0));
    let dropped = || drops.load(Ordering::Relaxed);
    let array = XArray::new();
    array
        .add(0, order(9), Ref::new(Counted(drops.clone())))
        .unwrap();
    array.lock().cursor(5, Order::ZERO).split_minimal();
    let held = array.get_item(400).unwrap();
    let mut locked = array.lock();
    let mut cursor = locked.cursor(0, Order::ZERO);
    while cursor.find(u64::MAX).is_some() {
        assert!(matches!(cursor.remove(), Old::Item(_)));
    }
    locked.assert_invariants();
    drop(locked);
    assert_eq!((dropped(), array.node_count()), (0, 0));
    drop(held);
    assert_eq!(dropped(), 1);
    for index in 0..1000 {
        array
            .add(index * 7, Order::ZERO, Ref::new(Counted(drops.clone())))
            .unwrap();
    }
    drop(array);
    assert_eq!(dropped(), 1001);
}
