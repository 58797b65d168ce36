//! The commands of a stream as system calls.

use std::fs::File;
use std::io;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::thread;
use std::time::Duration;

use platter::FileKind;
use platter::stream::{StreamCommand as Command, decode_data, inode_flags};
use platter::vfs::{Error, Timestamp, Unsupported};
use rustix::fs::{
    AtFlags, CWD, FallocateFlags, FileType, Gid, IFlags, Mode, OFlags, Timespec, Timestamps,
    UTIME_OMIT, Uid, XattrFlags,
};
use rustix::io::Errno;

use super::tree::SubvolumeTree;

/// Permissions of a file until they are set.
const FILE_PERMISSIONS: u32 = 0o600;
/// Permissions of a directory until they are set.
const DIR_PERMISSIONS: u32 = 0o700;
/// `FS_VERITY_FL`.
const VERITY: u32 = 0x10_0000;
/// `FS_COMPR_FL`, `FS_NOCOMP_FL` and `FS_NOCOW_FL`: how contents are stored, which a file may refuse.
const STORAGE: u32 = 0x80_0404;
/// The modes of `fallocate(2)` that a stream may have: space taken or freed, zeros.
const FALLOCATE_MODES: [u32; 5] = [0, 1, 3, 0x10, 0x11];

/// Attempts to set flags, and the pause between two.
const FLAGS_ATTEMPTS: u32 = 20;
const FLAGS_PAUSE: Duration = Duration::from_millis(100);

/// Why a command is not carried out.
#[derive(Debug)]
pub(super) enum Failure {
    /// The stream is not as it should be, or has what is not received.
    Stream(Error),
    /// A system call failed.
    Call(io::Error),
}

impl From<Error> for Failure {
    fn from(error: Error) -> Self {
        Self::Stream(error)
    }
}

impl From<io::Error> for Failure {
    fn from(error: io::Error) -> Self {
        Self::Call(error)
    }
}

impl From<Errno> for Failure {
    fn from(errno: Errno) -> Self {
        Self::Call(errno.into())
    }
}

fn unsupported(feature: impl Into<String>) -> Failure {
    let unsupported = Unsupported {
        filesystem: "btrfs",
        feature: feature.into(),
        reason: None,
    };
    Failure::Stream(unsupported.into())
}

/// Applies a command to the subvolume that is received, but for one that refers to another subvolume.
#[expect(clippy::too_many_lines, reason = "one arm for each command")]
pub(super) fn apply(tree: &mut SubvolumeTree, command: &Command<'_>) -> Result<(), Failure> {
    match *command {
        Command::MakeFile { path, .. } => {
            let (dir, name) = tree.parent(path)?;
            let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::CLOEXEC;
            rustix::fs::openat(&dir, name, flags, Mode::from_raw_mode(FILE_PERMISSIONS))?;
        }
        Command::MakeDir { path, .. } => {
            let (dir, name) = tree.parent(path)?;
            rustix::fs::mkdirat(&dir, name, Mode::from_raw_mode(DIR_PERMISSIONS))?;
        }
        Command::MakeNode {
            path,
            kind,
            permissions,
            device,
            ..
        } => {
            let kind = match kind {
                FileKind::Fifo => FileType::Fifo,
                FileKind::Socket => FileType::Socket,
                FileKind::CharDevice => FileType::CharacterDevice,
                FileKind::BlockDevice => FileType::BlockDevice,
                FileKind::Regular | FileKind::Directory | FileKind::Symlink => {
                    return Err(Errno::INVAL.into());
                }
            };
            let (dir, name) = tree.parent(path)?;
            let device = rustix::fs::makedev(device.major, device.minor);
            let mode = Mode::from_raw_mode(permissions);
            rustix::fs::mknodat(&dir, name, kind, mode, device)?;
        }
        Command::Symlink { path, target, .. } => {
            let (dir, name) = tree.parent(path)?;
            rustix::fs::symlinkat(target, &dir, name)?;
        }
        Command::Rename { path, to } => {
            let (dir, name) = tree.parent(path)?;
            let (new_dir, new_name) = tree.parent(to)?;
            tree.forget();
            rustix::fs::renameat(&dir, name, &new_dir, new_name)?;
        }
        Command::Link { path, existing } => {
            let (dir, name) = tree.parent(existing)?;
            let (new_dir, new_name) = tree.parent(path)?;
            rustix::fs::linkat(&dir, name, &new_dir, new_name, AtFlags::empty())?;
        }
        Command::Unlink { path } => {
            let (dir, name) = tree.parent(path)?;
            tree.forget_writer();
            rustix::fs::unlinkat(&dir, name, AtFlags::empty())?;
        }
        Command::RemoveDir { path } => {
            let (dir, name) = tree.parent(path)?;
            tree.forget();
            rustix::fs::unlinkat(&dir, name, AtFlags::REMOVEDIR)?;
        }
        Command::SetXattr { path, name, value } => {
            let found = tree.find(path)?;
            rustix::fs::setxattr(found.path(), name, value, XattrFlags::empty())?;
        }
        Command::RemoveXattr { path, name } => {
            let found = tree.find(path)?;
            rustix::fs::removexattr(found.path(), name)?;
        }
        Command::Truncate { path, size_bytes } => {
            rustix::fs::ftruncate(tree.writer(path)?, size_bytes)?;
        }
        Command::Chmod { path, permissions } => {
            let found = tree.find(path)?;
            rustix::fs::chmod(found.path(), Mode::from_raw_mode(permissions))?;
        }
        Command::Chown { path, uid, gid } => {
            if uid == u32::MAX || gid == u32::MAX {
                // chown(2) would take it for no owner.
                return Err(Errno::INVAL.into());
            }
            let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
            let found = tree.find(path)?;
            rustix::fs::chown(found.path(), Some(uid), Some(gid))?;
        }
        Command::SetTimes { path, times } => {
            let times = Timestamps {
                last_access: timespec(times.accessed),
                last_modification: timespec(times.modified),
            };
            let found = tree.find(path)?;
            rustix::fs::utimensat(CWD, found.path(), &times, AtFlags::empty())?;
        }
        Command::Fallocate {
            path,
            mode,
            offset,
            len_bytes,
        } => {
            let file = tree.writer(path)?;
            if !FALLOCATE_MODES.contains(&mode) {
                let feature = format!("fallocate mode {mode:#x} of a send stream");
                return Err(unsupported(feature));
            }
            let mode = FallocateFlags::from_bits_retain(mode);
            rustix::fs::fallocate(file, mode, offset, len_bytes)?;
        }
        Command::SetFlags { path, flags } => set_flags(tree, path, flags)?,
        Command::Write { path, offset, data } => tree.writer(path)?.write_all_at(data, offset)?,
        Command::EncodedWrite {
            path,
            offset,
            encoded,
        } => {
            let data = decode_data(&encoded)?;
            tree.writer(path)?.write_all_at(&data, offset)?;
        }
        Command::UpdateExtent { .. } => return Err(unsupported("a send stream without data")),
        Command::Unknown { kind } => {
            return Err(unsupported(format!("command {kind} of a send stream")));
        }
        Command::Subvolume { .. }
        | Command::Snapshot { .. }
        | Command::Clone { .. }
        | Command::End => {}
    }
    Ok(())
}

