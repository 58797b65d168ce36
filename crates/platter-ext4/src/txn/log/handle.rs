//! One operation's part in a transaction.

use std::ops::Range;

use platter_cache::commit::HeldHandle;
use platter_cache::{Buffer, Edit, Edited};
use platter_ondisk::Verify;
use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, Error, Result};

use super::Log;
use super::changed::Changed;
use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::Sequence;

/// Up to so many freed blocks are looked up in the cache one by one, more by a scan of all that it has.
const LOOKED_UP_BLOCKS_MAX: u64 = 16;

/// The right to change metadata as part of one transaction, which does not commit before the handle
/// is dropped. All that is changed through one handle becomes durable together.
///
/// There is no way back: an operation that cannot be finished after its first change has to undo it
/// by further changes, or [abort](Self::abort).
///
/// Each block that a handle changes takes one credit, once. Debug builds assert that it has one.
#[derive(Debug)]
pub struct Handle<'l> {
    log: &'l Log,
    sequence: Sequence,
    /// Blocks it may still change in addition to those it changed.
    credits: u32,
    /// Credits for blocks that were part of the transaction: they go back with the rest.
    unneeded: u32,
    changed: Changed,
    part: Part,
    held: Option<HeldHandle>,
}

/// How a handle is counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Part {
    /// As one of the transaction's.
    Operation,
    /// Made by the commit itself: not at all.
    Closing,
    /// No more: the log failed when it was to be begun again.
    Ended,
}

impl<'l> Handle<'l> {
    pub(super) fn new(log: &'l Log, sequence: Sequence, credits: u32) -> Self {
        Self {
            log,
            sequence,
            credits,
            unneeded: 0,
            changed: Changed::default(),
            part: Part::Operation,
            held: Some(HeldHandle::note(log)),
        }
    }

    /// One that does not keep its thread from having another.
    #[cfg(test)]
    pub(super) fn unheld(log: &'l Log, sequence: Sequence, credits: u32) -> Self {
        let mut handle = Self::new(log, sequence, credits);
        handle.held = None;
        handle
    }

    pub(super) fn closing(log: &'l Log, sequence: Sequence) -> Self {
        Self {
            log,
            sequence,
            credits: u32::MAX,
            unneeded: 0,
            changed: Changed::default(),
            part: Part::Closing,
            held: None,
        }
    }

    /// The transaction it is part of: once that is [committed](Log::commit), so is this operation.
    #[must_use]
    pub fn transaction(&self) -> Sequence {
        self.sequence
    }

    /// Changes a metadata block: `change` gets its validated bytes. What it makes of them is sealed and
    /// verified before it is committed.
    ///
    /// `change` touches only the bytes, and none when it fails: it looks at no block through the cache,
    /// and takes no lock that is held by any thread while it does so.
    ///
    /// # Errors
    /// `ReadOnly` after a failure of the log; else of reading the block, and what `change` gives.
    pub fn edit<R>(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        self.edit_or_keep(block, verifier, |bytes| change(bytes).map(Edit::Changed))
    }

    /// As [`edit`](Self::edit), of a block that `change` may also leave as it is, and no part of the
    /// transaction.
    pub fn edit_or_keep<R>(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        change: impl FnOnce(&mut [u8]) -> Result<Edit<R>>,
    ) -> Result<R> {
        self.check_alive()?;
        let round = u64::from(self.sequence.0);
        let buffers = &self.log.fs_device.buffers;
        match buffers.edit(block.0, verifier, round, change)? {
            Edited::Changed { result, is_first } => {
                self.note(block, is_first, false);
                Ok(result)
            }
            Edited::Kept(result) => Ok(result),
        }
    }

    /// Sets the first contents of a block that was just allocated; what it held before is not read.
    ///
    /// # Errors
    /// `ReadOnly` after a failure of the log.
    pub fn create(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        bytes: impl Into<Box<[u8]>>,
    ) -> Result<Buffer> {
        self.put(block, verifier, bytes.into(), true)
    }

    /// Replaces the contents of a block in use without reading it. The caller knows what it held and
    /// excludes other changes.
    ///
    /// # Errors
    /// `ReadOnly` after a failure of the log.
    pub fn replace(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        bytes: impl Into<Box<[u8]>>,
    ) -> Result<Buffer> {
        self.put(block, verifier, bytes.into(), false)
    }

