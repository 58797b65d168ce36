//! Real files. With `PLATTER_TEST_WHOLE_USR` set, all of `/usr`.

use anyhow::Result;
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::tool;

use super::{check, open};

#[test]
fn usr_in_xfs_is_read_as_in_the_kernel() -> Result<()> {
    let is_whole = std::env::var_os("PLATTER_TEST_WHOLE_USR").is_some();
    let size_mib: u64 = if is_whole { 12 << 10 } else { 300 };
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, size_mib << 10, &["-m", "rmapbt=1,reflink=1"])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    let mut shell = tool::command("sh");
    shell.args(["-c", include_str!("../copy_usr.sh"), "sh"]);
    tool::succeed(shell.arg(mount.root()))?;
    mount.unmount_all(&[&image])?;
    check::assert_clean(&image, None)?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly)?;
    let rules = Rules {
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let volume = open(&image, None)?;
    let outcome = compare(&**volume.filesystem(), mount.root(), rules)?;
    outcome.assert_equal();
    assert!(outcome.files > 500 && outcome.bytes > 4 << 20, "{outcome}");
    println!("{outcome}");
    Ok(())
}
