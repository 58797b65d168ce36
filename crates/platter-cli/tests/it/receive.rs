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
    pub(super) const WRITE: u16 = 15;
    pub(super) const CLONE: u16 = 16;
    pub(super) const UTIMES: u16 = 20;
    pub(super) const END: u16 = 21;
    pub(super) const FILEATTR: u16 = 24;
}

/// Numbers of attributes.
mod attribute {
    pub(super) const UUID: u16 = 1;
    pub(super) const GENERATION: u16 = 2;
    pub(super) const CHANGED: u16 = 9;
    pub(super) const MODIFIED: u16 = 10;
    pub(super) const ACCESSED: u16 = 11;
    pub(super) const PATH: u16 = 15;
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
