//! A place in a locked array: the path to it, and the entry there.

use super::raw::{ItemRef, NodeRef, SLOTS, Seen};
use super::{LEVELS_MAX, Locked, Order, count, last_index, slot_offset};

/// The contents of an entry, seen under the lock.
#[derive(Debug)]
pub enum Content<'g, T: 'static> {
    /// A 63-bit number.
    Value(u64),
    /// An item; the array has a reference to it.
    Item(ItemRef<'g, T>),
}

impl<T> Clone for Content<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Content<'_, T> {}

/// An entry, with its first index and its order.
#[derive(Debug)]
pub struct Found<'g, T: 'static> {
    /// The first index it covers.
    pub index: u64,
    /// The number of indexes it covers.
    pub order: Order,
    /// Its contents.
    pub content: Content<'g, T>,
}

impl<T> Clone for Found<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Found<'_, T> {}

impl<T> Found<'_, T> {
    /// The last index it covers.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.index | (self.order.span() - 1)
    }
}

/// The nodes from the root down to a position.
pub(super) struct Path<'g, T: 'static> {
    nodes: [Option<NodeRef<'g, T>>; LEVELS_MAX],
    depth: usize,
}

impl<'g, T> Path<'g, T> {
    const EMPTY: Self = Self {
        nodes: [None; LEVELS_MAX],
        depth: 0,
    };

    pub(super) fn last(&self) -> Option<NodeRef<'g, T>> {
        self.nodes[self.depth.checked_sub(1)?]
    }

    pub(super) fn depth(&self) -> usize {
        self.depth
    }

    pub(super) fn push(&mut self, node: NodeRef<'g, T>) {
        self.nodes[self.depth] = Some(node);
        self.depth += 1;
    }

    pub(super) fn pop(&mut self) -> Option<NodeRef<'g, T>> {
        let node = self.last()?;
        self.depth -= 1;
        Some(node)
    }

    /// Truncates the path to no nodes.
    pub(super) fn clear(&mut self) {
        self.depth = 0;
    }

    /// Returns to a depth that the path had when nodes were last pushed below it.
    pub(super) fn restore(&mut self, depth: usize) {
        self.depth = depth;
    }

    /// Returns the nodes from the root down.
    pub(super) fn iter(&self) -> impl DoubleEndedIterator<Item = NodeRef<'g, T>> {
        self.nodes[..self.depth].iter().flatten().copied()
    }
}

/// The place of an entry of one order at one index, and the way there.
pub(super) struct Position<'g, T: 'static> {
    pub(super) locked: &'g Locked<'g, T>,
    /// First index of the range.
    pub(super) start: u64,
    pub(super) order: Order,
    /// Whether `path` leads to `start`.
    pub(super) walked: bool,
    /// The nodes down to the slot of `start`, at most to the level of `order`. Empty if the slot is
    /// the head itself: it is not a node, or the tree is too low.
    pub(super) path: Path<'g, T>,
}

impl<'g, T> Position<'g, T> {
    pub(super) fn new(locked: &'g Locked<'g, T>, start: u64, order: Order) -> Self {
        assert_aligned(start, order);
        Self {
            locked,
            start,
            order,
            walked: false,
            path: Path::EMPTY,
        }
    }

    /// Returns the last index of the range.
    pub(super) fn last_index(&self) -> u64 {
        self.start | (self.order.span() - 1)
    }

    /// Moves to another index and order. Inside the same node this needs no walk.
    pub(super) fn seek(&mut self, index: u64, order: Order) {
        assert_aligned(index, order);
        let node_shift = self.path.last().map(NodeRef::shift);
        let stays = node_shift.is_some_and(|shift| {
            let same_node = last_index(shift);
            shift == order.shift() && index & !same_node == self.start & !same_node
        });
        self.walked &= stays;
        self.start = index;
        self.order = order;
    }

    /// Returns the entry that covers the first index, if it is stored no deeper than the order: any
    /// entry for order zero.
    pub(super) fn load(&mut self) -> Option<Found<'g, T>> {
        self.walk_once();
        self.entry_at(self.start)
    }

    pub(super) fn walk_once(&mut self) {
        if !self.walked {
            self.walk();
            self.walked = true;
        }
    }

    /// Descends from the head to the slot of `start`, no deeper than the level of `order`.
    fn walk(&mut self) {
        count::walk();
        self.path.clear();
        let Seen::Node(root) = self.locked.seen_head() else {
            return;
        };
        let reaches = self.last_index() <= last_index(root.shift());
        if !reaches || root.shift() < self.order.shift() {
            return;
        }
        let mut node = root;
        loop {
            self.path.push(node);
            if node.shift() == self.order.shift() {
                return;
            }
            let Seen::Node(below) = self.seen_at(node, self.start) else {
                return;
            };
            node = below;
        }
    }

    /// Returns the contents of the slot of `index` in `node`.
    pub(super) fn seen_at(&self, node: NodeRef<'g, T>, index: u64) -> Seen<'g, T> {
        let slot = node.slot(slot_offset(index, node.shift()));
        slot.load(&self.locked.pin).seen()
    }

    /// Returns the entry that covers `index`, if its slot is in the last node of the path.
    pub(super) fn entry_at(&self, index: u64) -> Option<Found<'g, T>> {
        let Some(node) = self.path.last() else {
            let content = content(self.locked.seen_head())?;
            return (index == 0).then_some(Found {
                index: 0,
                order: Order::ZERO,
                content,
            });
        };
        let mut offset = slot_offset(index, node.shift());
        let mut seen = self.seen_at(node, index);
        if let Seen::Sibling(canonical) = seen {
            offset = canonical;
            seen = node.slot(canonical).load(&self.locked.pin).seen();
        }
        let below = last_index(node.shift());
        Some(Found {
            index: index & !below | u64::from(offset) << node.shift(),
            order: self.order_at(node, offset),
            content: content(seen)?,
        })
    }

    /// Returns the order of the entry whose canonical slot is at `offset`, from the number of its
    /// siblings.
    fn order_at(&self, node: NodeRef<'g, T>, offset: u8) -> Order {
        let is_sibling = |at: u8| {
            let slot = node.slot(at).load(&self.locked.pin);
            matches!(slot.seen(), Seen::Sibling(canonical) if canonical == offset)
        };
        let mut doublings = 0;
        while offset + (1 << doublings) < SLOTS && is_sibling(offset + (1 << doublings)) {
            doublings += 1;
        }
        Order(node.shift() + doublings)
    }
}

pub(super) fn content<T>(seen: Seen<'_, T>) -> Option<Content<'_, T>> {
    match seen {
        Seen::Value(value) => Some(Content::Value(value)),
        Seen::Item(item) => Some(Content::Item(item)),
        Seen::Empty | Seen::Sibling(_) | Seen::Retry | Seen::Node(_) => None,
    }
}

fn assert_aligned(index: u64, order: Order) {
    assert_eq!(
        index % order.span(),
        0,
        "an entry begins at a multiple of its span"
    );
}
