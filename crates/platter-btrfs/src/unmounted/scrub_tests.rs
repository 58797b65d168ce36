//! Devices whose bytes were changed, or that missed commits, are whole again after a scrub: the checker with data
//! checksums and the kernel's scrub find nothing.

use std::fs::File;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{
    CheckSink, Context, CreateKind, Filesystem, Finding, Name, SetAttr, SystemClock,
};

use super::PoolRequest;
use crate::mount::{Btrfs, MountOptions};
use crate::scrub::ScrubCounts;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;

struct Counter(u64);

impl CheckSink for Counter {
    fn finding(&mut self, _: Finding) -> ControlFlow<()> {
        self.0 += 1;
        ControlFlow::Continue(())
    }
}

pub(crate) fn scrub(pool: &Pool, repairs: bool) -> ScrubCounts {
    let options = MountOptions {
        degraded: true,
        ..MountOptions::default()
    };
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let mut sink = Counter(0);
    let devices = pool.devices();
    let request = PoolRequest {
        devices,
        options,
        budget,
        clock: Arc::new(SystemClock::new()),
    };
    let scrubbed = request.scrub_report(repairs, &mut sink).unwrap();
    assert!(!scrubbed.report.cancelled);
    let counts = scrubbed.counts;
    assert_eq!(sink.0, counts.errors());
    counts
}

/// Files of the kernel: with and without checksums, compressed, and in a snapshot.
pub(crate) const FILL: &str = r#"
mount -t btrfs -o "compress=zstd,$options" "$device" "$root"
cd "$root"
btrfs -q subvolume create sub
for i in $(seq 40); do head -c 50000 /dev/urandom > sub/file$i; done
seq 100000 > text
for i in $(seq 300); do echo $i > small$i; done
touch plain
chattr +C plain
sync
btrfs -q subvolume snapshot sub snap
head -c 900000 /dev/urandom > sub/file3
cd /
"#;

pub(crate) const SUMS: &str = r#"
mount -t btrfs -o "ro,$options" "$device" "$root"
cd "$root"
find . -type f | sort | xargs md5sum
cd /
"#;

const KERNEL_SCRUB: &str = r#"
mount -t btrfs -o "$options" "$device" "$root"
btrfs scrub start -B -R -r "$root"
"#;

fn assert_whole(pool: &Pool) {
    pool.assert_clean();
    let found = pool.run(KERNEL_SCRUB);
    for line in found.lines().filter(|line| line.contains("errors:")) {
        assert!(line.trim_end().ends_with(": 0"), "{found}");
    }
    assert!(found.contains("csum_errors: 0"), "{found}");
}

/// Fills sectors with noise, as many as there can be on one device, but for its superblocks.
fn corrupt(image: &Path, random: &mut Random, one_in: u64) {
    let file = File::options().read(true).write(true).open(image).unwrap();
    let sectors = file.metadata().unwrap().len() / 4096;
    for sector in (1 << 20) / 4096..sectors {
        if sector * 4096 == 64 << 20 || random.below(one_in) > 0 {
            continue;
        }
        let mut bytes = vec![0; 4096];
        file.read_exact_at(&mut bytes, sector * 4096).unwrap();
        // What nothing was written to is not in use.
        if bytes.iter().any(|byte| *byte != 0) {
            file.write_all_at(&random.bytes(4096), sector * 4096)
                .unwrap();
        }
    }
}

fn examine(devices: usize, profile: &str) {
    let pool = Pool::make(devices, 160, &["-d", profile, "-m", profile]);
    pool.run(FILL);
    let sums = pool.run(SUMS);
    let fresh = scrub(&pool, false);
    assert_eq!(fresh.errors(), 0, "{fresh:?}");
    assert!(fresh.data_extents > 40 && fresh.tree_extents > 10);
    corrupt(&pool.images()[1], &mut Random(devices as u64), 3);
    let before = std::fs::read(&pool.images()[1]).unwrap();
    let found = scrub(&pool, false);
    assert!(found.errors() > 30, "{found:?}");
    assert!(std::fs::read(&pool.images()[1]).unwrap() == before);
    let repaired = scrub(&pool, true);
    assert!(repaired.errors() >= found.errors() / 2, "{repaired:?}");
    assert_eq!(repaired.uncorrectable_errors, 0, "{repaired:?}");
    assert_eq!(repaired.corrected_errors, repaired.errors());
    let left = scrub(&pool, false);
    assert_eq!(left.errors(), 0, "{left:?}");
    assert_whole(&pool);
    assert_eq!(pool.run(SUMS), sums);
}

