//! What handles may ask for, and how they and commits wait for each other.

use std::io::{IoSlice, IoSliceMut};
use std::sync::Barrier;
use std::sync::atomic::{AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::lock::{Mutex, MutexGuard};
use platter_block::{Geometry, IoError};

use super::journal::log_on;
use super::*;
use crate::txn::sample_log::{SampleLog, filled};

fn sample() -> Arc<MemoryDevice> {
    let mut sample = SampleLog::new(crate::ondisk::jbd2::Checksums::None, false);
    sample.superblock.start = 0.into();
    sample.disk()
}

fn journaled() -> Log {
    log_on(sample(), &Features::from_bits(0, 0, 0))
}

fn change(handle: &mut Handle<'_>, block: u64) {
    handle
        .create(BlockNr(block), &Unverified, filled(1))
        .unwrap();
}

#[test]
fn more_credits_than_a_transaction_has_are_refused() {
    let log = journaled();
    assert_eq!(log.credits_max(), 15);
    assert!(log.begin(15).is_ok());
    assert!(matches!(
        log.begin(16),
        Err(Error::Condition(Condition::NoSpace))
    ));
}

#[test]
fn each_changed_block_takes_one_credit_once() {
    let log = journaled();
    let mut handle = log.begin(2).unwrap();
    change(&mut handle, 10);
    change(&mut handle, 10);
    assert_eq!(handle.credits(), 1);
    drop(handle);
    let mut handle = log.begin(2).unwrap();
    change(&mut handle, 10);
    assert_eq!(
        handle.credits(),
        1,
        "also when another handle changed it before"
    );
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a handle changes no more than it asked for")]
fn handle_beyond_its_credits_is_a_bug() {
    let log = journaled();
    let mut handle = log.begin(1).unwrap();
    change(&mut handle, 10);
    change(&mut handle, 11);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a thread with a handle waits for no commit")]
fn second_handle_in_a_thread_is_a_bug() {
    let log = journaled();
    let _handle = log.begin(1).unwrap();
    let _ = log.begin(1);
}

#[test]
#[cfg(debug_assertions)]
#[should_panic(expected = "a thread with a handle waits for no commit")]
fn commit_under_a_handle_is_a_bug() {
    let log = journaled();
    let handle = log.begin(1).unwrap();
    let _ = log.commit(handle.transaction());
}

#[test]
fn handle_extends_while_credits_last_and_restarts_after() {
    let log = journaled();
    let mut handle = log.begin(10).unwrap();
    assert!(!handle.extend(6));
    assert!(handle.extend(5));
    for block in 10..25 {
        change(&mut handle, block);
    }
    assert_eq!(handle.credits(), 0);
    assert!(!handle.extend(1));
    let before = handle.transaction();
    handle.restart(1).unwrap();
    assert_eq!(handle.transaction(), before.next());
    assert_eq!(log.statistics().commits, 1, "the full one had to go");
    change(&mut handle, 25);
    drop(handle);
    log.commit_all().unwrap();
    assert_eq!(log.statistics().blocks, 16);
}

/// Returns when another thread serves, which is then asked to commit the running transaction.
fn await_service(log: &Log) {
    let is_served = |_| {
        log.transactions.requests().ask(log.running().into()) || {
            thread::sleep(Duration::from_millis(1));
            false
        }
    };
    assert!((0..10_000).any(is_served), "no thread serves");
}

#[test]
fn full_transaction_commits_in_commit_thread_then_in_caller() {
    let log = journaled();
    let fill = || {
        for block in (10..30).cycle().take(100) {
            let mut handle = log.begin(1).unwrap();
            change(&mut handle, block);
        }
    };
    thread::scope(|scope| {
        scope.spawn(|| log.serve());
        await_service(&log);
        fill();
        log.end_service();
    });
    let served = log.statistics().commits;
    assert!(served > 0);
    fill();
    assert!(log.statistics().commits > served);
    // There is no service after its end.
    log.serve();
}

#[test]
fn waiter_sees_end_or_failure_of_commit_thread() {
    for fails in [false, true] {
        let log = journaled();
        thread::scope(|scope| {
            scope.spawn(|| log.serve());
            await_service(&log);
            let mut held = log.begin(15).unwrap();
            (10..25).for_each(|block| change(&mut held, block));
            let waiting = scope.spawn(|| log.begin(15).map(|handle| handle.credits()));
            thread::sleep(Duration::from_millis(5));
            if fails {
                log.abort(&Condition::InvalidArgument.into());
            } else {
                log.end_service();
            }
            drop(held);
            assert_eq!(waiting.join().unwrap().is_err(), fails);
            log.end_service();
        });
    }
}

#[test]
fn restart_on_an_aborted_log_changes_nothing() {
    let log = journaled();
    let mut handle = log.begin(1).unwrap();
    log.abort(&Condition::InvalidArgument.into());
    assert!(handle.restart(1).is_err());
    let created = handle.create(BlockNr(10), &Unverified, filled(1));
    assert!(matches!(
        created,
        Err(Error::Condition(Condition::ReadOnly))
    ));
    assert!(!handle.extend(1));
}

#[test]
fn credits_that_were_not_needed_are_given_back() {
    let log = journaled();
    let gate = Barrier::new(2);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let handle = log.begin(10).unwrap();
            gate.wait();
            drop(handle);
        });
        gate.wait();
        drop(log.begin(10).unwrap());
    });
    assert_eq!(
        log.statistics().commits,
        0,
        "a caller that waits for space waits for handles first"
    );
}

