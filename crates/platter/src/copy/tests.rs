//! Copies of trees in memory.

use std::fs;
use std::os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt, symlink};

use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Context, CreateKind, Filesystem, Name, SetAttr};

use super::*;
use crate::Volume;
use crate::sample::{self, CorruptFs, Fault};

const ALL: CopyOptions = CopyOptions {
    recursive: true,
    preserve: Preserve::ALL,
    no_clobber: false,
};

const PLAIN: CopyOptions = CopyOptions {
    recursive: true,
    preserve: Preserve {
        mode: false,
        ownership: false,
        timestamps: false,
        links: false,
        xattrs: false,
    },
    no_clobber: false,
};

/// Copies `path` of `fs` to `name` in `dir`; returns the problems.
fn copy(
    fs: Arc<dyn Filesystem>,
    path: &str,
    dir: &Path,
    name: &str,
    options: CopyOptions,
) -> Result<Vec<String>> {
    let volume = Volume::new("memory", fs);
    let mut problems = Vec::new();
    let mut observer = |event: CopyEvent<'_>| {
        if let CopyEvent::Problem(problem) = event {
            problems.push(problem.to_string().replace(dir.to_str().unwrap(), "DIR"));
        }
    };
    let source = volume.open_no_follow(path)?;
    Copier::new(options).copy_into(&source, dir, OsStr::new(name), &mut observer)?;
    Ok(problems)
}

#[test]
fn everything_is_preserved_when_asked_for() {
    let fs = sample::rich_tree();
    let dir = tempfile::tempdir().unwrap();
    let problems = copy(fs.clone(), "/", dir.path(), "copy", ALL).unwrap();
    assert_eq!(problems, [""; 0]);
    sample::assert_same(&fs, &dir.path().join("copy"), true);
}

#[test]
fn without_preserving_new_files_are_the_callers() {
    let fs = sample::empty();
    let file = sample::regular(&fs, b"/file", b"x");
    let changes = SetAttr {
        permissions: Some(0o6777),
        ..SetAttr::default()
    };
    sample::set(&file, changes);
    let locked = sample::dir(&fs, b"/locked");
    sample::regular(&fs, b"/locked/inside", b"y");
    let permissions = Some(0o500);
    sample::set(
        &locked,
        SetAttr {
            permissions,
            ..SetAttr::default()
        },
    );
    let dir = tempfile::tempdir().unwrap();
    copy(fs, "/", dir.path(), "copy", PLAIN).unwrap();
    let mode = |name: &str| dir.path().join(name).metadata().unwrap().mode() & 0o7777;
    // The umask cleared some bits, and set-id bits are not the caller's to give.
    assert_eq!(mode("copy/file") & !0o777, 0);
    assert_eq!(mode("copy/locked"), 0o500 & mode("copy/locked"));
    assert_eq!(
        fs::read(dir.path().join("copy/locked/inside")).unwrap(),
        b"y"
    );
    fs::set_permissions(
        dir.path().join("copy/locked"),
        fs::Permissions::from_mode(0o700),
    )
    .unwrap();
}

#[test]
fn no_link_of_the_host_or_the_image_leads_out() {
    let fs = sample::empty();
    sample::dir(&fs, b"/a");
    sample::regular(&fs, b"/a/file", b"from the image");
    sample::dir(&fs, b"/b");
    sample::regular(&fs, b"/b/file", b"from the image");
    let dir = tempfile::tempdir().unwrap();
    let outside = dir.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("file"), "precious").unwrap();
    let copied = dir.path().join("copy");
    fs::create_dir_all(copied.join("b")).unwrap();
    symlink(&outside, copied.join("a")).unwrap();
    symlink(outside.join("file"), copied.join("b/file")).unwrap();
    let problems = copy(fs, "/", dir.path(), "copy", ALL).unwrap();
    assert_eq!(problems, ["DIR/copy/a: Not a directory (left out)"]);
    assert_eq!(fs::read(outside.join("file")).unwrap(), b"precious");
    let replaced = copied.join("b/file");
    assert!(replaced.symlink_metadata().unwrap().is_file());
    assert_eq!(fs::read(replaced).unwrap(), b"from the image");
}

