//! Chunks that are moved, devices that come and go, and scrubs, while threads write files: the files are right at all
//! times, and the checker with data checksums finds nothing.

use std::collections::BTreeMap;
use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread;
use std::time::Duration;

use platter_block::sim::{CrashOptions, Effect, Fault, FaultDevice, When};
use platter_block::{Access, BlockDevice, FileDevice, OpenOptions, Operation};
use platter_cache::MemoryBudget;
use platter_vfs::devices::{Balance, Moved, NewLength};
use platter_vfs::{
    CheckProgress, CheckSink, Condition, Context, CreateKind, Devices, Error, FallocateMode,
    Filesystem, Finding, Inode, SetAttr, SystemClock, Tune,
};

use super::write_tests::{name, read};
use super::{Btrfs, MountOptions};
use crate::ondisk::TreeId;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::superblock::SUPERBLOCK_OFFSETS;
use crate::txn::log_trees;
use crate::txn::tests::Random;
use crate::txn::tests::concurrent::wait_until;
use crate::txn::tests::crash::{devices_of, record, store};
use crate::txn::tests::image::{CHECK_DATA, Pool};
use crate::txn::tests::locations::{copies, first_data, make_first_copies_older};
use crate::txn::tests::unblocked::GatedDevice;

type Model = BTreeMap<String, Vec<u8>>;

/// `FS_NOCOW_FL`.
const NOCOW: u32 = 0x0080_0000;
/// Threads that write, each in a directory of its own.
const WRITERS: u64 = 3;
/// The files of each.
const FILES: u64 = 10;

pub(super) fn mount_on(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(devices, &MountOptions::default(), budget, clock).unwrap()
}

pub(super) fn mount(pool: &Pool) -> Btrfs {
    mount_on(&pool.devices())
}

pub(super) fn devices(fs: &Btrfs) -> &dyn Devices {
    fs.devices().unwrap()
}

pub(super) fn to_the_end(_: u64, _: u64) -> ControlFlow<()> {
    ControlFlow::Continue(())
}

pub(super) fn everything() -> Balance {
    Balance {
        data: Some(String::new()),
        metadata: Some(String::new()),
        system: None,
        is_forced: false,
    }
}

fn to_profiles(data: &str, metadata: &str) -> Balance {
    Balance {
        data: Some(format!("convert={data},soft")),
        metadata: Some(format!("convert={metadata},soft")),
        system: None,
        is_forced: true,
    }
}

/// One change of a random file, and a look at another one.
fn change(dir: &dyn Inode, model: &mut Model, random: &mut Random) {
    let path = format!("file{}", random.below(FILES));
    if random.below(8) == 0 && model.remove(&path).is_some() {
        dir.unlink(&Context::root(), name(&path)).unwrap();
    } else {
        let file = if model.contains_key(&path) {
            dir.lookup(name(&path)).unwrap()
        } else {
            let file = dir.create(&Context::root(), name(&path), CreateKind::Regular, 0o644);
            let file = file.unwrap();
            if random.below(3) == 0 {
                let changes = SetAttr {
                    flags: Some(NOCOW),
                    ..SetAttr::default()
                };
                file.set_attr(&Context::root(), &changes).unwrap();
            }
            file
        };
        let known = model.entry(path).or_default();
        let (at, len) = (random.below(200_000), random.below(150_000) + 1);
        let start = usize::try_from(at).unwrap();
        if random.below(6) == 0 {
            file.fallocate(at..at + len, FallocateMode::Allocate { keep_size: false })
                .unwrap();
            let end = start + usize::try_from(len).unwrap();
            known.resize(known.len().max(end), 0);
        }
        let bytes = random.bytes(len);
        file.write_at(at, &bytes).unwrap();
        known.resize(known.len().max(start + bytes.len()), 0);
        known[start..start + bytes.len()].copy_from_slice(&bytes);
        if random.below(4) == 0 {
            file.sync(false).unwrap();
        }
    }
    let looked_at = format!("file{}", random.below(FILES));
    if let Some(known) = model.get(&looked_at) {
        let file = dir.lookup(name(&looked_at)).unwrap();
        assert!(read(&*file) == *known, "{looked_at}");
    }
}

