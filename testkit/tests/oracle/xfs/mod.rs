//! XFS images as platter reads them, compared with a kernel mount of the same image; and of version 4, which
//! this kernel does not mount, compared with what they were made of and what `xfs_db` prints.

mod population;
mod shapes;
mod matrix;
mod copies;
mod norecovery;
mod needs_repair;
mod printed;
mod version4;
mod writing;
mod whole_files;
mod sharing;
mod growth;
mod resized;
mod images;
mod growfs;
mod tuned;
mod large_forks;
mod split_blocks;
mod link_flag;
mod attributes;
mod chunks;
mod made;
mod check;
mod quota;
mod realtime;
mod ascii_ci;
mod version4_log;
mod seeds;
mod parents;
mod corruption;
mod trash;
mod user_mount;
mod usr;

use std::path::Path;

use anyhow::{Context, Result};
use platter::block::Access as ImageAccess;
use platter::{DeviceRole, Image, MountOptions, Volume};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;

/// How an image is made and filled.
#[derive(Debug, Clone, Copy)]
struct Shape {
    name: &'static str,
    size_mib: u64,
    options: &'static [&'static str],
    external_log_mib: Option<u64>,
    /// Free space is in small pieces before directories grow.
    is_fragmented: bool,
}

/// The filesystem that holds `files` at the least must be the same for platter and for the kernel.
fn compare_with_the_kernel(shape: &Shape) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    let log = dir.path().join("log");
    let mut images: Vec<&Path> = vec![&image];
    let log_option = format!(
        "logdev={},size={}m",
        log.display(),
        shape.external_log_mib.unwrap_or(0)
    );
    let mut options = shape.options.to_vec();
    if let Some(mib) = shape.external_log_mib {
        std::fs::File::create(&log)?.set_len(mib << 20)?;
        options.extend(["-l", &log_option]);
        images.push(&log);
    }
    xfs::make(&image, shape.size_mib << 10, &options)?;
    let mount = Mount::images(FsType::Xfs, &images, "", Access::ReadWrite)?;
    population::fill(mount.root(), shape.is_fragmented).context("filling")?;
    mount.unmount_all(&images)?;
    check::assert_filled_is_clean(&images)?;

    let mount = Mount::images(FsType::Xfs, &images, "", Access::ReadOnly)?;
    let volume = open(&image, shape.external_log_mib.map(|_| log.as_path()))?;
    compare_space(&volume, mount.root())?;
    let rules = Rules {
        // The kernel makes the identity of the device number.
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let outcome = compare(&**volume.filesystem(), mount.root(), rules)?;
    outcome.assert_equal();
    assert!(outcome.files > 2000 && outcome.xattrs > 200, "{outcome}");
    Ok(())
}

fn open(image: &Path, log: Option<&Path>) -> Result<Volume> {
    let image = Image::open(image, ImageAccess::Read)?;
    let options = match log {
        Some(log) => MountOptions::new().device(DeviceRole::Log, log),
        None => MountOptions::new(),
    };
    Ok(options.mount(&image)?)
}

fn compare_space(volume: &Volume, root: &Path) -> Result<()> {
    let ours = volume.filesystem().stat_fs()?;
    let theirs = rustix::fs::statfs(root)?;
    let ours = [ours.blocks, ours.blocks_free, ours.inodes, ours.inodes_free];
    let theirs = [
        theirs.f_blocks,
        theirs.f_bfree,
        theirs.f_files,
        theirs.f_ffree,
    ];
    assert_eq!(ours, theirs, "blocks, free blocks, inodes, free inodes");
    Ok(())
}
