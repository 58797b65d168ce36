//! Image commit: takes an offline filesystem from one state to another in one transaction, for changes
//! that were made in a scratch layer above the device.
//!
//! Blocks that were free in the old state are written first, as nothing refers to them. All others form
//! one transaction, whatever part of the journal it takes. So at every flush the device holds the old
//! state or, once the transaction is checkpointed, the new one; at any other moment a replay yields one
//! of them.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use platter_block::{BlockDevice, ScratchDevice};
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use super::{MountOptions, Opened, mmp, recovery, superblock_offset, writing};
use crate::FsContext;
use crate::alloc::{self, Allocator};
use crate::ondisk::BlockNr;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::{Remedy, SuperblockVerifier};
use crate::recovery::open_journal;
use crate::superblock;
use crate::txn::{self, Journal, Log};

/// Bytes compared at once.
const CHUNK_BYTES: u64 = 1 << 20;

/// Commit of a changed offline image to its device.
#[derive(Debug)]
pub struct ImageCommit<'c> {
    /// The device with the filesystem as it is.
    pub device: Arc<dyn BlockDevice>,
    /// The same device, for writes to free blocks, which need not be atomic.
    pub unseen: Arc<dyn BlockDevice>,
    /// The filesystem in its new state, offline, in a layer above the device.
    pub new: &'c ScratchDevice,
    /// As it was opened above the device, but with the journal's own device.
    pub options: MountOptions,
    /// For the caches.
    pub budget: Arc<MemoryBudget>,
    /// For times.
    pub clock: Arc<dyn Clock>,
}

/// Blocks in use that change, with their new contents.
type Seen = BTreeMap<u64, Box<[u8]>>;

