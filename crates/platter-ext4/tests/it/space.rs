//! Space and inodes, against what dumpe2fs counts.

use platter_block::Access;
use platter_ext4::{Ext4, MountOptions, OnError};
use platter_vfs::{Context, CreateKind, Error, Filesystem, Name, Result, SetAttr, XattrMode};

use crate::image::{Image, mount, read_all, run, tool, walk};

const JOURNALED: &[&str] = &["-b", "1024", "-O", "has_journal,extent,metadata_csum"];

/// A number that dumpe2fs prints after `label`.
fn number(text: &str, label: &str) -> u64 {
    let line = text.lines().find_map(|line| line.strip_prefix(label));
    let line = line.unwrap_or_else(|| panic!("{label} is missing in {text}"));
    line.trim_start_matches(':').trim().parse().unwrap()
}

fn compare(options: &[&str], size: &str) {
    let image = Image::format(options, size);
    let text = run(tool("dumpe2fs").arg("-h").arg(image.path()), "");
    let space = image.mount().stat_fs().unwrap();
    let clusters = if text.contains("Cluster size") {
        number(&text, "Cluster size") / number(&text, "Block size")
    } else {
        1
    };
    let blocks = number(&text, "Block count");
    assert_eq!(u64::from(space.block_bytes), number(&text, "Block size"));
    assert_eq!(
        space.blocks_free,
        number(&text, "Free blocks"),
        "{options:?}"
    );
    assert_eq!(space.inodes, number(&text, "Inode count"));
    assert_eq!(space.inodes_free, number(&text, "Free inodes"));
    let overhead = number(&text, "Overhead clusters") * clusters;
    assert_eq!(space.blocks, blocks - overhead, "{options:?}");
    assert!(space.blocks_available < space.blocks_free);
    assert_eq!(space.magic, 0xef53);
}

#[test]
fn space_is_what_dumpe2fs_counts() {
    compare(&["-t", "ext2", "-b", "1024"], "40M");
    compare(
        &[
            "-t",
            "ext3",
            "-b",
            "4096",
            "-O",
            "sparse_super,resize_inode",
        ],
        "1G",
    );
    compare(
        &[
            "-t",
            "ext4",
            "-O",
            "extent,64bit,flex_bg,metadata_csum,sparse_super",
        ],
        "300M",
    );
    compare(
        &[
            "-b",
            "1024",
            "-g",
            "512",
            "-O",
            "meta_bg,^resize_inode,extent,has_journal",
        ],
        "64M",
    );
    compare(
        &["-O", "bigalloc,extent,has_journal,64bit", "-C", "65536"],
        "1G",
    );
}

/// An image whose first group has a bitmap with a wrong checksum.
fn corrupt_image() -> Image {
    let image = Image::format(&["-b", "1024", "-O", "extent,metadata_csum"], "16M");
    image.debugfs("mkdir subdir\n");
    image.corrupt_bitmap("Block", 1000);
    image
}

fn begin(image: &Image, on_error: Option<OnError>) -> Ext4 {
    let options = MountOptions {
        read_only: false,
        on_error,
        ..MountOptions::default()
    };
    mount(image.device(Access::Write), &options).unwrap()
}

fn create(filesystem: &Ext4, name: &str, len: usize) -> Result<()> {
    let root = filesystem.root()?;
    let name = Name::new(name.as_bytes())?;
    let file = root.create(&Context::root(), name, CreateKind::Regular, 0o644)?;
    if len > 0 {
        file.write_at(0, &vec![7; len])?;
    }
    file.sync(false)
}

fn unlink(filesystem: &Ext4, name: &str) -> Result<()> {
    let root = filesystem.root()?;
    root.unlink(&Context::root(), Name::new(name.as_bytes())?)
}

/// Has e2fsck repair an image with errors, and checks that it found some.
fn repair(image: &Image) {
    assert!(image.field("Filesystem state").contains("with errors"));
    let output = tool("e2fsck").arg("-fy").arg(image.path()).output();
    let output = output.unwrap();
    let printed = String::from_utf8_lossy(&output.stdout);
    assert_eq!(output.status.code(), Some(1), "{printed}");
    assert_eq!(image.faults(), "");
}

#[test]
fn group_with_a_corrupt_bitmap_is_skipped_and_recorded() {
    for goes_on in [true, false] {
        let image = corrupt_image();
        let options = MountOptions {
            read_only: false,
            on_error: (!goes_on).then_some(OnError::ReadOnly),
            ..MountOptions::default()
        };
        let filesystem = mount(image.device(Access::Write), &options).unwrap();
        let dir = walk(&filesystem, "subdir").unwrap();
        let value = [7; 900];
        let set = dir.set_xattr(&Context::root(), b"user.a", &value, XattrMode::Set);
        set.unwrap();
        assert_eq!(filesystem.sync().is_ok(), goes_on);
        assert_eq!(filesystem.is_read_only(), !goes_on);
        drop(dir);
        assert_eq!(filesystem.unmount().is_ok(), goes_on);
        drop(filesystem);
        assert!(image.field("Filesystem state").contains("with errors"));
        assert_eq!(image.field("FS Error count"), "1");
        assert_eq!(image.field("First error err"), "EFSBADCRC");
    }
}

