//! Which devices belong together: seeds and what grew out of them, changed UUIDs, devices that are missing.

use std::fs::File;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::Result;
use platter_btrfs::{MountOptions, find_superblock_copy, identify_all};
use testkit::compare::compare;
use testkit::fs_type::FsType;
use testkit::loopdev::{self, Access, LoopDevice, Mount};
use testkit::oracle::btrfs;
use testkit::tool;

use super::image::{Pool, RULES, mount, open};

/// Adds a device to a mounted seed, in a mount namespace that ends with the shell.
const GROW: &str = r#"
set -e
mount -t tmpfs none /mnt
mkdir /mnt/fs
mount -t btrfs "$1" /mnt/fs
btrfs device add -f "$2" /mnt/fs
umount /mnt/fs
btrfs device scan --forget "$1" "$2"
"#;

/// Makes a seed of a filesystem.
fn to_seed(image: &Path) -> Result<()> {
    tool::succeed(
        tool::command("btrfstune")
            .args(["-f", "-S", "1"])
            .arg(image),
    )?;
    Ok(())
}

/// Grows the filesystem on `seed` onto a new image.
fn grow(seed: &Path, sprout: &Path) -> Result<()> {
    File::create(sprout)?.set_len(160 << 20)?;
    let devices = [
        LoopDevice::attach(seed, Access::ReadWrite)?,
        LoopDevice::attach(sprout, Access::ReadWrite)?,
    ];
    let mut unshare = tool::command("unshare");
    unshare.args(["--mount", "sh", "-c", GROW, "sh"]);
    tool::succeed(unshare.args(devices.iter().map(LoopDevice::path)))?;
    Ok(())
}

/// A seed and the filesystem that grew out of it, with files on both: the sprout is the first.
fn sprout() -> Result<Pool> {
    let pool = Pool::empty(2)?;
    let (sprout, seed) = (&pool.images[0], &pool.images[1]);
    btrfs::make(&[seed], 160 << 10, &["-n", "4096"])?;
    fill(&[seed])?;
    to_seed(seed)?;
    grow(seed, sprout)?;
    pool.run(
        "",
        r#"cd "$1"; seq 100000 > grown; echo more >> text; rm large"#,
    )?;
    Ok(pool)
}

fn fill(images: &[&Path]) -> Result<()> {
    let mount = Mount::images(FsType::Btrfs, images, "", Access::ReadWrite)?;
    let mut shell = tool::command("sh");
    shell
        .args(["-c", include_str!("fill.sh"), "sh"])
        .arg(mount.root());
    tool::succeed(&mut shell)?;
    mount.unmount_all(images)
}

fn reversed(pool: &Pool) -> Vec<PathBuf> {
    pool.images.iter().rev().cloned().collect()
}

#[test]
fn sprout_is_read_with_its_seed() -> Result<()> {
    let pool = sprout()?;
    pool.agree()?;
    let identity = identify_all(&pool.devices()?)?;
    assert_eq!(identity.superblock.device_count, 2);
    assert_eq!((identity.present.len(), identity.missing.len()), (2, 0));
    // The seed given first leads to the same filesystem.
    let first = identify_all(&open(&reversed(&pool))?)?;
    assert_eq!(first.superblock, identity.superblock);
    let opened = mount(&open(&reversed(&pool))?, &MountOptions::default())?;
    assert_eq!(opened.superblock().fsid, identity.superblock.fsid);
    Ok(())
}

#[test]
fn seed_alone_is_read_as_before() -> Result<()> {
    let pool = sprout()?;
    let seed = Pool::empty(1)?;
    std::fs::copy(&pool.images[1], &seed.images[0])?;
    seed.agree()
}

#[test]
fn sprout_without_its_seed_is_refused_by_name() -> Result<()> {
    let pool = sprout()?;
    let alone = open(&pool.images[..1])?;
    let identity = identify_all(&alone)?;
    assert_eq!((identity.present.len(), identity.missing.len()), (1, 1));
    let refused = mount(&alone, &MountOptions::default()).unwrap_err();
    assert!(refused.to_string().contains("without devid 1"), "{refused}");
    Ok(())
}

