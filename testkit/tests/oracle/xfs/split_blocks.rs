//! Directory blocks that lie in several extents, as they come where free space is in pieces shorter than one, with
//! `xfs_repair` and the kernel, which go on. Kernels do not replay their own changes of such blocks
//! ("Bad dir block magic"), but replay those that are logged here.

use std::fs::{self, File};
use std::path::Path;

use platter::{ImageSpec, MountOptions, Volume};
use platter_vfs::{Context, CreateKind, RenameMode, inode::read_dir_all};
use rustix::fs::FallocateFlags;
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::xfs;
use testkit::tool;

use super::writing::{assert_clean, assert_equal, name, open};

const BLOCK: u64 = 1024;
/// Names of a directory: with directory blocks of 8 KiB they take nodes.
const NAMES: usize = 1200;

struct Shape {
    options: &'static [&'static str],
    size_mib: u64,
    /// Blocks of a directory block.
    dir_block: u64,
    /// Directories that take the longer pieces of free space, as groups with owners keep some.
    fillers: usize,
}

const SHAPES: &[Shape] = &[
    Shape {
        options: &[
            "-n",
            "size=8192",
            "-b",
            "size=1024",
            "-m",
            "rmapbt=1,reflink=0,finobt=0",
            "-d",
            "agcount=2",
        ],
        size_mib: 64,
        dir_block: 8,
        fillers: 14,
    },
    Shape {
        options: &[
            "-n",
            "size=65536",
            "-b",
            "size=1024",
            "-m",
            "reflink=0,finobt=0",
        ],
        size_mib: 96,
        dir_block: 64,
        fillers: 1,
    },
];

impl Shape {
    fn what<'s>(&self, state: &'s str) -> (&'static str, &'s str) {
        (self.options[1], state)
    }
}

/// Leaves three free blocks in a row, and five in use after them.
fn fragment(root: &Path) {
    let mut io = tool::command("xfs_io");
    tool::succeed(io.args(["-x", "-c", "resblks 64"]).arg(root)).unwrap();
    let file = File::create(root.join("filling")).unwrap();
    let mut end = 0;
    let mut step = 1 << 20;
    while step >= BLOCK {
        if rustix::fs::fallocate(&file, FallocateFlags::empty(), end, step).is_ok() {
            end += step;
        } else {
            step /= 2;
        }
    }
    let hole = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    for at in (0..end - 8 * BLOCK).step_by(8 * 1024) {
        rustix::fs::fallocate(&file, hole, at, 3 * BLOCK).unwrap();
    }
    rustix::fs::sync();
}

fn text(index: usize) -> String {
    format!("name-{index:06}-{}", "n".repeat(150 + index % 60))
}

/// Whether blocks of a directory lie in several extents.
fn is_split(volume: &Volume, directory: &str, block: u64) -> bool {
    let root = volume.filesystem().root().unwrap();
    let directory = root.lookup(name(directory)).unwrap();
    let extents = directory.extended_flags().unwrap().extents;
    let blocks = directory.attr().unwrap().sectors / 2 / block;
    u64::from(extents) > blocks + 1
}

/// Adds names to a directory from `first` on, and removes, replaces and renames some before them.
fn change(volume: &Volume, directory: &str, (first, end): (usize, usize)) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let filling = root.lookup(name("filling")).unwrap().id();
    let directory = root.lookup(name(directory)).unwrap();
    for index in first..end {
        directory
            .link(&context, name(&text(index)), filling)
            .unwrap();
    }
    for index in (0..end).step_by(5) {
        directory.unlink(&context, name(&text(index))).unwrap();
    }
    for index in (1..end).step_by(50) {
        let new = format!("renamed-{index}");
        directory
            .rename(
                &context,
                name(&text(index)),
                directory.id(),
                name(&new),
                RenameMode::NoReplace,
            )
            .unwrap();
    }
}

fn names(volume: &Volume, directory: &str) -> usize {
    let root = volume.filesystem().root().unwrap();
    let directory = root.lookup(name(directory)).unwrap();
    read_dir_all(&*directory).unwrap().len()
}

