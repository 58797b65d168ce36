//! References to one extent that are to be added or dropped.

use std::cmp::Ordering;

use super::layout::HeadState;
use super::rbtree::{Links, Nodes, PackedLinks};
use super::slab::{Page, Slab, Slot};
use crate::ondisk::extent_item::ExtentFlags;
use crate::ondisk::extent_item::ExtentRef;
use crate::ondisk::{Key, LogicalAddr, TreeId};

/// What refers to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum RefKey {
    /// A tree refers to a block of it.
    TreeBlock {
        /// The tree.
        tree: TreeId,
    },
    /// A block refers to a block below it.
    SharedBlock {
        /// The upper one.
        parent: LogicalAddr,
    },
    /// A file refers to data.
    Data {
        /// The file's subvolume.
        tree: TreeId,
        /// The file.
        inode: u64,
        /// Where the extent would begin in the file.
        offset: u64,
    },
    /// A leaf refers to data.
    SharedData {
        /// The leaf.
        parent: LogicalAddr,
    },
}

impl RefKey {
    /// Whether the extent is of data.
    #[must_use]
    pub fn is_data(self) -> bool {
        match self {
            Self::TreeBlock { .. } | Self::SharedBlock { .. } => false,
            Self::Data { .. } | Self::SharedData { .. } => true,
        }
    }

    /// The reference as an extent item has it.
    #[must_use]
    pub fn counted(self, count: u32) -> ExtentRef {
        match self {
            Self::TreeBlock { tree } => ExtentRef::TreeBlock { tree },
            Self::SharedBlock { parent } => ExtentRef::SharedBlock { parent },
            Self::Data {
                tree,
                inode,
                offset,
            } => ExtentRef::Data {
                tree,
                inode,
                offset,
                count,
            },
            Self::SharedData { parent } => ExtentRef::SharedData { parent, count },
        }
    }
}

/// What is done with a reference.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Action {
    /// It is added.
    Add,
    /// It is dropped.
    Drop,
}

impl Action {
    /// The other one.
    #[must_use]
    pub fn reversed(self) -> Self {
        match self {
            Self::Add => Self::Drop,
            Self::Drop => Self::Add,
        }
    }

    pub(super) fn signed(self, count: u32) -> Option<i32> {
        let count = i32::try_from(count).ok()?;
        match self {
            Self::Add => Some(count),
            Self::Drop => Some(-count),
        }
    }
}

/// What is to be set in the item of a tree block.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ExtentOp {
    /// The first key of the block, for items that have it.
    pub key: Option<Key>,
    /// Flags that are added.
    pub flags: ExtentFlags,
}

impl ExtentOp {
    /// Adds a later change.
    pub(super) fn merge(&mut self, later: Self) {
        self.key = later.key.or(self.key);
        self.flags |= later.flags;
    }
}

/// A reference in the queue.
#[derive(Debug, Clone, Copy)]
pub(super) struct QueuedRef {
    pub(super) key: RefKey,
    /// The sequence of the walk that the reference is younger than; 0 if there was none.
    pub(super) sequence: u64,
    pub(super) count: u32,
    pub(super) action: Action,
    links: PackedLinks,
    /// Neighbours among those that are added.
    adds: [Slot; 2],
}

impl Default for QueuedRef {
    fn default() -> Self {
        Self::new(RefKey::TreeBlock { tree: TreeId(0) }, 0, Action::Add, 0)
    }
}

impl QueuedRef {
    pub(super) fn new(key: RefKey, sequence: u64, action: Action, count: u32) -> Self {
        Self {
            key,
            sequence,
            count,
            action,
            links: PackedLinks::default(),
            adds: [Slot::NONE; 2],
        }
    }
}

/// The references of all heads.
pub(super) type RefSlab = Slab<QueuedRef, Page<QueuedRef, 56>>;

impl Nodes for RefSlab {
    fn links(&self, at: Slot) -> Links {
        self.get(at).links.into()
    }

    fn set_links(&mut self, at: Slot, links: Links) {
        self.get_mut(at).links = links.into();
    }
}

/// What became of a reference that was queued.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Merged {
    /// It is another one in the queue.
    Queued,
    /// It is part of one that was there.
    Added,
    /// It and one that was there cancel each other.
    Cancelled,
    /// There are too many.
    Full,
}

/// The references of one head, which are ordered by what refers, then by sequence.
///
/// # Invariants
/// - The list of additions has exactly the references that are added.
impl HeadState {
    /// Queues a reference, or merges it with the one of its key and sequence.
    pub(super) fn queue(&mut self, slab: &mut RefSlab, new: QueuedRef) -> Merged {
        let wanted = (new.key, new.sequence);
        let found = self.refs.find(slab, |at| compare(slab, wanted, at));
        match found {
            Err(vacancy) => {
                let Some(at) = slab.insert(new) else {
                    return Merged::Full;
                };
                self.refs.insert(slab, at, vacancy);
                if new.action == Action::Add {
                    self.list(slab, at);
                }
                Merged::Queued
            }
            Ok(at) => self.merge_into(slab, at, new.action, new.count),
        }
    }

