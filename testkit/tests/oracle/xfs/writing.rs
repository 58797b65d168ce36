//! XFS as platter writes it, alternating with `xfs_repair` and kernel mounts: each goes on where the other stopped.

use std::fs;
use std::path::Path;

use platter::{ImageSpec, MountOptions, OpenOptions, Volume, WriteOptions};
use platter_ondisk::Locus;
use platter_vfs::{
    Condition, Context, CreateKind, DirCursor, Error, FallocateMode, Inode, Name, RenameMode,
    SetAttr, XattrMode, inode::read_dir_all,
};
use platter_xfs::ondisk::{DiskSuperblock, Geometry, Superblock};
use platter_xfs::txn::{LogDevice, LogState, find_position};
use testkit::compare::{Rules, compare};
use testkit::fs_type::FsType;
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{Verdict, xfs};
use testkit::subject::devices_of_files;
use zerocopy::FromBytes;

/// Options of `mkfs.xfs`, and how many names its directory gets.
pub(super) const SHAPES: &[(&str, &[&str], usize)] = &[
    ("default", &[], 700),
    ("rmapbt", &["-m", "rmapbt=1"], 400),
    (
        "no finobt",
        &["-m", "finobt=0,reflink=0", "-i", "sparse=0"],
        200,
    ),
    (
        "blocks of 1 KiB",
        &["-b", "size=1024", "-m", "rmapbt=1"],
        400,
    ),
    ("directory blocks of 64 KiB", &["-n", "size=65536"], 3000),
    ("wide counters", &["-i", "nrext64=1"], 200),
];

pub(super) fn name(text: &str) -> Name<'_> {
    Name::new(text.as_bytes()).unwrap()
}

pub(super) fn open(image: &Path) -> Volume {
    let spec = ImageSpec::parse(image).unwrap();
    let options = MountOptions::new().writing(WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    });
    options.open(&spec).unwrap()
}

pub(super) fn assert_clean(image: &Path, context: (&str, &str)) {
    let verdict = xfs::check(&[image]).unwrap();
    assert_eq!(verdict, Verdict::Clean, "{context:?}");
}

fn names_in(volume: &Volume, directory: &str) -> usize {
    let root = volume.filesystem().root().unwrap();
    let directory = root.lookup(name(directory)).unwrap();
    read_dir_all(&*directory).unwrap().len()
}

/// The kernel finds what platter finds.
pub(super) fn assert_equal(image: &Path, context: (&str, &str)) {
    let mount = Mount::images(FsType::Xfs, &[image], "", Access::ReadOnly).unwrap();
    let spec = ImageSpec::parse(image).unwrap();
    let volume = MountOptions::new().open(&spec).unwrap();
    let rules = Rules {
        statfs: false,
        ..Rules::KERNEL_MOUNT
    };
    let outcome = compare(&**volume.filesystem(), mount.root(), rules).unwrap();
    assert_eq!(outcome.differences, 0, "{context:?}: {outcome}");
    drop(volume);
    mount.unmount_all(&[image]).unwrap();
}

