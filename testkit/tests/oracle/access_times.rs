//! Times of access, and files that are frozen when they are opened (generic/003 and generic/079 of
//! xfstests). What is expected is what the kernel's own filesystem does.

use std::fs::{self, File, OpenOptions};
use std::io::Read;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, symlink};
use std::path::Path;
use std::thread;
use std::time::Duration;

use platter::WriteOptions;
use platter_fuse::Operation;
use rustix::fs::{
    AtFlags, CWD, IFlags, OFlags, Timespec, Timestamps, fadvise, ioctl_getflags, ioctl_setflags,
    utimensat,
};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::{e2fsck, mke2fs};
use testkit::served;

const LAYOUT: &[&str] = &["-t", "ext4", "-I", "256"];
const IMAGE_KIB: u64 = 16 << 10;

/// Longer than the kernel's clock for files takes to go on.
const TICK: Duration = Duration::from_millis(20);

/// What was done, and whether the time of access changed with it.
type Seen = Vec<(&'static str, bool)>;

fn accessed(path: &Path) -> (i64, i64) {
    let metadata = fs::symlink_metadata(path).unwrap();
    (metadata.atime(), metadata.atime_nsec())
}

fn read(path: &Path, flags: OFlags) {
    let mut options = OpenOptions::new();
    options.read(true).custom_flags(flags.bits().cast_signed());
    let mut file = options.open(path).unwrap();
    file.read_to_end(&mut Vec::new()).unwrap();
}

fn list(path: &Path) {
    assert!(fs::read_dir(path).unwrap().count() > 0);
}

fn set_flags(path: &Path, flags: IFlags) {
    let file = File::open(path).unwrap();
    let others =
        ioctl_getflags(&file).unwrap() - (IFlags::NOATIME | IFlags::IMMUTABLE | IFlags::APPEND);
    ioctl_setflags(&file, others | flags).unwrap();
}

/// As if it was read last some days ago, and changed before that. The kernel has none of it cached.
fn age(path: &Path) {
    let now = fs::symlink_metadata(path).unwrap().mtime();
    let days_ago = |days: i64| Timespec {
        tv_sec: now - days * 86_400,
        tv_nsec: 0,
    };
    let times = Timestamps {
        last_access: days_ago(2),
        last_modification: days_ago(3),
    };
    utimensat(CWD, path, &times, AtFlags::empty()).unwrap();
    let file = File::open(path).unwrap();
    fadvise(&file, 0, None, rustix::fs::Advice::DontNeed).unwrap();
}

fn play(root: &Path) -> Seen {
    let path = |name: &str| root.join(name);
    fs::create_dir(path("dir")).unwrap();
    for name in ["dir/file", "spared", "marked", "unread"] {
        fs::write(path(name), "contents").unwrap();
    }
    symlink("dir/file", path("link")).unwrap();
    set_flags(&path("marked"), IFlags::NOATIME);

    let mut seen = Seen::new();
    let mut note = |what, name: &str, action: &dyn Fn(&Path)| {
        let path = root.join(name);
        let before = accessed(&path);
        thread::sleep(TICK);
        action(&path);
        seen.push((what, accessed(&path) != before));
    };
    let plainly = |path: &Path| read(path, OFlags::empty());
    note("read", "dir/file", &plainly);
    note("read again", "dir/file", &plainly);
    note("written", "dir/file", &|path| {
        fs::write(path, "other").unwrap();
    });
    note("read what is new", "dir/file", &plainly);
    note("aged", "dir/file", &|path| age(path));
    note("read after days", "dir/file", &plainly);
    note("read with O_NOATIME", "spared", &|path| {
        read(path, OFlags::NOATIME);
    });
    note("read with flag A", "marked", &plainly);
    note("listed", "dir", &|path| list(path));
    note("listed again", "dir", &|path| list(path));
    note("entry made", "dir", &|path| {
        fs::write(path.join("new"), "").unwrap();
    });
    note("listed with a new entry", "dir", &|path| list(path));
    note("path walked", "dir", &|path| {
        drop(fs::metadata(path.join("new")));
    });
    note("link read", "link", &|path| {
        drop(fs::read_link(path).unwrap());
    });
    note("link read again", "link", &|path| {
        drop(fs::read_link(path).unwrap());
    });
    seen
}

fn by_platter(image: &Path, mountpoint: &Path, options: &str) -> Seen {
    let open = platter::MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(image, &open, mountpoint, options).unwrap();
    let seen = play(mountpoint);
    let names = ["dir/file", "dir", "link", "spared", "marked", "unread"];
    let kept = names.map(|name| accessed(&mountpoint.join(name)));
    let openings = session.statistics().count(Operation::Open);
    assert_eq!(
        openings > 1,
        options.contains("strictatime"),
        "{options}: {openings}"
    );
    served::unmount(&mut session).unwrap();
    drop(session);

    let (verdict, report) = e2fsck::report(image).unwrap();
    assert!(verdict.is_clean(), "{report}");
    let open = platter::MountOptions::new();
    let mut session = served::mount(image, &open, mountpoint, "ro").unwrap();
    read(&mountpoint.join("unread"), OFlags::empty());
    list(mountpoint);
    let found = names.map(|name| accessed(&mountpoint.join(name)));
    served::unmount(&mut session).unwrap();
    assert_eq!(found, kept, "{options}: what a later mount finds");
    seen
}

#[test]
fn reads_change_times_of_access_as_mount_options_say() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    for (options, as_the_kernel_with) in [
        ("", "relatime"),
        ("relatime,lazytime", "relatime,lazytime"),
        ("nodiratime", "relatime,nodiratime"),
        ("strictatime", "strictatime"),
        ("strictatime,nodiratime", "strictatime,nodiratime"),
        ("noatime", ""),
    ] {
        mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
        let mount = Mount::image(&image, as_the_kernel_with, Access::ReadWrite).unwrap();
        let expected = play(mount.root());
        mount.unmount(&image).unwrap();
        let changed = expected.iter().filter(|(_, changed)| *changed).count();
        assert_eq!(changed > 1, options != "noatime", "{options}: {expected:?}");

        mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
        let found = by_platter(&image, &mountpoint, options);
        assert_eq!(found, expected, "{options}");
    }
}