#[test]
fn what_is_there_is_replaced_or_left_alone_as_asked() {
    let fs = sample::empty();
    sample::regular(&fs, b"/file", b"new");
    sample::dir(&fs, b"/dir");
    let dir = tempfile::tempdir().unwrap();
    fs::write(dir.path().join("file"), "old").unwrap();
    fs::hard_link(dir.path().join("file"), dir.path().join("other")).unwrap();
    let no_clobber = CopyOptions {
        no_clobber: true,
        ..PLAIN
    };
    copy(fs.clone(), "/file", dir.path(), "file", no_clobber).unwrap();
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"old");
    copy(fs.clone(), "/file", dir.path(), "file", PLAIN).unwrap();
    assert_eq!(fs::read(dir.path().join("file")).unwrap(), b"new");
    assert_eq!(fs::read(dir.path().join("other")).unwrap(), b"old");

    let error = copy(fs.clone(), "/dir", dir.path(), "file", PLAIN).unwrap_err();
    assert!(
        error.to_string().ends_with("/file: Not a directory"),
        "{error}"
    );
    fs::create_dir(dir.path().join("taken")).unwrap();
    let error = copy(fs, "/file", dir.path(), "taken", PLAIN).unwrap_err();
    assert!(
        error.to_string().ends_with("/taken: Is a directory"),
        "{error}"
    );
}

#[test]
fn a_target_named_by_the_caller_is_written_through() {
    let fs = sample::empty();
    sample::regular(&fs, b"/file", b"contents");
    let dir = tempfile::tempdir().unwrap();
    let (link, target) = (dir.path().join("link"), dir.path().join("target"));
    fs::write(&target, "something longer than the new contents").unwrap();
    symlink(&target, &link).unwrap();
    let volume = Volume::new("memory", fs as Arc<dyn Filesystem>);
    let source = volume.open("/file").unwrap();
    let mut copier = Copier::new(PLAIN);
    let observer: &mut CopyObserver<'_> = &mut |_| {};
    copier.copy_over(&source, &link, observer).unwrap();
    copier
        .copy_over(&source, Path::new("/dev/null"), observer)
        .unwrap();
    assert_eq!(fs::read(&target).unwrap(), b"contents");
    assert!(
        fs::metadata("/dev/null")
            .unwrap()
            .file_type()
            .is_char_device()
    );
    assert!(
        copier
            .copy_over(&volume.open("/").unwrap(), &link, observer)
            .is_err()
    );
}

#[test]
fn only_what_is_asked_for_recursively_is_copied_so() {
    let fs = sample::empty();
    sample::dir(&fs, b"/dir");
    fs.plant(b"/fifo", CreateKind::Fifo, 0o644).unwrap();
    let dir = tempfile::tempdir().unwrap();
    let flat = CopyOptions {
        recursive: false,
        ..PLAIN
    };
    let refused = |path: &str| copy(fs.clone(), path, dir.path(), "x", flat).unwrap_err();
    assert_eq!(refused("/dir").to_string(), "memory:/dir: is a directory");
    assert_eq!(
        refused("/fifo").to_string(),
        "memory:/fifo: operation not supported"
    );
}

#[test]
fn corrupt_map_of_a_giant_costs_what_follows_the_corruption() {
    let fs = sample::empty();
    sample::regular(&fs, b"/small", &[b'x'; 10_000]);
    let giant = sample::regular(&fs, b"/giant", &[b'x'; 10_000]);
    let size_bytes = Some(1 << 40);
    let changes = SetAttr {
        size_bytes,
        ..SetAttr::default()
    };
    giant.set_attr(&Context::root(), &changes).unwrap();
    let faults = [
        (&b"/small"[..], Fault::Extents),
        (b"/giant", Fault::Extents),
    ];
    let dir = tempfile::tempdir().unwrap();
    let problems = copy(CorruptFs::new(&fs, &faults), "/", dir.path(), "copy", ALL).unwrap();
    let lost = 1_u64 << 40;
    assert_eq!(
        problems,
        [format!(
            "memory:/giant: test at unknown location: broken on purpose ({lost} bytes filled with zeros)"
        )]
    );
    let path = dir.path().join("copy/giant");
    assert_eq!(std::fs::metadata(path).unwrap().len(), 1 << 40);
    let small = std::fs::read(dir.path().join("copy/small")).unwrap();
    assert!(small == [b'x'; 10_000]);
}

