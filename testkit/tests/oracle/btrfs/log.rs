//! Log trees: images as they are after `fsync`, without a commit, compared with the kernel's replay.

use anyhow::{Context, Result, ensure};
use platter_btrfs::{MountOptions, Rescue};
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::tool;

use super::image::{Pool, RULES, log_roots, mount};

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

/// How many files that makes, with the root.
const FILES_BEFORE: u64 = 12;

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

/// Subvolumes that are there before, too.
const SUBVOLUMES: &str = r"
btrfs subvolume create sub
cp --reflink=always text sub/text
mkdir sub/dir
echo one > sub/dir/one
sync -f .
btrfs subvolume snapshot sub snap
btrfs subvolume create another
echo text > another/text
sync -f .
";

/// Changes in subvolumes that are made durable by `fsync`, and how many subvolumes have a log tree then.
const CHANGES_OF_SUBVOLUMES: [(&str, &str, usize); 5] = [
    ("subvolume", "seq 3000 > sub/new; sync sub/new", 1),
    (
        "two_subvolumes",
        "seq 5000 >> sub/text; sync sub/text; echo more > another/new; sync another/new",
        2,
    ),
    (
        "snapshot",
        "seq 7 | dd of=snap/text conv=notrunc status=none; sync snap/text; echo x >> text; sync text",
        2,
    ),
    (
        "same_name",
        "mv sub/dir/one sub/dir/two; sync sub/dir/two; rm snap/dir/one; echo x > snap/dir/two; sync snap/dir",
        2,
    ),
    (
        "all",
        "for dir in . sub another snap; do echo $dir > $dir/new; ln $dir/text $dir/link; sync $dir/new; sync $dir/text; done",
        4,
    ),
];

/// Compares the images of a filesystem after changes that no commit followed with what the kernel makes of
/// them. Returns how many subvolumes have a log tree: the kernel commits instead where that is simpler.
fn examine(mkfs: (usize, &[&str]), before: &str, script: &str) -> Result<usize> {
    let (devices, options) = mkfs;
    let pool = Pool::make(devices, 160 << 10, options)?;
    pool.run("", &format!("{BEFORE}{before}"))?;
    let mounted = Mount::images(
        FsType::Btrfs,
        &pool.paths(),
        "commit=300",
        Access::ReadWrite,
    )?;
    let mut shell = tool::command("sh");
    shell.args(["-c", &format!("set -e; cd $1; {script}"), "sh"]);
    tool::succeed(shell.arg(mounted.root()))?;
    let frozen = pool.copy()?;
    mounted.unmount_all(&pool.paths())?;
    let devices = frozen.devices()?;
    let btrfs = mount(&devices, &MountOptions::default())?;
    let roots = log_roots(&btrfs)?;
    let skipping = MountOptions {
        rescue: Rescue {
            skips_log: true,
            ..Rescue::default()
        },
        ..MountOptions::default()
    };
    let old = mount(&devices, &skipping)?;
    let replayed = frozen.copy()?;
    let options = "rescue=nologreplay";
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), options, Access::ReadOnly)?;
    let outcome = compare(&old, kernel.root(), RULES)?;
    ensure!(outcome.files >= FILES_BEFORE, "{outcome}");
    ensure!(outcome.differences == 0, "without the log: {outcome}");
    kernel.release(&replayed.paths())?;
    let replayed = frozen.copy()?;
    let rules = replayed.replay_rules()?;
    let kernel = Mount::images(FsType::Btrfs, &replayed.paths(), "", Access::Replay)?;
    let outcome = compare(&btrfs, kernel.root(), rules)?;
    ensure!(outcome.files >= FILES_BEFORE, "{outcome}");
    ensure!(outcome.differences == 0, "{outcome}");
    Ok(roots)
}

#[test]
fn log_trees_are_replayed_as_by_the_kernel() -> Result<()> {
    let mut logs = 0;
    for (name, script) in CHANGES {
        logs += examine((1, &[]), "", script).context(name)?;
    }
    assert!(logs >= CHANGES.len() / 2, "{logs} images have a log");
    Ok(())
}

#[test]
fn log_trees_of_subvolumes_are_replayed_as_by_the_kernel() -> Result<()> {
    for (name, script, expected) in CHANGES_OF_SUBVOLUMES {
        let raid1 = ["-d", "raid1", "-m", "raid1"];
        for mkfs in [(1, &[][..]), (2, &raid1)] {
            let roots = examine(mkfs, SUBVOLUMES, script).context(name)?;
            assert_eq!(roots, expected, "{name}, {mkfs:?}");
        }
    }
    Ok(())
}

#[test]
fn log_of_many_changes_is_replayed_as_by_the_kernel() -> Result<()> {
    let all: Vec<&str> = CHANGES
        .iter()
        .filter(|(name, _)| !["rename", "move", "small_file", "directory"].contains(name))
        .map(|(_, script)| *script)
        .collect();
    assert_eq!(examine((1, &[]), "", &all.join("; "))?, 1);
    Ok(())
}
