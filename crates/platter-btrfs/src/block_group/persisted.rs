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

/// An item that is being written. Unless that is [done](Self::done), the group knows of its item what it knew without
/// this change: what an older change recorded that is still being written, or what the tree holds.
///
/// Several may be pending. Those that are done reached the tree in the order in which they were begun.
#[derive(Debug)]
#[must_use]
pub struct PendingItem<'g> {
    group: &'g BlockGroup,
    item: BlockGroupItem,
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
        Self {
            group,
            item,
            change: recorded.begin(item),
            is_done: false,
        }
    }
}

impl Drop for PendingItem<'_> {
    fn drop(&mut self) {
        self.group.end_change(self.change, self.is_done);
    }
}

/// What a group knows of its item.
///
/// # Invariants
/// - `persisted` is what the newest change recorded that neither failed nor has a later one that is done, or what the tree
///   holds.
#[derive(Debug)]
pub(super) struct Recorded {
    pub(super) persisted: Persisted,
    /// The changes that are being written, in the order in which they were begun, without those that have a later one
    /// that is done.
    pending: Vec<Begun>,
    /// How many changes were begun.
    changes: u64,
}

/// A change that was begun.
#[derive(Debug)]
struct Begun {
    change: u64,
    /// What is known of the item if it fails.
    previous: Persisted,
}

impl Recorded {
    pub(super) fn new(persisted: Persisted) -> Self {
        Self {
            persisted,
            pending: Vec::new(),
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

    fn begin(&mut self, item: BlockGroupItem) -> u64 {
        self.changes += 1;
        self.pending.push(Begun {
            change: self.changes,
            previous: std::mem::replace(&mut self.persisted, Persisted::Item(item)),
        });
        self.changes
    }

    pub(super) fn end(&mut self, change: u64, is_done: bool) {
        let at = self.pending.iter().position(|it| it.change == change);
        debug_assert!(at.is_some() || !is_done, "a later item was written before");
        let Some(at) = at else { return };
        if is_done {
            self.pending.drain(..=at);
            return;
        }
        // The next one replaced what this one recorded, which is not in the tree.
        let failed = self.pending.remove(at);
        match self.pending.get_mut(at) {
            Some(next) => next.previous = failed.previous,
            None => self.persisted = failed.previous,
        }
    }
}
