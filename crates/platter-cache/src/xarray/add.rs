//! Adding items where none may be: one at a cursor, or a whole range under one lock hold.

use super::cursor::{Content, Cursor, Found};
use super::store::{Larger, New};
use super::{Locked, Order, Ref, XArray, raw};

/// Another item is in the way; this one comes back.
#[derive(Debug)]
pub struct Occupied<T: 'static>(pub Ref<T>);

/// Nodes an insertion takes at most, but for the first of a high index.
const NODES_OF_AN_ADD: usize = 4;

/// Takes the nodes that an insertion may need into the thread's magazine, so that none is
/// allocated under a lock.
pub(crate) fn reserve_nodes() {
    raw::fill_magazine(NODES_OF_AN_ADD);
}

impl<T> XArray<T> {
    /// Adds one item: see [`Cursor::add`].
    pub fn add(&self, index: u64, order: Order, item: Ref<T>) -> Result<Option<u64>, Occupied<T>> {
        reserve_nodes();
        self.lock().cursor(index, order).add(item)
    }
}

impl<'g, T> Cursor<'g, T> {
    /// Puts `item` at the cursor unless another item is anywhere in its range: one walk.
    ///
    /// Values in the way are overwritten, a larger one after a minimal split. Gives the last
    /// value seen.
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

    /// The last value in the cursor's range, and the entry that is larger than the range if there
    /// is one; nothing if there is an item.
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
}

impl<T> Locked<'_, T> {
    /// Adds items side by side from `index` on: one descent per node instead of one per item.
    ///
    /// Each is added as by [`Cursor::add`]; `added` gets its number and the last value its range
    /// held. Ends at the first item in the way, or that does not lie at a multiple of its span.
    /// Returns how many were added.
    pub fn add_range<I>(
        &mut self,
        index: u64,
        items: I,
        mut added: impl FnMut(usize, Option<u64>),
    ) -> usize
    where
        I: IntoIterator<Item = (Ref<T>, Order)>,
    {
        let mut cursor = self.cursor(index, Order::ZERO);
        let mut next = Some(index);
        let mut count = 0;
        for (item, order) in items {
            let Some(index) = next.filter(|index| index % order.span() == 0) else {
                break;
            };
            cursor.seek(index, order);
            let Ok(value) = cursor.add(item) else {
                break;
            };
            added(count, value);
            count += 1;
            next = cursor.last_index().checked_add(1);
        }
        count
    }

    /// Removes the values that begin in `first..=last`. Returns how many there were.
    pub fn remove_values(&mut self, first: u64, last: u64) -> usize {
        let mut cursor = self.cursor(first, Order::ZERO);
        let mut found = cursor.find(last);
        let mut removed = 0;
        while let Some(entry) = found {
            if let Content::Value(_) = entry.content {
                cursor.remove();
                removed += 1;
            }
            found = cursor.find_next(last);
        }
        removed
    }
}
