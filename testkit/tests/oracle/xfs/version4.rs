//! Version 4, which the kernel does not mount: filled by `mkfs.xfs -p` and `xfs_db`, and compared with
//! what went in and with what `xfs_db` prints.

use std::collections::BTreeSet;
use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use platter::block::Access;
use platter::{DeviceRole, Image, MountOptions};
use testkit::oracle::xfs;

use super::printed::{Printed, ask, find, read};
use super::{check, open};

/// Files of `mkfs.xfs -p`, by path below their directory, with length.
const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 70_000, 300_000];
/// Directories and how many names they have.
const DIRECTORIES: [(&str, usize); 4] = [("few", 3), ("some", 40), ("more", 200), ("many", 1500)];

pub(super) struct Source {
    dir: tempfile::TempDir,
    protofile: PathBuf,
}

impl Source {
    /// The directory of what it consists of, and of what was made of it.
    pub(super) fn into_dir(self) -> tempfile::TempDir {
        self.dir
    }
}

/// A description of directories, files, links and special files.
pub(super) fn source() -> Result<Source> {
    let dir = tempfile::tempdir()?;
    let mut text = String::from("/stub\n0 0\nd--755 0 0\n");
    for len in LENGTHS {
        let path = dir.path().join(format!("file-{len}"));
        fs::write(&path, contents(len))?;
        writeln!(text, "file-{len} ---640 7 9 {}", path.display())?;
    }
    writeln!(text, "short l--777 0 0 {}", "s".repeat(40))?;
    writeln!(text, "long l--777 0 0 {}", "l".repeat(900))?;
    writeln!(text, "character c--600 0 0 5 1\nfifo p--644 0 0")?;
    for (name, count) in DIRECTORIES {
        writeln!(text, "{name} d--750 1 2")?;
        let empty = dir.path().join("file-0");
        for number in 0..count {
            writeln!(text, "name-{number} ---600 0 0 {}", empty.display())?;
        }
        writeln!(text, "$")?;
    }
    writeln!(text, "$")?;
    let protofile = dir.path().join("protofile");
    fs::write(&protofile, text)?;
    Ok(Source { dir, protofile })
}

fn contents(len: usize) -> Vec<u8> {
    (0..len)
        .map(|at| u8::try_from(at % 251).unwrap_or_default())
        .collect()
}

pub(super) fn make(source: &Source, options: &[&str]) -> Result<PathBuf> {
    let image = source.dir.path().join("image");
    let protofile = source.protofile.display().to_string();
    let mut all = vec!["-m", "crc=0", "-p", &protofile];
    all.extend(options);
    xfs::make(&image, 96 << 10, &all)?;
    Ok(image)
}

/// Compares an image with what it was made of, and with what `xfs_db` prints. Returns the forms of what it has.
fn examine(options: &[&str]) -> Result<BTreeSet<String>> {
    let source = source()?;
    let image = make(&source, options)?;
    set_times(&image)?;
    check::assert_clean(&image, None)?;
    let volume = open(&image, None)?;
    let filesystem = &**volume.filesystem();
    for len in LENGTHS {
        let inode = find(filesystem, &[&format!("file-{len}")])?;
        assert_eq!(read(&*inode)?, contents(len), "file-{len}");
        let attr = inode.attr()?;
        assert_eq!((attr.permissions, attr.uid, attr.gid), (0o640, 7, 9));
    }
    assert_eq!(find(filesystem, &["short"])?.read_link()?, vec![b's'; 40]);
    assert_eq!(find(filesystem, &["long"])?.read_link()?, vec![b'l'; 900]);
    let character = find(filesystem, &["character"])?.attr()?;
    assert_eq!((character.device.major, character.device.minor), (5, 1));
    for (name, count) in DIRECTORIES {
        let directory = find(filesystem, &[name])?;
        let entries = platter::vfs::inode::read_dir_all(&*directory)?;
        assert_eq!(entries.len(), count, "{name}");
    }
    let compared = Printed::of(&image, None)?.compare(filesystem)?;
    let names: usize = DIRECTORIES.iter().map(|(_, count)| count).sum();
    // With the root, two links and two special files.
    let inodes = names + DIRECTORIES.len() + LENGTHS.len() + 5;
    assert_eq!(compared.inodes, inodes);
    assert_eq!(compared.bytes, LENGTHS.iter().sum::<usize>() as u64);
    Ok(compared.forms)
}

/// Where an inode has its times, each of seconds and nanoseconds: of access, of the contents, of the inode.
const TIMES_AT: u64 = 32;
/// Times of a file, and of another one: before 1970 and after, the first and the last ones that there are.
const TIMES: [(&str, [(i32, u32); 3]); 2] = [
    (
        "file-4095",
        [(-1, 999_999_999), (951_825_600, 7), (i32::MAX, 1)],
    ),
    ("file-4096", [(i32::MIN, 3), (-86_400, 0), (0, 500_000_000)]),
];