/// Files of all kinds, attributes in all forms, contents in holes and after them, and a directory that grows
/// through all its forms.
fn fill(volume: &Volume, names: usize) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let create =
        |dir: &dyn Inode, text: &str, kind| dir.create(&context, name(text), kind, 0o644).unwrap();
    let attributes = create(&*root, "attributes", CreateKind::Regular);
    for (text, len) in [
        ("user.short", 3),
        ("user.long", 700),
        ("user.remote", 20_000),
    ] {
        let value = vec![b'v'; len];
        let set = attributes.set_xattr(&context, text.as_bytes(), &value, XattrMode::Create);
        set.unwrap();
    }
    for len in [10, 336, 337, 900, 1023] {
        let target = vec![b't'; len];
        create(&*root, &format!("link{len}"), CreateKind::Symlink(target));
    }
    create(&*root, "fifo", CreateKind::Fifo);
    let device = platter_vfs::attr::DeviceNumber {
        major: 200,
        minor: 90_000,
    };
    create(&*root, "device", CreateKind::CharDevice(device));
    let sparse = create(&*root, "sparse", CreateKind::Regular);
    for at in (0..60_u64).rev() {
        sparse.write_at(at * 3 * 65536, &[7; 5000]).unwrap();
    }
    sparse.sync(false).unwrap();
    sparse
        .fallocate(65536..300_000, FallocateMode::PunchHole)
        .unwrap();
    let space = FallocateMode::Allocate { keep_size: true };
    sparse
        .fallocate(1 << 24..(1 << 24) + 100_000, space)
        .unwrap();
    sparse.write_at((1 << 24) + 5000, &vec![8; 20_000]).unwrap();
    let directory = root.create(&context, name("names"), CreateKind::Directory, 0o755);
    let directory = directory.unwrap();
    for index in 0..names {
        let file = create(
            &*directory,
            &format!("name-{index:06}"),
            CreateKind::Regular,
        );
        if index % 7 == 0 {
            file.write_at(0, &vec![1; index]).unwrap();
        }
    }
    root.link(&context, name("linked"), attributes.id())
        .unwrap();
    let times = SetAttr {
        permissions: Some(0o4711),
        uid: Some(1000),
        ..SetAttr::default()
    };
    attributes.set_attr(&context, &times).unwrap();
}

/// Takes back much of what [`fill`] made: its directory shrinks through all its forms.
fn thin_out(volume: &Volume, names: usize) {
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let directory = root.lookup(name("names")).unwrap();
    for index in (0..names).filter(|index| index % 100 != 0) {
        let text = format!("name-{index:06}");
        directory.unlink(&context, name(&text)).unwrap();
    }
    let moved = directory.rename(
        &context,
        name("name-000000"),
        root.id(),
        name("fifo"),
        RenameMode::Replace,
    );
    moved.unwrap();
    root.lookup(name("sparse"))
        .unwrap()
        .set_attr(
            &context,
            &SetAttr {
                size_bytes: Some(1000),
                ..SetAttr::default()
            },
        )
        .unwrap();
    let attributes = root.lookup(name("attributes")).unwrap();
    attributes.remove_xattr(&context, b"user.remote").unwrap();
    root.unlink(&context, name("link900")).unwrap();
}

#[test]
fn each_goes_on_where_the_other_unmounted() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    for &(shape, options, names) in SHAPES {
        xfs::make(&image, 96 << 10, options).unwrap();
        let volume = open(&image);
        fill(&volume, names);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (shape, "filled"));
        assert_equal(&image, (shape, "filled"));
        let mount = Mount::images(FsType::Xfs, &[&image], "", Access::ReadWrite).unwrap();
        fs::write(mount.root().join("theirs"), vec![3; 100_000]).unwrap();
        for index in (0..names).step_by(5).filter(|index| index % 100 != 0) {
            fs::remove_file(mount.root().join(format!("names/name-{index:06}"))).unwrap();
            fs::write(mount.root().join(format!("names/name-{index:06}")), b"").unwrap();
        }
        mount.unmount_all(&[&image]).unwrap();
        let volume = open(&image);
        thin_out(&volume, names);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (shape, "thinned out"));
        assert_equal(&image, (shape, "thinned out"));
    }
}

#[test]
fn what_was_synced_before_a_power_cut_is_there_for_all() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    for &(shape, options, names) in SHAPES {
        xfs::make(&image, 96 << 10, options).unwrap();
        let volume = open(&image);
        fill(&volume, names / 2);
        let root = volume.filesystem().root().unwrap();
        let unnamed = root.create_unnamed(&Context::root(), 0o600).unwrap();
        unnamed.write_at(0, &vec![1; 30_000]).unwrap();
        unnamed.sync(false).unwrap();
        volume.filesystem().sync().unwrap();
        let copy = host_dir.path().join("copy");
        fs::copy(&image, &copy).unwrap();
        drop((unnamed, root));
        drop(volume);
        let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
        let found = fs::read_dir(mount.root().join("names")).unwrap().count();
        assert_eq!(found, names / 2, "{shape}");
        mount.unmount_all(&[&copy]).unwrap();
        assert_clean(&copy, (shape, "recovered by the kernel"));
        let volume = open(&image);
        assert_eq!(names_in(&volume, "names"), names / 2, "{shape}");
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (shape, "recovered here"));
        assert_equal(&image, (shape, "recovered here"));
    }
}

