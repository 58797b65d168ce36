//! The running transaction: handles join it and add to it.

use std::ops::Range;

use platter_cache::commit::HeldHandle;
use platter_vfs::{Condition, Result};

use super::{Durability, Handle, Log};
use crate::ondisk::jbd2::Sequence;

impl Log {
    /// Takes part in the running transaction with changes to at most `credits` blocks, waiting for
    /// space. The caller holds no lock that a commit or another handle may wait for, and no other
    /// handle.
    ///
    /// # Errors
    /// `ReadOnly` after a failure, and after the log was closed. `NoSpace` for more credits than a
    /// transaction can have blocks.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        HeldHandle::assert_none(self);
        let transaction = self.join(credits)?;
        Ok(Handle::new(self, transaction, credits))
    }

    /// A handle that leaves little space for the other ones of this thread.
    #[cfg(test)]
    pub(crate) fn begin_unheld(&self, credits: u32) -> Result<Handle<'_>> {
        let transaction = self.join(credits)?;
        Ok(Handle::unheld(self, transaction, credits))
    }

    /// Counts another handle with so many credits, and returns its transaction.
    fn join(&self, credits: u32) -> Result<Sequence> {
        if credits > self.transactions.blocks_max() {
            return Err(Condition::NoSpace.into());
        }
        self.transactions.begin(credits, |full| self.commit(full))
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.transactions.blocks_max()
    }

    /// Adds a block that a handle changed and spent so many of its credits on.
    pub(super) fn add(&self, block: u64, is_created: bool, spent: u32) {
        let is_first = self.transactions.change(spent, |running| {
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
        self.transactions.change(0, |running| {
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
}
