//! Moving a position: conflicts in a range, the next entry, the next marked entry.

use super::position::{Found, Position, content};
use super::raw::{NodeRef, Seen};
use super::{Mark, Order, SLOT_BITS, count, last_index, marks, slot_offset};

/// A scan of the position's own range.
pub(super) struct Scan {
    /// The last entry found, to which the path leads.
    at: u64,
    /// Where it continues; `None` at its end.
    next: Option<u64>,
    /// Depth of the path to the position's own slot.
    anchor: usize,
}

/// Returns the next entry that overlaps the position's range, in ascending order: see
/// [`Cursor::next_conflict`](super::Cursor::next_conflict).
pub(super) fn next_conflict<'g, T>(
    position: &mut Position<'g, T>,
    scan: &mut Option<Scan>,
) -> Option<Found<'g, T>> {
    position.walk_once();
    let last = position.last_index();
    let found = if let Some(scan) = scan {
        let (at, from) = (scan.at, scan.next?);
        leave_nodes(position, at, from);
        descend(position, from, last, None)
    } else {
        *scan = Some(Scan {
            at: position.start,
            next: None,
            anchor: position.path.depth(),
        });
        let covering = position.entry_at(position.start);
        if is_one_slot(position) {
            return covering;
        }
        covering.or_else(|| descend(position, position.start, last, None))
    };
    let next = |found: Found<'_, T>| found.last_index().checked_add(1);
    if let Some(scan) = scan {
        scan.next = found.and_then(next).filter(|&next| next <= last);
        scan.at = found.map_or(scan.at, |found| found.index);
    }
    found
}

/// Whether the position's range is one slot that is not a node.
fn is_one_slot<'g, T>(position: &Position<'g, T>) -> bool {
    let is_one = |node: NodeRef<'g, T>| {
        let above = node.shift() > position.order.shift();
        let alone = position.order.slots() == 1;
        above || alone && !matches!(position.seen_at(node, position.start), Seen::Node(_))
    };
    position.path.last().is_some_and(is_one)
}

/// Returns from a scan to the position's own slot.
pub(super) fn end<T>(position: &mut Position<'_, T>, scan: &mut Option<Scan>) {
    if let Some(scan) = scan.take() {
        position.path.restore(scan.anchor);
    }
}

/// Moves to the first entry at or after `index` that begins at or before `last`, and has the mark.
pub(super) fn find<'g, T>(
    position: &mut Position<'g, T>,
    index: u64,
    last: u64,
    mark: Option<Mark>,
) -> Option<Found<'g, T>> {
    if position.walked {
        leave_nodes(position, position.start, index);
    } else {
        position.path.clear();
    }
    if position.path.depth() == 0 {
        count::walk();
    }
    let found = descend(position, index, last, mark);
    position.walked = found.is_some();
    if let Some(found) = found {
        position.start = found.index;
        position.order = found.order;
    } else {
        position.order = Order::ZERO;
        position.path.clear();
    }
    found
}

/// Truncates the path, which leads to `from`, to the nodes that contain `to` as well.
fn leave_nodes<T>(position: &mut Position<'_, T>, from: u64, to: u64) {
    while let Some(node) = position.path.last()
        && from ^ to > last_index(node.shift())
    {
        position.path.pop();
    }
}

/// Finds the first entry that covers or follows `index` and begins at or before `last`, from
/// the last node of the path downwards and, after its end, upwards.
fn descend<'g, T>(
    position: &mut Position<'g, T>,
    mut index: u64,
    last: u64,
    mark: Option<Mark>,
) -> Option<Found<'g, T>> {
    loop {
        if index > last {
            return None;
        }
        let Some(node) = position.path.last() else {
            let Seen::Node(root) = position.locked.seen_head() else {
                return entry_in_head(position, index, mark);
            };
            if index > last_index(root.shift()) {
                return None;
            }
            position.path.push(root);
            continue;
        };
        let shift = node.shift();
        match position.seen_at(node, index) {
            Seen::Sibling(_) | Seen::Value(_) | Seen::Item(_) => {
                let found = position.entry_at(index);
                let passes = |found: &Found<'_, T>| {
                    mark.is_none_or(|mark| marks::is_set(position, found.index, mark))
                };
                if let Some(found) = found.filter(passes) {
                    return Some(found);
                }
            }
            Seen::Node(below) if mark.is_none_or(|mark| marks::is_set(position, index, mark)) => {
                position.path.push(below);
                continue;
            }
            Seen::Empty | Seen::Retry | Seen::Node(_) => {}
        }
        let later = later_slots(position, index, mark);
        // Zero later slots means the end of the node: 64 slots from its beginning.
        let skip = match later {
            0 => u64::from(64 - slot_offset(index, shift)),
            later => u64::from(later.trailing_zeros()) + 1,
        };
        index = (index >> shift)
            .checked_add(skip)?
            .checked_mul(1 << shift)?;
        while let Some(node) = position.path.last()
            && index & last_index(node.shift()) == 0
        {
            position.path.pop();
        }
        if position.path.depth() == 0 {
            return None;
        }
    }
}

/// Returns a bit for each slot after that of `index` that has the mark; without a mark, all of
/// them.
fn later_slots<T>(position: &Position<'_, T>, index: u64, mark: Option<Mark>) -> u64 {
    let Some(node) = position.path.last() else {
        return 0;
    };
    let bits = mark.map_or(u64::MAX, |mark| node.marks(mark));
    bits >> slot_offset(index, node.shift()) >> 1
}

fn entry_in_head<'g, T>(
    position: &Position<'g, T>,
    index: u64,
    mark: Option<Mark>,
) -> Option<Found<'g, T>> {
    let content = content(position.locked.seen_head())?;
    let passes = mark.is_none_or(|mark| position.locked.array.is_any_marked(mark));
    (index == 0 && passes).then_some(Found {
        index: 0,
        order: Order::ZERO,
        content,
    })
}

const _: () = assert!(SLOT_BITS == 6, "mark bits of a node are one u64");
