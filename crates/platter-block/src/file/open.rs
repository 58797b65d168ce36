//! Opening an image: accepted file types, size and block sizes, and locks.

use std::fmt;
use std::io;
use std::ops::Range;
use std::os::fd::{AsFd, AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use rustix::fs::{
    AtFlags, FileType, Mode, OFlags, Stat, StatxFlags, fcntl_getfl, fstat, ioctl_blkpbszget,
    ioctl_blksszget, open as open_fd, stat, statx,
};
use rustix::io::Errno;

use super::backing::Backing;
use super::direct::{ALIGN_BYTES_MAX, DirectFile};
use super::flush::StickyFlush;
use super::in_use::{ImageUser, attached_loop_device, lock_owner};
use super::lock::{self, Locked, Share};
use super::{FileDevice, FileKind};
use crate::sys::blkdev;
use crate::{Geometry, IoError, Operation};

/// Options for opening an image.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct OpenOptions {
    /// The intended use.
    pub access: Access,
    /// Bypass the host's page cache (`O_DIRECT`).
    pub direct: bool,
}

/// The intended use of an image, which selects the lock.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Access {
    /// Reading, with a lock shared with other readers and exclusive of writers.
    #[default]
    Read,
    /// Reading without a lock: the contents may change meanwhile.
    ReadUnlocked,
    /// Reading and writing, with an exclusive lock.
    Write,
}

impl Access {
    fn writes(self) -> bool {
        self == Self::Write
    }
}

/// The reason why opening an image failed.
#[derive(Debug, Clone, thiserror::Error)]
pub enum OpenError {
    /// It exists and is refused.
    #[error("{device}: {refusal}")]
    Refused {
        /// The path.
        device: Arc<str>,
        /// The reason.
        refusal: Refusal,
    },
    /// The host returned an error.
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

/// The reason why an existing image is refused.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Refusal {
    /// Another process or device uses it in a conflicting way.
    InUse(ImageUser),
    /// It is a directory.
    Directory,
    /// It is neither a regular file nor a block device, but of the named type.
    NotAnImage(&'static str),
    /// It does not support direct I/O.
    NoDirect,
    /// Its filesystem has no locks, and it was to be written.
    NoLock,
}

impl fmt::Display for Refusal {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::InUse(user) => write!(out, "in use by {user}"),
            Self::Directory => out.write_str("a directory, not an image or a block device"),
            Self::NotAnImage(kind) => write!(out, "a {kind}, not an image or a block device"),
            Self::NoDirect => out.write_str("direct I/O is not supported"),
            Self::NoLock => {
                out.write_str("its filesystem does not support locks, refusing to write")
            }
        }
    }
}

impl std::error::Error for Refusal {}

/// Maximum number of stacked loop devices that are followed to their backing files.
const BACKING_DEPTH_MAX: u32 = 8;

/// Bounds for the block size of a file, which is the preferred I/O size of its filesystem.
const FILE_BLOCK_BYTES: std::ops::RangeInclusive<u64> = 512..=65536;

pub(super) fn open(
    path: &Path,
    options: OpenOptions,
    share: Share,
) -> Result<FileDevice, OpenError> {
    open_above(path, options, share, 0)
}

/// Opens the file below `depth` loop devices.
fn open_above(
    path: &Path,
    options: OpenOptions,
    share: Share,
    depth: u32,
) -> Result<FileDevice, OpenError> {
    let opening = Opening {
        path,
        name: path.to_string_lossy().into(),
        options,
        share,
        depth,
    };
    // Checked before it is opened: opening a FIFO waits for its other end, and opening a tape
    // rewinds it.
    let before = stat(path).map_err(|source| opening.io(source))?;
    let kind = opening.kind(&before)?;
    let file = opening.open_descriptor(kind, OFlags::empty())?;
    let found = fstat(&file).map_err(|source| opening.io(source))?;
    if opening.kind(&found)? != kind {
        return Err(opening.io(Errno::AGAIN).into());
    }
    opening.finish(file, kind, &found)
}

