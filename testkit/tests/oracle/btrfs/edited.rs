//! Images that are edited, resized and tuned without a mount, before `btrfs check` and a kernel mount.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::Arc;

use anyhow::{Context, Result};
use platter::edit::SubvolumeAccess;
use platter::resize::{NewSize, grow};
use platter::vfs::Tune;
use platter::{DeviceRole, Edit, ImageSpec, MemoryBudget, Progress};
use platter_vfs::{Clock, FixedClock, Timestamp};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, btrfs};
use testkit::{program, tool};

use super::image::Pool;

const MIB: u64 = 1 << 20;
const EINVAL: i32 = 22;
const EROFS: i32 = 30;

pub(super) fn edit(pool: &Pool) -> Result<Edit> {
    let mut options = platter::MountOptions::new();
    for other in pool.images.iter().skip(1) {
        options = options.device(DeviceRole::Data, other);
    }
    Ok(options.edit(&ImageSpec::new(&pool.images[0]))?)
}

pub(super) fn assert_clean(pool: &Pool, context: &str) -> Result<()> {
    let (verdict, text) = btrfs::report(&pool.paths())?;
    assert_eq!(verdict, Verdict::Clean, "{context}: {text}");
    Ok(())
}

pub(super) fn superblock_line(image: &Path, name: &str) -> Result<String> {
    let mut btrfs = tool::command("btrfs");
    btrfs.args(["inspect-internal", "dump-super"]).arg(image);
    let text = tool::succeed(&mut btrfs)?.text();
    let found = text.lines().find(|line| line.starts_with(name));
    let words = found
        .context("no such line")?
        .split_once(char::is_whitespace);
    Ok(words.context("no value")?.1.trim().to_owned())
}

pub(super) fn superblock_bytes(image: &Path) -> Result<Vec<u8>> {
    let mut bytes = vec![0; 4 << 10];
    File::open(image)?.read_exact_at(&mut bytes, 64 << 10)?;
    Ok(bytes)
}

#[test]
fn edits_are_one_commit_and_dropped_ones_none() -> Result<()> {
    for options in [&[][..], &["--mixed"], &["-m", "raid1", "-d", "raid1"]] {
        let devices = 1 + usize::from(options.contains(&"raid1"));
        let pool = Pool::make(devices, 160 << 10, options)?;
        pool.run(
            "",
            "cd $1; mkdir old; echo kept > old/kept; touch big; chattr +C big; \
             head -c 300000 /dev/zero | tr '\\0' a > big; sync",
        )?;
        let before = superblock_bytes(&pool.images[0])?;
        let generation: u64 = superblock_line(&pool.images[0], "generation")?.parse()?;
        let dropped = edit(&pool)?;
        dropped.write(b"/big", &vec![b'b'; 300_000])?;
        dropped.write(b"/other", &vec![b'c'; 5 << 20])?;
        dropped.volume().filesystem().sync()?;
        drop(dropped);
        assert!(superblock_bytes(&pool.images[0])? == before);
        assert_clean(&pool, "after an edit that was dropped")?;
        let mount = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadOnly)?;
        assert!(fs::read(mount.root().join("big"))? == vec![b'a'; 300_000]);
        assert_eq!(fs::read_dir(mount.root())?.count(), 2);
        mount.unmount_all(&pool.paths())?;
        let kept = edit(&pool)?;
        for number in 0..500 {
            kept.write(format!("/new{number}").as_bytes(), &vec![7; number * 40])?;
        }
        kept.write(b"/big", &vec![b'b'; 300_000])?;
        kept.volume().filesystem().sync()?;
        kept.commit()?;
        let now: u64 = superblock_line(&pool.images[0], "generation")?.parse()?;
        assert_eq!(now, generation + 1, "{options:?}");
        assert_clean(&pool, "after an edit")?;
        let mount = Mount::images(FsType::Btrfs, &pool.paths(), "", Access::ReadWrite)?;
        assert!(fs::read(mount.root().join("big"))? == vec![b'b'; 300_000]);
        assert!(fs::read(mount.root().join("new499"))? == vec![7; 499 * 40]);
        assert_eq!(fs::read_dir(mount.root())?.count(), 502);
        fs::write(mount.root().join("by the kernel"), b"text")?;
        mount.unmount_all(&pool.paths())?;
        assert_clean(&pool, "after the kernel wrote to it")?;
    }
    Ok(())
}

