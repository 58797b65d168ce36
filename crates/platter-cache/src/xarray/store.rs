//! Storing, replacing and removing entries; growing and shrinking the tree.

use super::position::{Content, Position};
use super::raw::{NodeBox, NodeRef, Ref, SLOT_BITS, SLOTS, Seen, Stored};
use super::{Locked, Mark, Order, last_index, marks, slot_offset};
use crate::sync::Ordering;

/// The contents to store.
#[derive(Debug)]
pub enum New<T: 'static> {
    /// A number below `2^63`.
    Value(u64),
    /// An item; the array takes over the reference.
    Item(Ref<T>),
}

/// The contents that a change removed from the array.
#[derive(Debug)]
pub enum Old<T: 'static> {
    /// There was nothing, or there were only smaller entries.
    Nothing,
    /// A number.
    Value(u64),
    /// An item, with the reference the array had.
    Item(Ref<T>),
}

/// A larger entry covers the range: it has to be split or removed first.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Larger {
    /// The order of that entry.
    pub order: Order,
}

impl<T> New<T> {
    fn is_value(&self) -> bool {
        matches!(self, Self::Value(_))
    }

    fn into_stored(self) -> Stored<T> {
        match self {
            Self::Value(value) => {
                assert_eq!(value >> 63, 0, "a value has 63 bits");
                Stored::Value(value)
            }
            Self::Item(item) => Stored::Item(item),
        }
    }
}

impl<T> Old<T> {
    fn from_stored(stored: Stored<T>) -> Self {
        match stored {
            Stored::Value(value) => Self::Value(value),
            Stored::Item(item) => Self::Item(item),
            Stored::Empty | Stored::Sibling(_) | Stored::Retry | Stored::Node(_) => Self::Nothing,
        }
    }
}

/// Stores an unmarked entry of the position's order at its index, replacing smaller entries.
/// Returns the entry at this index, if it was of the same order.
pub(super) fn store<T>(position: &mut Position<'_, T>, new: New<T>) -> Result<Old<T>, Larger> {
    if let Some(found) = position.load()
        && found.order > position.order
    {
        return Err(Larger { order: found.order });
    }
    let is_value = new.is_value();
    let new = new.into_stored();
    let Some(node) = make_path(position) else {
        let old = position.locked.array.head.slot().swap(new);
        clear_marks(position, position.start);
        return Ok(Old::from_stored(old));
    };
    let old_order = position.entry_at(position.start).map(|found| found.order);
    let old = exchange(
        position.locked,
        node,
        position.start,
        position.order,
        new,
        Some(is_value),
    );
    clear_range_marks(position, node, position.start, position.order);
    if old_order == Some(position.order) {
        return Ok(Old::from_stored(old));
    }
    Ok(Old::Nothing)
}

/// Replaces the item at the position, of the same order, by `item`, keeping its marks. Returns
/// `None`, and changes nothing, if there is no item of this order.
pub(super) fn replace<T>(position: &mut Position<'_, T>, item: Ref<T>) -> Option<Ref<T>> {
    let found = position.load()?;
    if found.order != position.order || !matches!(found.content, Content::Item(_)) {
        return None;
    }
    let slot = match position.path.last() {
        Some(node) => node.slot(slot_offset(position.start, node.shift())),
        None => position.locked.array.head.slot(),
    };
    let Stored::Item(old) = slot.swap(Stored::Item(item)) else {
        return None;
    };
    Some(old)
}

/// Removes the whole entry that covers the position's index, whatever its order.
pub(super) fn remove<T>(position: &mut Position<'_, T>) -> Old<T> {
    let Some(found) = position.load() else {
        return Old::Nothing;
    };
    let Some(node) = position.path.last() else {
        clear_marks(position, 0);
        return Old::from_stored(position.locked.array.head.slot().swap(Stored::Empty));
    };
    let old = exchange(
        position.locked,
        node,
        found.index,
        found.order,
        Stored::Empty,
        None,
    );
    clear_range_marks(position, node, found.index, found.order);
    delete_empty_nodes(position);
    Old::from_stored(old)
}

