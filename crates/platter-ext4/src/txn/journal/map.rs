//! Where the blocks of a journal lie: an ordered map from journal block to device block.

use std::collections::BTreeMap;
use std::io::IoSlice;
use std::ops::Range;
use std::sync::Arc;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::{LogBlock, LogRule};

/// Journal blocks that follow each other on the device, too.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct Run {
    first: u32,
    len: u32,
    device: u64,
}

/// A journal's blocks on their device.
///
/// # Invariants
/// Runs are in ascending order, without overlap, gap or empty ones, and lie within the device.
#[derive(Debug, Clone)]
pub struct JournalMap {
    device: Arc<dyn BlockDevice>,
    block_bytes: u32,
    runs: Vec<Run>,
}

/// A map under construction, run by run in the order of the journal's blocks.
#[derive(Debug)]
pub struct JournalMapBuilder {
    map: JournalMap,
    /// Where the runs end on the device, by where they begin.
    places: BTreeMap<u64, u64>,
}

impl JournalMapBuilder {
    /// An empty map onto `device` in blocks of `block_bytes`, a power of two.
    ///
    /// # Panics
    /// When a block is smaller than a superblock, 1 KiB.
    #[must_use]
    pub fn new(device: Arc<dyn BlockDevice>, block_bytes: u32) -> Self {
        assert!(block_bytes >= 1024, "smaller than a superblock");
        let map = JournalMap {
            device,
            block_bytes,
            runs: Vec::new(),
        };
        Self {
            map,
            places: BTreeMap::new(),
        }
    }

    /// Appends `len` journal blocks from `first` on, which begin at `device`.
    pub fn push(&mut self, first: LogBlock, device: BlockNr, len: u32) -> Result<()> {
        let locus = Locus::block(device.0);
        let capacity = self.map.capacity_blocks();
        if first.0 > capacity {
            return Err(Corrupt::new(locus, LogRule::Hole).into());
        }
        if first.0 < capacity || len == 0 || capacity.checked_add(len).is_none() {
            return Err(Corrupt::new(locus, LogRule::MapOrder).into());
        }
        let device_blocks = self.map.device.geometry().len_bytes / u64::from(self.map.block_bytes);
        let end = device.checked_add(u64::from(len));
        if end.is_none_or(|end| end.0 > device_blocks) {
            return Err(Corrupt::new(locus, LogRule::OutsideDevice).into());
        }
        // Else few blocks could be a log of any length.
        let end = device.0 + u64::from(len);
        let before = self.places.range(..end).next_back();
        if before.is_some_and(|(_, &other_end)| other_end > device.0) {
            return Err(Corrupt::new(locus, LogRule::Overlap).into());
        }
        self.places.insert(device.0, end);
        match self.map.runs.last_mut() {
            Some(last) if last.device + u64::from(last.len) == device.0 => last.len += len,
            _ => self.map.runs.push(Run {
                first: first.0,
                len,
                device: device.0,
            }),
        }
        Ok(())
    }

    /// The finished map.
    #[must_use]
    pub fn finish(self) -> JournalMap {
        self.map
    }
}

impl JournalMap {
    /// The device the journal lies on.
    #[must_use]
    pub fn device(&self) -> &Arc<dyn BlockDevice> {
        &self.device
    }

