//! Random edits with the command line, on every kind of filesystem.

use testkit::edits::{Maker, Session};

fn edits_match_the_host(maker: Maker, seed: u64) {
    let session = Session {
        maker,
        seed,
        edits: 40,
        kill_one_in: 3,
    };
    let counts = session.run().unwrap_or_else(|error| panic!("{error:#}"));
    assert!(counts.made + counts.killed_after > 10, "{counts}");
}

#[test]
fn edits_of_ext2_match_the_host_and_survive_kills() {
    edits_match_the_host(Maker::Ext(&["-t", "ext2"]), 1);
}

#[test]
fn edits_of_ext3_match_the_host_and_survive_kills() {
    edits_match_the_host(Maker::Ext(&["-t", "ext3"]), 2);
}

#[test]
fn edits_of_ext4_match_the_host_and_survive_kills() {
    edits_match_the_host(Maker::Ext(&["-t", "ext4"]), 3);
}

#[test]
fn edits_of_xfs_match_the_host_and_survive_kills() {
    edits_match_the_host(Maker::Xfs(&["-m", "rmapbt=1"]), 4);
}

#[test]
fn edits_of_btrfs_match_the_host_and_survive_kills() {
    edits_match_the_host(Maker::Btrfs(&[]), 6);
}

#[test]
fn edits_of_a_mixed_btrfs_survive_kills() {
    edits_match_the_host(Maker::Btrfs(&["--mixed", "--csum", "xxhash"]), 7);
}

#[test]
fn edits_of_xfs_with_small_blocks_survive_kills() {
    let options = &["-b", "size=1024", "-n", "size=8192", "-i", "sparse=0"];
    edits_match_the_host(Maker::Xfs(options), 5);
}
