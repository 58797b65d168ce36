//! What `fsync` costs at a mount, and what becomes of its logs: threads share them, commits drop them, failures are
//! made up for or reported.

use std::ops::ControlFlow;
use std::sync::Arc;

use platter_block::sim::{Effect, Fault, FaultDevice, When};
use platter_block::{BlockDevice, CountingDevice, Operation};
use platter_cache::MemoryBudget;
use platter_vfs::inode::DirEntry;
use platter_vfs::{Context, CreateKind, DirCursor, Filesystem, Inode, Name, SetAttr, SystemClock};

use super::write_tests::{colliding, name, read};
use super::{Btrfs, MountOptions};
use crate::log::write::Target;
use crate::ondisk::TreeId;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ops::sync;
use crate::txn::tests::image::Pool;
use crate::txn::{WriteContext, WriteOptions, log_trees};

struct Mounted {
    fs: Btrfs,
    device: Arc<CountingDevice>,
    faults: Arc<FaultDevice>,
}

impl Mounted {
    fn new(pool: &Pool) -> Self {
        let faults = Arc::new(FaultDevice::new(pool.devices().remove(0)));
        let below: Arc<dyn BlockDevice> = Arc::clone(&faults) as _;
        let device = Arc::new(CountingDevice::new(below));
        let devices = [Arc::clone(&device) as Arc<dyn BlockDevice>];
        let budget = Arc::new(MemoryBudget::new(16 << 20));
        let clock = Arc::new(SystemClock::new());
        let options = MountOptions::default();
        let fs = Btrfs::mount_writable(&devices, &options, budget, clock).unwrap();
        Self { fs, device, faults }
    }

    fn create(&self, path: &str) -> Arc<dyn Inode> {
        let root = self.fs.root().unwrap();
        let file = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
        file.unwrap()
    }

    fn writing(&self) -> &WriteContext {
        self.fs.super_block().writing().unwrap()
    }

    /// What `count` calls of `fsync` ask of the device: writes and flushes.
    fn asked(&self, call: impl FnOnce()) -> (u64, u64) {
        let before = self.device.counts();
        call();
        let counts = self.device.counts();
        (
            counts.writes - before.writes,
            counts.flushes - before.flushes,
        )
    }
}

fn pool() -> Pool {
    Pool::make(1, 128, &["-m", "single"])
}

#[test]
fn fsync_without_a_change_asks_nothing_of_the_device() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let file = mounted.create("file");
    file.write_at(0, &[1; 5000]).unwrap();
    let (writes, flushes) = mounted.asked(|| file.sync(false).unwrap());
    assert!(writes <= 4, "{writes}");
    assert_eq!(flushes, 2);
    assert_eq!(log_trees::logs_written(mounted.writing()), 1);
    assert_eq!(mounted.asked(|| file.sync(false).unwrap()), (0, 0));
    assert_eq!(mounted.asked(|| file.sync(true).unwrap()), (0, 0));
    mounted.fs.sync().unwrap();
    assert_eq!(mounted.asked(|| file.sync(false).unwrap()), (0, 0));
    drop(file);
    mounted.fs.unmount().unwrap();
}

#[test]
fn commit_drops_the_log_and_frees_its_blocks() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    mounted.fs.sync().unwrap();
    let metadata = BlockGroupFlags::METADATA;
    let groups = mounted.writing().groups();
    let reserved = groups.space(metadata).reserved;
    for number in 0..20u8 {
        let file = mounted.create(&format!("file{number}"));
        file.write_at(0, &[number; 9000]).unwrap();
        file.sync(false).unwrap();
    }
    assert_eq!(log_trees::logs_written(mounted.writing()), 20);
    let blocks = (groups.space(metadata).reserved - reserved) / 16384;
    assert!(
        blocks < 60,
        "replaced blocks of logs are used again: {blocks}"
    );
    mounted.fs.sync().unwrap();
    assert_eq!(groups.space(metadata).reserved, reserved);
    mounted.fs.unmount().unwrap();
    pool.assert_clean();
}