#[test]
fn corruption_costs_only_what_is_corrupt() {
    let fs = sample::empty();
    sample::dir(&fs, b"/dir");
    for path in [&b"/dir/a"[..], b"/dir/b", b"/dir/c"] {
        sample::regular(&fs, path, &[b'x'; 10_000]);
    }
    let dir_id = fs.root().unwrap().id();
    let faults = [
        (&b"/dir/a"[..], Fault::Inode),
        (b"/dir/b", Fault::Data(4096..4097)),
        (b"/dir/c", Fault::Xattrs),
        (b"/dir", Fault::Entry(dir_id)),
    ];
    let corrupt = CorruptFs::new(&fs, &faults);
    let dir = tempfile::tempdir().unwrap();
    let problems = copy(corrupt, "/", dir.path(), "copy", ALL).unwrap();
    assert_eq!(
        problems,
        [
            "memory:/dir/a: test at unknown location: broken on purpose (left out)",
            "memory:/dir/b: test at unknown location: broken on purpose (4096 bytes filled with zeros)",
            "memory:/dir/c: test at unknown location: broken on purpose (some attributes left out)",
            "memory:/dir/loop: directory at inode 1: more than one entry names it (left out)",
        ]
    );
    let read = |name: &str| fs::read(dir.path().join(name)).unwrap();
    let mut expected = vec![b'x'; 10_000];
    assert_eq!(read("copy/dir/c"), expected);
    expected[4096..8192].fill(0);
    assert_eq!(read("copy/dir/b"), expected);
}

#[test]
fn cancelled_copy_is_an_error_of_the_whole() {
    let volume = Volume::new("memory", sample::rich_tree());
    let dir = tempfile::tempdir().unwrap();
    let progress = crate::Progress::default();
    let mut copier = Copier::new(CopyOptions {
        recursive: true,
        ..CopyOptions::default()
    });
    copier = copier.progress(progress.clone());
    let mut cancel = |_: CopyEvent<'_>| progress.cancel();
    let source = volume.open("/").unwrap();
    let copied = copier.copy_into(&source, dir.path(), OsStr::new("all"), &mut cancel);
    assert_eq!(copied.unwrap_err().code(), "cancelled");
    // Threads may have made some more that were not reported any more.
    let summary = copier.summary();
    assert_eq!((summary.files, summary.problems), (1, 0));
    assert!(progress.files() >= 1);
}

#[test]
fn cancelled_copy_leaves_no_part_of_a_file() {
    let clock = Arc::new(platter_vfs::SystemClock::new());
    let memory = Arc::new(MemFs::new(clock, MemFsLimits::default()));
    let file = memory.root().unwrap();
    let name = Name::new(b"long").unwrap();
    let file = file
        .create(&Context::root(), name, CreateKind::Regular, 0o600)
        .unwrap();
    file.write_at(0, &vec![1; 8 << 20]).unwrap();
    let volume = Volume::new("memory", memory);
    let dir = tempfile::tempdir().unwrap();
    let progress = crate::Progress::default();
    let mut copier = Copier::new(CopyOptions::default()).progress(progress.clone());
    let mut cancel = |event: CopyEvent<'_>| {
        if matches!(event, CopyEvent::Progress(copied) if copied.bytes > 0) {
            progress.cancel();
        }
    };
    let source = volume.open("/long").unwrap();
    let copied = copier.copy_into(&source, dir.path(), OsStr::new("long"), &mut cancel);
    assert_eq!(copied.unwrap_err().code(), "cancelled");
    assert!(progress.bytes() > 0);
    assert!(!dir.path().join("long").exists());
}

