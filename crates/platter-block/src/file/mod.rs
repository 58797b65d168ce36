//! An image file or a real block device as a device.

mod backing;
mod flush;
mod in_use;
mod lease;
mod lock;
mod transfer;
mod direct;
mod open;

use std::io::{self, IoSlice, IoSliceMut};
use std::num::NonZeroU64;
use std::ops::Range;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use rustix::fs::{Advice, FallocateFlags, SeekFrom, fadvise, fallocate, fstat, ftruncate, seek};
use rustix::io::Errno;

use crate::device::{check_range, check_range_vectored, check_span};
use crate::sys::blkdev;
use crate::{BlockDevice, Geometry, IoError, Operation};
use direct::DirectFile;
use flush::StickyFlush;

pub use in_use::{ImageUser, Process};
pub use open::{Access, OpenError, OpenOptions, Refusal};

/// An open regular file or block device. Closing it releases its locks.
///
/// The capacity is the size at the time of opening, unless it [grows](BlockDevice::grow): a write never extends the file.
#[derive(Debug)]
pub struct FileDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// Its length, which may have grown.
    len_bytes: AtomicU64,
    kind: FileKind,
    file: OwnedFd,
    direct: Option<DirectFile>,
    flush: StickyFlush,
    locked: bool,
    writes: bool,
    /// The backing file of a loop device, locked too, and the offset of the device in it.
    backing: Option<(Box<FileDevice>, u64)>,
}

/// The kind of file underlying a device.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum FileKind {
    Regular,
    Block,
}

impl FileDevice {
    /// Opens a regular file or a block device.
    ///
    /// A writer locks it exclusively, and claims a block device (`O_EXCL`), so that a mounted one
    /// is refused. A reader takes a shared lock unless `options` says otherwise, writes nothing, and does not
    /// update the access time where it may avoid it.
    pub fn open(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        open::open(path, options, lock::Share::Whole)
    }

    /// Opens an image of which only parts will be used, each locked with
    /// [`lock_part`](Self::lock_part). Other processes may use other parts, for writing too.
    ///
    /// A block device is still claimed as a whole.
    pub fn open_parts(path: &Path, options: OpenOptions) -> Result<Self, OpenError> {
        open::open(path, options, lock::Share::Parts)
    }

    /// Uses a file that is open already, locked as [`open`](Self::open) does it. To write a block device, it is
    /// opened once more, to claim it.
    ///
    /// # Errors
    /// `EBADF` if it is not open for reading, and for writing where that is asked for; `EINVAL` if it is open with
    /// `O_APPEND` or `O_DIRECT`.
    pub fn from_file(file: std::fs::File, access: Access) -> Result<Self, OpenError> {
        open::use_open(file.into(), access)
    }

    /// Locks a part of an image that was opened with [`open_parts`](Self::open_parts), as its
    /// access requires. If the filesystem has no range locks, a writer locks the whole file.
    pub fn lock_part(&self, part: &Range<u64>) -> Result<(), OpenError> {
        open::lock_part(self, part)
    }

    /// Whether the image is locked: not with [`Access::ReadUnlocked`], nor for a reader on a
    /// filesystem without locks.
    #[must_use]
    pub fn is_locked(&self) -> bool {
        self.locked
    }

    fn refuse_read_only(
        &self,
        operation: Operation,
        offset: u64,
        length: u64,
    ) -> Result<(), IoError> {
        if self.geometry.read_only {
            return Err(IoError::read_only(&self.name, operation, offset, length));
        }
        Ok(())
    }

    /// Discards the whole blocks inside `range`. Partial blocks at its ends are left unchanged.
    fn discard_block_device(&self, range: &Range<u64>) -> rustix::io::Result<()> {
        let block = u64::from(self.geometry.logical_block_bytes);
        let start = range.start.next_multiple_of(block);
        let end = range.end - range.end % block;
        if start >= end {
            return Ok(());
        }
        blkdev::discard(self.file.as_fd(), start, end - start)
    }

    /// Makes a file at least so long. Returns its length.
    fn extend(&self, len_bytes: u64) -> rustix::io::Result<u64> {
        let is = u64::try_from(fstat(&self.file)?.st_size).map_err(|_| Errno::OVERFLOW)?;
        if is < len_bytes {
            ftruncate(&self.file, len_bytes)?;
        }
        Ok(is.max(len_bytes))
    }

    fn punch_hole(&self, range: &Range<u64>) -> rustix::io::Result<()> {
        let mode = FallocateFlags::PUNCH_HOLE | FallocateFlags::KEEP_SIZE;
        let length = range.end - range.start;
        loop {
            match fallocate(&self.file, mode, range.start, length) {
                Err(Errno::INTR) => {}
                done => return done,
            }
        }
    }
}

