//! Streams made by hand that are received into a mount.
//!
//! They need the FUSE device and the superuser.

use std::os::unix::fs::MetadataExt;

use super::mount::Mounted;
use super::*;

/// Numbers of commands.
mod kind {
    pub(super) const SUBVOL: u16 = 1;
    pub(super) const MKFILE: u16 = 3;
    pub(super) const MKDIR: u16 = 4;
    pub(super) const MKNOD: u16 = 5;
    pub(super) const MKFIFO: u16 = 6;
    pub(super) const SYMLINK: u16 = 8;
    pub(super) const RENAME: u16 = 9;
    pub(super) const LINK: u16 = 10;
    pub(super) const UNLINK: u16 = 11;
    pub(super) const SET_XATTR: u16 = 13;
    pub(super) const WRITE: u16 = 15;
    pub(super) const CLONE: u16 = 16;
    pub(super) const TRUNCATE: u16 = 17;
    pub(super) const CHOWN: u16 = 19;
    pub(super) const UTIMES: u16 = 20;
    pub(super) const END: u16 = 21;
    pub(super) const FILEATTR: u16 = 24;
}

/// Numbers of attributes.
mod attribute {
    pub(super) const UUID: u16 = 1;
    pub(super) const GENERATION: u16 = 2;
    pub(super) const SIZE: u16 = 4;
    pub(super) const MODE: u16 = 5;
    pub(super) const UID: u16 = 6;
    pub(super) const GID: u16 = 7;
    pub(super) const DEVICE: u16 = 8;
    pub(super) const CHANGED: u16 = 9;
    pub(super) const MODIFIED: u16 = 10;
    pub(super) const ACCESSED: u16 = 11;
    pub(super) const XATTR_NAME: u16 = 13;
    pub(super) const XATTR_DATA: u16 = 14;
    pub(super) const PATH: u16 = 15;
    pub(super) const PATH_TO: u16 = 16;
    pub(super) const PATH_LINK: u16 = 17;
    pub(super) const FILE_OFFSET: u16 = 18;
    pub(super) const DATA: u16 = 19;
    pub(super) const CLONE_UUID: u16 = 20;
    pub(super) const CLONE_GENERATION: u16 = 21;
    pub(super) const CLONE_PATH: u16 = 22;
    pub(super) const CLONE_OFFSET: u16 = 23;
    pub(super) const CLONE_LEN: u16 = 24;
    pub(super) const FILEATTR: u16 = 26;
}

/// The UUID of what is sent, and its generation.
const SENT_UUID: [u8; 16] = [7; 16];
const SENT_GENERATION: u64 = 70;

/// A send stream of the subvolume `sub`.
struct Stream(Vec<u8>);

impl Stream {
    fn new() -> Self {
        let begun = Self(b"btrfs-stream\0\x01\0\0\0".to_vec());
        begun.with(
            kind::SUBVOL,
            &[
                (attribute::PATH, b"sub"),
                (attribute::UUID, &SENT_UUID),
                (attribute::GENERATION, &SENT_GENERATION.to_le_bytes()),
            ],
        )
    }

    /// Adds a command with attributes.
    fn with(mut self, kind: u16, attributes: &[(u16, &[u8])]) -> Self {
        let mut body = Vec::new();
        for (number, value) in attributes {
            body.extend(number.to_le_bytes());
            body.extend(u16::try_from(value.len()).unwrap().to_le_bytes());
            body.extend_from_slice(value);
        }
        let mut header = u32::try_from(body.len()).unwrap().to_le_bytes().to_vec();
        header.extend(kind.to_le_bytes());
        let checksum = crc32c(&[&header[..], &[0; 4][..], &body[..]].concat());
        self.0.extend(header);
        self.0.extend(checksum.to_le_bytes());
        self.0.extend(body);
        self
    }

    /// Adds a command that has a path alone.
    fn at(self, kind: u16, path: &str) -> Self {
        self.with(kind, &[(attribute::PATH, path.as_bytes())])
    }

    /// Adds a command that has two paths.
    fn between(self, kind: u16, path: &str, (number, other): (u16, &str)) -> Self {
        let path = (attribute::PATH, path.as_bytes());
        self.with(kind, &[path, (number, other.as_bytes())])
    }

    /// Adds a command that has numbers.
    fn set(self, kind: u16, path: &str, numbers: &[(u16, u64)]) -> Self {
        let numbers: Vec<_> = numbers
            .iter()
            .map(|(number, value)| (*number, value.to_le_bytes()))
            .collect();
        let numbers = numbers.iter().map(|(number, value)| (*number, &value[..]));
        let attributes: Vec<_> = std::iter::once((attribute::PATH, path.as_bytes()))
            .chain(numbers)
            .collect();
        self.with(kind, &attributes)
    }

