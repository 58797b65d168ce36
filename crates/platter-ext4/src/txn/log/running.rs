//! The running transaction: handles join it, add to it, and leave it.

use std::ops::Range;

use parking_lot::MutexGuard;
use platter_cache::commit::Blocked;
use platter_vfs::{Condition, Result};

use super::transaction::Transaction;
use super::{Durability, Handle, Log, State, held};
use crate::ondisk::jbd2::Sequence;

/// A transaction is full when less than one in so many parts is left, and somebody finds no room.
const FULL_PARTS: u32 = 4;

/// How large a transaction may become.
#[derive(Debug, Clone, Copy)]
pub(super) struct Limits {
    pub(super) blocks_max: u32,
    /// Records in a revoke block.
    pub(super) revokes_per_block: usize,
}

impl Log {
    /// Takes part in the running transaction with changes to at most `credits` blocks, waiting for
    /// room. The caller holds no lock that a commit or another handle may wait for, and no other
    /// handle.
    ///
    /// # Errors
    /// `ReadOnly` after a failure, and after the log was closed. `NoSpace` for more credits than a
    /// transaction can have blocks.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        held::assert_none_of(self);
        let transaction = self.join(credits)?;
        Ok(Handle::new(self, transaction, credits))
    }

    /// A handle that leaves little room for the other ones of this thread.
    #[cfg(test)]
    pub(crate) fn begin_beside(&self, credits: u32) -> Result<Handle<'_>> {
        let transaction = self.join(credits)?;
        Ok(Handle::unheld(self, transaction, credits))
    }

    /// Counts another handle with so many credits, and gives its transaction.
    fn join(&self, credits: u32) -> Result<Sequence> {
        if credits > self.limits.blocks_max {
            return Err(Condition::NoSpace.into());
        }
        match self.gate.enter(credits, self.limits.blocks_max) {
            Some(transaction) => Ok(transaction.into()),
            None => self.wait_and_join(credits),
        }
    }

    fn wait_and_join(&self, credits: u32) -> Result<Sequence> {
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || state.is_closed {
                return Err(Condition::ReadOnly.into());
            }
            if state.is_closing {
                self.changed.wait(&mut state);
                continue;
            }
            let Blocked { handles } =
                match self.gate.enter_or_await(credits, self.limits.blocks_max) {
                    Ok(transaction) => return Ok(transaction.into()),
                    Err(blocked) => blocked,
                };
            if handles > 0 && self.is_worth_waiting(&state.running, credits) {
                // Handles that end give back what they did not need.
                self.changed.wait(&mut state);
                continue;
            }
            let full = state.running.sequence;
            if self.requests.ask(full.into()) {
                // Until it is closed.
                self.changed.wait(&mut state);
            } else {
                MutexGuard::unlocked(&mut state, || self.commit(full))?;
            }
        }
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.limits.blocks_max
    }

    /// Whether handles that end leave room for so many credits, in a transaction that has not most of
    /// what it can have: else each handle would come to wait for the one before.
    fn is_worth_waiting(&self, running: &Transaction, credits: u32) -> bool {
        let (len, most) = (self.len_blocks(running), self.limits.blocks_max);
        len <= most / FULL_PARTS * (FULL_PARTS - 1) && len.saturating_add(credits) <= most
    }

    fn len_blocks(&self, running: &Transaction) -> u32 {
        let revokes = running
            .revoked
            .len()
            .div_ceil(self.limits.revokes_per_block);
        u32::try_from(running.blocks.len() + revokes).unwrap_or(u32::MAX)
    }

    /// Reserves more for a handle, if that is possible now.
    pub(super) fn extend(&self, credits: u32) -> bool {
        self.gate.extend(credits, self.limits.blocks_max)
    }

    /// Changes the running transaction, and counts it anew; `spent` credits are used up by that.
    pub(super) fn change_running<R>(
        &self,
        state: &mut State,
        spent: u32,
        change: impl FnOnce(&mut Transaction) -> R,
    ) -> R {
        let before = self.len_blocks(&state.running);
        let result = change(&mut state.running);
        let after = self.len_blocks(&state.running);
        self.gate.resize(before.saturating_add(spent), after);
        result
    }

    /// Adds a block that a handle changed and spent so many of its credits on.
    pub(super) fn add(&self, block: u64, is_created: bool, spent: u32) {
        let is_first = self.change_running(&mut self.state.lock(), spent, |running| {
            let is_first = running.blocks.is_empty();
            if is_created && !running.blocks.contains(&block) {
                running.created.insert(block);
            }
            running.change(block);
            is_first
        });
        if is_first && let Some(call) = self.first_change.get() {
            call();
        }
    }

    /// Takes blocks out of the running transaction, and revokes those that are in the log.
    pub(super) fn forget(&self, blocks: Range<u64>) {
        self.change_running(&mut self.state.lock(), 0, |running| {
            let changed: Vec<u64> = running.blocks.range(blocks.clone()).copied().collect();
            for block in changed {
                running.forget(block);
            }
            if let Durability::Journal(journaled) = &self.durability {
                let copies = journaled.live.lock().copies(blocks);
                running.revoked.extend(copies);
            }
        });
    }

    /// A handle with so many credits left has ended.
    pub(super) fn end(&self, credits: u32) {
        if !self.gate.leave(credits) {
            return;
        }
        // Who waits is waiting by now: each looks at the gate under this lock before.
        let state = self.state.lock();
        self.gate.note_wake();
        drop(state);
        self.changed.notify_all();
    }
}
