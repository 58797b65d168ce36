//! Finding the process or device that has an image in use.

use std::ffi::OsStr;
use std::fmt;
use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::{Stat, major, minor};

use crate::mounts::{MountTable, MountedDevice};

/// Maximum length of a process name or a directory in a message, in characters.
const NAME_CHARS_MAX: usize = 256;

/// The current user of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum ImageUser {
    /// A process with an exclusive lock; `None` if it cannot be determined.
    Writer(Option<Process>),
    /// Processes with a shared lock; one of them, if it can be determined.
    Reader(Option<Process>),
    /// The block device is mounted, or claimed by a program or a stacked device (`O_EXCL`).
    Claim,
    /// The file is attached to the loop device of this name, which takes no lock.
    Loop(Arc<str>),
    /// Another process uses the backing file of the loop device.
    Backing {
        /// The backing file.
        file: Arc<str>,
        /// Its user.
        user: Box<ImageUser>,
    },
}

/// A process that has an image open.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub id: u32,
    /// Program name, without control characters.
    pub name: Arc<str>,
    /// The image's mount point, if it is mounted exactly once.
    pub mountpoint: Option<Arc<str>>,
}

impl fmt::Display for ImageUser {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, process) = match self {
            Self::Writer(process) => ("another writer", process),
            Self::Reader(process) => ("another reader", process),
            Self::Claim => return out.write_str("a mount, or by another program that claimed it"),
            Self::Loop(name) => return write!(out, "loop device {name}"),
            Self::Backing { file, user } => {
                return write!(out, "{user}, of its backing file {file}");
            }
        };
        out.write_str(kind)?;
        match process {
            Some(process) => write!(out, ": {process}"),
            None => Ok(()),
        }
    }
}

impl fmt::Display for Process {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "process {} ({})", self.id, self.name)?;
        match &self.mountpoint {
            Some(mountpoint) => write!(out, ", mounted on {mountpoint}"),
            None => Ok(()),
        }
    }
}

/// The mounts that lead to an open file. By them, paths that lie on other filesystems are recognised without
/// touching those, which may not respond.
struct FileMounts {
    table: MountTable,
    /// The filesystem of the file, if its mount is listed.
    device: Option<MountedDevice>,
    /// The filesystems that the lookup of the file crosses.
    crossed: Vec<MountedDevice>,
}

impl FileMounts {
    fn of(file: BorrowedFd<'_>) -> Option<Self> {
        let table = MountTable::read().ok()?;
        let number = file.as_raw_fd();
        let info = fs::read_to_string(format!("/proc/self/fdinfo/{number}")).ok()?;
        let id = info.lines().find_map(|line| line.strip_prefix("mnt_id:"))?;
        let path = fs::read_link(format!("/proc/self/fd/{number}")).ok()?;
        Some(Self::in_table(table, id.trim().parse().ok()?, &path))
    }

    /// Those of a file on the mount `id` that was found as `path`.
    fn in_table(table: MountTable, id: u64, path: &Path) -> Self {
        let device = table.by_id(id).map(|mount| mount.device);
        let crossed = table.crossed(path).into_iter();
        let crossed = crossed.map(|mount| mount.device).collect();
        Self {
            table,
            device,
            crossed,
        }
    }

    /// Whether an absolute path may be one of the file, and its lookup waits for no server that the lookup of the
    /// file does not wait for. A mount that is not listed may be any.
    fn may_lead(&self, path: &Path) -> bool {
        let crossed = self.table.crossed(path);
        let is_same = match (crossed.last(), self.device) {
            (Some(last), Some(device)) => last.device == device,
            (None, _) | (_, None) => true,
        };
        is_same
            && crossed.iter().all(|mount| {
                mount.is_local()
                    || Some(mount.device) == self.device
                    || self.crossed.contains(&mount.device)
            })
    }
}