#[test]
fn threads_share_logs() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let files: Vec<_> = (0..4)
        .map(|it| mounted.create(&format!("file{it}")))
        .collect();
    mounted.fs.sync().unwrap();
    std::thread::scope(|scope| {
        for file in &files {
            scope.spawn(move || {
                for call in 0..50u64 {
                    file.write_at(call * 4096, &[7; 4096]).unwrap();
                    file.sync(false).unwrap();
                }
            });
        }
    });
    let logs = log_trees::logs_written(mounted.writing());
    println!("200 calls by four threads: {logs} logs");
    assert!((50..=200).contains(&logs), "{logs}");
    // What was logged is there after a crash.
    sync::end_writes(mounted.fs.super_block());
    drop(files);
    drop(mounted);
    let again = Mounted::new(&pool);
    let root = again.fs.root().unwrap();
    for number in 0..4 {
        let file = root.lookup(name(&format!("file{number}"))).unwrap();
        assert!(read(&*file) == vec![7; 50 * 4096]);
    }
    drop(root);
    again.fs.unmount().unwrap();
    pool.assert_clean();
}

#[test]
fn failed_write_of_a_log_is_made_up_for_by_a_commit() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let file = mounted.create("file");
    mounted.fs.sync().unwrap();
    // Contents, then blocks of the log.
    file.write_at(0, &[1; 5000]).unwrap();
    mounted.faults.arm(Fault {
        operation: Operation::Write,
        when: When::Nth(2),
        effect: Effect::Tear { seed: 0 },
    });
    file.sync(false).unwrap();
    assert_eq!(log_trees::logs_written(mounted.writing()), 0);
    let superblock = mounted.writing().superblock();
    assert_eq!(superblock.log_root, None);
    file.write_at(5000, &[2; 10]).unwrap();
    file.sync(false).unwrap();
    assert_eq!(log_trees::logs_written(mounted.writing()), 1);
    drop(file);
    mounted.fs.unmount().unwrap();
    pool.assert_clean();
}

#[test]
fn what_the_last_commit_does_not_know_is_committed() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let file = mounted.create("file");
    let writing = mounted.writing();
    let notes = crate::log::write::LogNotes::default();
    let handle = writing.begin(4).unwrap();
    let target = |inode| Target {
        inode,
        lost_extents: false,
    };
    let log = |inode| {
        let tree = TreeId::FS;
        crate::log::write::log_inode(writing, &handle, &notes, tree, target(inode)).unwrap()
    };
    assert!(log(file.id().number).is_some());
    // There is no such inode; and nothing is logged from then on.
    assert_eq!(log(999), None);
    assert_eq!(log(file.id().number), None);
    assert!(!log_trees::sync(&handle, 1));
    drop(handle);
    let committed = writing.committed();
    file.sync(false).unwrap();
    assert!(writing.committed() > committed);
    drop(file);
    mounted.fs.unmount().unwrap();
    pool.assert_clean();
}

#[test]
fn contents_written_in_place_are_flushed() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let file = mounted.create("file");
    let flags = SetAttr {
        flags: Some(0x80_0000),
        ..SetAttr::default()
    };
    file.set_attr(&Context::root(), &flags).unwrap();
    file.write_at(0, &[1; 8192]).unwrap();
    mounted.fs.sync().unwrap();
    for call in 0..20 {
        let committed = mounted.writing().committed();
        let (_, flushes) = mounted.asked(|| {
            file.write_at(0, &[call; 4096]).unwrap();
            file.sync(true).unwrap();
        });
        assert!(flushes > 0, "call {call}, {committed:?}");
    }
    drop(file);
    mounted.fs.unmount().unwrap();
    pool.assert_clean();
}

