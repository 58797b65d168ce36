//! A device that takes the place of another one while that is written.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::{BlockDevice, Geometry, IoError};

use crate::ondisk::superblock::{SUPERBLOCK_BYTES, SUPERBLOCK_OFFSETS};

/// Writes go to a device and to its replacement, reads to the device. Superblocks stay as they are on the replacement:
/// without one it belongs to no filesystem.
#[derive(Debug)]
pub struct MirrorDevice {
    device: Arc<dyn BlockDevice>,
    replacement: Arc<dyn BlockDevice>,
    has_failed: AtomicBool,
}

impl MirrorDevice {
    /// The device and its replacement, which is at least as long.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, replacement: Arc<dyn BlockDevice>) -> Self {
        Self {
            device,
            replacement,
            has_failed: AtomicBool::new(false),
        }
    }

    /// Whether something could not be written to the replacement: writers do not see that.
    #[must_use]
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::Acquire)
    }

    fn mirror(&self, write: impl FnOnce(&dyn BlockDevice) -> Result<(), IoError>) {
        if !self.has_failed() && write(&*self.replacement).is_err() {
            self.has_failed.store(true, Ordering::Release);
        }
    }
}

/// Whether a write is that of a superblock: nothing else is written at its place.
fn is_superblock(offset: u64, len: usize) -> bool {
    SUPERBLOCK_OFFSETS.contains(&offset) && len == SUPERBLOCK_BYTES
}

impl BlockDevice for MirrorDevice {
    fn name(&self) -> &Arc<str> {
        self.device.name()
    }

    fn geometry(&self) -> Geometry {
        self.device.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.device.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.device.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        if !is_superblock(offset, buf.len()) {
            self.mirror(|replacement| replacement.write_at(offset, buf));
        }
        self.device.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        self.mirror(|replacement| replacement.write_vectored_at(offset, bufs));
        self.device.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.mirror(|replacement| replacement.flush());
        self.device.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        self.device.discard(range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.device.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.device.will_need(range);
    }
}
