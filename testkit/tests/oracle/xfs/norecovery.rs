//! A dirty log that is not replayed: what lies in its place is read, as by a kernel mount with the same option.

use anyhow::{Context, Result};
use platter::block::Access as ImageAccess;
use platter::{Image, MountOptions, Recovery};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::tool;

use super::{open, population};

#[test]
fn xfs_without_its_log_is_read_as_in_the_kernel() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &["-m", "rmapbt=1,reflink=1"])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    population::fill(mount.root(), false).context("filling")?;
    mount.unmount_all(&[&image])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    std::fs::write(mount.root().join("later"), [7; 5000])?;
    std::fs::remove_file(mount.root().join("contents/pieces"))?;
    let mut io = tool::command("xfs_io");
    io.args(["-x", "-c", "shutdown -f"]).arg(mount.root());
    tool::succeed(&mut io)?;
    mount.release(&[&image])?;
    assert!(matches!(xfs::check(&[&image])?, Verdict::Refused(_)));

    let options = "norecovery,nouuid";
    let kernel = Mount::images(FsType::Xfs, &[&image], options, Access::ReadOnly)?;
    let volume = MountOptions::new()
        .recovery(Recovery::Skip)
        .mount(&Image::open(&image, ImageAccess::Read)?)?;
    let rules = Rules {
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let outcome = compare(&**volume.filesystem(), kernel.root(), rules)?;
    outcome.assert_equal();
    assert!(outcome.files > 2000, "{outcome}");
    let names = |volume: &platter::Volume| -> Result<(bool, bool)> {
        Ok((volume.exists("/later")?, volume.exists("/contents/pieces")?))
    };
    assert_eq!(names(&volume)?, (false, true));
    assert_eq!(names(&open(&image, None)?)?, (true, false));
    Ok(())
}