/// A tree of directories with files of all lengths and with several names.
fn broad_tree() -> Arc<MemFs> {
    let fs = sample::empty();
    let byte = |number: u32| number.to_le_bytes()[0];
    for number in 0..30_u32 {
        let dir = format!("/d{number:02}");
        sample::dir(&fs, dir.as_bytes());
        for file in 0..20_u32 {
            let path = format!("{dir}/f{file:02}");
            let bytes = vec![byte(file); (number * file * 37) as usize];
            sample::regular(&fs, path.as_bytes(), &bytes);
        }
    }
    let long: Vec<u8> = (0..5_u32 << 20).map(|at| byte(at >> 12)).collect();
    for path in [&b"/d03/long"[..], b"/d17/long"] {
        sample::regular(&fs, path, &long);
    }
    let id_of = |path: &[&[u8]]| {
        let root = fs.root().unwrap();
        let step = |dir: Arc<dyn platter_vfs::Inode>, name: &&[u8]| {
            dir.lookup(Name::new(name).unwrap()).unwrap()
        };
        path.iter().fold(root, step)
    };
    for (path, other) in [
        ([&b"d03"[..], b"long"], &b"d29"[..]),
        ([b"d00", b"f01"], b"d01"),
    ] {
        let (file, dir) = (id_of(&path), id_of(&[other]));
        let name = Name::new(b"other").unwrap();
        dir.link(&Context::root(), name, file.id()).unwrap();
    }
    fs
}

#[test]
fn any_number_of_threads_makes_the_same() {
    let fs = broad_tree();
    let volume = Volume::new("memory", Arc::clone(&fs) as Arc<dyn Filesystem>);
    let mut reported = Vec::new();
    for threads in [1, 2, 7] {
        let dir = tempfile::tempdir().unwrap();
        let threads = NonZeroUsize::new(threads).unwrap();
        let mut copier = Copier::new(ALL).threads(threads);
        let mut names = Vec::new();
        let mut observer = |event: CopyEvent<'_>| match event {
            CopyEvent::Copying(_, path) => {
                names.push(path.strip_prefix(dir.path()).unwrap().to_owned());
            }
            CopyEvent::Problem(problem) => panic!("{problem}"),
            CopyEvent::Progress(_) => {}
        };
        let source = volume.open("/").unwrap();
        copier
            .copy_into(&source, dir.path(), OsStr::new("copy"), &mut observer)
            .unwrap();
        let copied = dir.path().join("copy");
        sample::assert_same(&fs, &copied, true);
        let inode = |path: &str| copied.join(path).metadata().unwrap().ino();
        assert_eq!(inode("d03/long"), inode("d29/other"));
        assert_eq!(inode("d00/f01"), inode("d01/other"));
        assert_eq!(copier.summary().files, 1 + 30 + 600 + 2 + 2);
        reported.push((names, copier.summary()));
    }
    assert!(reported[0].0.is_sorted(), "in the order of the walk");
    assert!(reported.iter().all(|report| *report == reported[0]));
}

#[test]
fn cancelled_copy_of_a_tree_leaves_whole_files() {
    let volume = Volume::new("memory", broad_tree() as Arc<dyn Filesystem>);
    for after in [1, 40, 66, 67, 68, 300] {
        let dir = tempfile::tempdir().unwrap();
        let progress = crate::Progress::default();
        let mut copier = Copier::new(ALL).progress(progress.clone());
        let mut events = 0;
        let mut cancel = |event: CopyEvent<'_>| {
            events += u32::from(matches!(event, CopyEvent::Copying(..)));
            if events >= after {
                progress.cancel();
            }
        };
        let source = volume.open("/").unwrap();
        let copied = copier.copy_into(&source, dir.path(), OsStr::new("copy"), &mut cancel);
        assert_eq!(copied.unwrap_err().code(), "cancelled");
        for number in 0..30_u32 {
            let dir = dir.path().join(format!("copy/d{number:02}"));
            let Ok(entries) = fs::read_dir(dir) else {
                continue;
            };
            for entry in entries {
                let name = entry.as_ref().unwrap().file_name().into_string().unwrap();
                let expected = match (&name[..1], &name[1..]) {
                    ("f", file) => u64::from(number) * file.parse::<u64>().unwrap() * 37,
                    ("o", _) if number == 1 => 0,
                    _ => 5 << 20,
                };
                assert_eq!(entry.unwrap().metadata().unwrap().len(), expected, "{name}");
            }
        }
    }
}

