//! What a log with a journal leaves on its device, as our own replay finds it.

use std::time::Duration;

use platter_block::MemoryDevice;
use platter_block::sim::{CrashOptions, RecordingDevice};
use platter_ondisk::Uuid;
use platter_vfs::{Error, FixedClock, Timestamp};
use zerocopy::IntoBytes;

use super::*;
use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::jbd2::superblock::DiskJournalSuperblock;
use crate::ondisk::jbd2::{Checksums, JBD2_MAGIC, LogBlock};
use crate::txn::JournalMapBuilder;
use crate::txn::replay::{ReplayReport, replay};
use crate::txn::sample_log::{
    BLOCK_BYTES, FILESYSTEM_BLOCKS, LOG_BLOCKS, SampleLog, filled, open, open_on,
};

const V3: Checksums = Checksums::Tag32 { seed: 0 };
pub(super) const LAYOUTS: [(Checksums, bool); 8] = [
    (Checksums::None, false),
    (Checksums::None, true),
    (Checksums::Commit, false),
    (Checksums::Commit, true),
    (Checksums::Tag16 { seed: 0 }, false),
    (Checksums::Tag16 { seed: 0 }, true),
    (V3, false),
    (V3, true),
];

/// A filesystem of 1 KiB blocks with an empty journal of 64 blocks.
struct Scene {
    disk: Arc<MemoryDevice>,
    log: Log,
}

impl Scene {
    fn new((checksums, wide): (Checksums, bool)) -> Self {
        let mut sample = SampleLog::new(checksums, wide);
        sample.superblock.start = 0.into();
        Self::on(sample.disk(), Features::from_bits(0, 0, 0))
    }

    fn on(disk: Arc<MemoryDevice>, features: Features) -> Self {
        let log = log_on(Arc::<MemoryDevice>::clone(&disk), &features);
        Self { disk, log }
    }

    /// A transaction that fills these blocks, committed.
    fn commit(&self, blocks: &[(u64, u8)]) {
        self.change(blocks);
        self.log.commit_all().unwrap();
    }

    fn change(&self, blocks: &[(u64, u8)]) {
        let mut handle = self.log.begin(blocks.len().try_into().unwrap()).unwrap();
        for &(block, fill) in blocks {
            handle
                .create(BlockNr(block), &Unverified, filled(fill))
                .unwrap();
        }
    }

    fn forget(&self, block: u64) {
        let mut handle = self.log.begin(0).unwrap();
        handle.forget(BlockNr(block)..BlockNr(block + 1));
    }

    fn free(&self, block: u64) {
        let mut handle = self.log.begin(0).unwrap();
        handle.free_when_durable(BlockNr(block)..BlockNr(block + 1));
    }

    /// What a replay makes of a copy of the device.
    fn replayed(&self) -> (ReplayReport, Arc<MemoryDevice>) {
        let copy = Arc::new(MemoryDevice::new("copy", self.disk.snapshot()));
        let report = replay(&open(&copy), &*copy, FILESYSTEM_BLOCKS).unwrap();
        (report, copy)
    }

    fn fills<const N: usize>(disk: &MemoryDevice, blocks: [u64; N]) -> [u8; N] {
        blocks.map(|block| first_byte(disk, block))
    }
}

/// A log for the filesystem and the journal that lie on `device`.
pub(super) fn log_on(device: Arc<dyn BlockDevice>, features: &Features) -> Log {
    log_through(open_on(Arc::clone(&device)), device, features)
}

fn log_of(journal: Journal, device: Arc<dyn BlockDevice>) -> Log {
    log_through(journal, device, &Features::from_bits(0, 0, 0))
}

fn log_through(journal: Journal, device: Arc<dyn BlockDevice>, features: &Features) -> Log {
    log_with_budget(journal, device, features, 1 << 20)
}

fn log_with_budget(
    journal: Journal,
    device: Arc<dyn BlockDevice>,
    features: &Features,
    budget_bytes: u64,
) -> Log {
    let budget = Arc::new(MemoryBudget::new(budget_bytes));
    let buffers = Arc::new(BufferCache::new(device, BLOCK, budget));
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    Log::with_journal(buffers, journal, features, clock).unwrap()
}

