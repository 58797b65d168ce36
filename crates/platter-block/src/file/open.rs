//! Opening an image: what it may be, its size and blocks, and its locks.

use std::fmt;
use std::io;
use std::os::fd::{AsFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::thread::sleep;
use std::time::Duration;

use rustix::fs::{
    AtFlags, FileType, FlockOperation, Mode, OFlags, Stat, StatxFlags, flock, fstat,
    ioctl_blkpbszget, ioctl_blksszget, open as open_fd, stat, statx,
};
use rustix::io::Errno;

use super::direct::{ALIGN_BYTES_MAX, DirectFile};
use super::flush::StickyFlush;
use super::in_use::{Holder, attached_loop_device};
use super::{FileDevice, FileKind};
use crate::sys::blkdev;
use crate::{Geometry, IoError, Operation};

/// How an image is opened.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// What will be done with it.
    pub access: Access,
    /// Bypass the page cache of the host.
    pub direct: bool,
}

/// What an image is opened for, and with it how it is locked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading, with a lock that other readers share and no writer gets past.
    #[default]
    Read,
    /// Reading without a lock: what is read may change meanwhile.
    ReadUnlocked,
    /// Reading and writing, with a lock that is shared with nobody.
    Write,
}

impl Access {
    fn writes(self) -> bool {
        self == Self::Write
    }
}

/// An image that cannot be opened.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// It is there, and is not opened all the same.
    #[error("{device}: {refusal}")]
    Refused {
        /// The path.
        device: Arc<str>,
        /// Why.
        refusal: Refusal,
    },
    /// The host failed.
    #[error(transparent)]
    Io(#[from] IoError),
}

impl From<OpenError> for IoError {
    fn from(error: OpenError) -> Self {
        match error {
            OpenError::Io(error) => error,
            OpenError::Refused { device, refusal } => {
                let kind = match refusal {
                    Refusal::InUse(_) => io::ErrorKind::ResourceBusy,
                    Refusal::Directory => io::ErrorKind::IsADirectory,
                    Refusal::NotAnImage(_) => io::ErrorKind::InvalidInput,
                    Refusal::NoDirect | Refusal::NoLock => io::ErrorKind::Unsupported,
                };
                let source = io::Error::new(kind, refusal);
                Self::new(&device, Operation::Open, 0, 0, source)
            }
        }
    }
}

/// Why an image that is there is not opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Somebody else uses it in a way that does not go together with this one.
    InUse(Holder),
    /// It is a directory.
    Directory,
    /// It is neither a regular file nor a block device, but this.
    NotAnImage(&'static str),
    /// It cannot be read or written past the page cache.
    NoDirect,
    /// Its filesystem has no locks, and it was to be written to.
    NoLock,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(holder) => write!(out, "in use by {holder}"),
            Self::Directory => out.write_str("a directory, not an image or a block device"),
            Self::NotAnImage(kind) => write!(out, "a {kind}, not an image or a block device"),
            Self::NoDirect => out.write_str("direct I/O is not possible on it"),
            Self::NoLock => out.write_str("its filesystem has no locks, so it is not written to"),
        }
    }
}

impl std::error::Error for Refusal {}

/// How often a lock that somebody else holds is asked for.
///
/// udev locks a block device shared while it looks what is on it, which it does whenever a writer
/// has closed it, and what a killed writer had begun to write may be finished by another process;
/// that takes some ten milliseconds and is not worth an error.
const LOCK_TRIES_MAX: u32 = 10;
const LOCK_TRY_PAUSE: Duration = Duration::from_millis(20);

/// Bounds for the block size of a file, which is the one its filesystem prefers.
const FILE_BLOCK_BYTES: std::ops::RangeInclusive<u64> = 512..=65536;