/// Leaves the first sector of a record after the end of a log, and another sector of such a record.
fn tear(image: &Path) {
    let mut bytes = fs::read(image).unwrap();
    let superblock = Superblock::decode(&bytes[..512], Locus::UNKNOWN).unwrap();
    let devices = devices_of_files(&[image], 512).unwrap();
    let log = LogDevice::open(&superblock, &devices[0], None).unwrap();
    let position = find_position(&log, true).unwrap();
    assert_eq!((position.state, position.torn), (LogState::Clean, false));
    let start = Geometry::new(&superblock).byte_offset(superblock.log_start.unwrap());
    let sector = |at: u32| usize::try_from(start).unwrap() + at as usize * 512;
    let mut header = bytes[sector(position.last)..][..512].to_vec();
    header[16..24].copy_from_slice(&position.head_lsn().0.to_be_bytes());
    bytes[sector(position.head)..][..512].copy_from_slice(&header);
    bytes[sector(position.head + 100)..][..4].copy_from_slice(&position.cycle.to_be_bytes());
    fs::write(image, bytes).unwrap();
    let devices = devices_of_files(&[image], 512).unwrap();
    let log = LogDevice::open(&superblock, &devices[0], None).unwrap();
    let position = find_position(&log, true).unwrap();
    assert_eq!((position.state, position.torn), (LogState::Clean, true));
}

#[test]
fn clean_log_with_a_torn_record_is_written() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 96 << 10, &[]).unwrap();
    tear(&image);
    let volume = open(&image);
    fill(&volume, 100);
    volume.filesystem().sync().unwrap();
    let copy = host_dir.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(&image, ("torn", "unmounted"));
    assert_equal(&image, ("torn", "unmounted"));
    let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
    let found = fs::read_dir(mount.root().join("names")).unwrap().count();
    assert_eq!(found, 100);
    mount.unmount_all(&[&copy]).unwrap();
    assert_clean(&copy, ("torn", "recovered by the kernel"));
}

#[test]
fn names_are_listed_once_while_others_are_removed() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 96 << 10, &[]).unwrap();
    let volume = open(&image);
    let (context, count) = (Context::root(), 600);
    let root = volume.filesystem().root().unwrap();
    for index in 0..count {
        let text = format!("name-{index:06}");
        root.create(&context, name(&text), CreateKind::Regular, 0o600)
            .unwrap();
    }
    let mut seen = std::collections::BTreeSet::new();
    let mut from = DirCursor::START;
    loop {
        let mut batch = Vec::new();
        root.read_dir(from, &mut |entry| {
            from = entry.next;
            batch.push(entry.name.to_owned());
            if batch.len() == 20 {
                std::ops::ControlFlow::Break(())
            } else {
                std::ops::ControlFlow::Continue(())
            }
        })
        .unwrap();
        if batch.is_empty() {
            break;
        }
        for text in batch {
            assert!(seen.insert(text.to_vec()), "{text:?} twice");
            if !text.as_name().is_dot_or_dotdot() {
                root.unlink(&context, text.as_name()).unwrap();
            }
        }
    }
    assert_eq!(seen.len(), count + 2);
    drop(root);
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(&image, ("default", "emptied"));
}

#[test]
fn appends_of_several_threads_do_not_overlap() {
    const LINES: usize = 4000;
    const LINE_BYTES: usize = 100;
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = open(&image);
    let options = OpenOptions::new().append(true).create(true);
    std::thread::scope(|scope| {
        for letter in b'a'..b'e' {
            let file = volume.open_with("log", options).unwrap();
            scope.spawn(move || {
                for _ in 0..LINES {
                    file.append(&[letter; LINE_BYTES]).unwrap();
                }
            });
        }
    });
    let bytes = volume.read("log").unwrap();
    assert_eq!(bytes.len(), 4 * LINES * LINE_BYTES);
    let mut lines = bytes.chunks(LINE_BYTES);
    assert!(lines.all(|line| line.iter().all(|byte| *byte == line[0])));
    volume.close().unwrap();
    assert_clean(&image, ("default", "appended"));
}

