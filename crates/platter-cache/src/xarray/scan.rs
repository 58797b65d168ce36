//! Moving a cursor: conflicts in a range, the next entry, the next marked entry.

use super::cursor::{Cursor, Found, content};
use super::raw::{NodeRef, Seen};
use super::{Mark, Order, SLOT_BITS, count, last_index, slot_offset};

/// A scan of the cursor's own range.
pub(super) struct Scan {
    /// The last entry found, to which the path leads.
    at: u64,
    /// Where it continues; `None` at its end.
    next: Option<u64>,
    /// Depth of the path to the cursor's own slot.
    anchor: usize,
}

impl<'g, T> Cursor<'g, T> {
    /// Returns the next entry that overlaps the cursor's range, in ascending order.
    ///
    /// The first one may be larger than the range: then it covers it and is the only one. Its order
    /// is known from the position, without a second walk. The cursor's own position is kept: a
    /// store after the scan needs no walk.
    pub fn next_conflict(&mut self) -> Option<Found<'g, T>> {
        self.walk_once();
        let last = self.last_index();
        let found = if let Some(scan) = &self.scan {
            let (at, from) = (scan.at, scan.next?);
            self.leave_nodes(at, from);
            self.descend(from, last, None)
        } else {
            self.scan = Some(Scan {
                at: self.start,
                next: None,
                anchor: self.path.depth(),
            });
            let covering = self.entry_at(self.start);
            if self.is_one_slot() {
                return covering;
            }
            covering.or_else(|| self.descend(self.start, last, None))
        };
        let next = |found: Found<'_, T>| found.last_index().checked_add(1);
        if let Some(scan) = &mut self.scan {
            scan.next = found.and_then(next).filter(|&next| next <= last);
            scan.at = found.map_or(scan.at, |found| found.index);
        }
        found
    }

    /// Whether the cursor's range is one slot that is not a node.
    fn is_one_slot(&self) -> bool {
        let is_one = |node: NodeRef<'g, T>| {
            let above = node.shift() > self.order.shift();
            let alone = self.order.slots() == 1;
            above || alone && !matches!(self.seen_at(node, self.start), Seen::Node(_))
        };
        self.path.last().is_some_and(is_one)
    }

    /// Returns from a scan to the cursor's own slot.
    pub(super) fn end_scan(&mut self) {
        if let Some(scan) = self.scan.take() {
            self.path.restore(scan.anchor);
        }
    }

    /// Moves to the first entry at or after the cursor's index that begins at or before `last`.
    pub fn find(&mut self, last: u64) -> Option<Found<'g, T>> {
        self.find_from(self.start, last, None)
    }

    /// Moves to the next entry after the cursor's range.
    pub fn find_next(&mut self, last: u64) -> Option<Found<'g, T>> {
        self.find_from(self.last_index().checked_add(1)?, last, None)
    }

    /// Like [`find`](Self::find), for entries with the mark.
    pub fn find_marked(&mut self, last: u64, mark: Mark) -> Option<Found<'g, T>> {
        self.find_from(self.start, last, Some(mark))
    }

    /// Like [`find_next`](Self::find_next), for entries with the mark.
    pub fn find_next_marked(&mut self, last: u64, mark: Mark) -> Option<Found<'g, T>> {
        self.find_from(self.last_index().checked_add(1)?, last, Some(mark))
    }

    fn find_from(&mut self, index: u64, last: u64, mark: Option<Mark>) -> Option<Found<'g, T>> {
        self.end_scan();
        if self.walked {
            self.leave_nodes(self.start, index);
        } else {
            self.path.clear();
        }
        if self.path.depth() == 0 {
            count::walk();
        }
        let found = self.descend(index, last, mark);
        self.walked = found.is_some();
        if let Some(found) = found {
            self.start = found.index;
            self.order = found.order;
        } else {
            self.order = Order::ZERO;
            self.path.clear();
        }
        found
    }

    /// Truncates the path, which leads to `from`, to the nodes that contain `to` as well.
    fn leave_nodes(&mut self, from: u64, to: u64) {
        while let Some(node) = self.path.last()
            && from ^ to > last_index(node.shift())
        {
            self.path.pop();
        }
    }

    /// Finds the first entry that covers or follows `index` and begins at or before `last`, from
    /// the last node of the path downwards and, after its end, upwards.
    fn descend(&mut self, mut index: u64, last: u64, mark: Option<Mark>) -> Option<Found<'g, T>> {
        loop {
            if index > last {
                return None;
            }
            let Some(node) = self.path.last() else {
                let Seen::Node(root) = self.locked.seen_head() else {
                    return self.entry_in_head(index, mark);
                };
                if index > last_index(root.shift()) {
                    return None;
                }
                self.path.push(root);
                continue;
            };
            let shift = node.shift();
            match self.seen_at(node, index) {
                Seen::Sibling(_) | Seen::Value(_) | Seen::Item(_) => {
                    let found = self.entry_at(index);
                    let passes = |found: &Found<'_, T>| {
                        mark.is_none_or(|mark| self.is_marked_at(found.index, mark))
                    };
                    if let Some(found) = found.filter(passes) {
                        return Some(found);
                    }
                }
                Seen::Node(below) if mark.is_none_or(|mark| self.is_marked_at(index, mark)) => {
                    self.path.push(below);
                    continue;
                }
                Seen::Empty | Seen::Retry | Seen::Node(_) => {}
            }
            let later = self.later_slots(index, mark);
            // Zero later slots means the end of the node: 64 slots from its beginning.
            let skip = match later {
                0 => u64::from(64 - slot_offset(index, shift)),
                later => u64::from(later.trailing_zeros()) + 1,
            };
            index = (index >> shift)
                .checked_add(skip)?
                .checked_mul(1 << shift)?;
            while let Some(node) = self.path.last()
                && index & last_index(node.shift()) == 0
            {
                self.path.pop();
            }
            if self.path.depth() == 0 {
                return None;
            }
        }
    }

    /// Returns a bit for each slot after that of `index` that has the mark; without a mark, all of
    /// them.
    fn later_slots(&self, index: u64, mark: Option<Mark>) -> u64 {
        let Some(node) = self.path.last() else {
            return 0;
        };
        let bits = mark.map_or(u64::MAX, |mark| node.marks(mark));
        bits >> slot_offset(index, node.shift()) >> 1
    }

    fn entry_in_head(&self, index: u64, mark: Option<Mark>) -> Option<Found<'g, T>> {
        let content = content(self.locked.seen_head())?;
        let passes = mark.is_none_or(|mark| self.locked.array.is_any_marked(mark));
        (index == 0 && passes).then_some(Found {
            index: 0,
            order: Order::ZERO,
            content,
        })
    }
}

const _: () = assert!(SLOT_BITS == 6, "mark bits of a node are one u64");