    fn symlink(self, path: &str, target: &str) -> Self {
        self.between(kind::SYMLINK, path, (attribute::PATH_LINK, target))
    }

    fn write(self, path: &str, data: &[u8]) -> Self {
        self.with(
            kind::WRITE,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::FILE_OFFSET, &[0; 8]),
                (attribute::DATA, data),
            ],
        )
    }

    /// Adds a clone of the beginning of a file of the same subvolume.
    fn clone_of(self, path: &str, source: &str, len_bytes: u64) -> Self {
        self.clone_from(path, (SENT_UUID, source), len_bytes)
    }

    /// The same, of a file of a subvolume with a UUID.
    fn clone_from(self, path: &str, (uuid, source): ([u8; 16], &str), len_bytes: u64) -> Self {
        self.with(
            kind::CLONE,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::FILE_OFFSET, &[0; 8]),
                (attribute::CLONE_LEN, &len_bytes.to_le_bytes()),
                (attribute::CLONE_UUID, &uuid),
                (attribute::CLONE_GENERATION, &SENT_GENERATION.to_le_bytes()),
                (attribute::CLONE_PATH, source.as_bytes()),
                (attribute::CLONE_OFFSET, &[0; 8]),
            ],
        )
    }

    /// Adds times in seconds.
    fn times(self, path: &str, accessed: u64, modified: u64) -> Self {
        let time = |seconds: u64| [&seconds.to_le_bytes()[..], &[0; 4][..]].concat();
        self.with(
            kind::UTIMES,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::ACCESSED, &time(accessed)),
                (attribute::MODIFIED, &time(modified)),
                (attribute::CHANGED, &time(modified)),
            ],
        )
    }

    /// Writes it to `stream`, with its end.
    fn save(self, workshop: &Workshop) {
        let whole = self.with(kind::END, &[]);
        fs::write(workshop.path("stream"), whole.0).unwrap();
    }
}

/// The checksum of a command.
fn crc32c(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0, |crc, byte| {
        (0..8).fold(crc ^ u32::from(*byte), |crc, _| {
            let shifted = crc >> 1;
            if crc & 1 == 0 {
                shifted
            } else {
                shifted ^ 0x82f6_3b78
            }
        })
    })
}

#[test]
fn clone_leaves_the_time_of_access_of_its_source() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir in", "rw");
    Stream::new()
        .at(kind::MKFILE, "one")
        .write("one", &[7; 8192])
        .times("one", MODIFIED, MODIFIED + 10)
        .at(kind::MKFILE, "two")
        .clone_of("two", "one", 8192)
        .clone_of("two", "one", 4096)
        .save(&workshop);
    workshop.read(&["receive", "mnt/in", "-f", "stream"]);
    // The kernel has nothing of it in memory.
    workshop.read(&["umount", "mnt"]);
    workshop.read(&["mount", "pool.img", "mnt"]);
    let one = fs::metadata(workshop.path("mnt/in/sub/one")).unwrap();
    let expected = [MODIFIED, MODIFIED + 10].map(|time| i64::try_from(time).unwrap());
    assert_eq!([one.atime(), one.mtime()], expected);
    let two = fs::read(workshop.path("mnt/in/sub/two")).unwrap();
    assert!(two == [7; 8192]);
    workshop.unmount_and_check(mounted);
}

#[test]
fn whole_stream_is_received_into_a_bind_mount() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir in", "rw");
    Stream::new()
        .at(kind::MKFILE, "one")
        .write("one", b"text")
        .save(&workshop);
    fs::create_dir(workshop.path("bound")).unwrap();
    // What is mounted there is no subvolume.
    let script = "mount --bind mnt/in bound\nexec \"$1\" receive bound -f stream";
    let mut unshare = Command::new("unshare");
    unshare.args(["--mount", "--propagation=private", "sh", "-euc", script]);
    unshare.args(["sh", env!("CARGO_BIN_EXE_platter")]);
    run_tool(unshare.current_dir(workshop.path("")), "");
    let one = fs::read(workshop.path("mnt/in/sub/one")).unwrap();
    assert_eq!(one, b"text");
    workshop.unmount_and_check(mounted);
}

