//! Attributes that the kernel keeps of a mounted filesystem: after whatever changes them, it has them
//! as the filesystem has them, each asked for alone.
//!
//! Needs the FUSE device and the superuser.

use std::os::unix::fs::OpenOptionsExt;

use rustix::fs::{AtFlags, FallocateFlags, IFlags, OFlags, Statx, StatxFlags};

use super::mount::Mounted;
use super::*;

/// What is asked for first is what the kernel may not know to have changed: once it has asked for one,
/// it has all.
const EACH: [StatxFlags; 9] = [
    StatxFlags::MODE,
    StatxFlags::NLINK,
    StatxFlags::UID,
    StatxFlags::GID,
    StatxFlags::BLOCKS,
    StatxFlags::SIZE,
    StatxFlags::ATIME,
    StatxFlags::MTIME,
    StatxFlags::CTIME,
];

fn statx(file: &fs::File, how: AtFlags, what: StatxFlags) -> Statx {
    rustix::fs::statx(file, "", AtFlags::EMPTY_PATH | how, what).unwrap()
}

/// What was asked for, in words of which equal ones mean the same.
fn value(of: &Statx, what: StatxFlags) -> String {
    let time = |time: rustix::fs::StatxTimestamp| format!("{}.{:09}", time.tv_sec, time.tv_nsec);
    match what {
        StatxFlags::MODE => format!("{:o}", of.stx_mode),
        StatxFlags::NLINK => of.stx_nlink.to_string(),
        StatxFlags::UID => of.stx_uid.to_string(),
        StatxFlags::GID => of.stx_gid.to_string(),
        StatxFlags::ATIME => time(of.stx_atime),
        StatxFlags::MTIME => time(of.stx_mtime),
        StatxFlags::CTIME => time(of.stx_ctime),
        StatxFlags::SIZE => of.stx_size.to_string(),
        StatxFlags::BLOCKS => of.stx_blocks.to_string(),
        other => panic!("{other:?}"),
    }
}

