//! A filesystem that says that it must be repaired: it is read as by the kernel, which mounts it without recovery alone,
//! and neither written nor recovered.

use std::path::{Path, PathBuf};

use anyhow::{Context, Result, ensure};
use platter::block::Access as ImageAccess;
use platter::{Image, ImageSpec, MountOptions, Recovery, Volume, WriteOptions};
use platter_xfs::ondisk::features::Incompat;
use testkit::compare::{Rules, compare};
use testkit::fixtures::xfs_features;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::tool;

use super::{check, open, population};

/// What the check says of the flag.
const FOUND: &str = "superblock at group 0: filesystem needs repair (needsrepair is set)";

fn filled() -> Result<(tempfile::TempDir, PathBuf)> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    xfs::make(&image, 96 << 10, &["-m", "rmapbt=1,reflink=1"])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    population::fill(mount.root(), false).context("filling")?;
    mount.unmount_all(&[&image])?;
    Ok((dir, image))
}

/// Opens an image for writing, which must be refused with a reason, and leave the image as it is.
fn refused(image: &Path) -> Result<String> {
    let before = std::fs::read(image)?;
    let options = MountOptions::new().writing(WriteOptions::default());
    let Err(error) = options.open(&ImageSpec::parse(image)?) else {
        anyhow::bail!("it was opened for writing");
    };
    ensure!(before == std::fs::read(image)?, "the image was changed");
    Ok(error.to_string())
}

/// Compares what platter reads with the kernel's mount that skips recovery.
fn compare_with_the_kernel(image: &Path, volume: &Volume) -> Result<()> {
    let kernel = Mount::images(FsType::Xfs, &[image], "", Access::ReadOnly);
    ensure!(kernel.is_err(), "the kernel mounts it");
    let options = "norecovery,nouuid";
    let kernel = Mount::images(FsType::Xfs, &[image], options, Access::ReadOnly)?;
    let rules = Rules {
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let outcome = compare(&**volume.filesystem(), kernel.root(), rules)?;
    outcome.assert_equal();
    ensure!(outcome.files > 2000, "{outcome}");
    Ok(())
}

#[test]
fn xfs_that_needs_repair_is_read_and_not_written() -> Result<()> {
    let (_dir, image) = filled()?;
    xfs_features::set(&image, Incompat::NEEDSREPAIR, true)?;
    compare_with_the_kernel(&image, &open(&image, None)?)?;
    let errors = check::errors_in(&image)?;
    ensure!(errors == [FOUND], "{errors:?}");
    let reason = refused(&image)?;
    ensure!(reason.contains("needsrepair"), "{reason}");

    // A repair clears the flag.
    xfs::repair(&image, false)?;
    check::assert_filled_is_clean(&[&image])?;
    let options = MountOptions::new().writing(WriteOptions::default());
    let volume = options.open(&ImageSpec::parse(&image)?)?;
    volume.filesystem().unmount()?;
    Ok(())
}

#[test]
fn dirty_xfs_that_needs_repair_is_not_recovered() -> Result<()> {
    let (_dir, image) = filled()?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    std::fs::write(mount.root().join("later"), [7; 5000])?;
    let mut io = tool::command("xfs_io");
    io.args(["-x", "-c", "shutdown -f"]).arg(mount.root());
    tool::succeed(&mut io)?;
    mount.release(&[&image])?;
    xfs_features::set(&image, Incompat::NEEDSREPAIR, true)?;
    let Err(error) = open(&image, None) else {
        anyhow::bail!("its log was replayed");
    };
    for word in ["needsrepair", "norecovery"] {
        ensure!(error.to_string().contains(word), "{error}");
    }
    let reason = refused(&image)?;
    ensure!(reason.contains("needsrepair"), "{reason}");
    let volume = MountOptions::new()
        .recovery(Recovery::Skip)
        .mount(&Image::open(&image, ImageAccess::Read)?)?;
    ensure!(!volume.exists("/later")?, "the log was replayed");
    compare_with_the_kernel(&image, &volume)
}
