//! Writes redirected to a second device, for changes of any size that are applied or discarded as a
//! whole.

use std::collections::BTreeMap;
use std::fmt;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use crate::lock::{Mutex, RwLock, rank};

use crate::device::{check_range, check_range_vectored, check_span};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Granularity in bytes in which written ranges are recorded.
const UNIT_BYTES: u64 = 1024;
const UNIT_LEN: usize = 1024;

/// Whether the contents of a range of the device below are unused.
type Unused = dyn Fn(&Range<u64>) -> bool + Send + Sync;

/// A writable device whose writes are redirected to the same offsets of a store. The device below
/// is only read, except for its holes in ranges that are [unused](Self::with_unused).
///
/// A flush does nothing and succeeds, and a discard has no effect: the [written
/// ranges](Self::written) are to be applied by the caller, or dropped.
pub struct ScratchDevice {
    base: Arc<dyn BlockDevice>,
    store: Arc<dyn BlockDevice>,
    /// Ranges that were written here.
    written: RwLock<RangeSet, { rank(16, 4) }>,
    unused: Option<Box<Unused>>,
    /// Holes of the device below that were written there directly.
    through: RwLock<RangeSet, { rank(16, 3) }>,
    /// Held while a partly written unit is filled from the device below.
    fills: Mutex<(), { rank(16, 2) }>,
}

/// Disjoint, non-adjacent ranges: start to end.
#[derive(Debug, Default)]
struct RangeSet(BTreeMap<u64, u64>);

impl RangeSet {
    fn insert(&mut self, mut range: Range<u64>) {
        if let Some((&start, &end)) = self.0.range(..=range.start).next_back()
            && end >= range.start
        {
            range = start..end.max(range.end);
        }
        while let Some((&start, &end)) = self.0.range(range.start..=range.end).next() {
            self.0.remove(&start);
            range.end = range.end.max(end);
        }
        self.0.insert(range.start, range.end);
    }

    fn overlaps(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..range.end).next_back();
        before.is_some_and(|(_, &end)| end > range.start)
    }

    fn covers(&self, range: &Range<u64>) -> bool {
        let before = self.0.range(..=range.start).next_back();
        before.is_some_and(|(_, &end)| end >= range.end)
    }

    fn contains(&self, at: u64) -> bool {
        let before = self.0.range(..=at).next_back();
        before.is_some_and(|(_, &end)| end > at)
    }

    /// Returns the end of the run that begins at `at`, whether it is in the set or between two
    /// ranges.
    fn piece_end(&self, at: u64) -> u64 {
        match self.0.range(..=at).next_back() {
            Some((_, &end)) if end > at => end,
            _ => self
                .0
                .range(at..)
                .next()
                .map_or(u64::MAX, |(&start, _)| start),
        }
    }
}

