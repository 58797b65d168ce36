//! The bytes of a file in memory: pages by number, holes where there is none.

use std::collections::BTreeMap;
use std::ops::{ControlFlow, Range};

use crate::{Condition, Extent, ExtentSink, Result, SeekTarget};

/// The unit in which files take memory, in bytes.
pub(super) const PAGE_BYTES: usize = 4096;
pub(super) const PAGE: u64 = PAGE_BYTES as u64;
/// The same, as attributes show it.
pub(super) const BLOCK_BYTES: u32 = 4096;
const _: () = assert!(BLOCK_BYTES as usize == PAGE_BYTES);

/// The contents of one regular file.
///
/// # Invariants
/// No page lies wholly beyond the end of the file but unwritten ones, and bytes of a page beyond
/// the end are zero.
#[derive(Debug, Default)]
pub(super) struct Content {
    size_bytes: u64,
    pub(super) pages: BTreeMap<u64, Page>,
}

#[derive(Debug, Clone)]
pub(super) enum Page {
    /// Taken, reads as zeros.
    Unwritten,
    Written(Box<[u8; PAGE_BYTES]>),
}

impl Content {
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    pub(super) fn pages(&self) -> u64 {
        self.pages.len() as u64
    }

    /// How many pages there are of a range of whole pages.
    pub(super) fn pages_in(&self, range: &Range<u64>) -> u64 {
        self.pages.range(pages_touched(range)).count() as u64
    }

    /// Copies of the pages of a range of whole pages, counted from its beginning.
    pub(super) fn copy_of(&self, range: &Range<u64>) -> Vec<(u64, Page)> {
        let first = range.start / PAGE;
        let pages = self.pages.range(pages_touched(range));
        pages
            .map(|(number, page)| (number - first, page.clone()))
            .collect()
    }

