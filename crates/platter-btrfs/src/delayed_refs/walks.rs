//! Walks over the references of an extent: what is queued after one began neither runs nor merges until it ends.

use std::collections::BTreeSet;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use platter_block::lock::{Condvar, Mutex, rank};

/// The walks that are in progress, in all shards.
///
/// The numbers are read under the lock of a shard, which a walk takes after it began: a change that the walk does not
/// find has its number.
#[derive(Debug)]
pub(super) struct Walks {
    /// Walks over references that are in progress.
    running: Mutex<Running, { rank(11, 0) }>,
    /// Notified when one ends.
    ended: Condvar,
    /// The first one; the largest number if there is none.
    oldest: AtomicU64,
    /// The last one; zero if there is none.
    newest: AtomicU64,
    /// Threads that wait for the end of all.
    waiters: AtomicU32,
}

#[derive(Debug, Default)]
struct Running {
    numbers: BTreeSet<u64>,
    last: u64,
}

impl Default for Walks {
    fn default() -> Self {
        Self {
            running: Mutex::default(),
            ended: Condvar::default(),
            oldest: AtomicU64::new(u64::MAX),
            newest: AtomicU64::new(0),
            waiters: AtomicU32::new(0),
        }
    }
}

impl Walks {
    /// Begins one. Returns its number.
    pub(super) fn begin(&self) -> u64 {
        let mut running = self.running.lock();
        running.last += 1;
        let number = running.last;
        running.numbers.insert(number);
        self.publish(&running);
        number
    }

    /// Ends one.
    pub(super) fn end(&self, number: u64) {
        let mut running = self.running.lock();
        running.numbers.remove(&number);
        self.publish(&running);
        drop(running);
        self.ended.notify_all();
    }

    fn publish(&self, running: &Running) {
        let (first, last) = (running.numbers.first(), running.numbers.last());
        self.oldest
            .store(first.copied().unwrap_or(u64::MAX), Ordering::Release);
        self.newest
            .store(last.copied().unwrap_or_default(), Ordering::Release);
    }

    /// What is queued now is of the walk with this number, and of those before; zero if there is none.
    pub(super) fn newest(&self) -> u64 {
        self.newest.load(Ordering::Acquire)
    }

    /// References from this number on are neither merged nor run.
    pub(super) fn limit(&self) -> u64 {
        self.oldest.load(Ordering::Acquire)
    }

    /// Waits until none is in progress.
    pub(super) fn wait(&self) {
        let mut running = self.running.lock();
        self.waiters.fetch_add(1, Ordering::Relaxed);
        while !running.numbers.is_empty() {
            self.ended.wait(&mut running);
        }
        self.waiters.fetch_sub(1, Ordering::Relaxed);
    }

    /// How many threads wait.
    pub(super) fn waiters(&self) -> u32 {
        self.waiters.load(Ordering::Relaxed)
    }
}
