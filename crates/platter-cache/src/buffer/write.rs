//! The writer's side of the buffer cache: new versions, and getting them to the device.

use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use platter_block::IoError;
use platter_ondisk::Verify;

use super::table::cost_bytes;
use super::version::{Buffer, Version};
use super::{BufferCache, BufferError, Core};

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: usize = 512;

impl BufferCache {
    /// Makes `bytes` the block's current version, sealed and proven by `verifier`, and dirty.
    ///
    /// Holders of an older version keep it. The new one stays in memory, beyond the budget if need
    /// be, until [`written`](Self::written), [`write_dirty`](Self::write_dirty) or
    /// [`invalidate`](Self::invalidate). Bytes that break a rule are refused: nothing changes.
    ///
    /// # Panics
    /// If `bytes` is not one block long.
    pub fn publish(
        &self,
        block: u64,
        bytes: impl Into<Box<[u8]>>,
        verifier: &dyn Verify,
    ) -> Result<Buffer, BufferError> {
        let bytes = bytes.into();
        assert_eq!(
            bytes.len(),
            self.core.block_bytes as usize,
            "a version is one block long"
        );
        let version = self.core.sealed(block, bytes, verifier)?;
        let _turn = self.core.turns.take(block);
        self.core.table.publish(block, Arc::clone(&version), None);
        Ok(Buffer { version })
    }

    /// Says that `buffer` has reached its place on the device: it is clean from now on, unless a
    /// newer version took its place, which stays dirty.
    pub fn written(&self, block: u64, buffer: &Buffer) {
        let owner = self.core.owner();
        self.core.table.written(owner, block, &buffer.version);
    }

    /// Says that `buffer` will never reach its place, as the block was freed: it is forgotten, unless
    /// a newer version took its place.
    pub fn abandon(&self, block: u64, buffer: &Buffer) {
        self.core.table.abandon(block, &buffer.version);
    }

    /// Writes the dirty blocks of `range` in ascending order, neighbours in one request, and turns
    /// them clean. Blocks made dirty meanwhile may be left. Returns how many were written.
    ///
    /// Durable only after a flush of the device. One call writes at a time: two versions of one
    /// block must not race to the device.
    pub fn write_dirty(&self, range: Range<u64>) -> Result<usize, BufferError> {
        let _turn = self.core.write_turn.lock();
        let mut written = 0;
        let mut from = range.start;
        loop {
            let mut dirty = self.core.table.dirty_run(from..range.end, RUN_BLOCKS_MAX);
            let Some(&(last, _)) = dirty.last() else {
                return Ok(written);
            };
            for (block, version) in dirty.iter_mut().filter(|(_, it)| !it.is_sealed()) {
                if let Some(settled) = self.settle(*block)? {
                    *version = settled.version;
                }
            }
            for run in dirty.chunk_by(|(left, _), (right, _)| left + 1 == *right) {
                self.write_run(run)?;
                written += run.len();
            }
            let Some(next) = last.checked_add(1) else {
                return Ok(written);
            };
            from = next;
        }
    }

    /// How many blocks are dirty.
    #[must_use]
    pub fn dirty_len(&self) -> usize {
        self.core.table.dirty_len()
    }

    /// Forgets the blocks of `range`, unwritten versions too: they were freed, or changed on the
    /// device behind the cache. Versions in somebody's hands stay readable.
    pub fn invalidate(&self, range: Range<u64>) {
        self.core.table.invalidate(range);
    }

    fn write_run(&self, run: &[(u64, Arc<Version>)]) -> Result<(), IoError> {
        let Some((first, _)) = run.first() else {
            return Ok(());
        };
        let bufs: Vec<_> = run
            .iter()
            .map(|(_, version)| IoSlice::new(version.bytes()))
            .collect();
        let core = &self.core;
        core.device.write_vectored_at(core.offset(*first), &bufs)?;
        for (block, version) in run {
            core.table.written(core.owner(), *block, version);
        }
        Ok(())
    }
}

impl Core {
    /// A version of `bytes`, sealed and proven.
    pub(super) fn sealed(
        &self,
        block: u64,
        mut bytes: Box<[u8]>,
        verifier: &dyn Verify,
    ) -> Result<Arc<Version>, BufferError> {
        verifier.seal(block, &mut bytes);
        verifier.verify(block, &bytes)?;
        let charge = self.budget.charge_beyond(cost_bytes(&bytes));
        let version = Version::new(bytes, Some(charge));
        version.add_proof(verifier.key());
        Ok(Arc::new(version))
    }
}
