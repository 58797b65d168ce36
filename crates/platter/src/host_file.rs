//! Files of the host: which of them a filesystem lies in, and where they have data.

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::ops::Range;
use std::os::fd::AsFd;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;

use platter_block::FileDevice;
use platter_vfs::Condition;
use rustix::fs::{FileType, SeekFrom, Stat, fstat, major, minor, seek, stat};
use rustix::io::Errno;

use crate::{Cause, Error, ImageSpec};

/// A file or block device of the host, whatever its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(crate) enum HostFileId {
    /// Its filesystem, and its inode there.
    Inode(u64, u64),
    /// A block device, whatever filesystem it has a name on.
    BlockDevice(u64),
}

impl HostFileId {
    pub(crate) fn of(stat: &Stat) -> Self {
        if FileType::from_raw_mode(stat.st_mode).is_block_device() {
            return Self::BlockDevice(stat.st_rdev);
        }
        Self::inode_of(stat)
    }

    /// A file as such, be it the node of a block device.
    pub(crate) fn inode_of(stat: &Stat) -> Self {
        Self::Inode(stat.st_dev, stat.st_ino)
    }

    /// The one that a path leads to.
    pub(crate) fn at(path: &Path) -> Result<Self, Errno> {
        Ok(Self::of(&stat(path)?))
    }

    /// The one that is open.
    pub(crate) fn of_open(file: impl AsFd) -> Result<Self, Errno> {
        Ok(Self::of(&fstat(file)?))
    }

    /// What a device lies in: its file, and the backing file if it is a loop device.
    pub(crate) fn below(device: &FileDevice) -> Vec<Self> {
        let first = Self::of_open(device).ok();
        std::iter::successors(first, Self::backing).collect()
    }

    /// Whether to write to it changes one of `files`: it is one, or a loop device over one.
    pub(crate) fn changes(self, files: &[Self]) -> bool {
        std::iter::successors(Some(self), Self::backing).any(|below| files.contains(&below))
    }

    /// The backing file of a loop device, or of a partition of one.
    fn backing(&self) -> Option<Self> {
        let Self::BlockDevice(number) = *self else {
            return None;
        };
        let link = format!("/sys/dev/block/{}:{}", major(number), minor(number));
        let dir = fs::canonicalize(link).ok()?;
        let mut dirs = dir.ancestors().take(2);
        let file = dirs.find_map(|dir| fs::read(dir.join("loop/backing_file")).ok())?;
        let path = file.strip_suffix(b"\n").unwrap_or(&file);
        Self::at(Path::new(OsStr::from_bytes(path))).ok()
    }
}

/// The ranges of a file of the host that are no holes, up to a size. All of it is data where the host knows of no holes.
pub fn data_ranges(file: &File, size_bytes: u64) -> io::Result<Vec<Range<u64>>> {
    let mut ranges = Vec::new();
    let mut at = 0;
    while at < size_bytes {
        let start = match seek(file, SeekFrom::Data(at)) {
            Ok(start) => start,
            Err(Errno::NXIO) => break,
            Err(Errno::INVAL | Errno::NOTSUP) => at,
            Err(error) => return Err(error.into()),
        };
        let end = match seek(file, SeekFrom::Hole(start)) {
            Ok(end) => end.min(size_bytes),
            Err(Errno::INVAL | Errno::NOTSUP | Errno::NXIO) => size_bytes,
            Err(error) => return Err(error.into()),
        };
        if start >= size_bytes || end <= start {
            break;
        }
        ranges.push(start..end);
        at = end;
    }
    Ok(ranges)
}

/// The error of opening an image for a command that has the files `open` open already: it may be one of them.
pub(crate) fn explain_in_use(error: Error, spec: &ImageSpec, open: &[HostFileId]) -> Error {
    let is_open = || HostFileId::at(&spec.image).is_ok_and(|file| open.contains(&file));
    if error.errno() == Errno::BUSY && is_open() {
        let twice = Condition::InvalidArgument.because("is given twice");
        return Error::new(&error.image, twice);
    }
    error
}

/// The error of a target at a path of the host in which the source lies.
pub(crate) fn holds_source(path: &Path) -> Error {
    let text = "is the image that is read from, and would be overwritten";
    Error::at_path(
        &"".into(),
        path.as_os_str().as_encoded_bytes(),
        Cause::from(std::io::Error::other(text)),
    )
}
