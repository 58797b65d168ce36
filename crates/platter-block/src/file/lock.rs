//! Locks that keep users of one image apart.
//!
//! A user of a whole image locks it with `flock(2)`, exclusively to write. A user of a
//! part of it, a partition, has it locked shared that way, and the bytes of that part with a lock of
//! the open file description. Readers of the whole have its bytes locked, too, so that they meet the
//! writers of parts.

use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{FlockOperation, flock};
use rustix::io::Errno;

use crate::sys::fcntl::{self, RangeLock};

/// How often a lock that another process holds is tried again.
///
/// udev locks a block device shared while it looks what is on it, which it does whenever a writer
/// has closed it, and what a killed writer had begun to write may be finished by another process;
/// that takes some ten milliseconds and is not worth an error.
const TRIES_MAX: u32 = 10;
const TRY_PAUSE: Duration = Duration::from_millis(20);

/// Bytes at the start that readers leave alone: QEMU has its own locks there, and no partition
/// begins before their end and ends there, too.
const READERS_FROM: u64 = 1024;
/// The end of all that can be locked.
const END: u64 = i64::MAX.unsigned_abs();

/// How much of an image is locked.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Share {
    /// All of it.
    Whole,
    /// Parts that are named later; until then no process may lock all of it for writing.
    Parts,
}

/// What became of a lock.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Locked {
    Yes,
    /// Another process holds a conflicting lock.
    InUse,
    /// The filesystem has no such locks.
    NotPossible,
}

/// Locks as much of a file as `share` says, to write or only to read.
pub(super) fn lock(file: impl AsFd, share: Share, writes: bool) -> io::Result<Locked> {
    let is_alone = writes && share == Share::Whole;
    let locked = lock_file(&file, is_alone)?;
    if locked != Locked::Yes || share == Share::Parts {
        return Ok(locked);
    }
    let start = if writes { 0 } else { READERS_FROM };
    Ok(match lock_bytes(&file, &(start..END), writes)? {
        Locked::InUse => Locked::InUse,
        // Without locks of ranges, who writes a part has locked it all.
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

/// Gives up all locks of an open file.
pub(super) fn unlock(file: impl AsFd) {
    // Closing does it as well, but later where a child shares the open file.
    let _ = fcntl::unlock_range(file.as_fd(), &(0..END));
    let _ = flock(&file, FlockOperation::Unlock);
}

/// Whether readers, and they alone, keep the whole file from being locked exclusively. Gives up the
/// locks there are.
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
            // `EBADF` is of a file that is open for reading only.
            Some(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL | Errno::BADF) => {
                return Ok(Locked::NotPossible);
            }
            _ => return Err(error),
        }
    }
}