/// Runs a command while threads write. Returns what they wrote, by their directories.
pub(super) fn with_load<R>(fs: &Btrfs, seed: u64, command: impl FnOnce() -> R) -> (Vec<Model>, R) {
    let stop = AtomicBool::new(false);
    let changes = AtomicU64::new(0);
    let root = fs.root().unwrap();
    let result = thread::scope(|scope| {
        let writers: Vec<_> = (0..WRITERS)
            .map(|writer| {
                let (stop, root, changes) = (&stop, &root, &changes);
                scope.spawn(move || {
                    let path = format!("dir{seed}-{writer}");
                    let dir =
                        root.create(&Context::root(), name(&path), CreateKind::Directory, 0o755);
                    let dir = dir.unwrap();
                    let mut model = Model::new();
                    let mut random = Random(seed * 100 + writer);
                    while !stop.load(Ordering::Relaxed) {
                        change(&*dir, &mut model, &mut random);
                        changes.fetch_add(1, Ordering::Relaxed);
                    }
                    model
                })
            })
            .collect();
        while changes.load(Ordering::Relaxed) < 60
            && !writers.iter().any(thread::ScopedJoinHandle::is_finished)
        {
            thread::yield_now();
        }
        let before = changes.load(Ordering::Relaxed);
        let done = command();
        let meanwhile = changes.load(Ordering::Relaxed) - before;
        stop.store(true, Ordering::Relaxed);
        let models = writers.into_iter().map(|it| it.join().unwrap()).collect();
        println!("{meanwhile} changes meanwhile");
        (models, done)
    });
    drop(root);
    result
}

pub(super) fn assert_reads(fs: &Btrfs, seed: u64, models: &[Model]) {
    let root = fs.root().unwrap();
    for (writer, model) in models.iter().enumerate() {
        let dir = root.lookup(name(&format!("dir{seed}-{writer}"))).unwrap();
        for (path, known) in model {
            let file = dir.lookup(name(path)).unwrap();
            assert!(read(&*file) == *known, "{writer}: {path}");
        }
    }
}

/// The kernel reads every copy of everything, and goes on.
const KERNEL_GOES_ON: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs scrub start -B -R -r "$root"
echo more > "$root"/more
rm "$root"/more
"#;

pub(super) fn assert_whole(pool: &Pool) {
    let checked = pool.run(CHECK_DATA);
    let is_clean = checked.contains("no error found") && !checked.contains("ERROR");
    assert!(is_clean, "{checked}");
    let scrubbed = pool.run(KERNEL_GOES_ON);
    for line in scrubbed.lines().filter(|line| line.contains("errors")) {
        assert!(line.ends_with(": 0"), "{scrubbed}");
    }
}

/// The profiles of all chunks, of data and of others.
fn profiles(fs: &Btrfs) -> (Vec<Profile>, Vec<Profile>) {
    let map = fs.super_block().context().blocks.store().map();
    let mut found = (Vec::new(), Vec::new());
    for chunk in map.iter() {
        if chunk.flags.contains(BlockGroupFlags::DATA) {
            found.0.push(chunk.profile);
        } else {
            found.1.push(chunk.profile);
        }
    }
    found.0.dedup();
    found.1.dedup();
    found
}

/// Chunks, and the space of data and metadata, for messages.
fn space(fs: &Btrfs) -> impl std::fmt::Debug {
    let map = fs.super_block().context().blocks.store().map();
    let chunks = map.iter();
    let chunks = chunks.map(|chunk| (chunk.profile, chunk.len_bytes >> 20, chunk.stripes.clone()));
    let groups = fs.super_block().writing().unwrap().groups();
    let kinds = [BlockGroupFlags::DATA, BlockGroupFlags::METADATA];
    (
        chunks.collect::<Vec<_>>(),
        kinds.map(|kind| groups.space(kind)),
    )
}

