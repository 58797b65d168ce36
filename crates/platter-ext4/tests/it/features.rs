//! What an image may ask for: refused by name, or honoured.

use std::fs::OpenOptions;
use std::os::unix::fs::FileExt;

use platter_ext4::MountOptions;
use platter_ext4::inode::{self, InodeNumberRule};
use platter_ext4::ondisk::InodeNr;
use platter_ext4::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_OFFSET_BYTES, SuperblockRule};
use platter_ext4::ops::LinkRule;
use platter_ondisk::Rule;
use platter_vfs::{Condition, Error, FileKind, Filesystem, InodeId};
use zerocopy::{FromBytes, IntoBytes};

use crate::image::{Image, noise, read_all, walk, write};

/// Changes the superblock of an image and puts the checksum right.
pub(crate) fn change_superblock(image: &Image, change: impl FnOnce(&mut DiskSuperblock)) {
    let file = OpenOptions::new()
        .read(true)
        .write(true)
        .open(image.path())
        .unwrap();
    let mut bytes = [0; 1024];
    file.read_exact_at(&mut bytes, SUPERBLOCK_OFFSET_BYTES)
        .unwrap();
    let disk = DiskSuperblock::mut_from_bytes(&mut bytes).unwrap();
    change(disk);
    disk.seal();
    file.write_all_at(disk.as_bytes(), SUPERBLOCK_OFFSET_BYTES)
        .unwrap();
}

/// A small ext4 image with one file, `/file`, of this content.
pub(crate) fn with_file(options: &[&str], content: &[u8]) -> Image {
    let dir = tempfile::tempdir().unwrap();
    write(&dir.path().join("file"), content);
    let source = dir.path().to_str().unwrap();
    Image::format(&[options, &["-d", source]].concat(), "8M")
}

fn refusal(image: &Image) -> String {
    image
        .try_mount(&MountOptions::default())
        .unwrap_err()
        .to_string()
}

fn broken_rule(error: Error) -> String {
    let Error::Corrupt(corruption) = error else {
        panic!("{error} is no corruption");
    };
    corruption.rule.into_owned()
}

fn is_condition<T>(result: Result<T, Error>, expected: Condition) -> bool {
    matches!(result.err(), Some(Error::Condition(found)) if found == expected)
}

const EXT4: &[&str] = &[
    "-t",
    "ext4",
    "-b",
    "4096",
    "-O",
    "extent,metadata_csum,64bit",
    "-I",
    "256",
];

#[test]
fn unknown_incompatible_features_are_refused_by_name() {
    let image = with_file(EXT4, b"");
    change_superblock(&image, |disk| disk.feature_incompat.set(0x4000_1042));
    let expected = "ext4: dirdata, FEATURE_I30 is not supported";
    assert_eq!(refusal(&image), expected);
}

#[test]
fn names_of_an_unknown_encoding_are_refused() {
    let image = with_file(EXT4, b"");
    change_superblock(&image, |disk| {
        let incompat = disk.feature_incompat.get() | 0x2_0000;
        disk.feature_incompat.set(incompat);
        disk.encoding.set(7);
    });
    let expected = "ext4: casefold with encoding 7 is not supported (only utf8-12.1 is)";
    assert_eq!(refusal(&image), expected);
    change_superblock(&image, |disk| disk.encoding.set(1));
    assert!(image.try_mount(&MountOptions::default()).is_ok());
}

#[test]
fn journal_device_is_no_filesystem() {
    let image = Image::format(&["-O", "journal_dev", "-b", "4096"], "8M");
    let expected = "ext4: journal_dev is not supported \
                    (the device holds the journal of another filesystem)";
    assert_eq!(refusal(&image), expected);
}

#[test]
fn unknown_read_only_features_do_not_keep_from_reading() {
    let image = with_file(EXT4, b"there");
    change_superblock(&image, |disk| disk.feature_ro_compat.set(0x8000_0400));
    let filesystem = image.mount();
    let file = walk(&filesystem, "file").unwrap();
    assert_eq!(read_all(&*file, 100), b"there");
}

