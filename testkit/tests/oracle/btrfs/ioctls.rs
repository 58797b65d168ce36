//! The ioctls of subvolumes, by platter and by the kernel's own btrfs.
#![expect(clippy::host_endian_bytes, reason = "ioctls carry native integers")]

use std::fs;
use std::ops::Range;
use std::os::unix::fs::PermissionsExt;
use std::path::Path;

use anyhow::{Result, ensure};
use platter::{MountOptions, WriteOptions};
use testkit::fs_type::FsType;
use testkit::ioctl::{self, ROOT_OF_NAMESPACE};
use testkit::loopdev::{Access, Mount};
use testkit::oracle::btrfs;
use testkit::{served, tool};

const SUBVOL_CREATE: u32 = 0x5000_940e;
const SUBVOL_CREATE_V2: u32 = 0x5000_9418;
const SNAP_CREATE: u32 = 0x5000_9401;
const SNAP_CREATE_V2: u32 = 0x5000_9417;
const SNAP_DESTROY: u32 = 0x5000_940f;
const SNAP_DESTROY_V2: u32 = 0x5000_943f;
const GETFLAGS: u32 = 0x8008_9419;
const SETFLAGS: u32 = 0x4008_941a;
const DEFAULT_SUBVOL: u32 = 0x4008_9413;
const INO_LOOKUP: u32 = 0xd000_9412;
const GET_SUBVOL_INFO: u32 = 0x81f8_943c;
const SET_RECEIVED: u32 = 0xc0c8_9425;
const FS_INFO: u32 = 0x8400_941f;
const SYNC: u32 = 0x9408;
const DEFRAG: u32 = 0x5000_9402;
const DEFRAG_RANGE: u32 = 0x4030_9410;

const ROOT: u32 = 0;
const USER: u32 = 65_534;
/// The descriptor of the file that the ioctl is called for.
const SELF: i64 = ioctl::DESCRIPTOR;

/// `struct btrfs_ioctl_vol_args`.
fn named(fd: i64, name: &str) -> Vec<u8> {
    let mut args = fd.to_ne_bytes().to_vec();
    args.extend(name.as_bytes());
    args.resize(4096, 0);
    args
}

/// `struct btrfs_ioctl_vol_args_v2`.
fn flagged(fd: i64, flags: u64, name: &[u8]) -> Vec<u8> {
    let mut args = fd.to_ne_bytes().to_vec();
    args.extend(0_u64.to_ne_bytes());
    args.extend(flags.to_ne_bytes());
    args.extend([0; 32]);
    args.extend(name);
    args.resize(4096, 0);
    args
}

fn word(word: u64) -> Vec<u8> {
    word.to_ne_bytes().to_vec()
}

/// `struct btrfs_ioctl_ino_lookup_args` for the root directory of a subvolume, 0 for that of the file.
fn lookup(subvolume: u64) -> Vec<u8> {
    let mut args = [word(subvolume), word(256)].concat();
    args.resize(4096, 0);
    args
}

/// `struct btrfs_ioctl_received_subvol_args` of a UUID of these bytes and transaction 7.
fn received(uuid: u8) -> Vec<u8> {
    let mut args = vec![uuid; 16];
    args.extend(7_u64.to_ne_bytes());
    args.resize(200, 0);
    args
}

/// `struct btrfs_ioctl_defrag_range_args` for a whole file.
fn defrag(flags: u64, compression: u32) -> Vec<u8> {
    let mut args = [word(0), word(u64::MAX), word(flags)].concat();
    args.extend(0_u32.to_ne_bytes());
    args.extend(compression.to_ne_bytes());
    args.resize(48, 0);
    args
}

