//! Taking ranges of a file out of the cache: the end of a truncated file, or a hole.

use std::ops::Range;

use super::fill::bytes_of;
use super::folio::{Folio, split_cost_bytes};
use super::insert::is_at;
use super::read::in_folio;
use super::writeback::wait_for_writeback;
use super::{Core, PAGE_BYTES, REMOVE_BATCH, page_of};
use crate::budget::List;
use crate::xarray::{Content, Order, Ref};

/// What becomes of a folio that reaches over an end of what is taken out.
enum Straddling {
    /// It is split, or, if another thread uses it, cleared within these bytes.
    Parted(Range<u64>),
    /// It goes as a whole.
    Removed,
}

/// See [`Mapping::remove_range`](super::Mapping::remove_range).
pub(super) fn remove_range<E: Clone + Send + Sync + 'static>(core: &Core<E>, range: Range<u64>) {
    let first = core.end_of(range.start.div_ceil(PAGE_BYTES as u64));
    let end = core.start_of(page_of(range.end));
    // No pages are brought in meanwhile.
    let _exclusive = core.fills.write();
    zero_edge(core, range.start, range.end);
    zero_edge(core, range.start.max(bytes_of(end..end).start), range.end);
    remove_pages(core, first..end, &Straddling::Parted(range));
}

/// See [`Mapping::invalidate`](super::Mapping::invalidate).
pub(super) fn invalidate<E: Clone + Send + Sync + 'static>(core: &Core<E>, range: Range<u64>) {
    let pages = page_of(range.start)..range.end.div_ceil(PAGE_BYTES as u64);
    // No pages are brought in meanwhile.
    let _exclusive = core.fills.write();
    remove_pages(core, pages, &Straddling::Removed);
}

/// Clears the bytes from `from` to `end` in the smallest folio that `from` can lie in, if it is cached.
fn zero_edge<E: Clone + Send + Sync + 'static>(core: &Core<E>, from: u64, end: u64) {
    let first = core.start_of(page_of(from));
    let least = bytes_of(first..first + core.min_order.span());
    let end = end.min(least.end);
    if from == least.start && end == least.end || from >= end {
        return;
    }
    if let Some(folio) = core.pages.get_item(page_of(from)) {
        zero(&folio, from..end);
    }
}

/// Takes the folios of whole `pages` out.
fn remove_pages<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    pages: Range<u64>,
    straddling: &Straddling,
) {
    let Some(last) = pages.end.checked_sub(1).filter(|_| !pages.is_empty()) else {
        return;
    };
    let mut next = Some(pages.start);
    while let Some(from) = next {
        wait_for_writeback(core, from..pages.end);
        let mut removed = Vec::new();
        let mut parted = None;
        next = core.change(|locked| {
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
                        removed.extend(core.remove_at(&mut cursor));
                    }
                }
                found = cursor.find_next(last);
            }
            None
        });
        for folio in removed {
            core.budget.lru().remove(folio.lru());
        }
        if let Some((folio, bytes)) = parted {
            next = cut(core, &folio, &pages, bytes);
        }
    }
}

/// Parts a folio that reaches over an end of `pages` from what lies outside, or clears what
/// lies inside. Returns where to go on.
fn cut<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    folio: &Ref<Folio<E>>,
    pages: &Range<u64>,
    bytes: &Range<u64>,
) -> Option<u64> {
    let is_left = folio.index() < pages.start;
    let edge = if is_left { pages.start } else { pages.end };
    if split_folio(core, folio, edge) {
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
fn split_folio<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    folio: &Ref<Folio<E>>,
    index: u64,
) -> bool {
    let order = folio.order();
    if order <= core.min_order || !folio.covers(index) || folio.index() == index {
        return false;
    }
    let extra = core.budget.charge_beyond(split_cost_bytes(order));
    let parts = core.change(|locked| {
        let mut cursor = locked.cursor(index, core.min_order);
        if !is_at(&mut cursor, folio) || !folio.is_uptodate() || folio.is_in_writeback() {
            return None;
        }
        // The index's reference, the caller's, and the one to be frozen.
        let whole = folio.clone().freeze(3).ok()?;
        let mut content = whole.try_write()?;
        cursor.split_minimal();
        let parts = content.split((folio.index(), order), (index, core.min_order), extra);
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
    let lru = core.budget.lru();
    lru.remove(folio.lru());
    for part in parts {
        let owner = core.registration.id();
        part.set_lru(lru.insert(owner, part.index(), part.bytes(), List::Inactive));
    }
    true
}

/// Clears bytes of a folio. Waits for threads that read, write or fill it.
fn zero<E>(folio: &Folio<E>, range: Range<u64>) {
    let start = in_folio(folio, range.start);
    let end = in_folio(folio, range.end);
    if let Some(bytes) = folio.write().bytes_mut().get_mut(start..end) {
        bytes.fill(0);
    }
}
