//! Where a file has data and where it has holes.

use std::ops::{ControlFlow, Range};

use platter_vfs::{Inode, Place, Result};

/// Holes that save fewer bytes than this are not worth the trouble.
const SAVING_BYTES_MIN: u64 = 4096;

/// A map has at most this many ranges: where there are more, the smallest holes count as data.
const RANGES_MAX: usize = 1 << 18;

/// Where a file has data: ranges in order, apart from each other, none empty, none beyond the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataMap {
    size_bytes: u64,
    data: Vec<Range<u64>>,
    /// Holes no longer than this count as data.
    hole_bytes_ignored: u64,
}

impl DataMap {
    /// The map of `inode`, whose size is `size_bytes`. Unwritten space counts as a hole. Calls
    /// `on_device` with the places of the data of the first `head_bytes`, and their lengths.
    pub(crate) fn read(
        inode: &dyn Inode,
        size_bytes: u64,
        head_bytes: u64,
        on_device: &mut dyn FnMut(Place, u64),
    ) -> Result<Self> {
        let mut map = Self::hole(size_bytes);
        map.fill(inode, head_bytes, on_device)?;
        Ok(map)
    }

    /// The map of `inode` as far as it can be read, and the error that ended it.
    pub(crate) fn read_sound(
        inode: &dyn Inode,
        size_bytes: u64,
    ) -> (Self, Option<platter_vfs::Error>) {
        let mut map = Self::hole(size_bytes);
        let error = map.fill(inode, 0, &mut |_, _| {}).err();
        (map, error)
    }

    fn fill(
        &mut self,
        inode: &dyn Inode,
        head_bytes: u64,
        on_device: &mut dyn FnMut(Place, u64),
    ) -> Result<()> {
        inode.written_extents(0..self.size_bytes, &mut |extent| {
            let head = extent.file.start..extent.file.end.min(head_bytes);
            if let Some(place) = extent.place.filter(|_| !head.is_empty()) {
                on_device(place, head.end - head.start);
            }
            self.push(extent.file);
            if self.data.len() >= RANGES_MAX {
                self.thin(RANGES_MAX / 2);
            }
            ControlFlow::Continue(())
        })
    }

    /// Makes data of the smallest holes, until there are at most `ranges_max` ranges.
    fn thin(&mut self, ranges_max: usize) {
        while self.data.len() > ranges_max {
            self.hole_bytes_ignored = (self.hole_bytes_ignored * 2).max(SAVING_BYTES_MIN);
            for range in std::mem::take(&mut self.data) {
                self.push(range);
            }
        }
    }

    /// A map of a file that is all hole.
    pub(crate) fn hole(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            data: Vec::new(),
            hole_bytes_ignored: 0,
        }
    }

    /// A map of a file that is all data.
    pub(crate) fn dense(size_bytes: u64) -> Self {
        let mut map = Self::hole(size_bytes);
        map.push(0..size_bytes);
        map
    }

    /// The size of the file in bytes.
    pub(crate) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// The ranges with data.
    pub(crate) fn data(&self) -> &[Range<u64>] {
        &self.data
    }

    /// How many ranges that are.
    pub(crate) fn len(&self) -> usize {
        self.data.len()
    }

    /// Bytes of data.
    pub(crate) fn data_bytes(&self) -> u64 {
        self.data.iter().map(|range| range.end - range.start).sum()
    }

    /// Whether the holes are worth the trouble.
    pub(crate) fn is_sparse(&self) -> bool {
        self.size_bytes - self.data_bytes() >= SAVING_BYTES_MIN
    }

    /// Takes the next range, which may touch the last one but not lie before it.
    pub(crate) fn push(&mut self, range: Range<u64>) {
        let after = self.data.last().map_or(0, |last| last.end);
        let range = range.start.max(after)..range.end.min(self.size_bytes);
        if range.is_empty() {
            return;
        }
        match self.data.last_mut() {
            Some(last) if range.start - last.end <= self.hole_bytes_ignored => last.end = range.end,
            _ => self.data.push(range),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn map(size_bytes: u64, ranges: &[Range<u64>]) -> DataMap {
        let mut map = DataMap::hole(size_bytes);
        for range in ranges {
            map.push(range.clone());
        }
        map
    }

    #[test]
    fn ranges_are_joined_clipped_and_never_overlap() {
        let map = map(100, &[0..10, 10..20, 15..25, 30..30, 40..120]);
        assert_eq!(map.data(), [0..25, 40..100]);
        assert_eq!(map.data_bytes(), 85);
        assert!(!map.is_sparse());
        assert_eq!(DataMap::dense(0).data(), []);
    }

    #[test]
    fn where_ranges_are_too_many_the_smallest_holes_become_data() {
        let mut ranges = Vec::new();
        for start in (0..10).map(|index| index << 20) {
            ranges.extend([start..start + 10, start + 5000..start + 5010]);
        }
        let end = 1 << 50;
        ranges.push(end..end + 10);
        let mut map = map(u64::MAX, &ranges);
        map.thin(11);
        assert_eq!(map.len(), 11);
        assert_eq!(map.data()[0], 0..5010);
        assert_eq!(map.data()[10], end..end + 10);
        map.push(end + 1000..end + 1010);
        assert_eq!(map.data()[10], end..end + 1010);
        map.thin(2);
        assert_eq!(map.data(), [0..(9 << 20) + 5010, end..end + 1010]);
    }
}
