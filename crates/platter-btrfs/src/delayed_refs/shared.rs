//! The queue for several threads: shards by address, each with a lock, and waiting for heads that are being run.

use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, AtomicUsize, Ordering};

use crossbeam_utils::CachePadded;
use platter_block::lock::{Condvar, Mutex, rank};
use platter_ondisk::Corrupt;

use super::Heads;
use super::index::HeadIndex;
use super::layout::HeadFlags;
use super::queue::{
    Change, DelayedRefCounters, DelayedRefRule, Discarded, ExtentKind, Freed, RefQueue,
};
use super::reference::{ExtentOp, RefKey};
use super::running::{FinishedHead, RunStep, Running};
use super::walks::Walks;
use crate::ondisk::LogicalAddr;
use crate::ondisk::extent_item::ExtentFlags;

/// What the queue knows of an extent beyond its item.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct PendingState {
    /// The sum of the changes of its references.
    pub net_change: i32,
    /// Flags that are to be set.
    pub flags: ExtentFlags,
    /// Whether it has no item yet.
    pub must_insert: bool,
}

/// The head of an extent is being run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Busy;

/// Shards of the heads.
const SHARDS: usize = 16;
/// Heads of this many bits of addresses in a row are in one shard: those of one leaf of the extent tree, and of a small
/// block group, which are run in order of address.
const RANGE_BITS: u32 = 26;
const RANGE_MASK: u64 = (1 << RANGE_BITS) - 1;

/// The delayed references of the running transaction.
///
/// The lock of a shard is held shortly, and never while a tree is read, nor with that of another one. A head that is
/// being run belongs to the thread that runs it; a thread that has to know the whole state of its extent waits, and then
/// searches the head again: it may be gone, or another one.
pub struct DelayedRefs<I: HeadIndex = Heads> {
    shards: [CachePadded<Shard<I>>; SHARDS],
    walks: Arc<Walks>,
    /// The end of the extent whose head was selected last.
    cursor: CachePadded<AtomicU64>,
}

/// The heads of every sixteenth range of addresses.
struct Shard<I: HeadIndex> {
    /// Delayed references.
    queue: Mutex<RefQueue<I>, { rank(11, 0) }>,
    /// Notified when a head is not being run any more.
    released: Condvar,
    /// Its heads.
    len: AtomicUsize,
}

impl<I: HeadIndex> Shard<I> {
    /// Calls `change` with the queue.
    fn with<R>(&self, change: impl FnOnce(&mut RefQueue<I>) -> R) -> R {
        let mut queue = self.queue.lock();
        let result = change(&mut queue);
        self.len.store(queue.len(), Ordering::Release);
        result
    }

    fn len(&self) -> usize {
        self.len.load(Ordering::Acquire)
    }
}

impl<I: HeadIndex> Default for DelayedRefs<I> {
    fn default() -> Self {
        Self::with_heads(I::default)
    }
}

impl<I: HeadIndex> DelayedRefs<I> {
    /// No references; the heads of each shard will be in what `heads` makes, which has none.
    #[must_use]
    pub fn with_heads(heads: impl Fn() -> I) -> Self {
        let walks = Arc::new(Walks::default());
        let shard = |_| {
            CachePadded::new(Shard {
                queue: Mutex::new(RefQueue::with_heads(heads(), Arc::clone(&walks))),
                released: Condvar::default(),
                len: AtomicUsize::new(0),
            })
        };
        Self {
            shards: std::array::from_fn(shard),
            walks,
            cursor: CachePadded::default(),
        }
    }

    fn shard(&self, address: LogicalAddr) -> &Shard<I> {
        let index = usize::try_from(address.0 >> RANGE_BITS).unwrap_or_default();
        &self.shards[index % SHARDS]
    }

    /// Queues a change.
    pub fn queue(&self, change: &Change) -> Result<(), Corrupt<DelayedRefRule>> {
        self.shard(change.address).with(|queue| queue.queue(change))
    }

    /// Queues a change of an item that changes no reference.
    pub fn queue_op(
        &self,
        address: LogicalAddr,
        len_bytes: u64,
        kind: ExtentKind,
        op: ExtentOp,
    ) -> Result<(), Corrupt<DelayedRefRule>> {
        let shard = self.shard(address);
        shard.with(|queue| queue.queue_op(address, len_bytes, kind, op))
    }

    /// See [`RefQueue::forget`].
    pub fn forget(&self, address: LogicalAddr) -> Option<Freed> {
        self.shard(address).with(|queue| queue.forget(address))
    }

    /// What is pending of an extent, `None` if nothing is.
    ///
    /// With the item of the extent that is its whole state, if the extent tree is locked and was before.
    ///
    /// # Errors
    /// [`Busy`] if the head is being run: [wait](Self::wait_for) without the lock of the extent tree, and
    /// look again.
    pub fn pending(&self, address: LogicalAddr) -> Result<Option<PendingState>, Busy> {
        let queue = self.shard(address).queue.lock();
        let Some(slot) = queue.heads.find(address.0) else {
            return Ok(None);
        };
        let state = queue.heads.state(slot);
        if state.flags.contains(HeadFlags::PROCESSING) {
            return Err(Busy);
        }
        let op = state.extent_op.get().map(|op| *queue.ops.get(op));
        Ok(Some(PendingState {
            net_change: state.net_change,
            flags: op.map_or(ExtentFlags::empty(), |op| op.flags),
            must_insert: state.flags.contains(HeadFlags::MUST_INSERT),
        }))
    }

