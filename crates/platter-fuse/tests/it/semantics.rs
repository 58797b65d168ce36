//! Every operation, made through the kernel and seen to have happened.

use std::ffi::OsStr;
use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{
    FileExt, FileTypeExt, MetadataExt, OpenOptionsExt, PermissionsExt, symlink,
};
use std::path::Path;
use std::sync::Arc;
use std::thread;
use std::time::SystemTime;

use platter_fuse::MountOptions;
use platter_vfs::memory::{MemFs, MemFsLimits};
use platter_vfs::{CreateKind, Description, Filesystem, Inode, InodeId, StatFs, SystemClock};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, RenameFlags, Timespec,
    Timestamps, Uid, XattrFlags, chownat, fallocate, getxattr, getxattr_query, ioctl_getflags,
    ioctl_setflags, linkat, listxattr, listxattr_query, lremovexattr, mknodat, openat, removexattr,
    renameat_with, setxattr, statvfs, utimensat,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, plant, run, soon};

fn errno(error: &std::io::Error) -> Errno {
    Errno::from_io_error(error).unwrap_or_else(|| panic!("{error} has no errno"))
}

#[track_caller]
fn refused<T: std::fmt::Debug>(result: std::io::Result<T>, expected: Errno) {
    assert_eq!(errno(&result.unwrap_err()), expected);
}

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
    // Forgetting is told without waiting for it.
    assert_eq!(fs::read(&path).unwrap(), b"another file of that name");
    let freed = || mounted.fs.stat_fs().unwrap().inodes_free == free + 1;
    assert!(
        crate::mounted::soon(freed),
        "the inode is freed with its last user"
    );
    mounted.unmount();
}

#[test]
fn writes_land_where_they_should() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let file = File::create(&path).unwrap();
    file.write_all_at(b"far", 1 << 20).unwrap();
    file.write_all_at(b"near", 3).unwrap();
    file.sync_all().unwrap();
    drop(file);
    let mut expected = vec![0; (1 << 20) + 3];
    expected[3..7].copy_from_slice(b"near");
    expected[1 << 20..].copy_from_slice(b"far");
    assert!(fs::read(&path).unwrap() == expected);
    let mut appending = OpenOptions::new().append(true).open(&path).unwrap();
    appending.write_all(b" end").unwrap();
    drop(appending);
    assert!(fs::read(&path).unwrap().ends_with(b"far end"));
    fs::write(&path, b"short").unwrap();
    assert_eq!(fs::read(&path).unwrap(), b"short");
    // What the filesystem below has is what the kernel showed.
    mounted.session().unmounter().unmount().unwrap();
    let inode = platter_vfs::PathWalk::new(&*mounted.fs)
        .resolve(b"f")
        .unwrap();
    let mut below = [0; 16];
    assert_eq!(inode.read_at(0, &mut below).unwrap(), 5);
    assert_eq!(&below[..5], b"short");
}

#[test]
fn truncating_and_growing_leave_zeros() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, [7; 10_000]).unwrap();
    let file = OpenOptions::new().write(true).open(&path).unwrap();
    file.set_len(100).unwrap();
    file.set_len(5_000).unwrap();
    drop(file);
    let contents = fs::read(&path).unwrap();
    assert_eq!(contents.len(), 5_000);
    assert!(contents[..100].iter().all(|&byte| byte == 7));
    assert!(contents[100..].iter().all(|&byte| byte == 0));
    mounted.unmount();
}

#[test]
fn mapped_pages_are_files_too() {
    let mounted = Mounted::with("", |fs| drop(plant(fs, "f", &vec![b'x'; 20_000])));
    // cp reads, and cmp maps where it can; both have to agree with the original.
    let (from, to) = (mounted.path("f"), mounted.path("copy"));
    run("cp", &[from.to_str().unwrap(), to.to_str().unwrap()]);
    run("cmp", &[from.to_str().unwrap(), to.to_str().unwrap()]);
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
fn the_time_of_creation_is_told() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let inode = mounted.fs.root().unwrap();
    let inode = inode.lookup(platter_vfs::Name::new(b"f").unwrap()).unwrap();
    let below = inode.attr().unwrap().created.unwrap();
    let created = fs::metadata(&path).unwrap().created().unwrap();
    let since = created.duration_since(std::time::UNIX_EPOCH).unwrap();
    assert_eq!(since.as_secs().cast_signed(), below.seconds);
    assert_eq!(since.subsec_nanos(), below.nanoseconds);
    drop(inode);
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
fn attributes_are_set_and_shown() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, b"#!").unwrap();
    fs::set_permissions(&path, PermissionsExt::from_mode(0o6750)).unwrap();
    assert_eq!(fs::metadata(&path).unwrap().mode() & 0o7777, 0o6750);
    let (uid, gid) = (Uid::from_raw(1234), Gid::from_raw(70_000));
    chownat(CWD, &path, Some(uid), Some(gid), AtFlags::empty()).unwrap();
    let metadata = fs::metadata(&path).unwrap();
    assert_eq!((metadata.uid(), metadata.gid()), (1234, 70_000));
    assert_eq!(
        metadata.mode() & 0o7777,
        0o750,
        "a new owner does not inherit set-id bits"
    );
    mounted.unmount();
}