#[test]
fn log_that_one_of_two_devices_knows_is_replayed() {
    const SUPERBLOCK: u64 = 64 << 10;
    let pool = Pool::make(2, 160, &["-m", "raid1", "-d", "raid1"]);
    let budget = || Arc::new(MemoryBudget::new(16 << 20));
    let clock = || Arc::new(SystemClock::new());
    let options = MountOptions::default();
    let devices = pool.devices();
    let fs = Btrfs::mount_writable(&devices, &options, budget(), clock()).unwrap();
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    fs.sync().unwrap();
    let mut before = [0; 4096];
    devices[1].read_at(SUPERBLOCK, &mut before).unwrap();
    file.write_at(0, &[5; 6000]).unwrap();
    file.sync(false).unwrap();
    sync::end_writes(fs.super_block());
    drop((file, root, fs));
    devices[1].write_at(SUPERBLOCK, &before).unwrap();
    drop(devices);
    // Whichever device is named first.
    let mut devices = pool.devices();
    devices.reverse();
    let fs = Btrfs::mount_writable(&devices, &options, budget(), clock()).unwrap();
    let file = fs.root().unwrap().lookup(name("file")).unwrap();
    assert!(read(&*file) == [5; 6000]);
    drop(file);
    fs.unmount().unwrap();
    drop(devices);
    pool.assert_clean();
}

/// Linux inserts the entries of a log before it removes others.
#[test]
fn index_of_a_removed_name_is_free_after_the_commit() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let root = mounted.fs.root().unwrap();
    let last = || {
        let mut last = DirCursor::START;
        let mut sink = |entry: DirEntry<'_>| {
            last = entry.next;
            ControlFlow::Continue(())
        };
        root.read_dir(DirCursor::START, &mut sink).unwrap();
        last
    };
    let unlink = |path: &str| root.unlink(&Context::root(), name(path)).unwrap();
    mounted.create("one");
    mounted.create("two");
    mounted.fs.sync().unwrap();
    let two = last();
    unlink("two");
    mounted.create("three");
    assert_eq!(last().0, two.0 + 1);
    mounted.fs.sync().unwrap();
    unlink("three");
    mounted.fs.sync().unwrap();
    mounted.create("four");
    assert_eq!(last(), two);
}

#[test]
fn names_beyond_a_full_item_are_replayed() {
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let file = mounted.create("file");
    let root = mounted.fs.root().unwrap();
    let long = |number: u32| format!("{number:0250}");
    let link = |number| root.link(&Context::root(), name(&long(number)), file.id());
    // One of the extended references is in the last commit, the other only in the log.
    for number in 0..63 {
        link(number).unwrap();
    }
    mounted.fs.sync().unwrap();
    link(63).unwrap();
    file.sync(false).unwrap();
    assert_eq!(log_trees::logs_written(mounted.writing()), 1);
    sync::end_writes(mounted.fs.super_block());
    drop((file, root, mounted));
    let again = Mounted::new(&pool);
    let root = again.fs.root().unwrap();
    let file = root.lookup(name(&long(63))).unwrap();
    assert_eq!(file.attr().unwrap().links, 65);
    for number in 0..64 {
        root.unlink(&Context::root(), name(&long(number))).unwrap();
    }
    assert_eq!(file.attr().unwrap().links, 1);
    drop((file, root));
    again.fs.unmount().unwrap();
    pool.assert_clean();
}

/// Logs of subvolumes that share extents have checksums of the same sectors.
#[test]
fn checksums_that_two_logs_have_are_replayed_once() {
    for shared in [0..4096, 4096..8192] {
        let pool = pool();
        let mounted = Mounted::new(&pool);
        let (context, root) = (Context::root(), mounted.fs.root().unwrap());
        let subvolumes = mounted.fs.subvolumes().unwrap();
        let sub = subvolumes.create(&context, root.id(), name("sub")).unwrap();
        let file = mounted.create("file");
        let copy = sub.create(&context, name("copy"), CreateKind::Regular, 0o644);
        let copy = copy.unwrap();
        mounted.fs.sync().unwrap();
        let contents = [[1; 4096], [2; 4096]].concat();
        file.write_at(0, &contents).unwrap();
        file.sync(false).unwrap();
        copy.clone_range(&*file, shared.clone(), 0).unwrap();
        copy.sync(false).unwrap();
        assert_eq!(log_trees::logs_written(mounted.writing()), 2);
        sync::end_writes(mounted.fs.super_block());
        drop((file, copy, sub, root, mounted));
        let again = Mounted::new(&pool);
        let root = again.fs.root().unwrap();
        let file = root.lookup(name("file")).unwrap();
        let copy = root.lookup(name("sub")).unwrap().lookup(name("copy"));
        assert!(read(&*file) == contents, "{shared:?}");
        let sector = if shared.start == 0 {
            [1; 4096]
        } else {
            [2; 4096]
        };
        assert!(read(&*copy.unwrap()) == sector, "{shared:?}");
        drop((file, root));
        again.fs.unmount().unwrap();
        drop(again);
        pool.assert_clean();
        let expected = [&contents[..], &sector].concat();
        assert!(read_by_kernel(&pool, "file sub/copy").as_bytes() == expected);
    }
}