    /// Whether all that is queued for an extent is of one reference, and whether it has no item yet.
    ///
    /// # Errors
    /// As of [`pending`](Self::pending).
    pub fn pending_of(&self, address: LogicalAddr, key: RefKey) -> Result<(bool, bool), Busy> {
        let queue = self.shard(address).queue.lock();
        let Some(slot) = queue.heads.find(address.0) else {
            return Ok((true, false));
        };
        let state = queue.heads.state(slot);
        if state.flags.contains(HeadFlags::PROCESSING) {
            return Err(Busy);
        }
        let must_insert = state.flags.contains(HeadFlags::MUST_INSERT);
        Ok((state.has_only(&queue.refs, key), must_insert))
    }

    /// Waits until the head of an extent, if there is one, is not being run. The caller has no lock
    /// of a tree that running a reference changes.
    pub fn wait_for(&self, address: LogicalAddr) {
        let shard = self.shard(address);
        let mut queue = shard.queue.lock();
        while let Some(slot) = queue.heads.find(address.0)
            && queue
                .heads
                .state(slot)
                .flags
                .contains(HeadFlags::PROCESSING)
        {
            shard.released.wait(&mut queue);
        }
    }

    /// Selects the next head to run, in order of address, from the lowest one again after the highest.
    pub fn select(&self) -> Option<Running> {
        let cursor = self.cursor.load(Ordering::Relaxed);
        // Most are in the range of the one before.
        let end = (cursor | RANGE_MASK).saturating_add(1);
        if let Some(running) = self.select_in(cursor..end) {
            return Some(running);
        }
        loop {
            let next = self.next_ready(cursor).or_else(|| self.next_ready(0))?;
            // Another thread may have selected it.
            if let Some(running) = self.select_in(next..next.saturating_add(1)) {
                return Some(running);
            }
        }
    }

    fn next_ready(&self, from: u64) -> Option<u64> {
        let shards = self.shards.iter().filter(|shard| shard.len() > 0);
        let next = shards.filter_map(|shard| shard.queue.lock().next_ready(from));
        next.min()
    }

    /// Selects a head of addresses in one range.
    fn select_in(&self, addresses: Range<u64>) -> Option<Running> {
        let shard = self.shard(LogicalAddr(addresses.start));
        let (running, next) = shard.with(|queue| queue.select_in(&addresses))?;
        self.cursor.store(next, Ordering::Relaxed);
        Some(running)
    }

    /// See [`RefQueue::unselect`].
    pub fn unselect(&self, running: Running) {
        let shard = self.shard(running.address());
        shard.with(|queue| queue.unselect(running));
        shard.released.notify_all();
    }

    /// See [`RefQueue::next_step`].
    pub fn next_step(&self, running: &Running) -> Result<RunStep, Corrupt<DelayedRefRule>> {
        let shard = self.shard(running.address());
        shard.with(|queue| queue.next_step(running))
    }

    /// See [`RefQueue::finish`].
    pub fn finish(&self, running: Running) -> Result<FinishedHead, Running> {
        let shard = self.shard(running.address());
        let finished = shard.with(|queue| queue.finish(running));
        if finished.is_ok() {
            shard.released.notify_all();
        }
        finished
    }

    /// Begins a walk over references; see [`RefQueue::begin_walk`].
    pub fn begin_walk(&self) -> u64 {
        self.walks.begin()
    }

    /// Ends a walk.
    pub fn end_walk(&self, sequence: u64) {
        self.walks.end(sequence);
    }

    /// Waits until no walk is in progress, so that all references can be run. The caller has no lock that a
    /// walk needs.
    pub fn wait_for_walks(&self) {
        self.walks.wait();
    }

    /// How many threads wait for the end of all walks.
    pub fn walk_waiters(&self) -> u32 {
        self.walks.waiters()
    }

    /// Discards all heads when the transaction is aborted, waiting for each that is being run.
    pub fn abort(&self) -> Vec<Discarded> {
        let abort = |shard: &CachePadded<Shard<I>>| {
            let mut queue = shard.queue.lock();
            while queue.ready() < queue.len() {
                shard.released.wait(&mut queue);
            }
            let discarded = queue.abort();
            shard.len.store(0, Ordering::Release);
            discarded
        };
        self.shards.iter().flat_map(abort).collect()
    }

    /// How many heads there are.
    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.len()).sum()
    }

    /// Whether there are no heads.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data whose checksums are to be deleted.
    pub fn checksum_deletions(&self) -> u64 {
        let shards = self.shards.iter();
        shards
            .map(|shard| shard.queue.lock().checksum_deletions())
            .sum()
    }

    /// Events since the mount.
    pub fn counters(&self) -> DelayedRefCounters {
        let counters = self
            .shards
            .iter()
            .map(|shard| shard.queue.lock().counters());
        counters.fold(DelayedRefCounters::default(), |sum, one| sum.plus(&one))
    }
}

impl<I: HeadIndex> fmt::Debug for DelayedRefs<I> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DelayedRefs")
            .field("len", &self.len())
            .field("walks", &self.walks)
            .finish_non_exhaustive()
    }
}
