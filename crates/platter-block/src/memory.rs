//! A device in memory, for tests and for images that never reach a disk.

use std::ops::Range;
use std::sync::Arc;

use parking_lot::RwLock;

use crate::device::check_range;
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Bytes in memory as a device. A flush has nothing to do.
#[derive(Debug)]
pub struct MemoryDevice {
    name: Arc<str>,
    geometry: Geometry,
    bytes: RwLock<Vec<u8>>,
}

impl MemoryDevice {
    /// A writable device of 512-byte blocks that holds `bytes`.
    #[must_use]
    pub fn new(name: &str, bytes: Vec<u8>) -> Self {
        let geometry = Geometry {
            len_bytes: bytes.len() as u64,
            logical_block_bytes: 512,
            physical_block_bytes: 512,
            read_only: false,
        };
        Self {
            name: name.into(),
            geometry,
            bytes: RwLock::new(bytes),
        }
    }

    /// The same device with logical and physical blocks of another size, which is a power of two:
    /// what a power cut leaves whole or not at all.
    #[must_use]
    pub fn with_blocks(mut self, block_bytes: u32) -> Self {
        self.geometry.logical_block_bytes = block_bytes;
        self.geometry.physical_block_bytes = block_bytes;
        self
    }

    /// A copy of what the device holds now.
    #[must_use]
    pub fn snapshot(&self) -> Vec<u8> {
        self.bytes.read().clone()
    }

    fn range(offset: u64, length: usize) -> Range<usize> {
        let start = usize::try_from(offset).unwrap_or(usize::MAX);
        start..start.saturating_add(length)
    }
}

impl BlockDevice for MemoryDevice {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        self.geometry
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        buf.copy_from_slice(&self.bytes.read()[Self::range(offset, buf.len())]);
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        self.bytes.write()[Self::range(offset, buf.len())].copy_from_slice(buf);
        Ok(())
    }

    fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let length = usize::try_from(range.end.saturating_sub(range.start)).unwrap_or(usize::MAX);
        check_range(self, Operation::Discard, range.start, length)?;
        self.bytes.write()[Self::range(range.start, length)].fill(0);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn requests_beyond_the_end_are_errors() {
        let device = MemoryDevice::new("memory", vec![7; 1024]);
        let mut buf = [0; 512];
        device.read_at(512, &mut buf).unwrap();
        assert_eq!(buf, [7; 512]);
        assert!(device.read_at(513, &mut buf).is_err());
        assert!(device.write_at(u64::MAX, &buf).is_err());
    }
}
