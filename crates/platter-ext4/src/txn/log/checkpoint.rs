//! Checkpoints: committed versions are written to their locations in the filesystem, so that the log can be
//! shortened at its old end.

use std::time::Duration;

use platter_vfs::{Condition, Result};

use super::journaled::Journaled;
use super::live::Live;
use crate::ondisk::jbd2::Sequence;

/// Blocks that are written between two looks at what was freed meanwhile.
const BATCH_BLOCKS: usize = 1024;

/// How long a committed version may be in the log alone.
const AGE_MAX: Duration = Duration::from_secs(30);

/// Bytes of committed versions that memory may hold for long...
const PENDING_BYTES_MAX: u64 = 32 << 20;
/// ...and the part of the memory budget that they may take: they cannot be evicted.
const PENDING_PART: u64 = 8;

/// What a checkpoint is to make of the log.
#[derive(Debug, Clone, Copy)]
pub(super) struct Goal {
    pub(super) free_blocks: u32,
    pub(super) pending_bytes: u64,
}

impl Journaled {
    /// Writes the blocks whose newest versions belong to transactions up to `last`, and shortens the log.
    pub(super) fn checkpoint(&self, last: Sequence) -> Result<()> {
        let _turn = CheckpointTurn::take(self);
        let mut from = 0;
        loop {
            let batch = self.live.lock().take_off(from, last, BATCH_BLOCKS);
            let Some(&(end, _)) = batch.last() else { break };
            self.fs_device.write(&batch)?;
            self.live.lock().land(&batch);
            self.checkpointed.notify_all();
            from = end + 1;
        }
        if !self.live.lock().has_slack() {
            return Ok(());
        }
        // The log releases a block only when its checkpointed version is durable.
        self.fs_device.flush()?;
        let tail = self.live.lock().tail();
        self.cut(tail)?;
        self.live.lock().release(tail.1);
        self.counters.checkpoints.add(1);
        Ok(())
    }

    /// Checkpoints all that is committed.
    pub(super) fn checkpoint_all(&self) -> Result<()> {
        let last = self.live.lock().last();
        last.map_or(Ok(()), |last| self.checkpoint(last))
    }

    /// Checkpoints all that is committed, and durably marks the log as empty.
    pub(super) fn empty(&self) -> Result<()> {
        self.checkpoint_all()?;
        // Another checkpoint may be about to shorten the log.
        let _turn = CheckpointTurn::take(self);
        self.mark_empty()
    }

    /// Checkpoints what was committed long ago, and more when the log or the memory fills up.
    pub(super) fn maintain(&self) -> Result<()> {
        let goal = Goal {
            free_blocks: self.len_blocks() / 2,
            pending_bytes: self.pending_bytes_max(),
        };
        let old = self.clock.monotonic().checked_sub(AGE_MAX);
        let last = {
            let live = self.live.lock();
            let by_age = old.and_then(|moment| live.last_committed_by(moment));
            let by_goal = self.last_until(&live, goal);
            by_age.into_iter().chain(by_goal).reduce(Sequence::later)
        };
        last.map_or(Ok(()), |last| self.checkpoint(last))
    }

    /// Ensures that a commit has `len_blocks` of the log, and that memory holds at most twice its
    /// target.
    pub(super) fn make_space(&self, len_blocks: u32) -> Result<()> {
        if len_blocks >= self.len_blocks() {
            return Err(Condition::NoSpace.into());
        }
        let needed = Goal {
            free_blocks: len_blocks + 1,
            pending_bytes: 2 * self.pending_bytes_max(),
        };
        // Once it has to be done, it is done for several commits.
        let wanted = Goal {
            free_blocks: needed.free_blocks.max(self.len_blocks() / 2),
            pending_bytes: self.pending_bytes_max(),
        };
        let last = {
            let live = self.live.lock();
            let is_due = self.last_until(&live, needed).is_some();
            is_due.then(|| self.last_until(&live, wanted)).flatten()
        };
        last.map_or(Ok(()), |last| self.checkpoint(last))
    }

    fn pending_bytes_max(&self) -> u64 {
        let budget = self.fs_device.buffers.budget().limit_bytes();
        PENDING_BYTES_MAX.min(budget / PENDING_PART)
    }

    /// The last transaction to checkpoint to reach `goal`.
    fn last_until(&self, live: &Live, goal: Goal) -> Option<Sequence> {
        let pending_bytes = live.pending_blocks() * u64::from(self.format().block_bytes);
        if pending_bytes > goal.pending_bytes {
            return live.last();
        }
        live.last_to_release(goal.free_blocks)
    }
}

/// The right to checkpoint, which one thread has at a time.
struct CheckpointTurn<'j> {
    journaled: &'j Journaled,
}

impl<'j> CheckpointTurn<'j> {
    fn take(journaled: &'j Journaled) -> Self {
        let mut live = journaled.live.lock();
        while live.is_checkpointing {
            journaled.checkpointed.wait(&mut live);
        }
        live.is_checkpointing = true;
        Self { journaled }
    }
}

impl Drop for CheckpointTurn<'_> {
    fn drop(&mut self) {
        let mut live = self.journaled.live.lock();
        live.is_checkpointing = false;
        live.in_flight.clear();
        self.journaled.checkpointed.notify_all();
    }
}
