//! Filesystems made by platter compared with those of `mke2fs`: what `dumpe2fs` says of both, `e2fsck`, a
//! kernel that writes to them.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::Arc;

use platter::resize::NewSize;
use platter::{FormatOptions, ImageSpec, Progress};
use platter_block::{BlockDevice, FileDevice, OpenOptions};
use platter_cache::MemoryBudget;
use platter_ext4::mkfs::{Generation, MkfsOptions, mkfs};
use platter_vfs::{Clock, FixedClock, Timestamp};
use testkit::loopdev::{Access, LoopDevice, Mount};
use testkit::oracle::mke2fs;
use testkit::tool;

use crate::images::assert_clean;

/// Lines of `dumpe2fs` that differ between two filesystems of one shape.
const OF_EACH: [&str; 9] = [
    "Filesystem UUID",
    "Filesystem created",
    "Last mount time",
    "Last write time",
    "Last checked",
    "Directory Hash Seed",
    "Checksum",
    "Checksum seed",
    "Lifetime writes",
];

fn make(path: &Path, size_kib: u64, options: &MkfsOptions) {
    let file = fs::File::create(path).unwrap();
    file.set_len(size_kib << 10).unwrap();
    let device = FileDevice::open(
        path,
        OpenOptions {
            access: platter_block::Access::Write,
            direct: false,
        },
    )
    .unwrap();
    let device: Arc<dyn BlockDevice> = Arc::new(device);
    let now = Timestamp {
        seconds: 1_700_000_000,
        nanoseconds: 0,
    };
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    mkfs(&device, options, true, budget, &FixedClock::new(now, 1)).unwrap();
}

fn headings(path: &Path) -> BTreeMap<String, String> {
    let printed = tool::succeed(tool::command("dumpe2fs").arg("-h").arg(path)).unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let lines = printed.lines().filter_map(|line| line.split_once(':'));
    lines
        .map(|(name, value)| (name.to_owned(), value.trim().to_owned()))
        .filter(|(name, _)| !OF_EACH.contains(&name.as_str()))
        .collect()
}

fn assert_made_as_mke2fs_does(
    generation: Generation,
    size_kib: u64,
    arguments: &[&str],
    change: impl FnOnce(&mut MkfsOptions),
) {
    let dir = tempfile::tempdir().unwrap();
    let (ours, theirs) = (dir.path().join("ours"), dir.path().join("theirs"));
    let mut options = MkfsOptions::new(generation);
    change(&mut options);
    make(&ours, size_kib, &options);
    assert_clean(&ours, "written");
    let name = match generation {
        Generation::Ext2 => "ext2",
        Generation::Ext3 => "ext3",
        Generation::Ext4 => "ext4",
    };
    let arguments: Vec<&str> = ["-t", name].iter().chain(arguments).copied().collect();
    mke2fs::make(&theirs, size_kib, &arguments, None).unwrap();
    let (ours, theirs) = (headings(&ours), headings(&theirs));
    for (name, value) in &theirs {
        let is_of_clusters = name == "Free blocks" || name == "Overhead clusters";
        if is_of_clusters && arguments.contains(&"bigalloc") {
            // What shares a cluster differs.
            continue;
        }
        assert_eq!(
            ours.get(name),
            Some(value),
            "{name} of {arguments:?} at {size_kib} KiB"
        );
    }
    assert_eq!(ours.len(), theirs.len());
}

#[test]
fn defaults_are_those_of_mke2fs_at_every_size() {
    let generations = [Generation::Ext2, Generation::Ext3, Generation::Ext4];
    for generation in generations {
        for size_kib in [
            1 << 10,
            3 << 10,
            9 << 10,
            64 << 10,
            511 << 10,
            600 << 10,
            5 << 20,
        ] {
            assert_made_as_mke2fs_does(generation, size_kib, &[], |_| {});
        }
    }
}

