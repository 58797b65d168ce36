//! Transactions through a journal: a commit writes the blocks to the log, and a checkpoint brings
//! them to the filesystem later. Spec: `ext4/journal`.

use std::io::IoSlice;
use std::ops::Deref;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::{Condvar, Mutex, rank};
use platter_cache::commit::{CommitCounters, DeviceFlushes};
use platter_ondisk::Uuid;
use platter_vfs::{Clock, Error, Result, Timestamp};

use super::fs_device::FsDevice;
use super::live::Live;
use super::record::{Piece, Record};
use super::ring::Ring;
use super::transaction::Closed;
use crate::ondisk::Features;
use crate::ondisk::jbd2::{LogBlock, LogFormat, Sequence};
use crate::txn::journal::{Journal, SuperblockSlot};

/// Blocks in one request: well under what a vectored system call takes.
const RUN_BLOCKS_MAX: u32 = 512;

/// A journal that transactions are written to.
#[derive(Debug)]
pub(super) struct Journaled {
    pub(super) fs_device: Arc<FsDevice>,
    slot: SuperblockSlot,
    ring: Ring,
    format: LogFormat,
    uuid: Uuid,
    /// Of the device that it has for itself, if it does not lie in the filesystem.
    own_flushes: Option<DeviceFlushes>,
    /// The superblock says that there is something to replay.
    is_started: AtomicBool,
    /// The superblock still says so of transactions that were replayed.
    replaces_replayed: AtomicBool,
    pub(super) clock: Arc<dyn Clock>,
    /// The time of the last commit.
    last_commit: Mutex<Timestamp>,
    /// The live range of the log.
    pub(super) live: Mutex<Live, { rank(11, 2) }>,
    /// Rung when blocks in flight have landed, and when a checkpoint ends.
    pub(super) checkpointed: Condvar,
    pub(super) counters: Arc<CommitCounters>,
}

impl Journaled {
    pub(super) fn new(
        fs_device: Arc<FsDevice>,
        journal: Journal,
        features: &Features,
        clock: Arc<dyn Clock>,
        counters: Arc<CommitCounters>,
    ) -> Result<Self> {
        let is_external = !journal.is_internal();
        let (head, next) = (journal.head(), journal.superblock().sequence);
        let (superblock, slot) = journal.into_writable(features)?;
        let ring = Ring::of(&superblock);
        let own_flushes = is_external.then(|| {
            let device = Arc::clone(slot.map().device());
            DeviceFlushes::of(device, Arc::clone(&counters))
        });
        Ok(Self {
            fs_device,
            slot,
            ring,
            format: superblock.format,
            uuid: superblock.uuid,
            own_flushes,
            is_started: AtomicBool::new(false),
            replaces_replayed: AtomicBool::new(head.is_some()),
            clock,
            last_commit: Mutex::default(),
            live: Mutex::new(Live::new(ring, head.unwrap_or(ring.first()), next)),
            checkpointed: Condvar::new(),
            counters,
        })
    }

    /// The shape of the log's blocks.
    pub(super) fn format(&self) -> &LogFormat {
        &self.format
    }

    /// How many blocks the log has.
    pub(super) fn len_blocks(&self) -> u32 {
        self.ring.len_blocks()
    }

    /// Makes a closed transaction durable. When this returns, no block that it frees is being
    /// written.
    pub(super) fn commit(&self, transaction: &Closed) -> Result<()> {
        let record = Record::encode(transaction, self.uuid, &self.format);
        let len_blocks = record.len_blocks();
        self.make_space(len_blocks)?;
        let head = self.live.lock().head();
        if self.replaces_replayed.swap(false, Ordering::Relaxed) {
            self.replace_replayed(head, transaction.sequence, len_blocks)?;
        }
        self.write_log(head, &record.pieces)?;
        self.start(head, transaction.sequence)?;
        // Data that the transaction refers to reaches the disk before it is committed.
        self.fs_device.flush()?;
        if let Some(own) = &self.own_flushes {
            own.flush()?;
        }
        let commit = record.commit_block(self.commit_time(), &self.format);
        let place = self.ring.after(head, len_blocks - 1);
        self.write_log(place, &[Piece::Own(commit)])?;
        self.flush_log()?;
        self.counters.log_blocks.add(len_blocks as usize);
        self.counters.revokes.add(transaction.revoked.len());
        self.finish(transaction, len_blocks);
        Ok(())
    }

