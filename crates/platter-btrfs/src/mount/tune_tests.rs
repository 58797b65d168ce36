//! Features that are switched on and off while files are changed, judged by `btrfs check` and read by the kernel.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::thread;

use platter_block::BlockDevice;
use platter_block::sim::{CrashOptions, CrashState};
use platter_cache::MemoryBudget;
use platter_ondisk::{Locus, Uuid};
use platter_vfs::{
    Condition, Context, DetailValue, Error, FallocateMode, Filesystem, Inode, SystemClock, Tune,
};

use super::statfs::usage;
use super::write_tests::{assert_kernel_reads, create, finish, name};
use super::{Btrfs, MountOptions};
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Key, TreeId};
use crate::txn::WriteOptions;
use crate::txn::tests::crash::{devices_of, record, store};
use crate::txn::tests::image::Pool;

type Model = BTreeMap<String, Vec<u8>>;

/// Features to switch on or off.
type Switches<'s> = &'s [(&'s str, bool)];

/// Names of a file that do not fit in an item.
const NAMES: u32 = 80;

/// The kernel goes on.
const GO_ON: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
cd "$root"
rm file*-1*
truncate -s 3M sparse
head -c 2000000 /dev/urandom > more
sync
cd /
umount "$root"
"#;

fn mount(devices: &[Arc<dyn BlockDevice>], transactions: WriteOptions) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions {
        transactions,
        commit_interval: None,
        ..MountOptions::default()
    };
    Btrfs::mount_writable(devices, &options, budget, clock).unwrap()
}

fn mount_to_read(devices: &[Arc<dyn BlockDevice>]) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let (options, clock) = (MountOptions::default(), Arc::new(SystemClock::new()));
    Btrfs::mount(devices, &options, budget, clock).unwrap()
}

fn switches(features: Switches<'_>) -> Vec<Tune> {
    let switch = |(name, on): &(&str, bool)| Tune::Feature {
        name: (*name).to_owned(),
        on: *on,
    };
    features.iter().map(switch).collect()
}

fn has(fs: &Btrfs, feature: &str) -> bool {
    let features = fs.describe().features;
    features.iter().any(|it| it.name == feature)
}

#[test]
fn description_of_a_mount_follows_its_commits() {
    let pool = Pool::make(1, 128, &["-m", "single", "-L", "before"]);
    let mounted = mount(&pool.devices(), WriteOptions::default());
    let numbers = || {
        let description = mounted.describe();
        let number = |key| {
            let Some(DetailValue::Number(number)) = description.detail(key) else {
                panic!("{key} is no number");
            };
            *number
        };
        [number("generation"), number("used_bytes")]
    };
    let before = numbers();
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    file.write_at(0, &vec![5; 1 << 20]).unwrap();
    drop((file, root));
    let uuid = Uuid::from_u128(9);
    let label = Tune::Label(b"after".to_vec());
    let nil = mounted.tune(&[label.clone(), Tune::Uuid(Uuid::nil())]);
    let error = nil.unwrap_err().to_string();
    assert!(error.contains("a UUID is not all zeros"), "{error}");
    assert_eq!(mounted.describe().label, b"before");
    mounted.tune(&[label, Tune::Uuid(uuid)]).unwrap();
    mounted.sync().unwrap();
    let description = mounted.describe();
    assert_eq!(description.label, b"after");
    assert_eq!(description.uuid, uuid);
    let after = numbers();
    assert!(after[0] > before[0], "{before:?} {after:?}");
    assert!(after[1] >= before[1] + (1 << 20), "{before:?} {after:?}");
    mounted.unmount().unwrap();
}

/// Makes files with holes and one of many names, and removes some of those before.
fn change(root: &dyn Inode, model: &mut Model, round: u8) {
    const END: usize = 129_000;
    for number in 0..40 {
        let path = format!("file{round}-{number}");
        let file = create(root, &path);
        let mut bytes = vec![0; END];
        for at in [3000 + number * 500, 120_000] {
            let piece = &mut bytes[at..at + 9000];
            piece.fill(round + 1);
            file.write_at(at as u64, piece).unwrap();
        }
        file.fallocate(121_000..128_000, FallocateMode::PunchHole)
            .unwrap();
        bytes[121_000..128_000].fill(0);
        model.insert(path, bytes);
    }
    let linked = create(root, &format!("linked{round}"));
    linked.write_at(0, b"linked").unwrap();
    model.insert(format!("linked{round}"), b"linked".to_vec());
    for number in 0..NAMES {
        let path = long_name(u32::from(round) * NAMES + number);
        root.link(&Context::root(), name(&path), linked.id())
            .unwrap();
        model.insert(path, b"linked".to_vec());
    }
    for number in (0..40).step_by(3).filter(|_| round > 0) {
        let path = format!("file{}-{number}", round - 1);
        root.unlink(&Context::root(), name(&path)).unwrap();
        model.remove(&path);
    }
}

