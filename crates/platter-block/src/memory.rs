//! A device in memory, for tests and for images that never reach a disk.

use std::ops::Range;
use std::sync::Arc;

use crate::lock::RwLock;

use crate::device::check_range;
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Granularity of hole detection: an aligned chunk of this length that is all zeros is a hole.
const HOLE_BYTES: usize = 4096;

/// A device in memory. A flush does nothing.
#[derive(Debug)]
pub struct MemoryDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// The contents.
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

    /// Sets the logical and physical block size, a power of two: the unit that survives a power
    /// failure wholly or not at all.
    #[must_use]
    pub fn with_blocks(mut self, block_bytes: u32) -> Self {
        self.geometry.logical_block_bytes = block_bytes;
        self.geometry.physical_block_bytes = block_bytes;
        self
    }

    /// Returns a copy of the current contents.
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

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let bytes = self.bytes.read();
        let from = Self::range(offset, 0).start.min(bytes.len());
        let first = from / HOLE_BYTES * HOLE_BYTES;
        let units = bytes.get(first..).unwrap_or_default().chunks(HOLE_BYTES);
        let is_data = |unit: &[u8]| unit.iter().any(|&byte| byte != 0);
        let skipped = units.clone().take_while(|unit| !is_data(unit)).count();
        let data = units.skip(skipped).take_while(|unit| is_data(unit));
        let start = first + skipped * HOLE_BYTES;
        let end = start + data.map(<[u8]>::len).sum::<usize>();
        let start = start.max(from);
        Ok((start < end).then_some(start as u64..end as u64))
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

    #[test]
    fn zeros_are_holes() {
        let mut bytes = vec![0; 5 * HOLE_BYTES + 100];
        bytes[HOLE_BYTES + 7] = 1;
        bytes[2 * HOLE_BYTES] = 1;
        bytes[5 * HOLE_BYTES + 99] = 1;
        let device = MemoryDevice::new("memory", bytes);
        let next = |offset| device.next_data(offset).unwrap();
        let first = Some(4096..3 * 4096);
        assert_eq!([next(0), next(4096)], [first.clone(), first]);
        assert_eq!(next(5000), Some(5000..3 * 4096));
        let last = Some(5 * 4096..5 * 4096 + 100);
        assert_eq!(next(3 * 4096), last);
        assert_eq!([next(5 * 4096 + 100), next(u64::MAX)], [None, None]);
    }
}