#[test]
fn full_filesystem_refuses_and_goes_on() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    for &(shape, options, _) in SHAPES {
        xfs::make(&image, 64 << 10, options).unwrap();
        let volume = open(&image);
        let context = Context::root();
        let root = volume.filesystem().root().unwrap();
        let mut index = 0;
        let refused = loop {
            let text = format!("file-{index:06}");
            let made = root.create(&context, name(&text), CreateKind::Regular, 0o600);
            let written = made.and_then(|file| {
                file.write_at(0, &vec![5; 300_000])?;
                file.sync(true)
            });
            if let Err(error) = written {
                break error;
            }
            index += 1;
        };
        let is_full = matches!(refused, Error::Condition(Condition::NoSpace));
        assert!(is_full && index > 20, "{shape}: {refused:?} after {index}");
        for index in (0..index).step_by(2) {
            let text = format!("file-{index:06}");
            root.unlink(&context, name(&text)).unwrap();
        }
        let again = root.create(&context, name("again"), CreateKind::Regular, 0o600);
        again.unwrap().write_at(0, &vec![6; 300_000]).unwrap();
        drop(root);
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (shape, "filled up"));
        assert_equal(&image, (shape, "filled up"));
    }
}

#[test]
fn file_in_use_without_a_name_is_left_to_recovery() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 64 << 10, &[]).unwrap();
    let volume = open(&image);
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let file = root.create(&context, name("file"), CreateKind::Regular, 0o600);
    let file = file.unwrap();
    file.write_at(0, &vec![5; 300_000]).unwrap();
    file.sync(false).unwrap();
    root.unlink(&context, name("file")).unwrap();
    volume.filesystem().unmount().unwrap();
    drop((file, root, volume));
    let copy = host_dir.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    let mount = Mount::images(FsType::Xfs, &[&copy], "", Access::ReadWrite).unwrap();
    mount.unmount_all(&[&copy]).unwrap();
    assert_clean(&copy, ("in use", "recovered by the kernel"));
    let volume = open(&image);
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(&image, ("in use", "recovered here"));
    assert_equal(&image, ("in use", "recovered here"));
}

#[test]
fn accepted_writes_have_space_when_they_are_written_back() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    let cases = SHAPES.iter().flat_map(|shape| [(shape, 1), (shape, 3)]);
    for (&(shape, options, _), stride) in cases {
        xfs::make(&image, 64 << 10, options).unwrap();
        let volume = open(&image);
        let context = Context::root();
        let root = volume.filesystem().root().unwrap();
        let file = root.create(&context, name("file"), CreateKind::Regular, 0o600);
        let file = file.unwrap();
        let mut index = 0;
        for len in [1 << 20, 65536, 4096] {
            // Each write is accepted without blocks; what comes last is one block after the other.
            loop {
                match file.write_at(index * stride * 65536, &vec![5; len]) {
                    Ok(()) => index += (len as u64).div_ceil(65536),
                    Err(Error::Condition(Condition::NoSpace)) => break,
                    Err(error) => panic!("{shape} {stride}: {error}"),
                }
            }
        }
        file.sync(false)
            .unwrap_or_else(|error| panic!("{shape} {stride}: {error}"));
        drop((file, root));
        volume.filesystem().unmount().unwrap();
        drop(volume);
        assert_clean(&image, (shape, "filled by delayed allocation"));
    }
}