#[test]
fn committed_transactions_replay_in_every_layout() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        scene.commit(&[(10, 1), (11, 2)]);
        scene.commit(&[(11, 3), (12, 4)]);
        scene.change(&[(13, 5)]);
        let (report, copy) = scene.replayed();
        assert_eq!((report.transactions, report.blocks_replayed), (2, 4));
        assert_eq!(
            Scene::fills(&copy, [10, 11, 12, 13]),
            [1, 3, 4, 0],
            "{layout:?}"
        );
        assert_eq!(
            Scene::fills(&scene.disk, [10, 11, 12, 13]),
            [0; 4],
            "nothing was checkpointed"
        );
    }
}

#[test]
fn block_like_one_of_the_log_is_escaped() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        let mut bytes = filled(7);
        bytes[..4].copy_from_slice(&JBD2_MAGIC.to_be_bytes());
        let mut handle = scene.log.begin(1).unwrap();
        handle.journal_data(BlockNr(10), bytes.clone()).unwrap();
        drop(handle);
        scene.log.commit_all().unwrap();
        // The log's superblock, the descriptor, the commit block.
        let disk = scene.disk.snapshot();
        let is_like_it = |block: &&[u8]| block.starts_with(&JBD2_MAGIC.to_be_bytes());
        assert_eq!(disk.chunks(BLOCK_BYTES).filter(is_like_it).count(), 3);
        let (_, copy) = scene.replayed();
        assert_eq!(copy.snapshot()[10 * BLOCK_BYTES..][..BLOCK_BYTES], bytes);
        scene.log.close().unwrap();
        assert_eq!(
            scene.disk.snapshot()[10 * BLOCK_BYTES..][..BLOCK_BYTES],
            bytes
        );
    }
}

#[test]
fn log_wraps_around_and_every_commit_stays_replayable() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        let mut expected = [0; 40];
        for round in 1..100u8 {
            let count = 1 + u64::from(round % 7);
            let first = u64::from(round) * 5 % 33;
            let blocks: Vec<_> = (first..first + count).map(|at| (10 + at, round)).collect();
            scene.commit(&blocks);
            expected[usize::try_from(first).unwrap()..][..blocks.len()].fill(round);
            let (_, copy) = scene.replayed();
            let found: [u64; 40] = std::array::from_fn(|index| 10 + index as u64);
            assert_eq!(Scene::fills(&copy, found), expected, "round {round}");
        }
        assert!(scene.log.statistics().checkpoints > 3);
        scene.log.close().unwrap();
        let (report, copy) = scene.replayed();
        assert_eq!(report.transactions, 0);
        assert_eq!(first_byte(&copy, 10), expected[0]);
    }
}

#[test]
fn forgotten_block_is_revoked_and_one_that_comes_back_is_not() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        scene.commit(&[(10, 1), (11, 1), (12, 1)]);
        scene.forget(10);
        scene.forget(11);
        scene.change(&[(11, 2)]);
        scene.commit(&[(13, 3)]);
        scene.commit(&[(14, 4)]);
        let (report, copy) = scene.replayed();
        assert_eq!(report.blocks_revoked, 1);
        assert_eq!(Scene::fills(&copy, [10, 11, 12, 13, 14]), [0, 2, 1, 3, 4]);
        scene.commit(&[(10, 9)]);
        let (_, copy) = scene.replayed();
        assert_eq!(
            first_byte(&copy, 10),
            9,
            "logged again after it was revoked"
        );
    }
}

