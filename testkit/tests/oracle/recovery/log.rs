//! Transactions: what we replay is what e2fsck and the kernel replay, block for block.

use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail, ensure};
use testkit::loopdev::{Access, LoopDevice};
use testkit::oracle::{Verdict, e2fsck};
use testkit::tool;

use super::{Cut, Recovered, Scene};

/// Begins like a block of the log, so that a journal of data must escape it.
const LIKE_A_LOG_BLOCK: [u8; 12] = [0xc0, 0x3b, 0x39, 0x98, 0, 0, 0, 2, 0, 0, 0, 9];

/// Fills, empties and fills again, with a commit now and then, so that the log wraps around and
/// metadata blocks come back as data.
fn churn(root: &Path, cut: &mut dyn FnMut() -> Result<()>) -> Result<()> {
    let dir = std::fs::File::open(root)?;
    let free = rustix::fs::fstatvfs(&dir)?.f_ffree;
    for round in 0..12 {
        let names = root.join(format!("round{round}"));
        std::fs::create_dir(&names)?;
        for index in 0..90 {
            let path = names.join(format!("a file with a name of some length {index}"));
            let mut content = LIKE_A_LOG_BLOCK.repeat(20 + index * 7);
            content.resize(content.len() + index * 64, b'x');
            std::fs::write(&path, content)?;
            if index % 9 == 0 {
                symlink(&path, names.join(format!("link{index}")))?;
            }
        }
        rustix::fs::syncfs(&dir)?;
        if round > 0 {
            std::fs::remove_dir_all(root.join(format!("round{}", round - 1)))?;
        }
        // What was names becomes data: the log must revoke it.
        std::fs::write(
            root.join(format!("reuse{round}")),
            LIKE_A_LOG_BLOCK.repeat(9000),
        )?;
        // The directory, its 90 files and 10 links, and what was reused so far.
        wait_for_deletions(&dir, free - (1 + 90 + 10 + (round + 1)))?;
        rustix::fs::syncfs(&dir)?;
        if round % 5 == 4 {
            cut()?;
        }
    }
    std::fs::write(root.join("never committed"), "lost")?;
    Ok(())
}

