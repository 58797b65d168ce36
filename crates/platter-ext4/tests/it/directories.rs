//! Directories whose names come and go within one transaction, which stores their inodes once.

use std::fs;
use std::sync::Arc;

use platter_block::{Access, MemoryDevice};
use platter_ext4::{Ext4, MountOptions};
use platter_vfs::{
    Attr, Context, CreateKind, Filesystem, Inode, Name, RenameMode, SetAttr, Timestamp, WholeFile,
    XattrMode,
};

use crate::image::{Image, mount, walk};

const FORMATS: [&[&str]; 2] = [
    &["-t", "ext2", "-b", "1024"],
    &[
        "-b",
        "1024",
        "-O",
        "has_journal,extent,metadata_csum,dir_index",
    ],
];

fn begin(image: &Image) -> Ext4 {
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    mount(image.device(Access::Write), &options).unwrap()
}

fn make(dir: &dyn Inode, name: &str, kind: CreateKind) -> Arc<dyn Inode> {
    let name = Name::new(name.as_bytes()).unwrap();
    dir.create(&Context::root(), name, kind, 0o755).unwrap()
}

fn unlink(dir: &dyn Inode, name: &str) {
    let name = Name::new(name.as_bytes()).unwrap();
    dir.unlink(&Context::root(), name).unwrap();
}

fn remove(dir: &dyn Inode, name: &str) {
    let name = Name::new(name.as_bytes()).unwrap();
    dir.remove_dir(&Context::root(), name).unwrap();
}

fn attr(filesystem: &Ext4, path: &str) -> Attr {
    walk(filesystem, path).unwrap().attr().unwrap()
}