/// A device some of whose requests wait while the gate is held.
#[derive(Debug)]
struct GatedDevice {
    base: Arc<MemoryDevice>,
    gated: Gated,
    gate: Mutex<()>,
    begun: AtomicU64,
}

/// What has to pass the gate.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Gated {
    Flushes,
    /// Writes that begin with this block.
    Block(u64),
}

impl GatedDevice {
    fn new(gated: Gated) -> Arc<Self> {
        Arc::new(Self {
            base: sample(),
            gated,
            gate: Mutex::new(()),
            begun: AtomicU64::new(0),
        })
    }

    fn log(self: &Arc<Self>) -> Log {
        log_on(Arc::<Self>::clone(self), &Features::from_bits(0, 0, 0))
    }

    fn hold(&self) -> MutexGuard<'_, ()> {
        self.gate.lock()
    }

    /// Returns when a request waits at the gate.
    fn wait_for_request(&self) {
        while self.begun.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
    }

    fn pass(&self, what: Gated) {
        if what == self.gated {
            self.begun.fetch_add(1, Ordering::SeqCst);
            drop(self.gate.lock());
        }
    }
}

impl BlockDevice for GatedDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> std::result::Result<(), IoError> {
        self.base.read_at(offset, buf)
    }

    fn read_vectored_at(
        &self,
        offset: u64,
        bufs: &mut [IoSliceMut<'_>],
    ) -> std::result::Result<(), IoError> {
        self.base.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> std::result::Result<(), IoError> {
        self.base.write_at(offset, buf)
    }

    fn write_vectored_at(
        &self,
        offset: u64,
        bufs: &[IoSlice<'_>],
    ) -> std::result::Result<(), IoError> {
        self.pass(Gated::Block(offset / u64::from(BLOCK)));
        self.base.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> std::result::Result<(), IoError> {
        self.pass(Gated::Flushes);
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> std::result::Result<(), IoError> {
        self.base.discard(range)
    }
}

#[test]
fn commit_waiters_share_the_next_commit() {
    let device = GatedDevice::new(Gated::Flushes);
    let log = device.log();
    let changed = Barrier::new(5);
    let gate = device.hold();
    std::thread::scope(|scope| {
        for block in 10..14 {
            let (log, changed) = (&log, &changed);
            scope.spawn(move || {
                let mut handle = log.begin(1).unwrap();
                change(&mut handle, block);
                let transaction = handle.transaction();
                drop(handle);
                changed.wait();
                log.commit(transaction).unwrap();
            });
        }
        // The first commit is at its flush, and what comes now joins the next transaction.
        changed.wait();
        device.wait_for_request();
        for block in 20..24 {
            let (log, changed) = (&log, &changed);
            scope.spawn(move || {
                let mut handle = log.begin(1).unwrap();
                change(&mut handle, block);
                let transaction = handle.transaction();
                drop(handle);
                changed.wait();
                log.commit(transaction).unwrap();
            });
        }
        changed.wait();
        drop(gate);
    });
    let statistics = log.statistics();
    assert_eq!((statistics.commits, statistics.blocks), (2, 8));
    assert_eq!(statistics.flushes, 4);
}

#[test]
fn threads_that_begin_extend_restart_and_commit_lose_no_change() {
    let disk = sample();
    let log = log_on(
        Arc::<MemoryDevice>::clone(&disk),
        &Features::from_bits(0, 0, 0),
    );
    let count = |handle: &mut Handle<'_>, block: u64| {
        let change = |bytes: &mut [u8]| {
            let (counter, _) = bytes.split_first_chunk_mut::<8>().unwrap();
            *counter = (u64::from_le_bytes(*counter) + 1).to_le_bytes();
            Ok(())
        };
        handle.edit(BlockNr(block), &Unverified, change).unwrap();
    };
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (log, count) = (&log, &count);
            scope.spawn(move || {
                for round in 0..500u64 {
                    let mut handle = log.begin(1).unwrap();
                    count(&mut handle, 10);
                    for block in 0..round % 5 {
                        if handle.credits() == 0 && !handle.extend(2) {
                            handle.restart(2).unwrap();
                        }
                        count(&mut handle, 11 + block);
                    }
                    let transaction = handle.transaction();
                    drop(handle);
                    if (round + thread).is_multiple_of(7) {
                        log.commit(transaction).unwrap();
                    }
                    if (round + thread).is_multiple_of(31) {
                        log.checkpoint_all().unwrap();
                    }
                }
            });
        }
    });
    log.close().unwrap();
    let counted = |block: u64| {
        let mut counter = [0; 8];
        disk.read_at(block * u64::from(BLOCK), &mut counter)
            .unwrap();
        u64::from_le_bytes(counter)
    };
    assert_eq!(
        [10, 11, 12, 13, 14].map(counted),
        [2000, 1600, 1200, 800, 400]
    );
    assert_eq!(log.fs_device.buffers.dirty_len(), 0);
}