/// Where the kernel's attributes of `file` are not the filesystem's.
fn differences(file: &fs::File) -> Vec<String> {
    let kept = EACH.map(|what| value(&statx(file, AtFlags::empty(), what), what));
    let asked = statx(file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
    let pairs = EACH.iter().zip(kept);
    pairs
        .filter_map(|(&what, kept)| {
            let asked = value(&asked, what);
            (kept != asked).then(|| format!("{what:?}: {kept} is kept of {asked}"))
        })
        .collect()
}

type Change = fn(&Path);

fn open(path: &Path) -> fs::File {
    let mut options = fs::File::options();
    options.read(true).write(true).open(path).unwrap()
}

/// Runs a shell command there as an ordinary user.
fn as_user(mount: &Path, script: &str) {
    let mut shell = Command::new("setpriv");
    shell.args([
        "--reuid=1234",
        "--regid=1234",
        "--clear-groups",
        "sh",
        "-ec",
        script,
    ]);
    run_tool(shell.current_dir(mount), "");
}

fn allocate(mount: &Path, mode: FallocateFlags, offset: u64, len: u64) {
    let file = open(&mount.join("prog"));
    rustix::fs::fallocate(&file, mode, offset, len).unwrap();
}

fn set_xattr(path: &Path, name: &str, value: &[u8]) {
    rustix::fs::setxattr(path, name, value, rustix::fs::XattrFlags::empty()).unwrap();
}

/// What can be done to the tree that [`attributes_kept_by_the_kernel_are_those_of_the_filesystem`]
/// makes, by the superuser and by others.
const CHANGES: &[(&str, Change)] = &[
    ("write by others", |mount| {
        as_user(mount, "printf x >> prog");
    }),
    ("write within by others", |mount| {
        as_user(
            mount,
            "printf x | dd of=prog bs=1 seek=9 conv=notrunc status=none",
        );
    }),
    ("direct write by others", |mount| {
        let dd = "dd if=/dev/zero of=prog bs=4096 count=1 conv=notrunc oflag=direct status=none";
        as_user(mount, dd);
    }),
    ("allocate by others", |mount| {
        as_user(mount, "fallocate -l 70000 prog");
    }),
    ("allocate beyond the end by others", |mount| {
        as_user(mount, "fallocate -n -o 90000 -l 4096 prog");
    }),
    ("punch by others", |mount| {
        as_user(mount, "fallocate -p -o 0 -l 4096 prog");
    }),
    ("zero by others", |mount| {
        as_user(mount, "fallocate -z -o 4096 -l 8192 prog");
    }),
    ("collapse by others", |mount| {
        // Not through FUSE: refused, and nothing changes.
        as_user(mount, "! fallocate -c -o 0 -l 4096 prog 2> /dev/null");
    }),
    ("truncate by others", |mount| {
        as_user(mount, "truncate -s 5000 prog");
    }),
    ("cut by others when opened", |mount| {
        as_user(mount, ": > prog");
    }),
    ("copy by others", |mount| as_user(mount, "cp other prog")),
    ("chown", |mount| {
        std::os::unix::fs::chown(mount.join("prog"), Some(7), Some(8)).unwrap();
    }),
    ("write", |mount| {
        open(&mount.join("prog"))
            .write_all_at(b"y", 40_000)
            .unwrap();
    }),
    ("punch", |mount| {
        allocate(
            mount,
            FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE,
            0,
            8192,
        );
    }),
    ("attribute in the inode", |mount| {
        set_xattr(&mount.join("other"), "user.a", b"1");
    }),
    ("attribute in a block", |mount| {
        set_xattr(&mount.join("other"), "user.b", &[1; 500]);
    }),
    ("attribute gone", |mount| {
        rustix::fs::removexattr(mount.join("other"), "user.b").unwrap();
    }),
    ("acl", |mount| {
        let other = mount.join("other");
        run_tool(
            Command::new("setfacl").args(["-m", "u:77:rwx"]).arg(other),
            "",
        );
    }),
    ("chmod with an acl", |mount| {
        let mode = fs::Permissions::from_mode(0o640);
        fs::set_permissions(mount.join("other"), mode).unwrap();
    }),
    ("flags", |mount| {
        let file = open(&mount.join("other"));
        let flags = rustix::fs::ioctl_getflags(&file).unwrap();
        rustix::fs::ioctl_setflags(&file, flags | IFlags::NODUMP).unwrap();
    }),
    ("link", |mount| {
        fs::hard_link(mount.join("other"), mount.join("d/more")).unwrap();
    }),
    ("rename", |mount| {
        fs::rename(mount.join("d/more"), mount.join("d/less")).unwrap();
    }),
    ("unlink", |mount| {
        fs::remove_file(mount.join("d/less")).unwrap();
    }),
    ("make a directory", |mount| {
        fs::create_dir(mount.join("d/new")).unwrap();
    }),
    ("move a directory", |mount| {
        fs::rename(mount.join("d/sub"), mount.join("e/sub")).unwrap();
    }),
    ("replace a directory", |mount| {
        fs::create_dir(mount.join("d/sub")).unwrap();
        fs::rename(mount.join("d/sub"), mount.join("e/sub")).unwrap();
    }),
    ("remove a directory", |mount| {
        fs::remove_dir(mount.join("d/gone")).unwrap();
    }),
    ("fill a directory", |mount| {
        for number in 0..200 {
            fs::File::create(mount.join(format!("d/{number:0>40}"))).unwrap();
        }
    }),
    ("replace a file", |mount| {
        fs::write(mount.join("short"), b"short").unwrap();
        fs::rename(mount.join("short"), mount.join("other")).unwrap();
    }),
    ("exchange", |mount| {
        let flags = rustix::fs::RenameFlags::EXCHANGE;
        let (dir, file) = (mount.join("d"), mount.join("prog"));
        let root = rustix::fs::CWD;
        rustix::fs::renameat_with(root, &dir, root, &file, flags).unwrap();
        rustix::fs::renameat_with(root, &dir, root, &file, flags).unwrap();
    }),
    ("times", |mount| {
        let times = fs::FileTimes::new().set_modified(SystemTime::UNIX_EPOCH);
        open(&mount.join("prog")).set_times(times).unwrap();
    }),
];

#[test]
fn attributes_kept_by_the_kernel_are_those_of_the_filesystem() {
    let workshop = Workshop::new();
    fs::set_permissions(workshop.0.path(), fs::Permissions::from_mode(0o755)).unwrap();
    let mounted = Mounted::with(&workshop, "allow_other", "disk.img");
    let mount = workshop.path("mnt");
    for dir in ["d", "d/sub", "d/gone", "e", "e/sub"] {
        let _ = fs::create_dir(mount.join(dir));
    }
    fs::remove_dir(mount.join("e/sub")).unwrap();
    fs::set_permissions(&mount, fs::Permissions::from_mode(0o777)).unwrap();
    fs::write(mount.join("other"), [b'o'; 3000]).unwrap();
    fs::set_permissions(mount.join("other"), fs::Permissions::from_mode(0o644)).unwrap();
    fs::write(mount.join("prog"), vec![b'p'; 30_000]).unwrap();
    let watched = [".", "d", "d/sub", "d/gone", "e", "other", "prog"].map(|name| {
        let path = OFlags::PATH.bits().cast_signed();
        let open = fs::File::options()
            .read(true)
            .custom_flags(path)
            .open(mount.join(name));
        (name, open.unwrap())
    });
    let mut wrong = Vec::new();
    for (change, run) in CHANGES {
        fs::set_permissions(mount.join("prog"), fs::Permissions::from_mode(0o6777)).unwrap();
        for (_, file) in &watched {
            statx(file, AtFlags::STATX_FORCE_SYNC, StatxFlags::BASIC_STATS);
        }
        run(&mount);
        for (name, file) in &watched {
            let differences = differences(file);
            wrong.extend((!differences.is_empty()).then_some((*change, *name, differences)));
        }
    }
    drop(watched);
    assert!(wrong.is_empty(), "{wrong:#?}");
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}

#[test]
fn what_is_written_directly_is_in_the_image_at_once() {
    let workshop = Workshop::new();
    let mounted = Mounted::of(&workshop, "disk.img");
    let path = workshop.path("mnt/direct");
    fs::write(&path, [b'-'; 16384]).unwrap();
    let direct = OFlags::DIRECT.bits().cast_signed();
    let mut options = fs::File::options();
    let file = options
        .write(true)
        .custom_flags(direct)
        .open(&path)
        .unwrap();
    let contents = *b"written past the kernel's cache";
    for (offset, len) in [(0, 4096), (4096, 8192), (65_536, 4096)] {
        let data: Vec<u8> = contents
            .iter()
            .copied()
            .cycle()
            .skip(offset % 7)
            .take(len)
            .collect();
        file.write_all_at(&data, offset as u64).unwrap();
        let image = fs::read(workshop.path("disk.img")).unwrap();
        // No block is shorter.
        let is_there = image.chunks(1024).any(|block| block == &data[..1024]);
        assert!(is_there, "{len} bytes at {offset}");
    }
    drop(file);
    workshop.read(&["umount", "mnt"]);
    drop(mounted);
}