    /// Puts pages into the place of a range of whole pages, in a file that ends at `size_bytes` at least.
    pub(super) fn put(&mut self, range: Range<u64>, pages: Vec<(u64, Page)>, size_bytes: u64) {
        let first = range.start / PAGE;
        self.punch_hole(range);
        let pages = pages.into_iter();
        self.pages
            .extend(pages.map(|(number, page)| (first + number, page)));
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// Sets the end of the file; no page holds data beyond it.
    pub(super) fn set_end(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// How many pages taking all of `range` would add.
    pub(super) fn pages_missing(&self, range: &Range<u64>) -> u64 {
        let wanted = pages_touched(range);
        let present = self.pages.range(wanted.clone()).count() as u64;
        (wanted.end - wanted.start) - present
    }

    pub(super) fn read(&self, offset: u64, buf: &mut [u8]) -> usize {
        let left = self.size_bytes.saturating_sub(offset);
        let len = usize::try_from(left).map_or(buf.len(), |left| left.min(buf.len()));
        let mut done = 0;
        while done < len {
            let (number, within) = split(offset + done as u64);
            let part = (PAGE_BYTES - within).min(len - done);
            let target = &mut buf[done..done + part];
            match self.pages.get(&number) {
                Some(Page::Written(page)) => target.copy_from_slice(&page[within..within + part]),
                Some(Page::Unwritten) | None => target.fill(0),
            }
            done += part;
        }
        len
    }

    pub(super) fn write(&mut self, offset: u64, data: &[u8]) {
        let mut done = 0;
        while done < data.len() {
            let (number, within) = split(offset + done as u64);
            let part = (PAGE_BYTES - within).min(data.len() - done);
            self.page_mut(number)[within..within + part].copy_from_slice(&data[done..done + part]);
            done += part;
        }
        self.size_bytes = self.size_bytes.max(offset + data.len() as u64);
    }

    pub(super) fn set_size(&mut self, size_bytes: u64) {
        if size_bytes < self.size_bytes {
            self.punch_hole(size_bytes..u64::MAX);
        }
        self.size_bytes = size_bytes;
    }

    /// Takes space for the holes in `range`.
    pub(super) fn allocate(&mut self, range: &Range<u64>) {
        for number in pages_touched(range) {
            self.pages.entry(number).or_insert(Page::Unwritten);
        }
    }

    /// Makes `range` read as zeros, and frees the pages wholly inside.
    pub(super) fn punch_hole(&mut self, range: Range<u64>) {
        let whole = range.start.div_ceil(PAGE)..range.end / PAGE;
        if whole.start < whole.end {
            let mut from_start = self.pages.split_off(&whole.start);
            self.pages.append(&mut from_start.split_off(&whole.end));
        }
        self.zero_within_page(range.start, range.end);
        if split(range.end).0 != split(range.start).0 {
            self.zero_within_page(range.end - range.end % PAGE, range.end);
        }
    }

    /// Makes `range` read as zeros, with space taken for it.
    pub(super) fn zero(&mut self, range: &Range<u64>) {
        self.punch_hole(range.clone());
        self.allocate(range);
    }

    /// Cuts `range` out and moves what follows down.
    ///
    /// # Errors
    /// `InvalidArgument` unless `range` is whole pages before the end.
    pub(super) fn collapse(&mut self, range: &Range<u64>) -> Result<()> {
        if !is_whole_pages(range) || range.end >= self.size_bytes {
            return Err(Condition::InvalidArgument.into());
        }
        self.punch_hole(range.clone());
        let len = range.end - range.start;
        let moved = self.pages.split_off(&(range.end / PAGE));
        let moved = moved
            .into_iter()
            .map(|(number, page)| (number - len / PAGE, page));
        self.pages.extend(moved);
        self.size_bytes -= len;
        Ok(())
    }

    /// Moves what begins at `range` up behind it, leaving a hole.
    ///
    /// # Errors
    /// `InvalidArgument` unless `range` is whole pages and begins before the end.
    pub(super) fn insert(&mut self, range: &Range<u64>) -> Result<()> {
        if !is_whole_pages(range) || range.start >= self.size_bytes {
            return Err(Condition::InvalidArgument.into());
        }
        let len = range.end - range.start;
        let moved = self.pages.split_off(&(range.start / PAGE));
        let moved = moved
            .into_iter()
            .map(|(number, page)| (number + len / PAGE, page));
        self.pages.extend(moved);
        self.size_bytes += len;
        Ok(())
    }

    pub(super) fn seek(&self, offset: u64, target: SeekTarget) -> Result<u64> {
        if offset >= self.size_bytes {
            return Err(Condition::NoSuchAddress.into());
        }
        let first = split(offset).0;
        let mut written = self
            .pages
            .range(first..)
            .filter(|(_, page)| page.is_written());
        match target {
            SeekTarget::Data => {
                let (number, _) = written.next().ok_or(Condition::NoSuchAddress)?;
                Ok(offset.max(number * PAGE))
            }
            SeekTarget::Hole => {
                let mut hole = first;
                while written.next().is_some_and(|(number, _)| *number == hole) {
                    hole += 1;
                }
                Ok(offset.max(hole * PAGE).min(self.size_bytes))
            }
        }
    }

    pub(super) fn extents(&self, range: &Range<u64>, sink: &mut ExtentSink<'_>) {
        let mut pages = self.pages.range(pages_touched(range)).peekable();
        while let Some((first, page)) = pages.next() {
            let (mut end, unwritten) = (first + 1, !page.is_written());
            let goes_on = |(number, page): &(&u64, &Page), end| {
                **number == end && page.is_written() != unwritten
            };
            while pages.next_if(|next| goes_on(next, end)).is_some() {
                end += 1;
            }
            let extent = Extent {
                unwritten,
                ..Extent::of(first * PAGE..end * PAGE)
            };
            if sink(extent) == ControlFlow::Break(()) {
                return;
            }
        }
    }

    fn zero_within_page(&mut self, start: u64, end: u64) {
        let (number, within) = split(start);
        if let Some(Page::Written(page)) = self.pages.get_mut(&number) {
            let len = usize::try_from(end - start).unwrap_or(PAGE_BYTES);
            page[within..PAGE_BYTES.min(within.saturating_add(len))].fill(0);
        }
    }

    fn page_mut(&mut self, number: u64) -> &mut [u8; PAGE_BYTES] {
        let page = self.pages.entry(number).or_insert(Page::Unwritten);
        if !page.is_written() {
            *page = Page::Written(Box::new([0; PAGE_BYTES]));
        }
        match page {
            Page::Written(bytes) => bytes,
            Page::Unwritten => unreachable!("the page was just written"),
        }
    }
}

impl Page {
    pub(super) fn is_written(&self) -> bool {
        matches!(self, Self::Written(_))
    }
}

fn split(offset: u64) -> (u64, usize) {
    let within = usize::try_from(offset % PAGE).expect("less than a page");
    (offset / PAGE, within)
}

fn pages_touched(range: &Range<u64>) -> Range<u64> {
    range.start / PAGE..range.end.div_ceil(PAGE).max(range.start / PAGE)
}

fn is_whole_pages(range: &Range<u64>) -> bool {
    range.start < range.end && range.start.is_multiple_of(PAGE) && range.end.is_multiple_of(PAGE)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn content(data: &[(u64, &[u8])]) -> Content {
        let mut content = Content::default();
        for (offset, bytes) in data {
            content.write(*offset, bytes);
        }
        content
    }

    fn all(content: &Content) -> Vec<u8> {
        let mut bytes = vec![0xee; usize::try_from(content.size_bytes()).unwrap()];
        assert_eq!(content.read(0, &mut bytes), bytes.len());
        bytes
    }

    #[test]
    fn holes_read_as_zeros_and_reads_end_at_the_end() {
        let content = content(&[(5_000, b"abc")]);
        let mut buf = [9; 8];
        assert_eq!(content.read(4_998, &mut buf), 5);
        assert_eq!(&buf[..5], b"\0\0abc");
        assert_eq!(content.read(5_003, &mut buf), 0);
        assert_eq!(content.pages(), 1);
    }

    #[test]
    fn what_is_cut_off_reads_as_zeros_when_the_file_grows_again() {
        let mut content = content(&[(0, &[7; 9_000])]);
        content.set_size(10);
        assert_eq!(content.pages(), 1);
        content.set_size(9_000);
        let bytes = all(&content);
        assert_eq!(&bytes[..10], [7; 10]);
        assert!(bytes[10..].iter().all(|&byte| byte == 0));
    }

    #[test]
    fn a_punched_hole_zeroes_its_edges_and_frees_the_pages_inside() {
        for (range, pages) in [
            (10..20, 4),
            (4_000..8_300, 3),
            (4_096..8_192, 3),
            (1..16_000, 2),
        ] {
            let mut content = content(&[(0, &[7; 16_384])]);
            content.punch_hole(range.clone());
            assert_eq!(content.pages(), pages, "{range:?}");
            for (offset, byte) in all(&content).into_iter().enumerate() {
                let expected = if range.contains(&(offset as u64)) {
                    0
                } else {
                    7
                };
                assert_eq!(byte, expected, "{range:?} at {offset}");
            }
        }
    }

    #[test]
    fn collapse_undoes_insert() {
        let mut content = content(&[(0, &[1; 4_096]), (4_096, &[2; 5_000])]);
        let before = all(&content);
        content.insert(&(4_096..12_288)).unwrap();
        assert_eq!(content.size_bytes(), before.len() as u64 + 8_192);
        assert_eq!(content.seek(0, SeekTarget::Hole).unwrap(), 4_096);
        assert_eq!(content.seek(4_096, SeekTarget::Data).unwrap(), 12_288);
        content.collapse(&(4_096..12_288)).unwrap();
        assert_eq!(all(&content), before);
        assert!(content.collapse(&(0..100)).is_err());
        assert!(content.collapse(&(0..12_288)).is_err());
        assert!(content.insert(&(12_288..16_384)).is_err());
    }

    #[test]
    fn unwritten_space_is_a_hole_to_seek_and_an_extent_to_map() {
        let mut content = content(&[(0, b"x")]);
        content.set_size(12_288);
        content.allocate(&(4_096..12_288));
        assert_eq!(content.seek(0, SeekTarget::Hole).unwrap(), 4_096);
        assert!(content.seek(4_096, SeekTarget::Data).is_err());
        assert!(content.seek(12_288, SeekTarget::Hole).is_err());
        let mut seen = Vec::new();
        content.extents(&(0..u64::MAX), &mut |extent| {
            seen.push((extent.file, extent.unwritten));
            ControlFlow::Continue(())
        });
        assert_eq!(seen, [(0..4_096, false), (4_096..12_288, true)]);
    }
}
