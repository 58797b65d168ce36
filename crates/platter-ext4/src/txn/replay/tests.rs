//! Logs of every layout and every kind of corruption, and what replay makes of them.

use std::ops::Range;
use std::sync::Arc;

use platter_block::{Geometry, IoError, MemoryDevice, Operation};
use platter_ondisk::Rule;
use platter_vfs::Error;

use super::*;
use crate::ondisk::jbd2::{Checksums, JBD2_MAGIC, LogBlock};
use crate::txn::sample_log::{FILESYSTEM_BLOCKS, LOG_BLOCKS, SampleLog, fill_of, filled, open};

const V3: Checksums = Checksums::Tag32 { seed: 0 };
const LAYOUTS: [(Checksums, bool); 8] = [
    (Checksums::None, false),
    (Checksums::None, true),
    (Checksums::Commit, false),
    (Checksums::Commit, true),
    (Checksums::Tag16 { seed: 0 }, false),
    (Checksums::Tag16 { seed: 0 }, true),
    (V3, false),
    (V3, true),
];

fn recover_disk(disk: &Arc<MemoryDevice>) -> Result<ReplayReport> {
    replay(&open(disk), &**disk, FILESYSTEM_BLOCKS)
}

fn recovered(log: SampleLog) -> (ReplayReport, Arc<MemoryDevice>) {
    let disk = log.disk();
    (recover_disk(&disk).unwrap(), disk)
}

fn refused(log: SampleLog) -> (String, Arc<MemoryDevice>) {
    let disk = log.disk();
    let Err(Error::Corrupt(report)) = recover_disk(&disk) else {
        panic!("expected corruption");
    };
    (report.rule.into_owned(), disk)
}

#[test]
fn transactions_replay_in_order_in_every_layout() {
    for (checksums, wide) in LAYOUTS {
        let mut log = SampleLog::new(checksums, wide);
        log.log(&[(10, filled(1)), (11, filled(2))]);
        log.log(&[(12, filled(3))]);
        log.commit();
        log.log(&[(11, filled(4))]);
        log.commit();
        let (report, disk) = recovered(log);
        assert_eq!((report.transactions, report.blocks_replayed), (2, 4));
        assert_eq!(report.next_sequence(), Sequence(10));
        let fills = [10, 11, 12].map(|block| fill_of(&disk, block));
        assert_eq!(fills, [Some(1), Some(4), Some(3)], "{checksums:?} {wide}");
    }
}