#[test]
fn a_directory_is_found_again_as_it_was_after_its_last_change() {
    for (format, is_truncated) in FORMATS
        .iter()
        .flat_map(|format| [(format, false), (format, true)])
    {
        let image = Image::format(format, "16M");
        let filesystem = begin(&image);
        let root = filesystem.root().unwrap();
        let dir = make(&*root, "dir", CreateKind::Directory);
        for turn in 0..3 {
            for number in 0..100 {
                make(&*dir, &format!("file-{number}"), CreateKind::Regular);
                make(&*dir, &format!("dir-{number}"), CreateKind::Directory);
            }
            for number in 0..100 {
                unlink(&*dir, &format!("file-{number}"));
                remove(&*dir, &format!("dir-{number}"));
            }
            make(&*dir, &format!("stays-{turn}"), CreateKind::Directory);
            if turn == 1 {
                filesystem.sync().unwrap();
            }
        }
        dir.sync(false).unwrap();
        let shown = ["", "dir"].map(|path| attr(&filesystem, path));
        assert_eq!(shown[1].links, 5);
        drop((root, dir));
        if !is_truncated {
            filesystem.unmount().unwrap();
        }
        drop(filesystem);
        let filesystem = image.mount();
        assert_eq!(["", "dir"].map(|path| attr(&filesystem, path)), shown);
        drop(filesystem);
        begin(&image).unmount().unwrap();
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn a_number_is_given_out_anew_after_its_directory_was_removed() {
    for format in FORMATS {
        let image = Image::format(format, "16M");
        let filesystem = begin(&image);
        let root = filesystem.root().unwrap();
        let mut numbers = Vec::new();
        for turn in 0..4 {
            let dir = make(&*root, "dir", CreateKind::Directory);
            make(&*dir, "file", CreateKind::Regular);
            unlink(&*dir, "file");
            numbers.push(dir.id().number);
            if turn == 2 {
                filesystem.sync().unwrap();
            }
            remove(&*root, "dir");
            drop(dir);
        }
        assert!(numbers.iter().all(|number| *number == numbers[0]));
        // One that is still in use, and one that gets another kind.
        let open = make(&*root, "open", CreateKind::Directory);
        make(&*open, "file", CreateKind::Regular);
        unlink(&*open, "file");
        remove(&*root, "open");
        filesystem.sync().unwrap();
        drop(open);
        make(&*root, "link", CreateKind::Symlink(b"target".to_vec()));
        filesystem.sync().unwrap();
        drop(root);
        filesystem.unmount().unwrap();
        assert_eq!(image.faults(), "");
    }
}

#[test]
fn a_mount_that_is_dropped_in_the_middle_releases_its_device() {
    let image = Image::format(FORMATS[1], "16M");
    let device = image.device(Access::Write);
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let filesystem = mount(Arc::clone(&device), &options).unwrap();
    make(&*filesystem.root().unwrap(), "file", CreateKind::Regular);
    drop(filesystem);
    assert_eq!(Arc::strong_count(&device), 1);
}

/// Sets flags of `chattr(1)`.
fn set_flags(inode: &dyn Inode, flags: u32) {
    let changes = SetAttr {
        flags: Some(inode.attr().unwrap().flags | flags),
        ..SetAttr::default()
    };
    inode.set_attr(&Context::root(), &changes).unwrap();
}

#[test]
fn changes_of_synchronous_inodes_are_durable_at_once() {
    let context = Context::root();
    let image = Image::format(FORMATS[1], "16M");
    let filesystem = begin(&image);
    let after_a_crash = |path: &str| {
        let bytes = fs::read(image.path()).unwrap();
        let device = Arc::new(MemoryDevice::new("after", bytes));
        let options = MountOptions {
            read_only: false,
            ..MountOptions::default()
        };
        let found = walk(&mount(device, &options).unwrap(), path).ok()?;
        let values = found.list_xattrs().unwrap().len();
        Some((found.attr().unwrap().size_bytes, values))
    };
    let root = filesystem.root().unwrap();
    let plain = make(&*root, "plain", CreateKind::Directory);
    // `S` and `D`.
    for (name, flags) in [("all", 0x8), ("names", 0x1_0000)] {
        let directory = make(&*root, name, CreateKind::Directory);
        set_flags(&*directory, flags);
        filesystem.sync().unwrap();
        let at = |file: &str| after_a_crash(&format!("{name}/{file}"));
        let named = |name: &'static str| Name::new(name.as_bytes()).unwrap();
        let file = make(&*directory, "file", CreateKind::Regular);
        assert_eq!(at("file"), Some((0, 0)), "{name}");
        directory.link(&context, named("link"), file.id()).unwrap();
        assert_eq!(at("link"), Some((0, 0)), "{name}");
        let replace = RenameMode::Replace;
        directory
            .rename(&context, named("link"), plain.id(), named("moved"), replace)
            .unwrap();
        assert_eq!(at("link"), None, "{name}");
        plain
            .rename(
                &context,
                named("moved"),
                directory.id(),
                named("back"),
                replace,
            )
            .unwrap();
        assert_eq!(at("back"), Some((0, 0)), "{name}");
        unlink(&*directory, "back");
        assert_eq!(at("back"), None, "{name}");
        make(&*directory, "below", CreateKind::Directory);
        remove(&*directory, "below");
        assert_eq!(at("below"), None, "{name}");
        set_flags(&*file, 0x8);
        let longer = SetAttr {
            size_bytes: Some(5000),
            ..SetAttr::default()
        };
        file.set_attr(&context, &longer).unwrap();
        assert_eq!(at("file"), Some((5000, 0)), "{name}");
        file.set_xattr(&context, b"user.name", b"value", XattrMode::Set)
            .unwrap();
        assert_eq!(at("file"), Some((5000, 1)), "{name}");
        file.remove_xattr(&context, b"user.name").unwrap();
        assert_eq!(at("file"), Some((5000, 0)), "{name}");
    }
    filesystem.unmount().unwrap();
    assert_eq!(image.faults(), "");
}

#[test]
fn inodes_of_a_dropped_mount_make_nothing_durable() {
    for format in FORMATS {
        let image = Image::format(format, "16M");
        let filesystem = begin(&image);
        let root = filesystem.root().unwrap();
        make(&*root, "durable", CreateKind::Directory);
        filesystem.sync().unwrap();
        let lost = make(&*root, "lost", CreateKind::Directory);
        let file = make(&*root, "file", CreateKind::Regular);
        file.write_at(0, b"bytes").unwrap();
        drop(filesystem);
        assert!(lost.sync(false).is_err());
        assert!(file.sync(true).is_err());
        assert!(root.sync(false).is_err());
        drop((root, lost, file));
        begin(&image).unmount().unwrap();
        assert_eq!(image.faults(), "");
        let filesystem = image.mount();
        assert!(walk(&filesystem, "durable").is_ok());
        assert!(walk(&filesystem, "lost").is_err());
    }
}

#[test]
fn nothing_reaches_the_device_after_the_mount_has_ended() {
    let with_inline: &[&str] = &[
        "-b",
        "1024",
        "-O",
        "inline_data,metadata_csum,^resize_inode",
    ];
    for format in [FORMATS[0], FORMATS[1], with_inline] {
        for is_unmounted in [true, false] {
            let image = Image::format(format, "16M");
            let filesystem = begin(&image);
            let root = filesystem.root().unwrap();
            let old = make(&*root, "old", CreateKind::Regular);
            old.write_at(0, &vec![1; 300 << 10]).unwrap();
            let small = make(&*root, "small", CreateKind::Regular);
            small.write_at(0, b"in the inode, where it may").unwrap();
            filesystem.sync().unwrap();
            if is_unmounted {
                filesystem.unmount().unwrap();
            }
            drop(filesystem);
            let before = fs::read(image.path()).unwrap();

            let name = |name: &'static [u8]| Name::new(name).unwrap();
            // Too long for the inode to hold it.
            let kind = CreateKind::Symlink(vec![b't'; 100]);
            let link = root.create(&Context::root(), name(b"link"), kind, 0o777);
            assert!(link.is_err());
            let whole = WholeFile {
                name: name(b"whole"),
                uid: 0,
                gid: 0,
                permissions: 0o644,
                modified: Timestamp::default(),
                contents: &[2; 3000],
            };
            assert!(root.create_whole(&[whole]).is_err());
            // Past the cache, and through it.
            assert!(old.write_at(0, &vec![3; 200 << 10]).is_err());
            let cached = old.write_at(0, &[3; 100]);
            assert!(cached.is_err() || old.sync(true).is_err());
            let grown = small.write_at(0, &[4; 2000]);
            assert!(grown.is_err() || small.sync(true).is_err());
            drop((root, old, small));
            assert!(
                fs::read(image.path()).unwrap() == before,
                "{format:?} {is_unmounted}"
            );
        }
    }
}
