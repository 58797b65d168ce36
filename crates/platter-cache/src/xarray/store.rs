//! Storing, replacing and removing entries; growing and shrinking the tree.

use super::cursor::{Content, Cursor};
use super::raw::{NodeBox, NodeRef, Ref, SLOT_BITS, SLOTS, Seen, Stored};
use super::{Locked, Mark, Order, last_index, slot_offset};
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

impl<'g, T> Cursor<'g, T> {
    /// Stores an unmarked entry of the cursor's order at its index, replacing smaller entries.
    /// Returns the entry at this index, if it was of the same order.
    pub fn store(&mut self, new: New<T>) -> Result<Old<T>, Larger> {
        self.end_scan();
        if let Some(found) = self.load()
            && found.order > self.order
        {
            return Err(Larger { order: found.order });
        }
        let is_value = new.is_value();
        let new = new.into_stored();
        let Some(node) = self.make_path() else {
            let old = self.locked.array.head.slot().swap(new);
            self.clear_marks(self.start);
            return Ok(Old::from_stored(old));
        };
        let old_order = self.entry_at(self.start).map(|found| found.order);
        let old = self.exchange(node, self.start, self.order, new, Some(is_value));
        self.clear_range_marks(node, self.start, self.order);
        if old_order == Some(self.order) {
            return Ok(Old::from_stored(old));
        }
        Ok(Old::Nothing)
    }

    /// Replaces the item at the cursor, of the same order, by `item`, keeping its marks. Returns
    /// `None`, and changes nothing, if there is no item of this order.
    pub fn replace(&mut self, item: Ref<T>) -> Option<Ref<T>> {
        let found = self.load()?;
        if found.order != self.order || !matches!(found.content, Content::Item(_)) {
            return None;
        }
        let slot = match self.path.last() {
            Some(node) => node.slot(slot_offset(self.start, node.shift())),
            None => self.locked.array.head.slot(),
        };
        let Stored::Item(old) = slot.swap(Stored::Item(item)) else {
            return None;
        };
        Some(old)
    }

    /// Removes the whole entry that covers the cursor's index, whatever its order.
    pub fn remove(&mut self) -> Old<T> {
        self.end_scan();
        let Some(found) = self.load() else {
            return Old::Nothing;
        };
        let Some(node) = self.path.last() else {
            self.clear_marks(0);
            return Old::from_stored(self.locked.array.head.slot().swap(Stored::Empty));
        };
        let old = self.exchange(node, found.index, found.order, Stored::Empty, None);
        self.clear_range_marks(node, found.index, found.order);
        self.delete_empty_nodes();
        Old::from_stored(old)
    }

    /// Replaces the slots of an entry of `order` at `index`, all in `node`, by one that holds
    /// `new`, or by nothing. Returns what the first slot owned; what the others owned is dropped.
    pub(super) fn exchange(
        &self,
        node: NodeRef<'g, T>,
        index: u64,
        order: Order,
        new: Stored<T>,
        is_value: Option<bool>,
    ) -> Stored<T> {
        let offset = slot_offset(index, node.shift());
        let (held, held_values) = self.census(node, offset, order.slots());
        let first = node.slot(offset).swap(new);
        self.dropped_nodes(&first);
        for sibling in offset + 1..offset + order.slots() {
            let content = match is_value {
                Some(_) => Stored::Sibling(offset),
                None => Stored::Empty,
            };
            self.dropped_nodes(&node.slot(sibling).swap(content));
        }
        let slots = is_value.map_or(0, |_| order.slots());
        let values = if is_value == Some(true) { slots } else { 0 };
        self.recount(
            node,
            node.count() - held + slots,
            node.value_count() - held_values + values,
        );
        first
    }

    /// Returns how many of `slots` slots from `offset` are in use, and how many of them by values.
    fn census(&self, node: NodeRef<'g, T>, offset: u8, slots: u8) -> (u8, u8) {
        let mut held = 0;
        let mut values = 0;
        for at in offset..offset + slots {
            let mut seen = node.slot(at).load(&self.locked.pin).seen();
            if let Seen::Sibling(canonical) = seen {
                seen = node.slot(canonical).load(&self.locked.pin).seen();
            }
            held += u8::from(!matches!(seen, Seen::Empty));
            values += u8::from(matches!(seen, Seen::Value(_)));
        }
        (held, values)
    }

    /// Sets the counts of a node, and the array's count of nodes with only values.
    pub(super) fn recount(&self, node: NodeRef<'_, T>, count: u8, value_count: u8) {
        let was = is_value_node(node);
        node.set_counts(count, value_count);
        let counter = &self.locked.array.value_node_count;
        match (was, is_value_node(node)) {
            (false, true) => _ = counter.fetch_add(1, Ordering::Relaxed),
            (true, false) => _ = counter.fetch_sub(1, Ordering::Relaxed),
            (true, true) | (false, false) => {}
        }
    }

    fn dropped_nodes(&self, stored: &Stored<T>) {
        if let Stored::Node(node) = stored {
            let (nodes, value_nodes) = self.locked.subtree_counts(node.as_node());
            let array = self.locked.array;
            array.node_count.fetch_sub(nodes, Ordering::Relaxed);
            array
                .value_node_count
                .fetch_sub(value_nodes, Ordering::Relaxed);
        }
    }

    /// Allocates a node, counted as one of the array.
    pub(super) fn new_node(&self, shift: u8) -> NodeBox<T> {
        self.locked.array.node_count.fetch_add(1, Ordering::Relaxed);
        NodeBox::new(shift)
    }