/// Returns the loop device that a file is attached to, if sysfs shows it.
pub(super) fn attached_loop_device(file: BorrowedFd<'_>, found: &Stat) -> Option<Arc<str>> {
    let devices = fs::read_dir("/sys/block").ok()?;
    let mut mounts = None;
    for device in devices.flatten() {
        let Ok(backing) = fs::read(device.path().join("loop/backing_file")) else {
            continue;
        };
        let backing = backing.strip_suffix(b"\n").unwrap_or(&backing);
        let backing = Path::new(OsStr::from_bytes(backing));
        let mounts = mounts.get_or_insert_with(|| FileMounts::of(file));
        // Without a table of mounts, any may be it.
        if mounts.as_ref().is_some_and(|it| !it.may_lead(backing)) {
            continue;
        }
        let is_same = fs::metadata(backing).is_ok_and(|backing| is_file(&backing, found));
        if is_same {
            return Some(device.file_name().to_string_lossy().into());
        }
    }
    None
}

fn is_file(other: &fs::Metadata, file: &Stat) -> bool {
    (other.dev(), other.ino()) == (file.st_dev, file.st_ino)
}

/// Returns a process that has a lock on the file, an exclusive one if `writes`, as far as this user
/// may see it in `/proc`. The file is open as `path`.
pub(super) fn lock_owner(
    path: &Path,
    file: BorrowedFd<'_>,
    found: &Stat,
    writes: bool,
) -> Option<Process> {
    let table = fs::read_to_string("/proc/locks").ok()?;
    let own = std::process::id();
    let file = LockedFile::new(file, found);
    // For range locks, `/proc/locks` shows no process; their owners have a shared `flock` too.
    let locks = table.lines().filter_map(Lock::parse);
    let mut owners = locks.filter(|lock| file.is_of(lock)).filter_map(|lock| {
        let id = lock.process?;
        let seen = locks_of(id, &file);
        let has_lock = match &seen {
            Some(seen) => seen.iter().any(|lock| lock.writes == writes),
            None => lock.writes == writes,
        };
        has_lock.then_some(id)
    });
    let first = owners.next()?;
    // This process is considered last: it may have opened the file twice.
    let id = [first].into_iter().chain(owners).find(|id| *id != own);
    let id = id.unwrap_or(first);
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    Some(Process {
        id,
        name: shown(name.trim_end_matches('\n')),
        mountpoint: mountpoint_of(path),
    })
}

/// The file whose locks are looked for.
struct LockedFile<'a> {
    found: &'a Stat,
    /// The device number that the kernel shows with its locks: that of the filesystem, where its mount is listed.
    device: MountedDevice,
}

impl<'a> LockedFile<'a> {
    fn new(file: BorrowedFd<'_>, found: &'a Stat) -> Self {
        let mounts = FileMounts::of(file);
        let device = mounts.and_then(|mounts| mounts.device);
        let device = device.unwrap_or(MountedDevice {
            major: major(found.st_dev),
            minor: minor(found.st_dev),
        });
        Self { found, device }
    }

    /// Whether a lock is of the file, or of one with its number in another subvolume.
    fn is_of(&self, lock: &Lock) -> bool {
        lock.device == self.device && lock.inode == self.found.st_ino
    }
}

/// A line of `/proc/locks`, or a `lock:` line in `fdinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    writes: bool,
    process: Option<u32>,
    /// The filesystem of the file.
    device: MountedDevice,
    inode: u64,
}

impl Lock {
    /// Parses a lock of the kinds that this library takes: `flock` and open file description locks.
    fn parse(line: &str) -> Option<Self> {
        let mut words = line.split_ascii_whitespace();
        let kind = words.by_ref().find(|word| !word.ends_with(':'))?;
        if !["FLOCK", "OFDLCK"].contains(&kind) {
            return None;
        }
        let writes = words.nth(1)? == "WRITE";
        let process = words.next()?.parse().ok().filter(|&id: &u32| id != 0);
        let mut file = words.next()?.split(':');
        let device = MountedDevice {
            major: u32::from_str_radix(file.next()?, 16).ok()?,
            minor: u32::from_str_radix(file.next()?, 16).ok()?,
        };
        Some(Self {
            writes,
            process,
            device,
            inode: file.next()?.parse().ok()?,
        })
    }
}