    /// Records that a transaction is durable, and waits for blocks it frees that are being checkpointed.
    fn finish(&self, transaction: &Closed, len_blocks: u32) {
        let mut live = self.live.lock();
        let doomed = live.commit(transaction, len_blocks, self.clock.monotonic());
        let is_freed = |block: &u64| transaction.revoked.contains(block);
        while live.in_flight.iter().any(is_freed) {
            self.checkpointed.wait(&mut live);
        }
        drop(live);
        for (block, buffer) in doomed {
            self.fs_device.buffers.abandon(block, &buffer);
        }
    }

    /// Sets the start of the log in the superblock to `head`, if it marks the log as empty.
    fn start(&self, head: LogBlock, sequence: Sequence) -> Result<()> {
        if self.is_started.load(Ordering::Relaxed) {
            return Ok(());
        }
        self.counters.writes.add(1);
        self.slot.write(|disk| disk.set_tail(head, sequence))?;
        self.is_started.store(true, Ordering::Relaxed);
        Ok(())
    }

    /// Durably has the log begin with transaction `sequence`, which will have `len_blocks` blocks from
    /// `head` on, in place of those that were replayed. It has the number of the one that a crash
    /// interrupted, so that no block of that one may be left there.
    fn replace_replayed(&self, head: LogBlock, sequence: Sequence, len_blocks: u32) -> Result<()> {
        self.start(head, sequence)?;
        self.flush_log()?;
        let zeros = vec![0; self.format.block_bytes as usize];
        let blocks: Vec<&[u8]> = vec![&zeros; len_blocks as usize];
        self.write_log(head, &blocks)?;
        self.flush_log()
    }

    /// Durably has the log begin at `tail`. What came before must be checkpointed, durably.
    pub(super) fn cut(&self, (tail, sequence): (LogBlock, Sequence)) -> Result<()> {
        self.counters.writes.add(1);
        self.slot.write(|disk| disk.set_tail(tail, sequence))?;
        self.flush_log()
    }

    /// Durably marks the log as empty.
    pub(super) fn mark_empty(&self) -> Result<()> {
        if !self.is_started.load(Ordering::Relaxed) {
            return Ok(());
        }
        let next = self.live.lock().next();
        self.counters.writes.add(1);
        self.slot.write(|disk| disk.mark_empty(next))?;
        self.flush_log()?;
        self.is_started.store(false, Ordering::Relaxed);
        Ok(())
    }

    /// Records in the superblock why nothing is written any more, if that can be done.
    pub(super) fn record_failure(&self, error: &Error) -> Result<()> {
        if self.replaces_replayed.load(Ordering::Relaxed) {
            // The log is still another one's.
            return Ok(());
        }
        let errno = error.errno().raw_os_error();
        self.slot.write(|disk| disk.set_errno(-errno))?;
        self.flush_log()
    }

    fn flush_log(&self) -> Result<()> {
        let flushes = self.own_flushes.as_ref().unwrap_or(&self.fs_device.flushes);
        Ok(flushes.flush()?)
    }

    /// Writes blocks of the log from `at` on, each run of neighbours as one request.
    fn write_log<B: Deref<Target = [u8]>>(&self, at: LogBlock, blocks: &[B]) -> Result<()> {
        let mut at = at;
        let mut rest = blocks;
        while !rest.is_empty() {
            let placed = self.slot.map().locate(at).map_or(0, |(_, blocks)| blocks);
            let run = placed.min(self.ring.run_blocks(at)).min(RUN_BLOCKS_MAX);
            // A block without a place is refused below.
            let run = rest.len().min(run.max(1) as usize);
            let (now, later) = rest.split_at(run);
            let bufs: Vec<_> = now.iter().map(|block| IoSlice::new(block)).collect();
            self.counters.writes.add(1);
            self.slot.map().write_vectored(at, &bufs)?;
            at = self
                .ring
                .after(at, u32::try_from(run).unwrap_or(RUN_BLOCKS_MAX));
            rest = later;
        }
        Ok(())
    }

    /// Now, but never before the last commit: replay recognises old blocks by their time.
    fn commit_time(&self) -> Timestamp {
        let now = self.clock.now();
        let mut last = self.last_commit.lock();
        *last = now.max(*last);
        *last
    }
}