/// What the kernel reads of files of the root directory.
fn read_by_kernel(pool: &Pool, files: &str) -> String {
    pool.run(&format!(
        "mount -t btrfs -o \"ro,$options\" \"$device\" \"$root\"\ncd \"$root\"\ncat {files}\ncd /\n"
    ))
}

#[test]
fn names_of_one_hash_are_not_replayed_beyond_an_item() {
    const COUNT: u8 = 58;
    let pool = pool();
    let mounted = Mounted::new(&pool);
    let (context, root) = (Context::root(), mounted.fs.root().unwrap());
    let create = |number| {
        let (name, kind) = (colliding(number), CreateKind::Regular);
        root.create(&context, Name::new(&name).unwrap(), kind, 0o644)
    };
    for number in 0..COUNT {
        create(number).unwrap();
    }
    assert!(create(COUNT).is_err());
    mounted.fs.sync().unwrap();
    let first = colliding(0);
    root.unlink(&context, Name::new(&first).unwrap()).unwrap();
    let file = create(COUNT).unwrap();
    file.sync(false).unwrap();
    sync::end_writes(mounted.fs.super_block());
    drop((file, root, mounted));
    let again = Mounted::new(&pool);
    let root = again.fs.root().unwrap();
    let last = colliding(COUNT);
    root.lookup(Name::new(&last).unwrap()).unwrap();
    drop(root);
    again.fs.unmount().unwrap();
    pool.assert_clean();
}

fn mount_with(pool: &Pool, transactions: WriteOptions) -> Btrfs {
    let options = MountOptions {
        transactions,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap()
}

fn committed(fs: &Btrfs) -> u64 {
    fs.super_block().writing().unwrap().committed().0
}

/// Creates a file that is in a log alone. Returns the last transaction that is durable.
fn crash_with_a_log(fs: &Btrfs) -> u64 {
    fs.sync().unwrap();
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    file.unwrap().sync(false).unwrap();
    let writing = fs.super_block().writing().unwrap();
    assert_eq!(log_trees::logs_written(writing), 1);
    sync::end_writes(fs.super_block());
    committed(fs)
}

/// A commit before the one of the replay would drop the log.
fn assert_replayed_at_once(pool: &Pool, transactions: WriteOptions, before: u64) {
    let fs = mount_with(pool, transactions);
    assert_eq!(committed(&fs), before + 1);
    fs.root().unwrap().lookup(name("file")).unwrap();
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
    assert_eq!(read_by_kernel(pool, "file"), "");
}

#[test]
fn log_of_a_full_filesystem_is_replayed() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    // With small chunks not much more of metadata is free than is reserved.
    let small = WriteOptions {
        chunk_parts: 100,
        ..WriteOptions::default()
    };
    let fs = mount_with(&pool, small);
    let root = fs.root().unwrap();
    let large = root.create(&Context::root(), name("large"), CreateKind::Regular, 0o644);
    let (large, piece) = (large.unwrap(), vec![1; 1 << 20]);
    let mut end = 0;
    while large.write_at(end, &piece).is_ok() {
        end += 1 << 20;
    }
    drop((large, root));
    let before = crash_with_a_log(&fs);
    drop(fs);
    assert_replayed_at_once(&pool, WriteOptions::default(), before);
}

#[test]
fn log_is_replayed_in_one_transaction() {
    let pool = pool();
    let before = crash_with_a_log(&mount_with(&pool, WriteOptions::default()));
    let short = WriteOptions {
        blocks_max: 16,
        ..WriteOptions::default()
    };
    assert_replayed_at_once(&pool, short, before);
}
