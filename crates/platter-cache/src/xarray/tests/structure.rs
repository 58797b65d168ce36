//! The structure of the tree: growing, shrinking, freeing and marks.

use crate::xarray::{Entry, Mark, New, Old, Order, Ref, XArray, last_index};

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

#[test]
fn single_entry_needs_no_node() {
    let array = XArray::new();
    array.add(0, Order::ZERO, Ref::new(1)).unwrap();
    assert_eq!(array.node_count(), 0);
    assert!(array.get(1).is_none());
    assert!(array.get(u64::MAX).is_none());
    array.lock().cursor(0, Order::ZERO).set_mark(Mark::B);
    array.add(1, Order::ZERO, Ref::new(2)).unwrap();
    assert_eq!(array.node_count(), 1);
    assert!(
        array.lock().cursor(0, Order::ZERO).is_marked(Mark::B),
        "marks move down"
    );
    array.lock().cursor(1, Order::ZERO).remove();
    assert_eq!(array.node_count(), 0, "and the entry back into the head");
    assert!(array.lock().cursor(0, Order::ZERO).is_marked(Mark::B));
    assert_eq!(*array.get_item(0).unwrap(), 1);
}

#[test]
fn tree_grows_to_every_index_and_shrinks() {
    let array = XArray::new();
    let indexes = [
        0,
        63,
        64,
        4095,
        4096,
        1 << 30,
        1 << 60,
        u64::MAX - 1,
        u64::MAX,
    ];
    for index in indexes {
        array.add(index, Order::ZERO, Ref::new(index)).unwrap();
        array.lock().assert_invariants();
    }
    for index in indexes {
        assert_eq!(*array.get_item(index).unwrap(), index);
    }
    for index in indexes.into_iter().rev() {
        assert!(matches!(
            array.lock().cursor(index, Order::ZERO).remove(),
            Old::Item(_)
        ));
        array.lock().assert_invariants();
        assert!(array.get(index).is_none());
    }
    assert_eq!(array.node_count(), 0);
}

#[test]
fn empty_nodes_are_freed() {
    let array = XArray::new();
    array.add(0, Order::ZERO, Ref::new(0)).unwrap();
    array.add(1 << 24, Order::ZERO, Ref::new(1)).unwrap();
    assert_eq!(array.node_count(), 9);
    array.lock().cursor(1 << 24, Order::ZERO).remove();
    assert_eq!(array.node_count(), 0);
}

#[test]
fn counts_cover_siblings_and_values() {
    let array = XArray::<u32>::new();
    array
        .lock()
        .cursor(0, order(3))
        .store(New::Value(1))
        .unwrap();
    assert_eq!(array.value_node_count(), 1);
    array
        .lock()
        .cursor(8, order(3))
        .store(New::Item(Ref::new(2)))
        .unwrap();
    assert_eq!(array.value_node_count(), 0);
    array.lock().assert_invariants();
    array
        .lock()
        .cursor(8, order(3))
        .store(New::Value(3))
        .unwrap();
    assert_eq!(array.value_node_count(), 1);
    array.lock().assert_invariants();
}

#[test]
fn high_order_entry_uses_one_slot_of_a_high_level() {
    let array = XArray::new();
    array.add(0, order(12), Ref::new(1)).unwrap();
    assert_eq!(array.node_count(), 1);
    assert_eq!(*array.get_item(4095).unwrap(), 1);
    assert!(array.get(4096).is_none());
}

#[test]
fn storing_over_smaller_entries_drops_them_and_their_nodes() {
    let array = XArray::new();
    let items: Vec<_> = (0..512).map(Ref::new).collect();
    for (index, item) in (0..).zip(&items) {
        array.add(index, Order::ZERO, item.clone()).unwrap();
        array.lock().cursor(index, Order::ZERO).set_mark(Mark::A);
    }
    array
        .lock()
        .cursor(0, order(9))
        .store(New::Item(Ref::new(9)))
        .unwrap();
    assert_eq!(array.node_count(), 1);
    assert!(!array.is_any_marked(Mark::A), "a new entry is unmarked");
    assert!(items.iter().all(|item| item.count() == 1));
    array.lock().assert_invariants();
}

#[test]
fn larger_entry_is_not_overwritten() {
    let array = XArray::new();
    array.add(0, order(4), Ref::new(1)).unwrap();
    let larger = array
        .lock()
        .cursor(5, Order::ZERO)
        .store(New::Value(1))
        .unwrap_err();
    assert_eq!(larger.order, order(4));
    assert_eq!(*array.get_item(5).unwrap(), 1);
}

#[test]
fn pieces_of_a_split_keep_the_marks() {
    for whole in [false, true] {
        let array = XArray::<u32>::new();
        array
            .lock()
            .cursor(512, order(9))
            .store(New::Value(7))
            .unwrap();
        let mut locked = array.lock();
        let mut cursor = locked.cursor(700, Order::ZERO);
        cursor.set_mark(Mark::A);
        cursor.set_mark(Mark::C);
        if whole {
            let plan = crate::xarray::SplitPlan::new(&cursor.load().unwrap(), Order::ZERO);
            cursor
                .split(crate::xarray::SplitReserve::new(plan))
                .unwrap();
        } else {
            cursor.split_minimal();
        }
        locked.assert_invariants();
        let mut found = 0;
        let mut cursor = locked.cursor(0, Order::ZERO);
        let mut entry = cursor.find_marked(u64::MAX, Mark::C);
        while entry.is_some() {
            assert!(cursor.is_marked(Mark::A) && !cursor.is_marked(Mark::B));
            found += 1;
            entry = cursor.find_next_marked(u64::MAX, Mark::C);
        }
        assert_eq!(found, if whole { 512 } else { 10 });
    }
}

#[test]
fn value_has_63_bits() {
    let array = XArray::<u32>::new();
    array
        .lock()
        .cursor(3, Order::ZERO)
        .store(New::Value((1 << 63) - 1))
        .unwrap();
    assert!(matches!(array.get(3), Some(Entry::Value(value)) if value == (1 << 63) - 1));
}

#[test]
fn last_indexes_of_levels() {
    assert_eq!(last_index(0), 63);
    assert_eq!(last_index(6), 4095);
    assert_eq!(last_index(54), (1 << 60) - 1);
    assert_eq!(last_index(60), u64::MAX);
}