/// Waits until the kernel has freed what was removed, which it may do a moment after the call: an
/// orphan left on the disk would be freed by the others with their replay.
fn wait_for_deletions(dir: &std::fs::File, free: u64) -> Result<()> {
    for _ in 0..500 {
        if rustix::fs::fstatvfs(dir)?.f_ffree == free {
            return Ok(());
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    bail!("removed inodes are not free after 5 s")
}

/// Has e2fsck leave the number of the journal's device in the superblock as it is: else it mends it,
/// and goes on to a whole check.
const LEAVE_DEVICE_NUMBER: &str = "[problems]\n0x000033 = {\nforce_no = true\nno_ok = true\n}\n";

/// Replays with e2fsck, which must find nothing else to do: after a whole check the blocks would no
/// longer be those of a replay.
fn replay_by_e2fsck(scene: &Scene) -> Result<()> {
    let device = scene
        .external
        .then(|| LoopDevice::attach(&scene.journal(), Access::ReadWrite));
    let device = device.transpose()?;
    let mut e2fsck = tool::command("e2fsck");
    e2fsck.args(["-y", "-E", "journal_only"]);
    if let Some(device) = &device {
        // The device has another number than when it was mounted.
        let config = scene.dir.path().join("e2fsck.conf");
        std::fs::write(&config, LEAVE_DEVICE_NUMBER)?;
        e2fsck.env("E2FSCK_CONFIG", config);
        e2fsck.arg("-j").arg(device.path());
    }
    let finished = tool::finish(e2fsck.arg(scene.image()))?;
    let text = finished.text();
    ensure!(finished.code()? < 4, "e2fsck: {text}");
    ensure!(
        !text.contains("Pass 1"),
        "e2fsck did not only replay: {text}"
    );
    Ok(())
}

/// Recovers a cut, and demands that e2fsck and the kernel make the same of it, block for block.
pub(crate) fn compare_with_others(cut: &Cut) -> Result<Recovered> {
    let ours = cut.recover()?;
    let theirs = cut.save()?;
    replay_by_e2fsck(&theirs)?;
    ours.assert_same_blocks(&std::fs::read(theirs.image())?, "e2fsck");
    let kernel = cut.recovered_by_kernel()?;
    ours.assert_same_blocks(&std::fs::read(kernel.image())?, "the kernel");
    if cut.journal.is_none() {
        let verdict = e2fsck::check(&kernel.image())?;
        ensure!(verdict == Verdict::Clean, "after the kernel: {verdict:?}");
        let verdict = e2fsck::check(&ours.save()?.image())?;
        ensure!(verdict == Verdict::Clean, "after us: {verdict:?}");
    }
    Ok(ours)
}

/// `features` are those the journal must turn out to have.
fn examine(scene: &Scene, options: &str, features: &[&str]) -> Result<()> {
    let cuts = scene.cuts(options, churn)?;
    ensure!(cuts.len() == 3, "a cut was not taken");
    let (mut transactions, mut revoked) = (0, 0);
    for cut in &cuts {
        let ours = compare_with_others(cut)?;
        // The kernel writes revoke blocks before its superblock says that there are such.
        let known = ours.features.iter().copied();
        let known: Vec<_> = known
            .filter(|name| *name != "journal_incompat_revoke")
            .collect();
        assert_eq!(known, features);
        transactions += ours.report.log.transactions;
        revoked += ours.report.log.blocks_revoked;
    }
    ensure!(transactions > 0, "no cut held a transaction");
    // Journaled data fills the log so fast that little of it is live at any moment.
    let fills_the_log = options.contains("data=journal");
    ensure!(revoked > 0 || fills_the_log, "nothing was revoked");
    Ok(())
}

fn examine_made(options: &[&str], mount: &str, features: &[&str]) -> Result<()> {
    examine(&Scene::make(48 << 10, options)?, mount, features)
}

#[test]
fn version_3_checksums_with_64_bit_numbers() -> Result<()> {
    examine_made(
        &["-t", "ext4", "-b", "1024", "-J", "size=2"],
        "",
        &["journal_64bit", "journal_checksum_v3"],
    )
}

#[test]
fn version_3_checksums_with_32_bit_numbers_in_4k_blocks() -> Result<()> {
    examine_made(
        &["-t", "ext4", "-b", "4096", "-O", "^64bit", "-J", "size=4"],
        "",
        &["journal_checksum_v3"],
    )
}

#[test]
fn data_in_the_journal_is_escaped() -> Result<()> {
    let options = ["-t", "ext4", "-b", "2048", "-J", "size=4"];
    examine_made(
        &options,
        "data=journal",
        &["journal_64bit", "journal_checksum_v3"],
    )
}

#[test]
fn no_checksums() -> Result<()> {
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^metadata_csum",
        "-J",
        "size=2",
    ];
    examine_made(&options, "", &["journal_64bit"])
}

#[test]
fn version_1_checksums() -> Result<()> {
    let options = [
        "-t",
        "ext4",
        "-b",
        "1024",
        "-O",
        "^metadata_csum,^64bit",
        "-J",
        "size=2",
    ];
    examine_made(&options, "journal_checksum", &["journal_checksum"])
}

#[test]
fn version_1_checksums_with_commits_that_overtake() -> Result<()> {
    let options = [
        "-t",
        "ext4",
        "-b",
        "4096",
        "-O",
        "^metadata_csum",
        "-J",
        "size=4",
    ];
    examine_made(
        &options,
        "journal_async_commit,data=writeback",
        &["journal_checksum", "journal_64bit", "journal_async_commit"],
    )
}

#[test]
fn ext3_with_data_in_the_journal() -> Result<()> {
    examine_made(
        &["-t", "ext3", "-b", "1024", "-J", "size=2"],
        "data=journal",
        &[],
    )
}

#[test]
fn journal_on_a_device_of_its_own() -> Result<()> {
    for block_bytes in ["1024", "4096"] {
        let scene = Scene::make_external(48 << 10, block_bytes, None)?;
        let features = ["journal_64bit", "journal_checksum_v3"];
        examine(&scene, "", &features)?;
    }
    Ok(())
}
