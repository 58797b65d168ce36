//! Writing into cached pages: what is not wholly overwritten is read first.

use std::ops::Range;

use super::fill::{Filled, bytes_of};
use super::folio::{Content, Folio};
use super::insert::{DIRTY, WRITEBACK, is_at};
use super::read::in_folio;
use super::{Core, Mapping, PAGE_BYTES, WritableSpace, page_of};
use crate::sync::RwLockWriteGuard;
use crate::xarray::{Order, Ref};

/// The largest folio that is made for a write: a writer of one page should not have to write
/// back many.
const WRITE_ORDER_MAX: u8 = 4;
/// Pages that a writer writes back when there are too many dirty ones.
const THROTTLE_PAGES: u64 = 256;

impl<E: Clone + Send + Sync + 'static> Mapping<E> {
    /// Writes `data` at `offset` into the cache. It reaches the file by
    /// [`write_back`](Self::write_back) or [`sync`](Self::sync), or when there are too many dirty
    /// pages in the process: then the writer writes some back first, and fails if that does.
    ///
    /// What lies in the same pages and was in the file before is kept. The end of the file moves
    /// on as the bytes come in, by [`WritableSpace::extend`]. The caller keeps writes and
    /// truncations of one file apart.
    pub fn write_at<S>(&self, source: &S, offset: u64, data: &[u8]) -> Result<(), E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        let core = self.core();
        let mut at = offset;
        let mut left = data;
        while !left.is_empty() {
            core.throttle(source)?;
            let count = core.write_some(source, at, left)?;
            at += count as u64;
            left = &left[count..];
        }
        Ok(())
    }

    /// Calls `write` to write whole pages of the file past the cache, if none of them is cached. No
    /// pages are brought in meanwhile. The caller keeps writes and truncations of one file apart.
    pub fn write_past<R>(&self, range: Range<u64>, write: impl FnOnce() -> R) -> Option<R> {
        let core = self.core();
        let pages = page_of(range.start)..range.end.div_ceil(PAGE_BYTES as u64);
        let _exclusive = core.fills.write();
        // Of a single page, `missing_at` is not asked.
        let is_first_missing = core.pages.get_item(pages.start).is_none();
        (is_first_missing && core.missing_at(pages.clone()) == pages).then(write)
    }

    /// Whether a page is dirty or being written.
    #[must_use]
    pub fn is_unwritten(&self) -> bool {
        self.core.get().is_some_and(|core| {
            // A page goes from one mark to the other while it is locked.
            let _locked = core.pages.lock();
            core.pages.is_any_marked(DIRTY) || core.pages.is_any_marked(WRITEBACK)
        })
    }

    /// Whether a page is dirty that no writeback has taken yet.
    #[must_use]
    pub fn is_dirty(&self) -> bool {
        let core = self.core.get();
        core.is_some_and(|core| core.pages.is_any_marked(DIRTY))
    }
}