/// Returns the open file, with its lock.
impl AsFd for FileDevice {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.file.as_fd()
    }
}

impl Drop for FileDevice {
    fn drop(&mut self) {
        if self.locked {
            // A child process shares the open file, and with it the lock, until it calls exec;
            // closing alone may release the lock late.
            lock::unlock(&self.file);
        }
    }
}

impl BlockDevice for FileDevice {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes.load(Ordering::Acquire),
            ..self.geometry
        }
    }

    fn grow(&self, len_bytes: u64) -> Result<(), IoError> {
        self.refuse_read_only(Operation::Write, len_bytes, 0)?;
        let now = match self.kind {
            FileKind::Regular => self.extend(len_bytes),
            FileKind::Block => blkdev::capacity_bytes(self.file.as_fd()),
        };
        let now =
            now.map_err(|source| IoError::new(&self.name, Operation::Write, len_bytes, 0, source))?;
        self.len_bytes.fetch_max(now, Ordering::AcqRel);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        let length = buf.len() as u64;
        match &self.direct {
            None => transfer::read(&self.file, offset, buf),
            Some(direct) => direct.read(offset, &mut [IoSliceMut::new(buf)]),
        }
        .map_err(|source| IoError::new(&self.name, Operation::Read, offset, length, source))
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Read, offset, bufs)?;
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        match &self.direct {
            None => transfer::read_vectored(&self.file, offset, bufs),
            Some(direct) => direct.read(offset, bufs),
        }
        .map_err(|source| IoError::new(&self.name, Operation::Read, offset, length, source))
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.refuse_read_only(Operation::Write, offset, buf.len() as u64)?;
        check_range(self, Operation::Write, offset, buf.len())?;
        match &self.direct {
            None => transfer::write(&self.file, offset, buf),
            Some(direct) => direct.write(&self.file, offset, &[IoSlice::new(buf)]),
        }
        .map_err(|source| {
            let length = buf.len() as u64;
            IoError::new(&self.name, Operation::Write, offset, length, source)
        })
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        let length = bufs.iter().map(|buf| buf.len() as u64).sum();
        self.refuse_read_only(Operation::Write, offset, length)?;
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        match &self.direct {
            None => transfer::write_vectored(&self.file, offset, bufs),
            Some(direct) => direct.write(&self.file, offset, bufs),
        }
        .map_err(|source| IoError::new(&self.name, Operation::Write, offset, length, source))
    }

    fn flush(&self) -> Result<(), IoError> {
        self.refuse_read_only(Operation::Flush, 0, 0)?;
        self.flush
            .run(|| transfer::sync_data(&self.file))
            .map_err(|source| IoError {
                device: Arc::clone(&self.name),
                operation: Operation::Flush,
                offset: 0,
                length: 0,
                source,
            })
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let length = range.end.saturating_sub(range.start);
        self.refuse_read_only(Operation::Discard, range.start, length)?;
        check_span(self, Operation::Discard, &range)?;
        if range.is_empty() {
            return Ok(());
        }
        let done = match self.kind {
            FileKind::Regular => self.punch_hole(&range),
            FileKind::Block => self.discard_block_device(&range),
        };
        match done {
            Ok(()) | Err(Errno::OPNOTSUPP | Errno::NOSYS) => Ok(()),
            Err(source) => Err(IoError::new(
                &self.name,
                Operation::Discard,
                range.start,
                length,
                source,
            )),
        }
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let end = self.geometry().len_bytes;
        if offset >= end {
            return Ok(None);
        }
        if self.kind == FileKind::Block {
            return Ok(Some(offset..end));
        }
        let error = |source: Errno| {
            let source = io::Error::from(source);
            IoError::new(&self.name, Operation::Read, offset, end - offset, source)
        };
        match seek(&self.file, SeekFrom::Data(offset)) {
            Ok(start) if start >= end => Ok(None),
            Ok(start) => {
                let hole = seek(&self.file, SeekFrom::Hole(start)).map_err(error)?;
                Ok(Some(start..hole.clamp(start, end)))
            }
            Err(Errno::NXIO) => Ok(None),
            // The filesystem does not report holes.
            Err(Errno::INVAL | Errno::OPNOTSUPP) => Ok(Some(offset..end)),
            Err(source) => Err(error(source)),
        }
    }

    fn will_need(&self, range: Range<u64>) {
        // Direct reads do not use the page cache, which this would fill.
        if self.direct.is_some() {
            return;
        }
        let end = range.end.min(self.geometry().len_bytes);
        if let Some(length) = end.checked_sub(range.start).and_then(NonZeroU64::new) {
            let _ = fadvise(&self.file, range.start, Some(length), Advice::WillNeed);
        }
    }
}

#[cfg(test)]
mod tests;