#[test]
fn image_that_was_truncated_is_refused() {
    let image = with_file(EXT4, b"");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.set_len(7 << 20).unwrap();
    let error = image.try_mount(&MountOptions::default()).unwrap_err();
    assert_eq!(broken_rule(error), SuperblockRule::DeviceTooShort.text());
    file.set_len(100).unwrap();
    assert_eq!(
        refusal(&image),
        "superblock at byte 1024: magic is not 0xef53"
    );
}

#[test]
fn truncated_image_is_read_as_far_as_it_goes_when_asked() {
    let image = with_file(EXT4, b"there");
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.set_len(3 << 20).unwrap();
    let options = MountOptions {
        truncated: true,
        ..MountOptions::default()
    };
    let filesystem = image.try_mount(&options).unwrap();
    let description = filesystem.describe();
    let truncated = description.detail("truncated").unwrap().to_string();
    assert_eq!(truncated, "the last 5242880 bytes are missing");
    let inode = walk(&filesystem, "file").unwrap();
    assert_eq!(read_all(&*inode, 100), b"there");
}

#[test]
fn backup_superblock_opens_what_the_first_one_cannot() {
    let content = noise(4, 100_000);
    let image = with_file(&["-t", "ext4", "-b", "1024", "-g", "1024"], &content);
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0; 8 << 10], 1024).unwrap();
    assert_eq!(
        refusal(&image),
        "superblock at byte 1024: magic is not 0xef53"
    );
    let options = MountOptions {
        superblock_kib: Some(1025),
        ..MountOptions::default()
    };
    let filesystem = image.try_mount(&options).unwrap();
    let found = read_all(&*walk(&filesystem, "file").unwrap(), 4096);
    assert!(found == content);
}

#[test]
fn special_files_have_their_kind_and_number() {
    let image = with_file(EXT4, b"");
    image.debugfs("mknod fifo p\nmknod tty c 5 300\nmknod disk b 259 60000\n");
    let filesystem = image.mount();
    let attr = |name| walk(&filesystem, name).unwrap().attr().unwrap();
    assert_eq!(attr("fifo").kind, FileKind::Fifo);
    let tty = attr("tty");
    assert_eq!(
        (tty.kind, tty.device.major, tty.device.minor),
        (FileKind::CharDevice, 5, 300)
    );
    let disk = attr("disk").device;
    assert_eq!((disk.major, disk.minor), (259, 60_000));
    let fifo = walk(&filesystem, "fifo").unwrap();
    assert!(is_condition(
        fifo.read_at(0, &mut [0; 4]),
        Condition::InvalidArgument
    ));
    assert!(is_condition(fifo.read_link(), Condition::InvalidArgument));
}

#[test]
fn encrypted_files_are_refused_without_a_key() {
    let image = with_file(EXT4, b"secret");
    image.debugfs("mkdir subdir\nsymlink link target\n");
    // 0x800 is the encryption flag.
    image.debugfs("sif file flags 0x80800\nsif subdir flags 0x80800\nsif link flags 0x800\n");
    let filesystem = image.mount();
    let file = walk(&filesystem, "file").unwrap();
    assert_eq!(file.attr().unwrap().size_bytes, 6);
    assert!(is_condition(file.read_at(0, &mut [0; 4]), Condition::NoKey));
    assert!(is_condition(
        walk(&filesystem, "subdir/x"),
        Condition::NoKey
    ));
    let link = walk(&filesystem, "link").unwrap();
    assert!(is_condition(link.read_link(), Condition::NoKey));
}

#[test]
fn long_links_that_hold_no_target_are_corrupt() {
    let image = with_file(EXT4, b"");
    let target = "t".repeat(300);
    image.debugfs(&format!(
        "symlink long {target}\nsymlink nothing {target}\n"
    ));
    image.debugfs("sif long size 4096\n");
    let block = image.debugfs("bmap nothing 0\n");
    let block: u64 = block
        .lines()
        .find_map(|line| line.trim().parse().ok())
        .unwrap();
    let file = OpenOptions::new().write(true).open(image.path()).unwrap();
    file.write_all_at(&[0], block * 4096).unwrap();
    let filesystem = image.mount();
    for (name, rule) in [("long", LinkRule::Length), ("nothing", LinkRule::Target)] {
        let link = walk(&filesystem, name).unwrap();
        assert_eq!(broken_rule(link.read_link().unwrap_err()), rule.text());
    }
}

