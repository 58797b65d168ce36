//! The queue of delayed references: heads, their references, and what they count.

use std::sync::Arc;

use platter_ondisk::{Corrupt, Locus, rules};

use super::Heads;
use super::index::{HeadIndex, Inserted};
use super::layout::{HeadFlags, HeadState};
use super::reference::{Action, ExtentOp, Merged, QueuedRef, RefKey, RefSlab};
use super::slab::{Page, Slab, Slot};
use super::walks::Walks;
use crate::ondisk::LogicalAddr;

rules! {
    /// The rules of changes of references. What comes from trees may break them.
    pub enum DelayedRefRule of "delayed reference" {
        /// An extent holds either data or a tree block as long as a head of it exists.
        Kind => "extent changed between data and tree block",
        /// The references of an extent fit its kind.
        Reference => "reference does not fit the kind of its extent",
        /// The sum of changes does not overflow.
        Count => "reference count overflows",
        /// An extent has a reference when its item is inserted.
        InsertedByDrop => "extent was allocated without a reference",
        /// Changes fit in memory.
        Full => "too many delayed references",
    }
}

/// What an extent is of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum ExtentKind {
    /// Data.
    Data,
    /// A tree block.
    TreeBlock {
        /// Its level.
        level: u8,
        /// Whether it is of the chunk tree.
        is_system: bool,
    },
}

/// A change of the references to an extent.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Change {
    /// The first byte.
    pub address: LogicalAddr,
    /// The length.
    pub len_bytes: u64,
    /// What it is of.
    pub kind: ExtentKind,
    /// What refers to it.
    pub reference: RefKey,
    /// How often.
    pub count: u32,
    /// Whether the reference is added or dropped.
    pub action: Action,
    /// Whether the extent was just allocated, so that it has no item yet.
    pub allocates: bool,
    /// What is to be set in its item.
    pub op: Option<ExtentOp>,
}

/// Events since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct DelayedRefCounters {
    /// Heads that were inserted.
    pub heads: u64,
    /// Changes of extents that had a head.
    pub merged_heads: u64,
    /// References that were queued.
    pub refs: u64,
    /// Changes that became part of a queued reference.
    pub merged_refs: u64,
    /// Pairs that cancelled each other.
    pub cancelled: u64,
    /// References that were run.
    pub run: u64,
    /// Heads that were dropped without having been run.
    pub forgotten: u64,
    /// Heads that changed while their last reference was run.
    pub retries: u64,
    /// How many heads were inserted while so many were in their index, by powers of two: none or one, then up to three,
    /// up to seven, and so on.
    pub present: [u64; PRESENT_BUCKETS],
}

/// Powers of two that numbers of heads are counted by.
pub const PRESENT_BUCKETS: usize = 24;

impl DelayedRefCounters {
    /// What was counted since `earlier`.
    #[must_use]
    pub fn since(&self, earlier: &Self) -> Self {
        let mut present = self.present;
        for (count, before) in present.iter_mut().zip(&earlier.present) {
            *count -= before;
        }
        Self {
            heads: self.heads - earlier.heads,
            merged_heads: self.merged_heads - earlier.merged_heads,
            refs: self.refs - earlier.refs,
            merged_refs: self.merged_refs - earlier.merged_refs,
            cancelled: self.cancelled - earlier.cancelled,
            run: self.run - earlier.run,
            forgotten: self.forgotten - earlier.forgotten,
            retries: self.retries - earlier.retries,
            present,
        }
    }

    /// What both counted.
    #[must_use]
    pub(crate) fn plus(mut self, other: &Self) -> Self {
        for (count, more) in self.present.iter_mut().zip(&other.present) {
            *count += more;
        }
        Self {
            heads: self.heads + other.heads,
            merged_heads: self.merged_heads + other.merged_heads,
            refs: self.refs + other.refs,
            merged_refs: self.merged_refs + other.merged_refs,
            cancelled: self.cancelled + other.cancelled,
            run: self.run + other.run,
            forgotten: self.forgotten + other.forgotten,
            retries: self.retries + other.retries,
            present: self.present,
        }
    }