#[test]
fn handle_aborted_while_a_commit_waits_is_not_committed() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1)]);
    let mut handle = scene.log.begin(2).unwrap();
    handle.create(BlockNr(10), &Unverified, filled(2)).unwrap();
    std::thread::scope(|scope| {
        let committing = std::thread::Builder::new()
            .spawn_scoped(scope, || scene.log.commit_all())
            .unwrap();
        while !scene.log.transactions.gate().is_shut() {
            std::thread::yield_now();
        }
        handle.abort(Condition::NoSpace.into());
        drop(handle);
        let error = committing.join().unwrap().unwrap_err();
        assert!(matches!(error, Error::Condition(Condition::NoSpace)));
    });
    let (report, copy) = scene.replayed();
    assert_eq!(report.transactions, 1);
    assert_eq!(first_byte(&copy, 10), 1);
}

#[test]
fn block_forgotten_in_its_own_transaction_is_not_logged() {
    let scene = Scene::new((V3, true));
    scene.change(&[(10, 1), (11, 1)]);
    scene.forget(10);
    scene.log.commit_all().unwrap();
    let (report, copy) = scene.replayed();
    assert_eq!((report.blocks_replayed, report.blocks_revoked), (1, 0));
    assert_eq!(Scene::fills(&copy, [10, 11]), [0, 1]);
    assert_eq!(scene.log.statistics().revokes, 0);
}

#[test]
fn freed_block_is_revoked_without_being_forgotten() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1)]);
    scene.change(&[(11, 1)]);
    scene.free(10);
    scene.free(11);
    scene.log.commit_all().unwrap();
    scene.log.checkpoint_all().unwrap();
    assert_eq!(
        Scene::fills(&scene.disk, [10, 11]),
        [0, 0],
        "freed blocks stay as they are"
    );
    assert_eq!(scene.log.fs_device.buffers.dirty_len(), 0);
}

#[test]
fn freed_block_of_an_older_transaction_is_not_checkpointed() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1), (11, 1)]);
    scene.free(10);
    scene.commit(&[(12, 1)]);
    scene.log.checkpoint_all().unwrap();
    assert_eq!(Scene::fills(&scene.disk, [10, 11, 12]), [0, 1, 1]);
    let (report, _) = scene.replayed();
    assert_eq!(report.transactions, 0, "the log was truncated after both");
}

#[test]
fn checkpoint_takes_the_newest_committed_version() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1)]);
    scene.commit(&[(10, 2)]);
    scene.change(&[(10, 3)]);
    scene.log.checkpoint_all().unwrap();
    assert_eq!(first_byte(&scene.disk, 10), 2);
    assert_eq!(
        scene.log.fs_device.buffers.dirty_len(),
        1,
        "the running version stays dirty"
    );
    scene.log.close().unwrap();
    assert_eq!(first_byte(&scene.disk, 10), 3);
    assert_eq!(scene.log.fs_device.buffers.dirty_len(), 0);
}

#[test]
fn journaled_data_is_read_until_it_is_checkpointed() {
    let scene = Scene::new((V3, true));
    let newer = |scene: &Scene| {
        let newer = scene.log.uncheckpointed_data(BlockNr(0)..BlockNr(512));
        newer
            .into_iter()
            .map(|(block, bytes)| (block, bytes[0]))
            .collect::<Vec<_>>()
    };
    scene.commit(&[(10, 1), (11, 1)]);
    scene.change(&[(11, 2)]);
    assert_eq!(newer(&scene), [(10, 1), (11, 2)]);
    scene.log.checkpoint_all().unwrap();
    assert_eq!(newer(&scene), [(11, 2)]);
    scene.log.commit_all().unwrap();
    scene.log.checkpoint_all().unwrap();
    assert_eq!(newer(&scene), []);
}

#[test]
fn journal_gets_the_features_that_the_filesystem_needs() {
    let mut sample = SampleLog::new(Checksums::Commit, false);
    sample.superblock.start = 0.into();
    let features = Features::from_bits(
        Compat::HAS_JOURNAL.bits(),
        Incompat::BIT64.bits(),
        RoCompat::METADATA_CSUM.bits(),
    );
    let scene = Scene::on(sample.disk(), features);
    scene.commit(&[(10, 1)]);
    let names = open(&scene.disk).state().features;
    let wanted = [
        "journal_incompat_revoke",
        "journal_64bit",
        "journal_checksum_v3",
    ];
    assert_eq!(names, wanted);
    let (_, copy) = scene.replayed();
    assert_eq!(first_byte(&copy, 10), 1);
}

