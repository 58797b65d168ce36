//! The filesystem's own device, where blocks have their places.

use std::sync::Arc;

use platter_cache::commit::{CommitCounters, DeviceFlushes};
use platter_cache::{Buffer, BufferCache};
use platter_vfs::Result;

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
        self.counters.writes.add(self.buffers.write(blocks)?);
        self.counters.checkpoint_blocks.add(blocks.len());
        Ok(())
    }

    /// Makes everything that was written before durable.
    pub(super) fn flush(&self) -> Result<()> {
        Ok(self.flushes.flush()?)
    }
}
