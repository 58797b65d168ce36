//! A device that refuses every change.

use std::io::IoSliceMut;
use std::ops::Range;
use std::sync::Arc;

use crate::{BlockDevice, Geometry, IoError, Operation};

/// A read-only view of a device: writes, flushes and discards are refused.
#[derive(Debug)]
pub struct ReadOnlyDevice {
    base: Arc<dyn BlockDevice>,
}

impl ReadOnlyDevice {
    /// Creates a read-only view of `base`.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self { base }
    }
}

impl BlockDevice for ReadOnlyDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            read_only: true,
            ..self.base.geometry()
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.base.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.base.read_vectored_at(offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        let length = buf.len() as u64;
        Err(IoError::read_only(
            self.name(),
            Operation::Write,
            offset,
            length,
        ))
    }

    fn flush(&self) -> Result<(), IoError> {
        Err(IoError::read_only(self.name(), Operation::Flush, 0, 0))
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let length = range.end.saturating_sub(range.start);
        Err(IoError::read_only(
            self.name(),
            Operation::Discard,
            range.start,
            length,
        ))
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.base.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use std::io::IoSlice;

    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn read_only_device_passes_only_reads() {
        let base = Arc::new(MemoryDevice::new("memory", vec![7; 1024]));
        let guard = ReadOnlyDevice::new(base.clone());
        assert!(guard.geometry().read_only);
        let mut buf = [0; 8];
        guard.read_at(8, &mut buf).unwrap();
        assert_eq!(buf, [7; 8]);
        for refused in [
            guard.write_at(0, &[1]),
            guard.write_vectored_at(0, &[IoSlice::new(&[1])]),
            guard.discard(0..512),
            guard.flush(),
        ] {
            let kind = refused.unwrap_err().source.kind();
            assert_eq!(kind, std::io::ErrorKind::ReadOnlyFilesystem);
        }
        assert_eq!(base.snapshot(), vec![7; 1024]);
    }
}
