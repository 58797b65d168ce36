//! Who else uses an image.

use std::fmt;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::Arc;

use rustix::fs::Stat;

/// The longest name of a process or a directory that a message shows.
const NAME_CHARS_MAX: usize = 256;

/// Somebody who uses an image already.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Holder {
    /// A program that locked it exclusively, where it can be found out which.
    Writer(Option<Process>),
    /// Programs that locked it shared; one of them, where it can be found out.
    Reader(Option<Process>),
    /// The block device is mounted, or a program or a device above it claimed it.
    Claim,
    /// The file is attached to the loop device of this name, which takes no lock.
    Loop(Arc<str>),
    /// Another process uses the backing file of the loop device.
    Backing {
        /// The file.
        file: Arc<str>,
        /// Who uses it.
        holder: Box<Holder>,
    },
}

/// A process that uses an image.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Its number.
    pub id: u32,
    /// The name of its program, without characters that a terminal acts upon.
    pub name: Arc<str>,
    /// Where the image is mounted, if it is mounted just once.
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

/// The loop device that a file is attached to, where the kernel tells.
pub(super) fn attached_loop_device(file: &Stat) -> Option<Arc<str>> {
    let devices = fs::read_dir("/sys/block").ok()?;
    devices.flatten().find_map(|device| {
        let backing = fs::read_to_string(device.path().join("loop/backing_file")).ok()?;
        let backing = fs::metadata(Path::new(backing.trim_end_matches('\n'))).ok()?;
        let same = (backing.dev(), backing.ino()) == (file.st_dev, file.st_ino);
        same.then(|| device.file_name().to_string_lossy().into())
    })
}

/// A process that has a lock on the file, one to write where `writes` says so, as far as the kernel
/// tells this user. The file is open as `path`.
pub(super) fn lock_holder(path: &Path, file: &Stat, writes: bool) -> Option<Process> {
    let table = fs::read_to_string("/proc/locks").ok()?;
    let own = std::process::id();
    let mut locks: Vec<Lock> = table.lines().filter_map(Lock::parse).collect();
    locks.retain(|lock| lock.inode == file.st_ino);
    // Ranges have no process there. Who has locked one has locked the file shared as well.
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
    // This process itself is asked last: it may have opened the file twice.
    let id = [first].into_iter().chain(found).find(|id| *id != own);
    let id = id.unwrap_or(first);
    let name = fs::read_to_string(format!("/proc/{id}/comm")).ok()?;
    Some(Process {
        id,
        name: shown(name.trim_end_matches('\n')),
        mountpoint: mountpoint_of(path),
    })
}

/// A line of `/proc/locks`, or of a descriptor in `fdinfo`.
#[derive(Debug, PartialEq, Eq)]
struct Lock {
    writes: bool,
    process: Option<u32>,
    inode: u64,
}

impl Lock {
    /// A lock that this library takes: of a file, or of a range for its open file.
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

/// The locks that a process has on the file; `None` where this user may not see them.
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

/// Where the image at `path`, or a part of it, is mounted, if it is so once. The source of such a
/// mount is the path from the root, and `@` with the partition after it.
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

/// A word of the table of mounts, where blanks and the like are octal numbers.
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
    fn locks_are_read_as_the_kernel_shows_them() {
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
    fn names_of_others_are_printable() {
        assert_eq!(&*shown("a\u{1b}[31m\nb"), "a?[31m?b");
    }
}