/// Sets times of files that differ: `mkfs.xfs` makes all at one time.
fn set_times(image: &Path) -> Result<()> {
    let printed = Printed::of(image, None)?;
    let names = printed.list(printed.root)?;
    let file = fs::File::options().write(true).open(image)?;
    for (name, times) in TIMES {
        let times = times.map(|(seconds, nanoseconds)| {
            [seconds.to_be_bytes(), nanoseconds.to_be_bytes()].concat()
        });
        let at = printed.byte_of_inode(names[name]) + TIMES_AT;
        file.write_all_at(&times.concat(), at)?;
    }
    let volume = open(image, None)?;
    for (name, times) in TIMES {
        let attr = find(&**volume.filesystem(), &[name])?.attr()?;
        let found = [attr.accessed, attr.modified, attr.changed];
        let found = found.map(|time| (time.seconds, time.nanoseconds));
        let times = times.map(|(seconds, nanoseconds)| (i64::from(seconds), nanoseconds));
        assert_eq!(found, times, "{name}");
    }
    Ok(())
}

/// What the images have together.
const FORMS: [&str; 9] = [
    "directory, block",
    "directory, btree",
    "directory, extents",
    "directory, leaf",
    "directory, local",
    "directory, node",
    "file, extents",
    "link, extents",
    "link, local",
];

#[test]
fn xfs_of_version_4_is_read_as_it_was_made() {
    let mut forms = BTreeSet::new();
    for options in [
        &["-n", "ftype=0"][..],
        &["-n", "ftype=1", "-b", "size=1024"],
        &["-b", "size=512", "-i", "size=256", "-n", "size=4096"],
        &[
            "-i",
            "size=2048,attr=1,projid32bit=0",
            "-l",
            "version=1,lazy-count=0",
        ],
        &["-n", "size=16384", "-s", "size=4096"],
    ] {
        let seen = examine(options);
        forms.extend(seen.unwrap_or_else(|error| panic!("{options:?}: {error:#}")));
    }
    assert!(forms.iter().eq(FORMS), "{forms:?}");
}

/// `mkfs.xfs -p` makes files of one extent: of one, every second block is left out, and its extents are put into two
/// leaves. `xfs_repair` frees the other blocks, and finds the file sound.
#[test]
fn xfs_of_version_4_has_a_file_with_a_tree_of_extents() -> Result<()> {
    let source = source()?;
    let image = make(&source, &["-n", "ftype=0"])?;
    let path = ["file-300000"];
    let number = find(&**open(&image, None)?.filesystem(), &path)?
        .id()
        .number;
    let printed = Printed::of(&image, None)?;
    let inode = printed.inodes(&[number])?.remove(0);
    let [whole] = inode.extents[..] else {
        panic!("{inode:?}");
    };
    let mut expected = contents(300_000);
    let block_bytes = printed.block_bytes;
    let block_len = usize::try_from(block_bytes)?;
    for hole in (1..).step_by(2).map(|block| block * block_len) {
        let Some(rest) = expected.get_mut(hole..) else {
            break;
        };
        let len = rest.len().min(block_len);
        rest[..len].fill(0);
    }
    // The last block is one of the holes; the leaves are there and where the hole before it was.
    let leaves = [whole.count - 1, whole.count - 3];
    assert!(leaves.iter().all(|leaf| leaf % 2 == 1), "{whole:?}");
    let records: Vec<u64> = (0..whole.count).step_by(2).collect();
    let (first, second) = records.split_at(records.len() / 2);
    let file = fs::File::options().write(true).open(&image)?;
    let pointer = |leaf: u64| whole.start + leaf;
    for (leaf, records, siblings) in [
        (leaves[0], first, [u64::MAX, pointer(leaves[1])]),
        (leaves[1], second, [pointer(leaves[0]), u64::MAX]),
    ] {
        let count = u16::try_from(records.len())?.to_be_bytes();
        let mut block = [&b"BMAP\0\0"[..], &count].concat();
        block.extend(siblings.map(u64::to_be_bytes).concat());
        for record in records {
            let [high, low] = [record << 9, pointer(*record) << 21 | 1];
            block.extend([high.to_be_bytes(), low.to_be_bytes()].concat());
        }
        let at = printed.byte_of(&whole) + leaf * block_bytes;
        file.write_all_at(&block, at)?;
    }
    let commands = [
        format!("inode {number}"),
        "write core.format 3".to_owned(),
        format!("write core.nextents {}", records.len()),
        format!("write core.nblocks {}", records.len() + leaves.len()),
        "write u.bmbt.level 1".to_owned(),
        "write u.bmbt.numrecs 2".to_owned(),
        "write u.bmbt.keys[1].startoff 0".to_owned(),
        format!("write u.bmbt.keys[2].startoff {}", second[0]),
        format!("write u.bmbt.ptrs[1] {}", pointer(leaves[0])),
        format!("write u.bmbt.ptrs[2] {}", pointer(leaves[1])),
    ];
    ask(&image, &commands)?;
    xfs::repair(&image, false)?;
    check::assert_clean(&image, None)?;
    let volume = open(&image, None)?;
    let filesystem = &**volume.filesystem();
    assert!(read(&*find(filesystem, &path)?)? == expected, "contents");
    let compared = Printed::of(&image, None)?.compare(filesystem)?;
    assert!(compared.forms.contains("file, btree"), "{compared:?}");
    Ok(())
}

