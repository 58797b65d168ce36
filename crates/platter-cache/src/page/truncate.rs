//! Taking ranges of a file out of the cache: the end of a truncated file, or a hole.

use std::ops::Range;

use super::fill::bytes_of;
use super::folio::{Folio, split_cost_bytes};
use super::insert::is_at;
use super::read::in_folio;
use super::{Core, Mapping, PAGE_BYTES, REMOVE_BATCH, page_of};
use crate::budget::List;
use crate::xarray::{Content, Order, Ref};

impl<E: Clone + Send + Sync + 'static> Mapping<E> {
    /// Takes everything from byte `size` on out of the cache, written or not. The rest of the smallest
    /// folio in which the file can end now reads as zeros.
    ///
    /// Called after the driver has moved the end of the file, and before it frees the blocks:
    /// once this returns no thread reads or writes them through the cache. What the disk holds in the
    /// rest of the last block is the driver's to clear.
    pub fn truncate(&self, size: u64) {
        self.remove_range(size..u64::MAX);
    }

    /// Takes the bytes of a range out of the cache, written or not. In pages, or larger blocks, that the
    /// range covers in part they turn to zeros; these do not become dirty.
    pub fn remove_range(&self, range: Range<u64>) {
        let Some(core) = self.core.get() else {
            return;
        };
        let first = core.end_of(range.start.div_ceil(PAGE_BYTES as u64));
        let end = core.start_of(page_of(range.end));
        // No pages are brought in meanwhile.
        let _exclusive = core.fills.write();
        core.zero_edge(range.start, range.end);
        core.zero_edge(range.start.max(bytes_of(end..end).start), range.end);
        core.remove_pages(first..end, &Straddling::Parted(range));
    }

    /// Takes whatever holds bytes of a range out of the cache, as a whole: the file has other bytes
    /// there now. The caller has had it written back, and blocks writers since then.
    pub fn invalidate(&self, range: Range<u64>) {
        let Some(core) = self.core.get() else {
            return;
        };
        let pages = page_of(range.start)..range.end.div_ceil(PAGE_BYTES as u64);
        // No pages are brought in meanwhile.
        let _exclusive = core.fills.write();
        core.remove_pages(pages, &Straddling::Removed);
    }
}

/// What becomes of a folio that reaches over an end of what is taken out.
enum Straddling {
    /// It is split, or, if another thread uses it, cleared within these bytes.
    Parted(Range<u64>),
    /// It goes as a whole.
    Removed,
}

impl<E: Clone + Send + Sync + 'static> Core<E> {
    /// Clears the bytes from `from` to `end` in the smallest folio that `from` can lie in, if it is cached.
    fn zero_edge(&self, from: u64, end: u64) {
        let first = self.start_of(page_of(from));
        let least = bytes_of(first..first + self.min_order.span());
        let end = end.min(least.end);
        if from == least.start && end == least.end || from >= end {
            return;
        }
        if let Some(folio) = self.pages.get_item(page_of(from)) {
            zero(&folio, from..end);
        }
    }

    /// Takes the folios of whole `pages` out.
    fn remove_pages(&self, pages: Range<u64>, straddling: &Straddling) {
        let Some(last) = pages.end.checked_sub(1).filter(|_| !pages.is_empty()) else {
            return;
        };
        let mut next = Some(pages.start);
        while let Some(from) = next {
            self.wait_for_writeback(from..pages.end);
            let mut removed = Vec::new();
            let mut parted = None;
            next = self.change(|locked| {
                let mut cursor = locked.cursor(from, Order::ZERO);
                let mut found = cursor.find(last);
                while let Some(entry) = found {
                    if removed.len() == REMOVE_BATCH {
                        return Some(entry.index);
                    }
                    let is_inside = entry.index >= pages.start && entry.last_index() <= last;
                    match entry.content {
                        Content::Value(_) => drop(cursor.remove()),
                        Content::Item(item) => {
                            let Some(folio) = item.try_get() else {
                                return Some(entry.index);
                            };
                            if folio.is_in_writeback() {
                                return Some(entry.index);
                            }
                            if let (false, Straddling::Parted(bytes)) = (is_inside, straddling) {
                                parted = Some((folio, bytes));
                                return Some(entry.index);
                            }
                            removed.extend(self.remove_at(&mut cursor));
                        }
                    }
                    found = cursor.find_next(last);
                }
                None
            });
            for folio in removed {
                self.budget.lru().remove(folio.lru());
            }
            if let Some((folio, bytes)) = parted {
                next = self.cut(&folio, &pages, bytes);
            }
        }
    }

    /// Parts a folio that reaches over an end of `pages` from what lies outside, or clears what
    /// lies inside. Returns where to go on.
    fn cut(&self, folio: &Ref<Folio<E>>, pages: &Range<u64>, bytes: &Range<u64>) -> Option<u64> {
        let is_left = folio.index() < pages.start;
        let edge = if is_left { pages.start } else { pages.end };
        if self.split_folio(folio, edge) {
            return Some(folio.index().max(pages.start));
        }
        let start = folio.offset().max(bytes.start);
        let end = (folio.offset() + folio.bytes()).min(bytes.end);
        zero(folio, start..end);
        Some(folio.index() + folio.order().span()).filter(|next| pages.contains(next))
    }

    /// Splits a folio so that page `index`, which begins a smallest one, is the first of a part, if no
    /// other thread uses it. The slots of all its pages lead to the whole, which readers cannot get,
    /// until all parts are in their places. Returns whether it was split.
    pub(super) fn split_folio(&self, folio: &Ref<Folio<E>>, index: u64) -> bool {
        let order = folio.order();
        if order <= self.min_order || !folio.covers(index) || folio.index() == index {
            return false;
        }
        let extra = self.budget.charge_beyond(split_cost_bytes(order));
        let parts = self.change(|locked| {
            let mut cursor = locked.cursor(index, self.min_order);
            if !is_at(&mut cursor, folio) || !folio.is_uptodate() || folio.is_in_writeback() {
                return None;
            }
            // The index's reference, the caller's, and the one to be frozen.
            let whole = folio.clone().freeze(3).ok()?;
            let mut content = whole.try_write()?;
            cursor.split_minimal();
            let parts = content.split((folio.index(), order), (index, self.min_order), extra);
            for part in &parts {
                part.inherit(&whole);
                let mut cursor = locked.cursor(part.index(), part.order());
                let replaced = cursor.replace(part.clone());
                debug_assert!(replaced.is_some(), "the parts are those of the index");
            }
            whole.set_detached();
            Some(parts)
        });
        let Some(parts) = parts else {
            return false;
        };
        let lru = self.budget.lru();
        lru.remove(folio.lru());
        for part in parts {
            let owner = self.registration.id();
            part.set_lru(lru.insert(owner, part.index(), part.bytes(), List::Inactive));
        }
        true
    }
}

/// Clears bytes of a folio. Waits for threads that read, write or fill it.
fn zero<E>(folio: &Folio<E>, range: Range<u64>) {
    let start = in_folio(folio, range.start);
    let end = in_folio(folio, range.end);
    if let Some(bytes) = folio.write().bytes_mut().get_mut(start..end) {
        bytes.fill(0);
    }
}