    /// Merges a change into a reference of the queue.
    fn merge_into(&mut self, slab: &mut RefSlab, at: Slot, action: Action, count: u32) -> Merged {
        let there = slab.get_mut(at);
        if there.action == action {
            let Some(sum) = there.count.checked_add(count) else {
                return Merged::Full;
            };
            there.count = sum;
            return Merged::Added;
        }
        if there.count > count {
            there.count -= count;
            return Merged::Added;
        }
        if there.count == count {
            self.remove_ref(slab, at);
            return Merged::Cancelled;
        }
        there.count = count - there.count;
        there.action = action;
        match action {
            Action::Add => self.list(slab, at),
            Action::Drop => self.unlist(slab, at),
        }
        Merged::Added
    }

    /// Merges references that differ only in sequences below `limit`.
    pub(super) fn merge_older(&mut self, slab: &mut RefSlab, limit: u64) -> usize {
        let mut cancelled = 0;
        let mut at = self.refs.first(slab);
        while let Some(first) = at {
            let next = self.refs.after(slab, first);
            let Some(second) = next else { break };
            let (left, right) = (*slab.get(first), *slab.get(second));
            if left.key != right.key || left.sequence >= limit || right.sequence >= limit {
                at = next;
                continue;
            }
            self.remove_ref(slab, second);
            let merged = self.merge_into(slab, first, right.action, right.count);
            at = if merged == Merged::Cancelled {
                cancelled += 1;
                let wanted = (right.key, right.sequence);
                self.refs.at_or_after(slab, |at| compare(slab, wanted, at))
            } else {
                Some(first)
            };
        }
        cancelled
    }

    /// Whether all references are those of `key`.
    pub(super) fn has_only(&self, slab: &RefSlab, key: RefKey) -> bool {
        let mut at = self.refs.first(slab);
        while let Some(slot) = at {
            if slab.get(slot).key != key {
                return false;
            }
            at = self.refs.after(slab, slot);
        }
        true
    }

    /// The reference to run next: one that is added if there is any.
    pub(super) fn next_ref(&self, slab: &RefSlab) -> Option<Slot> {
        self.adds[0].get().or_else(|| self.refs.first(slab))
    }

    /// Removes a reference from the queue.
    pub(super) fn remove_ref(&mut self, slab: &mut RefSlab, at: Slot) -> QueuedRef {
        if slab.get(at).action == Action::Add {
            self.unlist(slab, at);
        }
        self.refs.remove(slab, at);
        slab.remove(at)
    }

    /// Adds a reference to the list of additions.
    fn list(&mut self, slab: &mut RefSlab, at: Slot) {
        let last = self.adds[1];
        slab.get_mut(at).adds = [last, Slot::NONE];
        match last.get() {
            Some(last) => slab.get_mut(last).adds[1] = at,
            None => self.adds[0] = at,
        }
        self.adds[1] = at;
    }

    fn unlist(&mut self, slab: &mut RefSlab, at: Slot) {
        let [before, after] = std::mem::take(&mut slab.get_mut(at).adds);
        match before.get() {
            Some(before) => slab.get_mut(before).adds[1] = after,
            None => self.adds[0] = after,
        }
        match after.get() {
            Some(after) => slab.get_mut(after).adds[0] = before,
            None => self.adds[1] = before,
        }
    }

    /// Panics if an invariant does not hold. Returns how many references there are.
    #[cfg(test)]
    pub(super) fn assert_invariants(&self, slab: &RefSlab) -> usize {
        let mut listed = std::collections::BTreeSet::new();
        let (mut at, mut before) = (self.adds[0], Slot::NONE);
        while let Some(add) = at.get() {
            let reference = slab.get(add);
            assert_eq!(reference.action, Action::Add);
            assert_eq!(reference.adds[0], before);
            assert!(listed.insert(add));
            (before, at) = (add, reference.adds[1]);
        }
        assert_eq!(self.adds[1], before);
        let mut sum = 0;
        let mut last = None;
        let mut at = self.refs.first(slab);
        let count = self.refs.assert_invariants(slab);
        let mut seen = 0;
        while let Some(slot) = at {
            let reference = slab.get(slot);
            assert!(last < Some((reference.key, reference.sequence)), "order");
            last = Some((reference.key, reference.sequence));
            assert_ne!(reference.count, 0);
            let is_added = reference.action == Action::Add;
            assert_eq!(listed.contains(&slot), is_added, "list of additions");
            sum += reference.action.signed(reference.count).unwrap();
            seen += 1;
            at = self.refs.after(slab, slot);
        }
        assert_eq!(seen, count);
        assert_eq!(sum, self.net_change, "net change");
        count
    }
}

fn compare(slab: &RefSlab, wanted: (RefKey, u64), at: Slot) -> Ordering {
    let reference = slab.get(at);
    wanted.cmp(&(reference.key, reference.sequence))
}