/// Uses a file that is open already, under its name in `/proc`.
pub(super) fn use_open(file: OwnedFd, access: Access) -> Result<FileDevice, OpenError> {
    let path = PathBuf::from(format!("/proc/self/fd/{}", file.as_raw_fd()));
    let shown = std::fs::read_link(&path);
    let opening = Opening {
        path: &path,
        name: shown.as_ref().unwrap_or(&path).to_string_lossy().into(),
        options: OpenOptions {
            access,
            direct: false,
        },
        share: Share::Whole,
        depth: 0,
    };
    let found = fstat(&file).map_err(|source| opening.io(source))?;
    let kind = opening.kind(&found)?;
    let flags = fcntl_getfl(&file).map_err(|source| opening.io(source))?;
    let mode = flags & OFlags::RWMODE;
    if mode == OFlags::WRONLY || access.writes() && mode != OFlags::RDWR {
        return Err(opening.io(Errno::BADF).into());
    }
    // With the first, writes ignore their offset; with the second, they need an alignment.
    if flags.intersects(OFlags::APPEND | OFlags::DIRECT) {
        return Err(opening.io(Errno::INVAL).into());
    }
    // The claim of a device and the locks of a file are of the open file description: one that others
    // share would keep none of them out.
    let own = opening.open_descriptor(kind, OFlags::empty())?;
    drop(file);
    opening.finish(own, kind, &found)
}

/// Locks a part of an image that was opened for parts.
pub(super) fn lock_part(device: &FileDevice, part: &Range<u64>) -> Result<(), OpenError> {
    if !device.locked {
        return Ok(());
    }
    let io = |source| IoError::new(&device.name, Operation::Open, 0, 0, source);
    let refused = |user| OpenError::Refused {
        device: Arc::clone(&device.name),
        refusal: Refusal::InUse(user),
    };
    match lock::lock_part(&device.file, part, device.writes).map_err(io)? {
        Locked::Yes => {}
        Locked::NotPossible => {
            return Err(OpenError::Refused {
                device: Arc::clone(&device.name),
                refusal: Refusal::NoLock,
            });
        }
        Locked::InUse => {
            let found = fstat(&device.file).map_err(|errno| io(errno.into()))?;
            let path = Path::new(&*device.name);
            let file = device.file.as_fd();
            let writer = lock_owner(path, file, &found, true);
            return Err(refused(match writer {
                None if device.writes => match lock_owner(path, file, &found, false) {
                    None => ImageUser::Writer(None),
                    reader => ImageUser::Reader(reader),
                },
                writer => ImageUser::Writer(writer),
            }));
        }
    }
    if let Some((below, offset)) = &device.backing {
        let below_part = part.start.saturating_add(*offset)..part.end.saturating_add(*offset);
        lock_part(below, &below_part).map_err(|error| of_backing(&device.name, error))?;
    }
    Ok(())
}

/// Converts an error of a loop device's backing file into one of the device.
fn of_backing(name: &Arc<str>, error: OpenError) -> OpenError {
    match error {
        OpenError::Refused {
            device,
            refusal: Refusal::InUse(user),
        } => OpenError::Refused {
            device: Arc::clone(name),
            refusal: Refusal::InUse(ImageUser::Backing {
                file: device,
                user: Box::new(user),
            }),
        },
        error @ (OpenError::Refused { .. } | OpenError::Io(_)) => error,
    }
}

/// An image that is being opened.
struct Opening<'a> {
    path: &'a Path,
    name: Arc<str>,
    options: OpenOptions,
    share: Share,
    /// Number of loop devices above it.
    depth: u32,
}

