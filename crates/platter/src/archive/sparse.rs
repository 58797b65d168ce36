//! Sparse members in GNU tar's format 1.0: the map of the data comes first, then the data packed.
//! Spec: GNU tar manual, "Storing Sparse Files", PAX format, version 1.0.

use std::ops::{ControlFlow, Range};

use platter_vfs::{Inode, Result};

use super::pax::append_decimal;
use super::ustar::BLOCK_BYTES;

/// Holes that save fewer bytes than this are not worth a map.
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

    /// Whether leaving out the holes is worth a map.
    pub(crate) fn is_sparse(&self) -> bool {
        self.size_bytes - self.data_bytes() >= SAVING_BYTES_MIN
    }

    /// Takes the next range, which may touch the last one but not lie before it.
    fn push(&mut self, range: Range<u64>) {
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

    /// The map as text, filled up with zeros to whole blocks: the number of entries, then offset
    /// and length of each, one number a line. An empty last entry marks the size, as GNU tar
    /// writes it for a file that ends in a hole.
    pub(super) fn encode(&self) -> Vec<u8> {
        let ends_in_hole = self
            .data
            .last()
            .is_none_or(|last| last.end < self.size_bytes);
        let tail = ends_in_hole.then_some(self.size_bytes..self.size_bytes);
        let entries = self.data.iter().chain(&tail);
        let mut text = Vec::new();
        append_decimal(
            &mut text,
            (self.data.len() + usize::from(ends_in_hole)) as u64,
        );
        text.push(b'\n');
        for range in entries {
            append_decimal(&mut text, range.start);
            text.push(b'\n');
            append_decimal(&mut text, range.end - range.start);
            text.push(b'\n');
        }
        text.resize(text.len().next_multiple_of(BLOCK_BYTES), 0);
        text
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
    fn the_text_has_whole_blocks_and_marks_the_end() {
        let text = map(10_000, &[4096..6000, 6000..8192]).encode();
        assert_eq!(text.len(), BLOCK_BYTES);
        assert!(text.starts_with(b"2\n4096\n4096\n10000\n0\n\0"));
        assert!(DataMap::hole(9).encode().starts_with(b"1\n9\n0\n\0"));
        assert!(DataMap::dense(9).encode().starts_with(b"1\n0\n9\n\0"));
    }
}
