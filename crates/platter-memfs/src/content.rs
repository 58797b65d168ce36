//! The block mapping of a file in memory: pages by number, holes where there is none.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use super::disk::{Disk, Frame, PAGE};
use platter_vfs::file::{Backing, FileRun, Target};
use platter_vfs::writing::RangeSet;

/// The largest file in bytes: what an `off_t` holds.
pub(super) const FILE_BYTES_MAX: u64 = i64::MAX as u64;
/// The pages of that.
pub(super) const PAGES_MAX: u64 = FILE_BYTES_MAX.div_ceil(PAGE);

/// The contents of one regular file, but for what is only in the page cache.
///
/// # Invariants
/// A page that is delayed is not written.
#[derive(Debug, Default)]
pub(super) struct Content {
    size_bytes: u64,
    pub(super) pages: BTreeMap<u64, Page>,
    /// Dirty pages that have no frame, or an unwritten one: they are written at writeback.
    delayed: RangeSet<u64>,
}

/// A page that has space.
#[derive(Debug)]
pub(super) struct Page {
    /// Shared with pages that have the same bytes.
    frame: Arc<Frame>,
    /// Otherwise it reads as zeros.
    pub(super) is_written: bool,
}

impl Content {
    /// The size without what is only in the page cache.
    pub(super) fn size_bytes(&self) -> u64 {
        self.size_bytes
    }

    /// Pages that take space, or have it reserved.
    pub(super) fn pages_held(&self) -> u64 {
        self.pages.len() as u64 + self.reserved_in(0..PAGES_MAX)
    }

    /// How many pages of a range neither take space nor have it reserved.
    pub(super) fn pages_missing(&self, pages: &Range<u64>) -> u64 {
        let mapped = self.pages.range(pages.clone()).count() as u64;
        (pages.end - pages.start) - mapped - self.reserved_in(pages.clone())
    }

    /// Delayed pages of a range that have no space yet.
    fn reserved_in(&self, pages: Range<u64>) -> u64 {
        let reserved = self.delayed.within(pages).map(|delayed| {
            let mapped = self.pages.range(delayed.clone()).count() as u64;
            delayed.end - delayed.start - mapped
        });
        reserved.sum()
    }

    /// Sets the end of the file.
    pub(super) fn set_end(&mut self, size_bytes: u64) {
        self.size_bytes = size_bytes;
    }

    /// Extends the file to `size_bytes`, if it is shorter.
    pub(super) fn extend(&mut self, size_bytes: u64) {
        self.size_bytes = self.size_bytes.max(size_bytes);
    }

    /// The run from a page on, which ends at `end` at the latest.
    pub(super) fn run(&self, first: u64, end: u64) -> FileRun {
        let run = |count, backing| FileRun {
            first,
            count,
            backing,
        };
        let Some(page) = self.pages.get(&first) else {
            let next = self.pages.range(first..).next();
            let next = next.map_or(PAGES_MAX, |(&next, _)| next).min(end);
            return run(next.saturating_sub(first).max(1), Backing::Hole);
        };
        let start = page.frame.address();
        let mut count = 1;
        while let Some(next) = self.pages.get(&(first + count))
            && first + count < end
            && next.is_written == page.is_written
            && next.frame.address() == start + count * PAGE
        {
            count += 1;
        }
        let backing = if page.is_written {
            Backing::Written(start)
        } else {
            Backing::Unwritten(start)
        };
        run(count, backing)
    }

    /// The first delayed pages that end after `page`, from `page` on.
    pub(super) fn next_delayed(&self, page: u64) -> Option<Range<u64>> {
        self.delayed.next(page)
    }

    /// What is to be done with the first dirty pages of a range, and how many those are.
    pub(super) fn write_target(&self, pages: &Range<u64>) -> (Target, u64) {
        let run = self.run(pages.start, pages.end);
        let target = match run.backing {
            Backing::Written(start) => return (Target::Overwrite(start), run.count),
            Backing::Unwritten(start) => Target::Unwritten(start),
            Backing::Hole => Target::New,
        };
        match self.delayed.next(pages.start) {
            Some(delayed) if delayed.start == pages.start => {
                (target, run.count.min(delayed.end - pages.start))
            }
            Some(delayed) => (Target::Nothing, run.count.min(delayed.start - pages.start)),
            None => (Target::Nothing, run.count),
        }
    }

