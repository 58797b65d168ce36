//! Free space that is discarded: files stay as they are, and the image takes less of its disk.

use std::os::unix::fs::MetadataExt;
use std::sync::Arc;
use std::thread;

use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, SystemClock, Trim};

use super::devices_in_use_tests::{
    assert_reads, assert_whole, devices, everything, to_the_end, with_load,
};
use super::write_tests::{name, read};
use super::{Btrfs, MountOptions};
use crate::txn::WriteOptions;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;

const FILE_BYTES: u64 = 24 << 20;

const ALL: Trim = Trim {
    start_bytes: 0,
    len_bytes: u64::MAX,
    min_bytes: 0,
};

fn mount(pool: &Pool, discards: bool) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock = Arc::new(SystemClock::new());
    let options = MountOptions {
        transactions: WriteOptions {
            discards,
            ..WriteOptions::default()
        },
        ..MountOptions::default()
    };
    Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap()
}

/// What the images take of their disk.
fn stored_bytes(pool: &Pool) -> u64 {
    let images = pool.images();
    let stored = |image: &std::path::PathBuf| std::fs::metadata(image).unwrap().blocks() * 512;
    images.iter().map(stored).sum()
}

/// Writes two files, and removes the first one.
fn write_and_remove(fs: &Btrfs) -> Vec<u8> {
    let root = fs.root().unwrap();
    let context = Context::root();
    let mut random = Random(1);
    let kept = random.bytes(FILE_BYTES);
    for (path, bytes) in [("removed", &random.bytes(FILE_BYTES)), ("kept", &kept)] {
        let file = root.create(&context, name(path), CreateKind::Regular, 0o644);
        file.unwrap().write_at(0, bytes).unwrap();
    }
    fs.sync().unwrap();
    root.unlink(&context, name("removed")).unwrap();
    fs.sync().unwrap();
    kept
}

const PROFILES: [(usize, &str, &str); 5] = [
    (1, "single", "dup"),
    (2, "raid0", "raid1"),
    (2, "raid1", "raid1"),
    (4, "raid10", "raid10"),
    (3, "raid5", "raid1"),
];

#[test]
fn free_space_is_discarded_in_all_profiles() {
    for (count, data, metadata) in PROFILES {
        let pool = Pool::make(count, 400, &["-d", data, "-m", metadata]);
        let fs = mount(&pool, false);
        let kept = write_and_remove(&fs);
        let before = stored_bytes(&pool);
        let discarded = fs.trim(&ALL).unwrap();
        assert!(discarded > 100 << 20, "{data}: {discarded}");
        let after = stored_bytes(&pool);
        // Rows with parity stay.
        let expected = if data == "raid5" {
            0
        } else {
            FILE_BYTES - (1 << 20)
        };
        assert!(before - after >= expected, "{data}: {before} {after}");
        assert_eq!(
            read(&*fs.root().unwrap().lookup(name("kept")).unwrap()),
            kept
        );
        // What is shorter stays as it is.
        let few = Trim {
            min_bytes: u64::MAX,
            ..ALL
        };
        assert_eq!(fs.trim(&few).unwrap(), 0);
        let none = Trim {
            len_bytes: 0,
            ..ALL
        };
        assert!(fs.trim(&none).is_err());
        fs.unmount().unwrap();
        drop(fs);
        assert_whole(&pool);
        let fs = mount(&pool, false);
        assert_eq!(
            read(&*fs.root().unwrap().lookup(name("kept")).unwrap()),
            kept
        );
        fs.unmount().unwrap();
    }
}

#[test]
fn commits_discard_what_they_free_with_the_option() {
    for discards in [false, true] {
        let pool = Pool::make(1, 400, &[]);
        let fs = mount(&pool, discards);
        let kept = write_and_remove(&fs);
        let stored = stored_bytes(&pool);
        assert_eq!(stored < 2 * FILE_BYTES, discards, "{stored}");
        assert_eq!(
            read(&*fs.root().unwrap().lookup(name("kept")).unwrap()),
            kept
        );
        fs.unmount().unwrap();
        drop(fs);
        assert_whole(&pool);
    }
}

#[test]
fn space_is_discarded_while_files_are_written() {
    for discards in [false, true] {
        let pool = Pool::make(2, 400, &["-d", "raid1", "-m", "raid1"]);
        let fs = mount(&pool, discards);
        let (models, ()) = with_load(&fs, 1, || {
            for _ in 0..20 {
                fs.trim(&ALL).unwrap();
            }
        });
        assert_reads(&fs, 1, &models);
        fs.unmount().unwrap();
        drop(fs);
        assert_whole(&pool);
        let fs = mount(&pool, discards);
        assert_reads(&fs, 1, &models);
        fs.unmount().unwrap();
    }
}

#[test]
fn chunks_are_moved_while_space_is_discarded() {
    let pool = Pool::make(2, 600, &["-d", "single", "-m", "dup"]);
    let fs = mount(&pool, true);
    let (models, moved) = with_load(&fs, 1, || {
        thread::scope(|scope| {
            let trims = scope.spawn(|| {
                for _ in 0..20 {
                    fs.trim(&ALL).unwrap();
                }
            });
            let moved = devices(&fs).balance(&everything(), &mut to_the_end);
            trims.join().unwrap();
            moved
        })
    });
    assert!(moved.unwrap().moved >= 3);
    assert_reads(&fs, 1, &models);
    fs.unmount().unwrap();
    drop(fs);
    assert_whole(&pool);
}
