//! The filesystem's own device, where blocks have their places.

use std::io::IoSlice;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_cache::{Buffer, BufferCache};
use platter_vfs::Result;

use super::statistics::Counters;

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

/// Writes versions of blocks to their places.
#[derive(Debug)]
pub(super) struct Home {
    pub(super) buffers: Arc<BufferCache>,
    counters: Arc<Counters>,
    flushes_begun: AtomicU64,
    /// The last of them, by when they began, that succeeded.
    flush_done: AtomicU64,
}

/// A moment, as told by the flushes that began before.
#[derive(Debug, Clone, Copy)]
pub(super) struct FlushTicket(u64);

impl Home {
    pub(super) fn new(buffers: Arc<BufferCache>, counters: Arc<Counters>) -> Self {
        Self {
            buffers,
            counters,
            flushes_begun: AtomicU64::new(0),
            flush_done: AtomicU64::new(0),
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
                self.counters.home_blocks.add(run.len());
                for (block, buffer) in run {
                    self.buffers.written(*block, buffer);
                }
            }
        }
        Ok(())
    }

    /// Makes everything that was written before durable.
    pub(super) fn flush(&self) -> Result<()> {
        let ticket = self.flushes_begun.fetch_add(1, Ordering::SeqCst) + 1;
        self.counters.flushes.add(1);
        self.buffers.device().flush()?;
        self.flush_done.fetch_max(ticket, Ordering::SeqCst);
        Ok(())
    }

    /// Now.
    pub(super) fn ticket(&self) -> FlushTicket {
        FlushTicket(self.flushes_begun.load(Ordering::SeqCst))
    }

    /// Whether a flush that began after `ticket` has succeeded.
    pub(super) fn flushed_since(&self, ticket: FlushTicket) -> bool {
        self.flush_done.load(Ordering::SeqCst) > ticket.0
    }
}
