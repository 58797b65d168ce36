//! Readahead of metadata: runs of absent blocks read with one vectored request each.

use std::io::IoSliceMut;
use std::ops::Range;

use super::table::Claim;
use super::{BufferCache, Core, Reading};

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

impl BufferCache {
    /// The most that one call of [`read_ahead`](Self::read_ahead) reads, in bytes.
    pub const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;
}

impl Core {
    pub(super) fn read_ahead(&self, blocks: Range<u64>) {
        let block_bytes = u64::from(self.block_bytes);
        let device_blocks = self.device.geometry().len_bytes / block_bytes;
        let bytes_max = BufferCache::READ_AHEAD_BYTES_MAX.min(self.budget.limit_bytes() / 8);
        let count_max = bytes_max / block_bytes;
        let end = blocks
            .end
            .min(device_blocks)
            .min(blocks.start.saturating_add(count_max));
        let mut run = Vec::new();
        for block in blocks.start..end {
            if run.len() == RUN_BLOCKS_MAX {
                self.read_run(std::mem::take(&mut run));
            }
            match self.table.find_or_claim(block) {
                Claim::Claimed(flight) => run.push(Reading::new(self, block, flight)),
                Claim::Cached(_) | Claim::Wait(_) | Claim::Edited => {
                    self.read_run(std::mem::take(&mut run));
                }
            }
        }
        self.read_run(run);
    }

    /// Reads neighbouring claimed blocks. On a failure nobody learns which block it was about, so
    /// the claims are abandoned and each block fails, or not, when it is read alone.
    fn read_run(&self, run: Vec<Reading<'_>>) {
        let Some(first) = run.first() else {
            return;
        };
        let offset = self.offset(first.block);
        let mut contents: Vec<_> = run.iter().map(|_| self.memory()).collect();
        let mut bufs: Vec<_> = contents.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        if self.device.read_vectored_at(offset, &mut bufs).is_ok() {
            for (reading, bytes) in run.into_iter().zip(contents) {
                reading.complete(bytes);
            }
        }
    }
}
