//! Splitting an entry into smaller ones: minimally, towards one index, or completely.

use super::position::{Content, Found, Position};
use super::raw::{NodeBox, NodeRef, SLOT_BITS, SLOTS, Seen, Stored};
use super::store::{new_node, recount};
use super::{Locked, Mark, Order, Ref, marks, slot_offset};
use crate::sync::Ordering;

/// The entry to be split completely, and the order of its pieces: enough to prepare it without the
/// lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SplitPlan {
    identity: Identity,
    order: Order,
    piece: Order,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Identity {
    Value(u64),
    Item(usize),
}

impl SplitPlan {
    /// Creates a plan to split `found` into entries of order `piece`.
    #[must_use]
    pub fn new<T>(found: &Found<'_, T>, piece: Order) -> Self {
        let identity = match found.content {
            Content::Value(value) => Identity::Value(value),
            Content::Item(item) => Identity::Item(item.address()),
        };
        Self {
            identity,
            order: found.order,
            piece,
        }
    }

    /// Returns the number of nodes of the split.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.levels().map(|(_, nodes)| nodes).sum()
    }

    /// Returns the levels below the entry's own, downwards: shift, and number of nodes.
    fn levels(&self) -> impl Iterator<Item = (u8, usize)> {
        let mut nodes = usize::from(self.order.slots());
        let shifts = (self.piece.shift()..self.order.shift()).step_by(SLOT_BITS.into());
        shifts.rev().map(move |shift| {
            let needed = nodes;
            nodes *= usize::from(SLOTS);
            (shift, needed)
        })
    }
}

/// Nodes for a complete split of one entry, allocated without the lock.
///
/// Valid only for the entry and order of its plan: when the lock is taken again, the index may be
/// covered by another entry, or by pieces of the same one.
pub struct SplitReserve<T: 'static> {
    plan: SplitPlan,
    nodes: Vec<NodeBox<T>>,
}

impl<T> SplitReserve<T> {
    /// Allocates the nodes of `plan`.
    #[must_use]
    pub fn new(plan: SplitPlan) -> Self {
        let levels = plan.levels();
        let nodes = levels.flat_map(|(shift, nodes)| (0..nodes).map(move |_| NodeBox::new(shift)));
        Self {
            plan,
            nodes: nodes.collect(),
        }
    }

    /// Returns the plan it was made for.
    #[must_use]
    pub fn plan(&self) -> SplitPlan {
        self.plan
    }

    fn take(&mut self, shift: u8) -> NodeBox<T> {
        let at = self
            .nodes
            .iter()
            .rposition(|node| node.as_node().shift() == shift);
        at.map_or_else(|| NodeBox::new(shift), |at| self.nodes.swap_remove(at))
    }
}

impl<T> std::fmt::Debug for SplitReserve<T> {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("SplitReserve")
            .field("plan", &self.plan)
            .field("nodes", &self.nodes.len())
            .finish()
    }
}

/// The entry being split: each piece is stored as another reference to it, with its marks.
struct Original<T: 'static> {
    content: OriginalContent<T>,
    marks: [u64; Mark::COUNT],
}

enum OriginalContent<T: 'static> {
    Value(u64),
    Item(Ref<T>),
}

impl<T> Original<T> {
    fn copy(&self) -> Stored<T> {
        match &self.content {
            OriginalContent::Value(value) => Stored::Value(*value),
            OriginalContent::Item(item) => Stored::Item(item.clone()),
        }
    }

    /// Returns how many of `slots` slots of it count as values.
    fn values(&self, slots: u8) -> u8 {
        match self.content {
            OriginalContent::Value(_) => slots,
            OriginalContent::Item(_) => 0,
        }
    }

    /// Copies the original's marks to slots of `node`.
    fn mark(&self, node: NodeRef<'_, T>, slots: u64) {
        for mark in Mark::ALL {
            let bits = node.marks(mark) | (slots * self.marks[mark.index()]);
            node.set_marks(mark, bits);
        }
    }

    /// Makes an entry of `slots` slots from `first` on in `node`.
    fn carve(&self, node: NodeRef<'_, T>, first: u8, slots: u8) {
        drop(node.slot(first).swap(self.copy()));
        for sibling in first + 1..first + slots {
            drop(node.slot(sibling).swap(Stored::Sibling(first)));
        }
        self.mark(node, 1 << first);
    }
}

