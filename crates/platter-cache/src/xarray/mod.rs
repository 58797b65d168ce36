//! XArray: an ordered map from `u64` to counted items or 63-bit values, read without locks.
//!
//! A radix tree of 64-slot nodes. An entry of order `k` covers `2^k` aligned indexes: it sits in
//! one canonical slot at the level `k / 6`, and the `2^(k % 6) - 1` slots after it are siblings
//! that point back to it. Entries carry three marks; a node's mark bits are the union of what is
//! below each slot, so that marked entries are found without looking at others.
//!
//! # Invariants
//! 1. Siblings point to an earlier canonical slot of the same node; counts and value counts match
//!    the slots; empty nodes are freed; a mark of a slot is the union of the marks below it.
//! 2. A [`Cursor`] borrows the lock it was made under, so none outlives an unlock.
//! 3. A [`SplitReserve`] is consumed only for the entry and order it was made for, under the lock.
//! 4. While an entry is split every slot of its range leads to the original, until each piece is
//!    replaced by its final item.
//! 5. A lock-free lookup loads a slot, tries to get the item (a frozen or dead one refuses), and
//!    loads the slot again; only if nothing changed is the item returned. A sibling that leads to
//!    another sibling is followed: it always leads to an earlier slot.

mod count;
mod raw;
mod position;
mod marks;
mod scan;
mod store;
mod split;
mod cursor;
mod check;
#[cfg(any(test, feature = "bench"))]
mod insertion;
#[cfg(test)]
mod tests;

use std::fmt;

use crate::sync::epoch::{self, Guard};
use crate::sync::{AtomicU8, AtomicUsize, Mutex, MutexGuard, Ordering, rank};
use raw::{Head, Loaded, NodeRef, SLOT_BITS, SLOTS, Seen};

pub use count::Counts;
pub use cursor::{Cursor, Occupied};
#[cfg(any(test, feature = "bench"))]
pub use insertion::{Adding, Insertion, Step};
pub use marks::Mark;
pub use position::{Content, Found};
pub use raw::{Frozen, ItemRef, Ref};
pub use split::{SplitPlan, SplitReserve};
pub use store::{Larger, New, Old};

pub(crate) use raw::NODE_BYTES;

/// Levels of a 64-bit index, six bits each.
const LEVELS_MAX: usize = 11;
/// Number of optimistic lookups before a reader waits for a concurrent writer.
const OPTIMISTIC_LOOKUPS: usize = 8;
/// Maximum number of nodes of an insertion, except the first one of a high index.
const NODES_OF_AN_ADD: usize = 4;

/// The size of an entry: it covers `2^order` indexes, aligned to their number.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
pub struct Order(u8);

impl Order {
    /// One index.
    pub const ZERO: Self = Self(0);
    /// The largest order: three levels of the tree.
    pub const MAX: Self = Self(17);

    /// Returns the order of `2^order` indexes, if entries can be that large.
    #[must_use]
    pub const fn new(order: u8) -> Option<Self> {
        if order <= Self::MAX.0 {
            Some(Self(order))
        } else {
            None
        }
    }

    /// Returns the exponent.
    #[must_use]
    pub const fn get(self) -> u8 {
        self.0
    }

    /// Returns the number of indexes that an entry of this order covers.
    #[must_use]
    pub const fn span(self) -> u64 {
        1 << self.0
    }

    /// Returns the next smaller order, or this one if there is none.
    #[must_use]
    pub const fn halved(self) -> Self {
        Self(self.0.saturating_sub(1))
    }

    /// Returns the shift of the level that entries of this order are stored at.
    fn shift(self) -> u8 {
        self.0 / SLOT_BITS * SLOT_BITS
    }

    /// Returns the number of slots of that level that one entry uses.
    fn slots(self) -> u8 {
        1 << (self.0 % SLOT_BITS)
    }
}