#[test]
fn idle_log_writes_nothing() {
    let scene = Scene::new((V3, true));
    let before = scene.disk.snapshot();
    scene.log.commit_all().unwrap();
    drop(scene.log.begin(3).unwrap());
    scene.log.commit_all().unwrap();
    scene.log.maintain().unwrap();
    scene.log.close().unwrap();
    assert_eq!(scene.log.statistics(), CommitStatistics::default());
    assert!(scene.disk.snapshot() == before);
}

#[test]
fn closed_log_begins_nothing_and_can_be_opened_again() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1)]);
    scene.log.close().unwrap();
    assert!(scene.log.begin(1).is_err());
    assert!(!open(&scene.disk).needs_recovery());
    let again = Scene::on(Arc::clone(&scene.disk), Features::from_bits(0, 0, 0));
    assert_eq!(again.log.running(), scene.log.running());
    again.commit(&[(11, 1)]);
    let (report, copy) = again.replayed();
    assert_eq!(report.transactions, 1);
    assert_eq!(Scene::fills(&copy, [10, 11]), [1, 1]);
}

#[test]
fn commit_takes_two_requests_and_two_flushes() {
    let scene = Scene::new((V3, true));
    scene.commit(&[(10, 1)]);
    let before = scene.log.statistics();
    scene.commit(&[(10, 2), (20, 2), (30, 2)]);
    let after = scene.log.statistics();
    assert_eq!(
        after.writes - before.writes,
        2,
        "a run of the log, and the commit block"
    );
    assert_eq!(after.flushes - before.flushes, 2);
    assert_eq!(after.log_blocks - before.log_blocks, 5);
}

#[test]
fn transaction_numbers_wrap_around() {
    let mut sample = SampleLog::new(V3, true);
    sample.start_at(0, u32::MAX - 20);
    let scene = Scene::on(sample.disk(), Features::from_bits(0, 0, 0));
    for round in 1..60 {
        scene.commit(&[(10, round), (11 + u64::from(round % 3), round)]);
        if round == 30 {
            scene.forget(10);
        }
        let (_, copy) = scene.replayed();
        assert_eq!(first_byte(&copy, 10), round);
    }
    assert!(scene.log.running().is_before(Sequence(60)));
    scene.log.close().unwrap();
    assert_eq!(
        Scene::fills(&scene.disk, [10, 11, 12, 13]),
        [59, 57, 58, 59]
    );
}

#[test]
fn area_of_fast_commits_is_left_alone() {
    let mut sample = SampleLog::new(V3, true);
    sample.superblock.start = 0.into();
    let incompat = sample.superblock.feature_incompat.get() | 0x20;
    sample.superblock.feature_incompat = incompat.into();
    sample.superblock.fast_commit_blocks = 20.into();
    // The log ends before the block that separates it from the area.
    for block in LOG_BLOCKS - 20..LOG_BLOCKS {
        sample.block_mut(block).fill(0xfc);
    }
    let disk = sample.disk();
    let area: Vec<_> = (LOG_BLOCKS - 20..LOG_BLOCKS)
        .map(|block| {
            let (place, _) = open(&disk).map().locate(LogBlock(block)).unwrap();
            place.0
        })
        .collect();
    let scene = Scene::on(disk, Features::from_bits(0, 0, 0));
    for round in 1..100 {
        scene.commit(&[(10, round), (11, round), (12, round)]);
    }
    let (report, copy) = scene.replayed();
    assert!(report.transactions > 0);
    assert_eq!(first_byte(&copy, 12), 99);
    assert!(
        area.iter()
            .all(|&block| first_byte(&scene.disk, block) == 0xfc)
    );
}

