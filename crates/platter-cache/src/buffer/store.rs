//! What a buffer cache reads from and writes to: a device, or a driver's mapping over several.

use std::fmt;
use std::io::{IoSlice, IoSliceMut};
use std::sync::Arc;

use platter_block::BlockDevice;

use super::BufferError;

/// A space of byte addresses that metadata blocks lie in, each with one copy or more.
///
/// Copies are counted from zero; the first is the one that is read as long as it is good. A store that
/// prefers another copy, or lacks a device, numbers them accordingly.
pub trait MetadataStore: Send + Sync + 'static {
    /// The name that messages give the store.
    fn name(&self) -> &Arc<str>;

    /// The address after the last byte: readahead does not go beyond.
    fn len_bytes(&self) -> u64;

    /// Number of copies of the block at `at`. Asked only after a copy turned out bad.
    fn copies(&self, at: u64, len_bytes: u32) -> u16;

    /// Fills `bufs`, neighbouring blocks, from one copy. Fails for addresses that are not mapped.
    fn read(&self, at: u64, copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError>;

    /// Writes neighbouring blocks, all copies of each.
    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError>;

    /// Writes one copy of a block, which was found bad.
    fn repair(&self, at: u64, copy: u16, bytes: &[u8]) -> Result<(), BufferError>;
}

/// One device: addresses are its own, and every block has one copy.
pub struct DeviceStore {
    device: Arc<dyn BlockDevice>,
}

impl DeviceStore {
    /// A store on `device`.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>) -> Self {
        Self { device }
    }

    /// The device.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }
}

impl MetadataStore for DeviceStore {
    fn name(&self) -> &Arc<str> {
        self.device.name()
    }

    fn len_bytes(&self) -> u64 {
        self.device.geometry().len_bytes
    }

    fn copies(&self, _at: u64, _len_bytes: u32) -> u16 {
        1
    }

    fn read(&self, at: u64, _copy: u16, bufs: &mut [IoSliceMut<'_>]) -> Result<(), BufferError> {
        match bufs {
            [buf] => self.device.read_at(at, buf)?,
            bufs => self.device.read_vectored_at(at, bufs)?,
        }
        Ok(())
    }

    fn write(&self, at: u64, bufs: &[IoSlice<'_>]) -> Result<(), BufferError> {
        Ok(self.device.write_vectored_at(at, bufs)?)
    }

    fn repair(&self, at: u64, _copy: u16, bytes: &[u8]) -> Result<(), BufferError> {
        Ok(self.device.write_at(at, bytes)?)
    }
}

impl fmt::Debug for DeviceStore {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("DeviceStore")
            .field("device", &self.device.name())
            .finish()
    }
}
