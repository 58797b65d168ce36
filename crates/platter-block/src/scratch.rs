//! Writes kept on a second device, above one that is never written to: for changes that may come to
//! nothing, of any size.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use parking_lot::{Mutex, RwLock};

use crate::device::{check_range, check_span};
use crate::{BlockDevice, Geometry, IoError, Operation};

/// Bytes of the unit in which written places are remembered.
const UNIT_BYTES: u64 = 1024;
const UNIT_LEN: usize = 1024;

/// A writable device whose writes go to the same places of a store; the device below is only ever
/// read.
///
/// A flush succeeds without doing anything, and a discard has no effect: what is written here is for
/// somebody to [take over](Self::written), or to be dropped.
#[derive(Debug)]
pub struct ScratchDevice {
    base: Arc<dyn BlockDevice>,
    store: Arc<dyn BlockDevice>,
    written: RwLock<RangeSet>,
    /// Held while a unit that is written in part is filled from below.
    fills: Mutex<()>,
}

/// Ranges that do not touch each other, by their starts.
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

    fn contains(&self, at: u64) -> bool {
        let before = self.0.range(..=at).next_back();
        before.is_some_and(|(_, &end)| end > at)
    }

    /// Where what begins at `at` ends, being in the set or not.
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
    /// A scratch device above `base` that holds nothing yet. What `store` holds has no meaning.
    ///
    /// # Panics
    /// When the store is shorter than the device.
    #[must_use]
    pub fn new(base: Arc<dyn BlockDevice>, store: Arc<dyn BlockDevice>) -> Self {
        assert!(
            store.geometry().len_bytes >= base.geometry().len_bytes,
            "a store has a place for every byte"
        );
        Self {
            base,
            store,
            written: RwLock::default(),
            fills: Mutex::new(()),
        }
    }

    /// The places that were written, in ascending order; around them up to a unit of 1 KiB that was
    /// not.
    #[must_use]
    pub fn written(&self) -> Vec<Range<u64>> {
        let written = self.written.read();
        written.0.iter().map(|(&start, &end)| start..end).collect()
    }

    /// The unit that a byte lies in.
    fn unit(&self, at: u64) -> Range<u64> {
        let start = at - at % UNIT_BYTES;
        start..(start + UNIT_BYTES).min(self.base.geometry().len_bytes)
    }

    /// Brings in what the device below holds in a unit, unless it was written already.
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
        let Some(last) = (offset + buf.len() as u64).checked_sub(1) else {
            return Ok(());
        };
        if buf.is_empty() {
            return Ok(());
        }
        let (first, last) = (self.unit(offset), self.unit(last));
        if first.start < offset || offset + (buf.len() as u64) < last.end {
            let _turn = self.fills.lock();
            self.fill(&first)?;
            self.fill(&last)?;
        }
        self.store.write_at(offset, buf)?;
        self.written.write().insert(first.start..last.end);
        Ok(())
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
    fn ranges_that_touch_become_one() {
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
    fn writes_are_seen_and_leave_the_device_below_alone() {
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
}
