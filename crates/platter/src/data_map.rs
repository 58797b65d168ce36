//! Where a file has data and where it has holes.

use std::ops::{ControlFlow, Range};

use platter_vfs::{Inode, Result};

/// Holes that save fewer bytes than this are not worth the trouble.
const SAVING_BYTES_MIN: u64 = 4096;

/// A map has at most this many ranges; what follows them counts as data.
const RANGES_MAX: usize = 1 << 18;

/// Where a file has data: ranges in order, apart from each other, none empty, none beyond the end.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct DataMap {
    size_bytes: u64,
    data: Vec<Range<u64>>,
}

impl DataMap {
    /// The map of `inode`, whose size is `size_bytes`. Unwritten space counts as a hole. Tells
    /// `on_device` where the data of the first `head_bytes` lies on the device.
    pub(crate) fn read(
        inode: &dyn Inode,
        size_bytes: u64,
        head_bytes: u64,
        on_device: &mut dyn FnMut(Range<u64>),
    ) -> Result<Self> {
        let mut map = Self::hole(size_bytes);
        inode.extents(0..size_bytes, &mut |extent| {
            if extent.unwritten {
                return ControlFlow::Continue(());
            }
            let head = extent.file.start..extent.file.end.min(head_bytes);
            if let Some(start) = extent.device_offset.filter(|_| !head.is_empty()) {
                on_device(start..start.saturating_add(head.end - head.start));
            }
            map.push(extent.file);
            if map.data.len() < RANGES_MAX {
                return ControlFlow::Continue(());
            }
            let rest = map.data.last().map_or(0, |last| last.end)..size_bytes;
            map.push(rest);
            ControlFlow::Break(())
        })?;
        Ok(map)
    }

    /// A map of a file that is all hole.
    pub(crate) fn hole(size_bytes: u64) -> Self {
        Self {
            size_bytes,
            data: Vec::new(),
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
            Some(last) if last.end == range.start => last.end = range.end,
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
}