#[test]
fn times_are_kept_to_the_nanosecond_and_before_1970() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let time = |tv_sec, tv_nsec| Timespec { tv_sec, tv_nsec };
    for (accessed, modified) in [
        (time(1, 2), time(5_000_000_000, 999_999_999)),
        (time(-1, 750_000_000), time(-2_000_000_000, 1)),
        (time(0, 0), time(-1, 0)),
    ] {
        let times = Timestamps {
            last_access: accessed,
            last_modification: modified,
        };
        utimensat(CWD, &path, &times, AtFlags::empty()).unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!(
            (metadata.atime(), metadata.atime_nsec()),
            (accessed.tv_sec, accessed.tv_nsec)
        );
        assert_eq!(
            (metadata.mtime(), metadata.mtime_nsec()),
            (modified.tv_sec, modified.tv_nsec)
        );
    }
    mounted.unmount();
}

/// A filesystem that keeps whole seconds.
#[derive(Debug)]
struct WholeSeconds(Arc<MemFs>);

impl Filesystem for WholeSeconds {
    fn describe(&self) -> Description {
        self.0.describe()
    }

    fn is_read_only(&self) -> bool {
        self.0.is_read_only()
    }

    fn time_granularity(&self) -> u32 {
        1_000_000_000
    }

    fn root(&self) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.0.root()
    }

    fn inode(&self, id: InodeId) -> platter_vfs::Result<Arc<dyn Inode>> {
        self.0.inode(id)
    }

    fn stat_fs(&self) -> platter_vfs::Result<StatFs> {
        self.0.stat_fs()
    }

    fn sync(&self) -> platter_vfs::Result<()> {
        self.0.sync()
    }

    fn unmount(&self) -> platter_vfs::Result<()> {
        self.0.unmount()
    }
}

#[test]
fn the_kernel_keeps_times_no_finer_than_the_filesystem() {
    let limits = MemFsLimits::default();
    let fs = Arc::new(MemFs::new(Arc::new(SystemClock::new()), limits));
    let served = Arc::new(WholeSeconds(Arc::clone(&fs)));
    let options = MountOptions {
        writeback: true,
        ..MountOptions::default()
    };
    let mounted = Mounted::serving(served, fs, options);
    let path = mounted.path("f");
    for _ in 0..3 {
        fs::write(&path, b"x").unwrap();
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.mtime_nsec(), metadata.ctime_nsec()), (0, 0));
    }
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
fn extended_attributes_with_their_size_protocol() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    fs::write(&path, b"x").unwrap();
    let value = [b'v'; 100];
    setxattr(&path, "user.a", &value, XattrFlags::CREATE).unwrap();
    assert_eq!(
        setxattr(&path, "user.a", &value, XattrFlags::CREATE),
        Err(Errno::EXIST)
    );
    assert_eq!(
        setxattr(&path, "user.b", &value, XattrFlags::REPLACE),
        Err(Errno::NODATA)
    );
    setxattr(&path, "trusted.t", b"secret", XattrFlags::empty()).unwrap();
    assert_eq!(getxattr_query(&path, "user.a"), Ok(100));
    let mut short = [0; 10];
    assert_eq!(getxattr(&path, "user.a", &mut short), Err(Errno::RANGE));
    let mut long = [0; 200];
    assert_eq!(getxattr(&path, "user.a", &mut long), Ok(100));
    assert_eq!(long[..100], value);
    let mut names = [0; 64];
    let len = listxattr(&path, &mut names).unwrap();
    assert_eq!(names[..len], *b"trusted.t\0user.a\0");
    assert_eq!(listxattr_query(&path), Ok(len));
    assert_eq!(listxattr(&path, &mut short), Err(Errno::RANGE));
    removexattr(&path, "user.a").unwrap();
    assert_eq!(getxattr(&path, "user.a", &mut long), Err(Errno::NODATA));
    assert_eq!(lremovexattr(&path, "user.a"), Err(Errno::NODATA));
    mounted.unmount();
}

