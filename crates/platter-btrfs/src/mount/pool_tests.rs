//! Mounts for writing of several devices, of which some are missing then, or while they are written.

use std::collections::BTreeMap;
use std::fs::File;
use std::os::unix::fs::FileExt;
use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, Result, SystemClock};
use zerocopy::IntoBytes;

use super::write_tests::{name, read};
use super::{Btrfs, MountOptions, devices};
use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;
use crate::txn::{WriteOptions, superblocks};

type Model = BTreeMap<String, Vec<u8>>;

fn options() -> MountOptions {
    MountOptions {
        degraded: true,
        ..MountOptions::default()
    }
}

fn mount(pool: &Pool) -> Result<Btrfs> {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    Btrfs::mount_writable(
        &pool.devices(),
        &options(),
        budget,
        Arc::new(SystemClock::new()),
    )
}

/// Writes files of all sizes at random places, with a commit after some.
fn change(pool: &Pool, model: &mut Model, seed: u64) {
    let mounted = mount(pool).unwrap();
    let root = mounted.root().unwrap();
    let context = Context::root();
    let mut random = Random(seed);
    for _ in 0..60 {
        let path = format!("file{}", random.below(20));
        let file = match root.lookup(name(&path)) {
            Ok(file) => file,
            Err(_) => root
                .create(&context, name(&path), CreateKind::Regular, 0o644)
                .unwrap(),
        };
        let most = if random.below(4) == 0 {
            600_000
        } else {
            30_000
        };
        let (at, len) = (random.below(100_000), random.below(most) + 1);
        let bytes = random.bytes(len);
        file.write_at(at, &bytes).unwrap();
        let known = model.entry(path).or_default();
        let start = usize::try_from(at).unwrap();
        known.resize(known.len().max(start + bytes.len()), 0);
        known[start..start + bytes.len()].copy_from_slice(&bytes);
        if random.below(6) == 0 {
            mounted.sync().unwrap();
        }
    }
    drop(root);
    mounted.unmount().unwrap();
}

/// Compares the files that a mount for reading finds with the model, and those of the kernel.
fn assert_reads(pool: &Pool, model: &Model) {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let mounted = Btrfs::mount(&pool.devices(), &options(), budget, clock).unwrap();
    let root = mounted.root().unwrap();
    let dir = pool.images()[0].with_extension("model");
    let _ = std::fs::remove_dir_all(&dir);
    std::fs::create_dir_all(&dir).unwrap();
    for (path, bytes) in model {
        let file = root.lookup(name(path)).unwrap();
        assert!(read(&*file) == *bytes, "{path}");
        std::fs::write(dir.join(path), bytes).unwrap();
    }
    pool.run(&format!(
        "mount -t btrfs -o \"degraded,ro,$options\" \"$device\" \"$root\"\ndiff -r \"$root\" {}\n",
        dir.display()
    ));
}

fn examine(devices: usize, profile: &str, tolerated: usize) {
    let mut pool = Pool::make(devices, 200, &["-d", profile, "-m", profile]);
    let mut model = Model::new();
    change(&pool, &mut model, 3);
    pool.assert_clean();
    assert_reads(&pool, &model);
    // What was written can be read without devices.
    let lost: Vec<_> = (0..tolerated).map(|_| pool.lose(1)).collect();
    assert_reads(&pool, &model);
    // Without them, it is written.
    change(&pool, &mut model, 4);
    assert_reads(&pool, &model);
    // The checker of btrfs-progs 6.2 does not reconstruct RAID6.
    if profile != "raid6" {
        pool.assert_clean();
    }
    // The kernel goes on.
    pool.run("mount -t btrfs -o \"degraded,$options\" $device $root; echo more > $root/more; rm $root/more");
    assert_reads(&pool, &model);
    // The device that was missing does not have what was written: it is not taken for whole.
    for image in lost {
        pool.regain(image);
    }
    let refused = mount(&pool).unwrap_err().to_string();
    assert!(refused.contains("is stale"), "{refused}");
}

#[test]
fn mirrors_are_written_without_a_device() {
    examine(3, "raid1", 1);
    examine(4, "raid10", 1);
}

#[test]
fn raid5_is_written_without_a_device() {
    examine(3, "raid5", 1);
}

#[test]
fn raid6_is_written_without_one_and_two_devices() {
    examine(4, "raid6", 1);
    examine(5, "raid6", 2);
}

#[test]
fn devices_that_are_needed_are_demanded() {
    let mut pool = Pool::make(2, 160, &["-d", "raid0", "-m", "raid1"]);
    pool.lose(1);
    let refused = mount(&pool).unwrap_err().to_string();
    assert!(
        refused.contains("RAID0 chunks without 1 devices"),
        "{refused}"
    );
}

