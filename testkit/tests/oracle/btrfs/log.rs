//! Log trees: images as they are after `fsync`, without a commit, compared with the kernel's replay.

use anyhow::Result;
use platter_btrfs::{MountOptions, Rescue};
use testkit::compare::{Outcome, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::tool;

use super::image::{Pool, RULES, mount, open};

/// What is there before.
const BEFORE: &str = r"
set -e
cd $1
seq 20000 > text
cp text old
cp text other
ln old second
mkdir dir
seq 100 > dir/one
seq 200 > dir/two
seq 300 > dir/three
setfattr -n user.gone -v x text
mkdir -p deep/er
seq 5 > deep/er/file
sync -f .
";

/// Changes that are made durable by `fsync`.
const CHANGES: [(&str, &str); 14] = [
    ("new_file", "seq 3000 > new; sync new"),
    ("small_file", "echo small > new; sync new"),
    ("append", "seq 50000 >> text; sync text"),
    (
        "overwrite",
        "seq 9000 | dd of=text bs=4096 seek=2 conv=notrunc status=none; sync text",
    ),
    ("truncate", "truncate -s 5001 text; sync text"),
    ("rename", "mv text renamed; sync renamed"),
    ("move", "mv text dir/moved; sync dir/moved"),
    ("link", "ln text dir/link; sync text"),
    ("unlink", "rm dir/two; echo x > dir/four; sync dir"),
    ("replace", "seq 7 > tmp; mv tmp old; sync old"),
    (
        "directory",
        "mkdir new; seq 10 > new/file; ln -s to new/link; sync new; sync new/file",
    ),
    (
        "attributes",
        "setfattr -x user.gone text; setfattr -n user.new -v y text; chmod 600 text; sync text",
    ),
    (
        "holes",
        "fallocate -p -o 8192 -l 16384 text; fallocate -l 300000 other; sync text; sync other",
    ),
    (
        "reflink",
        "cp --reflink=always text clone; sync clone; seq 5 > deep/er/new; sync deep/er/new",
    ),
];

/// Compares the image of a filesystem after changes that no commit followed with what the kernel makes of
/// it. Returns whether there is a log: the kernel commits instead where that is simpler.
fn examine(script: &str) -> Result<(bool, Outcome)> {
    let pool = Pool::make(1, 120 << 10, &[])?;
    pool.run("", BEFORE)?;
    let frozen = Pool::empty(1)?;
    let mounted = Mount::images(
        FsType::Btrfs,
        &pool.paths(),
        "commit=300",
        Access::ReadWrite,
    )?;
    let mut shell = tool::command("sh");
    shell.args(["-c", &format!("set -e; cd $1; {script}"), "sh"]);
    tool::succeed(shell.arg(mounted.root()))?;
    std::fs::copy(&pool.images[0], &frozen.images[0])?;
    mounted.unmount_all(&pool.paths())?;
    let devices = open(&frozen.images)?;
    let btrfs = mount(&devices, &MountOptions::default())?;
    let has_log = btrfs.superblock().log_root.is_some();
    let skipping = MountOptions {
        rescue: Rescue {
            skips_log: true,
            ..Rescue::default()
        },
        ..MountOptions::default()
    };
    let old = mount(&devices, &skipping)?;
    let replayed = Pool::empty(1)?;
    std::fs::copy(&frozen.images[0], &replayed.images[0])?;
    let options = "rescue=nologreplay";
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), options, Access::ReadOnly)?;
    let outcome = compare(&old, kernel.root(), RULES)?;
    assert!(outcome.files >= 6, "{outcome}");
    assert_eq!(outcome.differences, 0, "without the log: {outcome}");
    kernel.release(&replayed.paths())?;
    std::fs::copy(&frozen.images[0], &replayed.images[0])?;
    let rules = replayed.replay_rules()?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::Replay)?;
    Ok((has_log, compare(&btrfs, kernel.root(), rules)?))
}

#[test]
fn log_trees_are_replayed_as_by_the_kernel() -> Result<()> {
    let mut logs = 0;
    for (name, script) in CHANGES {
        let (has_log, outcome) = examine(script)?;
        assert_eq!(outcome.differences, 0, "{name}: {outcome}");
        logs += usize::from(has_log);
    }
    assert!(logs >= CHANGES.len() / 2, "{logs} images have a log");
    Ok(())
}

#[test]
fn log_of_many_changes_is_replayed_as_by_the_kernel() -> Result<()> {
    let all: Vec<&str> = CHANGES
        .iter()
        .filter(|(name, _)| !["rename", "move", "small_file", "directory"].contains(name))
        .map(|(_, script)| *script)
        .collect();
    let (has_log, outcome) = examine(&all.join("; "))?;
    assert!(has_log);
    assert_eq!(outcome.differences, 0, "{outcome}");
    Ok(())
}
