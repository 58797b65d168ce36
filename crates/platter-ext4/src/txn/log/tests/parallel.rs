//! Handles that begin and end without a lock, while commits close the transaction they are part of.

use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;

use super::journal::log_on;
use super::*;
use crate::txn::sample_log::{SampleLog, filled};

const THREADS: u64 = 4;
const ROUNDS: u64 = 2000;

fn journaled() -> Log {
    let mut sample = SampleLog::new(crate::ondisk::jbd2::Checksums::None, false);
    sample.superblock.start = 0.into();
    log_on(sample.disk(), &Features::from_bits(0, 0, 0))
}

/// Makes handles of all sizes, until `rounds` are done or the log has failed.
fn work(log: &Log, thread: u64, rounds: u64) -> u64 {
    let mut chance = thread + 1;
    for round in 0..rounds {
        chance = chance
            .wrapping_mul(6_364_136_223_846_793_005)
            .wrapping_add(1);
        let credits = u32::try_from(chance >> 33).unwrap() % log.credits_max() + 1;
        let Ok(mut handle) = log.begin(credits) else {
            return round;
        };
        assert_eq!(handle.transaction(), log.running(), "it stays open");
        assert!(log.transactions.gate().blocks() <= log.credits_max());
        handle.extend(2);
        for block in 0..u64::from(credits.min(3)) {
            let block = BlockNr(10 + 3 * thread + block);
            if handle.create(block, &Unverified, filled(1)).is_err() {
                return round;
            }
        }
        assert_eq!(handle.transaction(), log.running(), "it is not closed yet");
    }
    rounds
}

#[test]
fn handles_and_commits_leave_no_residue_and_no_waiter() {
    for is_served in [false, true] {
        let log = journaled();
        let is_done = AtomicBool::new(false);
        thread::scope(|scope| {
            if is_served {
                scope.spawn(|| log.serve());
            }
            for _ in 0..2 {
                scope.spawn(|| {
                    while !is_done.load(Ordering::Acquire) {
                        log.commit_all().unwrap();
                    }
                });
            }
            let log = &log;
            let workers = (0..THREADS).map(|thread| scope.spawn(move || work(log, thread, ROUNDS)));
            let workers: Vec<_> = workers.collect();
            for worker in workers {
                assert_eq!(worker.join().unwrap(), ROUNDS);
            }
            is_done.store(true, Ordering::Release);
            log.end_service();
        });
        let len = u32::try_from(log.transactions.inspect(|running| running.blocks.len())).unwrap();
        assert_eq!(
            (
                log.transactions.gate().handles(),
                log.transactions.gate().blocks()
            ),
            (0, len)
        );
        log.commit_all().unwrap();
        assert_eq!(
            (
                log.transactions.gate().handles(),
                log.transactions.gate().blocks()
            ),
            (0, 0)
        );
        assert!(log.statistics().commits > 1);
    }
}

#[test]
fn failure_wakes_waiters_for_begin_and_commit() {
    for round in 0..20 {
        let log = journaled();
        thread::scope(|scope| {
            let log = &log;
            for thread in 0..THREADS {
                scope.spawn(move || work(log, thread, u64::MAX));
            }
            scope.spawn(move || {
                while log.failure().is_none() {
                    let _ = log.commit_all();
                }
            });
            for _ in 0..round {
                let _ = log.begin(15);
            }
            log.abort(&Condition::InvalidArgument.into());
        });
        assert_eq!(log.transactions.gate().handles(), 0);
        assert!(log.begin(0).is_err());
    }
}

#[test]
fn closed_log_refuses_handles_however_often_it_commits() {
    let log = journaled();
    drop(log.begin(1).unwrap());
    log.close().unwrap();
    log.commit_all().unwrap();
    assert!(log.begin(1).is_err());
}

#[test]
fn nearly_full_transaction_is_closed_instead_of_waited_for() {
    let log = journaled();
    for block in 10..20 {
        let mut handle = log.begin(1).unwrap();
        handle
            .create(BlockNr(block), &Unverified, filled(1))
            .unwrap();
    }
    let held = log.begin(3).unwrap();
    thread::scope(|scope| {
        let begun = scope.spawn(|| log.begin(3).unwrap().transaction());
        while !log.transactions.gate().is_shut() {
            thread::yield_now();
        }
        let full = held.transaction();
        drop(held);
        assert_eq!(begun.join().unwrap(), full.next());
    });
}