#[test]
fn journal_of_version_1_is_upgraded() {
    let mut sample = SampleLog::new(Checksums::None, false);
    sample.superblock.start = 0.into();
    sample.superblock.header.kind = 3.into();
    sample.superblock.feature_incompat = u32::MAX.into();
    let scene = Scene::on(sample.disk(), Features::from_bits(0, 0, 0));
    scene.commit(&[(10, 1)]);
    let journal = open(&scene.disk);
    assert_eq!(journal.superblock().version, 2);
    assert_eq!(journal.state().features, ["journal_incompat_revoke"]);
    let (_, copy) = scene.replayed();
    assert_eq!(first_byte(&copy, 10), 1);
}

#[test]
fn journal_with_transactions_to_replay_is_not_written() {
    let mut sample = SampleLog::new(V3, true);
    sample.log(&[(10, filled(1))]);
    sample.commit();
    let disk = sample.disk();
    let journal = open(&disk);
    let result = journal.into_writable(&Features::from_bits(0, 0, 0));
    assert!(matches!(result, Err(Error::Condition(Condition::Busy))));
}

#[test]
fn only_transaction_fits_into_memory() {
    let disk = Arc::new(MemoryDevice::new("journal", vec![0; 16 << 20]));
    let limit = |len_blocks, budget_bytes| {
        let superblock = DiskJournalSuperblock::new(BLOCK, len_blocks, &Uuid::default());
        disk.write_at(0, superblock.as_bytes()).unwrap();
        let device = || -> Arc<dyn BlockDevice> { Arc::<MemoryDevice>::clone(&disk) };
        let mut map = JournalMapBuilder::new(device(), BLOCK);
        map.push(LogBlock(0), BlockNr(0), len_blocks).unwrap();
        let journal = Journal::open(map.finish()).unwrap();
        let features = Features::from_bits(0, 0, 0);
        let log = log_with_budget(journal, device(), &features, budget_bytes);
        let log = log.for_one_transaction();
        (log.credits_max(), log.only_transaction_limit())
    };
    assert_eq!(limit(4096, 4 << 20), (1024, "memory budget"));
    let (credits_max, limited_by) = limit(4096, 1 << 30);
    assert!((2048..3072).contains(&credits_max));
    assert_eq!(limited_by, "journal");
    assert_eq!(limit(16384, 1 << 30), (8192, "largest transaction"));
}

#[test]
fn old_transactions_are_checkpointed_in_time() {
    let mut sample = SampleLog::new(V3, true);
    sample.superblock.start = 0.into();
    let disk = sample.disk();
    let clock = Arc::new(FixedClock::new(Timestamp::default(), 0));
    let device: Arc<dyn BlockDevice> = Arc::<MemoryDevice>::clone(&disk);
    let budget = Arc::new(MemoryBudget::new(1 << 20));
    let buffers = Arc::new(BufferCache::new(device, BLOCK, budget));
    let features = Features::from_bits(0, 0, 0);
    let shared: Arc<dyn Clock> = Arc::<FixedClock>::clone(&clock);
    let log = Log::with_journal(buffers, open(&disk), &features, shared).unwrap();
    let scene = Scene { disk, log };
    scene.commit(&[(10, 1)]);
    clock.advance(Duration::from_secs(20));
    scene.commit(&[(11, 1)]);
    scene.log.maintain().unwrap();
    assert_eq!(Scene::fills(&scene.disk, [10, 11]), [0, 0]);
    clock.advance(Duration::from_secs(11));
    scene.log.maintain().unwrap();
    assert_eq!(Scene::fills(&scene.disk, [10, 11]), [1, 0]);
    let (report, _) = scene.replayed();
    assert_eq!(
        report.transactions, 1,
        "the log was truncated after the first"
    );
    for round in 0..12 {
        scene.commit(&[(12, round), (13, round)]);
    }
    scene.log.maintain().unwrap();
    let (report, _) = scene.replayed();
    assert!(
        (1..12).contains(&report.transactions),
        "more than half of the log was in use"
    );
}

#[test]
fn nothing_is_written_of_a_log_that_is_left_to_another_host() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        scene.commit(&[(10, 1)]);
        scene.change(&[(11, 2)]);
        let before = scene.disk.snapshot();
        scene.log.leave(&Condition::Busy.into());
        assert!(scene.log.commit_all().is_err());
        assert!(scene.log.checkpoint_all().is_err());
        assert!(scene.disk.snapshot() == before);
    }
}

