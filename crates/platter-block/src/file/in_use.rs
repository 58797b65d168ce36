//! Finding the process or device that has an image in use.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Stat;

/// Maximum length of a process name or a directory in a message, in characters.
const NAME_CHARS_MAX: usize = 256;

/// The current user of an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
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
        holder: Box<Holder>,
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

impl fmt::Display for Holder {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (kind, process) = match self {
            Self::Writer(process) => ("another writer", process),
            Self::Reader(process) => ("another reader", process),
            Self::Claim => return out.write_str("a mount, or by another program that claimed it"),
            Self::Loop(name) => return write!(out, "loop device {name}"),
            Self::Backing { file, holder } => {
                return write!(out, "{holder}, of its backing file {file}");
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

/// Returns the loop device that a file is attached to, if sysfs shows it.
pub(super) fn attached_loop_device(file: &Stat) -> Option<Arc<str>> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let backing = fs::metadata(Path::new(backing.trim_end_matches('\n'))).ok()?;
        let same = (backing.dev(), backing.ino()) == (file.st_dev, file.st_ino);
        same.then(|| device.file_name().to_string_lossy().into())
    })
}

/// Returns a process that has a lock on the file, an exclusive one if `writes`, as far as this user
/// may see it in `/proc`. The file is open as `path`.
pub(super) fn lock_holder(path: &Path, file: &Stat, writes: bool) -> Option<Process> {
    let table = fs::read_to_string("/proc/locks").ok()?;
    let own = std::process::id();
    let mut locks: Vec<Lock> = table.lines().filter_map(Lock::parse).collect();
    locks.retain(|lock| lock.inode == file.st_ino);
    // For range locks, `/proc/locks` shows no process; their owners hold a shared `flock` too.
    let mut found = locks.iter().filter_map(|lock| {
        let id = lock.process?;
        let seen = locks_of(id, file);
        let has_lock = match &seen {
            Some(seen) => seen.iter().any(|lock| lock.writes == writes),
            None => lock.writes == writes,
        };
        has_lock.then_some(id)
    });
    let first = found.next()?;
    // This process is considered last: it may have opened the file twice.
    let id = [first].into_iter().chain(found).find(|id| *id != own);
    let id = id.unwrap_or(first);
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    Some(Process {
        id,
        name: shown(name.trim_end_matches('\n')),
        mountpoint: mountpoint_of(path),
    })
}

/// A line of `/proc/locks`, or a `lock:` line in `fdinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    writes: bool,
    process: Option<u32>,
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
        let inode = words.next()?.rsplit(':').next()?.parse().ok()?;
        Some(Self {
            writes,
            process,
            inode,
        })
    }
}

/// Returns the locks of a process on the file; `None` if this user may not see them.
fn locks_of(process: u32, file: &Stat) -> Option<Vec<Lock>> {
    let mut locks = Vec::new();
    for descriptor in fs::read_dir(format!("/proc/{process}/fd")).ok()?.flatten() {
        let Ok(open) = fs::metadata(descriptor.path()) else {
            continue;
        };
        if (open.dev(), open.ino()) != (file.st_dev, file.st_ino) {
            continue;
        }
        let number = descriptor.file_name();
        let info = format!("/proc/{process}/fdinfo/{}", number.to_string_lossy());
        let info = fs::read_to_string(info).unwrap_or_default();
        let lines = info.lines().filter(|line| line.starts_with("lock:"));
        locks.extend(lines.filter_map(Lock::parse));
    }
    Some(locks)
}

/// Returns the mount point of the image at `path`, or of a part of it, if there is exactly one. The
/// source of such a mount is the absolute path, followed by `@` and the partition.
fn mountpoint_of(path: &Path) -> Option<Arc<str>> {
    let path = path.canonicalize().ok()?;
    let table = fs::read("/proc/self/mountinfo").ok()?;
    let mut found = table.split(|&byte| byte == b'\n').filter_map(|line| {
        let mut words = line.split(|&byte| byte == b' ');
        let mountpoint = words.nth(4)?;
        let source = words.skip_while(|word| *word != b"-").nth(2)?;
        let source = unescaped(source);
        let rest = source.strip_prefix(path.as_os_str().as_bytes())?;
        (rest.is_empty() || rest.starts_with(b"@")).then(|| unescaped(mountpoint))
    });
    let first = found.next()?;
    found
        .next()
        .is_none()
        .then(|| shown(&String::from_utf8_lossy(&first)))
}

/// Decodes a field of the mount table, where blanks and the like are octal escapes.
fn unescaped(word: &[u8]) -> Vec<u8> {
    let mut bytes = Vec::with_capacity(word.len());
    let mut rest = word;
    while let Some((&first, after)) = rest.split_first() {
        let digits = after.first_chunk::<3>().filter(|_| first == b'\\');
        let number = digits.and_then(|digits| std::str::from_utf8(digits).ok());
        let byte = number.and_then(|number| u8::from_str_radix(number, 8).ok());
        bytes.push(byte.unwrap_or(first));
        rest = if byte.is_some() { &after[3..] } else { after };
    }
    bytes
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
                inode: 9637,
            })
        };
        let of = |line| Lock::parse(line);
        assert_eq!(
            of("3: FLOCK  ADVISORY  WRITE 414 fe:00:9637 0 EOF"),
            lock(true, Some(414))
        );
        assert_eq!(
            of("lock:\t1: OFDLCK ADVISORY  READ -1 fe:00:9637 1024 EOF"),
            lock(false, None)
        );
        assert_eq!(of("4: POSIX  ADVISORY  WRITE 414 fe:00:9637 0 EOF"), None);
        assert_eq!(of("1: -> FLOCK"), None);
    }

    #[test]
    fn process_names_are_printable() {
        assert_eq!(&*shown("a\u{1b}[31m\nb"), "a?[31m?b");
    }
}