#[test]
fn holes_are_found_and_made() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let mut file = OpenOptions::new()
        .read(true)
        .write(true)
        .create_new(true)
        .open(&path)
        .unwrap();
    file.write_all_at(&[1; 4096], 0).unwrap();
    file.write_all_at(&[1; 4096], 65_536).unwrap();
    file.sync_all().unwrap();
    let seek = |position| rustix::fs::seek(&file, position);
    assert_eq!(seek(rustix::fs::SeekFrom::Hole(0)), Ok(4096));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(4096)), Ok(65_536));
    assert_eq!(seek(rustix::fs::SeekFrom::Data(69_632)), Err(Errno::NXIO));
    let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
    fallocate(&file, punch, 65_536, 4096).unwrap();
    assert_eq!(
        rustix::fs::seek(&file, rustix::fs::SeekFrom::Data(4096)),
        Err(Errno::NXIO)
    );
    fallocate(&file, FallocateFlags::empty(), 0, 100_000).unwrap();
    let metadata = file.metadata().unwrap();
    assert_eq!((metadata.len(), metadata.blocks()), (100_000, 25 * 8));
    file.seek(SeekFrom::Start(65_536)).unwrap();
    let mut byte = [9];
    file.read_exact(&mut byte).unwrap();
    assert_eq!(byte, [0]);
    drop(file);
    mounted.unmount();
}

#[test]
fn what_the_kernel_has_not_written_yet_is_no_hole() {
    use rustix::fs::SeekFrom::{Data, Hole};
    let mounted = Mounted::with("writeback=on", |_| {});
    let open = || {
        let mut options = OpenOptions::new();
        options.read(true).write(true).create_new(true);
        options
    };
    let file = open().open(mounted.path("new")).unwrap();
    file.write_all_at(&vec![1; 300_000], 0).unwrap();
    assert_eq!(rustix::fs::seek(&file, Data(0)), Ok(0));
    assert_eq!(rustix::fs::seek(&file, Hole(0)), Ok(300_000));
    assert_eq!(rustix::fs::seek(&file, Data(299_999)), Ok(299_999));
    assert_eq!(rustix::fs::seek(&file, Data(300_000)), Err(Errno::NXIO));
    let sparse = open().open(mounted.path("sparse")).unwrap();
    sparse.set_len(1 << 20).unwrap();
    for offset in [900_000, 0, 500_000] {
        sparse.write_all_at(&[1; 10], offset).unwrap();
    }
    let page = |offset: u64| offset / 4096 * 4096;
    assert_eq!(rustix::fs::seek(&sparse, Hole(0)), Ok(4096));
    assert_eq!(rustix::fs::seek(&sparse, Data(4096)), Ok(page(500_000)));
    let end = page(500_000) + 4096;
    assert_eq!(rustix::fs::seek(&sparse, Hole(500_000)), Ok(end));
    assert_eq!(rustix::fs::seek(&sparse, Data(end)), Ok(page(900_000)));
    let end = page(900_000) + 4096;
    assert_eq!(rustix::fs::seek(&sparse, Data(end)), Err(Errno::NXIO));
    // In the middle of looking, other files are served.
    thread::scope(|scope| {
        for number in 0..8 {
            let mounted = &mounted;
            scope.spawn(move || {
                let path = mounted.path(&format!("f{number}"));
                for _ in 0..20 {
                    let _ = fs::remove_file(&path);
                    let file = open().open(&path).unwrap();
                    file.write_all_at(&[1; 10_000], 50_000).unwrap();
                    assert_eq!(rustix::fs::seek(&file, Data(0)), Ok(49_152));
                }
            });
        }
    });
    drop((file, sparse));
    mounted.unmount();
}

#[test]
fn the_space_that_was_written_is_told() {
    let mounted = Mounted::new();
    let path = mounted.path("f");
    let file = File::create(&path).unwrap();
    assert_eq!(file.metadata().unwrap().blocks(), 0);
    for count in 1..4 {
        file.write_all_at(&[1; 4096], count * 8192).unwrap();
        file.sync_all().unwrap();
        let is_told = || fs::metadata(&path).unwrap().blocks() == count * 8;
        assert!(soon(is_told), "{count} blocks");
    }
    drop(file);
    mounted.unmount();
}

#[test]
fn files_that_are_frozen_stay_as_they_are() {
    keeps_frozen_files("", |file| {
        refused(file.write_all_at(b"CONTENTS", 0), Errno::PERM);
    });
}