    fn put(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        bytes: Box<[u8]>,
        is_created: bool,
    ) -> Result<Buffer> {
        self.check_alive()?;
        let buffer = self
            .log
            .fs_device
            .buffers
            .publish(block.0, bytes, verifier)?;
        self.note(block, true, is_created);
        Ok(buffer)
    }

    /// Keeps a place in the transaction for a block that the [client](super::CommitClient) writes when
    /// it closes. `is_created`: nothing durable refers to it.
    ///
    /// # Errors
    /// `ReadOnly` after a failure of the log.
    pub fn reserve(&mut self, block: BlockNr, is_created: bool) -> Result<()> {
        self.check_alive()?;
        self.note(block, true, is_created);
        Ok(())
    }

    /// Makes `bytes` the contents of a block of file data, as part of the transaction
    /// (`data=journal`). Until it is checkpointed, readers of the device find what it was before: they ask
    /// [`Log::uncheckpointed_data`].
    ///
    /// # Errors
    /// `ReadOnly` after a failure of the log.
    pub fn journal_data(&mut self, block: BlockNr, bytes: impl Into<Box<[u8]>>) -> Result<()> {
        self.check_alive()?;
        let buffers = &self.log.fs_device.buffers;
        buffers.publish(block.0, bytes, &Unverified)?;
        self.note(block, true, false);
        Ok(())
    }

    /// Takes `blocks`, which held metadata or journaled data and are freed by this transaction, out
    /// of it and of the cache, and sees to it that no earlier copy in the journal is replayed over
    /// what comes to lie there.
    pub fn forget(&mut self, blocks: Range<BlockNr>) {
        let range = blocks.start.0..blocks.end.0;
        let buffers = &self.log.fs_device.buffers;
        if range.end.saturating_sub(range.start) <= LOOKED_UP_BLOCKS_MAX {
            for block in range.clone() {
                buffers.forget(block);
            }
        } else {
            buffers.invalidate(range.clone());
        }
        self.log.forget(range);
    }

    /// Records `blocks` as freed by this transaction: they may be used again once it is durable. Those
    /// that are logged, in this transaction or before, are revoked.
    pub fn free_when_durable(&mut self, blocks: Range<BlockNr>) {
        self.log
            .transactions
            .change(0, |running| running.freed.push(blocks));
    }

    /// Asks for `credits` more without waiting. When it gives `false`, the operation has to come to
    /// a consistent state, and [restart](Self::restart) or drop the handle and begin another.
    pub fn extend(&mut self, credits: u32) -> bool {
        if self.part != Part::Operation {
            return self.part == Part::Closing;
        }
        if !self.log.transactions.extend(credits) {
            return false;
        }
        self.credits += credits;
        true
    }

    /// Ends its part in this transaction and takes part in the one that then runs, with `credits`.
    /// What was done so far may become durable without what follows. The caller holds no lock that
    /// a commit or another handle may wait for.
    ///
    /// # Errors
    /// As of [`Log::begin`]; then the handle changes nothing any more.
    pub fn restart(&mut self, credits: u32) -> Result<()> {
        self.end();
        let mut next = self.log.begin(credits)?;
        std::mem::swap(self, &mut next);
        Ok(())
    }

    /// Blocks it may still change in addition to those it changed.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Ends all writing because of `error`, for an operation that is stuck half way. Returns the error
    /// back.
    pub fn abort(&mut self, error: Error) -> Error {
        self.log.abort(&error);
        error
    }

    fn check_alive(&self) -> Result<()> {
        if self.part == Part::Ended || self.log.has_failed() {
            return Err(Condition::ReadOnly.into());
        }
        Ok(())
    }

    /// Records a block that it changed. Unless it `joins` the transaction, it was part of it.
    fn note(&mut self, block: BlockNr, joins: bool, is_created: bool) {
        let takes_credit = self.part == Part::Operation && self.changed.insert(block.0);
        if takes_credit {
            debug_assert!(
                self.credits > 0,
                "a handle changes no more than it asked for"
            );
        }
        let spent = u32::from(takes_credit && self.credits > 0);
        self.credits -= spent;
        if joins {
            self.log.add(block.0, is_created, spent);
        } else {
            self.unneeded += spent;
        }
    }

    fn end(&mut self) {
        if self.part == Part::Operation {
            self.log.transactions.end(self.credits + self.unneeded);
            self.part = Part::Ended;
            self.held = None;
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.end();
    }
}