fn long_name(number: u32) -> String {
    format!("name{number:04}-{}", "x".repeat(230))
}

/// What block groups for data hold.
fn data_used(fs: &Btrfs) -> u64 {
    let all = usage(fs.super_block()).unwrap();
    let of_data = all
        .iter()
        .filter(|usage| usage.flags.contains(BlockGroupFlags::DATA));
    of_data.map(|usage| usage.used_bytes).sum()
}

/// What the sectors of files take that are not zeros, of those that are not in their items.
fn data_bytes(model: &Model) -> u64 {
    let large = model.values().filter(|bytes| bytes.len() > 4096);
    let sectors = large.flat_map(|bytes| bytes.chunks(4096));
    let written = sectors.filter(|sector| sector.iter().any(|byte| *byte != 0));
    4096 * written.count() as u64
}

/// How many items of a tree are such.
fn count(fs: &Btrfs, id: TreeId, is_such: impl Fn(Key, &[u8]) -> bool) -> usize {
    let context = fs.super_block().context();
    let mut cursor = context.cursor(context.required_tree(id).unwrap());
    cursor.seek(Key::MIN).unwrap();
    let mut count = 0;
    while let Some((key, data)) = cursor.item() {
        count += usize::from(is_such(key, data));
        cursor.step().unwrap();
    }
    count
}

/// Makes a file that begins with a hole. Panics unless the items have the form that features say.
fn assert_forms(fs: &Btrfs, model: &mut Model, path: &str) {
    let file = create(&*fs.root().unwrap(), path);
    file.write_at(100_000, &[5; 5000]).unwrap();
    model.insert(path.into(), [vec![0; 100_000], vec![5; 5000]].concat());
    fs.sync().unwrap();
    let number = file.id().number;
    let holes = count(fs, TreeId::FS, |key, data| {
        let is_of_file = key.object == number && key.kind == ItemKind::EXTENT_DATA;
        is_of_file && is_hole(key, data)
    });
    assert_eq!(holes == 0, has(fs, "no-holes"), "{path}");
    // Blocks that were not copied since keep the former one.
    let is_skinny = |key: Key, _: &[u8]| key.kind == ItemKind::METADATA_ITEM;
    let metadata = count(fs, TreeId::EXTENT, is_skinny);
    assert_eq!(metadata > 0, has(fs, "skinny-metadata"), "{path}");
}

fn is_hole(key: Key, data: &[u8]) -> bool {
    let extent = FileExtent::decode(data, key.offset, 4096, Locus::UNKNOWN);
    extent.unwrap().kind == FileExtentKind::Hole
}

/// Switches features while files are changed, on a filesystem without them.
fn examine(mkfs: &[&str], steps: &[Switches<'_>]) {
    let pool = Pool::make(1, 400, mkfs);
    let devices = pool.devices();
    let mounted = mount(&devices, WriteOptions::default());
    let root = mounted.root().unwrap();
    let mut model = Model::new();
    create(&*root, "sparse");
    model.insert("sparse".into(), Vec::new());
    assert_forms(&mounted, &mut model, "holes");
    for (round, step) in (0..).step_by(2).zip(steps) {
        change(&*root, &mut model, round);
        mounted.tune(&switches(step)).unwrap();
        change(&*root, &mut model, round + 1);
        assert_forms(&mounted, &mut model, &format!("holes{round}"));
        pool.assert_clean();
        for (feature, on) in *step {
            assert_eq!(has(&mounted, feature), *on, "{feature}");
        }
        let (used, least) = (data_used(&mounted), data_bytes(&model));
        assert!(used >= least, "{used} for {least}");
        // From the tree that has the items now.
        let read = mount_to_read(&devices);
        assert_eq!(data_used(&read), used);
    }
    drop((root, devices));
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &model);
    pool.run(GO_ON);
    pool.assert_clean();
    // And this driver after it.
    let mounted = mount(&pool.devices(), WriteOptions::default());
    let root = mounted.root().unwrap();
    let last = create(&*root, "last");
    last.write_at(0, &vec![1; 100_000]).unwrap();
    drop((last, root));
    finish(&pool, mounted);
}

#[test]
fn flags_hold_for_new_items_next_to_old_ones() {
    let flags: Switches<'_> = &[("no-holes", true), ("skinny-metadata", true)];
    let again: Switches<'_> = &[("no-holes", true), ("extref", true)];
    for mkfs in [
        &["-m", "single", "-O", "^no-holes,^skinny-metadata"][..],
        &["-n", "4096", "-O", "^no-holes,^skinny-metadata"],
        &["-M", "-O", "^no-holes"],
    ] {
        examine(mkfs, &[flags, again]);
    }
}