/// Uses freed blocks again at once, past the log.
struct Eager {
    disk: Arc<MemoryDevice>,
}

impl CommitClient for Eager {
    fn closing(&self, _: &mut Handle<'_>) -> Result<()> {
        Ok(())
    }

    fn committed(&self, freed: &[Range<BlockNr>]) {
        for range in freed {
            let offset = range.start.0 * u64::from(BLOCK);
            self.disk.write_at(offset, &filled(9)).unwrap();
        }
    }
}

/// Panics when a transaction is durable.
struct Panicking;

impl CommitClient for Panicking {
    fn closing(&self, _: &mut Handle<'_>) -> Result<()> {
        Ok(())
    }

    fn committed(&self, _: &[Range<BlockNr>]) {
        panic!("as intended");
    }
}

#[test]
fn a_panic_in_a_commit_ends_all_writing() {
    let log = journaled();
    let client: Arc<dyn CommitClient> = Arc::new(Panicking);
    log.attach(Arc::downgrade(&client));
    let mut handle = log.begin(1).unwrap();
    change(&mut handle, 10);
    let transaction = handle.transaction();
    drop(handle);
    let commit = std::panic::AssertUnwindSafe(|| log.commit(transaction));
    assert!(std::panic::catch_unwind(commit).is_err());
    assert!(log.begin(1).is_err());
    assert!(log.commit(transaction).is_err());
}

#[test]
fn checkpoint_in_flight_does_not_overwrite_a_reused_block() {
    let device = GatedDevice::new(Gated::Block(10));
    let log = device.log();
    let eager: Arc<dyn CommitClient> = Arc::new(Eager {
        disk: Arc::clone(&device.base),
    });
    log.attach(Arc::downgrade(&eager));
    change(&mut log.begin(1).unwrap(), 10);
    log.commit_all().unwrap();
    let gate = device.hold();
    std::thread::scope(|scope| {
        scope.spawn(|| log.checkpoint_all().unwrap());
        device.wait_for_request();
        scope.spawn(|| {
            let mut handle = log.begin(1).unwrap();
            handle.free_when_durable(BlockNr(10)..BlockNr(11));
            drop(handle);
            log.commit_all().unwrap();
        });
        // Time enough for a commit that does not wait.
        std::thread::sleep(Duration::from_millis(50));
        drop(gate);
    });
    assert_eq!(first_byte(&device.base, 10), 9);
    log.close().unwrap();
    assert_eq!(first_byte(&device.base, 10), 9);
}