#[test]
fn mirrors_are_repaired() {
    examine(2, "raid1");
    examine(3, "raid1c3");
    examine(4, "raid10");
}

#[test]
fn rows_with_parity_are_repaired() {
    examine(3, "raid5");
    examine(4, "raid6");
}

/// Without copies, errors are found and stay.
#[test]
fn what_has_no_copy_is_uncorrectable() {
    let pool = Pool::make(1, 160, &["-d", "single", "-m", "dup"]);
    pool.run(FILL);
    let image = &pool.images()[0];
    let file = File::options().write(true).open(image).unwrap();
    // The second superblock, and the beginning of the data.
    file.write_all_at(&[0; 4096], 64 << 20).unwrap();
    let fs = pool.open(crate::txn::WriteOptions::default());
    let kind = crate::ondisk::chunk_item::BlockGroupFlags::DATA;
    let start = fs
        .groups()
        .iter()
        .find(|it| it.holds(kind))
        .unwrap()
        .start();
    let (_, place) = fs.blocks().store().location(start, 0).unwrap();
    drop(fs);
    file.write_all_at(&vec![0xee; 256 << 10], place.0).unwrap();
    let found = scrub(&pool, true);
    assert_eq!(found.super_errors, 1, "{found:?}");
    assert_eq!(found.uncorrectable_errors, found.csum_errors);
    assert!(
        found.csum_errors > 0 && found.corrected_errors == 1,
        "{found:?}"
    );
    let left = scrub(&pool, true);
    assert_eq!(left.errors(), found.csum_errors);
    pool.assert_clean();
}

/// Changes files, some of them without checksums.
fn change(pool: &Pool) {
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let options = MountOptions {
        degraded: true,
        ..MountOptions::default()
    };
    let clock = Arc::new(SystemClock::new());
    let mounted = Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap();
    let root = mounted.root().unwrap();
    let context = Context::root();
    for number in 0..20 {
        let path = format!("late{number}");
        let name = Name::new(path.as_bytes()).unwrap();
        let file = root
            .create(&context, name, CreateKind::Regular, 0o644)
            .unwrap();
        if number % 4 == 0 {
            let flags = SetAttr {
                flags: Some(0x80_0000),
                ..SetAttr::default()
            };
            file.set_attr(&context, &flags).unwrap();
        }
        file.write_at(0, &vec![number + 1; 70_000]).unwrap();
    }
    drop(root);
    mounted.unmount().unwrap();
}

fn bring_back(devices: usize, profile: &str) {
    let mut pool = Pool::make(devices, 160, &["-d", profile, "-m", profile]);
    pool.run(FILL);
    let lost = pool.lose(1);
    change(&pool);
    let sums = pool.run(&SUMS.replace("ro,", "ro,degraded,"));
    pool.regain(lost);
    let repaired = scrub(&pool, true);
    assert!(repaired.super_errors > 0, "{repaired:?}");
    assert_eq!(repaired.uncorrectable_errors, 0, "{repaired:?}");
    assert_eq!(scrub(&pool, false).errors(), 0);
    assert_whole(&pool);
    assert_eq!(pool.run(SUMS), sums);
    // Another device can be missing now.
    let other = pool.lose(0);
    assert_eq!(pool.run(&SUMS.replace("ro,", "ro,degraded,")), sums);
    pool.regain(other);
}

#[test]
fn devices_that_missed_commits_are_whole_after_a_scrub() {
    bring_back(3, "raid1");
    bring_back(3, "raid5");
    bring_back(4, "raid6");
}