#[test]
fn escaped_block_gets_its_magic_back() {
    for (checksums, wide) in LAYOUTS {
        let mut log = SampleLog::new(checksums, wide);
        let mut block = filled(9);
        block[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
        log.log(&[(10, block.clone())]);
        log.commit();
        let (_, disk) = recovered(log);
        assert_eq!(disk.snapshot()[10 * 1024..11 * 1024], block);
    }
}

#[test]
fn revoked_copies_stay_in_the_log() {
    for (checksums, wide) in LAYOUTS {
        let mut log = SampleLog::new(checksums, wide);
        log.log(&[(10, filled(1)), (11, filled(1)), (12, filled(1))]);
        log.commit();
        log.log(&[(11, filled(2))]);
        log.revoke(&[10, 11, 1 << 31]);
        log.commit();
        log.log(&[(10, filled(3))]);
        log.commit();
        let (report, disk) = recovered(log);
        assert_eq!((report.blocks_replayed, report.blocks_revoked), (2, 3));
        let fills = [10, 11, 12].map(|block| fill_of(&disk, block));
        assert_eq!(fills, [Some(3), Some(0), Some(1)]);
    }
}

#[test]
fn revoke_of_an_uncommitted_transaction_does_not_count() {
    let mut log = SampleLog::new(V3, true);
    log.log(&[(10, filled(1))]);
    log.commit();
    log.revoke(&[10]);
    let (_, disk) = recovered(log);
    assert_eq!(fill_of(&disk, 10), Some(1));
}

#[test]
fn log_wraps_around_at_any_block() {
    for (checksums, wide) in LAYOUTS {
        for back in 1..6 {
            let mut log = SampleLog::new(checksums, wide);
            log.start_at(LOG_BLOCKS - back, 7);
            log.log(&[(10, filled(1)), (11, filled(2))]);
            log.revoke(&[20]);
            log.commit();
            log.log(&[(12, filled(3))]);
            log.commit();
            let (report, disk) = recovered(log);
            assert_eq!(report.transactions, 2);
            assert_eq!(fill_of(&disk, 12), Some(3));
        }
    }
}

#[test]
fn sequence_numbers_wrap_around() {
    let mut log = SampleLog::new(V3, false);
    log.start_at(1, u32::MAX - 1);
    for fill in 1..=4 {
        log.log(&[(10, filled(fill))]);
        log.commit();
    }
    log.revoke(&[10]);
    let (report, disk) = recovered(log);
    assert_eq!(report.transactions, 4);
    assert_eq!(report.end, Sequence(2));
    assert_eq!(fill_of(&disk, 10), Some(4));
}

#[test]
fn clean_journal_replays_nothing() {
    let mut log = SampleLog::new(V3, false);
    log.log(&[(10, filled(1))]);
    log.commit();
    log.superblock.start = 0.into();
    let disk = log.disk();
    let before = disk.snapshot();
    assert_eq!(recover_disk(&disk).unwrap().transactions, 0);
    assert_eq!(disk.snapshot(), before);
}

#[test]
fn transaction_without_commit_block_is_dropped() {
    for (checksums, wide) in LAYOUTS {
        let mut log = SampleLog::new(checksums, wide);
        log.log(&[(10, filled(1))]);
        log.commit();
        log.log(&[(10, filled(2))]);
        let (report, disk) = recovered(log);
        assert_eq!(report.transactions, 1);
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn blocks_of_older_runs_end_the_log() {
    for stale in [5, 6, 9, 10, u32::MAX] {
        let mut log = SampleLog::new(V3, false);
        log.log(&[(10, filled(1))]);
        log.commit();
        log.sequence = Sequence(stale);
        log.log(&[(10, filled(2))]);
        log.commit();
        let (report, disk) = recovered(log);
        assert_eq!(report.transactions, 1, "{stale}");
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn corrupt_commit_block_is_an_error_after_what_came_before() {
    for checksums in [Checksums::Commit, Checksums::Tag16 { seed: 0 }, V3] {
        let mut log = SampleLog::new(checksums, false);
        log.log(&[(10, filled(1))]);
        log.commit();
        log.log(&[(10, filled(2))]);
        let commit = log.commit();
        log.block_mut(commit)[16] ^= 1;
        let (rule, disk) = refused(log);
        assert_eq!(rule, LogRule::CommitChecksum.text());
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn corrupt_commit_block_of_an_older_run_ends_the_log() {
    for checksums in [Checksums::Commit, V3] {
        let mut log = SampleLog::new(checksums, false);
        log.log(&[(10, filled(1))]);
        log.commit();
        log.seconds -= 100;
        log.log(&[(10, filled(2))]);
        let commit = log.commit();
        log.block_mut(commit)[16] ^= 1;
        let (report, disk) = recovered(log);
        assert_eq!(report.transactions, 1);
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn overtaken_last_transaction_is_dropped_with_async_commit() {
    for checksums in [Checksums::Commit, V3] {
        let mut log = SampleLog::new(checksums, false);
        log.allow_async_commit();
        log.log(&[(10, filled(1))]);
        log.commit();
        log.log(&[(10, filled(2))]);
        let commit = log.commit();
        log.block_mut(commit)[16] ^= 1;
        let (report, disk) = recovered(log);
        assert_eq!((report.transactions, report.end), (1, Sequence(8)));
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn async_commit_corruption_before_a_later_commit_is_an_error() {
    let mut log = SampleLog::new(Checksums::Commit, false);
    log.allow_async_commit();
    log.log(&[(10, filled(1))]);
    log.commit();
    let descriptor = log.log(&[(10, filled(2))]);
    log.commit();
    log.log(&[(10, filled(3))]);
    log.commit();
    log.block_mut(descriptor + 1)[0] ^= 1;
    let (rule, disk) = refused(log);
    assert_eq!(rule, LogRule::CommitChecksum.text());
    assert_eq!(fill_of(&disk, 10), Some(1));
}

#[test]
fn corrupt_descriptor_or_revoke_of_a_commit_is_an_error() {
    for revoke in [false, true] {
        let mut log = SampleLog::new(V3, false);
        log.log(&[(10, filled(1))]);
        log.commit();
        let mut place = log.log(&[(10, filled(2))]);
        if revoke {
            place = log.revoke(&[11]);
        }
        log.commit();
        log.block_mut(place)[1000] ^= 1;
        let (rule, disk) = refused(log);
        assert_eq!(rule, LogRule::BlockChecksum.text());
        assert_eq!(fill_of(&disk, 10), Some(0));
    }
}

#[test]
fn uncommitted_or_older_corrupt_descriptor_is_dropped() {
    for committed in [false, true] {
        let mut log = SampleLog::new(V3, false);
        log.log(&[(10, filled(1))]);
        log.commit();
        log.seconds -= 100;
        let place = log.log(&[(10, filled(2))]);
        if committed {
            log.commit();
        }
        log.block_mut(place)[1000] ^= 1;
        let (report, disk) = recovered(log);
        assert_eq!(report.transactions, 1);
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn corrupt_logged_block_is_passed_over_and_reported() {
    for checksums in [Checksums::Tag16 { seed: 0 }, V3] {
        let mut log = SampleLog::new(checksums, false);
        let place = log.log(&[(10, filled(1)), (11, filled(1)), (12, filled(1))]);
        log.commit();
        log.block_mut(place + 2)[7] ^= 1;
        let (rule, disk) = refused(log);
        assert_eq!(rule, LogRule::DataChecksum.text());
        let fills = [10, 11, 12].map(|block| fill_of(&disk, block));
        assert_eq!(fills, [Some(1), Some(0), Some(1)]);
    }
}

#[test]
fn block_outside_the_filesystem_is_refused() {
    for block in [FILESYSTEM_BLOCKS, u64::MAX >> 32, u64::MAX] {
        let mut log = SampleLog::new(V3, true);
        log.log(&[(block, filled(1)), (10, filled(1))]);
        log.commit();
        let (rule, disk) = refused(log);
        assert_eq!(rule, LogRule::TargetOutside.text());
        assert_eq!(fill_of(&disk, 10), Some(1));
    }
}

#[test]
fn block_of_the_log_itself_is_refused() {
    for block in [300, 323, 400, 439] {
        let mut log = SampleLog::new(V3, true);
        log.log(&[(block, filled(1))]);
        log.commit();
        assert_eq!(refused(log).0, LogRule::TargetInsideLog.text());
    }
}

#[test]
fn revoke_count_beyond_its_block_is_refused() {
    let mut log = SampleLog::new(Checksums::None, false);
    let place = log.revoke(&[10]);
    log.commit();
    log.block_mut(place)[12] = 1;
    assert_eq!(refused(log).0, LogRule::RevokeCount.text());
}

#[test]
fn transaction_that_bites_its_tail_was_never_committed() {
    let mut log = SampleLog::new(Checksums::None, false);
    for _ in 1..LOG_BLOCKS {
        log.log(&[]);
    }
    let (report, _) = recovered(log);
    assert_eq!(report.transactions, 0);
    let mut log = SampleLog::new(V3, false);
    for _ in 0..20 {
        log.log(&[(10, filled(1)), (11, filled(1)), (12, filled(1))]);
    }
    log.log(&[
        (10, filled(1)),
        (11, filled(1)),
        (12, filled(1)),
        (13, filled(1)),
    ]);
    log.commit();
    assert_eq!(recovered(log).0.transactions, 0);
}

#[test]
fn log_as_long_as_the_journal_is_replayed_whole() {
    let mut log = SampleLog::new(V3, false);
    for fill in 1..=21 {
        log.log(&[(10, filled(fill))]);
        log.commit();
    }
    let (report, disk) = recovered(log);
    assert_eq!(report.transactions, 21);
    assert_eq!(fill_of(&disk, 10), Some(21));
}

#[test]
fn replay_twice_is_replay_once() {
    let mut log = SampleLog::new(V3, true);
    log.log(&[(10, filled(1))]);
    log.commit();
    log.log(&[(10, filled(2))]);
    log.revoke(&[11]);
    log.commit();
    let (first, disk) = recovered(log);
    let once = disk.snapshot();
    assert_eq!(recover_disk(&disk).unwrap(), first);
    assert_eq!(disk.snapshot(), once);
}

#[test]
fn emptied_journal_needs_no_recovery_and_keeps_its_blocks() {
    let mut log = SampleLog::new(V3, true);
    log.log(&[(10, filled(1))]);
    log.commit();
    let (report, disk) = recovered(log);
    let mut journal = open(&disk);
    assert!(journal.needs_recovery());
    journal.mark_empty(report.next_sequence()).unwrap();
    let journal = open(&disk);
    assert!(!journal.needs_recovery());
    assert_eq!(journal.state().sequence, 9);
    let mut block = filled(0);
    journal.map().read(LogBlock(2), &mut block).unwrap();
    assert_eq!(block, filled(1));
}

/// A device that fails its writes, or its flushes.
#[derive(Debug)]
struct Failing {
    inner: Arc<MemoryDevice>,
    fails: Operation,
}

impl BlockDevice for Failing {
    fn name(&self) -> &Arc<str> {
        self.inner.name()
    }

    fn geometry(&self) -> Geometry {
        self.inner.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.inner.read_at(offset, buf)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.check(Operation::Write, offset)?;
        self.inner.write_at(offset, buf)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.check(Operation::Flush, 0)
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.inner.discard(range)
    }
}

impl Failing {
    fn check(&self, operation: Operation, offset: u64) -> Result<(), IoError> {
        if operation == self.fails {
            return Err(IoError::read_only(self.name(), operation, offset, 0));
        }
        Ok(())
    }
}

#[test]
fn failed_write_or_flush_of_the_target_is_an_error() {
    for fails in [Operation::Write, Operation::Flush] {
        let mut log = SampleLog::new(V3, true);
        log.log(&[(10, filled(1))]);
        log.commit();
        let inner = log.disk();
        let target = Failing { inner, fails };
        let result = replay(&open(&target.inner), &target, FILESYSTEM_BLOCKS);
        let Err(Error::Io(error)) = result else {
            panic!("expected an I/O error, got {result:?}");
        };
        assert_eq!(error.operation, fails);
    }
}
