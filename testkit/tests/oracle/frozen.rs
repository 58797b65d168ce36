//! Files and directories that must not change (`chattr +i`), or only grow (`chattr +a`): what is refused,
//! and how, by platter and by the kernel's own filesystem.

use std::fs::{self, File, FileTimes, OpenOptions};
use std::io::{self, Write};
use std::os::unix::fs::{FileExt, PermissionsExt, chown, symlink};
use std::path::Path;
use std::time::SystemTime;

use platter::WriteOptions;
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, IFlags, Mode, Timespec, Timestamps, UTIME_NOW,
    XattrFlags, fallocate, ioctl_getflags, ioctl_setflags, mknodat, removexattr, setxattr,
    utimensat,
};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::mke2fs;
use testkit::served;

use crate::images::assert_clean;

type Action = (&'static str, fn(&Path) -> io::Result<()>);

/// What is tried with the flags on a file `file`, which has a neighbour `other`.
const OF_FILES: &[Action] = &[
    ("read", |at| fs::read(at.join("file")).map(drop)),
    ("overwrite", |at| {
        OpenOptions::new()
            .write(true)
            .open(at.join("file"))?
            .write_all_at(b"new", 0)
    }),
    ("append", |at| appending(at)?.write_all(b"more")),
    ("open and truncate", |at| {
        File::create(at.join("file")).map(drop)
    }),
    ("truncate", |at| {
        OpenOptions::new()
            .write(true)
            .open(at.join("file"))?
            .set_len(3)
    }),
    ("extend", |at| {
        OpenOptions::new()
            .write(true)
            .open(at.join("file"))?
            .set_len(3000)
    }),
    ("allocate when appending", |at| {
        Ok(fallocate(appending(at)?, FallocateFlags::empty(), 0, 9000)?)
    }),
    ("punch when appending", |at| {
        let flags = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        Ok(fallocate(appending(at)?, flags, 0, 1024)?)
    }),
    ("remove", |at| fs::remove_file(at.join("file"))),
    ("link", |at| fs::hard_link(at.join("file"), at.join("link"))),
    ("rename", |at| fs::rename(at.join("file"), at.join("new"))),
    ("replace", |at| {
        fs::rename(at.join("other"), at.join("file"))
    }),
    ("chmod", |at| mode(&at.join("file"))),
    ("chown", |at| chown(at.join("file"), Some(1), None)),
    ("set times", |at| {
        File::open(at.join("file"))?
            .set_times(FileTimes::new().set_modified(SystemTime::UNIX_EPOCH))
    }),
    ("set times to now", |at| touch(&at.join("file"))),
    ("set an attribute", |at| attribute(&at.join("file"))),
    ("remove an attribute", |at| {
        Ok(removexattr(at.join("file"), c"user.old")?)
    }),
];

/// What is tried with the flags on a directory `dir`, with `file`, `full/x` and `empty` in it, and
/// `outside` next to it.
const OF_DIRECTORIES: &[Action] = &[
    ("list", |at| fs::read_dir(at.join("dir")).map(drop)),
    ("create", |at| {
        File::create_new(at.join("dir/new")).map(drop)
    }),
    ("make a directory", |at| fs::create_dir(at.join("dir/new"))),
    ("make a link", |at| symlink("x", at.join("dir/new"))),
    ("make a pipe", |at| {
        Ok(mknodat(
            CWD,
            at.join("dir/new"),
            FileType::Fifo,
            Mode::RUSR,
            0,
        )?)
    }),
    ("link into", |at| {
        fs::hard_link(at.join("outside"), at.join("dir/new"))
    }),
    ("link out of", |at| {
        fs::hard_link(at.join("dir/file"), at.join("new"))
    }),
    ("rename into", |at| {
        fs::rename(at.join("outside"), at.join("dir/new"))
    }),
    ("rename out of", |at| {
        fs::rename(at.join("dir/file"), at.join("new"))
    }),
    ("rename within", |at| {
        fs::rename(at.join("dir/file"), at.join("dir/new"))
    }),
    ("replace", |at| {
        fs::rename(at.join("outside"), at.join("dir/file"))
    }),
    ("replace a full directory", |at| {
        fs::rename(at.join("dir/empty"), at.join("dir/full"))
    }),
    ("remove", |at| fs::remove_file(at.join("dir/file"))),
    ("remove a directory", |at| {
        fs::remove_dir(at.join("dir/empty"))
    }),
    ("remove a full directory", |at| {
        fs::remove_dir(at.join("dir/full"))
    }),
    ("remove it", |at| fs::remove_dir(at.join("dir"))),
    ("rename it", |at| fs::rename(at.join("dir"), at.join("new"))),
    ("make over", |at| fs::create_dir(at.join("dir/file"))),
    ("write below", |at| fs::write(at.join("dir/file"), "new")),
    ("chmod", |at| mode(&at.join("dir"))),
    ("chown", |at| chown(at.join("dir"), Some(1), None)),
    ("set times to now", |at| touch(&at.join("dir"))),
    ("set an attribute", |at| attribute(&at.join("dir"))),
];

fn appending(at: &Path) -> io::Result<File> {
    OpenOptions::new().append(true).open(at.join("file"))
}

fn mode(path: &Path) -> io::Result<()> {
    fs::set_permissions(path, fs::Permissions::from_mode(0o700))
}

fn attribute(path: &Path) -> io::Result<()> {
    Ok(setxattr(path, c"user.new", b"1", XattrFlags::empty())?)
}

fn touch(path: &Path) -> io::Result<()> {
    let now = Timespec {
        tv_sec: 0,
        tv_nsec: UTIME_NOW,
    };
    let times = Timestamps {
        last_access: now,
        last_modification: now,
    };
    Ok(utimensat(CWD, path, &times, AtFlags::empty())?)
}

/// Makes what actions are about.
fn set_up(at: &Path) {
    for dir in ["dir/full", "dir/empty"] {
        fs::create_dir_all(at.join(dir)).unwrap();
    }
    for file in ["file", "other", "outside", "dir/file", "dir/full/x"] {
        fs::write(at.join(file), vec![b'x'; 2000]).unwrap();
    }
    setxattr(at.join("file"), c"user.old", b"1", XattrFlags::empty()).unwrap();
}

/// What comes of every action with each of the flags: nothing, or an errno.
fn outcomes(root: &Path) -> Vec<(String, Option<i32>)> {
    let mut outcomes = Vec::new();
    let actions = OF_FILES.iter().map(|action| ("file", action));
    let actions = actions.chain(OF_DIRECTORIES.iter().map(|action| ("dir", action)));
    for (flagged, (name, action)) in actions {
        for flags in [IFlags::empty(), IFlags::IMMUTABLE, IFlags::APPEND] {
            let name = format!("{name}, {flagged} {flags:?}");
            let at = root.join(outcomes.len().to_string());
            set_up(&at);
            let file = File::open(at.join(flagged)).unwrap();
            let before = ioctl_getflags(&file).unwrap();
            ioctl_setflags(&file, before | flags).unwrap();
            let error = action(&at).err();
            // What the action removed has no flags to reset.
            ioctl_setflags(&file, before).unwrap();
            outcomes.push((name, error.map(|error| error.raw_os_error().unwrap())));
        }
    }
    outcomes
}

#[test]
fn what_must_not_change_is_refused_as_by_the_kernel() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    for layout in [&["-t", "ext4", "-b", "1024"][..], &["-t", "ext2"]] {
        mke2fs::make(&image, 32 << 10, layout, None).unwrap();
        let mount = Mount::image(&image, "", Access::ReadWrite).unwrap();
        let expected = outcomes(mount.root());
        mount.unmount(&image).unwrap();
        mke2fs::make(&image, 32 << 10, layout, None).unwrap();
        let open = platter::MountOptions::new().writing(WriteOptions::default());
        let mut session = served::mount(&image, &open, &mountpoint, "").unwrap();
        let found = outcomes(&mountpoint);
        served::unmount(&mut session).unwrap();
        drop(session);
        assert_clean(&image, layout);
        let wrong: Vec<_> = std::iter::zip(&expected, &found)
            .filter(|(expected, found)| expected != found)
            .collect();
        assert!(wrong.is_empty(), "expected and found: {wrong:#?}");
        let refused = expected.iter().filter(|(_, error)| *error == Some(1));
        assert!(refused.count() > 40, "{expected:?}");
    }
}
