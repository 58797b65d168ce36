//! The queue for several threads: one lock, and waiting for heads that are being run.

use std::fmt;
use std::sync::atomic::{AtomicU32, Ordering};

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

/// The delayed references of the running transaction.
///
/// The lock of the queue is held shortly, and never while a tree is read. A head that is being run belongs
/// to the thread that runs it; a thread that has to know the whole state of its extent waits, and then
/// searches the head again: it may be gone, or another one.
#[derive(Default)]
pub struct DelayedRefs<I: HeadIndex = Heads> {
    /// Delayed references.
    queue: Mutex<RefQueue<I>, { rank(11, 0) }>,
    /// Notified when a head is not being run any more.
    released: Condvar,
    /// Threads that wait for the end of all walks.
    walk_waiters: AtomicU32,
}

impl<I: HeadIndex> DelayedRefs<I> {
    /// No references; their heads will be in `heads`, which has none.
    #[must_use]
    pub fn with_heads(heads: I) -> Self {
        Self {
            queue: Mutex::new(RefQueue::with_heads(heads)),
            ..Self::default()
        }
    }

    /// Queues a change.
    pub fn queue(&self, change: &Change) -> Result<(), Corrupt<DelayedRefRule>> {
        self.queue.lock().queue(change)
    }

    /// Queues a change of an item that changes no reference.
    pub fn queue_op(
        &self,
        address: LogicalAddr,
        len_bytes: u64,
        kind: ExtentKind,
        op: ExtentOp,
    ) -> Result<(), Corrupt<DelayedRefRule>> {
        self.queue.lock().queue_op(address, len_bytes, kind, op)
    }

    /// See [`RefQueue::forget`].
    pub fn forget(&self, address: LogicalAddr) -> Option<Freed> {
        self.queue.lock().forget(address)
    }

    /// What is pending of an extent, `None` if nothing is.
    ///
    /// With the item of the extent that is its whole state, if the extent tree is locked and was before.
    ///
    /// # Errors
    /// [`Busy`] if the head is being run: [wait](Self::wait_for) without the lock of the extent tree, and
    /// look again.
    pub fn pending(&self, address: LogicalAddr) -> Result<Option<PendingState>, Busy> {
        let queue = self.queue.lock();
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
        let queue = self.queue.lock();
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
        let mut queue = self.queue.lock();
        while let Some(slot) = queue.heads.find(address.0)
            && queue
                .heads
                .state(slot)
                .flags
                .contains(HeadFlags::PROCESSING)
        {
            self.released.wait(&mut queue);
        }
    }

    /// See [`RefQueue::select`].
    pub fn select(&self) -> Option<Running> {
        self.queue.lock().select()
    }

    /// See [`RefQueue::unselect`].
    pub fn unselect(&self, running: Running) {
        self.queue.lock().unselect(running);
        self.released.notify_all();
    }

    /// See [`RefQueue::next_step`].
    pub fn next_step(&self, running: &Running) -> Result<RunStep, Corrupt<DelayedRefRule>> {
        self.queue.lock().next_step(running)
    }

    /// See [`RefQueue::finish`].
    pub fn finish(&self, running: Running) -> Result<FinishedHead, Running> {
        let finished = self.queue.lock().finish(running);
        if finished.is_ok() {
            self.released.notify_all();
        }
        finished
    }

    /// Begins a walk over references; see [`RefQueue::begin_walk`].
    pub fn begin_walk(&self) -> u64 {
        self.queue.lock().begin_walk()
    }

    /// Ends a walk.
    pub fn end_walk(&self, sequence: u64) {
        self.queue.lock().end_walk(sequence);
        self.released.notify_all();
    }

    /// Waits until no walk is in progress, so that all references can be run. The caller has no lock that a
    /// walk needs.
    pub fn wait_for_walks(&self) {
        let mut queue = self.queue.lock();
        self.walk_waiters.fetch_add(1, Ordering::Relaxed);
        while queue.has_walks() {
            self.released.wait(&mut queue);
        }
        self.walk_waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many threads wait for the end of all walks.
    pub fn walk_waiters(&self) -> u32 {
        self.walk_waiters.load(Ordering::Relaxed)
    }

    /// Discards all heads when the transaction is aborted, waiting for each that is being run.
    pub fn abort(&self) -> Vec<Discarded> {
        let mut queue = self.queue.lock();
        while queue.ready() < queue.len() {
            self.released.wait(&mut queue);
        }
        queue.abort()
    }

    /// How many heads there are.
    pub fn len(&self) -> usize {
        self.queue.lock().len()
    }

    /// Whether there are no heads.
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Bytes of data whose checksums are to be deleted.
    pub fn checksum_deletions(&self) -> u64 {
        self.queue.lock().checksum_deletions()
    }

    /// Events since the mount.
    pub fn counters(&self) -> DelayedRefCounters {
        self.queue.lock().counters()
    }
}

impl<I: HeadIndex> fmt::Debug for DelayedRefs<I> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.queue.lock().fmt(out)
    }
}
