//! One suite for all filesystems: each case runs on the one in memory and on every driver.
#![expect(clippy::unwrap_used, reason = "a panic is how a test fails")]

use testkit::suite::{
    Candidate, acls_are_set_in_any_mode, contents_equal_a_model, failed_writes_are_reported,
    frozen_filesystem_is_clean_and_stays, operations_equal_a_model, renames_follow_the_rules,
    truncated_bytes_come_back_as_zeros, written_data_survives_writeback,
};

/// The filesystem in memory, and a scene of each format.
const CANDIDATES: [&str; 6] = [
    "memory",
    "ext4",
    "ext4_data_journal",
    "ext2",
    "xfs",
    "btrfs",
];

/// Those whose contents are compared with a model.
const CANDIDATES_OF_CONTENTS: [&str; 10] = [
    "memory",
    "ext4",
    "ext4_data_journal",
    "ext2",
    "xfs",
    "xfs_rmap",
    "xfs_1k",
    "btrfs",
    "btrfs_4k",
    "btrfs_zstd",
];

/// Seeds of random changes of contents: a range such as `0..100`, in `PLATTER_CONTENTS_SEEDS`. With
/// `PLATTER_CONTENTS_OF`, one filesystem is changed alone.
fn seeds_of_contents() -> std::ops::Range<u64> {
    let Ok(text) = std::env::var("PLATTER_CONTENTS_SEEDS") else {
        return 0..2;
    };
    let (start, end) = text.split_once("..").expect("a range");
    start.parse().unwrap()..end.parse().unwrap()
}

fn on_each(case: impl Fn(Candidate) -> anyhow::Result<()>) {
    on(&CANDIDATES, case);
}

fn on(candidates: &[&str], case: impl Fn(Candidate) -> anyhow::Result<()>) {
    for name in candidates {
        case(Candidate::named(name).unwrap()).unwrap();
    }
}

#[test]
fn operations_equal_a_model_on_each() {
    on_each(|candidate| (0..3).try_for_each(|seed| operations_equal_a_model(candidate, seed, 80)));
}

#[test]
fn contents_equal_a_model_on_most() {
    let only = std::env::var("PLATTER_CONTENTS_OF").ok();
    let candidates = match &only {
        Some(only) => &[only.as_str()],
        None => &CANDIDATES_OF_CONTENTS[..],
    };
    on(candidates, |candidate| {
        seeds_of_contents().try_for_each(|seed| contents_equal_a_model(candidate, seed, 3))
    });
}

#[test]
fn truncated_bytes_come_back_as_zeros_on_most() {
    on(&CANDIDATES_OF_CONTENTS, truncated_bytes_come_back_as_zeros);
}

#[test]
fn renames_follow_the_rules_on_each() {
    on_each(renames_follow_the_rules);
}

#[test]
fn written_data_survives_writeback_on_each() {
    on_each(written_data_survives_writeback);
}

#[test]
fn failed_writes_are_reported_on_each() {
    on_each(failed_writes_are_reported);
}

#[test]
fn frozen_filesystem_is_clean_and_stays_on_each() {
    on_each(frozen_filesystem_is_clean_and_stays);
}

#[test]
fn acls_are_set_in_any_mode_on_each() {
    on_each(acls_are_set_in_any_mode);
}