/// The user, the file, the ioctl, its buffer, and which bytes of that are shown afterwards.
type Call = (u32, &'static str, u32, Vec<u8>, Range<usize>);

/// What the same calls come to: an errno, or some bytes of the buffer.
fn play(root: &Path) -> Result<Vec<String>> {
    fs::create_dir(root.join("dir"))?;
    fs::create_dir(root.join("open"))?;
    fs::set_permissions(root.join("open"), PermissionsExt::from_mode(0o777))?;
    let calls: &[Call] = &[
        (ROOT, "", SUBVOL_CREATE, named(0, "a"), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, "a"), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, "."), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, ".."), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, "x/y"), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, &"x".repeat(5000)), 0..0),
        (ROOT, "", SUBVOL_CREATE, named(0, &"x".repeat(256)), 0..0),
        (ROOT, "a", SUBVOL_CREATE_V2, flagged(0, 0, b"inner"), 0..0),
        (ROOT, "", SUBVOL_CREATE_V2, flagged(0, 1 << 5, b"b"), 0..0),
        (USER, "", SUBVOL_CREATE, named(0, "mine"), 0..0),
        (USER, "open", SUBVOL_CREATE, named(0, "mine"), 0..0),
        (USER, "open/mine", SNAP_CREATE, named(SELF, "own"), 0..0),
        (USER, "open", SNAP_CREATE, named(SELF, "other"), 0..0),
        (
            ROOT_OF_NAMESPACE,
            "open/mine",
            SNAP_CREATE,
            named(SELF, "in"),
            0..0,
        ),
        (ROOT_OF_NAMESPACE, "open/mine", SETFLAGS, word(2), 0..0),
        (ROOT, "open/mine", SNAP_CREATE, named(SELF, "in"), 0..0),
        (ROOT, "open/mine", SNAP_DESTROY, named(0, "in"), 0..0),
        (ROOT, "", SNAP_CREATE, named(SELF, "snap"), 0..0),
        (ROOT, "", SNAP_CREATE_V2, flagged(SELF, 2, b"ro"), 0..0),
        (ROOT, "", SNAP_CREATE_V2, flagged(SELF, 2, b"ro"), 0..0),
        (ROOT, "", SNAP_CREATE, named(99, "none"), 0..0),
        (ROOT, "ro", SET_RECEIVED, received(9), 0..0),
        (ROOT, "dir", SET_RECEIVED, received(9), 0..0),
        (USER, "a", SET_RECEIVED, received(9), 0..0),
        (USER, "open/mine", SET_RECEIVED, received(8), 0..24),
        (ROOT, "a", SET_RECEIVED, received(9), 0..24),
        (USER, "a", GET_SUBVOL_INFO, vec![0; 504], 328..344),
        (USER, "a", GET_SUBVOL_INFO, vec![0; 504], 360..368),
        (ROOT, "", SNAP_CREATE, named(1, "output"), 0..0),
        (ROOT, "dir", SNAP_CREATE, named(SELF, "plain"), 0..0),
        (USER, "", GETFLAGS, word(0), 0..8),
        (USER, "ro", GETFLAGS, word(0), 0..8),
        (ROOT, "dir", GETFLAGS, word(0), 0..8),
        // Flags.
        (USER, "", GET_SUBVOL_INFO, vec![0; 504], 288..296),
        (USER, "ro", GET_SUBVOL_INFO, vec![0; 504], 288..296),
        (USER, "ro", SETFLAGS, word(0), 0..0),
        (ROOT, "ro", SETFLAGS, word(1), 0..0),
        (ROOT, "ro", SETFLAGS, word(4), 0..0),
        (ROOT, "dir", SETFLAGS, word(0), 0..0),
        (ROOT, "ro", SETFLAGS, word(0), 0..0),
        (ROOT, "ro", GETFLAGS, word(0), 0..8),
        (USER, "a", INO_LOOKUP, lookup(0), 0..17),
        (USER, "a/inner", INO_LOOKUP, lookup(0), 0..17),
        (USER, "a", INO_LOOKUP, lookup(999), 0..17),
        // Number, name, parent and directory.
        (USER, "a/inner", GET_SUBVOL_INFO, vec![0; 504], 0..280),
        (USER, "dir", GET_SUBVOL_INFO, vec![0; 504], 0..280),
        (ROOT, "a/inner", FS_INFO, vec![0; 1024], 0..16),
        (USER, "", DEFAULT_SUBVOL, word(256), 0..0),
        (ROOT_OF_NAMESPACE, "", DEFAULT_SUBVOL, word(256), 0..0),
        (ROOT, "", DEFAULT_SUBVOL, word(999), 0..0),
        (ROOT, "", DEFAULT_SUBVOL, word(256), 0..0),
        (ROOT, "", SNAP_DESTROY, named(0, "none"), 0..0),
        (ROOT, "", SNAP_DESTROY, named(0, "dir"), 0..0),
        (ROOT, "", SNAP_DESTROY, named(0, "a"), 0..0),
        (USER, "open", SNAP_DESTROY, named(0, "mine"), 0..0),
        (ROOT_OF_NAMESPACE, "", SNAP_DESTROY, named(0, "snap"), 0..0),
        (ROOT, "a", SNAP_DESTROY, named(0, "inner"), 0..0),
        (ROOT, "", SNAP_DESTROY, named(0, "a"), 0..0),
        (ROOT, "", SNAP_DESTROY_V2, flagged(0, 0, b"snap"), 0..0),
        (ROOT, "", DEFAULT_SUBVOL, word(0), 0..0),
        (
            ROOT,
            "",
            SNAP_DESTROY_V2,
            flagged(0, 1 << 4, &word(256)),
            0..0,
        ),
        (
            ROOT,
            "",
            SNAP_DESTROY_V2,
            flagged(0, 1 << 4, &word(256)),
            0..0,
        ),
        (USER, "", SYNC, Vec::new(), 0..0),
    ];
    let mut answers = answers(root, calls)?;
    let mut names: Vec<_> = fs::read_dir(root)?
        .map(|entry| Ok(entry?.file_name().into_string().unwrap()))
        .collect::<Result<_>>()?;
    names.sort();
    answers.push(names.join(" "));
    Ok(answers)
}