#[test]
fn chunks_are_moved_while_files_are_written() {
    let pool = Pool::make(2, 600, &["-d", "single", "-m", "dup"]);
    let fs = mount(&pool);
    let (models, moved) = with_load(&fs, 1, || {
        let once = devices(&fs).balance(&everything(), &mut to_the_end);
        let again = devices(&fs).balance(&everything(), &mut to_the_end);
        (once.unwrap(), again.unwrap())
    });
    assert!(moved.0.moved >= 3 && moved.1.moved >= 3, "{moved:?}");
    assert_reads(&fs, 1, &models);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
    let fs = mount(&pool);
    assert_reads(&fs, 1, &models);
    fs.unmount().unwrap();
}

/// What is in chunks that are used in part goes to others, while files are written and snapshots made of them.
#[test]
fn chunks_are_emptied_while_files_are_written() {
    let pool = Pool::make(1, 400, &["-d", "single", "-m", "single"]);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let contents = Random(5).bytes(1 << 20);
    let names: Vec<_> = (0..140).map(|number| format!("large{number}")).collect();
    for path in &names {
        let file = root.create(&Context::root(), name(path), CreateKind::Regular, 0o644);
        file.unwrap().write_at(0, &contents).unwrap();
    }
    fs.sync().unwrap();
    let (kept, removed): (Vec<_>, Vec<_>) =
        (0..).zip(&names).partition(|(number, _)| number % 4 == 0);
    for (_, path) in removed {
        root.unlink(&Context::root(), name(path)).unwrap();
    }
    fs.sync().unwrap();
    let before = data_chunks(&fs);
    let words = Balance {
        data: Some("usage=80".to_owned()),
        metadata: Some("usage=80".to_owned()),
        ..Balance::default()
    };
    let (models, moved) = with_load(&fs, 1, || {
        thread::scope(|scope| {
            let making = scope.spawn(|| {
                for number in 0..6 {
                    let path = format!("snap{number}");
                    let subvolumes = fs.subvolumes().unwrap();
                    let made = subvolumes.snapshot(
                        &Context::root(),
                        TreeId::FS.0,
                        root.id(),
                        name(&path),
                        number % 2 == 0,
                    );
                    made.unwrap();
                    for (_, path) in &kept {
                        let file = root.lookup(name(path)).unwrap();
                        assert!(read(&*file) == contents, "{path}");
                    }
                }
            });
            let moved = devices(&fs).balance(&words, &mut to_the_end).unwrap();
            making.join().unwrap();
            moved
        })
    });
    assert!(moved.removed > 1, "{moved:?}");
    assert!(data_chunks(&fs) < before, "{before}, {}", data_chunks(&fs));
    let assert_kept = |root: &dyn Inode| {
        for (_, path) in &kept {
            let file = root.lookup(name(path)).unwrap();
            assert!(read(&*file) == contents, "{path}");
        }
    };
    assert_kept(&*root);
    assert_reads(&fs, 1, &models);
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    assert_kept(&*root);
    for number in 0..6 {
        assert_kept(&*root.lookup(name(&format!("snap{number}"))).unwrap());
    }
    assert_reads(&fs, 1, &models);
    drop(root);
    fs.unmount().unwrap();
}

/// How many chunks have data.
fn data_chunks(fs: &Btrfs) -> usize {
    let map = fs.super_block().context().blocks.store().map();
    let chunks = map.iter();
    chunks
        .filter(|it| it.flags.contains(BlockGroupFlags::DATA))
        .count()
}

