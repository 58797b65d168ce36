//! Power cuts, failing devices and concurrent use, in short: `cargo xtask soak` runs them long.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, and counts are printed"
)]

mod mirror;

use testkit::crash::{
    Breakage, Cost, Counts, Faults, Full, Matrix, Snapshots, Threads, costs, run_threads,
};
use testkit::fs_type::FsType;
use testkit::subject::{Mode, Scene, TORN_XFS, scene, scenes};
use testkit::workload::Durability;

fn cut(name: &str, one_in: usize) -> Counts {
    let matrix = Matrix {
        scene: scene(name).unwrap(),
        seeds: 0..4,
        states_max: usize::MAX,
        operations: 60,
        one_in,
        fsck_one_in: 2,
        kernel_one_in: 20,
        recovery_one_in: 20,
        breakage: Breakage::None,
        threads: 2,
        keep: None,
    };
    let counts = matrix.run().unwrap();
    println!("{name}: {counts}");
    counts.demand_sound(scene(name).unwrap()).unwrap();
    assert!(counts.by_fsck > 0 && counts.by_kernel > 0, "{name}");
    let is_recovered = scene(name).unwrap().mode != Mode::Unjournaled;
    assert_eq!(counts.recoveries > 0, is_recovered, "{name}");
    counts
}

#[test]
fn ext4_crash_states_keep_synced_data() {
    cut("ext4", 2);
}

#[test]
fn ext3_crash_states_keep_synced_data() {
    cut("ext3", 2);
}

#[test]
fn ext2_crash_states_are_repairable() {
    cut("ext2", 4);
}

#[test]
fn crash_states_of_other_features_keep_synced_data() {
    for name in [
        "ext4_4k",
        "ext4_bigalloc",
        "ext4_inline",
        "ext4_orphan_file",
        "ext2_4k",
    ] {
        cut(name, 6);
    }
}

#[test]
fn crash_states_of_data_modes_keep_synced_data() {
    for mode in [Mode::Journal, Mode::Writeback] {
        for scene in mode.scenes() {
            cut(scene.name, 6);
        }
    }
}

#[test]
fn xfs_crash_states_keep_synced_data() {
    for scene in scenes_of(FsType::Xfs) {
        cut(scene.name, 6);
    }
}

fn scenes_of(fs_type: FsType) -> impl Iterator<Item = &'static Scene> {
    scenes().filter(move |scene| scene.subject.fs_type() == fs_type)
}

/// Those of at most two devices: states of more take minutes, and are left to `cargo xtask soak btrfs`.
fn short_scenes_of_btrfs() -> impl Iterator<Item = &'static Scene> {
    scenes_of(FsType::Btrfs).filter(|scene| scene.members <= 2)
}

#[test]
fn btrfs_crash_states_keep_synced_data() {
    for scene in short_scenes_of_btrfs() {
        // Each device more is one more for the checker to find.
        let counts = cut(scene.name, 6 * scene.members);
        if scene.members == 1 {
            assert!(counts.logs > counts.states / 4, "{counts}");
        } else {
            // What is on several devices is synced by commits, each of one moment.
            assert_eq!(scene.durability(), Durability::Journaled);
            assert_eq!(counts.logs, 0, "{counts}");
        }
    }
}

#[test]
fn dropped_flushes_are_detected() {
    for name in ["ext4", "xfs", "xfs_logdev", "btrfs", "btrfs_raid1"] {
        let matrix = Matrix {
            scene: scene(name).unwrap(),
            seeds: 0..4,
            states_max: usize::MAX,
            operations: 60,
            one_in: 5,
            fsck_one_in: 0,
            kernel_one_in: 0,
            recovery_one_in: 0,
            breakage: Breakage::DropsFlushes,
            threads: 1,
            keep: None,
        };
        let counts = matrix.run().unwrap();
        println!("{name} without flushes: {counts}");
        assert!(!counts.failures.is_empty(), "{name}");
    }
}

#[test]
fn failed_write_is_reported_or_harmless() {
    for (name, one_in) in [
        ("ext4", 3),
        ("ext3", 3),
        ("ext2", 8),
        ("xfs", 3),
        ("xfs_wrap", 12),
        ("xfs_allocsize", 6),
        ("btrfs", 6),
        ("btrfs_raid1", 40),
    ] {
        let counts = faults(name, one_in).run().unwrap();
        println!("{name}: {counts}");
        counts.demand_none().unwrap();
        assert!(counts.reported > 0, "{name}");
    }
}

#[test]
fn mount_on_a_failing_device_loses_nothing() {
    for (name, one_in) in [
        ("ext4", 3),
        ("ext4_data_journal", 3),
        ("ext2", 1),
        ("xfs", 1),
    ] {
        let counts = faults(name, one_in).run_mounts().unwrap();
        println!("{name}: {counts}");
        counts.demand_none().unwrap();
        assert!(counts.unmounted > 0);
    }
}

fn faults(name: &str, one_in: u64) -> Faults {
    Faults {
        scene: scene(name).unwrap(),
        seed: 3,
        operations: 40,
        one_in,
        keep: None,
    }
}

