//! One operation's part in a transaction.

use std::ops::Range;

use platter_cache::Buffer;
use platter_ondisk::Verify;
use platter_vfs::{Error, Result};

use super::Log;
use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::Sequence;

/// The right to change metadata as part of one transaction, which does not commit before the handle
/// is dropped. All that is changed through one handle becomes durable together.
///
/// There is no way back: an operation that cannot be finished after its first change has to undo it
/// by further changes, or [abort](Self::abort).
#[derive(Debug)]
pub struct Handle<'l> {
    log: &'l Log,
    sequence: Sequence,
    /// Blocks it may still add to the transaction.
    credits: u32,
    /// Made by the commit itself: counted nowhere.
    is_closing: bool,
}

impl<'l> Handle<'l> {
    pub(super) fn new(log: &'l Log, sequence: Sequence, credits: u32) -> Self {
        Self {
            log,
            sequence,
            credits,
            is_closing: false,
        }
    }

    pub(super) fn closing(log: &'l Log, sequence: Sequence) -> Self {
        Self {
            log,
            sequence,
            credits: u32::MAX,
            is_closing: true,
        }
    }

    /// The transaction it is part of: once that is [committed](Log::commit), so is this operation.
    #[must_use]
    pub fn transaction(&self) -> Sequence {
        self.sequence
    }

    /// Changes a metadata block: `change` gets a copy of its proven bytes, and what it makes of them
    /// is sealed, verified and published. When `change` fails, the block stays as it was.
    ///
    /// `change` touches only the bytes: it takes no lock and reads no block.
    pub fn edit<R>(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        change: impl FnOnce(&mut [u8]) -> Result<R>,
    ) -> Result<R> {
        let buffers = &self.log.buffers;
        // Brought in before the lock, which others may wait for.
        buffers.read(block.0, verifier)?;
        let _turn = self.log.edits.lock(block.0);
        let mut bytes: Box<[u8]> = buffers.read(block.0, verifier)?.to_vec().into();
        let result = change(&mut bytes)?;
        let buffer = buffers.publish(block.0, bytes, verifier)?;
        self.add(block, buffer);
        Ok(result)
    }

    /// Gives a block that was just allocated its first contents; what it held before is not read.
    pub fn create(
        &mut self,
        block: BlockNr,
        verifier: &dyn Verify,
        bytes: impl Into<Box<[u8]>>,
    ) -> Result<Buffer> {
        let _turn = self.log.edits.lock(block.0);
        let buffer = self.log.buffers.publish(block.0, bytes, verifier)?;
        self.add(block, buffer.clone());
        Ok(buffer)
    }

    /// Takes `blocks`, which held metadata and are freed by this transaction, out of it and of the
    /// cache, and sees to it that no earlier copy in the journal is replayed over what comes to lie
    /// there.
    pub fn forget(&mut self, blocks: Range<BlockNr>) {
        self.log.buffers.invalidate(blocks.start.0..blocks.end.0);
        let mut state = self.log.state.lock();
        for block in blocks.start.0..blocks.end.0 {
            state.running.blocks.remove(&block);
        }
    }

    /// Notes `blocks` as freed by this transaction: they may be used again once it is durable.
    pub fn free_when_durable(&mut self, blocks: Range<BlockNr>) {
        self.log.state.lock().running.freed.push(blocks);
    }

    /// Asks for `credits` more without waiting. When it gives `false`, the operation has to come to
    /// a consistent state, drop the handle and begin another.
    pub fn extend(&mut self, credits: u32) -> bool {
        if self.is_closing {
            return true;
        }
        let mut state = self.log.state.lock();
        if state.is_closing || !Log::has_room(&state, credits) {
            return false;
        }
        state.running.reserved_blocks += credits;
        self.credits += credits;
        true
    }

    /// Blocks it may still add to the transaction.
    #[must_use]
    pub fn credits(&self) -> u32 {
        self.credits
    }

    /// Ends all writing because of `error`, for an operation that is stuck half way. Gives the error
    /// back.
    pub fn abort(&mut self, error: Error) -> Error {
        self.log.abort(&error);
        error
    }

    fn add(&mut self, block: BlockNr, buffer: Buffer) {
        let mut state = self.log.state.lock();
        let is_new = state.running.blocks.insert(block.0, buffer).is_none();
        if is_new && !self.is_closing {
            debug_assert!(
                self.credits > 0,
                "a handle changes no more than it asked for"
            );
            self.credits = self.credits.saturating_sub(1);
            state.running.reserved_blocks = state.running.reserved_blocks.saturating_sub(1);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        if self.is_closing {
            return;
        }
        let mut state = self.log.state.lock();
        state.running.reserved_blocks = state.running.reserved_blocks.saturating_sub(self.credits);
        state.running.handles -= 1;
        if state.running.handles == 0 {
            self.log.changed.notify_all();
        }
    }
}
