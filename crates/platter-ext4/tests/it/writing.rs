//! Mounts for writing: what they refuse, and what they leave in the superblock.

use std::fs::{File, OpenOptions};
use std::os::unix::fs::FileExt;

use platter_block::Access;
use platter_ext4::inode::InodeNumberRule;
use platter_ext4::ondisk::mmp::MmpRule;
use platter_ext4::ondisk::superblock::{
    DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES,
};
use platter_ext4::{Ext4, MountOptions, OnError};
use platter_ondisk::Rule;
use platter_vfs::{
    Condition, Context, CreateKind, Error, Filesystem, Name, RenameMode, Result, SetAttr, SetTime,
    Timestamp, XattrMode,
};

use zerocopy::IntoBytes;

use crate::image::{Image, mount, walk};

const EXT2: &[&str] = &["-t", "ext2", "-b", "1024"];

fn writing() -> MountOptions {
    MountOptions {
        read_only: false,
        ..MountOptions::default()
    }
}

fn begin(image: &Image) -> Result<Ext4> {
    mount(image.device(Access::Write), &writing())
}

#[test]
fn a_mount_without_a_journal_is_not_clean_until_it_is_unmounted() {
    let image = Image::format(EXT2, "4M");
    for mounts in ["1", "2"] {
        let filesystem = begin(&image).unwrap();
        assert!(!filesystem.is_read_only());
        assert_eq!(image.field("Filesystem state"), "not clean");
        assert_eq!(image.field("Mount count"), mounts);
        filesystem.sync().unwrap();
        filesystem.unmount().unwrap();
        assert!(filesystem.is_read_only());
        assert_eq!(image.field("Filesystem state"), "clean");
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn a_mount_that_is_dropped_is_truncated() {
    let image = Image::format(EXT2, "4M");
    drop(begin(&image).unwrap());
    assert_eq!(image.field("Filesystem state"), "not clean");
    begin(&image).unwrap().unmount().unwrap();
    // It is for a check to call it clean again.
    assert_eq!(image.field("Filesystem state"), "not clean");
}

#[test]
fn mount_with_a_journal_needs_recovery_until_unmounted() {
    for options in [
        &["-O", "has_journal,extent,metadata_csum,64bit"][..],
        &["-j", "-b", "1024"],
    ] {
        let image = Image::format(options, "16M");
        let asks = || {
            let features = image.field("Filesystem features");
            features.contains("needs_recovery")
        };
        let filesystem = begin(&image).unwrap();
        assert!(asks());
        assert_eq!(image.field("Filesystem state"), "clean");
        filesystem.unmount().unwrap();
        drop(filesystem);
        assert!(!asks());
        assert_eq!(image.faults(), "");
        // After a power cut there is nothing to replay but the mark to clear.
        drop(begin(&image).unwrap());
        assert!(asks());
        let filesystem = begin(&image).unwrap();
        assert!(filesystem.recovery().is_some());
        filesystem.unmount().unwrap();
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn features_that_cannot_be_written_are_refused_by_name() {
    let image = Image::format(EXT2, "4M");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&0x8000_1000u32.to_le_bytes(), 1024 + 0x64)
        .unwrap();
    let error = begin(&image).unwrap_err();
    assert_eq!(
        error.to_string(),
        "ext4: read-only, FEATURE_R31 is not supported (only reading is)"
    );
}

#[test]
fn a_device_that_cannot_be_written_is_refused() {
    let image = Image::format(EXT2, "4M");
    let error = mount(image.device(Access::Read), &writing()).unwrap_err();
    assert!(matches!(error, Error::Condition(Condition::ReadOnly)));
}

#[test]
fn protection_against_other_hosts_is_kept_up_and_given_back() {
    let image = Image::format(&["-b", "1024", "-O", "mmp"], "4M");
    let block: u64 = image.field("MMP block number").parse().unwrap();
    let sequence = || {
        let mut bytes = [0; 4];
        let file = File::open(image.path()).unwrap();
        file.read_exact_at(&mut bytes, block * 1024 + 4).unwrap();
        u32::from_le_bytes(bytes)
    };
    let filesystem = begin(&image).unwrap();
    assert_ne!(sequence(), 0xff4d_4d50);
    filesystem.unmount().unwrap();
    assert_eq!(sequence(), 0xff4d_4d50);
    assert_eq!(image.faults(), "");
}

/// An image with a file whose inode has a wrong checksum, and one that is sound.
fn corrupt_image(options: &[&str]) -> Image {
    let image = Image::format(options, "16M");
    image.debugfs("mkdir sound\nmkdir broken\n");
    let printed = image.debugfs("imap broken\n");
    let word = |before: &str| {
        let rest = printed.split(before).nth(1).unwrap();
        rest.split([',', '\n']).next().unwrap().trim().to_owned()
    };
    let block: u64 = word("at block ").parse().unwrap();
    let offset = u64::from_str_radix(word("offset ").trim_start_matches("0x"), 16).unwrap();
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[7], block * 1024 + offset + 0x40)
        .unwrap();
    image
}

#[test]
fn corruption_is_recorded_and_ends_writing_if_requested() {
    let plain = &["-b", "1024", "-O", "extent,metadata_csum"][..];
    let journaled = &["-b", "1024", "-O", "has_journal,extent,metadata_csum"];
    for (options, on_error, goes_on) in [
        (plain, None, true),
        (journaled, None, true),
        (plain, Some(OnError::ReadOnly), false),
        (journaled, Some(OnError::ReadOnly), false),
    ] {
        let image = corrupt_image(options);
        let options = MountOptions {
            on_error,
            ..writing()
        };
        let filesystem = mount(image.device(Access::Write), &options).unwrap();
        let sound = walk(&filesystem, "sound").unwrap();
        assert!(matches!(
            walk(&filesystem, "broken").unwrap_err(),
            Error::Corrupt(_)
        ));
        assert_eq!(filesystem.is_read_only(), !goes_on);
        let set = sound.set_xattr(&Context::root(), b"user.a", b"1", XattrMode::Set);
        assert_eq!(set.is_ok(), goes_on);
        drop(sound);
        assert_eq!(filesystem.unmount().is_ok(), goes_on);
        drop(filesystem);
        assert!(image.field("Filesystem state").contains("with errors"));
        assert_eq!(image.field("FS Error count"), "1");
        assert_eq!(image.field("First error function"), "inode");
        assert_eq!(image.field("First error inode #"), "13");
        assert_eq!(image.field("Last error err"), "EFSBADCRC");
        // It outlives the replay of a journal that does not know of it.
        let filesystem = begin(&image).unwrap();
        filesystem.unmount().unwrap();
        assert_eq!(image.field("FS Error count"), "1");
        assert!(image.field("Filesystem state").contains("with errors"));
    }
}

#[test]
fn changes_of_attributes_are_kept_and_times_are_those_that_fit() {
    for (inode_bytes, seconds, nanoseconds) in [("128", 0x7fff_ffff, 0), ("256", 1 << 33, 5)] {
        let image = Image::format(&["-b", "1024", "-I", inode_bytes], "4M");
        image.debugfs("mkdir dir\n");
        let filesystem = begin(&image).unwrap();
        let dir = walk(&filesystem, "dir").unwrap();
        let time = Timestamp {
            seconds: 1 << 33,
            nanoseconds: 5,
        };
        let changes = SetAttr {
            permissions: Some(0o1750),
            uid: Some(70_000),
            gid: Some(80_000),
            accessed: Some(SetTime::At(time)),
            modified: Some(SetTime::Now),
            flags: Some(0x40),
            ..SetAttr::default()
        };
        let set = dir.set_attr(&Context::root(), &changes).unwrap();
        let refused = SetAttr {
            flags: Some(0x8_0040),
            uid: Some(1),
            ..SetAttr::default()
        };
        let error = dir.set_attr(&Context::root(), &refused).unwrap_err();
        assert!(matches!(error, Error::Condition(Condition::NotSupported)));
        drop(dir);
        filesystem.unmount().unwrap();
        drop(filesystem);
        assert_eq!(image.faults(), "");
        let attr = walk(&image.mount(), "dir").unwrap().attr().unwrap();
        assert_eq!(attr, set);
        assert_eq!(
            (attr.permissions, attr.uid, attr.gid),
            (0o1750, 70_000, 80_000)
        );
        let stored = Timestamp {
            seconds,
            nanoseconds,
        };
        assert_eq!((attr.accessed, attr.flags), (stored, 0x40));
        assert_eq!(attr.modified.seconds, 1_700_000_100);
    }
}

#[test]
fn a_size_and_a_mode_are_set_together_or_not_at_all() {
    let image = Image::format(EXT2, "4M");
    let filesystem = begin(&image).unwrap();
    let (root, context) = (filesystem.root().unwrap(), Context::root());
    let name = Name::new(b"f").unwrap();
    let file = root
        .create(&context, name, CreateKind::Regular, 0o4755)
        .unwrap();
    let before = file.attr().unwrap();
    let time = Timestamp {
        seconds: 1_000_000_000,
        nanoseconds: 0,
    };
    let changes = |size_bytes| SetAttr {
        size_bytes: Some(size_bytes),
        permissions: Some(0o600),
        uid: Some(5),
        modified: Some(SetTime::At(time)),
        ..SetAttr::default()
    };
    assert!(file.set_attr(&context, &changes(1 << 60)).is_err());
    assert_eq!(file.attr().unwrap(), before);
    let attr = file.set_attr(&context, &changes(5000)).unwrap();
    assert_eq!((attr.permissions, attr.uid), (0o600, 5));
    assert_eq!((attr.size_bytes, attr.modified), (5000, time));
    drop((file, root));
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
}

#[test]
fn directories_that_trade_places_need_no_further_link() {
    let image = Image::format(EXT2, "4M");
    image.debugfs("mkdir a\nmkdir b\nmkdir a/x\nmkdir b/y\nset_inode_field b links_count 65000\n");
    let filesystem = begin(&image).unwrap();
    let [a, b] = ["a", "b"].map(|path| walk(&filesystem, path).unwrap());
    let [x, y] = [&b"x"[..], b"y"].map(|name| Name::new(name).unwrap());
    let exchange = RenameMode::Exchange;
    a.rename(&Context::root(), x, b.id(), y, exchange).unwrap();
    assert_eq!(a.attr().unwrap().links, 3);
    assert_eq!(b.attr().unwrap().links, 65_000);
    let above = a.lookup(x).unwrap().lookup(Name::new(b"..").unwrap());
    assert_eq!(above.unwrap().id(), a.id());
}

/// Without the key, as in Linux, only names in an encrypted directory cannot change.
#[test]
fn encrypted_directory_moves_to_another_parent() {
    let image = Image::format(&["-b", "1024", "-O", "has_journal,extent,encrypt"], "16M");
    image.debugfs("mkdir a\nmkdir b\nmkdir a/x\nmkdir b/y\nmkdir b/y/z\n");
    image.debugfs("sif a/x flags 0x80800\n");
    let filesystem = begin(&image).unwrap();
    let [a, b] = ["a", "b"].map(|path| walk(&filesystem, path).unwrap());
    let [x, y] = [&b"x"[..], b"y"].map(|name| Name::new(name).unwrap());
    let dotdot = Name::new(b"..").unwrap();
    let (context, replace) = (Context::root(), RenameMode::Replace);
    a.rename(&context, x, b.id(), x, replace).unwrap();
    let moved = b.lookup(x).unwrap();
    assert_eq!(moved.lookup(dotdot).unwrap().id(), b.id());
    b.rename(&context, x, a.id(), y, replace).unwrap();
    a.rename(&context, y, b.id(), y, RenameMode::Exchange)
        .unwrap();
    assert_eq!(b.lookup(y).unwrap().id(), moved.id());
    assert_eq!(moved.lookup(dotdot).unwrap().id(), b.id());
    let into = a.rename(&context, y, moved.id(), y, replace);
    assert!(matches!(into, Err(Error::Condition(Condition::NoKey))));
    let out = moved.rename(&context, y, a.id(), x, replace);
    assert!(matches!(out, Err(Error::Condition(Condition::NoKey))));
    assert!(!filesystem.is_read_only());
    drop((a, b, moved));
    filesystem.unmount().unwrap();
    drop(filesystem);
    // Empty, and without a policy, which e2fsck requires.
    image.debugfs("sif b/y flags 0x80000\n");
    assert_eq!(image.faults(), "");
}

#[test]
fn directory_with_a_corrupt_block_stays_where_it_is() {
    let image = Image::format(&["-b", "1024", "-O", "extent,metadata_csum"], "16M");
    image.debugfs("mkdir a\nmkdir b\nmkdir a/x\nmkdir b/y\n");
    let printed = image.debugfs("bmap a/x 0\n");
    let block: Option<u64> = printed.lines().find_map(|line| line.trim().parse().ok());
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0xff; 1024], block.unwrap() * 1024)
        .unwrap();
    let filesystem = begin(&image).unwrap();
    let [a, b] = ["a", "b"].map(|path| walk(&filesystem, path).unwrap());
    let [x, y] = [&b"x"[..], b"y"].map(|name| Name::new(name).unwrap());
    let (context, exchange) = (Context::root(), RenameMode::Exchange);
    for moved in [
        a.rename(&context, x, b.id(), x, RenameMode::Replace),
        a.rename(&context, x, b.id(), y, exchange),
        b.rename(&context, y, a.id(), x, exchange),
    ] {
        assert!(matches!(moved, Err(Error::Corrupt(_))), "{moved:?}");
        assert!(!filesystem.is_read_only());
    }
    // Within its parent its block is not needed.
    a.rename(&context, x, a.id(), y, RenameMode::Replace)
        .unwrap();
    b.rename(&context, y, a.id(), x, RenameMode::Replace)
        .unwrap();
    assert_eq!((a.attr().unwrap().links, b.attr().unwrap().links), (4, 2));
    drop((a, b));
    filesystem.unmount().unwrap();
}