fn demand_full_is_right(name: &str, seeds: std::ops::Range<u64>) {
    let mut refused = 0;
    for seed in seeds {
        let full = Full {
            scene: scene(name).unwrap(),
            seed,
            operations: 400,
            keep: None,
        };
        let counts = full.run().unwrap();
        println!("{name} seed {seed}: {counts}");
        refused += counts.refused;
    }
    assert!(refused > 0, "{name}");
}

#[test]
fn blocks_of_xfs_torn_while_written_back_are_recovered() {
    let matrix = Matrix {
        scene: &TORN_XFS,
        seeds: 0..8,
        states_max: 600,
        operations: 100,
        one_in: 1,
        fsck_one_in: 2,
        kernel_one_in: 0,
        recovery_one_in: 20,
        breakage: Breakage::None,
        threads: 2,
        keep: None,
    };
    let counts = matrix.run().unwrap();
    println!("{counts}");
    counts.demand_sound(&TORN_XFS).unwrap();
    counts.demand_every_kind(&TORN_XFS).unwrap();
}

#[test]
fn full_ext_filesystems_keep_what_they_accept() {
    for name in ["ext4", "ext4_inline"] {
        demand_full_is_right(name, 0..2);
    }
}

#[test]
fn full_xfs_keeps_what_it_accepts() {
    for name in ["xfs", "xfs_1k", "xfs_allocsize"] {
        demand_full_is_right(name, 0..2);
    }
}

#[test]
fn full_btrfs_keeps_what_it_accepts() {
    for name in ["btrfs", "btrfs_4k", "btrfs_mixed"] {
        demand_full_is_right(name, 0..2);
    }
}

#[test]
fn two_threads_agree_with_the_model() {
    let others = ["ext4", "ext4_inline", "ext3", "ext2"];
    let xfs = scenes_of(FsType::Xfs).map(|scene| scene.name);
    for name in others.into_iter().chain(xfs) {
        for seed in 0..4 {
            run_threads(&Threads {
                scene: scene(name).unwrap(),
                seed,
                rounds: 3,
                operations: 60,
                by_fsck: true,
            })
            .unwrap();
        }
    }
}

#[test]
fn two_threads_on_btrfs_agree_with_the_model() {
    for scene in short_scenes_of_btrfs() {
        for seed in 0..3 {
            run_threads(&Threads {
                scene,
                seed,
                rounds: 3,
                operations: 60,
                by_fsck: true,
            })
            .unwrap();
        }
    }
}

#[test]
fn snapshots_while_two_threads_write_are_of_one_moment() {
    for of_top_level in [false, true] {
        let mut concurrent = 0;
        for (seed, name) in (0..4).zip(["btrfs", "btrfs_zstd"].into_iter().cycle()) {
            let run = Snapshots {
                scene: scene(name).unwrap(),
                seed,
                operations: 300,
                snapshots: 8,
                of_top_level,
            };
            let counts = run.run().unwrap();
            println!("of the top level {of_top_level}, seed {seed}: {counts}");
            concurrent += counts.concurrent;
        }
        assert!(concurrent > 0);
    }
}

#[test]
fn operations_at_a_mount_have_the_expected_cost() {
    const OPERATIONS: u64 = 50;
    let costs = costs(scene("ext4_4k").unwrap(), OPERATIONS).unwrap();
    for cost in &costs {
        println!("{cost:?}");
    }
    let cost = |what| costs.iter().find(|cost| cost.what == what).unwrap();
    let asked = |cost: &Cost, kind| {
        let kinds = cost.kinds.iter();
        kinds
            .filter(|(name, _)| *name == kind)
            .map(|(_, count)| count)
            .sum::<u64>()
    };
    for (what, request, requests_each) in [
        ("create", "MKNOD", 3),
        ("rename", "RENAME", 3),
        ("unlink", "UNLINK", 2),
    ] {
        let cost = cost(what);
        assert_eq!(asked(cost, request), OPERATIONS, "{what}");
        assert!(cost.requests <= requests_each * OPERATIONS, "{what}");
        // One sync made them durable, but for what a commit by age may have taken before.
        assert!((1..=2).contains(&cost.commits), "{what}");
        assert!(cost.flushes <= 2 * cost.commits, "{what}");
        assert!(cost.journal_blocks < OPERATIONS, "{what}");
    }
    let append = cost("4 KiB append + fsync");
    for request in ["WRITE", "FSYNC"] {
        assert_eq!(asked(append, request), OPERATIONS);
    }
    assert!((OPERATIONS..=OPERATIONS + 2).contains(&append.commits));
    assert!(append.flushes <= 2 * append.commits + 2);
    let by_two = cost("the same by two threads");
    assert_eq!(asked(by_two, "FSYNC"), OPERATIONS);
    assert!(
        by_two.commits < OPERATIONS * 4 / 5,
        "two threads share commits"
    );
    let idle = cost("idle fsync");
    assert_eq!((idle.requests, idle.commits), (OPERATIONS, 0));
    assert_eq!((idle.writes, idle.flushes), (0, 0));
}