/// One commit is enough to know the device that missed it.
#[test]
fn device_that_missed_one_commit_is_stale() {
    let mut pool = Pool::make(2, 160, &["-d", "raid1", "-m", "raid1"]);
    let lost = pool.lose(0);
    let mounted = mount(&pool).unwrap();
    let root = mounted.root().unwrap();
    root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644)
        .unwrap();
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    // Chunks on the one device that is left have no second copy.
    pool.assert_clean();
    pool.regain(lost);
    let refused = mount(&pool).unwrap_err().to_string();
    assert!(refused.contains("device 1, which is stale"), "{refused}");
}

/// The first superblock of a device.
fn superblock(pool: &Pool, index: usize) -> [u8; SUPERBLOCK_BYTES] {
    let mut bytes = [0; SUPERBLOCK_BYTES];
    let image = File::open(&pool.images()[index]).unwrap();
    let read = image.read_exact_at(&mut bytes, SUPERBLOCK_OFFSETS[0]);
    read.unwrap();
    bytes
}

fn generation(superblock: &[u8; SUPERBLOCK_BYTES]) -> u64 {
    u64::from_le_bytes(superblock[0x48..0x50].try_into().unwrap())
}

/// A crash may leave one device a generation older. Were it still so when the next commit fails on it, it would be
/// stale.
#[test]
fn devices_get_the_last_superblock_before_a_commit() {
    let pool = Pool::make(2, 160, &["-d", "raid1", "-m", "raid1"]);
    let old = superblock(&pool, 1);
    let mounted = mount(&pool).unwrap();
    let root = mounted.root().unwrap();
    root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644)
        .unwrap();
    mounted.sync().unwrap();
    let last = superblock(&pool, 0);
    drop(root);
    drop(mounted);
    let [before, after] = [&old, &last].map(generation);
    assert_eq!(before + 1, after);
    for index in [0, 1] {
        let device = &pool.devices()[index];
        let bytes = if index == 0 { &last } else { &old };
        device.write_at(SUPERBLOCK_OFFSETS[0], bytes).unwrap();
    }
    drop(pool.open(WriteOptions::default()));
    assert_eq!(generation(&superblock(&pool, 1)), after);
    let named = |bytes: &[u8; SUPERBLOCK_BYTES]| bytes[0xc9..0xd1].to_vec();
    assert_eq!(named(&superblock(&pool, 1)), named(&old), "its own number");
    pool.assert_clean();
}

/// A superblock that power failed in is made whole by the next commit, from another copy on the device.
#[test]
fn torn_superblock_is_written_by_the_next_commit() {
    let pool = Pool::make(2, 160, &["-d", "raid1", "-m", "raid1"]);
    let old = superblock(&pool, 1);
    pool.tear_superblock(1);
    let mounted = mount(&pool).unwrap();
    let root = mounted.root().unwrap();
    let file = root.create(&Context::root(), name("file"), CreateKind::Regular, 0o644);
    file.unwrap().sync(false).unwrap();
    drop(root);
    mounted.unmount().unwrap();
    drop(mounted);
    let [first, second] = [0, 1].map(|index| superblock(&pool, index));
    assert_eq!(generation(&first), generation(&second));
    let named = |bytes: &[u8; SUPERBLOCK_BYTES]| bytes[0xc9..0xd1].to_vec();
    assert_eq!(named(&second), named(&old), "its own number");
    pool.assert_clean();
}

/// What was on a device before left a copy, newer than those of the filesystem.
#[test]
fn copies_of_another_filesystem_are_no_superblocks_of_this_one() {
    let other = Pool::make(1, 160, &[]);
    let mounted = mount(&other).unwrap();
    for number in 0..20 {
        let root = mounted.root().unwrap();
        let path = format!("file{number}");
        root.create(&Context::root(), name(&path), CreateKind::Regular, 0o644)
            .unwrap();
        mounted.sync().unwrap();
    }
    mounted.unmount().unwrap();
    drop(mounted);
    let identity = devices::identify(&*other.devices()[0]).unwrap();
    let (newer, template) =
        superblocks::stored(&*other.devices()[0], identity.metadata_uuid).unwrap();
    let pool = Pool::make(2, 160, &["-d", "raid1", "-m", "raid1"]);
    let own = devices::identify(&*pool.devices()[1]).unwrap();
    assert!(newer.generation > own.generation);
    // The filesystem ends before the last copy.
    let place = SUPERBLOCK_OFFSETS[2];
    let image = File::options().write(true).open(&pool.images()[1]).unwrap();
    let copy = newer.encode(&template, place);
    image.write_all_at(copy.as_bytes(), place).unwrap();
    pool.tear_superblock(1);
    let mounted = mount(&pool).unwrap();
    mounted.unmount().unwrap();
}
