//! What the item of a block group holds, and changes of it that may fail.
//!
//! The kernel has one number for both, an item that says that nothing is used and an item that is not there.
//! Twice that made it skip an update that was due: an update that was tried too early set the number back
//! to zero before, or after, the item was inserted (675dfe1223a6, 2d6cd791e63e).

use super::group::BlockGroup;
use crate::ondisk::block_group::BlockGroupItem;

/// What a tree says of a block group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Persisted {
    /// There is no item: one is to be inserted.
    Absent,
    /// The item in the tree of the running transaction.
    Item(BlockGroupItem),
}

/// Whether an item is to be updated.
#[derive(Debug)]
#[must_use]
pub enum Update<'g> {
    /// It holds what it should.
    Unchanged,
    /// There is none yet. Its insertion is owed, and will say all.
    Absent,
    /// It is to be written.
    Write(PendingItem<'g>),
}

/// Whether an item is to be inserted.
#[derive(Debug)]
#[must_use]
pub enum Insertion<'g> {
    /// There is one.
    Exists,
    /// It is to be inserted.
    Insert(PendingItem<'g>),
}

/// An item that is being written. Unless that is [done](Self::done), what the group knows of its item is
/// restored, if no other change was begun since.
#[derive(Debug)]
#[must_use]
pub struct PendingItem<'g> {
    group: &'g BlockGroup,
    item: BlockGroupItem,
    previous: Persisted,
    change: u64,
    is_done: bool,
}

impl<'g> PendingItem<'g> {
    /// What is to be written: the group as it was when the change was begun.
    #[must_use]
    pub fn item(&self) -> &BlockGroupItem {
        &self.item
    }

    /// Says that the item was written.
    pub fn done(mut self) {
        self.is_done = true;
    }

    fn begin(group: &'g BlockGroup, recorded: &mut Recorded, item: BlockGroupItem) -> Self {
        let previous = std::mem::replace(&mut recorded.persisted, Persisted::Item(item));
        recorded.changes += 1;
        Self {
            group,
            item,
            previous,
            change: recorded.changes,
            is_done: false,
        }
    }
}

impl Drop for PendingItem<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            self.group.restore(self.previous, self.change);
        }
    }
}

/// What a group knows of its item.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) persisted: Persisted,
    /// How many changes were begun.
    changes: u64,
}

impl Recorded {
    pub(super) fn new(persisted: Persisted) -> Self {
        Self {
            persisted,
            changes: 0,
        }
    }

    pub(super) fn begin_update<'g>(
        &mut self,
        group: &'g BlockGroup,
        desired: BlockGroupItem,
        skips: bool,
    ) -> Update<'g> {
        match self.persisted {
            Persisted::Absent => Update::Absent,
            Persisted::Item(item) if item == desired && skips => Update::Unchanged,
            Persisted::Item(_) => Update::Write(PendingItem::begin(group, self, desired)),
        }
    }

    pub(super) fn begin_insertion<'g>(
        &mut self,
        group: &'g BlockGroup,
        desired: BlockGroupItem,
    ) -> Insertion<'g> {
        match self.persisted {
            Persisted::Item(_) => Insertion::Exists,
            Persisted::Absent => Insertion::Insert(PendingItem::begin(group, self, desired)),
        }
    }

    pub(super) fn restore(&mut self, previous: Persisted, change: u64) {
        if self.changes == change {
            self.persisted = previous;
        }
    }
}
