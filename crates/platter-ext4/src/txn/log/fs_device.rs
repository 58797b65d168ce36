//! The device of the filesystem, apart from that of the journal.

use std::sync::Arc;

use platter_cache::commit::{CommitCounters, DeviceFlushes};
use platter_cache::{Buffer, BufferCache};
use platter_vfs::Result;

/// The device of the filesystem: versions of blocks are written to their locations.
#[derive(Debug)]
pub(super) struct FsDevice {
    pub(super) buffers: Arc<BufferCache>,
    pub(super) flushes: DeviceFlushes,
    counters: Arc<CommitCounters>,
}

impl FsDevice {
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
