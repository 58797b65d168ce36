//! Random edits with the command line, on every kind of filesystem.

use testkit::edits::Session;

fn edits_match_the_host(options: &'static [&'static str], seed: u64) {
    let session = Session {
        options,
        seed,
        edits: 40,
        kill_one_in: 3,
    };
    let counts = session.run().unwrap_or_else(|error| panic!("{error:#}"));
    assert!(counts.made + counts.killed_after > 10, "{counts}");
}

#[test]
fn edits_of_ext2_match_the_host_and_survive_kills() {
    edits_match_the_host(&["-t", "ext2"], 1);
}

#[test]
fn edits_of_ext3_match_the_host_and_survive_kills() {
    edits_match_the_host(&["-t", "ext3"], 2);
}

#[test]
fn edits_of_ext4_match_the_host_and_survive_kills() {
    edits_match_the_host(&["-t", "ext4"], 3);
}
