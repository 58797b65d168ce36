//! A byte range of a device as a device of its own: a partition, or an image at an offset.

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::Arc;

use crate::device::{check_range, check_range_vectored, check_span};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// The bytes of `range` of another device, with offsets from zero.
///
/// Nothing outside the range can be accessed. Errors of the device below name that device and the
/// offset on it.
#[derive(Debug)]
pub struct PartitionView {
    name: Arc<str>,
    base: Arc<dyn BlockDevice>,
    start: u64,
    len_bytes: u64,
}

impl PartitionView {
    /// Creates a view of `range` of `base`; fails if the range is not within the device.
    pub fn new(name: &str, base: Arc<dyn BlockDevice>, range: Range<u64>) -> Result<Self, IoError> {
        check_span(&*base, Operation::Open, &range)?;
        Ok(Self {
            name: name.into(),
            base,
            start: range.start,
            len_bytes: range.end - range.start,
        })
    }

    /// Returns the byte range of the view on the device below.
    #[must_use]
    pub fn range(&self) -> Range<u64> {
        self.start..self.start + self.len_bytes
    }

    /// Clips a range of this device to its end and translates it to the device below.
    fn clip(&self, range: &Range<u64>) -> Range<u64> {
        let start = range.start.min(self.len_bytes);
        let end = range.end.clamp(start, self.len_bytes);
        self.start + start..self.start + end
    }
}

impl BlockDevice for PartitionView {
    fn name(&self) -> &Arc<str> {
        &self.name
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            len_bytes: self.len_bytes,
            ..self.base.geometry()
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        self.base.read_at(self.start + offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Read, offset, bufs)?;
        self.base.read_vectored_at(self.start + offset, bufs)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        self.base.write_at(self.start + offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        self.base.write_vectored_at(self.start + offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        check_span(self, Operation::Discard, &range)?;
        self.base.discard(self.clip(&range))
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        let Some(offset) = self.start.checked_add(offset) else {
            return Ok(None);
        };
        let view = self.range();
        if offset >= view.end {
            return Ok(None);
        }
        let data = self.base.next_data(offset)?;
        Ok(data
            .filter(|data| data.start < view.end)
            .map(|data| data.start - self.start..data.end.min(view.end) - self.start))
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(self.clip(&range));
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    fn device() -> (Arc<MemoryDevice>, PartitionView) {
        let bytes = (0..=255).cycle().take(4096).collect();
        let base = Arc::new(MemoryDevice::new("memory", bytes));
        let view = PartitionView::new("memory@1", base.clone(), 1000..2000).unwrap();
        (base, view)
    }

    #[test]
    fn requests_are_translated_by_the_start() {
        let (base, view) = device();
        let mut buf = [0; 2];
        view.read_at(1, &mut buf).unwrap();
        assert_eq!(buf, [233, 234]);
        view.write_at(998, &[1, 2]).unwrap();
        assert_eq!(base.snapshot()[1998..2001], [1, 2, 208]);
        let (mut one, mut two) = ([0; 1], [0; 2]);
        let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        view.read_vectored_at(0, &mut bufs).unwrap();
        assert_eq!((one, two), ([232], [233, 234]));
        view.discard(0..1000).unwrap();
        assert_eq!(base.snapshot()[999..1001], [231, 0]);
        assert_eq!(base.snapshot()[1999..2001], [0, 208]);
    }

    #[test]
    fn requests_outside_the_view_are_refused() {
        let (base, view) = device();
        let before = base.snapshot();
        let mut buf = [0; 2];
        assert!(view.read_at(999, &mut buf).is_err());
        assert!(view.read_at(u64::MAX, &mut buf).is_err());
        assert!(view.write_at(999, &buf).is_err());
        let bufs = [IoSlice::new(&buf), IoSlice::new(&buf)];
        assert!(view.write_vectored_at(997, &bufs).is_err());
        assert!(view.discard(0..1001).is_err());
        assert!(view.discard(Range { start: 8, end: 7 }).is_err());
        assert_eq!(base.snapshot(), before);
    }

    #[test]
    fn view_beyond_the_device_is_refused() {
        let (base, _) = device();
        for range in [4000..4097, 5000..6000, u64::MAX - 1..u64::MAX] {
            assert!(PartitionView::new("x", base.clone(), range).is_err());
        }
        let backwards = Range { start: 8, end: 7 };
        assert!(PartitionView::new("x", base, backwards).is_err());
    }

    #[test]
    fn data_is_reported_within_the_view() {
        let (_, view) = device();
        assert_eq!(view.next_data(10).unwrap(), Some(10..1000));
        assert_eq!(view.next_data(1000).unwrap(), None);
        assert_eq!(view.next_data(u64::MAX).unwrap(), None);
    }
}
