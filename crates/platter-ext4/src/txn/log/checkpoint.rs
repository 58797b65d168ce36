//! Checkpoints: committed versions are written to their places, so that the log can be cut at its
//! old end.

use std::time::Duration;

use platter_vfs::Result;

use super::journaled::Journaled;
use crate::ondisk::jbd2::Sequence;

/// Blocks that go home between two looks at what was freed meanwhile.
const BATCH_BLOCKS: usize = 1024;

/// How long a committed version may stay away from home.
const AGE_MAX: Duration = Duration::from_secs(30);

/// Bytes of committed versions that memory may hold.
const AWAY_BYTES_MAX: u64 = 32 << 20;

impl Journaled {
    /// Brings home what transactions up to `last` hold the newest version of, and cuts the log.
    pub(super) fn checkpoint(&self, last: Sequence) -> Result<()> {
        let _turn = CheckpointTurn::take(self);
        let mut from = 0;
        loop {
            let batch = self.live.lock().take_off(from, last, BATCH_BLOCKS);
            let Some(&(end, _)) = batch.last() else { break };
            self.home.write(&batch)?;
            self.live.lock().land(&batch);
            self.settled.notify_all();
            from = end + 1;
        }
        if !self.live.lock().has_slack() {
            return Ok(());
        }
        // The log lets go of a block only when it is durable at home.
        self.home.flush()?;
        let tail = self.live.lock().tail();
        self.cut(tail)?;
        self.live.lock().release(tail.1);
        self.counters.checkpoints.add(1);
        Ok(())
    }

    /// Brings everything home that is committed.
    pub(super) fn checkpoint_all(&self) -> Result<()> {
        let last = self.live.lock().last();
        last.map_or(Ok(()), |last| self.checkpoint(last))
    }

    /// Brings home what has been away for long, and more when the log fills up.
    pub(super) fn tend(&self) -> Result<()> {
        let old = self.clock.monotonic().checked_sub(AGE_MAX);
        let last = {
            let live = self.live.lock();
            let by_age = old.and_then(|moment| live.last_committed_by(moment));
            let by_space = live.last_to_release(self.len_blocks() / 2);
            let block_bytes = u64::from(self.format().block_bytes);
            let is_over = live.away_blocks() as u64 * block_bytes > AWAY_BYTES_MAX;
            let by_memory = if is_over { live.last() } else { None };
            [by_age, by_space, by_memory]
                .into_iter()
                .flatten()
                .reduce(|one, other| if one.is_before(other) { other } else { one })
        };
        last.map_or(Ok(()), |last| self.checkpoint(last))
    }
}

/// The right to write blocks home, which one thread has at a time.
struct CheckpointTurn<'j> {
    journaled: &'j Journaled,
}

impl<'j> CheckpointTurn<'j> {
    fn take(journaled: &'j Journaled) -> Self {
        let mut live = journaled.live.lock();
        while live.is_checkpointing {
            journaled.settled.wait(&mut live);
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
        self.journaled.settled.notify_all();
    }
}
