//! What `fsync` and `sync` guarantee for a mount while a commit is written, and of what is written in place.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::sim::CrashOptions;
use platter_block::{BlockDevice, CountingDevice, Operation};
use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, Inode, Result, SystemClock};

use super::write_tests::{mount_in_place, name, read};
use super::{Btrfs, MountOptions};
use crate::ondisk::Generation;
use crate::txn::tests::crash::{devices_of, record};
use crate::txn::tests::image::Pool;
use crate::txn::tests::unblocked::GatedDevice;

fn mount(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(devices, &MountOptions::default(), budget, clock).unwrap()
}

fn create(fs: &Btrfs, path: &str) -> Arc<dyn Inode> {
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
    file.unwrap()
}

/// What `fsync` of a file came to, which was called while the commit that has the file waited for a flush.
fn fsync_while_committing(fails: bool) -> Result<()> {
    let pool = Pool::make(1, 128, &[]);
    let device = GatedDevice::of(pool.devices().remove(0));
    let below: Arc<dyn BlockDevice> = Arc::<GatedDevice>::clone(&device);
    let fs = mount(&[below]);
    let file = create(&fs, "file");
    file.write_at(0, &[7; 9000]).unwrap();
    let has_begun = AtomicBool::new(false);
    let result = thread::scope(|scope| {
        let shut = device.shut(Operation::Flush);
        let commit = scope.spawn(|| fs.sync());
        shut.wait_for_request();
        let fsync = scope.spawn(|| {
            has_begun.store(true, Ordering::Release);
            file.sync(false)
        });
        while !has_begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        assert!(!fsync.is_finished(), "the file is not durable");
        shut.open(fails);
        assert_eq!(commit.join().unwrap().is_err(), fails);
        fsync.join().unwrap()
    });
    drop(file);
    drop(fs);
    result
}

#[test]
fn fsync_waits_for_the_commit_that_has_the_file() {
    fsync_while_committing(false).unwrap();
    fsync_while_committing(true).unwrap_err();
}

#[test]
fn overwrites_are_flushed_without_a_transaction() {
    let pool = Pool::make(1, 128, &[]);
    let device = Arc::new(CountingDevice::new(pool.devices().remove(0)));
    let below: Arc<dyn BlockDevice> = Arc::<CountingDevice>::clone(&device);
    let fs = mount_in_place(&[below]);
    let file = create(&fs, "file");
    let flushes = |sync: &dyn Fn() -> Result<()>| {
        let before = device.counts().flushes;
        sync().unwrap();
        device.counts().flushes - before
    };
    file.write_at(0, &vec![1; FILE_BYTES]).unwrap();
    fs.sync().unwrap();
    assert_eq!(flushes(&|| fs.sync()), 0);
    file.write_at(4096, &[2; 4096]).unwrap();
    assert_eq!(flushes(&|| fs.sync()), 1);
    assert_eq!(flushes(&|| fs.sync()), 0);
    file.write_at(4096, &[3; 4096]).unwrap();
    assert_eq!(flushes(&|| file.sync(false)), 1);
    drop(file);
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// What was written in place where data has moved to is durable with the transaction that moved it: the last commit
/// looks at the old place.
#[test]
fn fsync_of_an_overwrite_waits_for_data_that_moves() {
    let pool = Pool::make(1, 128, &[]);
    let fs = mount_in_place(&pool.devices());
    let file = create(&fs, "file");
    file.write_at(0, &vec![1; FILE_BYTES]).unwrap();
    fs.sync().unwrap();
    let writing = fs.super_block().writing().unwrap();
    let running = Generation(writing.committed().0 + 1);
    writing.context().reads.begin_move(running);
    file.write_at(4096, &[2; 4096]).unwrap();
    thread::scope(|scope| {
        let fsync = scope.spawn(|| file.sync(false));
        thread::sleep(Duration::from_millis(50));
        assert!(!fsync.is_finished(), "the file is not durable");
        drop(create(&fs, "other"));
        fs.sync().unwrap();
        fsync.join().unwrap().unwrap();
    });
    drop(file);
    fs.unmount().unwrap();
    pool.assert_clean();
}

/// How often the file is written, and how long it is.
const REWRITES: u8 = 40;
const FILE_BYTES: usize = 64 << 10;

#[test]
fn crash_while_a_file_is_rewritten_leaves_what_was_synced() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let (recorder, recorded) = record(&pool);
    let fs = mount(&recorded);
    let file = create(&fs, "file");
    file.write_at(0, &vec![0; FILE_BYTES]).unwrap();
    fs.sync().unwrap();
    let mut durable = vec![(recorder.mark(), 0)];
    let first_position = durable[0].0;
    let commits = AtomicU64::new(0);
    thread::scope(|scope| {
        let rewriting = scope.spawn(|| {
            let mut durable = Vec::new();
            for number in 1..=REWRITES {
                file.write_at(0, &vec![number; FILE_BYTES]).unwrap();
                file.sync(false).unwrap();
                durable.push((recorder.mark(), number));
            }
            durable
        });
        while !rewriting.is_finished() {
            // So that there is something to commit.
            drop(create(
                &fs,
                &format!("other{}", commits.fetch_add(1, Ordering::AcqRel)),
            ));
            fs.sync().unwrap();
        }
        durable.extend(rewriting.join().unwrap());
    });
    drop(file);
    drop(fs);
    let options = CrashOptions {
        first_position,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let recording = recorder.recording();
    let count = recording.crash_states(options).count();
    for state in recording.crash_states(options).step_by(count / 300 + 1) {
        let state = state.unwrap();
        let fs = mount(&devices_of(&state));
        let file = fs.root().unwrap().lookup(name("file")).unwrap();
        let found = read(&*file);
        let synced = durable.iter().filter(|(at, _)| *at <= state.position);
        let synced = synced.map(|(_, number)| *number).max().unwrap_or(0);
        assert_eq!(found.len(), FILE_BYTES);
        assert!(found.iter().all(|byte| *byte == found[0]) && found[0] >= synced);
    }
    assert!(count > 100, "{count} states");
}