/// Syncs, and has the kernel and platter replay the log of a copy and go on.
fn replay(volume: &Volume, image: &Path, (directory, what): (&str, (&str, &str))) {
    volume.filesystem().sync().unwrap();
    let root = volume.filesystem().root().unwrap();
    let is_there = root.lookup(name(directory)).is_ok();
    let expected = is_there.then(|| names(volume, directory));
    let copy = image.with_extension("copy");
    fs::copy(image, &copy).unwrap();
    {
        let copied = open(&copy);
        if let Some(expected) = expected {
            assert_eq!(names(&copied, directory), expected, "{what:?}");
        }
        copied.filesystem().unmount().unwrap();
    }
    assert_clean(&copy, what);
    fs::copy(image, &copy).unwrap();
    let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
    if let Some(expected) = expected {
        let path = mount.root().join(directory);
        let found: Vec<_> = fs::read_dir(&path).unwrap().collect();
        assert_eq!(found.len(), expected, "{what:?}");
        for entry in found.into_iter().step_by(3) {
            fs::remove_file(entry.unwrap().path()).unwrap();
        }
        for index in 0..100 {
            let new = path.join(format!("theirs-{index}"));
            fs::hard_link(mount.root().join("filling"), new).unwrap();
        }
    }
    mount.unmount_all(&[&copy]).unwrap();
    assert_clean(&copy, what);
}

/// Changes a directory, takes all its names, and removes it.
fn change_and_remove(image: &Path, shape: &Shape) {
    let context = Context::root();
    let volume = open(image);
    change(&volume, "names", (NAMES, NAMES + NAMES / 2));
    replay(&volume, image, ("names", shape.what("changed")));
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(image, shape.what("changed and unmounted"));
    assert_equal(image, shape.what("changed and unmounted"));

    let edit = MountOptions::new().edit(&ImageSpec::parse(image).unwrap());
    let edit = edit.unwrap();
    // There is no space for another chunk of inodes.
    for index in 0..10 {
        let path = format!("/names/edited-{index}");
        edit.write(path.as_bytes(), b"edited").unwrap();
    }
    edit.commit().unwrap();
    assert_clean(image, shape.what("edited"));
    assert_equal(image, shape.what("edited"));

    let volume = open(image);
    let root = volume.filesystem().root().unwrap();
    let directory = root.lookup(name("names")).unwrap();
    let all = read_dir_all(&*directory).unwrap();
    for (nth, entry) in all.iter().enumerate() {
        if nth == all.len() / 2 {
            replay(&volume, image, ("names", shape.what("half of it")));
        }
        directory.unlink(&context, entry.name.as_name()).unwrap();
    }
    drop(directory);
    root.remove_dir(&context, name("names")).unwrap();
    drop(root);
    replay(&volume, image, ("names", shape.what("removed")));
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(image, shape.what("removed and unmounted"));
    assert_equal(image, shape.what("removed and unmounted"));
}

fn fragmented(image: &Path, shape: &Shape) -> Mount {
    xfs::make(image, shape.size_mib << 10, shape.options).unwrap();
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadWrite).unwrap();
    fragment(mount.root());
    mount
}

/// The directories that are made one after the other, the last of which is looked at.
fn directories(shape: &Shape) -> Vec<String> {
    let mut all: Vec<_> = (0..shape.fillers)
        .map(|nth| format!("filler-{nth}"))
        .collect();
    all.push("names".to_owned());
    all
}

#[test]
fn split_directory_blocks_of_the_kernel_are_changed() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    for shape in SHAPES {
        let mount = fragmented(&image, shape);
        for directory in directories(shape) {
            let directory = mount.root().join(directory);
            fs::create_dir(&directory).unwrap();
            for index in 0..NAMES {
                let new = directory.join(text(index));
                fs::hard_link(mount.root().join("filling"), new).unwrap();
            }
        }
        mount.unmount_all(&[&image]).unwrap();
        assert_clean(&image, shape.what("made"));
        let volume = open(&image);
        assert!(
            is_split(&volume, "names", shape.dir_block),
            "{:?}",
            shape.options
        );
        volume.filesystem().unmount().unwrap();
        drop(volume);
        change_and_remove(&image, shape);
    }
}

#[test]
fn directory_blocks_are_split_where_space_is_in_pieces() {
    let dir = tempfile::tempdir().unwrap();
    let image = dir.path().join("image");
    let context = Context::root();
    for shape in SHAPES {
        fragmented(&image, shape).unmount_all(&[&image]).unwrap();
        let volume = open(&image);
        let root = volume.filesystem().root().unwrap();
        let filling = root.lookup(name("filling")).unwrap().id();
        for directory in directories(shape) {
            let made = root.create(&context, name(&directory), CreateKind::Directory, 0o755);
            let made = made.unwrap();
            for index in 0..NAMES {
                made.link(&context, name(&text(index)), filling).unwrap();
            }
        }
        drop(root);
        assert!(
            is_split(&volume, "names", shape.dir_block),
            "{:?}",
            shape.options
        );
        replay(&volume, &image, ("names", shape.what("made")));
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, shape.what("made and unmounted"));
        assert_equal(&image, shape.what("made and unmounted"));
        change_and_remove(&image, shape);
    }
}
