//! Exact counts: walks per insertion, nodes per split.

use crate::xarray::{Counts, Insertion, New, Order, Ref, SplitPlan, SplitReserve, XArray};

fn order(order: u8) -> Order {
    Order::new(order).unwrap()
}

fn cost<R>(action: impl FnOnce() -> R) -> (Counts, R) {
    let before = Counts::now();
    let result = action();
    (Counts::now().since(before), result)
}

/// An array with a value of `order` at `index`, and items around it so that the tree has levels.
fn with_shadow(index: u64, order: Order) -> XArray<u32> {
    let array = XArray::new();
    array.add(1 << 20, Order::ZERO, Ref::new(0)).unwrap();
    array
        .lock()
        .cursor(index, order)
        .store(New::Value(7))
        .unwrap();
    array
}

#[test]
fn add_is_one_walk() {
    let array = XArray::new();
    for index in [0, 1, 64, 63, 4096, 1 << 40, u64::MAX] {
        let (cost, added) = cost(|| array.add(index, Order::ZERO, Ref::new(0)));
        added.unwrap();
        assert_eq!(cost.walks, 1, "index {index}");
    }
}

#[test]
fn add_over_a_shadow_of_equal_order_is_one_walk() {
    for k in [0, 3, 6, 9] {
        let array = with_shadow(512, order(k));
        let (cost, shadow) = cost(|| array.add(512, order(k), Ref::new(1)));
        assert_eq!(shadow.unwrap(), Some(7));
        assert_eq!((cost.walks, cost.nodes), (1, 0), "order {k}");
    }
}

#[test]
fn add_over_smaller_shadows_is_one_walk() {
    let array = with_shadow(512, Order::ZERO);
    array
        .lock()
        .cursor(600, order(2))
        .store(New::Value(8))
        .unwrap();
    let (cost, shadow) = cost(|| array.add(512, order(9), Ref::new(1)));
    assert_eq!(shadow.unwrap(), Some(8));
    assert_eq!(cost.walks, 1);
    array.lock().assert_invariants();
}

#[test]
fn add_with_minimal_split_is_one_walk() {
    let array = with_shadow(512, order(9));
    let (minimal, shadow) = cost(|| array.add(600, Order::ZERO, Ref::new(1)));
    assert_eq!(shadow.unwrap(), Some(7));
    assert_eq!((minimal.walks, minimal.nodes), (1, 1));
    let array = with_shadow(512, order(9));
    let (whole, shadow) = cost(|| array.add_by(Insertion::OneWalk, 600, Order::ZERO, Ref::new(1)));
    assert_eq!(shadow.unwrap(), Some(7));
    assert_eq!((whole.walks, whole.nodes), (3, 8));
    let (plain, shadow) = cost(|| array.add_by(Insertion::OneWalk, 601, Order::ZERO, Ref::new(1)));
    assert_eq!(shadow.unwrap(), Some(7));
    assert_eq!((plain.walks, plain.nodes), (1, 0));
    array.lock().assert_invariants();
}

#[test]
fn three_walks_insertion_is_four_walks_with_a_split() {
    let array = with_shadow(512, order(9));
    let add = |index| array.add_by(Insertion::ThreeWalks, index, Order::ZERO, Ref::new(1));
    let (whole, shadow) = cost(|| add(600));
    assert_eq!(shadow.unwrap(), Some(7));
    assert_eq!((whole.walks, whole.nodes), (4, 8));
    let (plain, shadow) = cost(|| add(601));
    assert_eq!(shadow.unwrap(), Some(7));
    assert_eq!((plain.walks, plain.nodes), (3, 0));
    assert!(add(601).is_err());
    let (fresh, shadow) = cost(|| add(5000));
    assert_eq!((fresh.walks, shadow.unwrap()), (2, None));
    array.lock().assert_invariants();
}

#[test]
fn refused_add_is_one_walk() {
    let array = with_shadow(512, order(9));
    array.add(600, Order::ZERO, Ref::new(1)).unwrap();
    let (cost, added) = cost(|| array.add(512, order(9), Ref::new(2)));
    assert!(added.is_err());
    assert_eq!(cost.walks, 1);
}

#[test]
fn order_9_split_needs_1_node_minimally_8_completely() {
    let array = with_shadow(512, order(9));
    assert_eq!(array.lock().cursor(777, Order::ZERO).split_minimal(), 1);
    let array = with_shadow(512, order(9));
    let mut locked = array.lock();
    let mut cursor = locked.cursor(777, Order::ZERO);
    let plan = SplitPlan::new(&cursor.load().unwrap(), Order::ZERO);
    assert_eq!(plan.node_count(), 8);
    let (cost, split) = cost(|| cursor.split(SplitReserve::new(plan)));
    split.unwrap();
    assert_eq!(cost.nodes, 8);
}

#[test]
fn minimal_split_needs_one_node_per_level() {
    for (k, nodes) in [
        (1, 0),
        (5, 0),
        (6, 1),
        (9, 1),
        (11, 1),
        (12, 2),
        (15, 2),
        (17, 2),
    ] {
        let array = with_shadow(0, order(k));
        let taken = array.lock().cursor(1, Order::ZERO).split_minimal();
        assert_eq!(taken, nodes, "order {k}");
        array.lock().assert_invariants();
    }
}

#[test]
fn range_is_one_walk_per_node() {
    let array = XArray::new();
    let items = || (0..200).map(|number| (Ref::new(number), Order::ZERO));
    let (batched, added) = cost(|| array.lock().add_range(1024, items(), |_, _| {}));
    assert_eq!(added, 200);
    assert_eq!(batched.walks, 4, "64 pages a node");
}

#[test]
fn lookup_is_one_walk() {
    let array = with_shadow(512, order(9));
    let (cost, found) = cost(|| array.get(600));
    assert!(found.is_some());
    assert_eq!(cost.walks, 1);
}