impl ScratchDevice {
    /// Creates a scratch device over `base` with nothing written. The contents of `store` are
    /// ignored.
    ///
    /// # Panics
    /// If the store is shorter than the device.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>, store: Arc<dyn BlockDevice>) -> Self {
        assert!(
            store.geometry().len_bytes >= base.geometry().len_bytes,
            "the store is as long as the device"
        );
        Self {
            base,
            store,
            written: RwLock::default(),
            unused: None,
            through: RwLock::default(),
            fills: Mutex::new(()),
        }
    }

    /// Lets writes to holes in ranges for which `unused` returns true go to the device below, so
    /// that they need not be copied later. `unused` must return the same answer for the same range
    /// during the life of the device.
    #[must_use]
    pub fn with_unused(
        mut self,
        unused: impl Fn(&Range<u64>) -> bool + Send + Sync + 'static,
    ) -> Self {
        self.unused = Some(Box::new(unused));
        self
    }

    /// Punches out again the holes that were written on the device below; for discarded changes.
    pub fn revert_holes(&self) {
        let through = std::mem::take(&mut *self.through.write());
        for (start, end) in through.0 {
            // If a discard fails, the bytes stay in ranges that are unused anyway.
            let _ = self.base.discard(start..end);
        }
    }

    /// Whether a range is written to the device below; records it if so.
    fn goes_through(&self, range: &Range<u64>) -> Result<bool, IoError> {
        let Some(unused) = &self.unused else {
            return Ok(false);
        };
        if self.written.read().overlaps(range) {
            return Ok(false);
        }
        let (covers, overlaps) = {
            let through = self.through.read();
            (through.covers(range), through.overlaps(range))
        };
        if covers || overlaps || !unused(range) {
            return Ok(covers);
        }
        let data = self.base.next_data(range.start)?;
        let is_hole = data.is_none_or(|data| data.start >= range.end);
        if is_hole {
            self.through.write().insert(range.clone());
        }
        Ok(is_hole)
    }

    /// Redirects a write to a range, which is within the device, to `write`.
    fn write(
        &self,
        range: Range<u64>,
        write: impl Fn(&dyn BlockDevice) -> Result<(), IoError>,
    ) -> Result<(), IoError> {
        if range.is_empty() {
            return Ok(());
        }
        if self.goes_through(&range)? {
            return write(&*self.base);
        }
        let (first, last) = (self.unit(range.start), self.unit(range.end - 1));
        if first.start < range.start || range.end < last.end {
            let _turn = self.fills.lock();
            self.fill(&first)?;
            self.fill(&last)?;
        }
        write(&*self.store)?;
        self.written.write().insert(first.start..last.end);
        Ok(())
    }

    /// Returns the written ranges in ascending order, rounded out to units of 1 KiB.
    #[must_use]
    pub fn written(&self) -> Vec<Range<u64>> {
        let written = self.written.read();
        written.0.iter().map(|(&start, &end)| start..end).collect()
    }

    /// Returns the unit that contains a byte.
    fn unit(&self, at: u64) -> Range<u64> {
        let start = at - at % UNIT_BYTES;
        start..(start + UNIT_BYTES).min(self.base.geometry().len_bytes)
    }

    /// Copies a unit from the device below into the store, unless it was written before.
    fn fill(&self, unit: &Range<u64>) -> Result<(), IoError> {
        if self.written.read().contains(unit.start) {
            return Ok(());
        }
        let mut bytes = [0; UNIT_LEN];
        let len = usize::try_from(unit.end - unit.start).unwrap_or(bytes.len());
        self.base.read_at(unit.start, &mut bytes[..len])?;
        self.store.write_at(unit.start, &bytes[..len])?;
        self.written.write().insert(unit.clone());
        Ok(())
    }
}

impl fmt::Debug for ScratchDevice {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("ScratchDevice")
            .field("base", &self.base)
            .field("store", &self.store)
            .finish_non_exhaustive()
    }
}

impl BlockDevice for ScratchDevice {
    fn name(&self) -> &Arc<str> {
        self.base.name()
    }

    fn geometry(&self) -> Geometry {
        Geometry {
            read_only: false,
            ..self.base.geometry()
        }
    }

    fn read_at(&self, offset: u64, buf: &mut [u8]) -> Result<(), IoError> {
        check_range(self, Operation::Read, offset, buf.len())?;
        let mut done = 0;
        while done < buf.len() {
            let at = offset + done as u64;
            let (is_written, end) = {
                let written = self.written.read();
                (written.contains(at), written.piece_end(at))
            };
            let rest = buf.len() - done;
            let len = usize::try_from(end - at).map_or(rest, |len| len.min(rest));
            let device = if is_written { &self.store } else { &self.base };
            device.read_at(at, &mut buf[done..done + len])?;
            done += len;
        }
        Ok(())
    }

    fn write_at(&self, offset: u64, buf: &[u8]) -> Result<(), IoError> {
        check_range(self, Operation::Write, offset, buf.len())?;
        let range = offset..offset + buf.len() as u64;
        self.write(range, |device| device.write_at(offset, buf))
    }

    fn write_vectored_at(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), IoError> {
        check_range_vectored(self, Operation::Write, offset, bufs)?;
        let length: u64 = bufs.iter().map(|buf| buf.len() as u64).sum();
        let range = offset..offset + length;
        self.write(range, |device| device.write_vectored_at(offset, bufs))
    }

    fn flush(&self) -> Result<(), IoError> {
        Ok(())
    }