pub(super) fn open(path: &Path, options: OpenOptions) -> Result<FileDevice, OpenError> {
    let opening = Opening {
        path,
        name: path.to_string_lossy().into(),
        options,
    };
    // Looked at before it is opened: opening a FIFO waits for its other end, and opening a tape
    // rewinds it.
    let before = stat(path).map_err(|source| opening.io(source))?;
    let kind = opening.kind(&before)?;
    let file = opening.open_descriptor(kind, OFlags::empty())?;
    let found = fstat(&file).map_err(|source| opening.io(source))?;
    if opening.kind(&found)? != kind {
        return Err(opening.io(Errno::AGAIN).into());
    }
    let locked = opening.lock(&file)?;
    if options.access.writes()
        && kind == FileKind::Regular
        && let Some(device) = attached_loop_device(&found)
    {
        return Err(opening.refused(Refusal::InUse(Holder::Loop(device))));
    }
    let geometry = opening.geometry(&file, kind, &found)?;
    let direct = if options.direct {
        Some(opening.open_direct(kind, &found, &geometry)?)
    } else {
        None
    };
    Ok(FileDevice {
        name: opening.name,
        geometry,
        kind,
        file,
        direct,
        flush: StickyFlush::default(),
        locked,
    })
}

/// An image on its way to being open.
struct Opening<'a> {
    path: &'a Path,
    name: Arc<str>,
    options: OpenOptions,
}