/// Splits the entry at the position, if it is larger than the position's order, so that one piece is
/// exactly the position's range. Returns the number of nodes.
pub(super) fn split_minimal<T>(position: &mut Position<'_, T>) -> usize {
    let found = position.load().filter(|found| found.order > position.order);
    let (Some(found), Some(mut node)) = (found, position.path.last()) else {
        return 0;
    };
    let Some(original) = original(position, &found) else {
        return 0;
    };
    let mut first = slot_offset(found.index, node.shift());
    let mut slots = found.order.slots();
    let mut taken = 0;
    loop {
        let ends_here = node.shift() == position.order.shift();
        let piece_slots = if ends_here { position.order.slots() } else { 1 };
        halve(position, node, first, slots, piece_slots, &original);
        if ends_here {
            return taken;
        }
        // The piece is smaller than one slot.
        let below = new_node(position.locked, node.shift() - SLOT_BITS);
        original.carve(below.as_node(), 0, SLOTS);
        recount(
            position.locked,
            below.as_node(),
            SLOTS,
            original.values(SLOTS),
        );
        link(
            position.locked,
            node,
            slot_offset(position.start, node.shift()),
            below,
            &original,
        );
        taken += 1;
        let Seen::Node(linked) = position.seen_at(node, position.start) else {
            return taken;
        };
        position.path.push(linked);
        (node, first, slots) = (linked, 0, SLOTS);
    }
}

/// Splits the entry at the position completely, into pieces of the plan's order, with the reserve's
/// nodes, if the entry and its order are those of the plan.
pub(super) fn split<T>(
    position: &mut Position<'_, T>,
    mut reserve: SplitReserve<T>,
) -> Result<(), SplitReserve<T>> {
    let (Some(found), Some(node)) = (position.load(), position.path.last()) else {
        return Err(reserve);
    };
    let piece = reserve.plan.piece;
    if SplitPlan::new(&found, piece) != reserve.plan {
        return Err(reserve);
    }
    let Some(original) = original(position, &found) else {
        return Err(reserve);
    };
    let first = slot_offset(found.index, node.shift());
    let slots = first..first + found.order.slots();
    position.walked = false;
    if piece.shift() == node.shift() {
        for at in slots.step_by(piece.slots().into()).skip(1) {
            original.carve(node, at, piece.slots());
        }
        return Ok(());
    }
    // From the last slot to the first: the remaining siblings refer to the original in the
    // canonical slot.
    for offset in slots.rev() {
        let below = build(
            position.locked,
            &mut reserve,
            node.shift() - SLOT_BITS,
            &original,
        );
        original.mark(node, 1 << offset);
        link(position.locked, node, offset, below, &original);
    }
    Ok(())
}

fn original<T>(position: &Position<'_, T>, found: &Found<'_, T>) -> Option<Original<T>> {
    let content = match found.content {
        Content::Value(value) => OriginalContent::Value(value),
        // The slot owns a reference, and the lock keeps it there, frozen or not.
        Content::Item(item) => OriginalContent::Item(item.try_get_frozen()?),
    };
    let marks = Mark::ALL.map(|mark| u64::from(marks::is_set(position, found.index, mark)));
    Some(Original { content, marks })
}

/// Halves an entry of `slots` slots repeatedly, always the half around the position's index,
/// until that has `piece_slots`.
fn halve<T>(
    position: &Position<'_, T>,
    node: NodeRef<'_, T>,
    mut first: u8,
    mut slots: u8,
    piece_slots: u8,
    original: &Original<T>,
) {
    let wanted = slot_offset(position.start, node.shift());
    while slots > piece_slots {
        slots /= 2;
        let upper = first + slots;
        original.carve(node, upper, slots);
        if wanted >= upper {
            first = upper;
        }
    }
}

/// Replaces one slot of the original by a node, all of whose slots refer to the original.
fn link<T>(
    locked: &Locked<'_, T>,
    node: NodeRef<'_, T>,
    offset: u8,
    below: NodeBox<T>,
    original: &Original<T>,
) {
    drop(node.slot(offset).swap(Stored::Node(below)));
    recount(
        locked,
        node,
        node.count(),
        node.value_count() - original.values(1),
    );
}

/// Builds a node of the reserve filled with pieces, or with further nodes if the pieces are
/// smaller. The depth is bounded by the levels of an order.
fn build<T>(
    locked: &Locked<'_, T>,
    reserve: &mut SplitReserve<T>,
    shift: u8,
    original: &Original<T>,
) -> NodeBox<T> {
    let piece = reserve.plan.piece;
    let built = reserve.take(shift);
    let node_count = &locked.array.node_count;
    node_count.fetch_add(1, Ordering::Relaxed);
    let node = built.as_node();
    if shift == piece.shift() {
        for at in (0..SLOTS).step_by(piece.slots().into()) {
            original.carve(node, at, piece.slots());
        }
        recount(locked, node, SLOTS, original.values(SLOTS));
    } else {
        for offset in 0..SLOTS {
            let below = build(locked, reserve, shift - SLOT_BITS, original);
            drop(node.slot(offset).swap(Stored::Node(below)));
        }
        original.mark(node, u64::MAX);
        recount(locked, node, SLOTS, 0);
    }
    built
}