#[test]
fn trees_of_space_and_groups_come_and_go() {
    let built: Switches<'_> = &[
        ("free-space-tree", true),
        ("no-holes", true),
        ("block-group-tree", true),
    ];
    let steps: [Switches<'_>; 4] = [
        built,
        &[("block-group-tree", false)],
        &[("block-group-tree", true)],
        &[("block-group-tree", false), ("skinny-metadata", true)],
    ];
    for mkfs in [
        &["-m", "single", "-R", "^free-space-tree"][..],
        &[
            "-n",
            "4096",
            "-R",
            "^free-space-tree",
            "-O",
            "^no-holes,^skinny-metadata",
        ],
        &["-M", "-R", "^free-space-tree"],
    ] {
        examine(mkfs, &steps);
    }
}

#[test]
fn space_is_known_while_group_items_move() {
    let pool = Pool::make(1, 128, &["-m", "single"]);
    let mounted = mount(&pool.devices(), WriteOptions::default());
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    file.write_at(0, &vec![7; 1_000_000]).unwrap();
    mounted.sync().unwrap();
    thread::scope(|scope| {
        let switching = scope.spawn(|| {
            for round in 0..40 {
                let tree: Switches<'_> = &[("block-group-tree", round % 2 == 0)];
                mounted.tune(&switches(tree)).unwrap();
                mounted.sync().unwrap();
            }
        });
        while !switching.is_finished() {
            let used = data_used(&mounted);
            assert!(used >= 1_000_000, "{used}");
        }
    });
    drop((file, root));
    finish(&pool, mounted);
}

#[test]
fn caches_of_version_1_make_place_for_the_free_space_tree() {
    let pool = Pool::make(1, 512, &["-m", "single", "-R", "^free-space-tree"]);
    pool.run(
        "mount -t btrfs -o \"space_cache=v1,$options\" \"$device\" \"$root\"\nhead -c 9000000 /dev/urandom > \"$root\"/a\nsync\nrm \"$root\"/a\nhead -c 3000000 /dev/urandom > \"$root\"/file0-1x\n",
    );
    let mounted = mount(&pool.devices(), WriteOptions::TOGETHER);
    let root = mounted.root().unwrap();
    let file = create(&*root, "sparse");
    file.write_at(0, &vec![7; 50_000]).unwrap();
    let tree: Switches<'_> = &[("free-space-tree", true)];
    mounted.tune(&switches(tree)).unwrap();
    drop((file, root));
    finish(&pool, mounted);
    let caches = || {
        let mounted = mount(&pool.devices(), WriteOptions::default());
        mounted.superblock().cache_generation
    };
    assert_eq!(caches(), u64::MAX);
    pool.run(GO_ON);
    assert_eq!(caches(), 0, "the kernel removed them");
    pool.assert_clean();
}

#[test]
fn crash_leaves_the_features_of_one_commit() {
    let both: Switches<'_> = &[("free-space-tree", true), ("block-group-tree", true)];
    let off: Switches<'_> = &[("block-group-tree", false)];
    for (devices, profile) in [(1, "single"), (2, "raid1")] {
        let mkfs = ["-m", profile, "-d", profile, "-R", "^free-space-tree"];
        let pool = Pool::make(devices, 128, &mkfs);
        let (recorder, recorded) = record(&pool);
        let mounted = mount(&recorded, WriteOptions::default());
        let root = mounted.root().unwrap();
        change(&*root, &mut Model::new(), 0);
        mounted.sync().unwrap();
        let first_position = recorder.mark();
        mounted.tune(&switches(both)).unwrap();
        mounted.sync().unwrap();
        let both_position = recorder.mark();
        mounted.tune(&switches(off)).unwrap();
        mounted.sync().unwrap();
        let off_position = recorder.mark();
        change(&*root, &mut Model::new(), 1);
        drop(root);
        mounted.unmount().unwrap();
        drop(mounted);
        let options = CrashOptions {
            first_position,
            mixes_per_position: 1,
            subset_writes_max: 2,
            ..CrashOptions::default()
        };
        let recording = recorder.recording();
        // Judges about as many states of each part: before, between and after the two changes.
        let part = |state: &CrashState<'_>| {
            let marks = [both_position, off_position];
            marks.iter().filter(|mark| state.position > **mark).count()
        };
        let mut counts = [0_usize; 3];
        for state in recording.crash_states(options) {
            counts[part(&state.unwrap())] += 1;
        }
        let judged = Pool::empty(devices);
        let (mut found, mut states, mut seen) = ([0; 3], 0, [0_usize; 3]);
        for state in recording.crash_states(options) {
            let state = state.unwrap();
            let part = part(&state);
            let is_judged = seen[part] % (counts[part] / 13 + 1) == 0;
            seen[part] += 1;
            if !is_judged {
                continue;
            }
            let left = devices_of(&state);
            for (device, path) in left.iter().zip(judged.images()) {
                store(&**device, path);
            }
            judged.assert_clean();
            let fs = mount_to_read(&left);
            let trees = (has(&fs, "free-space-tree"), has(&fs, "block-group-tree"));
            let commit = match trees {
                (false, false) => 0,
                (true, true) => 1,
                (true, false) => 2,
                (false, true) => panic!("block groups alone"),
            };
            found[commit] += 1;
            states += 1;
        }
        assert!(
            found.iter().all(|count| *count > 0),
            "{found:?} of {states}"
        );
    }
}