impl ImageCommit<'_> {
    /// Makes the device hold what `new` does, durably.
    ///
    /// A transaction that is larger than the journal is written past it. Then, and without a
    /// journal, a power cut in the middle of it leaves what needs a check, and says so.
    ///
    /// # Errors
    /// The device's. Before the transaction is durable nothing has changed then, and with it there
    /// is something to replay.
    pub fn run(&self) -> Result<()> {
        let at = superblock_offset(&self.options);
        let mut opened = Opened::read(&*self.device, at, &self.options)?;
        writing::refuse_unwritable(&*self.device, &opened, &self.options)?;
        let guard = mmp::Guard::take(&self.fs(&opened), &self.options, &self.clock)?;
        if opened.needs_recovery() {
            let (device, clock) = (Arc::clone(&self.device), &self.clock);
            recovery::recover(device, &opened, &self.options, at, &self.budget, clock)?;
            opened = Opened::read(&*self.device, at, &self.options)?;
        }
        let changed = self.change(self.fs(&opened));
        changed.and(guard.map_or(Ok(()), mmp::Guard::release))
    }

    fn fs(&self, opened: &Opened) -> FsContext {
        opened.fs(&self.device, &self.budget)
    }

    fn change(&self, fs: FsContext) -> Result<()> {
        let has_journal = fs.geometry.features.has_journal();
        let journal = if has_journal {
            Some(open_journal(&fs, self.options.journal.as_ref())?)
        } else {
            None
        };
        let mut seen = self.write_unseen(&fs, journal.as_ref())?;
        if seen.is_empty() {
            return Ok(());
        }
        self.unseen.flush()?;
        let was_clean = fs.superblock.state.is_clean();
        let (fs, remedy) = self.with_log(fs, journal, seen.len())?;
        let block = fs.geometry.superblock_block.0;
        if let Some(bytes) = seen.get_mut(&block) {
            let verifier = SuperblockVerifier::new(&fs.geometry);
            if let Some(disk) = verifier.find_mut(bytes) {
                disk.begin_change(remedy);
                disk.seal();
            }
        }
        superblock::rewrite(&fs, |disk| disk.begin_change(remedy))?;
        if let Some(log) = fs.log() {
            txn::commit_whole(log, seen)?;
            log.close()?;
        }
        superblock::rewrite(&fs, |disk| disk.end_change(was_clean))
    }

    /// The volume with a log for a transaction of `blocks` blocks, and the remedy that is needed when
    /// a crash interrupts it.
    fn with_log(
        &self,
        fs: FsContext,
        journal: Option<Journal>,
        blocks: usize,
    ) -> Result<(FsContext, Remedy)> {
        let Some(journal) = journal else {
            return Ok((fs.writable(Log::without_journal), Remedy::Check));
        };
        let features = fs.geometry.features;
        let clock = Arc::clone(&self.clock);
        let journaled =
            fs.try_writable(|buffers| Log::with_journal(buffers, journal, &features, clock))?;
        let fits = journaled
            .log()
            .is_some_and(|log| blocks <= txn::whole_blocks_max(log));
        if fits {
            return Ok((journaled, Remedy::Replay));
        }
        Ok((journaled.writable(Log::without_journal), Remedy::Check))
    }

    /// Writes what changes of blocks that nothing uses, and returns the others that change.
    fn write_unseen(&self, fs: &FsContext, journal: Option<&Journal>) -> Result<Seen> {
        let space = Allocator::open(fs)?;
        let apart = places_apart(fs, journal);
        let block_bytes = u64::from(fs.geometry.block_bytes);
        let mut seen = Seen::new();
        let mut next = 0;
        for written in self.new.written() {
            // Places in one block may come as several ranges.
            let start = (written.start / block_bytes * block_bytes).max(next);
            let end = written.end.next_multiple_of(block_bytes);
            let end = end.min(fs.geometry.len_bytes()).max(start);
            next = end;
            let mut at = start;
            while at < end {
                let chunk = at..end.min(at.saturating_add(CHUNK_BYTES));
                at = chunk.end;
                self.write_chunk(fs, (&space, &apart), chunk, &mut seen)?;
            }
        }
        Ok(seen)
    }

    fn write_chunk(
        &self,
        fs: &FsContext,
        (space, apart): (&Allocator, &[Range<u64>]),
        chunk: Range<u64>,
        seen: &mut Seen,
    ) -> Result<()> {
        let block_bytes = fs.geometry.block_bytes as usize;
        let len = usize::try_from(chunk.end - chunk.start).unwrap_or_default();
        let (mut old, mut new) = (vec![0; len], vec![0; len]);
        self.unseen.read_at(chunk.start, &mut old)?;
        self.new.read_at(chunk.start, &mut new)?;
        let first = chunk.start / block_bytes as u64;
        let mut run = 0..0;
        let blocks = old.chunks(block_bytes).zip(new.chunks(block_bytes));
        for (index, (before, after)) in blocks.enumerate() {
            let block = first + index as u64;
            let changes = before != after && !lies_in(apart, block);
            let bytes = index * block_bytes..index * block_bytes + after.len();
            if changes && alloc::is_free(space, fs, BlockNr(block)) {
                if run.end == bytes.start {
                    run.end = bytes.end;
                    continue;
                }
                self.write_run(chunk.start, &new, &run)?;
                run = bytes;
            } else if changes {
                seen.insert(block, after.into());
            }
        }
        self.write_run(chunk.start, &new, &run)
    }

    fn write_run(&self, at: u64, bytes: &[u8], run: &Range<usize>) -> Result<()> {
        if run.is_empty() {
            return Ok(());
        }
        let offset = at + run.start as u64;
        Ok(self.unseen.write_at(offset, &bytes[run.clone()])?)
    }
}

/// Blocks that are no part of the filesystem's state: the log and the MMP block.
fn places_apart(fs: &FsContext, journal: Option<&Journal>) -> Vec<Range<u64>> {
    let mut apart = Vec::new();
    if let Some(journal) = journal.filter(|journal| journal.is_internal()) {
        apart = journal.map().places();
    }
    if fs.geometry.features.incompat.contains(Incompat::MMP) {
        let block = fs.superblock.mmp_block;
        apart.push(block..block.saturating_add(1));
    }
    apart.sort_unstable_by_key(|range| range.start);
    apart
}

fn lies_in(ranges: &[Range<u64>], block: u64) -> bool {
    let index = ranges.partition_point(|range| range.end <= block);
    ranges
        .get(index)
        .is_some_and(|range| range.contains(&block))
}
