//! What commits count under loads of a mount: many files created, and random writes with many commits. The numbers are
//! printed; the tests demand what makes them worth something.

use std::sync::Arc;

use platter_cache::MemoryBudget;
use platter_vfs::{Context, CreateKind, Filesystem, Name, SystemClock};

use super::{Btrfs, MountOptions};
use crate::delayed_refs::DelayedRefCounters;
use crate::txn::tests::Random;
use crate::txn::tests::image::Pool;
use crate::txn::{CommitReport, WriteOptions, convert};

fn mount(pool: &Pool, transactions: WriteOptions) -> Btrfs {
    let budget = Arc::new(MemoryBudget::new(64 << 20));
    let options = MountOptions {
        transactions,
        ..MountOptions::default()
    };
    let clock = Arc::new(SystemClock::new());
    Btrfs::mount_writable(&pool.devices(), &options, budget, clock).unwrap()
}

fn name(name: &str) -> Name<'_> {
    Name::new(name.as_bytes()).unwrap()
}

fn files() -> u32 {
    let given = std::env::var("PLATTER_BTRFS_FILES").ok();
    given.and_then(|text| text.parse().ok()).unwrap_or(6000)
}

/// The sums of all commits.
fn sums(mounted: &Btrfs) -> (DelayedRefCounters, CommitReport) {
    let counters = mounted.super_block().writing().unwrap();
    (counters.delayed_refs().counters(), counters.last_commit())
}

#[test]
fn references_of_many_new_files_wait_in_heads() {
    let pool = Pool::make(1, 1024, &["-m", "single"]);
    let mounted = mount(&pool, WriteOptions::default());
    let root = mounted.root().unwrap();
    let context = Context::root();
    std::thread::scope(|scope| {
        for thread in 0..2 {
            let (root, context) = (&root, &context);
            scope.spawn(move || {
                let dir = name(&format!("thread{thread}")).as_bytes().to_vec();
                let dir = Name::new(&dir).unwrap();
                let dir = root.create(context, dir, CreateKind::Directory, 0o755);
                let dir = dir.unwrap();
                for number in 0..files() / 2 {
                    let path = format!("{:016x}", u64::from(number).wrapping_mul(0x9e37_79b9));
                    dir.create(context, name(&path), CreateKind::Regular, 0o644)
                        .unwrap();
                }
            });
        }
    });
    drop(root);
    mounted.sync().unwrap();
    let (counters, report) = sums(&mounted);
    println!("{} files: {counters:?}", files());
    println!(
        "present at insert: median {}, 99 % {}; last commit: {report:?}",
        counters.present_at(50),
        counters.present_at(99)
    );
    // Each reference that is queued is run, or cancelled by a later one.
    let gone = counters.run + counters.cancelled;
    assert!(gone <= counters.refs + counters.merged_refs && gone > 0);
    assert!(
        mounted
            .super_block()
            .writing()
            .unwrap()
            .delayed_refs()
            .is_empty()
    );
    assert!(counters.present_at(99) >= 16);
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
}

fn random_writes(pool: &Pool, skips: bool, commits: u64) -> Vec<CommitReport> {
    let transactions = WriteOptions {
        skips_unchanged_groups: skips,
        ..WriteOptions::default()
    };
    let mounted = mount(pool, transactions);
    let root = mounted.root().unwrap();
    let context = Context::root();
    let file = root
        .create(&context, name("file"), CreateKind::Regular, 0o644)
        .unwrap();
    let mut random = Random(1);
    let mut reports = Vec::new();
    file.write_at(0, &vec![1; 24 << 20]).unwrap();
    file.sync(false).unwrap();
    for commit in 0..commits {
        for _ in 0..64 {
            let fill = u8::try_from(commit % 250).unwrap();
            file.write_at(random.below(6 << 10) << 12, &[fill; 4096])
                .unwrap();
        }
        mounted.sync().unwrap();
        reports.extend(mounted.last_commit());
        pool.assert_clean();
    }
    drop((root, file));
    mounted.unmount().unwrap();
    drop(mounted);
    pool.assert_clean();
    reports
}

#[test]
fn unchanged_groups_are_skipped_under_random_writes() {
    let commits = std::env::var("PLATTER_BTRFS_COMMITS").ok();
    let commits = commits.and_then(|text| text.parse().ok()).unwrap_or(12);
    for has_group_tree in [false, true] {
        let mut skipped = 0;
        for skips in [false, true] {
            let pool = Pool::make(1, 512, &["-m", "single"]);
            if has_group_tree {
                let mut fs = pool.open(WriteOptions::default());
                convert::to_block_group_tree(&mut fs).unwrap();
            }
            let reports = random_writes(&pool, skips, commits);
            let sum = |part: &dyn Fn(&CommitReport) -> u64| reports.iter().map(part).sum::<u64>();
            let both = |part: &dyn Fn(&crate::block_group::BlockGroupCounters) -> u64| {
                sum(&|it| part(&it.groups_before) + part(&it.groups))
            };
            println!(
                "group tree {has_group_tree}, skips {skips}: {commits} commits, groups dirty {}, skipped {}, written {}, \
                 inserted {}, blocks copied by the loop {}, references {}, loop {} ns, critical {} ns, \
                 blocks written {}",
                both(&|it| it.dirty),
                both(&|it| it.skipped),
                both(&|it| it.written),
                both(&|it| it.inserted),
                both(&|it| it.blocks_copied),
                both(&|it| it.refs_created),
                both(&|it| it.nanoseconds),
                sum(&|it| it.critical_nanoseconds),
                sum(&|it| it.blocks_written),
            );
            assert_eq!(
                both(&|it| it.dirty),
                both(&|it| it.skipped + it.written + it.inserted)
            );
            skipped = both(&|it| it.skipped);
            assert!(skips || skipped == 0);
        }
        assert!(skipped > 0);
    }
}