#[test]
fn files_with_a_corrupt_block_bitmap_are_removed() {
    let ext2 = &["-t", "ext2", "-b", "1024"][..];
    for (options, goes_on) in [(JOURNALED, true), (JOURNALED, false), (ext2, true)] {
        let image = Image::format(options, "32M");
        let filesystem = begin(&image, None);
        create(&filesystem, "gone", 300 << 10).unwrap();
        create(&filesystem, "cut", 300 << 10).unwrap();
        filesystem.unmount().unwrap();
        drop(filesystem);
        image.corrupt_bitmap("Block", 1000);
        let filesystem = begin(&image, (!goes_on).then_some(OnError::ReadOnly));
        unlink(&filesystem, "gone").unwrap();
        assert_eq!(filesystem.is_read_only(), !goes_on);
        if !goes_on {
            continue;
        }
        let cut = walk(&filesystem, "cut").unwrap();
        let changes = SetAttr {
            size_bytes: Some(0),
            ..SetAttr::default()
        };
        let changed = cut.set_attr(&Context::root(), &changes);
        assert!(matches!(changed, Err(Error::Corrupt(_))), "{changed:?}");
        assert_eq!(cut.attr().unwrap().size_bytes, 0);
        drop(cut);
        create(&filesystem, "new", 5000).unwrap();
        assert!(!filesystem.is_read_only());
        filesystem.unmount().unwrap();
        drop(filesystem);
        repair(&image);
        let filesystem = image.mount();
        assert!(walk(&filesystem, "gone").is_err());
        let new = walk(&filesystem, "new").unwrap();
        assert_eq!(read_all(&*new, 1000), [7; 5000]);
    }
}

#[test]
fn orphans_with_a_corrupt_block_bitmap_are_recorded() {
    let image = Image::format(JOURNALED, "32M");
    let filesystem = begin(&image, None);
    create(&filesystem, "cut", 300 << 10).unwrap();
    create(&filesystem, "gone", 300 << 10).unwrap();
    let [cut, gone] = ["cut", "gone"].map(|name| walk(&filesystem, name).unwrap().id().number);
    filesystem.unmount().unwrap();
    drop(filesystem);
    image.debugfs(&format!(
        "sif cut size 5000\nsif gone links_count 0\nsif cut dtime {gone}\nsif gone dtime 0\n\
         ssv last_orphan {cut}\nunlink gone\n"
    ));
    image.corrupt_bitmap("Block", 1000);
    let filesystem = begin(&image, None);
    let file = walk(&filesystem, "cut").unwrap();
    let longer = SetAttr {
        size_bytes: Some(100_000),
        ..SetAttr::default()
    };
    // What was truncated must not come back.
    let changed = file.set_attr(&Context::root(), &longer);
    assert!(matches!(changed, Err(Error::Corrupt(_))), "{changed:?}");
    assert_eq!(file.attr().unwrap().size_bytes, 5000);
    assert!(!filesystem.is_read_only());
    drop(file);
    filesystem.unmount().unwrap();
    drop(filesystem);
    repair(&image);
}

#[test]
fn files_with_a_corrupt_inode_bitmap_are_removed() {
    let image = Image::format(JOURNALED, "32M");
    let filesystem = begin(&image, None);
    create(&filesystem, "empty", 0).unwrap();
    create(&filesystem, "full", 5000).unwrap();
    filesystem.unmount().unwrap();
    drop(filesystem);
    image.corrupt_bitmap("Inode", 100);
    let filesystem = begin(&image, None);
    for name in ["empty", "full"] {
        unlink(&filesystem, name).unwrap();
        assert!(walk(&filesystem, name).is_err());
        assert!(!filesystem.is_read_only());
    }
    create(&filesystem, "new", 5000).unwrap();
    filesystem.unmount().unwrap();
    drop(filesystem);
    repair(&image);
    assert!(walk(&image.mount(), "new").is_ok());
}

#[test]
fn statfs_is_exact_during_changes() {
    let image = Image::format(&["-b", "1024", "-O", "extent,has_journal"], "16M");
    image.debugfs("mkdir a\nmkdir b\n");
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let filesystem = mount(image.device(Access::Write), &options).unwrap();
    let before = filesystem.stat_fs().unwrap();
    for (name, value) in [("a", [1; 900]), ("b", [2; 900])] {
        let dir = walk(&filesystem, name).unwrap();
        let set = dir.set_xattr(&Context::root(), b"user.a", &value, XattrMode::Set);
        set.unwrap();
    }
    let after = filesystem.stat_fs().unwrap();
    assert_eq!(after.blocks_free, before.blocks_free - 2);
    assert_eq!(after.blocks_available, before.blocks_available - 2);
    assert_eq!(after.inodes_free, before.inodes_free);
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.field("Free blocks"), after.blocks_free.to_string());
    assert_eq!(image.faults(), "");
}

/// Values that files share go to a block of their own and back; the space that this frees becomes
/// available with a commit by any thread.
#[test]
fn threads_that_free_what_they_need_never_run_out_of_space() {
    const THREADS: usize = 16;
    const VALUES: usize = 40;
    let image = Image::format(&["-t", "ext2", "-b", "1024", "-I", "128"], "400K");
    let options = MountOptions {
        read_only: false,
        ..MountOptions::default()
    };
    let filesystem = mount(image.device(Access::Write), &options).unwrap();
    let root = filesystem.root().unwrap();
    let context = Context::root();
    let files: Vec<_> = (0..THREADS)
        .map(|number| {
            let name = number.to_string();
            let name = Name::new(name.as_bytes()).unwrap();
            let kind = CreateKind::Regular;
            root.create(&context, name, kind, 0o644).unwrap()
        })
        .collect();
    std::thread::scope(|scope| {
        for (number, file) in files.iter().enumerate() {
            let context = &context;
            scope.spawn(move || {
                for round in 0..3000 {
                    let value = format!("{}", (number * 31 + round * 17) % VALUES);
                    let mode = XattrMode::Set;
                    let set = file.set_xattr(context, b"user.a", value.as_bytes(), mode);
                    set.unwrap();
                }
            });
        }
    });
    drop((files, root));
    filesystem.unmount().unwrap();
    drop(filesystem);
    assert_eq!(image.faults(), "");
}
