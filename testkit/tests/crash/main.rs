//! Power cuts, failing devices and concurrent use, in short: `cargo xtask soak` runs them long.
#![expect(
    clippy::unwrap_used,
    clippy::print_stdout,
    reason = "a panic is how a test fails, and counts are told"
)]

use testkit::crash::{Breakage, Faults, Matrix, Threads, run_threads, scene};

fn cut(name: &str, one_in: usize) {
    let matrix = Matrix {
        scene: scene(name).unwrap(),
        seeds: 0..2,
        operations: 40,
        one_in,
        e2fsck_one_in: 5,
        kernel_one_in: 40,
        breakage: Breakage::None,
        threads: 2,
        keep: None,
    };
    let counts = matrix.run().unwrap();
    println!("{name}: {counts}");
    counts.demand_none().unwrap();
}

#[test]
fn what_cuts_leave_of_ext4_is_what_was_promised() {
    cut("ext4", 4);
}

#[test]
fn what_cuts_leave_of_ext3_is_what_was_promised() {
    cut("ext3", 5);
}

#[test]
fn what_cuts_leave_of_ext2_can_be_mended_and_was_promised() {
    cut("ext2", 20);
}

#[test]
fn what_cuts_leave_of_other_features_is_what_was_promised() {
    for name in [
        "ext4_data_journal",
        "ext4_4k",
        "ext4_bigalloc",
        "ext4_inline",
        "ext4_orphan_file",
    ] {
        cut(name, 12);
    }
}

#[test]
fn a_device_that_drops_flushes_is_found_out() {
    let matrix = Matrix {
        scene: scene("ext4").unwrap(),
        seeds: 0..1,
        operations: 40,
        one_in: 5,
        e2fsck_one_in: 0,
        kernel_one_in: 0,
        breakage: Breakage::DropsFlushes,
        threads: 1,
        keep: None,
    };
    let counts = matrix.run().unwrap();
    println!("without flushes: {counts}");
    assert!(!counts.failures.is_empty());
}

#[test]
fn a_failed_write_is_reported_or_harms_nothing() {
    for (name, one_in) in [("ext4", 3), ("ext3", 3), ("ext2", 5)] {
        let faults = Faults {
            scene: scene(name).unwrap(),
            seed: 3,
            operations: 40,
            one_in,
        };
        let counts = faults.run().unwrap();
        println!("{name}: {counts}");
        counts.demand_none().unwrap();
    }
}

#[test]
fn two_threads_leave_what_the_model_says() {
    for name in ["ext4", "ext4_inline", "ext3", "ext2"] {
        for seed in 0..4 {
            run_threads(&Threads {
                scene: scene(name).unwrap(),
                seed,
                rounds: 3,
                operations: 60,
                by_e2fsck: true,
            })
            .unwrap();
        }
    }
}