#[test]
fn seed_that_no_device_item_names_is_refused() -> Result<()> {
    let pool = sprout()?;
    let other = Pool::make(1, 160 << 10, &[])?;
    to_seed(&other.images[0])?;
    let unrelated = |images: &[&PathBuf]| -> Result<String> {
        let images: Vec<_> = images.iter().map(|image| (*image).clone()).collect();
        let refused = mount(&open(&images)?, &MountOptions::default());
        Ok(refused.unwrap_err().to_string())
    };
    let [sprout, seed] = &pool.images[..] else {
        unreachable!("two images");
    };
    let foreign = &other.images[0];
    for images in [
        &[sprout, seed, foreign][..],
        &[foreign, sprout, seed],
        &[sprout, foreign],
    ] {
        let text = unrelated(images)?;
        assert!(text.contains("must belong to one filesystem"), "{text}");
    }
    // A device that is no seed, of another filesystem.
    let plain = Pool::make(1, 160 << 10, &[])?;
    let text = unrelated(&[sprout, seed, &plain.images[0]])?;
    assert!(text.contains("must belong to one filesystem"), "{text}");
    // The seed, written to after the filesystem grew out of it.
    let changed = Pool::empty(1)?;
    std::fs::copy(seed, &changed.images[0])?;
    let image = &changed.images[0];
    tool::succeed(
        tool::command("btrfstune")
            .args(["-f", "-S", "0"])
            .arg(image),
    )?;
    changed.run("", r#"echo changed > "$1/changed""#)?;
    to_seed(image)?;
    let text = unrelated(&[sprout, image])?;
    assert!(text.contains("was changed after"), "{text}");
    Ok(())
}

#[test]
fn metadata_uuid_is_that_of_tree_blocks() -> Result<()> {
    let pool = Pool::make(2, 160 << 10, &["-d", "raid1", "-m", "raid1"])?;
    pool.fill("compress=zstd")?;
    let before = identify_all(&pool.devices()?)?.superblock;
    let devices = pool.attach()?;
    let list = File::open(loopdev::list_lock()?)?;
    list.lock_shared()?;
    let first = devices[0].path();
    tool::succeed(
        tool::command("btrfs")
            .args(["device", "scan"])
            .arg(devices[1].path()),
    )?;
    tool::succeed(tool::command("btrfstune").args(["-f", "-m"]).arg(first))?;
    let mut forget = tool::command("btrfs");
    forget.args(["device", "scan", "--forget"]);
    tool::succeed(forget.args(devices.iter().map(LoopDevice::path)))?;
    drop((devices, list));
    let after = identify_all(&pool.devices()?)?.superblock;
    assert_ne!(after.fsid, before.fsid);
    assert_eq!(after.metadata_uuid, before.fsid);
    pool.run("", r#"echo changed > "$1/changed""#)?;
    pool.agree()
}

#[test]
fn missing_members_are_listed() -> Result<()> {
    let pool = Pool::make(3, 160 << 10, &["-d", "raid5", "-m", "raid1c3"])?;
    let all = identify_all(&pool.devices()?)?;
    assert_eq!((all.present.len(), all.missing.len()), (3, 0));
    for index in 0..3 {
        let one = identify_all(&open(&pool.images[index..=index])?)?;
        assert_eq!(one.present, all.present[index..=index]);
        let mut missing = all.present.clone();
        missing.remove(index);
        assert_eq!(one.missing, missing);
    }
    // One device twice is one device.
    let twice = [pool.images[0].clone(), pool.images[0].clone()];
    assert_eq!(identify_all(&open(&twice)?)?.present.len(), 1);
    Ok(())
}

#[test]
fn copies_of_the_superblock_are_used() -> Result<()> {
    let pool = Pool::make(2, 160 << 10, &["-d", "raid1", "-m", "raid1"])?;
    pool.fill("")?;
    let corrupt = Pool::empty(2)?;
    for (from, to) in pool.images.iter().zip(&corrupt.images) {
        std::fs::copy(from, to)?;
        let file = File::options().write(true).open(to)?;
        file.write_all_at(&[0; 4096], 64 << 10)?;
    }
    let devices = corrupt.devices()?;
    assert!(mount(&devices, &MountOptions::default()).is_err());
    let at = find_superblock_copy(&*devices[0]);
    assert_eq!(at, Some(64 << 20));
    let options = MountOptions {
        superblock_offset: at,
        ..MountOptions::default()
    };
    let kernel = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
    let outcome = compare(&mount(&devices, &options)?, kernel.root(), RULES)?;
    assert!(outcome.files > 700, "{outcome}");
    assert_eq!(outcome.differences, 0, "{outcome}");
    Ok(())
}