/// The contents of an index, independent of the array.
#[derive(Debug)]
pub enum Entry<T: 'static> {
    /// A number below `2^63`.
    Value(u64),
    /// An item, with a reference to it.
    Item(Ref<T>),
}

/// An ordered map from `u64` to items that are counted references, or to 63-bit values.
pub struct XArray<T: 'static> {
    head: Head<T>,
    /// Marks of the whole array: of the entry in the head, or the union of the root's.
    head_marks: AtomicU8,
    /// Changes of the array.
    lock: Mutex<(), { rank(13, 9) }>,
    node_count: AtomicUsize,
    value_node_count: AtomicUsize,
}

impl<T> Default for XArray<T> {
    fn default() -> Self {
        Self {
            head: Head::default(),
            head_marks: AtomicU8::new(0),
            lock: Mutex::new(()),
            node_count: AtomicUsize::new(0),
            value_node_count: AtomicUsize::new(0),
        }
    }
}

impl<T> XArray<T> {
    /// Creates an empty array.
    #[must_use]
    pub fn new() -> Self {
        Self::default()
    }

    /// Returns the entry that covers `index`, without taking a lock.
    ///
    /// If a writer keeps an item frozen or changes the tree all the while, the reader finally waits
    /// for its lock, so the owner of that lock must not call this.
    #[must_use]
    pub fn get(&self, index: u64) -> Option<Entry<T>> {
        loop {
            for _ in 0..OPTIMISTIC_LOOKUPS {
                if let Ok(entry) = self.try_get(index, &epoch::pin()) {
                    return entry;
                }
            }
            drop(self.lock.lock());
        }
    }

    /// Returns the item that covers `index`, without taking a lock. See [`get`](Self::get).
    #[must_use]
    pub fn get_item(&self, index: u64) -> Option<Ref<T>> {
        match self.get(index)? {
            Entry::Item(item) => Some(item),
            Entry::Value(_) => None,
        }
    }

    /// Adds one item: see [`Cursor::add`].
    pub fn add(&self, index: u64, order: Order, item: Ref<T>) -> Result<Option<u64>, Occupied<T>> {
        reserve_nodes();
        self.lock().cursor(index, order).add(item)
    }

    /// Locks the array against other writers. Readers are not blocked.
    #[must_use]
    pub fn lock(&self) -> Locked<'_, T> {
        Locked {
            array: self,
            _lock: self.lock.lock(),
            pin: epoch::pin(),
        }
    }

    /// Whether any entry has the mark.
    #[must_use]
    pub fn is_any_marked(&self, mark: Mark) -> bool {
        self.head_marks.load(Ordering::Relaxed) & mark.bit() != 0
    }

    /// Returns the number of nodes.
    #[must_use]
    pub fn node_count(&self) -> usize {
        self.node_count.load(Ordering::Relaxed)
    }

    /// Returns the number of nodes with only values.
    #[must_use]
    pub fn value_node_count(&self) -> usize {
        self.value_node_count.load(Ordering::Relaxed)
    }

    /// Makes one optimistic lookup; fails on a concurrent writer.
    fn try_get(&self, index: u64, pin: &Guard) -> Result<Option<Entry<T>>, Contended> {
        count::walk();
        let head = self.head.slot();
        let mut node: Option<NodeRef<'_, T>> = None;
        let mut loaded = head.load(pin);
        loop {
            let item = match loaded.seen() {
                Seen::Node(below) => {
                    if node.is_none() && index >> below.shift() >= u64::from(SLOTS) {
                        return Ok(None);
                    }
                    node = Some(below);
                    loaded = load_covering(below, index, pin)?;
                    continue;
                }
                Seen::Empty => return Ok(None),
                Seen::Sibling(_) | Seen::Retry => return Err(Contended),
                // An entry in the head covers index 0 only.
                Seen::Value(_) | Seen::Item(_) if node.is_none() && index > 0 => return Ok(None),
                Seen::Value(value) => return Ok(Some(Entry::Value(value))),
                Seen::Item(item) => item,
            };
            let item = item.try_get().ok_or(Contended)?;
            // The item may have been replaced, or split, between the load and the reference.
            let again = match node {
                None => head.load(pin),
                Some(node) => load_covering(node, index, pin)?,
            };
            return if again == loaded {
                Ok(Some(Entry::Item(item)))
            } else {
                Err(Contended)
            };
        }
    }
}

