//! Quota, which the kernel here does not know: `xfs_repair` counts, and so does the check.

use std::path::PathBuf;

use anyhow::{Result, ensure};
use testkit::fixtures::xfs_quota::{self, KINDS, Uses, uses};
use testkit::oracle::{Verdict, xfs};

use super::check;

/// A filesystem with quota files that say so.
fn make(uses: &[Uses; 3]) -> Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs_quota::make(&image, 96 << 10, uses)?;
    Ok((dir, image))
}

#[test]
fn xfs_check_counts_quota_as_xfs_repair_does() -> Result<()> {
    let (_dir, image) = make(&uses())?;
    check::assert_clean(&image, None)?;
    for (of, id, wrong) in [
        // Blocks, inodes, both, of an id that owns nothing, and of the files of the realtime section.
        (1, 9, (2, 1)),
        (0, 7, (19, 3)),
        (2, 0, (19, 5)),
        (0, 7, (0, 0)),
        (1, 20, (0, 1)),
        (0, 0, (0, 1)),
    ] {
        let mut uses = uses();
        uses[of].insert(id, wrong);
        let (_dir, image) = make(&uses)?;
        let what = format!("{} of {id}: {wrong:?}", KINDS[of].1);
        let theirs = xfs::check(&[&image])?;
        let Verdict::NotClean(lines) = theirs else {
            panic!("{what}: {theirs:?}");
        };
        let name = KINDS[of].1.trim_end_matches('s');
        let named = format!("{name} quota id {id} has ");
        let is_only = |line: &String| !line.contains(" quota id ") || line.starts_with(&named);
        ensure!(lines.iter().all(is_only), "{what}: {lines:?}");
        ensure!(
            lines.iter().any(|line| line.starts_with(&named)),
            "{what}: {lines:?}"
        );
        let number = xfs_quota::number(of);
        let found = format!("quota file at inode {number}: quota counts do not match the inodes");
        let ours = check::errors_in(&image)?;
        ensure!(ours == [found], "{what}: {ours:?}");
    }
    Ok(())
}

/// `xfs_repair` drops quota files with a size.
#[test]
fn xfs_check_finds_quota_files_with_a_size() -> Result<()> {
    let (_dir, image) = make(&uses())?;
    let number = xfs_quota::number(1);
    let commands = [format!("inode {number}"), "write core.size 4096".to_owned()];
    xfs::change(&image, &commands)?;
    let theirs = xfs::check(&[&image])?.complaints();
    let line = format!("size of quota inode {number} != 0 (4096 bytes)");
    ensure!(theirs.contains(&line), "{theirs:?}");
    let ours = check::errors_in(&image)?;
    ensure!(
        ours == [format!("inode at inode {number}: bad size")],
        "{ours:?}"
    );
    Ok(())
}
