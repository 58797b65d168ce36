//! What is made here is gone when its owner is.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::Path;

use super::*;
use crate::fs_type::FsType;
use crate::oracle::{self, Verdict, e2fsck, mke2fs};
use crate::tool;

fn image(dir: &Path) -> std::path::PathBuf {
    let image = dir.join("image");
    mke2fs::make(&image, 4096, &["-t", "ext4"], None).unwrap();
    image
}

fn is_attached(image: &Path) -> bool {
    let list = tool::succeed(tool::command("losetup").args(["--list", "-n", "-O", "BACK-FILE"]));
    let list = list.unwrap().text();
    list.lines().any(|line| Path::new(line.trim()) == image)
}

/// The kernel detaches a device when its last user closes it, and a child that another thread is
/// starting may be one for a moment.
fn is_let_go(image: &Path) -> bool {
    (0..500).any(|_| {
        std::thread::sleep(std::time::Duration::from_millis(20));
        !is_attached(image)
    })
}

#[test]
fn mount_and_device_go_with_their_owner_even_in_a_panic() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    let outcome = catch_unwind(AssertUnwindSafe(|| {
        let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
        std::fs::write(mount.root().join("file"), "content").unwrap();
        assert!(is_attached(&image));
        panic!("as a failing test does");
    }));
    assert!(outcome.is_err());
    assert!(is_let_go(&image));
    assert_eq!(e2fsck::check(&image).unwrap(), Verdict::Clean);
    let mount = Mount::image(&image, "", Access::ReadOnly).unwrap();
    assert_eq!(
        std::fs::read(mount.root().join("file")).unwrap(),
        b"content"
    );
    assert!(std::fs::write(mount.root().join("other"), "").is_err());
}

#[test]
fn programs_reach_the_mount() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
    let script = "mkdir \"$1/made\" && ls \"$1\"";
    let mut sh = tool::command("sh");
    sh.args(["-c", script, "sh"]).arg(mount.root());
    assert!(tool::succeed(&mut sh).unwrap().text().contains("made"));
}

#[test]
fn refused_mount_says_why() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("zeros");
    std::fs::write(&image, vec![0; 1 << 20]).unwrap();
    assert!(Mount::image(&image, "", Access::ReadOnly).is_err());
    assert!(is_let_go(&image));
}

/// Mounts a copy of `images`, writes `contents` into a file of it, and unmounts.
fn written(fs_type: FsType, images: &[&Path], contents: &str) -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let copies = copies(images, dir.path());
    let copies: Vec<&Path> = copies.iter().map(|copy| &**copy).collect();
    let mount = Mount::images(fs_type, &copies, "", Access::ReadWrite).unwrap();
    std::fs::write(mount.root().join("file"), contents).unwrap();
    mount.unmount_all(&copies).unwrap();
    dir
}

fn copies(images: &[&Path], dir: &Path) -> Vec<std::path::PathBuf> {
    let copy = |image: &&Path| {
        let copy = dir.join(image.file_name().unwrap());
        tool::succeed(
            tool::command("cp")
                .arg("--sparse=always")
                .arg(image)
                .arg(&copy),
        )
        .unwrap();
        copy
    };
    images.iter().map(copy).collect()
}

/// Two copies of one filesystem hold what was written to each, and pass the checker.
fn examine_copies(fs_type: FsType, images: &[&Path]) {
    let written =
        ["first", "second"].map(|contents| (contents, written(fs_type, images, contents)));
    for (contents, dir) in &written {
        let paths: Vec<_> = images
            .iter()
            .map(|image| dir.path().join(image.file_name().unwrap()))
            .collect();
        let paths: Vec<&Path> = paths.iter().map(|path| &**path).collect();
        assert!(is_clean(fs_type, &paths).unwrap());
        assert_eq!(oracle::fsck(fs_type, &paths).unwrap(), Verdict::Clean);
        let mount = Mount::images(fs_type, &paths, "", Access::ReadOnly).unwrap();
        let found = std::fs::read_to_string(mount.root().join("file")).unwrap();
        assert_eq!(found, *contents);
    }
}

