//! The block device trait and the geometry of a device.

use std::fmt::Debug;
use std::io::{IoSlice, IoSliceMut};
use std::ops::{Deref, Range};
use std::sync::Arc;

use crate::{IoError, Operation};

/// Size and block sizes of a device, fixed while it is open but for a size that [grows](BlockDevice::grow).
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Geometry {
    /// Capacity in bytes.
    pub len_bytes: u64,
    /// The smallest addressable unit in bytes: partition tables count in it.
    pub logical_block_bytes: u32,
    /// The unit in bytes that the disk writes without reading it first; at least the logical block
    /// size.
    pub physical_block_bytes: u32,
    /// Writes, flushes and discards are refused.
    pub read_only: bool,
}

/// A device of fixed capacity, read and written at byte offsets by any number of threads at once.
///
/// # Ordering
/// A write is durable only once a [`flush`](Self::flush) that began after the write returned has
/// returned `Ok`. Between two flushes, writes may become durable in any order, wholly, in part
/// (whole logical blocks), or not at all. After a failed flush, the durability of all writes since
/// the last successful one is undefined; a later successful flush does not cover them.
///
/// Overlapping requests that run concurrently have no defined order.
pub trait BlockDevice: Send + Sync + Debug {
    /// Returns the device's name in errors and messages: a path, or a description.
    fn name(&self) -> &Arc<str>;

    /// Returns the size and the block sizes.
    fn geometry(&self) -> Geometry;

    /// Fills `buf` from `offset`. Fails if any byte is beyond the end of the device.
    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError>;

    /// Fills `bufs` one after the other from `offset`, as one request where the backend can.
    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        read_in_turn(self, offset, bufs)
    }

    /// Writes all of `buf` at `offset`. On an error, any part of it may have been written.
    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError>;

    /// Writes `bufs` one after the other at `offset`, as one request where the backend can.
    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        write_in_turn(self, offset, bufs)
    }

    /// Makes every write that returned before this call durable, as defined in the trait's ordering
    /// section.
    fn flush(&self) -> Result<(), IoError>;

    /// Discards a range: its contents are no longer needed, and unspecified afterwards.
    ///
    /// This is a hint: a device without discard support does nothing and succeeds.
    fn discard(&self, range: Range<u64>) -> Result<(), IoError>;

    /// Returns the first range at or after `offset` that may hold bytes other than zero
    /// (`SEEK_DATA`), or `None` if only zeros follow. The default reports no holes.
    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let end = self.geometry().len_bytes;
        Ok((offset < end).then_some(offset..end))
    }

    /// Makes the device at least so many bytes long, where it can: a file is extended, and of a block device the size that
    /// it has by now counts. Its geometry says what became of it.
    fn grow(&self, len_bytes: u64) -> Result<(), IoError> {
        let _ = len_bytes;
        Ok(())
    }

    /// Requests readahead of a range. A hint, without effect on the bytes read.
    fn will_need(&self, range: Range<u64>) {
        let _ = range;
    }
}

/// Fills `bufs` one after the other, each by a request of its own.
pub(crate) fn read_in_turn<D: BlockDevice + ?Sized>(
    device: &D,
    offset: u64,
    bufs: &mut [IoSliceMut<'_>],
) -> Result<(), IoError> {
    let mut at = offset;
    for buf in bufs {
        device.read_at(at, buf)?;
        at += buf.len() as u64;
    }
    Ok(())
}

/// Writes `bufs` one after the other, each by a request of its own.
pub(crate) fn write_in_turn<D: BlockDevice + ?Sized>(
    device: &D,
    offset: u64,
    bufs: &[IoSlice<'_>],
) -> Result<(), IoError> {
    let mut at = offset;
    for buf in bufs {
        device.write_at(at, buf)?;
        at += buf.len() as u64;
    }
    Ok(())
}

/// Checks that a request is within the device; for backends.
pub fn check_range(
    device: &dyn BlockDevice,
    operation: Operation,
    offset: u64,
    length: usize,
) -> Result<(), IoError> {
    let length = length as u64;
    let end = offset.checked_add(length);
    if end.is_none_or(|end| end > device.geometry().len_bytes) {
        let name = device.name();
        return Err(IoError::out_of_range(name, operation, offset, length));
    }
    Ok(())
}

/// Checks that a vectored request is within the device; for backends.
pub fn check_range_vectored<B: Deref<Target = [u8]>>(
    device: &dyn BlockDevice,
    operation: Operation,
    offset: u64,
    bufs: &[B],
) -> Result<(), IoError> {
    check_range(device, operation, offset, total_len(bufs))
}

/// Checks that a range of bytes is not reversed and is within the device; for backends.
pub fn check_span(
    device: &dyn BlockDevice,
    operation: Operation,
    range: &Range<u64>,
) -> Result<(), IoError> {
    if range.start > range.end || range.end > device.geometry().len_bytes {
        let length = range.end.saturating_sub(range.start);
        let name = device.name();
        return Err(IoError::out_of_range(name, operation, range.start, length));
    }
    Ok(())
}

/// Returns the total length in bytes of the buffers of a vectored request.
pub(crate) fn total_len<B: Deref<Target = [u8]>>(bufs: &[B]) -> usize {
    bufs.iter()
        .fold(0usize, |sum, buf| sum.saturating_add(buf.len()))
}