/// What calls that have files written anew come to.
fn play_defragmentation(root: &Path) -> Result<Vec<String>> {
    for (name, mode) in [("file", 0o644), ("open", 0o666)] {
        fs::write(root.join(name), vec![7; 300_000])?;
        fs::set_permissions(root.join(name), PermissionsExt::from_mode(mode))?;
    }
    let calls: &[Call] = &[
        (ROOT, "file", DEFRAG, vec![0; 4096], 0..0),
        (USER, "file", DEFRAG, vec![0; 4096], 0..0),
        (USER, "open", DEFRAG, vec![0; 4096], 0..0),
        (ROOT, "file", DEFRAG_RANGE, defrag(0, 0), 0..0),
        (USER, "file", DEFRAG_RANGE, defrag(0, 0), 0..0),
        (USER, "open", DEFRAG_RANGE, defrag(2, 0), 0..0),
        (ROOT_OF_NAMESPACE, "file", DEFRAG_RANGE, defrag(0, 0), 0..0),
        (ROOT, "file", DEFRAG_RANGE, defrag(1, 0), 0..0),
        (ROOT, "file", DEFRAG_RANGE, defrag(1, 3), 0..0),
        (ROOT, "file", DEFRAG_RANGE, defrag(1, 4), 0..0),
        (ROOT, "file", DEFRAG_RANGE, defrag(1 << 40, 0), 0..0),
        (ROOT, "", SNAP_CREATE_V2, flagged(SELF, 2, b"ro"), 0..0),
        (ROOT, "ro/file", DEFRAG, vec![0; 4096], 0..0),
        (ROOT, "ro/file", DEFRAG_RANGE, defrag(0, 0), 0..0),
    ];
    answers(root, calls)
}

fn answers(root: &Path, calls: &[Call]) -> Result<Vec<String>> {
    let mut answers = Vec::new();
    for (number, (uid, path, ioctl, buffer, shown)) in calls.iter().enumerate() {
        let answer = ioctl::call(&root.join(path), *uid, *ioctl, buffer)?;
        let answer = answer.map(|buffer| buffer[shown.clone()].escape_ascii().to_string());
        answers.push(format!("{number}: {path} {ioctl:x} by {uid}: {answer:?}"));
    }
    Ok(answers)
}

#[test]
fn subvolume_ioctls_answer_as_those_of_the_kernel() -> Result<()> {
    assert_same_answers(play)
}

#[test]
fn defragmentation_ioctls_answer_as_those_of_the_kernel() -> Result<()> {
    assert_same_answers(play_defragmentation)
}

/// Compares what calls come to on a filesystem of the kernel and of platter.
fn assert_same_answers(play: fn(&Path) -> Result<Vec<String>>) -> Result<()> {
    let dir = tempfile::tempdir()?;
    let image = dir.path().join("image");
    btrfs::make(&[&image], 160 << 10, &[])?;
    let mount = Mount::images(FsType::Btrfs, &[&image], "", Access::ReadWrite)?;
    let expected = play(mount.root())?;
    mount.unmount_all(&[&image])?;
    let left = left_by(&image)?;
    btrfs::make(&[&image], 160 << 10, &[])?;
    let mountpoint = tempfile::tempdir()?;
    let open = MountOptions::new().writing(WriteOptions::default());
    let mut session = served::mount(&image, &open, mountpoint.path(), "allow_other")?;
    let found = play(mountpoint.path())?;
    served::unmount(&mut session)?;
    drop(session);
    assert_eq!(found, expected);
    assert!(btrfs::check(&[&image])?.is_clean());
    assert_eq!(left_by(&image)?, left);
    Ok(())
}

/// The subvolumes that the kernel finds, each with the UUID of what it was received from, and the sums of all files.
fn left_by(image: &Path) -> Result<Vec<String>> {
    let mount = Mount::images(FsType::Btrfs, &[image], "", Access::ReadWrite)?;
    let lines = |program: &str, arguments: &[&str]| -> Result<Vec<String>> {
        let mut command = tool::command(program);
        let finished = tool::succeed(command.args(arguments).current_dir(mount.root()))?;
        let text = String::from_utf8(finished.stdout)?;
        let mut lines: Vec<String> = text.lines().map(str::to_owned).collect();
        lines.sort_unstable();
        Ok(lines)
    };
    let subvolumes = lines("btrfs", &["subvolume", "list", "-R", "."])?;
    let received = subvolumes
        .iter()
        .filter_map(|line| line.split_once(" received_uuid "));
    let mut left: Vec<String> = received.map(|(_, rest)| rest.to_owned()).collect();
    left.sort_unstable();
    let sums = ["-type", "f", "-exec", "sha256sum", "{}", "+"];
    left.extend(lines("find", &[&["."][..], &sums].concat())?);
    mount.unmount_all(&[image])?;
    ensure!(!left.is_empty(), "neither subvolumes nor files are left");
    Ok(left)
}