#[test]
fn features_that_cannot_change_are_named() {
    let pool = Pool::make(1, 128, &["-m", "single", "-R", "^free-space-tree"]);
    let mounted = mount(&pool.devices(), WriteOptions::default());
    let generation = mounted.super_block().writing().unwrap().committed();
    let refused = |features: Switches<'_>| {
        let mut changes = switches(features);
        changes.push(Tune::Label(b"new".to_vec()));
        mounted.tune(&changes).unwrap_err().to_string()
    };
    for (feature, on, reason) in [
        ("extref", false, "not converted"),
        ("skinny-metadata", false, "not converted"),
        ("no-holes", false, "not converted"),
        ("free-space-tree", false, "not converted"),
        ("seeding", true, "seed devices"),
        ("seed", false, "seed devices"),
        ("quota", true, "can be switched on"),
        ("raid-stripe-tree", true, "can be switched on"),
    ] {
        let error = refused(&[(feature, on)]);
        assert!(error.contains(feature) && error.contains(reason), "{error}");
    }
    let error = refused(&[("block-group-tree", true)]);
    assert!(error.contains("without free-space-tree"), "{error}");
    mounted.sync().unwrap();
    assert_eq!(mounted.label().unwrap(), b"");
    let committed = mounted.super_block().writing().unwrap().committed();
    assert_eq!(committed, generation);
    mounted.unmount().unwrap();
    drop(mounted);
    // Where half of a transaction is too short for the trees, nothing changes.
    let short = WriteOptions {
        blocks_max: 100,
        ..WriteOptions::default()
    };
    let mounted = mount(&pool.devices(), short);
    let tree: Switches<'_> = &[("free-space-tree", true)];
    let error = mounted.tune(&switches(tree)).unwrap_err().to_string();
    assert!(error.contains("than are left"), "{error}");
    mounted.tune(&[Tune::Label(b"new".to_vec())]).unwrap();
    assert!(!has(&mounted, "free-space-tree"));
    finish(&pool, mounted);
}

#[test]
fn full_transaction_has_no_place_for_trees() {
    let pool = Pool::make(1, 128, &["-m", "single", "-R", "^free-space-tree"]);
    let short = WriteOptions {
        blocks_max: 128,
        ..WriteOptions::TOGETHER
    };
    let mounted = mount(&pool.devices(), short);
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    let mut model = Model::new();
    model.insert("file".into(), Vec::new());
    // A name takes fewer credits than the trees.
    let refused = (0..).find_map(|number| {
        let path = long_name(number);
        let linked = root.link(&Context::root(), name(&path), file.id());
        linked.map(|()| model.insert(path, Vec::new())).err()
    });
    assert!(
        matches!(refused, Some(Error::Condition(Condition::NoSpace))),
        "{refused:?}"
    );
    let tree: Switches<'_> = &[("free-space-tree", true)];
    let error = mounted.tune(&switches(tree)).unwrap_err().to_string();
    assert!(error.contains("than are left"), "{error}");
    drop((file, root));
    finish(&pool, mounted);
    assert_kernel_reads(&pool, &model);
}

#[test]
fn file_gets_more_names_once_extref_is_on() {
    let pool = Pool::make(1, 128, &["-m", "single", "-O", "^extref"]);
    let mounted = mount(&pool.devices(), WriteOptions::TOGETHER);
    let root = mounted.root().unwrap();
    let file = create(&*root, "file");
    let link = |number| root.link(&Context::root(), name(&long_name(number)), file.id());
    let last = (0..1000).find(|number| link(*number).is_err()).unwrap();
    let refused = link(last).unwrap_err();
    assert!(
        matches!(refused, Error::Condition(Condition::TooManyLinks)),
        "{refused}"
    );
    let extref: Switches<'_> = &[("extref", true)];
    mounted.tune(&switches(extref)).unwrap();
    for number in last..last + NAMES {
        link(number).unwrap();
    }
    drop((file, root));
    finish(&pool, mounted);
    let names = pool.run(
        "mount -t btrfs -o \"$options\" \"$device\" \"$root\"\nstat -c %h \"$root\"/file\nrm \"$root\"/name*\n",
    );
    assert_eq!(names.trim(), (last + NAMES + 1).to_string());
    pool.assert_clean();
}