/// Replaces the slots of an entry of `order` at `index`, all in `node`, by one that holds
/// `new`, or by nothing. Returns what the first slot owned; what the others owned is dropped.
pub(super) fn exchange<T>(
    locked: &Locked<'_, T>,
    node: NodeRef<'_, T>,
    index: u64,
    order: Order,
    new: Stored<T>,
    is_value: Option<bool>,
) -> Stored<T> {
    let offset = slot_offset(index, node.shift());
    let (held, held_values) = census(locked, node, offset, order.slots());
    let first = node.slot(offset).swap(new);
    dropped_nodes(locked, &first);
    for sibling in offset + 1..offset + order.slots() {
        let content = match is_value {
            Some(_) => Stored::Sibling(offset),
            None => Stored::Empty,
        };
        dropped_nodes(locked, &node.slot(sibling).swap(content));
    }
    let slots = is_value.map_or(0, |_| order.slots());
    let values = if is_value == Some(true) { slots } else { 0 };
    recount(
        locked,
        node,
        node.count() - held + slots,
        node.value_count() - held_values + values,
    );
    first
}

/// Returns how many of `slots` slots from `offset` are in use, and how many of them by values.
fn census<T>(locked: &Locked<'_, T>, node: NodeRef<'_, T>, offset: u8, slots: u8) -> (u8, u8) {
    let mut held = 0;
    let mut values = 0;
    for at in offset..offset + slots {
        let mut seen = node.slot(at).load(&locked.pin).seen();
        if let Seen::Sibling(canonical) = seen {
            seen = node.slot(canonical).load(&locked.pin).seen();
        }
        held += u8::from(!matches!(seen, Seen::Empty));
        values += u8::from(matches!(seen, Seen::Value(_)));
    }
    (held, values)
}

/// Sets the counts of a node, and the array's count of nodes with only values.
pub(super) fn recount<T>(locked: &Locked<'_, T>, node: NodeRef<'_, T>, count: u8, value_count: u8) {
    let was = is_value_node(node);
    node.set_counts(count, value_count);
    let counter = &locked.array.value_node_count;
    match (was, is_value_node(node)) {
        (false, true) => _ = counter.fetch_add(1, Ordering::Relaxed),
        (true, false) => _ = counter.fetch_sub(1, Ordering::Relaxed),
        (true, true) | (false, false) => {}
    }
}

fn dropped_nodes<T>(locked: &Locked<'_, T>, stored: &Stored<T>) {
    if let Stored::Node(node) = stored {
        let (nodes, value_nodes) = subtree_counts(locked, node.as_node());
        let array = locked.array;
        array.node_count.fetch_sub(nodes, Ordering::Relaxed);
        array
            .value_node_count
            .fetch_sub(value_nodes, Ordering::Relaxed);
    }
}

/// Allocates a node, counted as one of the array.
pub(super) fn new_node<T>(locked: &Locked<'_, T>, shift: u8) -> NodeBox<T> {
    locked.array.node_count.fetch_add(1, Ordering::Relaxed);
    NodeBox::new(shift)
}

/// Creates the nodes down to the position's slot. Returns the last; `None` if the head is the
/// slot.
fn make_path<'g, T>(position: &mut Position<'g, T>) -> Option<NodeRef<'g, T>> {
    if position.path.depth() == 0 {
        let in_head = position.start == 0 && position.order == Order::ZERO;
        if in_head && !matches!(position.locked.seen_head(), Seen::Node(_)) {
            return None;
        }
        let root = grow(position)?;
        position.path.push(root);
    }
    loop {
        let node = position.path.last()?;
        if node.shift() == position.order.shift() {
            return Some(node);
        }
        if let Seen::Node(below) = position.seen_at(node, position.start) {
            position.path.push(below);
            continue;
        }
        let below = new_node(position.locked, node.shift() - SLOT_BITS);
        let slot = node.slot(slot_offset(position.start, node.shift()));
        drop(slot.swap(Stored::Node(below)));
        recount(position.locked, node, node.count() + 1, node.value_count());
    }
}

