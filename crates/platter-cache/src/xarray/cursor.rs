//! A cursor: a position in a locked array through which its entries are found and changed.

use std::fmt;

use super::position::{Content, Found, Position};
use super::scan::{self, Scan};
use super::split::{self, SplitReserve};
use super::store::{self, Larger, New, Old};
use super::{Locked, Mark, Order, Ref, marks};

/// A position in a locked array, for an entry of one order at one index.
///
/// The first access walks down from the head; further ones continue from its end. Changes of the
/// tree go through the cursor only.
pub struct Cursor<'g, T: 'static> {
    position: Position<'g, T>,
    /// The state of a scan in progress.
    scan: Option<Scan>,
}

/// Another item is in the range; returns the item that was to be added.
#[derive(Debug)]
pub struct Occupied<T: 'static>(pub Ref<T>);

impl<'g, T> Cursor<'g, T> {
    pub(super) fn new(locked: &'g mut Locked<'_, T>, start: u64, order: Order) -> Self {
        Self {
            position: Position::new(locked, start, order),
            scan: None,
        }
    }

    /// Returns the first index of the cursor's range.
    #[must_use]
    pub fn index(&self) -> u64 {
        self.position.start
    }

    /// Returns the order of the cursor's range.
    #[must_use]
    pub fn order(&self) -> Order {
        self.position.order
    }

    /// Returns the last index of the cursor's range.
    #[must_use]
    pub fn last_index(&self) -> u64 {
        self.position.last_index()
    }

    /// Moves to another index and order. Inside the same node this needs no walk.
    ///
    /// # Panics
    /// If `index` is not a multiple of the order's span.
    pub fn seek(&mut self, index: u64, order: Order) {
        self.own_slot().seek(index, order);
    }

    /// Returns the entry that covers the cursor's first index, if it is stored no deeper than the
    /// cursor's order: any entry for order zero.
    pub fn load(&mut self) -> Option<Found<'g, T>> {
        self.own_slot().load()
    }

    /// Moves to the first entry at or after the cursor's index that begins at or before `last`.
    pub fn find(&mut self, last: u64) -> Option<Found<'g, T>> {
        let from = self.index();
        scan::find(self.own_slot(), from, last, None)
    }

    /// Moves to the next entry after the cursor's range.
    pub fn find_next(&mut self, last: u64) -> Option<Found<'g, T>> {
        let from = self.last_index().checked_add(1)?;
        scan::find(self.own_slot(), from, last, None)
    }

    /// Like [`find`](Self::find), for entries with the mark.
    pub fn find_marked(&mut self, last: u64, mark: Mark) -> Option<Found<'g, T>> {
        let from = self.index();
        scan::find(self.own_slot(), from, last, Some(mark))
    }

    /// Like [`find_next`](Self::find_next), for entries with the mark.
    pub fn find_next_marked(&mut self, last: u64, mark: Mark) -> Option<Found<'g, T>> {
        let from = self.last_index().checked_add(1)?;
        scan::find(self.own_slot(), from, last, Some(mark))
    }

    /// Returns the next entry that overlaps the cursor's range, in ascending order.
    ///
    /// The first one may be larger than the range: then it covers it and is the only one. Its order
    /// is known from the position, without a second walk. The cursor's own position is kept: a
    /// store after the scan needs no walk.
    pub fn next_conflict(&mut self) -> Option<Found<'g, T>> {
        scan::next_conflict(&mut self.position, &mut self.scan)
    }

    /// Marks the entry that covers the cursor's index. Returns whether there is one.
    pub fn set_mark(&mut self, mark: Mark) -> bool {
        let Some(found) = self.load() else {
            return false;
        };
        marks::set(&self.position, found.index, mark);
        true
    }

    /// Clears the mark of the entry that covers the cursor's index. Returns whether it was set.
    pub fn clear_mark(&mut self, mark: Mark) -> bool {
        let Some(found) = self.load() else {
            return false;
        };
        let had = marks::is_set(&self.position, found.index, mark);
        if had {
            marks::clear(&self.position, found.index, mark);
        }
        had
    }

    /// Whether the entry that covers the cursor's index has the mark.
    pub fn is_marked(&mut self, mark: Mark) -> bool {
        self.load()
            .is_some_and(|found| marks::is_set(&self.position, found.index, mark))
    }

    /// Stores an unmarked entry of the cursor's order at its index, replacing smaller entries.
    /// Returns the entry at this index, if it was of the same order.
    pub fn store(&mut self, new: New<T>) -> Result<Old<T>, Larger> {
        store::store(self.own_slot(), new)
    }

    /// Replaces the item at the cursor, of the same order, by `item`, keeping its marks. Returns
    /// `None`, and changes nothing, if there is no item of this order.
    pub fn replace(&mut self, item: Ref<T>) -> Option<Ref<T>> {
        store::replace(self.own_slot(), item)
    }

    /// Removes the whole entry that covers the cursor's index, whatever its order.
    pub fn remove(&mut self) -> Old<T> {
        store::remove(self.own_slot())
    }

    /// Adds `item` at the cursor unless another item is anywhere in its range: one walk.
    ///
    /// Values in the range are overwritten, a larger one after a minimal split. Returns the last
    /// value found.
    pub fn add(&mut self, item: Ref<T>) -> Result<Option<u64>, Occupied<T>> {
        let Some((value, larger)) = self.conflicting_value() else {
            return Err(Occupied(item));
        };
        if larger.is_some() {
            self.split_minimal();
        }
        match self.store(New::Item(item)) {
            Ok(_) => Ok(value),
            Err(Larger { .. }) => unreachable!("a larger entry was split"),
        }
    }

    /// Returns the last value in the cursor's range, and the entry that is larger than the range if
    /// there is one; `None` if there is an item.
    pub(super) fn conflicting_value(&mut self) -> Option<(Option<u64>, Option<Found<'g, T>>)> {
        let mut value = None;
        let mut larger = None;
        while let Some(found) = self.next_conflict() {
            match found.content {
                Content::Item(_) => return None,
                Content::Value(seen) => value = Some(seen),
            }
            if found.order > self.order() {
                larger = Some(found);
            }
        }
        Some((value, larger))
    }

    /// Splits the entry at the cursor, if it is larger than the cursor's order, so that one piece
    /// is exactly the cursor's range. The others are as large as possible: splitting order 9
    /// towards order 0 leaves one of each order from 8 to 0, and needs one node.
    ///
    /// The cursor stays on the piece, so that a store needs no walk. Returns the number of nodes.
    pub fn split_minimal(&mut self) -> usize {
        split::split_minimal(self.own_slot())
    }

    /// Splits the entry at the cursor completely, into pieces of the plan's order, with the
    /// reserve's nodes.
    ///
    /// Returns the reserve, and changes nothing, if the entry or its order differs from the plan.
    /// Afterwards the cursor needs a new walk.
    pub fn split(&mut self, reserve: SplitReserve<T>) -> Result<(), SplitReserve<T>> {
        split::split(self.own_slot(), reserve)
    }

    /// Ends a scan, which may have left the path to the cursor's own slot.
    fn own_slot(&mut self) -> &mut Position<'g, T> {
        scan::end(&mut self.position, &mut self.scan);
        &mut self.position
    }
}

impl<T> fmt::Debug for Cursor<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Cursor")
            .field("index", &self.position.start)
            .field("order", &self.position.order)
            .field("walked", &self.position.walked)
            .finish_non_exhaustive()
    }
}
