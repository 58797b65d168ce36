//! Ways to add an item where a larger value may have to be split: as page caches did it, and as they do
//! it now, to be measured against each other.

use std::fmt;

use super::add::{Occupied, reserve_nodes};
use super::cursor::Cursor;
use super::split::{SplitPlan, SplitReserve};
use super::store::New;
use super::{Locked, Order, Ref, XArray};

/// How an item is added.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub enum Insertion {
    /// A walk for the order of what is there, one for what is in the way, and if something is, one
    /// for its order again. A larger value is split wholly, with nodes taken without the lock.
    ThreeWalks,
    /// One walk that tells all of that; a larger value is split in the same way.
    OneWalk,
    /// One walk, and a larger value is split no more than needed on the way.
    MinimalSplit,
    /// As that, and items side by side are added under one hold of the lock, with one walk for
    /// every node they lie in.
    #[default]
    Batched,
}

/// An item on its way into an array. Each [`step`](Self::step) is a hold of the array's lock.
pub struct Adding<T: 'static> {
    insertion: Insertion,
    index: u64,
    order: Order,
    item: Ref<T>,
    plan: Option<SplitPlan>,
    reserve: Option<SplitReserve<T>>,
}

/// What a step came to.
#[derive(Debug)]
pub enum Step<T: 'static> {
    /// The item was added. The last value that was in its place.
    Added(Option<u64>),
    /// There is something to be prepared without the lock.
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
    /// As [`add`](Self::add), in the way asked for.
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
    /// Takes the nodes that most insertions need.
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

    /// Takes what the next step needs, without the lock.
    #[must_use]
    pub fn prepared(mut self) -> Self {
        self.reserve = self.plan.take().map(SplitReserve::new);
        self
    }

    /// Adds the item, or finds what that takes.
    ///
    /// # Errors
    /// Another item is in the way.
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
            // What was seen before the lock was given up is out of date: safe because this looks.
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
            // What was prepared is of use only for this very entry, of this very order.
            let split = self.reserve.take().map(|reserve| cursor.split(reserve));
            if !matches!(split, Some(Ok(()))) {
                return Step::Again(self);
            }
        }
        let stored = cursor.store(New::Item(self.item));
        debug_assert!(stored.is_ok(), "a larger entry was split");
        Step::Added(value)
    }

    /// A whole split of what is larger than the item, if it is.
    fn plan_at(&self, cursor: &mut Cursor<'_, T>) -> Option<SplitPlan> {
        let found = cursor.load()?;
        (found.order > self.order).then(|| SplitPlan::new(&found, self.order))
    }
}