#[test]
fn flags_that_contradict_each_other_leave_the_others() {
    let workshop = Workshop::new();
    workshop.btrfs("mkdir image mount");
    // NODATACOW, NOATIME and COMPRESS.
    let flags = 1_u64 << 1 | 1 << 9 | 1 << 11;
    Stream::new()
        .at(kind::MKFILE, "one")
        .with(
            kind::FILEATTR,
            &[
                (attribute::PATH, b"one"),
                (attribute::FILEATTR, &flags.to_le_bytes()),
            ],
        )
        .save(&workshop);
    workshop.read(&["receive", "pool.img:/image", "-f", "stream"]);
    let mounted = Mounted::with(&workshop, "rw", "pool.img");
    workshop.read(&["receive", "mnt/mount", "-f", "stream"]);
    for dir in ["image", "mount"] {
        let one = fs::File::open(workshop.path("mnt").join(dir).join("sub/one")).unwrap();
        let flags = rustix::fs::ioctl_getflags(&one).unwrap().bits();
        // NOCOW, NOCOMP, NOATIME and COMPR.
        assert_eq!(flags & 0x80_0484, 0x80, "{dir}: {flags:#x}");
    }
    workshop.unmount_and_check(mounted);
}

#[test]
fn clone_from_a_nested_subvolume_is_refused() {
    let workshop = Workshop::new();
    let script = "mkdir in\nbtrfs subvolume create origin\nbtrfs subvolume create origin/nested\n\
                  echo one > origin/one\necho two > origin/nested/two";
    let mounted = workshop.mount_btrfs(script, "rw");
    let listed = workshop.document("subvolume_list", &["--json", "subvolume", "list", "mnt"]);
    assert_eq!(listed[1]["path"], "origin");
    let digits = listed[1]["uuid"].as_str().unwrap().replace('-', "");
    let uuid = u128::from_str_radix(&digits, 16).unwrap().to_be_bytes();
    let stream = |source| {
        let stream = Stream::new().at(kind::MKFILE, "copy");
        stream.clone_from("copy", (uuid, source), 4).save(&workshop);
    };
    stream("nested/two");
    let refused = workshop.refused(&["receive", "mnt/in", "-f", "stream"]);
    assert!(refused.starts_with("platter: mnt/in/sub: "), "{refused}");
    stream("one");
    workshop.read(&["receive", "mnt/in", "-f", "stream"]);
    let copy = fs::read_to_string(workshop.path("mnt/in/sub/copy")).unwrap();
    assert_eq!(copy, "one\n");
    workshop.unmount_and_check(mounted);
}

/// Streams that lead elsewhere, to what is no regular file, or to names that are in use. `outside` is a directory with a
/// file.
fn hostile_streams(outside: &str) -> Vec<(&'static str, Stream)> {
    use kind::{LINK, MKDIR, MKFIFO, MKFILE, MKNOD, RENAME, SET_XATTR, TRUNCATE, UNLINK};
    let new = Stream::new;
    let to_dir = || new().at(MKFILE, "own").symlink("out", outside);
    let to_file = || {
        let file = format!("{outside}/file");
        new().at(MKFILE, "own").symlink("out", &file)
    };
    let null = || {
        let numbers = [(attribute::MODE, 0o20_666), (attribute::DEVICE, 0x103)];
        new().at(MKFILE, "own").set(MKNOD, "null", &numbers)
    };
    let fifo = || {
        let mode = [(attribute::MODE, 0o600)];
        new().at(MKFILE, "own").set(MKFIFO, "fifo", &mode)
    };
    let xattr = |stream: Stream, path: &str| {
        stream.with(
            SET_XATTR,
            &[
                (attribute::PATH, path.as_bytes()),
                (attribute::XATTR_NAME, b"user.note"),
                (attribute::XATTR_DATA, b"text"),
            ],
        )
    };
    let to = attribute::PATH_TO;
    let link = attribute::PATH_LINK;
    let size = [(attribute::SIZE, 0)];
    vec![
        ("file below a link", to_dir().at(MKFILE, "out/new")),
        ("directory below a link", to_dir().at(MKDIR, "out/new")),
        ("link below a link", to_dir().symlink("out/new", "file")),
        ("write below a link", to_dir().write("out/file", b"no")),
        ("removal below a link", to_dir().at(UNLINK, "out/file")),
        ("attribute below a link", xattr(to_dir(), "out/file")),
        (
            "clone below a link",
            to_dir().clone_of("own", "out/file", 4),
        ),
        (
            "rename out",
            to_dir().between(RENAME, "own", (to, "out/new")),
        ),
        (
            "rename in",
            to_dir().between(RENAME, "out/file", (to, "new")),
        ),
        ("name out", to_dir().between(LINK, "out/new", (link, "own"))),
        ("name in", to_dir().between(LINK, "new", (link, "out/file"))),
        ("write through a link", to_file().write("out", b"no")),
        (
            "truncation of a link",
            to_file().set(TRUNCATE, "out", &size),
        ),
        ("clone of a link", to_file().clone_of("own", "out", 4)),
        ("clone to a link", to_file().clone_of("out", "own", 0)),
        ("attribute of a link", xattr(to_file(), "out")),
        ("write to a device", null().write("null", b"no")),
        ("clone of a device", null().clone_of("own", "null", 4096)),
        ("clone to a device", null().clone_of("null", "own", 0)),
        (
            "truncation of a device",
            null().set(TRUNCATE, "null", &size),
        ),
        ("write to a FIFO", fifo().write("fifo", b"no")),
        ("clone of a FIFO", fifo().clone_of("own", "fifo", 4096)),
        ("clone to a FIFO", fifo().clone_of("fifo", "own", 0)),
        ("file with a name in use", fifo().at(MKFILE, "own")),
        ("directory with a name in use", fifo().at(MKDIR, "own")),
        ("link with a name in use", fifo().symlink("fifo", "own")),
        ("name in use", fifo().between(LINK, "fifo", (link, "own"))),
        ("file at the root", new().at(MKFILE, "")),
        ("removal of the root", new().at(UNLINK, "")),
        ("path up", new().at(MKFILE, "../new")),
        ("path from the root", new().at(MKFILE, "/new")),
    ]
}

