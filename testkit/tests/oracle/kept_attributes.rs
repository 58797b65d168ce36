//! What the kernel keeps of attributes, compared with what the filesystem itself says after every change that
//! is made through the mount.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::Path;
use std::sync::Arc;

use platter::{ImageSpec, MountOptions, Volume, WriteOptions};
use platter_vfs::{Attr, Inode, Name, Timestamp};
use rustix::fs::{
    AtFlags, CWD, Mode, OFlags, RenameFlags, Statx, StatxFlags, StatxTimestamp, copy_file_range,
    open, renameat_with, statx,
};
use testkit::oracle::mke2fs;
use testkit::{served, tool};

use crate::images::assert_clean;

const LAYOUTS: &[&[&str]] = &[
    &["-t", "ext4", "-b", "1024"],
    &["-t", "ext4", "-b", "4096", "-O", "inline_data,ea_inode"],
    &["-t", "ext2", "-b", "1024"],
];
const IMAGE_KIB: u64 = 16 << 10;

/// Every path that there is at some time.
const PATHS: [&str; 12] = [
    "", "dir", "dir/file", "dir/link", "link", "other", "other2", "new", "dir/sub", "sub",
    "dir/fifo", "source",
];
const BEFORE: &str = "
mkdir dir; head -c 30000 /dev/urandom > dir/file; head -c 9000 /dev/urandom > source
echo other > other; ln other other2
";

