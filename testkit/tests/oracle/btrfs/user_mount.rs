//! What an ordinary user reads of a btrfs that the user mounted.

use std::ffi::OsStr;
use std::sync::Arc;

use anyhow::Result;
use platter_btrfs::MountOptions;
use platter_vfs::Filesystem;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::workload::Tree;

use super::image::{Pool, RULES, mount};
use super::log_cuts::Changes;
use crate::user_mount::{self, TO_USER};

/// Compares what a user reads with the tree that the kernel shows.
fn read_as_user(pool: &Pool, expected: &Tree) -> Result<()> {
    let mut arguments = Vec::new();
    for image in pool.images.iter().skip(1) {
        arguments.extend([OsStr::new("--device"), image.as_os_str()]);
    }
    arguments.push(pool.images[0].as_os_str());
    let open = || -> Result<Arc<dyn Filesystem>> {
        Ok(Arc::new(mount(&pool.devices()?, &MountOptions::default())?))
    };
    user_mount::read_as_user(&pool.images, &arguments, RULES, open, expected)
}

/// The tree that the kernel shows.
fn kernel_tree(pool: &Pool) -> Result<Tree> {
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    Tree::read_host(kernel.root())
}

#[test]
fn user_reads_files_of_all_kinds() -> Result<()> {
    let pool = Pool::make(2, 160 << 10, &["-d", "raid1", "-m", "raid1"])?;
    pool.fill("compress=zstd")?;
    pool.run("", TO_USER)?;
    // Attributes that only the superuser sees.
    pool.run("", r#"setfattr -x trusted.two "$1/deep""#)?;
    read_as_user(&pool, &kernel_tree(&pool)?)
}

#[test]
fn user_reads_what_random_changes_left() -> Result<()> {
    for (seed, options) in [(11, "compress=lzo"), (12, "nodatasum")] {
        let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
        let mounted = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::ReadWrite)?;
        let mut changes = Changes::new(mounted.root(), seed);
        for _ in 0..600 {
            changes.change();
        }
        mounted.unmount_all(&pool.paths())?;
        pool.run("", TO_USER)?;
        read_as_user(&pool, &kernel_tree(&pool)?)?;
    }
    Ok(())
}