    fn discard(&self, range: Range<u64>) -> Result<(), IoError> {
        check_span(self, Operation::Discard, &range)
    }

    fn will_need(&self, range: Range<u64>) {
        self.base.will_need(range);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::MemoryDevice;

    const LEN: usize = 5000;

    fn scratch() -> (Arc<MemoryDevice>, ScratchDevice) {
        let base = Arc::new(MemoryDevice::new("base", vec![1; LEN]));
        let store = Arc::new(MemoryDevice::new("store", vec![9; LEN]));
        let scratch = ScratchDevice::new(Arc::<MemoryDevice>::clone(&base), store);
        (base, scratch)
    }

    #[test]
    fn adjacent_ranges_are_merged() {
        let mut set = RangeSet::default();
        for range in [10..20, 30..40, 50..60, 20..30, 45..46, 5..55] {
            set.insert(range);
        }
        assert_eq!(set.0, BTreeMap::from([(5, 60)]));
        set.insert(61..62);
        assert_eq!(set.0.len(), 2);
        assert!(set.contains(59) && !set.contains(60) && set.contains(61));
        assert_eq!(
            [0, 5, 60, 62].map(|at| set.piece_end(at)),
            [5, 60, 61, u64::MAX]
        );
    }

    #[test]
    fn writes_are_read_back_and_base_is_unchanged() {
        let (base, scratch) = scratch();
        let mut expected = vec![1; LEN];
        for (offset, len, byte) in [
            (0, 1024, 2),
            (1000, 100, 3),
            (4990, 10, 4),
            (2048, 2048, 5),
            (3000, 0, 6),
            (2047, 1, 7),
            (0, LEN, 8),
        ] {
            if len == LEN {
                let written = scratch.written();
                let [all] = &written[..] else {
                    panic!("{written:?}")
                };
                assert_eq!((all.start, all.end), (0, LEN as u64));
            }
            scratch.write_at(offset as u64, &vec![byte; len]).unwrap();
            expected[offset..offset + len].fill(byte);
            let mut found = vec![0; LEN];
            scratch.read_at(0, &mut found).unwrap();
            assert!(found == expected, "{offset}");
            let mut part = vec![0; 1500];
            scratch.read_at(700, &mut part).unwrap();
            assert!(part == expected[700..2200], "{offset}");
        }
        assert!(base.snapshot() == vec![1; LEN]);
        assert!(scratch.write_at(LEN as u64 - 1, &[0; 2]).is_err());
        assert!(scratch.read_at(LEN as u64, &mut [0]).is_err());
    }

    #[test]
    fn unused_holes_are_written_through_and_reverted() {
        let mut bytes = vec![0; 16 * 4096];
        bytes[4 * 4096] = 1;
        let base = Arc::new(MemoryDevice::new("base", bytes.clone()));
        let store = Arc::new(MemoryDevice::new("store", vec![9; bytes.len()]));
        let scratch = ScratchDevice::new(Arc::<MemoryDevice>::clone(&base), store)
            .with_unused(|range| range.start >= 4096);
        let mut expected = bytes.clone();
        for (offset, len, byte) in [
            (0, 4096, 2),
            (4096, 8192, 3),
            (4 * 4096, 4096, 4),
            (2 * 4096, 4096, 5),
            (3 * 4096, 4 * 4096, 6),
            (8 * 4096, 4096, 7),
        ] {
            scratch.write_at(offset as u64, &vec![byte; len]).unwrap();
            expected[offset..offset + len].fill(byte);
            let mut found = vec![0; bytes.len()];
            scratch.read_at(0, &mut found).unwrap();
            assert!(found == expected, "{offset}");
        }
        let below = base.snapshot();
        assert!(
            below[..4096] == [0; 4096] && below[4 * 4096..][..4096] == bytes[4 * 4096..][..4096]
        );
        assert!(below[4096..2 * 4096] == [3; 4096] && below[8 * 4096..][..4096] == [7; 4096]);
        assert!(
            !scratch
                .written()
                .iter()
                .any(|range| range.contains(&(8 * 4096)))
        );
        scratch.revert_holes();
        assert!(base.snapshot() == bytes);
    }
}
