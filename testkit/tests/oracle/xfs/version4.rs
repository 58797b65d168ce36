//! Version 4, which the kernel does not mount: filled by `mkfs.xfs -p` and `xfs_db`, and compared with
//! what went in and with what `xfs_db` prints.

use std::fmt::Write;
use std::fs;
use std::ops::ControlFlow;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use anyhow::{Context, Result};
use platter::block::Access;
use platter::vfs::{Filesystem, Inode, Name};
use platter::{DeviceRole, Image, MountOptions};
use testkit::oracle::xfs;
use testkit::tool;

use super::{check, open};

/// Files of `mkfs.xfs -p`, by path below their directory, with length.
const LENGTHS: [usize; 6] = [0, 1, 4095, 4096, 70_000, 300_000];
/// Names in the directory that has a tree of leaves.
const MANY: usize = 1500;

pub(super) struct Source {
    dir: tempfile::TempDir,
    protofile: PathBuf,
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
    for (name, count) in [("few", 3), ("some", 40), ("more", 200), ("many", MANY)] {
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

/// Asks `xfs_db`, which may change the image with the option for it.
fn ask(image: &Path, commands: &[String]) -> Result<String> {
    let mut xfs_db = tool::command("xfs_db");
    xfs_db.arg("-x");
    for command in commands {
        xfs_db.args(["-c", command]);
    }
    Ok(tool::succeed(xfs_db.arg(image))?.text())
}

fn find(filesystem: &dyn Filesystem, path: &[&str]) -> Result<Arc<dyn Inode>> {
    let mut inode = filesystem.root()?;
    for name in path {
        inode = inode.lookup(Name::new(name.as_bytes())?)?;
    }
    Ok(inode)
}

fn read(inode: &dyn Inode) -> Result<Vec<u8>> {
    let mut bytes = vec![0; usize::try_from(inode.attr()?.size_bytes)?];
    let count = inode.read_at(0, &mut bytes)?;
    bytes.truncate(count);
    Ok(bytes)
}

fn examine(options: &[&str]) -> Result<()> {
    let source = source()?;
    let image = make(&source, options)?;
    check::assert_clean(&image, None)?;
    let volume = open(&image, None)?;
    let filesystem = &**volume.filesystem();
    for len in LENGTHS {
        let inode = find(filesystem, &[&format!("file-{len}")])?;
        assert_eq!(read(&*inode)?, contents(len), "file-{len}");
        let attr = inode.attr()?;
        assert_eq!((attr.permissions, attr.uid, attr.gid), (0o640, 7, 9));
        assert_core(&image, &*inode)?;
    }
    assert_eq!(find(filesystem, &["short"])?.read_link()?, vec![b's'; 40]);
    assert_eq!(find(filesystem, &["long"])?.read_link()?, vec![b'l'; 900]);
    let character = find(filesystem, &["character"])?.attr()?;
    assert_eq!((character.device.major, character.device.minor), (5, 1));
    for (name, count) in [("few", 3), ("some", 40), ("more", 200), ("many", MANY)] {
        let directory = find(filesystem, &[name])?;
        assert_core(&image, &*directory)?;
        let entries = platter::vfs::inode::read_dir_all(&*directory)?;
        assert_eq!(entries.len(), count, "{name}");
        for entry in &entries {
            let found = directory.lookup(entry.name.as_name())?;
            assert_eq!(found.id(), entry.id);
        }
        let mut ours: Vec<_> = entries.iter().map(|entry| entry.id.number).collect();
        let mut theirs = listed(&image, directory.id().number)?;
        ours.sort_unstable();
        theirs.sort_unstable();
        assert_eq!(ours, theirs, "{name}");
    }
    Ok(())
}

/// Numbers of an inode as `xfs_db` prints them.
fn assert_core(image: &Path, inode: &dyn Inode) -> Result<()> {
    let attr = inode.attr()?;
    let fields = "core.mode core.size core.nblocks core.uid core.gid";
    let commands = [format!("inode {}", attr.inode), format!("print {fields}")];
    let text = ask(image, &commands)?;
    let field = |name: &str| {
        let line = text.lines().find_map(|line| line.strip_prefix(name));
        line.map(|rest| rest.trim_start_matches(" = ").trim().to_owned())
            .with_context(|| format!("{name} in {text}"))
    };
    let block_sectors = u64::from(attr.io_block_bytes.min(4096) / 512);
    assert_eq!(field("core.mode")?, format!("0{:o}", attr.mode()));
    assert_eq!(field("core.size")?, attr.size_bytes.to_string());
    assert_eq!(field("core.uid")?, attr.uid.to_string());
    assert_eq!(field("core.gid")?, attr.gid.to_string());
    let blocks: u64 = field("core.nblocks")?.parse()?;
    assert!(
        attr.sectors <= blocks * block_sectors,
        "{} sectors",
        attr.sectors
    );
    assert_eq!(attr.sectors == 0, blocks == 0);
    Ok(())
}

/// Inode numbers that `xfs_db` lists in a directory, without `.` and `..`.
fn listed(image: &Path, directory: u64) -> Result<Vec<u64>> {
    let text = ask(image, &[format!("inode {directory}"), "ls".to_owned()])?;
    let mut numbers = Vec::new();
    for line in text.lines() {
        let mut words = line.split_whitespace();
        let (_, Some(number)) = (words.next(), words.next()) else {
            continue;
        };
        let is_dot = line.contains(" . ") || line.contains(" .. ");
        let named = line.contains("name-");
        if let (Ok(number), false, true) = (number.parse(), is_dot, named) {
            numbers.push(number);
        }
    }
    Ok(numbers)
}

#[test]
fn xfs_of_version_4_is_read_as_it_was_made() {
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
        examine(options).unwrap_or_else(|error| panic!("{options:?}: {error:#}"));
    }
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