/// Adds nodes above the head until the tree reaches the position's range. Returns the root.
fn grow<'g, T>(position: &Position<'g, T>) -> Option<NodeRef<'g, T>> {
    let head = position.locked.array.head.slot();
    loop {
        let (shift, value_count) = match position.locked.seen_head() {
            Seen::Node(root) => {
                let reaches = last_index(root.shift()) >= position.last_index();
                if reaches && root.shift() >= position.order.shift() {
                    return Some(root);
                }
                (root.shift() + SLOT_BITS, 0)
            }
            Seen::Empty => {
                let root = new_node(position.locked, root_shift(position));
                head.swap(Stored::Node(root));
                continue;
            }
            Seen::Value(_) => (0, 1),
            Seen::Item(_) => (0, 0),
            Seen::Sibling(_) | Seen::Retry => return None,
        };
        let root = new_node(position.locked, shift);
        recount(position.locked, root.as_node(), 1, value_count);
        for mark in Mark::ALL {
            let bits = u64::from(position.locked.array.is_any_marked(mark));
            root.as_node().set_marks(mark, bits);
        }
        let wrapped = head.wrap(root);
        assert!(wrapped.is_ok(), "the head changes under the lock only");
    }
}

/// Returns the level of a root that reaches the position's range and order.
fn root_shift<T>(position: &Position<'_, T>) -> u8 {
    let mut shift = position.order.shift();
    while last_index(shift) < position.last_index() {
        shift += SLOT_BITS;
    }
    shift
}

fn clear_marks<T>(position: &Position<'_, T>, index: u64) {
    for mark in Mark::ALL {
        if marks::is_set(position, index, mark) {
            marks::clear(position, index, mark);
        }
    }
}

fn clear_range_marks<T>(
    position: &Position<'_, T>,
    node: NodeRef<'_, T>,
    index: u64,
    order: Order,
) {
    let first = slot_offset(index, node.shift());
    let slots = u64::MAX >> (SLOTS - order.slots()) << first;
    for mark in Mark::ALL {
        let bits = node.marks(mark);
        if bits & slots != 0 {
            // The first slot's bit is cleared last, with the unions above it.
            node.set_marks(mark, bits & !slots | 1 << first);
            marks::clear(position, index, mark);
        }
    }
}

/// Unlinks empty nodes of the path, and lowers the tree if possible.
fn delete_empty_nodes<T>(position: &mut Position<'_, T>) {
    let array = position.locked.array;
    while let Some(node) = position.path.last()
        && node.count() == 0
    {
        position.path.pop();
        let slot = if let Some(parent) = position.path.last() {
            recount(
                position.locked,
                parent,
                parent.count() - 1,
                parent.value_count(),
            );
            parent.slot(slot_offset(position.start, parent.shift()))
        } else {
            array.head.slot()
        };
        drop(slot.swap(Stored::Empty));
        array.node_count.fetch_sub(1, Ordering::Relaxed);
        position.walked = false;
    }
    shrink(position);
}

/// Removes roots that only refer to their first slot.
fn shrink<T>(position: &mut Position<'_, T>) {
    let array = position.locked.array;
    while let Seen::Node(root) = position.locked.seen_head()
        && root.count() == 1
    {
        match root.slot(0).load(&position.locked.pin).seen() {
            Seen::Node(_) => {}
            Seen::Value(_) | Seen::Item(_) if root.shift() == 0 => {}
            Seen::Empty | Seen::Value(_) | Seen::Item(_) | Seen::Sibling(_) | Seen::Retry => {
                return;
            }
        }
        recount(position.locked, root, 1, 0);
        // A reader that sees the emptied root restarts, and finds the new head or waits.
        let only = root.slot(0).swap(Stored::Retry);
        drop(array.head.slot().swap(only));
        array.node_count.fetch_sub(1, Ordering::Relaxed);
        position.walked = false;
    }
}

fn is_value_node<T>(node: NodeRef<'_, T>) -> bool {
    node.count() > 0 && node.count() == node.value_count()
}

/// Returns the number of nodes of a subtree, and of those with only values.
pub(super) fn subtree_counts<T>(locked: &Locked<'_, T>, node: NodeRef<'_, T>) -> (usize, usize) {
    let mut counts = (1, usize::from(is_value_node(node)));
    for offset in 0..SLOTS {
        if let Seen::Node(below) = node.slot(offset).load(&locked.pin).seen() {
            let (nodes, value_nodes) = subtree_counts(locked, below);
            counts.0 += nodes;
            counts.1 += value_nodes;
        }
    }
    counts
}
