//! The filesystem's own device, where blocks have their places.

use std::io::IoSlice;
use std::sync::Arc;

use platter_cache::commit::{CommitCounters, DeviceFlushes};
use platter_cache::{Buffer, BufferCache};
use platter_vfs::Result;

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

/// Writes versions of blocks to their places.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) buffers: Arc<BufferCache>,
    pub(super) flushes: DeviceFlushes,
    counters: Arc<CommitCounters>,
}

impl Home {
    pub(super) fn new(buffers: Arc<BufferCache>, counters: Arc<CommitCounters>) -> Self {
        let device = Arc::clone(buffers.device());
        Self {
            buffers,
            flushes: DeviceFlushes::of(device, Arc::clone(&counters)),
            counters,
        }
    }

    /// Writes blocks in ascending order, neighbours in one request. What is still the current
    /// version of its block turns clean.
    pub(super) fn write(&self, blocks: &[(u64, Buffer)]) -> Result<()> {
        let block_bytes = u64::from(self.buffers.block_bytes());
        for run in blocks.chunk_by(|(left, _), (right, _)| left + 1 == *right) {
            for run in run.chunks(RUN_BLOCKS_MAX) {
                let bufs: Vec<_> = run.iter().map(|(_, buffer)| IoSlice::new(buffer)).collect();
                let offset = run[0].0.saturating_mul(block_bytes);
                self.counters.writes.add(1);
                self.buffers.device().write_vectored_at(offset, &bufs)?;
                self.counters.checkpoint_blocks.add(run.len());
                for (block, buffer) in run {
                    self.buffers.written(*block, buffer);
                }
            }
        }
        Ok(())
    }

    /// Makes everything that was written before durable.
    pub(super) fn flush(&self) -> Result<()> {
        Ok(self.flushes.flush()?)
    }
}