    /// Marks the pages of a range that are not written as delayed. Returns those that were not.
    pub(super) fn delay(&mut self, pages: Range<u64>) -> Vec<Range<u64>> {
        let mut added = RangeSet::default();
        for gap in self.delayed.gaps(pages.clone()) {
            for page in gap {
                if self.pages.get(&page).is_none_or(|page| !page.is_written) {
                    added.insert(page..page + 1);
                }
            }
        }
        let added: Vec<_> = added.within(pages).collect();
        for pages in &added {
            self.delayed.insert(pages.clone());
        }
        added
    }

    /// Ends the delay of pages that will not be written.
    pub(super) fn release(&mut self, pages: Range<u64>) {
        self.delayed.remove(pages);
    }

    /// Maps pages that were written, all to one page of the disk if they are `equal`.
    pub(super) fn map_written(&mut self, disk: &Arc<Disk>, run: &FileRun, equal: bool) {
        let Backing::Written(start) = run.backing else {
            return;
        };
        let step = if equal { 0 } else { PAGE };
        let mut frame = Arc::new(Frame::new(disk, start));
        for (page, index) in (run.first..run.end()).zip(0..) {
            let address = start + index * step;
            if frame.address() != address {
                frame = Arc::new(Frame::new(disk, address));
            }
            self.replace(page, Arc::clone(&frame));
        }
        self.delayed.remove(run.first..run.end());
    }

    /// Maps a page to one of the disk that was written.
    pub(super) fn replace(&mut self, page: u64, frame: Arc<Frame>) {
        let written = Page {
            frame,
            is_written: true,
        };
        self.pages.insert(page, written);
    }

    /// Where a page may be written over: nowhere if others share its place.
    pub(super) fn own_address(&self, page: u64) -> Option<u64> {
        let frame = &self.pages.get(&page)?.frame;
        (Arc::strong_count(frame) == 1).then(|| frame.address())
    }

    /// Has pages, to which data was written, read as that.
    pub(super) fn convert_written(&mut self, pages: Range<u64>) {
        for (_, page) in self.pages.range_mut(pages.clone()) {
            page.is_written = true;
        }
        self.delayed.remove(pages);
    }

    /// Makes pages read as zeros.
    pub(super) fn convert_unwritten(&mut self, pages: Range<u64>) {
        for (_, page) in self.pages.range_mut(pages.clone()) {
            page.is_written = false;
        }
        self.delayed.remove(pages);
    }

    /// Takes space for the holes of a range.
    pub(super) fn allocate(&mut self, disk: &Arc<Disk>, pages: Range<u64>) {
        for page in pages {
            self.pages.entry(page).or_insert_with(|| Page {
                frame: Arc::new(Frame::new(disk, disk.allocate(1))),
                is_written: false,
            });
        }
    }

    /// Frees the pages of a range.
    pub(super) fn unmap(&mut self, pages: Range<u64>) {
        let mut from_start = self.pages.split_off(&pages.start);
        self.pages.append(&mut from_start.split_off(&pages.end));
        self.delayed.remove(pages);
    }

    /// Frees the pages of a range, and moves those after it down.
    pub(super) fn collapse(&mut self, pages: Range<u64>) {
        self.unmap(pages.clone());
        let moved = self.pages.split_off(&pages.end).into_iter();
        let count = pages.end - pages.start;
        self.pages
            .extend(moved.map(|(number, page)| (number - count, page)));
    }

    /// Moves the pages from the start of a range on up to its end.
    pub(super) fn insert(&mut self, pages: &Range<u64>) {
        let moved = self.pages.split_off(&pages.start).into_iter();
        let count = pages.end - pages.start;
        self.pages
            .extend(moved.map(|(number, page)| (number + count, page)));
    }

    /// The written pages of a range, and their addresses.
    pub(super) fn written_in(&self, pages: Range<u64>) -> impl Iterator<Item = (u64, u64)> + '_ {
        let pages = self.pages.range(pages).filter(|(_, page)| page.is_written);
        pages.map(|(&number, page)| (number, page.frame.address()))
    }
}

impl Page {
    /// Another page with the same bytes.
    pub(super) fn copy(&self) -> Self {
        Self {
            frame: Arc::clone(&self.frame),
            is_written: self.is_written,
        }
    }
}
