//! Readahead of metadata: runs of absent blocks read with one vectored request each.

use std::io::IoSliceMut;
use std::ops::Range;

use super::key::{BlockAt, Key};
use super::table::Claim;
use super::{BufferCache, Core, Reading};

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

impl<S> BufferCache<S> {
    /// The most that one call of [`read_ahead`](Self::read_ahead) reads, in bytes.
    pub const READ_AHEAD_BYTES_MAX: u64 = 2 << 20;

    /// Brings blocks of the usual length in with as few requests as possible, unverified until they are
    /// read.
    ///
    /// A hint: what cannot be read ahead is read, and fails, when it is asked for. At most
    /// [`READ_AHEAD_BYTES_MAX`](Self::READ_AHEAD_BYTES_MAX) of the range are read.
    pub fn read_ahead(&self, blocks: Range<u64>) {
        let step = self.core.addressing.step();
        let addresses = std::iter::successors(Some(blocks.start), |at| at.checked_add(step));
        self.read_ahead_each(addresses.take_while(|&at| at < blocks.end));
    }

    /// As [`read_ahead`](Self::read_ahead), of the blocks listed: those that follow one another in the list
    /// and in the store are read by one request.
    pub fn read_ahead_each<B: Into<BlockAt>>(&self, blocks: impl IntoIterator<Item = B>) {
        let bytes_max = Self::READ_AHEAD_BYTES_MAX.min(self.core.budget.limit_bytes() / 8);
        let blocks = blocks.into_iter();
        let keys = blocks.map_while(|block| self.core.addressing.locate(block.into()));
        self.core.read_ahead(keys, bytes_max);
    }
}

impl Core {
    fn read_ahead(&self, keys: impl Iterator<Item = Key>, bytes_max: u64) {
        let store_bytes = self.store.len_bytes();
        let mut bytes = 0;
        let mut run: Vec<Reading<'_>> = Vec::new();
        for key in keys {
            bytes += u64::from(key.len_bytes());
            if bytes > bytes_max || key.end() > store_bytes {
                break;
            }
            let is_next = run.last().is_none_or(|last| last.key.end() == key.at());
            if run.len() == RUN_BLOCKS_MAX || !is_next {
                self.read_run(std::mem::take(&mut run));
            }
            match self.table.find_or_claim(key) {
                Claim::Claimed(flight) => run.push(Reading::new(self, key, flight)),
                Claim::Cached(_) | Claim::Wait(_) | Claim::Edited => {
                    self.read_run(std::mem::take(&mut run));
                }
            }
        }
        self.read_run(run);
    }

    /// Reads neighbouring claimed blocks, their first copies. A failure does not say which block it
    /// was about, so the claims are abandoned and each block fails, or not, when it is read alone.
    fn read_run(&self, run: Vec<Reading<'_>>) {
        let Some(first) = run.first() else {
            return;
        };
        let at = first.key.at();
        let mut contents: Vec<_> = run.iter().map(|it| self.memory(it.key)).collect();
        let mut bufs: Vec<_> = contents.iter_mut().map(|b| IoSliceMut::new(b)).collect();
        if self.store.read(at, 0, &mut bufs).is_ok() {
            for (reading, bytes) in run.into_iter().zip(contents) {
                reading.complete(bytes);
            }
        }
    }
}