#[test]
fn times_of_writing_are_shown_as_they_are_kept() {
    for (inode_bytes, granularity, nanoseconds) in [("128", 1_000_000_000, 0), ("256", 1, 7)] {
        let image = Image::format(&["-b", "1024", "-I", inode_bytes], "4M");
        let filesystem = begin(&image).unwrap();
        assert_eq!(filesystem.time_granularity(), granularity);
        let root = filesystem.root().unwrap();
        let name = Name::new(b"f").unwrap();
        let file = root
            .create(&Context::root(), name, CreateKind::Regular, 0o644)
            .unwrap();
        for size_bytes in [0, 10, 5] {
            file.write_at(0, b"contents").unwrap();
            let changes = SetAttr {
                size_bytes: Some(size_bytes),
                ..SetAttr::default()
            };
            let attr = file.set_attr(&Context::root(), &changes).unwrap();
            let times = [attr.modified, attr.changed].map(|time| time.nanoseconds);
            assert_eq!(times, [nanoseconds; 2]);
            assert_eq!(attr.created.is_some(), inode_bytes == "256");
        }
        drop((file, root));
        filesystem.unmount().unwrap();
        drop(filesystem);
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn orphan_open_at_unmount_is_deleted_by_the_next_mount() {
    for features in [
        "has_journal,extent,orphan_file,metadata_csum",
        "has_journal",
    ] {
        let image = Image::format(&["-b", "1024", "-O", features], "16M");
        let filesystem = begin(&image).unwrap();
        let root = filesystem.root().unwrap();
        let name = Name::new(b"file").unwrap();
        let context = Context::root();
        let file = root.create(&context, name, CreateKind::Regular, 0o644);
        let file = file.unwrap();
        file.write_at(0, &[7; 5000]).unwrap();
        root.unlink(&context, name).unwrap();
        filesystem.unmount().unwrap();
        drop((root, file, filesystem));
        let orphans = image.mount().orphans().all().len();
        assert_eq!(orphans, 1, "{features}");
        begin(&image).unwrap().unmount().unwrap();
        assert_eq!(image.mount().orphans().all().len(), 0);
        assert_eq!(image.faults(), "", "{features}");
    }
}

#[test]
fn a_directory_that_lies_in_itself_is_refused() {
    let image = Image::format(EXT2, "4M");
    image.debugfs("mkdir loop\nlink loop loop/again\n");
    let filesystem = begin(&image).unwrap();
    let name = |text| Name::new(text).unwrap();
    let dir = filesystem.root().unwrap().lookup(name(b"loop")).unwrap();
    let removed = dir.remove_dir(&Context::root(), name(b"again"));
    let Err(Error::Corrupt(corruption)) = removed else {
        panic!("{removed:?}");
    };
    assert_eq!(corruption.rule, InodeNumberRule::Itself.text());
}

#[test]
fn removed_directory_that_is_still_open_has_zero_size() {
    let image = Image::format(EXT2, "4M");
    let filesystem = begin(&image).unwrap();
    let (root, name) = (filesystem.root().unwrap(), Name::new(b"dir").unwrap());
    let made = root.create(&Context::root(), name, CreateKind::Directory, 0o755);
    let dir = made.unwrap();
    assert_eq!(dir.attr().unwrap().size_bytes, 1024);
    root.remove_dir(&Context::root(), name).unwrap();
    let attr = dir.attr().unwrap();
    assert_eq!((attr.links, attr.size_bytes), (0, 0));
    drop(dir);
    filesystem.unmount().unwrap();
    assert_eq!(image.faults(), "");
}

#[test]
fn a_protection_block_outside_the_filesystem_is_refused() {
    let image = Image::format(&["-t", "ext4", "-O", "mmp"], "8M");
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(image.path())
        .unwrap();
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)
        .unwrap();
    let mut disk: DiskSuperblock = zerocopy::transmute!(bytes);
    disk.mmp_block.set(99_999_999);
    disk.seal();
    file.write_all_at(disk.as_bytes(), SUPERBLOCK_OFFSET_BYTES)
        .unwrap();
    drop(file);
    let Err(Error::Corrupt(corruption)) = begin(&image) else {
        panic!("it was mounted");
    };
    assert_eq!(corruption.rule, MmpRule::Place.text());
}