#[test]
fn older_copies_of_tree_blocks_are_not_moved() {
    let pool = Pool::make(2, 300, &["-d", "single", "-m", "raid1"]);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let names = || (0..2000).map(|number| format!("file-{number}"));
    for file in names() {
        let made = root.create(&Context::root(), name(&file), CreateKind::Regular, 0o644);
        made.unwrap().write_at(0, file.as_bytes()).unwrap();
    }
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    assert!(make_first_copies_older(&pool, TreeId::FS, |_| ()) > 20);
    let fs = mount(&pool);
    let moved = devices(&fs)
        .balance(&everything(), &mut to_the_end)
        .unwrap();
    assert!(moved.moved >= 2, "{moved:?}");
    let root = fs.root().unwrap();
    for file in names() {
        assert_eq!(read(&*root.lookup(name(&file)).unwrap()), file.as_bytes());
    }
    drop(root);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

#[test]
fn profiles_are_converted_while_files_are_written() {
    use Profile::{Dup, Raid1, Raid1C3, Raid5, Raid10, Single};
    let pool = Pool::make(4, 1500, &["-d", "single", "-m", "raid1"]);
    let steps = [
        ("raid5", "raid1c3", Raid5, Raid1C3),
        ("raid10", "raid10", Raid10, Raid10),
        ("raid1", "raid1", Raid1, Raid1),
        ("single", "dup", Single, Dup),
    ];
    for (seed, (data, metadata, data_is, metadata_is)) in (1..).zip(steps) {
        let fs = mount(&pool);
        let (models, moved) = with_load(&fs, seed, || {
            devices(&fs).balance(&to_profiles(data, metadata), &mut to_the_end)
        });
        moved.unwrap_or_else(|error| panic!("{data}, {metadata}: {error}: {:?}", space(&fs)));
        assert_eq!(profiles(&fs), (vec![data_is], vec![metadata_is]));
        assert_reads(&fs, seed, &models);
        fs.unmount().unwrap();
        drop(fs);
        assert_whole(&pool);
        let fs = mount(&pool);
        assert_reads(&fs, seed, &models);
        fs.unmount().unwrap();
    }
}

#[test]
fn full_filesystem_is_balanced_or_refused() {
    let pool = Pool::make(1, 200, &["-d", "single", "-m", "single"]);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let mut len_bytes = 0u64;
    while file.write_at(len_bytes, &vec![7; 1 << 20]).is_ok() {
        len_bytes += 1 << 20;
    }
    drop(file.sync(false));
    let balanced = devices(&fs).balance(&everything(), &mut to_the_end);
    match balanced {
        Ok(_) | Err(Error::Condition(Condition::NoSpace)) => {}
        Err(error) => panic!("{error}"),
    }
    assert!(!fs.is_read_only());
    // It is scrubbed all the same.
    let scrubbed = devices(&fs).scrub(true, &mut Ignore).unwrap();
    assert_eq!(scrubbed.errors, 0, "{scrubbed:?}");
    root.unlink(&Context::root(), name("file")).unwrap();
    drop((root, file));
    fs.sync().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

pub(super) struct Ignore;

impl CheckSink for Ignore {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }
}

#[test]
fn bad_copies_are_rewritten_while_files_are_written() {
    let pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    let fs = mount(&pool);
    // What is bad is of a file that no thread changes.
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    let contents = Random(9).bytes(4 << 20);
    file.write_at(0, &contents).unwrap();
    fs.sync().unwrap();
    let context = fs.super_block().context();
    let (index, place) = copies(context, first_data(context))[1];
    let image = &pool.images()[index];
    let raw = File::options().write(true).open(image).unwrap();
    raw.write_all_at(&vec![0xa5; 20 << 10], place).unwrap();
    // The third copy of a superblock does not fit; the second is at 64 MiB.
    raw.write_all_at(&[0xa5; 512], 64 << 20).unwrap();
    let (models, scrubs) = with_load(&fs, 1, || {
        let scrub = || devices(&fs).scrub(true, &mut Ignore).unwrap();
        (scrub(), scrub(), scrub())
    });
    // A commit of the writers may come before the superblock is looked at.
    assert!(matches!(scrubs.0.errors, 5 | 6), "{scrubs:?}");
    assert_eq!(scrubs.0.uncorrectable, 0, "{scrubs:?}");
    assert_eq!((scrubs.1.errors, scrubs.2.errors), (0, 0), "{scrubs:?}");
    assert!(read(&*file) == contents);
    assert_reads(&fs, 1, &models);
    drop((root, file));
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

#[test]
fn scrub_of_a_mount_goes_on_where_a_copy_is_not_rewritten() {
    let pool = Pool::make(2, 300, &["-d", "raid1", "-m", "raid1"]);
    let mut below = pool.devices();
    let faulty = Arc::new(FaultDevice::new(below.remove(1)));
    below.push(Arc::<FaultDevice>::clone(&faulty));
    let fs = mount_on(&below);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    file.unwrap()
        .write_at(0, &Random(4).bytes(1 << 20))
        .unwrap();
    drop(root);
    fs.sync().unwrap();
    let context = fs.super_block().context();
    let mut copies = copies(context, first_data(context)).into_iter();
    let (_, place) = copies.find(|(index, _)| *index == 1).unwrap();
    let raw = File::options().write(true).open(&pool.images()[1]).unwrap();
    raw.write_all_at(&vec![0xa5; 20 << 10], place).unwrap();
    faulty.arm(Fault {
        operation: Operation::Write,
        when: When::Touching(place + 8192..place + 12288),
        effect: Effect::Tear { seed: 0 },
    });
    let scrubbed = devices(&fs).scrub(true, &mut Ignore).unwrap();
    assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (5, 1));
    assert!(!fs.is_read_only());
    faulty.disarm();
    let again = devices(&fs).scrub(true, &mut Ignore).unwrap();
    assert_eq!((again.errors, again.uncorrectable), (1, 0));
    fs.unmount().unwrap();
    drop((fs, below, faulty));
    assert_whole(&pool);
}

pub(super) fn open(image: &std::path::Path) -> Arc<dyn BlockDevice> {
    let options = OpenOptions {
        access: Access::Write,
        direct: false,
    };
    Arc::new(FileDevice::open(image, options).unwrap())
}

#[test]
fn devices_come_and_go_while_files_are_written() {
    for (data, metadata) in [("raid1", "raid1"), ("single", "dup"), ("raid5", "raid1c3")] {
        let mut pool = Pool::make(3, 400, &["-d", data, "-m", metadata]);
        let image = pool.images()[0].with_extension("added");
        File::create(&image).unwrap().set_len(500 << 20).unwrap();
        let fs = mount(&pool);
        let map = fs.super_block().context().blocks.store().map();
        let number = map.iter().next().unwrap().stripes[0].device.0;
        drop(map);
        let (models, moved) = with_load(&fs, 1, || {
            assert_eq!(devices(&fs).add_device(&open(&image)).unwrap(), 4);
            let moved = devices(&fs).remove_device(number, &mut to_the_end);
            let missing = devices(&fs).remove_device(number, &mut to_the_end);
            assert!(missing.is_err());
            moved.unwrap()
        });
        assert!(moved.moved >= 1, "{moved:?}");
        assert_reads(&fs, 1, &models);
        // It is used as the others are.
        let scrubbed = devices(&fs).scrub(false, &mut Ignore).unwrap();
        assert_eq!(scrubbed.errors, 0, "{scrubbed:?}");
        fs.unmount().unwrap();
        drop(fs);
        let removed = pool.lose(usize::try_from(number).unwrap() - 1);
        pool.regain(image);
        assert!(crate::identify(&*open(&removed)).is_err());
        assert_whole(&pool);
        let fs = mount(&pool);
        assert_reads(&fs, 1, &models);
        fs.unmount().unwrap();
    }
}

/// Power fails while a device is added and another thread commits: each state is mounted with all devices that have a
/// superblock.
#[test]
fn added_device_has_no_superblock_that_is_not_durable() {
    let mut pool = Pool::make(1, 160, &["-m", "single"]);
    let image = pool.images()[0].with_extension("added");
    let added = File::create(&image).unwrap();
    added.set_len(32 << 20).unwrap();
    added.write_all_at(&[0xee], 0).unwrap();
    pool.regain(image);
    let (recorder, recorded) = record(&pool);
    let old = GatedDevice::of(Arc::clone(&recorded[0]));
    let new = GatedDevice::of(Arc::clone(&recorded[1]));
    let fs = mount_on(&[Arc::<GatedDevice>::clone(&old)]);
    fs.sync().unwrap();
    let first_position = thread::scope(|scope| {
        let clearing = new.shut(Operation::Write);
        let adding = scope.spawn(|| {
            let new: Arc<dyn BlockDevice> = Arc::<GatedDevice>::clone(&new);
            devices(&fs).add_device(&new)
        });
        clearing.wait_for_request();
        let committing = old.shut(Operation::Flush);
        let syncing = scope.spawn(|| {
            let root = fs.root().unwrap();
            let made = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
            made.map(drop)?;
            fs.sync()
        });
        // The commit is closed, and being written.
        committing.wait_for_request();
        clearing.open(false);
        wait_until(|| {
            let mut first = [0xee];
            recorded[1].read_at(0, &mut first).unwrap();
            first == [0]
        });
        thread::sleep(Duration::from_millis(50));
        assert!(!adding.is_finished() && !syncing.is_finished());
        crate::identify(&*recorded[1]).unwrap_err();
        let position = recorder.mark();
        committing.open(false);
        assert_eq!(adding.join().unwrap().unwrap(), 2);
        syncing.join().unwrap().unwrap();
        position
    });
    fs.unmount().unwrap();
    drop(fs);
    let options = CrashOptions {
        first_position,
        mixes_per_position: 0,
        subset_writes_max: 3,
        ..CrashOptions::default()
    };
    let recording = recorder.recording();
    let count = recording.crash_states(options).count();
    let mut with_both = 0;
    for state in recording.crash_states(options).step_by(count / 40 + 1) {
        let devices = devices_of(&state.unwrap());
        let is_known = crate::identify(&*devices[1]).is_ok();
        with_both += u32::from(is_known);
        let given = if is_known { 2 } else { 1 };
        let fs = mount_on(&devices[..given]);
        fs.unmount().unwrap();
    }
    assert!(with_both > 5, "{with_both} of {count} states");
}

#[test]
fn inodes_are_logged_while_there_is_one_device() {
    let pool = Pool::make(1, 400, &[]);
    let image = pool.images()[0].with_extension("added");
    File::create(&image).unwrap().set_len(400 << 20).unwrap();
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    fs.sync().unwrap();
    let logs = |call: u64| {
        file.write_at(call * 4096, &[7; 4096]).unwrap();
        file.sync(false).unwrap();
        log_trees::logs_written(fs.super_block().writing().unwrap())
    };
    assert_eq!(logs(0), 1);
    assert_eq!(devices(&fs).add_device(&open(&image)).unwrap(), 2);
    assert_eq!(logs(1), 1);
    devices(&fs).remove_device(2, &mut to_the_end).unwrap();
    assert_eq!(logs(2), 2);
    drop((root, file));
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

/// Does something when a command has begun.
struct AtFirst<F>(Option<F>);

impl<F: FnOnce() + Send> CheckSink for AtFirst<F> {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        ControlFlow::Continue(())
    }

    fn progress(&mut self, _: CheckProgress) -> ControlFlow<()> {
        if let Some(work) = self.0.take() {
            work();
        }
        ControlFlow::Continue(())
    }
}

#[test]
fn scrubbed_superblock_leads_to_the_log() {
    let pool = Pool::make(1, 300, &["-m", "single"]);
    let fs = mount(&pool);
    let root = fs.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    let file = file.unwrap();
    fs.sync().unwrap();
    let contents = Random(5).bytes(20_000);
    let mut generation = None;
    let mut sink = AtFirst(Some(|| {
        generation = Some(fs.last_commit().unwrap().generation);
        file.write_at(0, &contents).unwrap();
        file.sync(false).unwrap();
        let raw = File::options().write(true).open(&pool.images()[0]).unwrap();
        raw.write_all_at(&[0xa5; 512], SUPERBLOCK_OFFSETS[0])
            .unwrap();
    }));
    let scrubbed = devices(&fs).scrub(true, &mut sink).unwrap();
    assert_eq!((scrubbed.errors, scrubbed.uncorrectable), (1, 0));
    assert_eq!(Some(fs.last_commit().unwrap().generation), generation);
    drop((file, root));
    // As after a crash.
    drop(fs);
    let fs = mount(&pool);
    let file = fs.root().unwrap().lookup(name("file")).unwrap();
    assert!(read(&*file) == contents);
    drop(file);
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn uuid_changes_with_as_many_devices_as_there_are_now() {
    let pool = Pool::make(1, 300, &["-m", "single"]);
    let image = pool.images()[0].with_extension("added");
    File::create(&image).unwrap().set_len(300 << 20).unwrap();
    let fs = mount(&pool);
    let uuid = fs.super_block().clock().random_uuid();
    let tune = || fs.tune(&[Tune::Uuid(uuid)]);
    devices(&fs).add_device(&open(&image)).unwrap();
    assert!(tune().unwrap_err().to_string().contains("several devices"));
    devices(&fs).remove_device(2, &mut to_the_end).unwrap();
    tune().unwrap();
    fs.sync().unwrap();
    fs.unmount().unwrap();
    drop(fs);
    pool.assert_clean();
}

#[test]
fn dropped_mount_that_is_frozen_stays_as_it_is() {
    let pool = Pool::make(1, 300, &["-m", "single"]);
    let fs = mount(&pool);
    let dir = fs.root().unwrap();
    fs.freeze().unwrap();
    let (root, has_begun) = (&dir, &AtomicBool::new(false));
    let made = thread::scope(|scope| {
        let maker = scope.spawn(move || {
            has_begun.store(true, Ordering::Release);
            let made = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
            made.map(drop)
        });
        while !has_begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        thread::sleep(Duration::from_millis(50));
        assert!(!maker.is_finished());
        drop(fs);
        maker.join().unwrap()
    });
    assert!(matches!(made, Err(Error::Condition(Condition::ReadOnly))));
    drop(dir);
    let fs = mount(&pool);
    assert!(fs.root().unwrap().lookup(name("file")).is_err());
    fs.unmount().unwrap();
}

#[test]
fn devices_change_lengths_while_files_are_written() {
    let pool = Pool::make(2, 900, &["-d", "single", "-m", "raid1"]);
    let fs = mount(&pool);
    for (seed, size_mib) in (1..).zip([500_u64, 300, 900]) {
        let (models, ()) = with_load(&fs, seed, || {
            for device in [1, 2] {
                let resized = devices(&fs).resize_device(
                    Some(device),
                    NewLength::Bytes(size_mib << 20),
                    &mut to_the_end,
                );
                resized.unwrap();
            }
        });
        assert_reads(&fs, seed, &models);
        let superblock = fs.super_block().writing().unwrap().superblock();
        assert_eq!(superblock.total_bytes, 2 * (size_mib << 20));
        let shown = fs.stat_fs().unwrap();
        assert_eq!(shown.blocks * 4096, 2 * (size_mib << 20));
    }
    // The image is made longer.
    let longer = devices(&fs).resize_device(Some(1), NewLength::Larger(100 << 20), &mut to_the_end);
    assert_eq!(longer.unwrap().after_bytes, 1000 << 20);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}

#[test]
fn unmount_ends_a_command_and_refuses_others() {
    let pool = Pool::make(2, 600, &["-d", "single", "-m", "dup"]);
    let fs = mount(&pool);
    let has_begun = AtomicBool::new(false);
    let moved: platter_vfs::Result<Moved> = thread::scope(|scope| {
        let balance = scope.spawn(|| {
            devices(&fs).balance(&everything(), &mut |_, _| {
                has_begun.store(true, Ordering::Release);
                thread::sleep(Duration::from_millis(50));
                ControlFlow::Continue(())
            })
        });
        while !has_begun.load(Ordering::Acquire) {
            thread::yield_now();
        }
        let second = devices(&fs).scrub(false, &mut Ignore);
        assert!(matches!(second, Err(Error::Condition(Condition::Busy))));
        // It waits then, which does not keep the unmount.
        fs.freeze().unwrap();
        fs.unmount().unwrap();
        balance.join().unwrap()
    });
    match moved {
        Ok(moved) => assert!(moved.is_cancelled, "{moved:?}"),
        Err(error) => assert!(matches!(error, Error::Condition(Condition::ReadOnly))),
    }
    let after = devices(&fs).scrub(false, &mut Ignore);
    assert!(matches!(after, Err(Error::Condition(Condition::ReadOnly))));
    drop(fs);
    assert_whole(&pool);
}

/// Power fails while chunks are converted and files are written: each state is a valid filesystem that has what was
/// synced before.
#[test]
fn crash_during_a_conversion_leaves_what_was_synced() {
    let pool = Pool::make(2, 400, &["-d", "single", "-m", "dup", "-n", "4096"]);
    let (recorder, recorded) = record(&pool);
    let fs = mount_on(&recorded);
    fs.sync().unwrap();
    let first_position = recorder.mark();
    let count = AtomicU64::new(0);
    let stop = AtomicBool::new(false);
    let synced = thread::scope(|scope| {
        let root = fs.root().unwrap();
        let (stop, recorder, count) = (&stop, &recorder, &count);
        let writer = scope.spawn(move || {
            let mut synced = Vec::new();
            let mut number = 0;
            while !stop.load(Ordering::Relaxed) {
                thread::sleep(Duration::from_millis(5));
                let path = format!("file{number}");
                let file = root.create(&Context::root(), name(&path), CreateKind::Regular, 0o644);
                let file = file.unwrap();
                file.write_at(0, &Random(number).bytes(20_000)).unwrap();
                file.sync(false).unwrap();
                synced.push((recorder.mark(), number));
                number += 1;
                count.store(number, Ordering::Relaxed);
            }
            synced
        });
        for (data, metadata) in [("raid1", "raid1"), ("single", "dup"), ("raid1", "raid1")] {
            let before = count.load(Ordering::Relaxed);
            while count.load(Ordering::Relaxed) < before + 3 && !writer.is_finished() {
                thread::yield_now();
            }
            let converted = devices(&fs).balance(&to_profiles(data, metadata), &mut to_the_end);
            converted.unwrap();
        }
        stop.store(true, Ordering::Relaxed);
        writer.join().unwrap()
    });
    assert!(synced.len() > 5, "{}", synced.len());
    drop(fs);
    let options = CrashOptions {
        first_position,
        mixes_per_position: 1,
        subset_writes_max: 2,
        ..CrashOptions::default()
    };
    let recording = recorder.recording();
    let states_count = recording.crash_states(options).count();
    let judged = Pool::empty(2);
    let states = recording
        .crash_states(options)
        .step_by(states_count / 60 + 1);
    for (index, state) in states.enumerate() {
        let state = state.unwrap();
        if index % 6 == 0 {
            for (device, path) in devices_of(&state).into_iter().zip(judged.images()) {
                store(&*device, path);
            }
            judged.assert_clean();
        }
        let fs = mount_on(&devices_of(&state));
        let root = fs.root().unwrap();
        for (_, number) in synced.iter().filter(|(at, _)| *at <= state.position) {
            let file = root.lookup(name(&format!("file{number}"))).unwrap();
            assert!(read(&*file) == Random(*number).bytes(20_000), "{number}");
        }
    }
    assert!(states_count > 100, "{states_count} states");
}
