//! Insertion methods for items whose range a larger value may cover: those of earlier page caches
//! and the current one, for comparison.

use std::fmt;

use super::cursor::{Cursor, Occupied};
use super::split::{SplitPlan, SplitReserve};
use super::store::New;
use super::{Locked, Order, Ref, XArray, reserve_nodes};

/// An insertion method.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Insertion {
    /// A walk for the order of the present entry, one for conflicts, and if there is one, another
    /// for its order. A larger value is split completely, with nodes allocated without the lock.
    ThreeWalks,
    /// One walk that finds all of that; a larger value is split completely.
    OneWalk,
    /// One walk, and a larger value is split minimally.
    MinimalSplit,
    /// The same, and adjacent items are added under one lock hold, with one walk per node.
    #[default]
    Batched,
}

impl Insertion {
    /// Whether it may need several holds of the array's lock.
    pub(crate) fn is_earlier(self) -> bool {
        matches!(self, Self::ThreeWalks | Self::OneWalk)
    }
}

/// An insertion in progress. Each [`step`](Self::step) is one hold of the array's lock.
pub struct Adding<T: 'static> {
    insertion: Insertion,
    index: u64,
    order: Order,
    item: Ref<T>,
    plan: Option<SplitPlan>,
    reserve: Option<SplitReserve<T>>,
}

/// Result of a step.
#[derive(Debug)]
pub enum Step<T: 'static> {
    /// The item was added. The last value of its range.
    Added(Option<u64>),
    /// The next step needs preparation without the lock.
    Again(Adding<T>),
}

impl<T> fmt::Debug for Adding<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Adding")
            .field("insertion", &self.insertion)
            .field("index", &self.index)
            .field("order", &self.order)
            .finish_non_exhaustive()
    }
}

impl<T> XArray<T> {
    /// Like [`add`](Self::add), with the given method.
    pub fn add_by(
        &self,
        insertion: Insertion,
        index: u64,
        order: Order,
        item: Ref<T>,
    ) -> Result<Option<u64>, Occupied<T>> {
        let mut adding = Adding::new(insertion, index, order, item);
        loop {
            match adding.step(&mut self.lock())? {
                Step::Added(value) => return Ok(value),
                Step::Again(next) => adding = next.prepared(),
            }
        }
    }
}

impl<T> Adding<T> {
    /// Allocates the nodes that most insertions need.
    #[must_use]
    pub fn new(insertion: Insertion, index: u64, order: Order, item: Ref<T>) -> Self {
        reserve_nodes();
        Self {
            insertion,
            index,
            order,
            item,
            plan: None,
            reserve: None,
        }
    }

    /// Allocates what the next step needs, without the lock.
    #[must_use]
    pub fn prepared(mut self) -> Self {
        self.reserve = self.plan.take().map(SplitReserve::new);
        self
    }

    /// Adds the item, or determines what that needs.
    ///
    /// # Errors
    /// Another item is in the range.
    pub fn step(self, locked: &mut Locked<'_, T>) -> Result<Step<T>, Occupied<T>> {
        match self.insertion {
            Insertion::ThreeWalks => self.step_in_walks(locked),
            Insertion::OneWalk => self.step_in_one_walk(locked),
            Insertion::MinimalSplit | Insertion::Batched => {
                let mut cursor = locked.cursor(self.index, self.order);
                cursor.add(self.item).map(Step::Added)
            }
        }
    }

    fn step_in_walks(mut self, locked: &mut Locked<'_, T>) -> Result<Step<T>, Occupied<T>> {
        if self.reserve.is_none() {
            let mut cursor = locked.cursor(self.index, self.order);
            self.plan = self.plan_at(&mut cursor);
            if self.plan.is_some() {
                return Ok(Step::Again(self));
            }
        }
        let mut cursor = locked.cursor(self.index, self.order);
        let Some((value, _)) = cursor.conflicting_value() else {
            return Err(Occupied(self.item));
        };
        if value.is_some() {
            cursor = locked.cursor(self.index, self.order);
            // What was seen before the lock was released may be outdated; this looks again.
            self.plan = self.plan_at(&mut cursor);
        }
        Ok(self.split_and_store(cursor, value))
    }

    fn step_in_one_walk(mut self, locked: &mut Locked<'_, T>) -> Result<Step<T>, Occupied<T>> {
        let mut cursor = locked.cursor(self.index, self.order);
        let Some((value, larger)) = cursor.conflicting_value() else {
            return Err(Occupied(self.item));
        };
        self.plan = larger.map(|larger| SplitPlan::new(&larger, self.order));
        Ok(self.split_and_store(cursor, value))
    }

    fn split_and_store(mut self, mut cursor: Cursor<'_, T>, value: Option<u64>) -> Step<T> {
        if self.plan.is_some() {
            // The reserve is valid only for this entry with this order.
            let split = self.reserve.take().map(|reserve| cursor.split(reserve));
            if !matches!(split, Some(Ok(()))) {
                return Step::Again(self);
            }
        }
        let stored = cursor.store(New::Item(self.item));
        debug_assert!(stored.is_ok(), "a larger entry was split");
        Step::Added(value)
    }

    /// Plans the complete split of an entry larger than the item, if there is one.
    fn plan_at(&self, cursor: &mut Cursor<'_, T>) -> Option<SplitPlan> {
        let found = cursor.load()?;
        (found.order > self.order).then(|| SplitPlan::new(&found, self.order))
    }
}