#[test]
fn hostile_streams_leave_a_mount_and_others_as_they_were() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir in out\necho text > out/file", "rw");
    fs::create_dir(workshop.path("host")).unwrap();
    fs::write(workshop.path("host/file"), "text\n").unwrap();
    let host = workshop.path("host").canonicalize().unwrap();
    // Another filesystem, and the same one.
    for outside in [host.to_str().unwrap(), "../../out"] {
        for (what, stream) in hostile_streams(outside) {
            stream.save(&workshop);
            let ran = workshop.run(&["receive", "mnt/in", "-f", "stream"]);
            assert_eq!(ran.status, 1, "{what}: {}", ran.err);
            let lines = ran.err.lines().count();
            assert_eq!(lines, 1, "{what}: {}", ran.err);
            let left = fs::read_dir(workshop.path("mnt/in")).unwrap().count();
            assert_eq!(left, 0, "{what}");
        }
    }
    for dir in ["host", "mnt/out"] {
        let dir = workshop.path(dir);
        assert_eq!(fs::read_dir(&dir).unwrap().count(), 1);
        assert_eq!(fs::read_to_string(dir.join("file")).unwrap(), "text\n");
    }
    workshop.unmount_and_check(mounted);
}

#[test]
fn owner_and_times_of_a_link_are_its_own() {
    let workshop = Workshop::new();
    let mounted = workshop.mount_btrfs("mkdir in", "rw");
    let file = workshop.path("file");
    fs::write(&file, "text\n").unwrap();
    let before = fs::metadata(&file).unwrap();
    let owner = [(attribute::UID, 12), (attribute::GID, 34)];
    let stream = Stream::new().symlink("link", file.to_str().unwrap());
    let stream = stream.set(kind::CHOWN, "link", &owner);
    stream.times("link", 1, MODIFIED).save(&workshop);
    workshop.read(&["receive", "mnt/in", "-f", "stream"]);
    let link = fs::symlink_metadata(workshop.path("mnt/in/sub/link")).unwrap();
    let modified = i64::try_from(MODIFIED).unwrap();
    assert_eq!((link.uid(), link.gid(), link.mtime()), (12, 34, modified));
    let after = fs::metadata(&file).unwrap();
    let shown = |of: &fs::Metadata| (of.uid(), of.gid(), of.mtime(), of.atime());
    assert_eq!(shown(&after), shown(&before));
    workshop.unmount_and_check(mounted);
}

#[test]
fn stream_without_its_end_is_not_received() {
    let workshop = Workshop::new();
    workshop.btrfs("mkdir in");
    let stream = Stream::new().at(kind::MKFILE, "one").write("one", b"text");
    fs::write(workshop.path("stream"), stream.0).unwrap();
    let refused = |dir: &str| {
        let refused = workshop.refused(&["receive", dir, "-f", "stream"]);
        let rule = "stream ends before its end command";
        assert!(refused.contains(rule), "{refused}");
    };
    refused("pool.img:/in");
    let mounted = Mounted::with(&workshop, "rw", "pool.img");
    refused("mnt/in");
    let left = fs::read_dir(workshop.path("mnt/in")).unwrap().count();
    assert_eq!(left, 0);
    workshop.unmount_and_check(mounted);
}