impl Opening<'_> {
    fn io(&self, source: Errno) -> IoError {
        IoError::new(&self.name, Operation::Open, 0, 0, source)
    }

    fn refused(&self, refusal: Refusal) -> OpenError {
        let device = Arc::clone(&self.name);
        OpenError::Refused { device, refusal }
    }

    fn kind(&self, stat: &Stat) -> Result<FileKind, OpenError> {
        let kind = match FileType::from_raw_mode(stat.st_mode) {
            FileType::RegularFile => return Ok(FileKind::Regular),
            FileType::BlockDevice => return Ok(FileKind::Block),
            FileType::Directory => return Err(self.refused(Refusal::Directory)),
            FileType::CharacterDevice => "character device",
            FileType::Fifo => "FIFO",
            FileType::Socket => "socket",
            FileType::Symlink | FileType::Unknown => "file of unknown type",
        };
        Err(self.refused(Refusal::NotAnImage(kind)))
    }

    fn open_descriptor(&self, kind: FileKind, extra: OFlags) -> Result<OwnedFd, OpenError> {
        let writes = self.options.access.writes();
        let mut flags = OFlags::CLOEXEC | OFlags::NOCTTY | extra;
        flags |= if writes { OFlags::RDWR } else { OFlags::RDONLY };
        match kind {
            // Without effect on a regular file, and no wait if it has become a FIFO.
            FileKind::Regular => flags |= OFlags::NONBLOCK,
            // Claims the device; a descriptor for direct transfers is opened under that claim.
            FileKind::Block if writes && extra.is_empty() => flags |= OFlags::EXCL,
            FileKind::Block => {}
        }
        if !writes {
            // Only the owner may leave the access time alone.
            match open_fd(self.path, flags | OFlags::NOATIME, Mode::empty()) {
                Err(Errno::PERM) => {}
                opened => return opened.map_err(|source| self.open_failed(source, extra)),
            }
        }
        open_fd(self.path, flags, Mode::empty()).map_err(|source| self.open_failed(source, extra))
    }

    fn open_failed(&self, source: Errno, extra: OFlags) -> OpenError {
        match source {
            Errno::BUSY => self.refused(Refusal::InUse(Holder::Claim)),
            Errno::INVAL if extra.contains(OFlags::DIRECT) => self.refused(Refusal::NoDirect),
            source => self.io(source).into(),
        }
    }

    /// Takes the lock that the access asks for. Says whether there is one now.
    fn lock(&self, file: &OwnedFd) -> Result<bool, OpenError> {
        let operation = match self.options.access {
            Access::ReadUnlocked => return Ok(false),
            Access::Read => FlockOperation::NonBlockingLockShared,
            Access::Write => FlockOperation::NonBlockingLockExclusive,
        };
        let mut tries = 0;
        loop {
            tries += 1;
            match flock(file, operation) {
                Ok(()) => return Ok(true),
                Err(Errno::INTR) => tries -= 1,
                Err(Errno::WOULDBLOCK) if tries < LOCK_TRIES_MAX => {
                    sleep(LOCK_TRY_PAUSE);
                }
                Err(Errno::WOULDBLOCK) => {
                    return Err(self.refused(Refusal::InUse(self.lock_holder(file))));
                }
                Err(Errno::NOLCK | Errno::NOSYS | Errno::OPNOTSUPP | Errno::INVAL) => {
                    if self.options.access.writes() {
                        return Err(self.refused(Refusal::NoLock));
                    }
                    return Ok(false);
                }
                Err(source) => return Err(self.io(source).into()),
            }
        }
    }

    /// Who holds a lock that could not be had: only readers share theirs with one more.
    fn lock_holder(&self, file: &OwnedFd) -> Holder {
        if self.options.access.writes()
            && flock(file, FlockOperation::NonBlockingLockShared).is_ok()
        {
            let _ = flock(file, FlockOperation::Unlock);
            Holder::Reader
        } else {
            Holder::Writer
        }
    }

    fn geometry(&self, file: &OwnedFd, kind: FileKind, stat: &Stat) -> Result<Geometry, IoError> {
        let read_only = !self.options.access.writes();
        match kind {
            FileKind::Regular => {
                let preferred = u64::try_from(stat.st_blksize).unwrap_or(0);
                let preferred = preferred.clamp(*FILE_BLOCK_BYTES.start(), *FILE_BLOCK_BYTES.end());
                Ok(Geometry {
                    len_bytes: u64::try_from(stat.st_size).map_err(|_| self.io(Errno::OVERFLOW))?,
                    logical_block_bytes: 512,
                    physical_block_bytes: 1 << preferred.ilog2(),
                    read_only,
                })
            }
            FileKind::Block => {
                let io = |source| self.io(source);
                let logical_block_bytes = ioctl_blksszget(file).map_err(io)?;
                if !logical_block_bytes.is_power_of_two() {
                    return Err(self.io(Errno::INVAL));
                }
                let physical = ioctl_blkpbszget(file).unwrap_or(logical_block_bytes);
                Ok(Geometry {
                    len_bytes: blkdev::capacity_bytes(file.as_fd()).map_err(io)?,
                    logical_block_bytes,
                    physical_block_bytes: physical.max(logical_block_bytes),
                    read_only: read_only || blkdev::is_read_only(file.as_fd()).map_err(io)?,
                })
            }
        }
    }

    fn open_direct(
        &self,
        kind: FileKind,
        found: &Stat,
        geometry: &Geometry,
    ) -> Result<DirectFile, OpenError> {
        let file = self.open_descriptor(kind, OFlags::DIRECT)?;
        let again = fstat(&file).map_err(|source| self.io(source))?;
        // The path may lead elsewhere by now.
        if (again.st_dev, again.st_ino, again.st_rdev)
            != (found.st_dev, found.st_ino, found.st_rdev)
        {
            return Err(self.io(Errno::AGAIN).into());
        }
        let told = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        let align = match told {
            Ok(told) if told.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                told.stx_dio_offset_align.max(told.stx_dio_mem_align)
            }
            Ok(_) | Err(_) => match kind {
                FileKind::Block => geometry.logical_block_bytes,
                // Of the disk below nothing is known; no logical block is larger than this.
                FileKind::Regular => geometry.physical_block_bytes.max(4096),
            },
        };
        if !align.is_power_of_two() || align > ALIGN_BYTES_MAX {
            return Err(self.refused(Refusal::NoDirect));
        }
        Ok(DirectFile::new(file, align))
    }
}