impl<E: Clone + Send + Sync + 'static> Core<E> {
    /// Writes into the folio of the first byte. Returns how many bytes went there.
    fn write_some<S>(&self, source: &S, at: u64, data: &[u8]) -> Result<usize, E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        loop {
            let index = page_of(at);
            let Some(folio) = self.pages.get_item(index) else {
                if let Some(count) = self.write_new(source, at, data)? {
                    return Ok(count);
                }
                continue;
            };
            if !folio.wait_filled()? {
                continue;
            }
            let mut content = folio.write();
            if let Some(count) = self.copy_in(&folio, &mut content, at, data) {
                source.extend(at + count as u64);
                return Ok(count);
            }
        }
    }

    /// Copies into a folio that is up to date, and makes it dirty. `None` if it has left the
    /// index.
    fn copy_in(
        &self,
        folio: &Ref<Folio<E>>,
        content: &mut RwLockWriteGuard<'_, Content<E>>,
        at: u64,
        data: &[u8],
    ) -> Option<usize> {
        let start = in_folio(folio, at);
        let count = data.len().min(folio.len() - start);
        if folio.is_detached() {
            return None;
        }
        content.bytes_mut()[start..start + count].copy_from_slice(&data[..count]);
        folio.touch(start, start + count);
        self.make_dirty(folio, start, start + count)
            .then_some(count)
    }

    /// Makes bytes of a folio, whose content the caller has locked, dirty. Whether it is still in
    /// the index.
    pub(super) fn make_dirty(&self, folio: &Ref<Folio<E>>, start: usize, end: usize) -> bool {
        let span = PAGE_BYTES << self.min_order.get();
        let page = |byte: usize| u32::try_from(byte / PAGE_BYTES).unwrap_or(u32::MAX);
        // Of whole blocks.
        let pages = page(start & !(span - 1))..page((end.max(1) + span - 1) & !(span - 1));
        // A writeback takes the pages under the content's lock, after it has cleared the flag.
        folio.add_dirty_pages(pages);
        if folio.is_dirty() {
            return true;
        }
        self.change(|locked| {
            let mut cursor = locked.cursor(folio.index(), folio.order());
            if !is_at(&mut cursor, folio) {
                return false;
            }
            if !folio.is_unwritten() {
                self.budget.add_dirty(folio.bytes());
            }
            folio.set_dirty(true);
            cursor.set_mark(DIRTY);
            true
        })
    }

    /// Writes to a page that is not cached. `None` if another thread was faster.
    fn write_new<S>(&self, source: &S, at: u64, data: &[u8]) -> Result<Option<usize>, E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        let index = self.start_of(page_of(at));
        let start = usize::try_from(at - bytes_of(index..index).start).unwrap_or_default();
        let _shared = self.fills.read();
        let span = PAGE_BYTES << self.min_order.get();
        let is_whole = start == 0 && data.len() >= span;
        let is_beyond = bytes_of(index..index).start >= source.size_bytes();
        if !is_whole && !is_beyond {
            return self.fill_for_write(source, index);
        }
        let whole_pages = if is_whole { data.len() / PAGE_BYTES } else { 1 };
        let pages = (whole_pages as u64).clamp(self.min_order.span(), 1 << WRITE_ORDER_MAX);
        let missing = self.missing_at(index..index.saturating_add(pages));
        let order = order_for(index, missing.end.saturating_sub(index)).max(self.min_order);
        let Some(folio) = self.folio_for_write(source, index, order)? else {
            return Ok(None);
        };
        let mut content = folio.write();
        if self.add_folio(&folio).is_err() {
            return Ok(None);
        }
        let count = data.len().min(folio.len() - start);
        let bytes = content.bytes_mut();
        bytes[..start].fill(0);
        bytes[start..start + count].copy_from_slice(&data[..count]);
        bytes[start + count..].fill(0);
        folio.set_uptodate();
        folio.touch(start, start + count);
        let is_dirty = self.make_dirty(&folio, 0, folio.len());
        if is_dirty {
            // Not before: a thread that finds nothing dirty takes it that the file is written to its end.
            source.extend(at + count as u64);
        }
        Ok(is_dirty.then_some(count))
    }

    /// Reads the pages of which the first, `index`, begins a block to be written in part. Always returns
    /// `None`: the caller looks again.
    fn fill_for_write<S>(&self, source: &S, index: u64) -> Result<Option<usize>, E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        match self.fill_window(source, index..index + self.min_order.span())? {
            Filled::Folio(_) | Filled::Raced => {}
            Filled::NoSpace => {
                self.write_back_some(source, 0..u64::MAX, THROTTLE_PAGES)?;
                if let Some(folio) = Folio::new_beyond(&self.budget, index, self.min_order) {
                    self.fill_folios(source, &[folio], index)?;
                }
            }
        }
        Ok(None)
    }

    /// A folio to be written to, whatever the budget says: clean pages first give way, then dirty
    /// ones are written, and in the end one of the smallest goes beyond it.
    fn folio_for_write<S>(
        &self,
        source: &S,
        index: u64,
        order: Order,
    ) -> Result<Option<Ref<Folio<E>>>, E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        for order in [order, self.min_order] {
            let folio = Folio::new(&self.budget, index, order);
            if folio.is_some() {
                return Ok(folio);
            }
        }
        self.write_back_some(source, 0..u64::MAX, THROTTLE_PAGES)?;
        Ok(Folio::new_beyond(&self.budget, index, self.min_order))
    }

    /// Has a writer write back while too much of the budget is dirty.
    fn throttle<S>(&self, source: &S) -> Result<(), E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        if self.budget.dirty_bytes() > self.budget.dirty_limit_bytes() {
            self.write_back_some(source, 0..u64::MAX, THROTTLE_PAGES)?;
        }
        Ok(())
    }
}

/// The order of a new folio for up to `pages` pages from `index` on.
fn order_for(index: u64, pages: u64) -> Order {
    let order = index.trailing_zeros().min(pages.max(1).ilog2());
    let order = u8::try_from(order).ok().and_then(Order::new);
    order.unwrap_or_default()
}
