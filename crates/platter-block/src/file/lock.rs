//! Locks that exclude conflicting users of one image.
//!
//! A user of a whole image locks it with `flock(2)`, exclusively to write. A user of one partition
//! takes a shared `flock` and an open file description lock on the partition's bytes. Readers of
//! the whole image lock its bytes as well, so that they conflict with writers of partitions.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::sys::fcntl::{self, RangeLock};

/// How many times a lock held by another process is retried.
///
/// udev takes a shared lock while it probes a block device, which it does whenever a writer has
/// closed it, and the writes of a killed process may still be finished by another one; both take
/// some ten milliseconds and are not worth an error.
const TRIES_MAX: u32 = 10;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// First byte that readers lock: QEMU has its own locks in the bytes before, and no partition lies
/// entirely within them.
const READERS_FROM: u64 = 1024;
/// The end of the lockable range.
const END: u64 = i64::MAX.unsigned_abs();

/// Which part of an image is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All of it.
    Whole,
    /// Parts that are locked later; until then no process may lock the whole image for writing.
    Parts,
}

/// Outcome of an attempt to lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locked {
    Yes,
    /// Another process holds a conflicting lock.
    InUse,
    /// The filesystem does not support such locks.
    NotPossible,
}

/// Locks the part of a file that `share` selects, exclusively if `writes`.
pub(super) fn lock(file: impl AsFd, share: Share, writes: bool) -> io::Result<Locked> {
    let is_alone = writes && share == Share::Whole;
    let locked = lock_file(&file, is_alone)?;
    if locked != Locked::Yes || share == Share::Parts {
        return Ok(locked);
    }
    let start = if writes { 0 } else { READERS_FROM };
    Ok(match lock_bytes(&file, &(start..END), writes)? {
        Locked::InUse => Locked::InUse,
        // Without range locks, a writer of a part has locked the whole file.
        Locked::Yes | Locked::NotPossible => Locked::Yes,
    })
}

/// Locks a part of a file that is locked as [`Share::Parts`].
pub(super) fn lock_part(file: impl AsFd, part: &Range<u64>, writes: bool) -> io::Result<Locked> {
    let end = part.end.min(END);
    let part = part.start.min(end)..end;
    if part.is_empty() {
        return Ok(Locked::Yes);
    }
    match lock_bytes(&file, &part, writes)? {
        Locked::NotPossible if writes => lock_file(&file, true),
        Locked::NotPossible => Ok(Locked::Yes),
        locked @ (Locked::Yes | Locked::InUse) => Ok(locked),
    }
}

/// Releases all locks of an open file.
pub(super) fn unlock(file: impl AsFd) {
    // Closing releases them too, but later if a child process shares the open file.
    let _ = fcntl::unlock_range(file.as_fd(), &(0..END));
    let _ = flock(&file, FlockOperation::Unlock);
}

/// Whether readers are all that prevents an exclusive lock of the whole file. Releases the locks of
/// this open file.
pub(super) fn is_shared_with_readers(file: impl AsFd) -> bool {
    let whole = READERS_FROM..END;
    let is_shared = flock(&file, FlockOperation::NonBlockingLockShared).is_ok()
        && fcntl::lock_range(file.as_fd(), &whole, RangeLock::Shared).is_ok();
    unlock(&file);
    is_shared
}

fn lock_file(file: impl AsFd, is_alone: bool) -> io::Result<Locked> {
    let operation = if is_alone {
        FlockOperation::NonBlockingLockExclusive
    } else {
        FlockOperation::NonBlockingLockShared
    };
    again_while_in_use(|| flock(&file, operation).map_err(Into::into))
}

fn lock_bytes(file: impl AsFd, range: &Range<u64>, writes: bool) -> io::Result<Locked> {
    let lock = if writes {
        RangeLock::Exclusive
    } else {
        RangeLock::Shared
    };
    again_while_in_use(|| fcntl::lock_range(file.as_fd(), range, lock))
}

fn again_while_in_use(lock: impl Fn() -> io::Result<()>) -> io::Result<Locked> {
    let mut tries = 0;
    loop {
        tries += 1;
        let Err(error) = lock() else {
            return Ok(Locked::Yes);
        };
        match Errno::from_io_error(&error) {
            Some(Errno::INTR) => tries -= 1,
            Some(Errno::WOULDBLOCK | Errno::ACCESS) if tries < TRIES_MAX => sleep(TRY_PAUSE),
            Some(Errno::WOULDBLOCK | Errno::ACCESS) => return Ok(Locked::InUse),
            // `EBADF`: the file is open for reading only.
            Some(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::BADF) => {
                return Ok(Locked::NotPossible);
            }
            _ => return Err(error),
        }
    }
}
