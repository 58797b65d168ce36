//! What an ordinary user reads of a btrfs that the user mounted.

use std::ffi::OsStr;
use std::path::PathBuf;
use std::sync::Arc;

use anyhow::{Result, ensure};
use platter_btrfs::{MountOptions, SubvolumeChoice};
use platter_vfs::Filesystem;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::workload::Tree;

use super::changes::Changes;
use super::image::{Pool, RULES, mount, open};
use crate::user_mount::{self, TO_USER};

/// Removes attributes that only the superuser sees.
const WITHOUT_TRUSTED: &str = r#"setfattr -x trusted.two "$1/deep""#;

/// Compares what a user reads of `images`, mounted with an option, with the tree that the kernel shows. The images stay
/// as they are.
fn read_as_user(
    images: &[PathBuf],
    option: &str,
    options: &MountOptions,
    expected: &Tree,
) -> Result<()> {
    let mut arguments = Vec::new();
    if !option.is_empty() {
        arguments.extend([OsStr::new("-o"), OsStr::new(option)]);
    }
    for image in images.iter().skip(1) {
        arguments.extend([OsStr::new("--device"), image.as_os_str()]);
    }
    arguments.push(images[0].as_os_str());
    let read = || {
        images
            .iter()
            .map(std::fs::read)
            .collect::<Result<Vec<_>, _>>()
    };
    let before = read()?;
    let open = || -> Result<Arc<dyn Filesystem>> { Ok(Arc::new(mount(&open(images)?, options)?)) };
    user_mount::read_as_user(images, &arguments, RULES, open, expected)?;
    ensure!(before == read()?, "an image has changed");
    Ok(())
}

/// The tree that the kernel shows.
fn kernel_tree(pool: &Pool, options: &str, access: Access) -> Result<Tree> {
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), options, access)?;
    Tree::read_host(kernel.root())
}

/// A filesystem of files of all kinds that belong to the user.
fn filled(devices: usize, mkfs: &[&str]) -> Result<Pool> {
    let pool = Pool::make(devices, 160 << 10, mkfs)?;
    pool.fill("compress=zstd")?;
    pool.run("", TO_USER)?;
    pool.run("", WITHOUT_TRUSTED)?;
    Ok(pool)
}

#[test]
fn user_reads_files_of_all_kinds() -> Result<()> {
    let pool = filled(2, &["-d", "raid1", "-m", "raid1"])?;
    let expected = kernel_tree(&pool, "", Access::ReadOnly)?;
    read_as_user(&pool.images, "", &MountOptions::default(), &expected)
}

#[test]
fn user_reads_a_degraded_btrfs() -> Result<()> {
    let pool = filled(3, &["-d", "raid5", "-m", "raid1c3"])?;
    let expected = kernel_tree(&pool, "", Access::ReadOnly)?;
    let options = MountOptions {
        degraded: true,
        ..MountOptions::default()
    };
    read_as_user(&pool.images[1..], "degraded", &options, &expected)
}

/// Changes of files of the user that `fsync` makes durable.
const SYNCED: &str = r#"
cd "$1"
seq 30000 > new
ln -s text new_link
chown -h 65534:65534 new new_link
sync new
echo more >> text
sync text
mv size.100 moved
ln size.1 names/link
rm names/name.7?
setfattr -n user.new -v value moved
sync moved names
"#;

#[test]
fn user_reads_a_btrfs_with_a_dirty_log() -> Result<()> {
    let pool = filled(1, &[])?;
    let frozen = pool.copy_with_log(SYNCED)?;
    let expected = kernel_tree(&frozen.copy()?, "", Access::Replay)?;
    for path in ["new", "moved", "names/link"] {
        assert!(expected.entries.contains_key(path), "{path} is not logged");
    }
    read_as_user(&frozen.images, "", &MountOptions::default(), &expected)
}

/// A subvolume with another one in it.
const SUBVOLUMES: &str = r#"
cd "$1"
btrfs subvolume create sub
cp -a names text deep sub/
btrfs subvolume create sub/deep/inner
cp text sub/deep/inner/
"#;

#[test]
fn user_reads_a_subvolume() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    pool.fill("")?;
    pool.run("", WITHOUT_TRUSTED)?;
    pool.run("", SUBVOLUMES)?;
    pool.run("", TO_USER)?;
    let option = "subvol=sub";
    let expected = kernel_tree(&pool, option, Access::ReadOnly)?;
    assert!(expected.entries.contains_key("deep/inner/text"));
    assert!(!expected.entries.contains_key("links"));
    let options = MountOptions {
        subvolume: SubvolumeChoice::Path(b"sub".to_vec()),
        ..MountOptions::default()
    };
    read_as_user(&pool.images, option, &options, &expected)
}

#[test]
fn user_reads_what_random_changes_left() -> Result<()> {
    for (seed, options) in [(11, "compress=lzo"), (12, "nodatasum")] {
        let pool = Pool::make(1, 200 << 10, &["-n", "4096"])?;
        let mounted = Mount::images(FsType::Btrfs, &pool.paths(), options, Access::ReadWrite)?;
        let mut changes = Changes::new(&[mounted.root().to_owned()], seed);
        for _ in 0..600 {
            changes.change()?;
        }
        changes.finish();
        mounted.unmount_all(&pool.paths())?;
        pool.run("", TO_USER)?;
        let expected = kernel_tree(&pool, "", Access::ReadOnly)?;
        read_as_user(&pool.images, "", &MountOptions::default(), &expected)?;
    }
    Ok(())
}