#[test]
fn files_of_other_owners_get_them() {
    let fs = sample::empty();
    let dir = sample::dir(&fs, b"/dir");
    let other = sample::regular(&fs, b"/dir/other", b"x");
    sample::regular(&fs, b"/dir/own", b"y");
    for (inode, uid, gid) in [(&dir, 12, 34), (&other, 34, 12)] {
        let changes = SetAttr {
            uid: Some(uid),
            gid: Some(gid),
            ..SetAttr::default()
        };
        sample::set(inode, changes);
    }
    let target = tempfile::tempdir().unwrap();
    let problems = copy(fs.clone(), "/", target.path(), "copy", ALL).unwrap();
    assert_eq!(problems, [""; 0]);
    sample::assert_same(&fs, &target.path().join("copy"), true);
    let owner = |path: &str| {
        let found = target.path().join(path).metadata().unwrap();
        (found.uid(), found.gid())
    };
    // Only the superuser changes the owner of files.
    if rustix::process::geteuid().is_root() {
        assert_eq!(owner("copy/dir"), (12, 34));
        assert_eq!(owner("copy/dir/other"), (34, 12));
        assert_eq!(owner("copy/dir/own"), (0, 0));
    }
}

#[test]
fn permissions_are_those_of_the_source_whatever_files_inherit() {
    let fs = sample::empty();
    let (uid, gid) = (rustix::process::getuid(), rustix::process::getgid());
    let owned = SetAttr {
        uid: Some(uid.as_raw()),
        gid: Some(gid.as_raw()),
        ..SetAttr::default()
    };
    let modes = [
        0, 0o400, 0o600, 0o644, 0o666, 0o755, 0o777, 0o4755, 0o2711, 0o1777,
    ];
    for dir in ["/dir", "/dir/below"] {
        sample::set(&sample::dir(&fs, dir.as_bytes()), owned);
        for mode in modes {
            let path = format!("{dir}/{mode:o}");
            let file = sample::regular(&fs, path.as_bytes(), b"x");
            let permissions = Some(mode);
            sample::set(
                &file,
                SetAttr {
                    permissions,
                    ..owned
                },
            );
        }
    }
    let dir = tempfile::tempdir().unwrap();
    // Entries for the owner, the user 1000, the group, the mask and others.
    let mut acl = vec![2, 0, 0, 0];
    for (tag, rights, id) in [
        (1, 7, None),
        (2, 7, Some(1000)),
        (4, 5, None),
        (16, 7, None),
        (32, 5, None),
    ] {
        let id: u32 = id.unwrap_or(u32::MAX);
        acl.extend([tag, 0, rights, 0]);
        acl.extend(id.to_le_bytes());
    }
    for inherits in [false, true] {
        let to = dir.path().join(inherits.to_string());
        fs::create_dir(&to).unwrap();
        if inherits {
            let flags = rustix::fs::XattrFlags::empty();
            rustix::fs::setxattr(&to, "system.posix_acl_default", &acl, flags).unwrap();
        }
        copy(fs.clone(), "/dir", &to, "copy", ALL).unwrap();
        for below in ["copy", "copy/below"] {
            for mode in modes {
                let path = to.join(below).join(format!("{mode:o}"));
                let found = path.metadata().unwrap().mode() & 0o7777;
                assert_eq!(found, mode, "{}", path.display());
            }
        }
    }
}