/// Returns the locks of a process on the file; `None` if this user may not see them. Other files that the process
/// has open are not touched.
fn locks_of(process: u32, file: &LockedFile<'_>) -> Option<Vec<Lock>> {
    let mut locks = Vec::new();
    for descriptor in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let number = descriptor.file_name();
        let info = format!("/proc/{process}/fdinfo/{}", number.to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        let lines = info.lines().filter(|line| line.starts_with("lock:"));
        let found = lines.filter_map(Lock::parse);
        let mut found = found.filter(|lock| file.is_of(lock)).peekable();
        if found.peek().is_some()
            && fs::metadata(descriptor.path()).is_ok_and(|open| is_file(&open, file.found))
        {
            locks.extend(found);
        }
    }
    Some(locks)
}

/// Returns the mount point of the image at `path`, or of a part of it, if there is exactly one. The
/// source of such a mount is the absolute path, followed by `@` and the partition.
fn mountpoint_of(path: &Path) -> Option<Arc<str>> {
    let path = path.canonicalize().ok()?;
    let table = MountTable::read().ok()?;
    let mut found = table.mounts().iter().filter(|mount| mount.is_of(&path));
    let first = found.next()?;
    found
        .next()
        .is_none()
        .then(|| shown(&first.mountpoint.to_string_lossy()))
}

fn shown(name: &str) -> Arc<str> {
    let printable = name.chars().take(NAME_CHARS_MAX);
    printable
        .map(|char| if char.is_control() { '?' } else { char })
        .collect::<String>()
        .into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn proc_locks_lines_are_parsed() {
        let lock = |writes, process| {
            Some(Lock {
                writes,
                process,
                device: MountedDevice {
                    major: 254,
                    minor: 16,
                },
                inode: 9637,
            })
        };
        let of = |line| Lock::parse(line);
        assert_eq!(
            of("3: FLOCK  ADVISORY  WRITE 414 fe:10:9637 0 EOF"),
            lock(true, Some(414))
        );
        assert_eq!(
            of("lock:\t1: OFDLCK ADVISORY  READ -1 fe:10:9637 1024 EOF"),
            lock(false, None)
        );
        assert_eq!(of("4: POSIX  ADVISORY  WRITE 414 fe:10:9637 0 EOF"), None);
        assert_eq!(of("1: -> FLOCK"), None);
    }

    #[test]
    fn file_may_be_found_by_other_local_mounts() {
        const TABLE: &[u8] = b"20 1 254:0 / / rw - xfs a rw\n\
            21 20 254:1 / /srv rw - xfs b rw\n\
            22 21 254:2 / /srv/vm rw - xfs c rw\n\
            23 20 254:2 / /vm rw - xfs c rw\n\
            24 20 0:40 / /net rw - nfs4 d rw\n\
            25 24 254:2 / /net/vm rw - xfs c rw\n";
        let may_lead = |id, path, other| {
            let mounts = FileMounts::in_table(MountTable::parse(TABLE), id, Path::new(path));
            mounts.may_lead(Path::new(other))
        };
        assert!(may_lead(23, "/vm/disk.img", "/srv/vm/disk.img"));
        assert!(!may_lead(23, "/vm/disk.img", "/srv/disk.img"));
        assert!(!may_lead(23, "/vm/disk.img", "/net/vm/disk.img"));
        assert!(may_lead(25, "/net/vm/disk.img", "/net/vm/disk.img"));
        // Its mount is not listed, as where it was opened in another namespace.
        assert!(may_lead(99, "/vm/disk.img", "/srv/disk.img"));
        assert!(!may_lead(99, "/vm/disk.img", "/net/disk.img"));
    }

    #[test]
    fn file_of_a_root_that_is_not_listed_may_be_anywhere_else() {
        let table = || MountTable::parse(b"25 24 254:2 / /vm rw - xfs c rw\n");
        let listed = FileMounts::in_table(table(), 25, Path::new("/vm/disk.img"));
        assert!(listed.may_lead(Path::new("/disk.img")));
        let unlisted = FileMounts::in_table(table(), 24, Path::new("/disk.img"));
        assert!(unlisted.may_lead(Path::new("/vm/disk.img")));
    }

    #[test]
    fn process_names_are_printable() {
        assert_eq!(&*shown("a\u{1b}[31m\nb"), "a?[31m?b");
    }
}