#[test]
fn options_are_those_of_mke2fs() {
    let ext4 = Generation::Ext4;
    assert_made_as_mke2fs_does(ext4, 64 << 10, &["-b", "4096", "-I", "512"], |options| {
        options.block_bytes = Some(4096);
        options.inode_bytes = Some(512);
    });
    assert_made_as_mke2fs_does(ext4, 64 << 10, &["-O", "^64bit,^has_journal"], |options| {
        options.set_feature("64bit", false).unwrap();
        options.set_feature("has_journal", false).unwrap();
    });
    assert_made_as_mke2fs_does(
        ext4,
        64 << 10,
        &["-O", "^metadata_csum,uninit_bg"],
        |options| {
            options.set_feature("metadata_csum", false).unwrap();
            options.set_feature("uninit_bg", true).unwrap();
        },
    );
    assert_made_as_mke2fs_does(
        ext4,
        64 << 10,
        &["-O", "^flex_bg,^resize_inode"],
        |options| {
            options.set_feature("flex_bg", false).unwrap();
            options.set_feature("resize_inode", false).unwrap();
        },
    );
    assert_made_as_mke2fs_does(
        ext4,
        64 << 10,
        &["-N", "5000", "-m", "1", "-L", "a label"],
        |options| {
            options.inodes = Some(5000);
            options.reserved = 100;
            options.label = b"a label".to_vec();
        },
    );
    assert_made_as_mke2fs_does(
        ext4,
        256 << 10,
        &["-O", "bigalloc", "-C", "16384", "-b", "4096"],
        |options| {
            options.set_feature("bigalloc", true).unwrap();
            options.cluster_bytes = Some(16384);
            options.block_bytes = Some(4096);
        },
    );
}

#[test]
fn the_kernel_writes_to_what_was_made() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for (generation, size_kib) in [(Generation::Ext2, 8 << 10), (Generation::Ext4, 600 << 10)] {
        make(&image, size_kib, &MkfsOptions::new(generation));
        let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
        let listed = fs::read_dir(mount.root()).unwrap().count();
        assert_eq!(listed, 1, "lost+found");
        for number in 0..100 {
            fs::write(mount.root().join(format!("file{number}")), vec![7; 9000]).unwrap();
        }
        mount.unmount(&image).unwrap();
        assert_clean(&image, "written");
    }
}

/// Tries again while a device is busy: a program that another thread starts holds a copy of its
/// descriptor for a moment.
fn patiently<T>(run: impl Fn() -> platter::Result<T>) -> platter::Result<T> {
    for _ in 0..100 {
        match run() {
            Err(error) if error.kind() == std::io::ErrorKind::ResourceBusy => {
                std::thread::sleep(std::time::Duration::from_millis(20));
            }
            done => return done,
        }
    }
    run()
}

#[test]
fn a_block_device_is_used_as_far_as_asked_and_grown_into() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let file = fs::File::create(&image).unwrap();
    file.set_len(40 << 20).unwrap();
    // Whatever it held is no filesystem.
    std::os::unix::fs::FileExt::write_all_at(&file, &vec![0xff; 1 << 20], 17 << 20).unwrap();
    let device = LoopDevice::attach(&image, Access::ReadWrite).unwrap();
    let spec = ImageSpec::parse(device.path()).unwrap();
    let maker = || FormatOptions::new(MkfsOptions::new(Generation::Ext4)).overwrite(true);
    let make = |maker: FormatOptions| patiently(|| maker.make(&spec));
    assert!(make(maker().size_bytes(41 << 20)).is_err());
    assert!(make(maker().minimal_size()).is_err());
    make(maker().size_bytes(16 << 20)).unwrap();
    assert_clean(device.path(), "written");
    let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let budget = Arc::new(MemoryBudget::new(16 << 20));
    let (size, progress) = (NewSize::Whole, Progress::new());
    let grown = patiently(|| platter::resize::grow(&spec, size, &budget, &clock, &progress));
    let grown = grown.unwrap();
    assert_eq!(
        (grown.before_bytes, grown.after_bytes),
        (16 << 20, 40 << 20)
    );
    assert_clean(device.path(), "written");
    let mut options = MkfsOptions::new(Generation::Ext4);
    options.zero_inode_tables = true;
    make(FormatOptions::new(options).overwrite(true)).unwrap();
    assert_clean(device.path(), "written");
    let printed = tool::succeed(tool::command("dumpe2fs").arg(device.path())).unwrap();
    let printed = String::from_utf8_lossy(&printed.stdout).into_owned();
    let zeroed = printed.matches("ITABLE_ZEROED").count();
    assert_eq!(
        zeroed,
        printed.matches("Inode table at").count(),
        "{printed}"
    );
}

#[test]
fn the_same_seed_makes_the_same_bytes() {
    let dir = tempfile::tempdir().unwrap();
    let (first, second) = (dir.path().join("first"), dir.path().join("second"));
    for path in [&first, &second] {
        make(path, 8 << 10, &MkfsOptions::new(Generation::Ext4));
    }
    assert!(fs::read(first).unwrap() == fs::read(second).unwrap());
}
