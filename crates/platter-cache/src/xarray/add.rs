//! Adding items only if the range is free: one at a cursor, or a whole range under one lock hold.

use super::cursor::{Content, Cursor, Found};
use super::store::{Larger, New};
use super::{Locked, Order, Ref, XArray, raw};

/// Another item is in the range; returns the item that was to be added.
#[derive(Debug)]
pub struct Occupied<T: 'static>(pub Ref<T>);

/// Maximum number of nodes of an insertion, except the first one of a high index.
const NODES_OF_AN_ADD: usize = 4;

/// Fills the thread's magazine with the nodes that an insertion may need, so that none is allocated
/// under a lock.
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
}

impl<T> Locked<'_, T> {
    /// Adds adjacent items from `index` on: one descent per node instead of one per item.
    ///
    /// Each is added as by [`Cursor::add`]; `added` is called with its number and the last value of
    /// its range. Ends at the first item that conflicts or is not aligned to its span. Returns how
    /// many were added.
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

    /// Removes the values that begin in `first..=last`. Returns their number.
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