#[test]
fn label_and_uuid_change_in_place() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &["-L", "before"])?;
    pool.run("", "echo text > $1/file")?;
    let image = &pool.images[0];
    let old = superblock_line(image, "metadata_uuid")?;
    let uuid = platter::make::Uuid::from_u128(0x1234_5678_9abc_4def_8123_4567_89ab_cdef);
    let tuned = edit(&pool)?;
    tuned.tune(&[Tune::Label(b"after".to_vec()), Tune::Uuid(uuid)])?;
    tuned.commit()?;
    assert_eq!(superblock_line(image, "label")?, "after");
    assert_eq!(superblock_line(image, "fsid")?, uuid.to_string());
    assert_eq!(superblock_line(image, "metadata_uuid")?, old);
    assert_clean(&pool, "after the UUID changed")?;
    pool.run("", "grep text $1/file; echo more > $1/other")?;
    // Later commits keep both.
    let edited = edit(&pool)?;
    edited.write(b"/third", b"text")?;
    edited.commit()?;
    assert_eq!(superblock_line(image, "fsid")?, uuid.to_string());
    assert_clean(&pool, "after an edit of it")?;
    // Back to the UUID of the tree blocks, the feature goes.
    let tuned = edit(&pool)?;
    tuned.tune(&[Tune::Uuid(old.parse()?)])?;
    tuned.commit()?;
    assert_eq!(superblock_line(image, "fsid")?, old);
    assert_clean(&pool, "with the UUID that it had")?;
    let refused = edit(&pool)?;
    let error = refused.tune(&[Tune::Feature {
        name: "quota".into(),
        on: true,
    }]);
    assert!(error.unwrap_err().to_string().contains("quota"));
    Ok(())
}

#[test]
fn subvolumes_of_images_come_and_go() -> Result<()> {
    let pool = Pool::make(1, 160 << 10, &[])?;
    let made = edit(&pool)?;
    made.create_subvolume(b"/sub")?;
    made.write(b"/sub/file", &vec![5; 100_000])?;
    made.make_dir(b"/dir", None)?;
    made.commit()?;
    let snapped = edit(&pool)?;
    snapped.snapshot(b"/sub", b"/dir", SubvolumeAccess::ReadOnly)?;
    snapped.commit()?;
    let changed = edit(&pool)?;
    changed.write(b"/sub/file", b"changed")?;
    changed.set_default_subvolume(changed.subvolume_at(b"/sub")?)?;
    let refused = changed.subvolume_at(b"/dir").unwrap_err();
    assert_eq!(refused.raw_os_error(), EINVAL);
    let refused = changed.write(b"/dir/sub/file", b"no").unwrap_err();
    assert_eq!(refused.raw_os_error(), EROFS);
    changed.commit()?;
    assert_clean(&pool, "with a snapshot")?;
    pool.run(
        "subvolid=5",
        "cd $1; test $(stat -c %s dir/sub/file) = 100000; \
                            grep -q changed sub/file; ! touch dir/sub/x 2>/dev/null",
    )?;
    pool.run("", "grep -q changed $1/file")?;
    let deleted = edit(&pool)?;
    let error = deleted.delete_subvolume(b"/").unwrap_err();
    assert_eq!(error.raw_os_error(), EINVAL);
    deleted.commit()?;
    let top = platter::MountOption::parse("subvolid=5");
    let top = platter::MountOptions::new().option(top);
    let deleted = top.edit(&ImageSpec::new(&pool.images[0]))?;
    deleted.set_subvolume_access(b"/dir/sub", SubvolumeAccess::ReadWrite)?;
    deleted.delete_subvolume(b"/dir/sub")?;
    deleted.commit()?;
    assert_clean(&pool, "after the snapshot was deleted")?;
    pool.run(
        "subvolid=5",
        "cd $1; test -z \"$(ls dir)\"; echo more > sub/more",
    )?;
    assert_clean(&pool, "after the kernel wrote to it")
}

fn resize(pool: &Pool, size: u64) -> platter::Result<u64> {
    let spec = ImageSpec::new(&pool.images[0]);
    let budget = Arc::new(MemoryBudget::new(8 << 20));
    let clock: Arc<dyn Clock> = Arc::new(FixedClock::new(Timestamp::default(), 1));
    let (size, progress) = (NewSize::Bytes(size), Progress::new());
    Ok(grow(&spec, size, &budget, &clock, &progress)?.after_bytes)
}