impl Opening<'_> {
    fn io(&self, source: Errno) -> IoError {
        IoError::new(&self.name, Operation::Open, 0, 0, source)
    }

    fn refused(&self, refusal: Refusal) -> OpenError {
        let device = Arc::clone(&self.name);
        OpenError::Refused { device, refusal }
    }

    /// Locks what is open, and looks at its size and limits.
    fn finish(self, file: OwnedFd, kind: FileKind, found: &Stat) -> Result<FileDevice, OpenError> {
        let writes = self.options.access.writes();
        let locked = self.lock(&file, found)?;
        let backing = match kind {
            FileKind::Block if locked => self.backing(found)?,
            FileKind::Block | FileKind::Regular => None,
        };
        if writes
            && kind == FileKind::Regular
            && self.depth == 0
            && let Some(device) = attached_loop_device(file.as_fd(), found)
        {
            return Err(self.refused(Refusal::InUse(ImageUser::Loop(device))));
        }
        let geometry = self.geometry(&file, kind, found)?;
        let direct = if self.options.direct {
            Some(self.open_direct(kind, found, &geometry)?)
        } else {
            None
        };
        Ok(FileDevice {
            name: self.name,
            len_bytes: geometry.len_bytes.into(),
            geometry,
            kind,
            file,
            direct,
            flush: StickyFlush::default(),
            locked,
            writes,
            backing,
        })
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
            // Without effect on a regular file, and does not block if it was replaced by a FIFO.
            FileKind::Regular => flags |= OFlags::NONBLOCK,
            // Claims the device; the descriptor for direct I/O is opened under that claim.
            FileKind::Block if writes && extra.is_empty() && self.depth == 0 => {
                flags |= OFlags::EXCL;
            }
            FileKind::Block => {}
        }
        if !writes {
            // Only the owner may open a file without updating its access time.
            match self.open_waiting(flags | OFlags::NOATIME) {
                Err(Errno::PERM) => {}
                opened => return opened.map_err(|source| self.open_failed(source, extra)),
            }
        }
        self.open_waiting(flags)
            .map_err(|source| self.open_failed(source, extra))
    }

    /// Opens the file, and waits for the end of an unmount that holds a lease on it.
    fn open_waiting(&self, flags: OFlags) -> Result<OwnedFd, Errno> {
        match open_fd(self.path, flags, Mode::empty()) {
            Err(Errno::WOULDBLOCK) if flags.contains(OFlags::NONBLOCK) => {
                open_fd(self.path, flags - OFlags::NONBLOCK, Mode::empty())
            }
            opened => opened,
        }
    }

    fn open_failed(&self, source: Errno, extra: OFlags) -> OpenError {
        match source {
            Errno::BUSY => self.refused(Refusal::InUse(ImageUser::Claim)),
            Errno::INVAL if extra.contains(OFlags::DIRECT) => self.refused(Refusal::NoDirect),
            source => self.io(source).into(),
        }
    }

    /// Takes the lock for the access. Returns whether the file is locked now.
    fn lock(&self, file: &OwnedFd, found: &Stat) -> Result<bool, OpenError> {
        let writes = match self.options.access {
            Access::ReadUnlocked => return Ok(false),
            Access::Read => false,
            Access::Write => true,
        };
        let failed = |source| IoError::new(&self.name, Operation::Open, 0, 0, source);
        match lock::lock(file, self.share, writes).map_err(failed)? {
            Locked::Yes => Ok(true),
            Locked::InUse => Err(self.refused(Refusal::InUse(self.lock_owner(file, found)))),
            Locked::NotPossible if writes => Err(self.refused(Refusal::NoLock)),
            Locked::NotPossible => Ok(false),
        }
    }

    /// Returns the user that holds the conflicting lock.
    fn lock_owner(&self, file: &OwnedFd, found: &Stat) -> ImageUser {
        lock::unlock(file);
        if self.options.access.writes() && lock::is_shared_with_readers(file) {
            ImageUser::Reader(lock_owner(self.path, file.as_fd(), found, false))
        } else {
            ImageUser::Writer(lock_owner(self.path, file.as_fd(), found, true))
        }
    }

    /// Opens and locks the backing file of a loop device; returns it with the offset of the device.
    fn backing(&self, found: &Stat) -> Result<Option<(Box<FileDevice>, u64)>, OpenError> {
        let Some(backing) = Backing::of(found) else {
            return Ok(None);
        };
        if self.depth >= BACKING_DEPTH_MAX {
            return Ok(None);
        }
        let options = OpenOptions {
            direct: false,
            ..self.options
        };
        let below = match open_above(&backing.path, options, Share::Parts, self.depth + 1) {
            // It cannot be opened here, and so not by another process through this path either.
            Err(OpenError::Io(_)) => return Ok(None),
            below => below.map_err(|error| of_backing(&self.name, error))?,
        };
        if self.share == Share::Whole {
            lock_part(&below, &backing.range).map_err(|error| of_backing(&self.name, error))?;
        }
        Ok(Some((Box::new(below), backing.range.start)))
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
        // The path may refer to another file by now.
        if (again.st_dev, again.st_ino, again.st_rdev)
            != (found.st_dev, found.st_ino, found.st_rdev)
        {
            return Err(self.io(Errno::AGAIN).into());
        }
        let alignment = statx(&file, "", AtFlags::EMPTY_PATH, StatxFlags::DIOALIGN);
        let align = match alignment {
            Ok(limits) if limits.stx_mask & StatxFlags::DIOALIGN.bits() != 0 => {
                limits.stx_dio_offset_align.max(limits.stx_dio_mem_align)
            }
            Ok(_) | Err(_) => match kind {
                FileKind::Block => geometry.logical_block_bytes,
                // The block size of the disk below is unknown; no logical block is larger than
                // this.
                FileKind::Regular => geometry.physical_block_bytes.max(4096),
            },
        };
        if !align.is_power_of_two() || align > ALIGN_BYTES_MAX {
            return Err(self.refused(Refusal::NoDirect));
        }
        Ok(DirectFile::new(file, align))
    }
}
