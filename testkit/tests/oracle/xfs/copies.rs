//! Filesystems whose primary superblock is bad, read through a copy of it.

use std::fs::File;
use std::os::unix::fs::FileExt;

use anyhow::Result;
use platter::block::Access as ImageAccess;
use platter::{Image, MountOptions};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;

use super::{compare_space, population};

#[test]
fn xfs_is_read_through_a_copy_of_its_superblock() -> Result<()> {
    let dir = tempfile::tempdir()?;
    let (image, corrupt) = (dir.path().join("image"), dir.path().join("corrupt"));
    xfs::make(&image, 160 << 10, &[])?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite)?;
    population::fill(mount.root(), false)?;
    mount.unmount_all(&[&image])?;
    std::fs::copy(&image, &corrupt)?;
    let file = File::options().write(true).open(&corrupt)?;
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly)?;
    file.write_all_at(&[0x77], 300)?;
    let opened = Image::open(&corrupt, ImageAccess::Read)?;
    let refused = MountOptions::new().mount(&opened).unwrap_err();
    let at = platter_xfs::superblock::find_copy(&**opened.device()).expect("a copy");
    assert!(
        refused.to_string().contains(&format!("{}", at / 1024)),
        "{refused}"
    );
    let volume = MountOptions::new()
        .superblock_kib(at / 1024)
        .mount(&opened)?;
    compare_space(&volume, mount.root())?;
    let rules = Rules {
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    compare(&**volume.filesystem(), mount.root(), rules)?.assert_equal();
    // Nothing that could be recognised.
    file.write_all_at(&[0; 512], 0)?;
    let found = platter_xfs::superblock::find_copy(&**opened.device());
    assert_eq!(found, Some(at));
    drop(volume);
    let opened = Image::open(&corrupt, ImageAccess::Read)?;
    let refused = MountOptions::new().mount(&opened).unwrap_err().to_string();
    assert!(refused.contains(&format!("{}", at / 1024)), "{refused}");
    let volume = MountOptions::new()
        .superblock_kib(at / 1024)
        .mount(&opened)?;
    // Pages that the kernel has read over unwritten extents are data to it.
    drop(mount);
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadOnly)?;
    compare(&**volume.filesystem(), mount.root(), rules)?.assert_equal();
    Ok(())
}
