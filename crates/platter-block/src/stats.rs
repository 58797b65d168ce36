//! A layer that counts requests exactly.

use std::io::{IoSlice, IoSliceMut};
use std::iter::Sum;
use std::ops::{Range, Sub};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crate::device::total_len;
use crate::{BlockDevice, Geometry, IoError};

/// Number of requests issued to a device, successful or not. A vectored request counts as one.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    /// Read requests.
    pub reads: u64,
    /// Bytes requested by the read requests.
    pub read_bytes: u64,
    /// Write requests.
    pub writes: u64,
    /// Bytes passed with the write requests.
    pub write_bytes: u64,
    /// Flushes.
    pub flushes: u64,
    /// Discards.
    pub discards: u64,
    /// Bytes of the discards.
    pub discard_bytes: u64,
    /// Readahead hints.
    pub hints: u64,
}

impl Sum for Counts {
    fn sum<I: Iterator<Item = Self>>(counts: I) -> Self {
        counts.fold(Self::default(), |sum, counts| Self {
            reads: sum.reads.wrapping_add(counts.reads),
            read_bytes: sum.read_bytes.wrapping_add(counts.read_bytes),
            writes: sum.writes.wrapping_add(counts.writes),
            write_bytes: sum.write_bytes.wrapping_add(counts.write_bytes),
            flushes: sum.flushes.wrapping_add(counts.flushes),
            discards: sum.discards.wrapping_add(counts.discards),
            discard_bytes: sum.discard_bytes.wrapping_add(counts.discard_bytes),
            hints: sum.hints.wrapping_add(counts.hints),
        })
    }
}

impl Sub for Counts {
    type Output = Self;

    /// Returns the difference to the `earlier` counts.
    fn sub(self, earlier: Self) -> Self {
        Self {
            reads: self.reads.wrapping_sub(earlier.reads),
            read_bytes: self.read_bytes.wrapping_sub(earlier.read_bytes),
            writes: self.writes.wrapping_sub(earlier.writes),
            write_bytes: self.write_bytes.wrapping_sub(earlier.write_bytes),
            flushes: self.flushes.wrapping_sub(earlier.flushes),
            discards: self.discards.wrapping_sub(earlier.discards),
            discard_bytes: self.discard_bytes.wrapping_sub(earlier.discard_bytes),
            hints: self.hints.wrapping_sub(earlier.hints),
        }
    }
}

#[derive(Debug, Default)]
struct Counters {
    reads: AtomicU64,
    read_bytes: AtomicU64,
    writes: AtomicU64,
    write_bytes: AtomicU64,
    flushes: AtomicU64,
    discards: AtomicU64,
    discard_bytes: AtomicU64,
    hints: AtomicU64,
}

/// Passes every request to the device below and counts it.
#[derive(Debug)]
pub struct CountingDevice {
    base: Arc<dyn BlockDevice>,
    counters: Counters,
}

impl CountingDevice {
    /// Counts the requests to `base`, from zero.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>) -> Self {
        Self {
            base,
            counters: Counters::default(),
        }
    }

    /// Returns the current counts. Exact when no request is in flight.
    #[must_use]
    pub fn counts(&self) -> Counts {
        let counters = &self.counters;
        Counts {
            reads: counters.reads.load(Relaxed),
            read_bytes: counters.read_bytes.load(Relaxed),
            writes: counters.writes.load(Relaxed),
            write_bytes: counters.write_bytes.load(Relaxed),
            flushes: counters.flushes.load(Relaxed),
            discards: counters.discards.load(Relaxed),
            discard_bytes: counters.discard_bytes.load(Relaxed),
            hints: counters.hints.load(Relaxed),
        }
    }

    fn count_read(&self, length: usize) {
        self.counters.reads.fetch_add(1, Relaxed);
        self.counters.read_bytes.fetch_add(length as u64, Relaxed);
    }

    fn count_write(&self, length: usize) {
        self.counters.writes.fetch_add(1, Relaxed);
        self.counters.write_bytes.fetch_add(length as u64, Relaxed);
    }
}

impl BlockDevice for CountingDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        self.base.geometry()
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        self.count_read(buf.len());
        self.base.read_at(offset, buf)
    }

    fn read_vectored_at(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), IoError> {
        self.count_read(total_len(bufs));
        self.base.read_vectored_at(offset, bufs)
    }

    fn grow(&self, len_bytes: u64) -> Result<(), IoError> {
        self.base.grow(len_bytes)
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        self.count_write(buf.len());
        self.base.write_at(offset, buf)
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        self.count_write(total_len(bufs));
        self.base.write_vectored_at(offset, bufs)
    }

    fn flush(&self) -> Result<(), IoError> {
        self.counters.flushes.fetch_add(1, Relaxed);
        self.base.flush()
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        let length = range.end.saturating_sub(range.start);
        self.counters.discards.fetch_add(1, Relaxed);
        self.counters.discard_bytes.fetch_add(length, Relaxed);
        self.base.discard(range)
    }

    fn next_data(&self, offset: u64) -> Result<Option<Range<u64>>, IoError> {
        self.base.next_data(offset)
    }

    fn will_need(&self, range: Range<u64>) {
        self.counters.hints.fetch_add(1, Relaxed);
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    #[test]
    fn every_request_is_counted_once() {
        let device = CountingDevice::new(Arc::new(MemoryDevice::new("memory", vec![0; 4096])));
        let (mut one, mut two) = ([0; 100], [0; 200]);
        device.read_at(0, &mut one).unwrap();
        let before = device.counts();
        let mut bufs = [IoSliceMut::new(&mut one), IoSliceMut::new(&mut two)];
        device.read_vectored_at(0, &mut bufs).unwrap();
        device.write_at(0, &one).unwrap();
        let bufs = [IoSlice::new(&one), IoSlice::new(&two)];
        device.write_vectored_at(0, &bufs).unwrap();
        device.flush().unwrap();
        device.discard(512..1024).unwrap();
        device.will_need(0..512);
        let counted = device.counts() - before;
        let expected = Counts {
            reads: 1,
            read_bytes: 300,
            writes: 2,
            write_bytes: 400,
            flushes: 1,
            discards: 1,
            discard_bytes: 512,
            hints: 1,
        };
        assert_eq!(counted, expected);
    }
}
