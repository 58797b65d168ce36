//! Running of heads: in order of address, additions before drops.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};

use super::index::HeadIndex;
use super::layout::HeadFlags;
use super::queue::{DelayedRefRule, ExtentKind, RefQueue, kind_of};
use super::reference::{Action, ExtentOp, RefKey};
use super::slab::Slot;
use crate::ondisk::LogicalAddr;

/// A head whose references are being run. No other thread runs or removes it.
#[derive(Debug)]
#[must_use]
pub struct Running {
    slot: Slot,
    address: LogicalAddr,
}

impl Running {
    /// The extent.
    #[must_use]
    pub fn address(&self) -> LogicalAddr {
        self.address
    }
}

/// What is to be done next with a head.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum RunStep {
    /// A reference is to be added to the extent tree or dropped from it.
    Reference {
        /// What refers.
        key: RefKey,
        /// How often.
        count: u32,
        /// Whether it is added or dropped.
        action: Action,
        /// Whether the item of the extent is to be inserted.
        must_insert: bool,
        /// What is to be set in the item.
        op: Option<ExtentOp>,
        /// The length of the extent.
        len_bytes: u64,
        /// What it is of.
        kind: ExtentKind,
    },
    /// The item is to be changed, but none of its references.
    Op {
        /// What is to be set.
        op: ExtentOp,
        /// The length of the extent.
        len_bytes: u64,
        /// What it is of.
        kind: ExtentKind,
    },
    /// A walk is in progress that must not miss the next reference.
    Blocked,
    /// There is no more to be done: the head can be [finished](RefQueue::finish).
    Done,
}

/// A head that was run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FinishedHead {
    /// The extent.
    pub address: LogicalAddr,
    /// Its length.
    pub len_bytes: u64,
    /// What it is of.
    pub kind: ExtentKind,
    /// Whether it never got an item: its references cancelled each other.
    pub must_insert: bool,
    /// The sum of all changes.
    pub total_change: i32,
}

impl<I: HeadIndex> RefQueue<I> {
    /// Selects the next head that is not being run, in order of address from the last one on.
    pub fn select(&mut self) -> Option<Running> {
        if self.ready == 0 {
            return None;
        }
        let start = self.cursor;
        let found = self.ready_from(start).or_else(|| self.ready_from(0));
        let slot = found?;
        let mut state = self.heads.state(slot);
        state.flags |= HeadFlags::PROCESSING;
        self.heads.set_state(slot, state);
        self.ready -= 1;
        let address = LogicalAddr(self.heads.address(slot));
        self.cursor = address.0.saturating_add(state.len_bytes.max(1));
        Some(Running { slot, address })
    }

    fn ready_from(&self, start: u64) -> Option<Slot> {
        let mut at = self.heads.at_or_after(start);
        while let Some(slot) = at {
            let flags = self.heads.state(slot).flags;
            if !flags.contains(HeadFlags::PROCESSING) {
                return Some(slot);
            }
            let next = self.heads.address(slot).checked_add(1)?;
            at = self.heads.at_or_after(next);
        }
        None
    }

    /// The address of the first head from `start` on that is not being run.
    pub(super) fn next_ready(&self, start: u64) -> Option<u64> {
        let slot = self.ready_from(start)?;
        Some(self.heads.address(slot))
    }

    /// Selects the first head of some addresses that is not being run. Returns it with the address to go on from.
    pub(super) fn select_in(&mut self, addresses: &Range<u64>) -> Option<(Running, u64)> {
        self.cursor = self.next_ready(addresses.start)?;
        if self.cursor >= addresses.end {
            return None;
        }
        let running = self.select()?;
        Some((running, self.cursor))
    }

    /// Puts a head back that was not run to its end.
    #[expect(
        clippy::needless_pass_by_value,
        reason = "the head does not belong to the caller any more"
    )]
    pub fn unselect(&mut self, running: Running) {
        let mut state = self.heads.state(running.slot);
        state.flags.remove(HeadFlags::PROCESSING);
        self.heads.set_state(running.slot, state);
        self.ready += 1;
    }

    /// Takes what is to be done next with a head out of the queue.
    pub fn next_step(&mut self, running: &Running) -> Result<RunStep, Corrupt<DelayedRefRule>> {
        let limit = self.sequence_limit();
        let mut state = self.heads.state(running.slot);
        let kind = kind_of(state.flags);
        // References to data are many, and are merged when they are queued.
        if kind != ExtentKind::Data {
            let cancelled = state.merge_older(&mut self.refs, limit);
            self.counters.cancelled += cancelled as u64;
        }
        let must_insert = state.flags.contains(HeadFlags::MUST_INSERT);
        let Some(next) = state.next_ref(&self.refs) else {
            let op = std::mem::take(&mut state.extent_op);
            self.heads.set_state(running.slot, state);
            let op = op.get().map(|op| self.ops.remove(op));
            return Ok(match op {
                // An extent without an item has nothing to be set in it.
                Some(op) if !must_insert => RunStep::Op {
                    op,
                    len_bytes: state.len_bytes,
                    kind,
                },
                Some(_) | None => RunStep::Done,
            });
        };
        let reference = *self.refs.get(next);
        if reference.sequence >= limit {
            self.heads.set_state(running.slot, state);
            return Ok(RunStep::Blocked);
        }
        if must_insert && reference.action == Action::Drop {
            self.heads.set_state(running.slot, state);
            let locus = Locus::block(running.address.0);
            return Err(Corrupt::new(locus, DelayedRefRule::InsertedByDrop));
        }
        state.remove_ref(&mut self.refs, next);
        let signed = reference.action.signed(reference.count).unwrap_or_default();
        state.net_change -= signed;
        state.flags.remove(HeadFlags::MUST_INSERT);
        let op = std::mem::take(&mut state.extent_op);
        self.heads.set_state(running.slot, state);
        self.counters.run += 1;
        Ok(RunStep::Reference {
            key: reference.key,
            count: reference.count,
            action: reference.action,
            must_insert,
            op: op.get().map(|op| self.ops.remove(op)),
            len_bytes: state.len_bytes,
            kind,
        })
    }

    /// Removes a head that was run. Returns it if something was queued meanwhile.
    pub fn finish(&mut self, running: Running) -> Result<FinishedHead, Running> {
        let state = self.heads.state(running.slot);
        if !state.refs.is_empty() || state.extent_op != Slot::NONE {
            self.counters.retries += 1;
            return Err(running);
        }
        self.remove_head(running.slot, &state);
        Ok(FinishedHead {
            address: running.address,
            len_bytes: state.len_bytes,
            kind: kind_of(state.flags),
            must_insert: state.flags.contains(HeadFlags::MUST_INSERT),
            total_change: state.total_change,
        })
    }
}