enum Change {
    /// Run by a shell in the root of the mount.
    Shell(&'static str),
    /// The same by another user than the owner, with set-id bits on the file.
    ByOthers(&'static str),
    Call(&'static str, fn(&Path) -> io::Result<()>),
}

use Change::{ByOthers, Call, Shell};

const CHANGES: &[Change] = &[
    Shell("echo more >> dir/file"),
    Shell("dd if=/dev/urandom of=dir/file bs=4096 count=3 seek=2 conv=notrunc status=none"),
    Shell(
        "dd if=/dev/zero of=dir/file bs=4096 count=9 seek=40 oflag=direct conv=notrunc status=none",
    ),
    Shell("fallocate -p -o 0 -l 8192 dir/file"),
    Shell("fallocate -l 500000 dir/file"),
    Shell("fallocate -n -o 600000 -l 50000 dir/file"),
    Shell("fallocate -z -o 4096 -l 8192 dir/file"),
    Call("copy_file_range", copy_range),
    Shell("truncate -s 100 dir/file"),
    Shell("truncate -s 1M dir/file"),
    Shell(": > dir/file"),
    Shell("echo few > dir/file"),
    Shell("chown 5:6 dir/file"),
    Shell("chmod 6755 dir/file"),
    Shell("chown 8 dir/file"),
    Shell("chgrp 7 dir"),
    Shell("chmod 1777 dir"),
    Shell("setfacl -m u:77:rwx,m::rx dir/file"),
    Shell("setfacl -m m::r dir/file"),
    Shell("setfacl -b dir/file"),
    Shell("setfacl -d -m u:77:rx dir"),
    Shell("setfacl -k dir"),
    Shell("setfattr -n user.a -v 1 dir/file"),
    Shell("setfattr -n user.b -v $(head -c 600 /dev/zero | tr '\\0' b) dir/file"),
    Shell("setfattr -x user.b dir/file"),
    Shell("ln dir/file dir/link"),
    Shell("ln dir/file link"),
    Shell("rm dir/link"),
    Shell("mv -f link other"),
    Shell("echo new > new"),
    Shell("mv new other2"),
    Call("renameat2 with RENAME_EXCHANGE", exchange),
    Shell("mkdir dir/sub"),
    Shell("mv dir/sub ."),
    Shell("mv sub dir"),
    Shell("rmdir dir/sub"),
    Shell("mkfifo dir/fifo"),
    Shell("chown 9:9 dir/fifo"),
    Shell("rm dir/fifo"),
    Shell("touch -d @100.5 dir/file"),
    Shell("touch dir"),
    Shell("chattr +A dir/file"),
    Shell("chattr -A dir/file"),
    ByOthers("echo more >> dir/file"),
    ByOthers("dd if=/dev/zero of=dir/file bs=4096 count=1 oflag=direct conv=notrunc status=none"),
    ByOthers("truncate -s 5000 dir/file"),
    ByOthers("fallocate -p -o 0 -l 4096 dir/file"),
    ByOthers("fallocate -l 20000 dir/file"),
    ByOthers("fallocate -z -o 0 -l 4096 dir/file"),
    Shell("rm dir/file"),
];

fn copy_range(root: &Path) -> io::Result<()> {
    let from = open(root.join("source"), OFlags::RDONLY, Mode::empty())?;
    let to = open(root.join("dir/file"), OFlags::WRONLY, Mode::empty())?;
    let mut at = 700_000;
    let copied = copy_file_range(&from, Some(&mut 0), &to, Some(&mut at), 9000)?;
    assert!(copied > 0);
    Ok(())
}

fn exchange(root: &Path) -> io::Result<()> {
    let [file, other] = ["dir/file", "other2"].map(|path| root.join(path));
    Ok(renameat_with(CWD, file, CWD, other, RenameFlags::EXCHANGE)?)
}

fn shell(root: &Path, user: &str, script: &str) {
    let mut command = tool::command("setpriv");
    command
        .args(["--reuid", user, "--clear-groups", "sh", "-euc", script])
        .current_dir(root);
    let finished = tool::finish(&mut command).unwrap();
    // ext2 has no extents to allocate space in.
    let text = finished.text();
    let is_done = finished.status.success() || text.contains("supported");
    assert!(is_done, "{script}: {text}");
}

impl Change {
    fn name(&self) -> &'static str {
        match self {
            Shell(script) | ByOthers(script) => script,
            Call(name, _) => name,
        }
    }

    fn prepare(&self, root: &Path) {
        if let ByOthers(_) = self {
            shell(root, "0", "chmod 6777 dir/file");
        }
    }

    fn make(&self, root: &Path) {
        match self {
            Shell(script) => shell(root, "0", script),
            ByOthers(script) => shell(root, "1234", script),
            Call(_, call) => call(root).unwrap(),
        }
    }
}

/// An attribute as a mount caches it, and as the filesystem has it.
struct Field {
    flags: StatxFlags,
    cached: fn(&Statx) -> i128,
    is: fn(&Attr) -> i128,
}

const FIELDS: &[Field] = &[
    Field {
        flags: StatxFlags::MODE,
        cached: |it| (it.stx_mode & 0o7777).into(),
        is: |it| it.permissions.into(),
    },
    Field {
        flags: StatxFlags::UID,
        cached: |it| it.stx_uid.into(),
        is: |it| it.uid.into(),
    },
    Field {
        flags: StatxFlags::GID,
        cached: |it| it.stx_gid.into(),
        is: |it| it.gid.into(),
    },
    Field {
        flags: StatxFlags::NLINK,
        cached: |it| it.stx_nlink.into(),
        is: |it| it.links.into(),
    },
    Field {
        flags: StatxFlags::SIZE,
        cached: |it| it.stx_size.into(),
        is: |it| it.size_bytes.into(),
    },
    Field {
        flags: StatxFlags::BLOCKS,
        cached: |it| it.stx_blocks.into(),
        is: |it| it.sectors.into(),
    },
    Field {
        flags: StatxFlags::MTIME,
        cached: |it| statx_time(&it.stx_mtime),
        is: |it| time(it.modified),
    },
    Field {
        flags: StatxFlags::CTIME,
        cached: |it| statx_time(&it.stx_ctime),
        is: |it| time(it.changed),
    },
];

fn statx_time(time: &StatxTimestamp) -> i128 {
    i128::from(time.tv_sec) * 1_000_000_000 + i128::from(time.tv_nsec)
}

fn time(time: Timestamp) -> i128 {
    i128::from(time.seconds) * 1_000_000_000 + i128::from(time.nanoseconds)
}

fn inode(volume: &Volume, path: &str) -> Option<Arc<dyn Inode>> {
    let root = volume.filesystem().root().unwrap();
    let mut names = path.split('/').filter(|name| !name.is_empty());
    names.try_fold(root, |dir, name| {
        dir.lookup(Name::new(name.as_bytes()).unwrap()).ok()
    })
}

/// Where the mount returns other `fields` than the filesystem has. Each of them is asked for
/// alone, since the kernel asks for all when one is out of date.
fn differences(volume: &Volume, root: &Path, fields: &[Field], when: &str) -> Vec<String> {
    let mut found = Vec::new();
    for path in PATHS {
        let Some(inode) = inode(volume, path) else {
            continue;
        };
        for field in fields {
            let (at, flags) = (root.join(path), AtFlags::SYMLINK_NOFOLLOW);
            let cached = (field.cached)(&statx(CWD, at, flags, field.flags).unwrap());
            let is = (field.is)(&inode.attr().unwrap());
            if cached != is {
                let name = field.flags;
                found.push(format!("{when}: {path} {name:?}: cached {cached}, is {is}"));
            }
        }
    }
    found
}

#[test]
fn cached_attributes_are_current_after_every_change() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    let open = MountOptions::new().writing(WriteOptions::default());
    for layout in LAYOUTS {
        for fields in FIELDS.chunks(1).chain([FIELDS]) {
            mke2fs::make(&image, IMAGE_KIB, layout, None).unwrap();
            let volume = open.open(&ImageSpec::parse(&image).unwrap()).unwrap();
            let mut session = served::mount_volume(&volume, &mountpoint, "allow_other").unwrap();
            shell(&mountpoint, "0", BEFORE);
            let mut found = Vec::new();
            for change in CHANGES {
                change.prepare(&mountpoint);
                // From here on the kernel has everything.
                differences(&volume, &mountpoint, FIELDS, "before");
                change.make(&mountpoint);
                let name = change.name();
                found.extend(differences(&volume, &mountpoint, fields, name));
                volume.filesystem().sync().unwrap();
                let when = format!("{name}, and a commit");
                found.extend(differences(&volume, &mountpoint, fields, &when));
            }
            assert!(found.is_empty(), "{layout:?}: {found:#?}");
            served::unmount(&mut session).unwrap();
            drop((session, volume));
            assert_clean(&image, layout);
        }
    }
}

/// Trees of extents get blocks at writeback, and indirect blocks are reserved for each that lacks them.
#[test]
fn space_that_writeback_changes_is_not_cached() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    let open = MountOptions::new().writing(WriteOptions {
        commit_interval: None,
        ..WriteOptions::default()
    });
    for layout in LAYOUTS {
        mke2fs::make(&image, IMAGE_KIB, layout, None).unwrap();
        let volume = open.open(&ImageSpec::parse(&image).unwrap()).unwrap();
        let mut session = served::mount_volume(&volume, &mountpoint, "").unwrap();
        let path = mountpoint.join("link");
        let file = File::create(&path).unwrap();
        for block in 0..40 {
            file.write_all_at(b"text", block << 15).unwrap();
        }
        drop(file);
        let blocks = || path.metadata().unwrap().blocks();
        let assert_current = |when: &str| {
            let found = differences(&volume, &mountpoint, FIELDS, when);
            assert!(found.is_empty(), "{layout:?}: {found:#?}");
        };
        let before = blocks();
        assert_current("delayed");
        volume.filesystem().sync().unwrap();
        assert_ne!(blocks(), before, "{layout:?}");
        assert_current("written");
        served::unmount(&mut session).unwrap();
        drop((session, volume));
        assert_clean(&image, layout);
    }
}

