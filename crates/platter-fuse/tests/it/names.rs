//! Names and what they name: made, linked, renamed and removed through the kernel.

use std::ffi::OsStr;
use std::fs::{self, File, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink};
use std::path::Path;

use platter_vfs::{CreateKind, Filesystem};
use rustix::fs::{
    AtFlags, CWD, FileType, Mode, OFlags, RenameFlags, XattrFlags, linkat, mknodat, openat,
    removexattr, renameat_with, setxattr,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, plant, refused, run, soon};

#[test]
fn files_and_directories_come_and_go() {
    let mounted = Mounted::new();
    let (dir, file) = (mounted.path("d"), mounted.path("d/f"));
    fs::create_dir(&dir).unwrap();
    fs::write(&file, b"contents").unwrap();
    refused(fs::create_dir(&dir), Errno::EXIST);
    refused(fs::remove_dir(&dir), Errno::NOTEMPTY);
    refused(fs::remove_file(&dir), Errno::ISDIR);
    refused(fs::remove_dir(&file), Errno::NOTDIR);
    refused(fs::read(file.join("below")), Errno::NOTDIR);
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2);
    assert_eq!(fs::read(&file).unwrap(), b"contents");
    fs::remove_file(&file).unwrap();
    fs::remove_dir(&dir).unwrap();
    refused(fs::metadata(&dir), Errno::NOENT);
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
    mounted.unmount();
}

#[test]
fn names_are_bytes_and_have_a_longest() {
    let mounted = Mounted::new();
    let name = OsStr::from_bytes(b"not \xff UTF-8\n");
    fs::write(mounted.root().join(name), b"x").unwrap();
    let listed = fs::read_dir(mounted.root())
        .unwrap()
        .next()
        .unwrap()
        .unwrap();
    assert_eq!(listed.file_name(), name);
    drop(listed);
    fs::write(mounted.path(&"n".repeat(255)), b"x").unwrap();
    refused(
        fs::write(mounted.path(&"n".repeat(256)), b"x"),
        Errno::NAMETOOLONG,
    );
    mounted.unmount();
}

#[test]
fn an_open_file_outlives_its_name() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let options = OpenOptions::new()
        .read(true)
        .write(true)
        .create(true)
        .clone();
    let mut file = options.open(&path).unwrap();
    file.write_all(b"written before").unwrap();
    fs::remove_file(&path).unwrap();
    refused(fs::metadata(&path), Errno::NOENT);
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    file.write_all(b" and after").unwrap();
    file.sync_all().unwrap();
    fs::write(&path, b"another file of that name").unwrap();
    let mut contents = String::new();
    file.seek(SeekFrom::Start(0)).unwrap();
    file.read_to_string(&mut contents).unwrap();
    assert_eq!(contents, "written before and after");
    let free = mounted.fs.stat_fs().unwrap().inodes_free;
    drop(file);
    // The kernel sends FORGET without waiting for it.
    assert_eq!(fs::read(&path).unwrap(), b"another file of that name");
    let freed = || mounted.fs.stat_fs().unwrap().inodes_free == free + 1;
    assert!(
        crate::mounted::soon(freed),
        "the inode is freed with its last user"
    );
    mounted.unmount();
}

#[test]
fn links_hard_and_symbolic() {
    let mounted = Mounted::new();
    let (file, hard, soft) = (
        mounted.path("f"),
        mounted.path("hard"),
        mounted.path("soft"),
    );
    fs::write(&file, b"x").unwrap();
    fs::hard_link(&file, &hard).unwrap();
    let (first, second) = (fs::metadata(&file).unwrap(), fs::metadata(&hard).unwrap());
    assert_eq!((first.ino(), first.nlink()), (second.ino(), 2));
    refused(fs::hard_link(&file, &hard), Errno::EXIST);
    symlink("f", &soft).unwrap();
    assert_eq!(fs::read_link(&soft).unwrap(), Path::new("f"));
    assert_eq!(fs::read(&soft).unwrap(), b"x");
    assert!(
        fs::symlink_metadata(&soft)
            .unwrap()
            .file_type()
            .is_symlink()
    );
    fs::remove_file(&file).unwrap();
    assert_eq!(fs::metadata(&hard).unwrap().nlink(), 1);
    refused(fs::read(&soft), Errno::NOENT);
    mounted.unmount();
}

#[test]
fn a_file_without_a_name_can_get_one() {
    let mounted = Mounted::new();
    let unnamed = |mode| {
        let flags = OFlags::TMPFILE | OFlags::RDWR;
        File::from(openat(CWD, mounted.root(), flags, Mode::from_raw_mode(mode)).unwrap())
    };
    let before = mounted.fs.stat_fs().unwrap().inodes_free;
    let mut file = unnamed(0o640);
    file.write_all(b"contents").unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 0);
    assert_eq!(fs::read_dir(mounted.root()).unwrap().count(), 0);
    let by_descriptor = format!("/proc/self/fd/{}", file.as_raw_fd());
    let named = mounted.path("named");
    linkat(CWD, by_descriptor, CWD, &named, AtFlags::SYMLINK_FOLLOW).unwrap();
    assert_eq!(file.metadata().unwrap().nlink(), 1);
    drop(file);
    assert_eq!(fs::read(&named).unwrap(), b"contents");
    drop(unnamed(0o600));
    let is_gone = || mounted.fs.stat_fs().unwrap().inodes_free == before - 1;
    assert!(soon(is_gone), "the one without a name is freed");
    mounted.unmount();
}