#[test]
fn sealed_files_end_before_their_hash_tree() {
    let content = noise(8, 50_000);
    let image = with_file(EXT4, &content);
    image.debugfs("sif file flags 0x180000\nsif file size 20001\n");
    let filesystem = image.mount();
    let file = walk(&filesystem, "file").unwrap();
    assert!(read_all(&*file, 4096) == content[..20_001]);
}

#[test]
fn times_reach_beyond_2038_and_before_1970() {
    let image = with_file(EXT4, b"");
    image.debugfs(
        "sif file mtime 0x80000000\nsif file mtime_extra 0x5\n\
         sif file atime 0xffffffff\nsif file atime_extra 0x0\n\
         sif file crtime 0x10\nsif file crtime_extra 0xee6b27fc\n",
    );
    let filesystem = image.mount();
    let attr = walk(&filesystem, "file").unwrap().attr().unwrap();
    assert_eq!(
        (attr.modified.seconds, attr.modified.nanoseconds),
        (0x8000_0000, 1)
    );
    assert_eq!(attr.accessed.seconds, -1);
    let created = attr.created.unwrap();
    assert_eq!((created.seconds, created.nanoseconds), (0x10, 999_999_999));
}

#[test]
fn invalid_inodes_are_corrupt_by_name_and_stale_by_number() {
    let image = with_file(EXT4, b"");
    image.debugfs("mkdir subdir\nlink <8> journal\nlink file again\nclri file\n");
    image.debugfs("write /dev/null value\nsif value flags 0x280000\n");
    let filesystem = image.mount();
    for (name, rule) in [
        ("journal", InodeNumberRule::Reserved),
        ("again", InodeNumberRule::Deleted),
        ("value", InodeNumberRule::AttributeValue),
    ] {
        assert_eq!(
            broken_rule(walk(&filesystem, name).unwrap_err()),
            rule.text()
        );
    }
    let number = InodeNr::new(1 << 20).unwrap();
    let error = inode::read(filesystem.fs(), number).unwrap_err();
    assert_eq!(broken_rule(error), InodeNumberRule::OutOfRange.text());
    for number in [0, 1, 8, 12, 500, 1 << 20, 1 << 32] {
        let id = InodeId { tree: 0, number };
        assert!(
            is_condition(filesystem.inode(id), Condition::Stale),
            "{number}"
        );
    }
    assert!(walk(&filesystem, "subdir").is_ok());
}

#[test]
fn description_reports_the_properties_of_the_image() {
    let image = with_file(&["-j", "-L", "a label", "-b", "1024"], b"");
    let description = image.mount().describe();
    assert_eq!(description.kind, "ext3");
    assert_eq!(description.label, b"a label");
    let uuid = description.uuid.to_string();
    assert_eq!(uuid, "0d15ea5e-0000-4000-8000-00c0ffee0001");
    let features: Vec<_> = description
        .features
        .iter()
        .map(|feature| &*feature.name)
        .collect();
    assert!(features.contains(&"has_journal"), "{features:?}");
    let detail = |key| description.detail(key).unwrap().to_string();
    assert_eq!(detail("state"), "clean");
    assert_eq!(detail("block_bytes"), "1024");
    assert_eq!(detail("created"), "2023-11-14T22:13:20Z");
    assert_eq!(detail("last_mounted"), "never");
    assert_eq!(
        detail("directory_hash_seed"),
        "0d15ea5e-0000-4000-8000-00c0ffee0002"
    );
    assert_eq!(detail("journal"), "clean, 1048576 bytes");
}

#[test]
fn all_users_of_an_inode_share_one_object() {
    let image = with_file(EXT4, b"");
    let filesystem = image.mount();
    let first = walk(&filesystem, "file").unwrap();
    let second = filesystem.inode(first.id()).unwrap();
    assert!(std::ptr::addr_eq(&raw const *first, &raw const *second));
    drop(filesystem);
    assert_eq!(first.attr().unwrap().size_bytes, 0);
}