/// With everything shown as belonging to one user, the kernel knows of no ACLs.
#[test]
fn mode_that_an_acl_changes_is_not_cached() {
    let directory = tempfile::tempdir().unwrap();
    let (image, mountpoint) = (
        directory.path().join("image"),
        directory.path().join("mount"),
    );
    mke2fs::make(&image, IMAGE_KIB, LAYOUTS[1], None).unwrap();
    let open = MountOptions::new().writing(WriteOptions::default());
    let volume = open.open(&ImageSpec::parse(&image).unwrap()).unwrap();
    let mut session = served::mount_volume(&volume, &mountpoint, "uid=0").unwrap();
    let path = mountpoint.join("file");
    File::create(&path).unwrap();
    let mode = || {
        let found = statx(CWD, &path, AtFlags::empty(), StatxFlags::MODE).unwrap();
        found.stx_mode & 0o777
    };
    tool::succeed(tool::command("chmod").arg("664").arg(&path)).unwrap();
    assert_eq!(mode(), 0o664);
    tool::succeed(
        tool::command("setfacl")
            .args(["-m", "u:77:r,m::r"])
            .arg(&path),
    )
    .unwrap();
    assert_eq!(mode(), 0o644);
    served::unmount(&mut session).unwrap();
    drop((session, volume));
    assert_clean(&image, LAYOUTS[1]);
}
