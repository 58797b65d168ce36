//! Filesystems that others than Linux made, or that say of themselves what no feature allows: written
//! here and by the kernel, in the form that their maker knows.

use std::fs;

use platter::{MountOptions, Volume, WriteOptions};
use platter_vfs::{Context, CreateKind, Name, XattrMode};
use testkit::loopdev::{self, Mount};
use testkit::oracle::{debugfs, e2fsck, mke2fs};

use crate::images::{assert_clean, open_for_writing, write};

/// Layouts of other makers than Linux: `creator`, revision, and what may be in their inodes.
const CREATORS: &[&[&str]] = &[
    &["-o", "hurd", "-t", "ext2", "-b", "1024"],
    &["-o", "hurd", "-t", "ext2", "-b", "4096"],
    &["-o", "hurd", "-t", "ext4", "-O", "^64bit"],
    &["-o", "freebsd", "-t", "ext4", "-O", "^metadata_csum"],
    &["-o", "lites", "-t", "ext3"],
    &["-t", "ext2", "-r", "0"],
    &["-o", "lites", "-t", "ext2", "-r", "0"],
];

fn fill(volume: &Volume) {
    let root = volume.filesystem().root().unwrap();
    let made = root
        .create(
            &Context::root(),
            Name::new(b"dir").unwrap(),
            CreateKind::Directory,
            0o755,
        )
        .unwrap();
    for number in 0..40 {
        write(volume, &format!("file{number}"), &vec![number; 3000]);
        let name = format!("inside{number}");
        let name = Name::new(name.as_bytes()).unwrap();
        made.create(&Context::root(), name, CreateKind::Regular, 0o644)
            .unwrap();
    }
    made.set_xattr(
        &Context::root(),
        b"user.value",
        &[b'v'; 300],
        XattrMode::Set,
    )
    .unwrap();
}

#[test]
fn inodes_of_other_creators_are_written_in_their_form() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for layout in CREATORS {
        mke2fs::make(&image, 16 << 10, layout, None).unwrap();
        let volume = open_for_writing(&image);
        fill(&volume);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (layout, "written here"));
        let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
        assert!(fs::read(mount.root().join("file7")).unwrap() == vec![7; 3000]);
        fs::write(mount.root().join("theirs"), "theirs").unwrap();
        mount.unmount(&image).unwrap();
        assert_clean(&image, (layout, "written by the kernel"));
        let volume = open_for_writing(&image);
        assert!(volume.read("theirs").unwrap() == b"theirs", "{layout:?}");
        volume.filesystem().unmount().unwrap();
    }
}

/// The kernel neither looks at the checksums of such inodes nor writes them.
#[test]
fn unchecksummed_inodes_of_other_creators_are_used() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs::make(&image, 16 << 10, &["-o", "freebsd", "-t", "ext4"], None).unwrap();
    let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
    fs::write(mount.root().join("theirs"), "theirs").unwrap();
    mount.unmount(&image).unwrap();
    let volume = open_for_writing(&image);
    assert!(volume.read("theirs").unwrap() == b"theirs");
    write(&volume, "ours", b"ours");
    volume.filesystem().unmount().unwrap();
    drop(volume);
    let mount = Mount::image(&image, "", loopdev::Access::ReadWrite).unwrap();
    assert!(fs::read(mount.root().join("ours")).unwrap() == b"ours");
    mount.unmount(&image).unwrap();
}

#[test]
fn what_the_hurd_cannot_have_is_not_written() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs::make(
        &image,
        16 << 10,
        &["-o", "hurd", "-t", "ext4", "-O", "64bit"],
        None,
    )
    .unwrap();
    let spec = platter::ImageSpec::parse(&image).unwrap();
    let refused = MountOptions::new()
        .writing(WriteOptions::default())
        .open(&spec);
    let said = refused
        .err()
        .map(|error| error.to_string())
        .unwrap_or_default();
    assert!(said.contains("64bit of GNU/Hurd"), "{said}");
    MountOptions::new().open(&spec).unwrap();
}

#[test]
fn uninit_flags_without_feature_are_cleared() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    mke2fs::make(&image, 4 << 10, &["-t", "ext2", "-b", "1024"], None).unwrap();
    let fields = ["flags 3", "itable_unused 400"].map(|field| format!("set_bg 0 {field}"));
    debugfs::change(&image, &fields.each_ref().map(String::as_str)).unwrap();
    assert!(!e2fsck::check(&image).unwrap().is_clean());
    let volume = open_for_writing(&image);
    for number in 0..100 {
        write(&volume, &format!("file{number}"), &vec![number; 3000]);
    }
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(&image, (&["stray flags"], "written here"));
}