    /// The least number of heads that were there for this part of all insertions, in percent.
    #[must_use]
    pub fn present_at(&self, percent: u64) -> u64 {
        let all: u64 = self.present.iter().sum();
        let mut left = all * percent / 100;
        for (bucket, count) in self.present.iter().enumerate() {
            if left < *count {
                return (1 << bucket) & !1;
            }
            left -= count;
        }
        0
    }
}

/// An extent that was dropped before it had an item.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Freed {
    /// Whether the extent had no item yet.
    pub must_insert: bool,
}

/// A head that was discarded with its transaction.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Discarded {
    /// The extent.
    pub address: LogicalAddr,
    /// Its length.
    pub len_bytes: u64,
    /// Whether it has no item: its space must not be used again before the next mount.
    pub must_insert: bool,
}

/// The delayed references of a transaction, under the caller's lock.
///
/// # Invariants
/// - Heads are unique and ordered by address; those that are not being run are counted.
/// - The net change of a head is the sum of its references. Its total change goes on counting when
///   references were run.
/// - The data whose checksums are to be deleted is that of the heads of data with a negative total change.
#[derive(Debug, Default)]
pub struct RefQueue<I: HeadIndex = Heads> {
    pub(super) heads: I,
    pub(super) refs: RefSlab,
    pub(super) ops: Slab<ExtentOp, Page<ExtentOp, 102>>,
    /// Heads that are not being run.
    pub(super) ready: usize,
    /// Where the next head to run is searched from.
    pub(super) cursor: u64,
    /// Bytes of data whose checksums are to be deleted.
    pub(super) checksum_deletions: u64,
    walks: Arc<Walks>,
    pub(super) counters: DelayedRefCounters,
}

impl<I: HeadIndex> RefQueue<I> {
    /// An empty queue whose heads are in `heads`, which has none, with walks that others know, too.
    pub(super) fn with_heads(heads: I, walks: Arc<Walks>) -> Self {
        Self {
            heads,
            walks,
            ..Self::default()
        }
    }

    /// How many heads there are.
    #[must_use]
    pub fn len(&self) -> usize {
        self.heads.len()
    }

