//! The running transaction: handles join it, add to it, and leave it.

use std::ops::Range;

use parking_lot::MutexGuard;
use platter_vfs::{Condition, Result};

use super::transaction::Transaction;
use super::{Durability, Handle, Log, State, held};
use crate::ondisk::jbd2::Sequence;

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
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() || state.is_closed {
                return Err(Condition::ReadOnly.into());
            }
            if state.is_closing {
                self.changed.wait(&mut state);
            } else if self.has_room(&state.running, credits) {
                break;
            } else if self.could_have_room(&state.running, credits) {
                // Handles that end give back what they did not need.
                state.waiting_for_room += 1;
                self.changed.wait(&mut state);
                state.waiting_for_room -= 1;
            } else {
                let full = state.running.sequence;
                if self.requests.ask(full) {
                    // Until it is closed.
                    self.changed.wait(&mut state);
                } else {
                    MutexGuard::unlocked(&mut state, || self.commit(full))?;
                }
            }
        }
        state.running.handles += 1;
        state.running.reserved_blocks += credits;
        Ok(state.running.sequence)
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.limits.blocks_max
    }

    /// Whether the running transaction can take `credits` more blocks.
    fn has_room(&self, running: &Transaction, credits: u32) -> bool {
        let taken = self
            .len_blocks(running)
            .saturating_add(running.reserved_blocks);
        taken.saturating_add(credits) <= self.limits.blocks_max
    }

    /// Whether it can once its handles have ended.
    fn could_have_room(&self, running: &Transaction, credits: u32) -> bool {
        let taken = self.len_blocks(running);
        running.handles > 0 && taken.saturating_add(credits) <= self.limits.blocks_max
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
        let mut state = self.state.lock();
        if state.is_closing || !self.has_room(&state.running, credits) {
            return false;
        }
        state.running.reserved_blocks += credits;
        true
    }

    /// Adds a block that a handle changed and spent so many of its credits on.
    pub(super) fn add(&self, block: u64, is_created: bool, spent: u32) {
        let mut state = self.state.lock();
        let running = &mut state.running;
        if is_created && !running.blocks.contains(&block) {
            running.created.insert(block);
        }
        running.change(block);
        running.reserved_blocks -= spent;
    }

    /// Takes blocks out of the running transaction, and revokes those that are in the log.
    pub(super) fn forget(&self, blocks: Range<u64>) {
        let mut state = self.state.lock();
        let changed: Vec<u64> = state
            .running
            .blocks
            .range(blocks.clone())
            .copied()
            .collect();
        for block in changed {
            state.running.forget(block);
        }
        if let Durability::Journal(journaled) = &self.durability {
            let copies = journaled.live.lock().copies(blocks);
            state.running.revoked.extend(copies);
        }
    }

    /// A handle with so many credits left has ended.
    pub(super) fn end(&self, credits: u32) {
        let mut state = self.state.lock();
        state.running.reserved_blocks -= credits;
        state.running.handles -= 1;
        let State {
            running,
            waiting_for_room,
            ..
        } = &*state;
        if running.handles == 0 || *waiting_for_room > 0 {
            self.changed.notify_all();
        }
    }
}