#[test]
fn kernel_does_not_mix_copies_of_a_btrfs() {
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    oracle::btrfs::make(&[&one, &two], 160 << 10, &["-d", "raid1", "-m", "raid1"]).unwrap();
    examine_copies(FsType::Btrfs, &[&one, &two]);
    oracle::btrfs::make(&[&one], 160 << 10, &[]).unwrap();
    examine_copies(FsType::Btrfs, &[&one]);
}

#[test]
fn mounts_of_copies_of_a_btrfs_do_not_disturb_each_other() {
    const MOUNTS: usize = 12;
    let dir = tempfile::tempdir().unwrap();
    let (one, two) = (dir.path().join("one"), dir.path().join("two"));
    let alone = dir.path().join("alone");
    oracle::btrfs::make(&[&one, &two], 160 << 10, &["-d", "raid1", "-m", "raid1"]).unwrap();
    oracle::btrfs::make(&[&alone], 160 << 10, &[]).unwrap();
    // Of another generation.
    let newer = written(FsType::Btrfs, &[&alone], "newer");
    let newer = newer.path().join("alone");
    let mount_again_and_again = |images: &[&Path]| {
        for _ in 0..MOUNTS {
            let mount = Mount::images(FsType::Btrfs, images, "", Access::ReadOnly).unwrap();
            mount.unmount_all(images).unwrap();
        }
    };
    std::thread::scope(|scope| {
        scope.spawn(|| mount_again_and_again(&[&alone]));
        scope.spawn(|| mount_again_and_again(&[&newer]));
        scope.spawn(|| mount_again_and_again(&[&one, &two]));
        for _ in 0..MOUNTS {
            members::forget_all().unwrap();
        }
    });
}

#[test]
fn kernel_mounts_copies_of_an_xfs() {
    let dir = tempfile::tempdir().unwrap();
    let (data, log) = (dir.path().join("data"), dir.path().join("log"));
    oracle::xfs::make(&data, 32 << 10, &[]).unwrap();
    examine_copies(FsType::Xfs, &[&data]);
    std::fs::File::create(&log)
        .unwrap()
        .set_len(16 << 20)
        .unwrap();
    let log_option = format!("logdev={},size=16m", log.display());
    oracle::xfs::make(&data, 32 << 10, &["-l", &log_option]).unwrap();
    examine_copies(FsType::Xfs, &[&data, &log]);
}

#[test]
fn mounted_xfs_and_synced_btrfs_are_not_clean() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    oracle::xfs::make(&image, 32 << 10, &[]).unwrap();
    assert!(is_clean(FsType::Xfs, &[&image]).unwrap());
    let fsync = |mount: &Mount| {
        let file = std::fs::File::create(mount.root().join("file")).unwrap();
        file.sync_all().unwrap();
    };
    let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
    fsync(&mount);
    assert!(!is_clean(FsType::Xfs, &[&image]).unwrap());
    mount.unmount_all(&[&image]).unwrap();
    oracle::btrfs::make(&[&image], 160 << 10, &[]).unwrap();
    let mount = Mount::images(FsType::Btrfs, &[&image], "", Access::ReadWrite).unwrap();
    fsync(&mount);
    assert!(!is_clean(FsType::Btrfs, &[&image]).unwrap());
    mount.unmount_all(&[&image]).unwrap();
    assert!(is_clean(FsType::Btrfs, &[&image]).unwrap());
}

#[test]
fn detached_device_is_waited_for() {
    let dir = tempfile::tempdir().unwrap();
    let image = image(dir.path());
    let device = LoopDevice::attach(&image, Access::ReadOnly).unwrap();
    let other = std::fs::File::open(device.path()).unwrap();
    std::thread::scope(|scope| {
        scope.spawn(move || {
            std::thread::sleep(std::time::Duration::from_millis(300));
            drop(other);
        });
        device.detach(&image).unwrap();
        assert!(!is_attached(&image));
    });
}