#[test]
fn xfs_of_version_4_has_attributes_in_all_forms() -> Result<()> {
    let source = source()?;
    let image = make(&source, &["-n", "ftype=0"])?;
    let number = |name: &str| -> Result<u64> {
        let volume = open(&image, None)?;
        Ok(find(&**volume.filesystem(), &[name])?.id().number)
    };
    let (short, leaf, remote) = (
        number("file-1")?,
        number("file-4095")?,
        number("file-4096")?,
    );
    let mut commands = vec![
        format!("inode {short}"),
        "attr_set -u -v 10 small".to_owned(),
        "attr_set -s -v 5 label".to_owned(),
        format!("inode {leaf}"),
    ];
    commands.extend((1..=120).map(|nth| format!("attr_set -u -v {nth} number-{nth}")));
    commands.push(format!("inode {remote}"));
    commands.push("attr_set -r -v 30000 large".to_owned());
    ask(&image, &commands)?;
    check::assert_clean(&image, None)?;
    let volume = open(&image, None)?;
    let filesystem = &**volume.filesystem();
    let inode = find(filesystem, &["file-1"])?;
    assert_eq!(inode.get_xattr(b"user.small")?, vec![b'v'; 10]);
    assert_eq!(inode.get_xattr(b"security.label")?, vec![b'v'; 5]);
    let inode = find(filesystem, &["file-4095"])?;
    assert_eq!(inode.list_xattrs()?.len(), 120);
    for nth in 1..=120 {
        let value = inode.get_xattr(format!("user.number-{nth}").as_bytes())?;
        assert_eq!(value, vec![b'v'; nth]);
    }
    let inode = find(filesystem, &["file-4096"])?;
    assert_eq!(inode.get_xattr(b"trusted.large")?, vec![b'v'; 30_000]);
    let compared = Printed::of(&image, None)?.compare(filesystem)?;
    assert_eq!(compared.attributes, 2 + 120 + 1);
    Ok(())
}

/// The kernel here has no realtime support, and `mkfs.xfs -p` makes no realtime files: one is made of an
/// ordinary file, whose blocks have the same numbers on the realtime device.
#[test]
fn xfs_realtime_file_is_read_from_its_device() -> Result<()> {
    let source = source()?;
    let realtime = source.dir.path().join("realtime");
    fs::File::create(&realtime)?.set_len(64 << 20)?;
    let option = format!("rtdev={}", realtime.display());
    let image = make(&source, &["-r", &option])?;
    let path = ["file-70000"];
    let (number, extents) = {
        let volume = open(&image, None)?;
        let inode = find(&**volume.filesystem(), &path)?;
        let mut extents = Vec::new();
        inode.extents(0..u64::MAX, &mut |extent| {
            extents.push(extent);
            ControlFlow::Continue(())
        })?;
        (inode.id().number, extents)
    };
    let device = fs::File::options().write(true).open(&realtime)?;
    for extent in &extents {
        let place = extent.place.context("a place")?;
        let len = usize::try_from(extent.file.end - extent.file.start)?;
        device.write_all_at(&vec![b'r'; len], place.offset)?;
    }
    let commands = [
        format!("inode {number}"),
        "write core.realtime 1".to_owned(),
    ];
    ask(&image, &commands)?;

    let without = open(&image, None)?;
    let inode = find(&**without.filesystem(), &path)?;
    assert!(read(&*inode).is_err(), "the device was not named");
    drop((inode, without));
    let image = Image::open(&image, Access::Read)?;
    let options = MountOptions::new().device(DeviceRole::Realtime, &realtime);
    let volume = options.mount(&image)?;
    let inode = find(&**volume.filesystem(), &path)?;
    assert_eq!(read(&*inode)?, vec![b'r'; 70_000]);
    let mut members = Vec::new();
    inode.extents(0..u64::MAX, &mut |extent| {
        members.extend(extent.place.map(|place| place.member));
        ControlFlow::Continue(())
    })?;
    assert_eq!(members, vec![1; extents.len()]);
    Ok(())
}