#[test]
fn special_files_keep_their_kind_and_number() {
    let mounted = Mounted::new();
    let mode = Mode::from_raw_mode(0o600);
    let device = rustix::fs::makedev(259, 70_000);
    for (name, kind, number) in [
        ("fifo", FileType::Fifo, 0),
        ("socket", FileType::Socket, 0),
        ("char", FileType::CharacterDevice, device),
        ("block", FileType::BlockDevice, device),
    ] {
        mknodat(CWD, mounted.path(name), kind, mode, number).unwrap();
        let metadata = fs::metadata(mounted.path(name)).unwrap();
        assert_eq!(FileType::from_raw_mode(metadata.mode()), kind);
        assert_eq!(metadata.rdev(), number, "{name}");
    }
    assert!(
        fs::metadata(mounted.path("fifo"))
            .unwrap()
            .file_type()
            .is_fifo()
    );
    refused(File::open(mounted.path("char")), Errno::ACCESS);
    mounted.unmount();
}

#[test]
fn rename_with_every_flag() {
    let mounted = Mounted::new();
    let (a, b) = (mounted.path("a"), mounted.path("b"));
    let rename = |from: &Path, to: &Path, flags| renameat_with(CWD, from, CWD, to, flags);
    fs::write(&a, b"a").unwrap();
    fs::write(&b, b"b").unwrap();
    assert_eq!(rename(&a, &b, RenameFlags::NOREPLACE), Err(Errno::EXIST));
    rename(&a, &b, RenameFlags::EXCHANGE).unwrap();
    assert_eq!(
        (fs::read(&a).unwrap(), fs::read(&b).unwrap()),
        (b"b".to_vec(), b"a".to_vec())
    );
    rename(&a, &b, RenameFlags::empty()).unwrap();
    assert_eq!(fs::read(&b).unwrap(), b"b");
    refused(fs::metadata(&a), Errno::NOENT);
    rename(&b, &a, RenameFlags::WHITEOUT).unwrap();
    assert!(fs::metadata(&b).unwrap().file_type().is_char_device());
    let both = RenameFlags::WHITEOUT | RenameFlags::NOREPLACE;
    assert_eq!(rename(&a, &b, both), Err(Errno::EXIST));
    rename(&a, &mounted.path("new"), both).unwrap();
    assert!(fs::metadata(&a).unwrap().file_type().is_char_device());
    rename(&mounted.path("new"), &a, RenameFlags::empty()).unwrap();
    let (dir, below) = (mounted.path("d"), mounted.path("d/below"));
    fs::create_dir_all(&below).unwrap();
    refused(fs::rename(&dir, below.join("x")), Errno::INVAL);
    fs::rename(&a, below.join("moved")).unwrap();
    assert_eq!(fs::read(below.join("moved")).unwrap(), b"b");
    fs::rename(&below, mounted.path("up")).unwrap();
    assert_eq!(fs::metadata(&dir).unwrap().nlink(), 2);
    assert!(mounted.path("up/moved").exists());
    mounted.unmount();
}

#[test]
fn the_umask_is_applied_once() {
    let mounted = Mounted::new();
    let file = mounted.path("f");
    OpenOptions::new()
        .write(true)
        .create_new(true)
        .mode(0o666)
        .open(&file)
        .unwrap();
    run(
        "sh",
        &[
            "-c",
            &format!("umask 027; mkdir {}", mounted.path("d").display()),
        ],
    );
    assert_eq!(
        fs::metadata(mounted.path("d")).unwrap().mode() & 0o777,
        0o750
    );
    let umask = rustix::process::umask(Mode::from_raw_mode(0o022));
    rustix::process::umask(umask);
    let expected = 0o666 & !umask.as_raw_mode();
    assert_eq!(fs::metadata(&file).unwrap().mode() & 0o777, expected);
    mounted.unmount();
}

#[test]
fn a_read_only_mount_refuses_every_change() {
    let mounted = Mounted::with("ro", |fs| {
        plant(fs, "f", b"x");
        fs.plant(b"d", CreateKind::Directory, 0o755).unwrap();
    });
    let (file, dir, new) = (mounted.path("f"), mounted.path("d"), mounted.path("new"));
    refused(fs::write(&new, b"x"), Errno::ROFS);
    refused(fs::write(&file, b"x"), Errno::ROFS);
    refused(fs::create_dir(&new), Errno::ROFS);
    refused(symlink("x", &new), Errno::ROFS);
    refused(fs::hard_link(&file, &new), Errno::ROFS);
    refused(fs::remove_file(&file), Errno::ROFS);
    refused(fs::remove_dir(&dir), Errno::ROFS);
    refused(fs::rename(&file, &new), Errno::ROFS);
    refused(
        fs::set_permissions(&file, PermissionsExt::from_mode(0o600)),
        Errno::ROFS,
    );
    assert_eq!(
        setxattr(&file, "user.a", b"", XattrFlags::empty()),
        Err(Errno::ROFS)
    );
    assert_eq!(removexattr(&file, "user.a"), Err(Errno::ROFS));
    let fifo = mknodat(CWD, &new, FileType::Fifo, Mode::from_raw_mode(0o600), 0);
    assert_eq!(fifo, Err(Errno::ROFS));
    assert_eq!(fs::read(&file).unwrap(), b"x");
    mounted.unmount();
}
