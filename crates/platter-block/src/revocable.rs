//! A device that can be revoked while other references to it exist.

use std::io::{self, IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use crate::lock::RwLock;

use crate::device::total_len;
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Passes requests to the device below until it is [revoked](Self::revoke). After that all requests
/// fail, and the device below is released.
#[derive(Debug)]
pub struct RevocableDevice {
    name: Arc<str>,
    geometry: Geometry,
    /// The length, which may have grown.
    len_bytes: AtomicU64,
    /// The device below, until it is revoked.
    base: RwLock<Option<Arc<dyn BlockDevice>>>,
}

impl RevocableDevice {
    /// Creates a device that passes requests to `base`.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            name: Arc::clone(base.name()),
            geometry: base.geometry(),
            len_bytes: base.geometry().len_bytes.into(),
            base: RwLock::new(Some(base)),
        }
    }

    /// Releases the device below once the requests in flight have ended.
    pub fn revoke(&self) {
        drop(self.base.write().take());
    }

    /// Returns the device below. No lock is held over its requests.
    fn base(
        &self,
        operation: Operation,
        offset: u64,
        length: usize,
    ) -> Result<Arc<dyn BlockDevice>, IoError> {
        self.base.read().clone().ok_or_else(|| {
            let closed = io::Error::other("device was closed");
            IoError::new(&self.name, operation, offset, length as u64, closed)
        })
    }
}

impl BlockDevice for RevocableDevice {
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
        let base = self.base(Operation::Write, len_bytes, 0)?;
        base.grow(len_bytes)?;
        let len_bytes = base.geometry().len_bytes;
        self.len_bytes.fetch_max(len_bytes, Ordering::AcqRel);
        Ok(())
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        let base = self.base(Operation::Read, offset, buf.len())?;
        base.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        let base = self.base(Operation::Read, offset, total_len(bufs))?;
        base.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let base = self.base(Operation::Write, offset, buf.len())?;
        base.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        let base = self.base(Operation::Write, offset, total_len(bufs))?;
        base.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.base(Operation::Flush, 0, 0)?.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let base = self.base(Operation::Discard, range.start, 0)?;
        base.discard(range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.base(Operation::Read, offset, 0)?.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        if let Ok(base) = self.base(Operation::Read, range.start, 0) {
            base.will_need(range);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn revoked_device_is_released() {
        let base = Arc::new(MemoryDevice::new("memory", vec![7; 1024]));
        let device = RevocableDevice::new(base.clone());
        let mut buf = [0; 8];
        device.read_at(8, &mut buf).unwrap();
        device.write_at(0, &[1]).unwrap();
        device.revoke();
        assert_eq!(Arc::strong_count(&base), 1);
        for refused in [
            device.read_at(8, &mut buf),
            device.write_at(0, &[2]),
            device.flush(),
        ] {
            let error = refused.unwrap_err().to_string();
            assert!(
                error.contains("memory") && error.contains("device was closed"),
                "{error}"
            );
        }
        assert_eq!(base.snapshot()[0], 1);
        assert_eq!(device.geometry().len_bytes, 1024);
    }
}