fn timespec(time: Timestamp) -> Timespec {
    Timespec {
        tv_sec: time.seconds,
        tv_nsec: time.nanoseconds.into(),
    }
}

/// Sets the flags that a file can have. What cannot be set, such as how existing contents are stored, is left.
fn set_flags(tree: &mut SubvolumeTree, path: &[u8], flags: u64) -> Result<(), Failure> {
    // A flag may forbid what is open.
    tree.forget_writer();
    let found = tree.find(path)?;
    if !matches!(found.kind()?, FileType::RegularFile | FileType::Directory) {
        return Ok(());
    }
    let file = found.open(OFlags::RDONLY)?;
    let before = rustix::fs::ioctl_getflags(&file)?.bits();
    let all = inode_flags(flags) | before & VERITY;
    let others = all & !STORAGE | before & STORAGE;
    for flags in [all, others] {
        match set_flags_patiently(&file, IFlags::from_bits_retain(flags)) {
            Err(Errno::OPNOTSUPP | Errno::INVAL) => {}
            set => return set.map_err(Failure::from),
        }
    }
    Ok(())
}

/// Sets flags, again while the server answers `EAGAIN` because all its threads are busy.
fn set_flags_patiently(file: &File, flags: IFlags) -> Result<(), Errno> {
    for _ in 1..FLAGS_ATTEMPTS {
        match rustix::fs::ioctl_setflags(file, flags) {
            Err(Errno::AGAIN) => thread::sleep(FLAGS_PAUSE),
            set => return set,
        }
    }
    rustix::fs::ioctl_setflags(file, flags)
}

/// Bytes that are copied at once where they cannot be shared.
const COPIED_BYTES: usize = 1 << 20;

/// As [`copy`], of a file whose time of access may have come before, and stays.
pub(super) fn copy_unaccessed(
    source: &File,
    range: (u64, u64),
    target: &File,
    to: u64,
) -> io::Result<()> {
    let before = source.metadata()?;
    copy(source, range, target, to)?;
    let times = Timestamps {
        last_access: Timespec {
            tv_sec: before.atime(),
            tv_nsec: before.atime_nsec(),
        },
        last_modification: Timespec {
            tv_sec: 0,
            tv_nsec: UTIME_OMIT,
        },
    };
    match rustix::fs::futimens(source, &times) {
        // Flags that came before forbid it.
        Ok(()) | Err(Errno::PERM) => Ok(()),
        Err(errno) => Err(errno.into()),
    }
}

/// Copies a range of a file to another, or the same, which then share what the filesystem lets them.
pub(super) fn copy(
    source: &File,
    (mut from, end): (u64, u64),
    target: &File,
    mut to: u64,
) -> io::Result<()> {
    let mut buffer = Vec::new();
    while from < end {
        let left = usize::try_from(end - from).unwrap_or(usize::MAX);
        let places = (Some(&mut from), Some(&mut to));
        match rustix::fs::copy_file_range(source, places.0, target, places.1, left) {
            // The source ends before.
            Ok(0) => return Err(Errno::INVAL.into()),
            Ok(_) => continue,
            // Ranges of one file that overlap, among others.
            Err(Errno::INVAL | Errno::OPNOTSUPP | Errno::NOSYS | Errno::XDEV) => {}
            Err(errno) => return Err(errno.into()),
        }
        buffer.resize(left.min(COPIED_BYTES), 0);
        let count = source.read_at(&mut buffer, from)?;
        if count == 0 {
            return Err(Errno::INVAL.into());
        }
        target.write_all_at(&buffer[..count], to)?;
        from += count as u64;
        to += count as u64;
    }
    Ok(())
}