/// Fills the thread's magazine with the nodes that an insertion may need, so that none is allocated
/// under a lock.
pub(crate) fn reserve_nodes() {
    raw::fill_magazine(NODES_OF_AN_ADD);
}

/// A writer interfered with a lock-free lookup.
struct Contended;

/// Returns the contents of the slot that covers `index` in `node`: of the canonical one, if it is a
/// sibling.
fn load_covering<'p, T>(
    node: NodeRef<'p, T>,
    index: u64,
    pin: &'p Guard,
) -> Result<Loaded<'p, T>, Contended> {
    let mut loaded = node.slot(slot_offset(index, node.shift())).load(pin);
    let mut was_sibling = false;
    // A writer may turn a canonical slot into a sibling of a larger entry meanwhile; the chain
    // ends, since each link leads to an earlier slot.
    while let Seen::Sibling(offset) = loaded.seen() {
        loaded = node.slot(offset).load(pin);
        was_sibling = true;
    }
    if was_sibling && matches!(loaded.seen(), Seen::Node(_)) {
        // The entry was split below its canonical slot, which does not cover the index any more.
        return Err(Contended);
    }
    Ok(loaded)
}

/// Returns the slot of a node with `shift` that covers `index`.
fn slot_offset(index: u64, shift: u8) -> u8 {
    let [low, ..] = (index >> shift).to_le_bytes();
    low % SLOTS
}

/// Returns the last index below a root with `shift`.
fn last_index(shift: u8) -> u64 {
    u64::MAX
        .checked_shl(u32::from(shift + SLOT_BITS))
        .map_or(u64::MAX, |above| !above)
}

impl<T> fmt::Debug for XArray<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("XArray")
            .field("nodes", &self.node_count())
            .field("value_nodes", &self.value_node_count())
            .finish_non_exhaustive()
    }
}

/// The array, locked against other writers until this is dropped.
///
/// A cursor borrows it, so a position in the tree cannot be kept over an unlock:
///
/// ```compile_fail,E0505
/// use platter_cache::xarray::{Order, XArray};
/// let array = XArray::<u32>::new();
/// let mut locked = array.lock();
/// let mut cursor = locked.cursor(0, Order::ZERO);
/// drop(locked);
/// let _ = cursor.load();
/// ```
///
/// Nor are there two at a time, of which one could change the tree under the other:
///
/// ```compile_fail,E0499
/// use platter_cache::xarray::{Order, XArray};
/// let array = XArray::<u32>::new();
/// let mut locked = array.lock();
/// let mut one = locked.cursor(0, Order::ZERO);
/// let mut other = locked.cursor(1, Order::ZERO);
/// let _ = (one.load(), other.load());
/// ```
pub struct Locked<'x, T: 'static> {
    array: &'x XArray<T>,
    _lock: MutexGuard<'x, ()>,
    /// Keeps the nodes that the owner of this lock unlinks alive until it unlocks.
    pin: Guard,
}

impl<T> Locked<'_, T> {
    /// A cursor for an entry of `order` that begins at `index`.
    ///
    /// # Panics
    /// If `index` is not a multiple of the order's span.
    pub fn cursor(&mut self, index: u64, order: Order) -> Cursor<'_, T> {
        Cursor::new(self, index, order)
    }

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

    fn seen_head(&self) -> Seen<'_, T> {
        self.array.head.slot().load(&self.pin).seen()
    }
}

impl<T> fmt::Debug for Locked<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Locked").field(self.array).finish()
    }
}