    /// Whether there are no heads.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.heads.is_empty()
    }

    /// How many heads are not being run.
    #[must_use]
    pub fn ready(&self) -> usize {
        self.ready
    }

    /// Bytes of data whose checksums are to be deleted.
    #[must_use]
    pub fn checksum_deletions(&self) -> u64 {
        self.checksum_deletions
    }

    /// Events since the mount.
    #[must_use]
    pub fn counters(&self) -> DelayedRefCounters {
        self.counters
    }

    /// Queues a change.
    pub fn queue(&mut self, change: &Change) -> Result<(), Corrupt<DelayedRefRule>> {
        let locus = Locus::block(change.address.0);
        self.try_queue(change)
            .map_err(|rule| Corrupt::new(locus, rule))
    }

    fn try_queue(&mut self, change: &Change) -> Result<(), DelayedRefRule> {
        let is_data = change.kind == ExtentKind::Data;
        if change.reference.is_data() != is_data {
            return Err(DelayedRefRule::Reference);
        }
        let signed = change.action.signed(change.count);
        let signed = signed.ok_or(DelayedRefRule::Count)?;
        let (slot, is_new) = self.head(change.address, change.len_bytes, change.kind)?;
        if let Err(rule) = self.apply(slot, change, signed) {
            if is_new {
                self.heads.remove(slot);
            }
            return Err(rule);
        }
        if is_new {
            let bucket = self.heads.len().saturating_sub(1).max(1).ilog2() as usize;
            self.counters.present[bucket.min(PRESENT_BUCKETS - 1)] += 1;
            self.ready += 1;
            self.counters.heads += 1;
        } else {
            self.counters.merged_heads += 1;
        }
        Ok(())
    }

    /// The head of an extent, and whether it is a new one, which is not counted yet.
    fn head(
        &mut self,
        address: LogicalAddr,
        len_bytes: u64,
        kind: ExtentKind,
    ) -> Result<(Slot, bool), DelayedRefRule> {
        let flags = flags_of(kind);
        let new = HeadState {
            len_bytes,
            flags,
            ..HeadState::default()
        };
        match self.heads.insert(address.0, new) {
            Inserted::New(slot) => Ok((slot, true)),
            Inserted::Full => Err(DelayedRefRule::Full),
            Inserted::Exists(slot) => {
                let there = self.heads.state(slot).flags;
                if there.contains(HeadFlags::DATA) != flags.contains(HeadFlags::DATA) {
                    return Err(DelayedRefRule::Kind);
                }
                Ok((slot, false))
            }
        }
    }

    fn apply(&mut self, slot: Slot, change: &Change, signed: i32) -> Result<(), DelayedRefRule> {
        let mut state = self.heads.state(slot);
        let net = state.net_change.checked_add(signed);
        let total = state.total_change.checked_add(signed);
        let (Some(net), Some(total)) = (net, total) else {
            return Err(DelayedRefRule::Count);
        };
        let op = match (state.extent_op.get(), change.op) {
            (None, Some(op)) => self.ops.insert(op).ok_or(DelayedRefRule::Full)?,
            _ => state.extent_op,
        };
        let sequence = self.walks.newest();
        let new = QueuedRef::new(change.reference, sequence, change.action, change.count);
        match state.queue(&mut self.refs, new) {
            Merged::Full => {
                if state.extent_op == Slot::NONE
                    && let Some(op) = op.get()
                {
                    self.ops.remove(op);
                }
                return Err(DelayedRefRule::Full);
            }
            Merged::Queued => self.counters.refs += 1,
            Merged::Added => self.counters.merged_refs += 1,
            Merged::Cancelled => self.counters.cancelled += 1,
        }
        // Merged only now: nothing is changed where the reference finds no slot.
        if let (Some(there), Some(op)) = (state.extent_op.get(), change.op) {
            self.ops.get_mut(there).merge(op);
        }
        state.extent_op = op;
        let was_deleting = deletes_checksums(&state);
        if was_deleting {
            self.checksum_deletions -= state.len_bytes;
        }
        if change.allocates {
            // The extent may have been freed and allocated again, then with another length and level.
            state.flags.remove(HeadFlags::LEVEL);
            state.flags |= flags_of(change.kind) | HeadFlags::MUST_INSERT;
            state.len_bytes = change.len_bytes;
        }
        state.net_change = net;
        state.total_change = total;
        if deletes_checksums(&state) {
            self.checksum_deletions += state.len_bytes;
        }
        self.heads.set_state(slot, state);
        Ok(())
    }

    /// Queues a change of the item of a tree block that changes no reference.
    pub fn queue_op(
        &mut self,
        address: LogicalAddr,
        len_bytes: u64,
        kind: ExtentKind,
        op: ExtentOp,
    ) -> Result<(), Corrupt<DelayedRefRule>> {
        let broken = |rule| Corrupt::new(Locus::block(address.0), rule);
        let (slot, is_new) = self.head(address, len_bytes, kind).map_err(broken)?;
        let mut state = self.heads.state(slot);
        if let Some(there) = state.extent_op.get() {
            self.ops.get_mut(there).merge(op);
        } else if let Some(op) = self.ops.insert(op) {
            state.extent_op = op;
        } else {
            if is_new {
                self.heads.remove(slot);
            }
            return Err(broken(DelayedRefRule::Full));
        }
        self.heads.set_state(slot, state);
        if is_new {
            self.ready += 1;
            self.counters.heads += 1;
        } else {
            self.counters.merged_heads += 1;
        }
        Ok(())
    }

    /// Forgets the head of an extent that was allocated and freed in this transaction, if nothing else is
    /// to be done with it.
    pub fn forget(&mut self, address: LogicalAddr) -> Option<Freed> {
        let slot = self.heads.find(address.0)?;
        let state = self.heads.state(slot);
        let must_insert = state.flags.contains(HeadFlags::MUST_INSERT);
        let is_processing = state.flags.contains(HeadFlags::PROCESSING);
        let has_op = state.extent_op != Slot::NONE && !must_insert;
        if !state.refs.is_empty() || is_processing || has_op {
            return None;
        }
        self.remove_head(slot, &state);
        self.ready -= 1;
        self.counters.forgotten += 1;
        Some(Freed { must_insert })
    }

    /// Removes a head without references.
    pub(super) fn remove_head(&mut self, slot: Slot, state: &HeadState) {
        if deletes_checksums(state) {
            self.checksum_deletions -= state.len_bytes;
        }
        if let Some(op) = state.extent_op.get() {
            self.ops.remove(op);
        }
        self.heads.remove(slot);
    }

    /// Begins a walk over the references of an extent: those that are queued from now on do not change what
    /// it finds. Returns its sequence.
    pub fn begin_walk(&mut self) -> u64 {
        self.walks.begin()
    }

    /// Ends a walk.
    pub fn end_walk(&mut self, sequence: u64) {
        self.walks.end(sequence);
    }

    /// The sequence from which on references are neither merged nor run.
    pub(super) fn sequence_limit(&self) -> u64 {
        self.walks.limit()
    }

    /// Discards all heads, of which none is being run, with their references.
    pub fn abort(&mut self) -> Vec<Discarded> {
        let mut discarded = Vec::new();
        while let Some(slot) = self.heads.at_or_after(0) {
            let mut state = self.heads.state(slot);
            while let Some(first) = state.refs.first(&self.refs) {
                state.remove_ref(&mut self.refs, first);
            }
            let address = LogicalAddr(self.heads.address(slot));
            self.remove_head(slot, &state);
            discarded.push(Discarded {
                address,
                len_bytes: state.len_bytes,
                must_insert: state.flags.contains(HeadFlags::MUST_INSERT),
            });
        }
        self.ready = 0;
        self.cursor = 0;
        discarded
    }

    /// Panics if an invariant does not hold.
    #[cfg(test)]
    pub(super) fn assert_invariants(&self) {
        self.heads.assert_invariants();
        let (mut count, mut ready, mut refs, mut ops, mut deletions) = (0, 0, 0, 0, 0);
        let mut at = self.heads.at_or_after(0);
        while let Some(slot) = at {
            let address = self.heads.address(slot);
            let state = self.heads.state(slot);
            count += 1;
            ready += usize::from(!state.flags.contains(HeadFlags::PROCESSING));
            refs += state.assert_invariants(&self.refs);
            ops += usize::from(state.extent_op != Slot::NONE);
            if deletes_checksums(&state) {
                deletions += state.len_bytes;
            }
            at = self.heads.at_or_after(address + 1);
            if let Some(next) = at {
                assert!(self.heads.address(next) > address, "order of heads");
            }
        }
        assert_eq!(count, self.heads.len());
        assert_eq!(ready, self.ready, "heads that are ready");
        assert_eq!(refs, self.refs.len(), "references");
        assert_eq!(ops, self.ops.len(), "extent ops");
        assert_eq!(deletions, self.checksum_deletions, "checksum deletions");
    }
}

/// Whether the head's extent loses its last reference, as far as is known.
pub(super) fn deletes_checksums(state: &HeadState) -> bool {
    state.flags.contains(HeadFlags::DATA) && state.total_change < 0
}

fn flags_of(kind: ExtentKind) -> HeadFlags {
    match kind {
        ExtentKind::Data => HeadFlags::DATA,
        ExtentKind::TreeBlock { level, is_system } => {
            let level = HeadFlags::from_bits_retain(u32::from(level) << 8);
            if is_system {
                level | HeadFlags::SYSTEM
            } else {
                level
            }
        }
    }
}

/// What the flags of a head say that its extent is of.
pub(super) fn kind_of(flags: HeadFlags) -> ExtentKind {
    if flags.contains(HeadFlags::DATA) {
        return ExtentKind::Data;
    }
    let level = flags.intersection(HeadFlags::LEVEL).bits() >> 8;
    ExtentKind::TreeBlock {
        level: u8::try_from(level).unwrap_or(u8::MAX),
        is_system: flags.contains(HeadFlags::SYSTEM),
    }
}