#[test]
fn why_a_log_failed_is_kept_until_it_is_cleared() {
    for layout in LAYOUTS {
        let scene = Scene::new(layout);
        scene.commit(&[(10, 1)]);
        scene.log.abort(&Condition::NoSpace.into());
        let mut journal = open(&scene.disk);
        assert_eq!(journal.state().errno, -28);
        assert!(journal.needs_recovery());
        journal.clear_errno().unwrap();
        assert_eq!(journal.state().errno, 0);
        assert_eq!(open(&scene.disk).state(), journal.state());
        let (report, _) = scene.replayed();
        assert_eq!(report.transactions, 1, "nothing else has changed");
    }
}

/// A log of two transactions, and what a crash left of a third one: its commit block, where that of
/// the transaction in its place comes to lie.
fn interrupted((checksums, wide): (Checksums, bool)) -> Arc<MemoryDevice> {
    let mut sample = SampleLog::new(checksums, wide);
    for (block, fill) in [(10, 1), (11, 2)] {
        sample.log(&[(block, filled(fill))]);
        sample.commit();
    }
    sample.position += 3;
    sample.commit();
    sample.disk()
}

#[test]
fn log_goes_on_in_place_of_replayed_transactions() {
    for layout in LAYOUTS {
        let device = Arc::new(RecordingDevice::new(interrupted(layout)));
        let through = || -> Arc<dyn BlockDevice> { Arc::<RecordingDevice>::clone(&device) };
        let mut journal = open_on(through());
        let report = replay(&journal, &*device, FILESYSTEM_BLOCKS).unwrap();
        assert_eq!(report.end, Sequence(9));
        journal.set_head(report.head, report.end);
        let log = log_of(journal, through());
        let mut handle = log.begin(2).unwrap();
        for (block, fill) in [(10, 3), (11, 4)] {
            let created = handle.create(BlockNr(block), &Unverified, filled(fill));
            created.unwrap();
        }
        drop(handle);
        log.close().unwrap();
        let mut seen = std::collections::BTreeSet::new();
        for state in device.recording().crash_states(CrashOptions::default()) {
            let device: Arc<dyn BlockDevice> = Arc::new(state.unwrap().device().unwrap());
            let report = replay(&open_on(Arc::clone(&device)), &*device, FILESYSTEM_BLOCKS);
            let end = report.unwrap().end;
            let fills = [10, 11].map(|block| {
                let mut byte = [0];
                let offset = block * u64::from(BLOCK);
                device.read_at(offset, &mut byte).unwrap();
                byte[0]
            });
            let expected = if end == Sequence(9) { [1, 2] } else { [3, 4] };
            assert_eq!(fills, expected, "{layout:?} {end}");
            seen.insert(end.0);
        }
        assert_eq!(seen.into_iter().collect::<Vec<_>>(), [9, 10], "{layout:?}");
    }
}

#[test]
fn failure_before_the_log_goes_on_is_not_recorded_in_it() {
    let disk = interrupted(LAYOUTS[7]);
    let before = disk.snapshot();
    let mut journal = open(&disk);
    let end = replay(&journal, &*disk, FILESYSTEM_BLOCKS).unwrap();
    journal.set_head(end.head, end.end);
    let log = log_of(journal, Arc::<MemoryDevice>::clone(&disk));
    log.begin(1).unwrap().abort(Condition::NoSpace.into());
    assert!(log.failure().is_some());
    let places = open(&disk).map().places();
    let journal = |bytes: &[u8]| -> Vec<u8> {
        let blocks = places.iter().cloned().flatten();
        let starts = blocks.map(|block| usize::try_from(block).unwrap() * BLOCK_BYTES);
        starts
            .flat_map(|start| bytes[start..start + BLOCK_BYTES].to_vec())
            .collect()
    };
    assert!(journal(&before) == journal(&disk.snapshot()));
}
