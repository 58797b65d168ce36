//! What is reported of files besides their contents, and how that is changed.

use std::fs::{self, File};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::sync::Arc;

use platter_fuse::MountOptions;
use platter_memfs::{MemFs, MemFsLimits};
use platter_vfs::{Description, Filesystem, SystemClock};
use rustix::fs::{
    AtFlags, CWD, Gid, Timespec, Timestamps, Uid, XattrFlags, chownat, getxattr, getxattr_query,
    ioctl_getflags, listxattr, listxattr_query, lremovexattr, removexattr, setxattr, statvfs,
    utimensat,
};
use rustix::io::Errno;

use crate::mounted::{Mounted, plant, stands_on};

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
fn the_time_of_creation_is_reported() {
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

    fn time_granularity(&self) -> u32 {
        1_000_000_000
    }

    stands_on!(0);
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
fn space_and_flags_are_reported() {
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