/// Which ways of opening succeed, of a file of each kind.
fn openings(root: &Path) -> Vec<(&'static str, &'static str, bool)> {
    let ways = [
        ("read", OFlags::RDONLY),
        ("write", OFlags::WRONLY),
        ("read and write", OFlags::RDWR),
        ("append", OFlags::WRONLY | OFlags::APPEND),
        ("truncate", OFlags::WRONLY | OFlags::TRUNC),
        (
            "append and truncate",
            OFlags::WRONLY | OFlags::APPEND | OFlags::TRUNC,
        ),
    ];
    let kinds = [
        ("plain", IFlags::empty()),
        ("immutable", IFlags::IMMUTABLE),
        ("append only", IFlags::APPEND),
    ];
    let mut outcomes = Vec::new();
    for (kind, flags) in kinds {
        let path = root.join(kind);
        fs::write(&path, "contents").unwrap();
        set_flags(&path, flags);
        for (way, flags) in ways {
            let opened = rustix::fs::open(&path, flags, rustix::fs::Mode::empty());
            outcomes.push((kind, way, opened.is_ok()));
        }
        set_flags(&path, IFlags::empty());
    }
    outcomes
}

#[test]
fn frozen_files_are_opened_as_by_the_kernel() {
    let dir = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (dir.path().join("image"), dir.path().join("mount"));
    mke2fs::make(&image, IMAGE_KIB, LAYOUT, None).unwrap();
    let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
    let expected = openings(mount.root());
    mount.unmount(&image).unwrap();
    assert!(expected.iter().any(|(.., is_open)| !is_open));

    let open = platter::MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(&image, &open, &mountpoint, "strictatime").unwrap();
    let found = openings(&mountpoint);
    served::unmount(&mut session).unwrap();
    assert_eq!(found, expected);
    let (verdict, report) = e2fsck::report(&image).unwrap();
    assert!(verdict.is_clean(), "{report}");
}