    /// Creates the nodes down to the cursor's slot. Returns the last; `None` if the head is the
    /// slot.
    fn make_path(&mut self) -> Option<NodeRef<'g, T>> {
        if self.path.depth() == 0 {
            let in_head = self.start == 0 && self.order == Order::ZERO;
            if in_head && !matches!(self.locked.seen_head(), Seen::Node(_)) {
                return None;
            }
            let root = self.grow()?;
            self.path.push(root);
        }
        loop {
            let node = self.path.last()?;
            if node.shift() == self.order.shift() {
                return Some(node);
            }
            if let Seen::Node(below) = self.seen_at(node, self.start) {
                self.path.push(below);
                continue;
            }
            let below = self.new_node(node.shift() - SLOT_BITS);
            let slot = node.slot(slot_offset(self.start, node.shift()));
            drop(slot.swap(Stored::Node(below)));
            self.recount(node, node.count() + 1, node.value_count());
        }
    }

    /// Adds nodes above the head until the tree reaches the cursor's range. Returns the root.
    fn grow(&self) -> Option<NodeRef<'g, T>> {
        let head = self.locked.array.head.slot();
        loop {
            let (shift, value_count) = match self.locked.seen_head() {
                Seen::Node(root) => {
                    let reaches = last_index(root.shift()) >= self.last_index();
                    if reaches && root.shift() >= self.order.shift() {
                        return Some(root);
                    }
                    (root.shift() + SLOT_BITS, 0)
                }
                Seen::Empty => {
                    let root = self.new_node(self.root_shift());
                    head.swap(Stored::Node(root));
                    continue;
                }
                Seen::Value(_) => (0, 1),
                Seen::Item(_) => (0, 0),
                Seen::Sibling(_) | Seen::Retry => return None,
            };
            let root = self.new_node(shift);
            self.recount(root.as_node(), 1, value_count);
            for mark in Mark::ALL {
                let bits = u64::from(self.locked.array.is_any_marked(mark));
                root.as_node().set_marks(mark, bits);
            }
            let wrapped = head.wrap(root);
            assert!(wrapped.is_ok(), "the head changes under the lock only");
        }
    }

    /// Returns the level of a root that reaches the cursor's range and order.
    fn root_shift(&self) -> u8 {
        let mut shift = self.order.shift();
        while last_index(shift) < self.last_index() {
            shift += SLOT_BITS;
        }
        shift
    }

    fn clear_marks(&self, index: u64) {
        for mark in Mark::ALL {
            if self.is_marked_at(index, mark) {
                self.unmark_at(index, mark);
            }
        }
    }

    fn clear_range_marks(&self, node: NodeRef<'g, T>, index: u64, order: Order) {
        let first = slot_offset(index, node.shift());
        let slots = u64::MAX >> (SLOTS - order.slots()) << first;
        for mark in Mark::ALL {
            let bits = node.marks(mark);
            if bits & slots != 0 {
                // The first slot's bit is cleared last, with the unions above it.
                node.set_marks(mark, bits & !slots | 1 << first);
                self.unmark_at(index, mark);
            }
        }
    }

    /// Unlinks empty nodes of the path, and lowers the tree if possible.
    fn delete_empty_nodes(&mut self) {
        let array = self.locked.array;
        while let Some(node) = self.path.last()
            && node.count() == 0
        {
            self.path.pop();
            let slot = if let Some(parent) = self.path.last() {
                self.recount(parent, parent.count() - 1, parent.value_count());
                parent.slot(slot_offset(self.start, parent.shift()))
            } else {
                array.head.slot()
            };
            drop(slot.swap(Stored::Empty));
            array.node_count.fetch_sub(1, Ordering::Relaxed);
            self.walked = false;
        }
        self.shrink();
    }

    /// Removes roots that only refer to their first slot.
    fn shrink(&mut self) {
        let array = self.locked.array;
        while let Seen::Node(root) = self.locked.seen_head()
            && root.count() == 1
        {
            match root.slot(0).load(&self.locked.pin).seen() {
                Seen::Node(_) => {}
                Seen::Value(_) | Seen::Item(_) if root.shift() == 0 => {}
                Seen::Empty | Seen::Value(_) | Seen::Item(_) | Seen::Sibling(_) | Seen::Retry => {
                    return;
                }
            }
            self.recount(root, 1, 0);
            // A reader that sees the emptied root restarts, and finds the new head or waits.
            let only = root.slot(0).swap(Stored::Retry);
            drop(array.head.slot().swap(only));
            array.node_count.fetch_sub(1, Ordering::Relaxed);
            self.walked = false;
        }
    }
}

fn is_value_node<T>(node: NodeRef<'_, T>) -> bool {
    node.count() > 0 && node.count() == node.value_count()
}

impl<T> Locked<'_, T> {
    /// Returns the number of nodes of a subtree, and of those with only values.
    pub(super) fn subtree_counts(&self, node: NodeRef<'_, T>) -> (usize, usize) {
        let mut counts = (1, usize::from(is_value_node(node)));
        for offset in 0..SLOTS {
            if let Seen::Node(below) = node.slot(offset).load(&self.pin).seen() {
                let (nodes, value_nodes) = self.subtree_counts(below);
                counts.0 += nodes;
                counts.1 += value_nodes;
            }
        }
        counts
    }
}