#[test]
fn filesystem_becomes_longer() -> Result<()> {
    for options in [&[][..], &["--mixed"], &["-m", "single", "-n", "4096"]] {
        let pool = Pool::make(1, 130 << 10, options)?;
        let image = &pool.images[0];
        pool.run("", "head -c 3000000 /dev/urandom > $1/first")?;
        for mib in [140, 700] {
            let context = format!("{options:?}: {mib} MiB");
            assert_eq!(resize(&pool, mib * MIB)?, mib * MIB, "{context}");
            assert_eq!(fs::metadata(image)?.len(), mib * MIB);
            assert_eq!(
                superblock_line(image, "total_bytes")?,
                (mib * MIB).to_string()
            );
            assert_clean(&pool, &context)?;
        }
        pool.run("", "head -c 300000000 /dev/zero | tr '\\0' x > $1/second")?;
        assert_clean(&pool, "after the kernel wrote to it")?;
        let before = superblock_bytes(image)?;
        let refused = resize(&pool, 200 * MIB).unwrap_err().to_string();
        assert!(refused.contains("256 MiB"), "{refused}");
        assert!(superblock_bytes(image)? == before);
    }
    Ok(())
}

/// Chunks of a file that goes, and those of one that stays, further back.
const BEFORE_SHRINKING: &str = "
set -e
head -c 220000000 /dev/zero | tr '\\0' x > $1/first
sync -f $1
head -c 110000000 /dev/urandom > $1/second
md5sum < $1/second > $1/sum
rm $1/first
";

#[test]
fn filesystem_becomes_shorter() -> Result<()> {
    for options in [&[][..], &["--mixed"], &["-m", "single", "-n", "4096"]] {
        let pool = Pool::make(1, 1000 << 10, options)?;
        let image = &pool.images[0];
        pool.run("", BEFORE_SHRINKING)?;
        for mib in [460, 420] {
            assert_eq!(resize(&pool, mib * MIB)?, mib * MIB, "{options:?}");
            assert_eq!(fs::metadata(image)?.len(), mib * MIB);
            let total = superblock_line(image, "total_bytes")?;
            assert_eq!(total, (mib * MIB).to_string());
            assert_clean(&pool, "shorter")?;
        }
        pool.run(
            "",
            "cd $1; md5sum < second | cmp - sum; rm second; head -c 50000000 /dev/zero > third",
        )?;
        assert_clean(&pool, "after the kernel wrote to it")?;
    }
    Ok(())
}

#[test]
fn commands_change_images_of_their_own() -> Result<()> {
    let pool = Pool::empty(1)?;
    let dir = pool.images[0].parent().context("a directory")?;
    let run = |arguments: &str| -> Result<String> {
        let mut platter = program::platter()?;
        platter.current_dir(dir).args(arguments.split(' '));
        Ok(tool::succeed(&mut platter)?.text())
    };
    run("mkfs btrfs image0 --size 64M --seed 5 --label name --csum xxhash --node-size 4096")?;
    run("mkfs btrfs other --size 64M --seed 5 --label name --csum xxhash --node-size 4096")?;
    assert!(fs::read(dir.join("image0"))? == fs::read(dir.join("other"))?);
    fs::write(dir.join("file"), vec![9; 70_000])?;
    run("subvolume create image0:/one image0:/two")?;
    run("cp file image0:/one")?;
    run("subvolume snapshot -r image0:/one image0:/two")?;
    run("cp file image0:/one/again")?;
    run("subvolume set-default image0:/one")?;
    let listed = run("subvolume list image0")?;
    assert!(
        listed.contains("two/one") && listed.contains("one (default)"),
        "{listed}"
    );
    run("subvolume set-default image0 --id 5")?;
    run("subvolume set-read-only image0:/one")?;
    let mut refused = program::platter()?;
    refused.current_dir(dir).args(["rm", "image0:/one/again"]);
    assert!(!refused.output()?.status.success());
    run("subvolume set-read-only --off image0:/one image0:/two/one")?;
    run("subvolume delete image0:/two/one image0:/one")?;
    run("resize image0 80M")?;
    run("tune -L changed image0")?;
    assert_eq!(superblock_line(&pool.images[0], "label")?, "changed");
    assert_clean(&pool, "after all commands")?;
    pool.run(
        "",
        "cd $1; test \"$(ls)\" = two; test -z \"$(ls two)\"; echo text > file",
    )?;
    assert_clean(&pool, "after the kernel wrote to it")
}