    /// Bytes of a block.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        self.block_bytes
    }

    /// How many blocks have a place.
    #[must_use]
    pub fn capacity_blocks(&self) -> u32 {
        self.runs.last().map_or(0, |run| run.first + run.len)
    }

    /// Where a block lies, and how many from it on follow each other there.
    #[must_use]
    pub fn locate(&self, block: LogBlock) -> Option<(BlockNr, u32)> {
        let index = self.runs.partition_point(|run| run.first <= block.0);
        let run = self.runs.get(index.checked_sub(1)?)?;
        let skipped = block.0 - run.first;
        let rest = run.len.checked_sub(skipped).filter(|&rest| rest > 0)?;
        Some((BlockNr(run.device + u64::from(skipped)), rest))
    }

    /// The blocks of the device that belong to the journal, in ascending order.
    #[must_use]
    pub fn places(&self) -> Vec<Range<u64>> {
        let place = |run: &Run| run.device..run.device + u64::from(run.len);
        let mut places: Vec<_> = self.runs.iter().map(place).collect();
        places.sort_unstable_by_key(|place| place.start);
        places
    }

    /// Fills `buf`, whole blocks, from `block` on. They must lie within one run.
    pub fn read(&self, block: LogBlock, buf: &mut [u8]) -> Result<()> {
        let offset = self.offset_bytes(block, buf.len())?;
        Ok(self.device.read_at(offset, buf)?)
    }

    /// Writes `buf`, whole blocks, from `block` on. They must lie within one run.
    pub fn write(&self, block: LogBlock, buf: &[u8]) -> Result<()> {
        let offset = self.offset_bytes(block, buf.len())?;
        Ok(self.device.write_at(offset, buf)?)
    }

    /// Writes `bufs`, whole blocks together, from `block` on, as one request. They must lie within
    /// one run.
    pub fn write_vectored(&self, block: LogBlock, bufs: &[IoSlice<'_>]) -> Result<()> {
        let len_bytes = bufs.iter().map(|buf| buf.len()).sum();
        let offset = self.offset_bytes(block, len_bytes)?;
        Ok(self.device.write_vectored_at(offset, bufs)?)
    }

    /// A place in the journal, for reports: the block of the device, where there is one.
    #[must_use]
    pub fn locus(&self, block: LogBlock) -> Locus {
        self.locate(block)
            .map_or_else(Locus::default, |(device, _)| Locus::block(device.0))
    }

    fn offset_bytes(&self, block: LogBlock, len_bytes: usize) -> Result<u64> {
        let located = self.locate(block);
        let (device, rest) = located.ok_or(Corrupt::new(Locus::default(), LogRule::Hole))?;
        let rest_bytes = u64::from(rest) * u64::from(self.block_bytes);
        assert!(len_bytes as u64 <= rest_bytes, "a request within one run");
        Ok(device.0 * u64::from(self.block_bytes))
    }
}

#[cfg(test)]
mod tests {
    use platter_block::MemoryDevice;
    use platter_vfs::Error;

    use super::*;
    use platter_ondisk::Rule;

    fn builder() -> JournalMapBuilder {
        let device = MemoryDevice::new("disk", vec![0; 64 * 1024]);
        JournalMapBuilder::new(Arc::new(device), 1024)
    }

    fn refused(result: Result<()>) -> String {
        let Err(Error::Corrupt(report)) = result else {
            panic!("expected corruption, got {result:?}");
        };
        report.rule.into_owned()
    }

    #[test]
    fn blocks_are_found_across_runs() {
        let mut builder = builder();
        builder.push(LogBlock(0), BlockNr(10), 4).unwrap();
        builder.push(LogBlock(4), BlockNr(14), 2).unwrap();
        builder.push(LogBlock(6), BlockNr(3), 2).unwrap();
        let map = builder.finish();
        assert_eq!(map.runs.len(), 2);
        assert_eq!(map.locate(LogBlock(5)), Some((BlockNr(15), 1)));
        assert_eq!(map.locate(LogBlock(6)), Some((BlockNr(3), 2)));
        assert_eq!(map.locate(LogBlock(8)), None);
        assert_eq!(map.places(), [3..5, 10..16]);
    }

    #[test]
    fn hole_in_the_log_is_corrupt() {
        let mut builder = builder();
        let rule = refused(builder.push(LogBlock(1), BlockNr(10), 4));
        assert_eq!(rule, LogRule::Hole.text());
    }

    #[test]
    fn overlapping_or_empty_run_is_corrupt() {
        let mut builder = builder();
        builder.push(LogBlock(0), BlockNr(10), 4).unwrap();
        let rule = refused(builder.push(LogBlock(3), BlockNr(20), 4));
        assert_eq!(rule, LogRule::MapOrder.text());
        refused(builder.push(LogBlock(4), BlockNr(20), 0));
    }

    #[test]
    fn block_of_the_device_twice_is_corrupt() {
        let mut builder = builder();
        builder.push(LogBlock(0), BlockNr(10), 4).unwrap();
        builder.push(LogBlock(4), BlockNr(14), 4).unwrap();
        for (device, len) in [(10, 1), (13, 1), (9, 2), (17, 4), (8, 20), (12, 1)] {
            let rule = refused(builder.push(LogBlock(8), BlockNr(device), len));
            assert_eq!(rule, LogRule::Overlap.text(), "{device}");
        }
        builder.push(LogBlock(8), BlockNr(8), 2).unwrap();
        builder.push(LogBlock(10), BlockNr(18), 2).unwrap();
        assert_eq!(builder.finish().places(), [8..10, 10..18, 18..20]);
    }

    #[test]
    fn run_outside_the_device_is_corrupt() {
        let mut builder = builder();
        let rule = refused(builder.push(LogBlock(0), BlockNr(62), 4));
        assert_eq!(rule, LogRule::OutsideDevice.text());
        refused(builder.push(LogBlock(0), BlockNr(u64::MAX), 4));
    }
}
