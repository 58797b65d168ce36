//! Functions of `fcntl(2)` that rustix does not have: byte-range locks of the open file description
//! (`F_OFD_SETLK`), and leases.

use std::io;
use std::ops::Range;
use std::os::fd::{AsRawFd, BorrowedFd};

/// What other open files may do with a locked range.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RangeLock {
    /// Take a shared lock.
    Shared,
    /// Nothing.
    Exclusive,
}

/// Locks the bytes of `range` of a file without waiting, or changes the kind of its lock.
///
/// # Errors
/// `EAGAIN` or `EACCES` if another open file has a conflicting lock; `EBADF` for an exclusive lock
/// through a descriptor that is not writable.
pub(crate) fn lock_range(
    fd: BorrowedFd<'_>,
    range: &Range<u64>,
    lock: RangeLock,
) -> io::Result<()> {
    let kind = match lock {
        RangeLock::Shared => libc::F_RDLCK,
        RangeLock::Exclusive => libc::F_WRLCK,
    };
    set_range(fd, range, kind)
}

/// Releases every lock of the open file on the bytes of `range`.
pub(crate) fn unlock_range(fd: BorrowedFd<'_>, range: &Range<u64>) -> io::Result<()> {
    set_range(fd, range, libc::F_UNLCK)
}

fn set_range(fd: BorrowedFd<'_>, range: &Range<u64>, kind: libc::c_int) -> io::Result<()> {
    // Length 0 extends to the largest possible offset; bytes above it cannot be addressed anyway.
    let start = i64::try_from(range.start).map_err(|_| io::ErrorKind::InvalidInput)?;
    let length = i64::try_from(range.end - range.start)
        .ok()
        .filter(|length| start.checked_add(*length).is_some());
    let request = libc::flock {
        l_type: libc::c_short::try_from(kind).unwrap_or(0),
        l_whence: libc::c_short::try_from(libc::SEEK_SET).unwrap_or(0),
        l_start: start,
        l_len: length.unwrap_or(0),
        l_pid: 0,
    };
    // SAFETY: the descriptor is open, and F_OFD_SETLK reads the one `flock` it is given.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_OFD_SETLK, &raw const request) };
    outcome(done)
}

/// Takes or releases the write lease of a regular file.
///
/// # Errors
/// `EAGAIN` while another process has the file open, `EACCES` for a caller that neither owns it nor
/// has `CAP_LEASE`, `EINVAL` on a filesystem without leases.
pub(crate) fn set_lease(fd: BorrowedFd<'_>, is_held: bool) -> io::Result<()> {
    let kind = if is_held {
        libc::F_WRLCK
    } else {
        libc::F_UNLCK
    };
    // SAFETY: the descriptor is open, and F_SETLEASE takes a number.
    let done = unsafe { libc::fcntl(fd.as_raw_fd(), libc::F_SETLEASE, kind) };
    outcome(done)
}

fn outcome(done: libc::c_int) -> io::Result<()> {
    if done == -1 {
        return Err(io::Error::last_os_error());
    }
    Ok(())
}