#[test]
fn what_the_kernel_gathers_for_frozen_files_is_refused_later() {
    keeps_frozen_files("writeback=on", |file| {
        file.write_all_at(b"CONTENTS", 0).unwrap();
        assert!(file.sync_all().is_err());
    });
}

fn keeps_frozen_files(options: &str, write: impl Fn(&File)) {
    let mounted = Mounted::with(options, |_| {});
    let frozen = |name: &str, flags: IFlags| {
        let path = mounted.path(name);
        let file = File::create(&path).unwrap();
        file.write_all_at(b"contents", 0).unwrap();
        // What was written before counts, though the kernel has not told of it yet.
        ioctl_setflags(&file, flags).unwrap();
        file.sync_all().unwrap();
        path
    };
    for flags in [IFlags::IMMUTABLE, IFlags::APPEND] {
        let path = frozen(&format!("{flags:?}"), flags);
        let refused = |result| refused(result, Errno::PERM);
        refused(fs::set_permissions(
            &path,
            fs::Permissions::from_mode(0o600),
        ));
        refused(std::os::unix::fs::chown(&path, Some(1), None));
        let file = File::open(&path).unwrap();
        refused(file.set_times(FileTimes::new().set_accessed(SystemTime::UNIX_EPOCH)));
        refused(setxattr(&path, c"user.a", b"1", XattrFlags::empty()).map_err(Into::into));
        refused(removexattr(&path, c"user.a").map_err(Into::into));
        let writable = OpenOptions::new().write(true).open(&path).unwrap();
        refused(writable.set_len(1));
        let punch = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        refused(fallocate(&writable, punch, 0, 4).map_err(Into::into));
        assert_eq!(fs::read(&path).unwrap(), b"contents");
        if flags == IFlags::IMMUTABLE {
            write(&writable);
            assert!(soon(|| fs::read(&path).unwrap() == b"contents"));
        }
        ioctl_setflags(&file, IFlags::empty()).unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o600)).unwrap();
    }
    mounted.unmount();
}

#[test]
fn space_and_flags_are_told() {
    let mounted = Mounted::with("", |fs| drop(plant(fs, "f", &[1; 8192])));
    let stat = statvfs(mounted.root()).unwrap();
    let below = mounted.fs.stat_fs().unwrap();
    assert_eq!(
        (stat.f_blocks, stat.f_bfree),
        (below.blocks, below.blocks_free)
    );
    assert_eq!(
        (stat.f_files, stat.f_ffree),
        (below.inodes, below.inodes_free)
    );
    assert_eq!((stat.f_bsize, stat.f_namemax), (4096, 255));
    let file = File::open(mounted.path("f")).unwrap();
    assert!(ioctl_getflags(&file).unwrap().is_empty());
    drop(file);
    mounted.unmount();
}

#[test]
fn a_full_filesystem_says_so() {
    let clock = std::sync::Arc::new(platter_vfs::SystemClock::new());
    let limits = platter_vfs::memory::MemFsLimits {
        pages: 16,
        inodes: 4,
    };
    let fs = std::sync::Arc::new(platter_vfs::memory::MemFs::new(clock, limits));
    let mounted = Mounted::serving(fs.clone(), fs, MountOptions::default());
    let file = File::create(mounted.path("f")).unwrap();
    // The kernel may hold writes back, but it tells of their failure.
    let written = file
        .write_all_at(&vec![1; 1 << 20], 0)
        .and_then(|()| file.sync_all());
    refused(written, Errno::NOSPC);
    drop(file);
    for name in ["g", "h"] {
        fs::write(mounted.path(name), b"").unwrap();
    }
    refused(fs::write(mounted.path("i"), b""), Errno::NOSPC);
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

#[test]
fn owners_can_be_shown_as_another() {
    let mounted = Mounted::with("uid=1234,gid=77", |fs| drop(plant(fs, "f", b"x")));
    for path in [mounted.root(), mounted.path("f")] {
        let metadata = fs::metadata(&path).unwrap();
        assert_eq!((metadata.uid(), metadata.gid()), (1234, 77));
    }
    let path = mounted.path("f");
    let own = |uid| chownat(CWD, &path, Some(Uid::from_raw(uid)), None, AtFlags::empty());
    assert_eq!(own(5), Err(Errno::PERM));
    own(1234).unwrap();
    mounted.unmount();
    let mounted = Mounted::with("uid=1234", |fs| drop(plant(fs, "f", b"x")));
    assert_eq!(fs::metadata(mounted.path("f")).unwrap().gid(), 0);
    mounted.unmount();
}