#[test]
fn what_is_not_written_is_refused_by_name() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    let refused: &[(&[&str], &str)] = &[
        (&["-m", "crc=0"], "version 4"),
        (&["-n", "version=ci"], "ascii-ci"),
    ];
    for (options, feature) in refused {
        xfs::make(&image, 64 << 10, options).unwrap();
        let before = fs::read(&image).unwrap();
        let spec = ImageSpec::parse(&image).unwrap();
        let options = MountOptions::new().writing(WriteOptions::default());
        let error = options.open(&spec).unwrap_err().to_string();
        assert!(error.contains(feature), "{error}");
        assert!(fs::read(&image).unwrap() == before, "{feature}");
    }
}

/// The quota flags of the primary superblock, which are set first, with the feature, if some are given.
fn quota_flags(image: &Path, set: Option<u16>) -> u16 {
    const QUOTA: u16 = 0x40;
    let mut bytes = fs::read(image).unwrap();
    let (disk, _) = DiskSuperblock::mut_from_prefix(&mut bytes[..512]).unwrap();
    let found = disk.quota_flags.get();
    if let Some(flags) = set {
        let version = disk.version.get();
        disk.version.set(if flags == 0 {
            version & !QUOTA
        } else {
            version | QUOTA
        });
        disk.quota_flags.set(flags);
        DiskSuperblock::seal(&mut bytes[..512]);
        fs::write(image, bytes).unwrap();
    }
    found
}

#[test]
fn quotas_count_anew_after_a_mount_for_writing() {
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 64 << 10, &[]).unwrap();
    // Of users: counted, enforced, and counted for all files.
    quota_flags(&image, Some(0x7));
    assert_eq!(quota_flags(&image, None), 0x7);
    let volume = open(&image);
    fill(&volume, 50);
    volume.filesystem().sync().unwrap();
    let copy = host_dir.path().join("copy");
    fs::copy(&image, &copy).unwrap();
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_eq!(quota_flags(&image, Some(0)), 0);
    assert_clean(&image, ("quota", "unmounted"));
    assert_equal(&image, ("quota", "unmounted"));
    // The flags are cleared in the log, before what is not counted.
    let volume = open(&copy);
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_eq!(quota_flags(&copy, None), 0);
}

/// Names move between directories of different groups, so that changes meet that have one group and want another.
#[test]
fn threads_that_change_several_groups_do_not_deadlock() {
    const FILES: usize = 150;
    let host_dir = tempfile::tempdir().unwrap();
    let image = host_dir.path().join("image");
    xfs::make(&image, 96 << 10, &["-d", "agcount=4", "-m", "rmapbt=1"]).unwrap();
    let volume = open(&image);
    let context = Context::root();
    let root = volume.filesystem().root().unwrap();
    let make = |text: String| root.create(&context, name(&text), CreateKind::Directory, 0o755);
    let directories: Vec<_> = (0..4).map(|at| make(format!("dir{at}")).unwrap()).collect();
    std::thread::scope(|scope| {
        for thread in 0..4 {
            let (directories, context) = (&directories, &context);
            scope.spawn(move || {
                for index in 0..FILES {
                    let (source, target) = (
                        &directories[thread],
                        &directories[(thread + 1 + index % 3) % 4],
                    );
                    let text = format!("file-{thread}-{index}");
                    let file = source.create(context, name(&text), CreateKind::Regular, 0o600);
                    let file = file.unwrap();
                    file.write_at(0, &vec![b'a'; 30_000]).unwrap();
                    if index % 2 == 0 {
                        file.sync(false).unwrap();
                    }
                    drop(file);
                    let mode = RenameMode::NoReplace;
                    source
                        .rename(context, name(&text), target.id(), name(&text), mode)
                        .unwrap();
                    if index % 3 > 0 {
                        target.unlink(context, name(&text)).unwrap();
                    }
                }
            });
        }
    });
    let left: usize = directories
        .iter()
        .map(|dir| read_dir_all(&**dir).unwrap().len())
        .sum();
    assert_eq!(left, 4 * FILES / 3);
    drop((directories, root));
    volume.filesystem().unmount().unwrap();
    drop(volume);
    assert_clean(&image, ("four groups", "four threads"));
    assert_equal(&image, ("four groups", "four threads"));
}
