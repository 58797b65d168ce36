//! Filling what is missing: one request for a window of pages, straight into their folios.

use std::io::IoSliceMut;
use std::ops::Range;

use super::folio::Folio;
use super::readahead::{WINDOW_PAGES_MAX, folio_orders};
use super::{AddressSpace, Core, PAGE_BYTES, page_of};
use crate::xarray::{Content, Order, Ref};

/// Pages that a range is widened by at most at either end to have whole units: 128 KiB.
const UNIT_PAGES_MAX: u64 = 32;

/// What came of an attempt to bring a page in.
pub(super) enum Filled<E: 'static> {
    /// The folio of the page, up to date.
    Folio(Ref<Folio<E>>),
    /// Another thread was faster, or has just undone its own attempt: look again.
    Raced,
    /// The budget has no space for a single page.
    NoSpace,
}

/// A folio; `None` without space for one.
pub(super) type FolioResult<E> = Result<Option<Ref<Folio<E>>>, E>;

/// Returns the folio that covers page `index`, up to date: from the index, after waiting for the
/// thread that fills it, or filled now with `needed` pages and what should be read ahead. `None`
/// without space.
#[inline]
pub(super) fn uptodate_folio<S>(
    core: &Core<S::Error>,
    source: &S,
    index: u64,
    needed: u64,
) -> FolioResult<S::Error>
where
    S: AddressSpace + ?Sized,
{
    loop {
        let Some(folio) = core.pages.get_item(index) else {
            match fill(core, source, index, needed)? {
                Filled::Folio(folio) => return Ok(Some(folio)),
                Filled::Raced => continue,
                Filled::NoSpace => return Ok(None),
            }
        };
        debug_assert!(folio.covers(index), "the index leads to the right folio");
        if folio.wait_filled()? {
            return Ok(Some(folio));
        }
    }
}

/// Reads the missing page `index` with what its reader will want next.
#[inline(never)]
fn fill<S>(
    core: &Core<S::Error>,
    source: &S,
    index: u64,
    needed: u64,
) -> Result<Filled<S::Error>, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let _shared = core.fills.read();
    let pages = source.size_bytes().div_ceil(PAGE_BYTES as u64);
    let pages_max = (core.budget.limit_bytes() / 8 / PAGE_BYTES as u64).max(1);
    let (first, span) = (core.start_of(index), core.min_order.span());
    let needed = needed.saturating_add(index - first);
    let window = core.streams.lock().window(first, needed, span);
    let end = first.saturating_add(window.min(pages_max)).min(pages);
    let narrow = first..first + span;
    let window = first..core.end_of(end.max(first + 1));
    let units = whole_units(core, source, window.clone());
    if units.end > window.end {
        core.streams.lock().extend(window.end, units.end);
    }
    let wide = units != narrow;
    let filled = fill_units(core, source, units, first);
    if filled.is_err() && wide {
        // The fault may lie in a page that was not requested.
        core.streams.lock().forget(first);
        return fill_window(core, source, narrow);
    }
    if wide {
        let ahead = window.end
            ..window
                .end
                .saturating_add(window.end - window.start)
                .min(pages);
        source.will_need(bytes_of(ahead));
    }
    filled
}

/// Reads the missing pages at the beginning of `window` as one request, with the rest of the units
/// that they lie in.
pub(super) fn fill_window<S>(
    core: &Core<S::Error>,
    source: &S,
    window: Range<u64>,
) -> Result<Filled<S::Error>, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let first = window.start;
    let units = whole_units(core, source, window);
    fill_units(core, source, units, first)
}

/// The pages of a window, and of the units of the source that it has a part of.
fn whole_units<S>(core: &Core<S::Error>, source: &S, window: Range<u64>) -> Range<u64>
where
    S: AddressSpace + ?Sized,
{
    let bytes = bytes_of(window.clone());
    let units = source.fill_range(bytes.clone());
    if units == bytes {
        return window;
    }
    let start_min = window.start.saturating_sub(UNIT_PAGES_MAX);
    let end_max = window.end.saturating_add(UNIT_PAGES_MAX);
    let start = page_of(units.start).max(start_min).min(window.start);
    let end = units.end.div_ceil(PAGE_BYTES as u64).min(end_max);
    core.start_of(start)..core.end_of(end.max(window.end))
}

/// Reads page `index`, and the missing pages of `units` before and after it, as one request.
fn fill_units<S>(
    core: &Core<S::Error>,
    source: &S,
    units: Range<u64>,
    index: u64,
) -> Result<Filled<S::Error>, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let end = missing_at(core, index..units.end).end;
    let start = missing_before(core, units.start, index);
    let mut folios = new_folios(core, start..end);
    if start < index && !folios.iter().any(|folio| folio.covers(index)) {
        // There is no space for the whole unit.
        folios = new_folios(core, index..end);
    }
    if folios.is_empty() {
        let is_present = core.pages.get_item(index).is_some();
        return Ok(if is_present {
            Filled::Raced
        } else {
            Filled::NoSpace
        });
    }
    fill_folios(core, source, &folios, index)
}

/// Puts new folios, which lie side by side and of which one has page `index`, into the index up to
/// the first that overlaps another, and fills them by one request.
pub(super) fn fill_folios<S>(
    core: &Core<S::Error>,
    source: &S,
    folios: &[Ref<Folio<S::Error>>],
    index: u64,
) -> Result<Filled<S::Error>, S::Error>
where
    S: AddressSpace + ?Sized,
{
    // Locked before they can be found, so that a thread that finds one waits.
    let mut contents: Vec<_> = folios.iter().map(|folio| folio.write()).collect();
    let count = core.add_folios(folios);
    contents.truncate(count);
    let (Some(first), Some(alone)) = (folios[..count].first(), contents.first_mut()) else {
        return Ok(Filled::Raced);
    };
    let offset = first.offset();
    let mut filling = Filling {
        core,
        folios: &folios[..count],
    };
    if count == 1 {
        let mut bufs = [IoSliceMut::new(alone.bytes_mut())];
        if let Err(error) = source.read_folios(offset, &mut bufs) {
            // Waiting threads asked for the same: they get the same answer. A larger folio
            // may have failed for the sake of another page.
            alone.failure = (first.order() == core.min_order).then(|| error.clone());
            return Err(error);
        }
    } else {
        let mut bufs: Vec<_> = contents
            .iter_mut()
            .map(|content| IoSliceMut::new(content.bytes_mut()))
            .collect();
        source.read_folios(offset, &mut bufs)?;
    }
    for folio in std::mem::take(&mut filling.folios) {
        folio.set_uptodate();
    }
    let wanted = folios[..count].iter().find(|folio| folio.covers(index));
    Ok(wanted.map_or(Filled::Raced, |folio| Filled::Folio(folio.clone())))
}

/// The first page from `start` on such that it and those between it and `index` are missing.
fn missing_before<E: Clone + Send + Sync + 'static>(core: &Core<E>, start: u64, index: u64) -> u64 {
    if start >= index {
        return index;
    }
    let mut first = start;
    let mut locked = core.pages.lock();
    let mut cursor = locked.cursor(start, Order::ZERO);
    let mut found = cursor.find(index - 1);
    while let Some(entry) = found {
        if let Content::Item(_) = entry.content {
            first = entry.last_index() + 1;
        }
        found = cursor.find_next(index - 1);
    }
    first.min(index)
}

/// The part of `window` before its first present page; a window of one page is taken for missing.
pub(super) fn missing_at<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    window: Range<u64>,
) -> Range<u64> {
    if window.end - window.start <= 1 {
        return window;
    }
    let mut locked = core.pages.lock();
    let mut cursor = locked.cursor(window.start, Order::ZERO);
    let mut found = cursor.find(window.end - 1);
    while let Some(entry) = found {
        if let Content::Item(_) = entry.content {
            return window.start..entry.index.max(window.start);
        }
        found = cursor.find_next(window.end - 1);
    }
    window
}

/// New folios for the pages of `window`, as far as the budget has space.
fn new_folios<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    window: Range<u64>,
) -> Vec<Ref<Folio<E>>> {
    let mut folios = Vec::new();
    let mut index = window.start;
    while index < window.end {
        let mut has_space = false;
        for order in folio_orders(index..window.end, core.min_order) {
            let Some(folio) = Folio::new(&core.budget, index, order) else {
                break;
            };
            has_space = true;
            index += order.span();
            folios.push(folio);
        }
        if has_space {
            continue;
        }
        // No large folio is to be had; one of the smallest may be.
        let Some(folio) = Folio::new(&core.budget, index, core.min_order) else {
            break;
        };
        index += core.min_order.span();
        folios.push(folio);
    }
    folios
}

/// Reads ahead the missing pages of a range, up to an eighth of the budget. Failures are left
/// to the read that needs the pages.
pub(super) fn will_need<S>(core: &Core<S::Error>, source: &S, range: Range<u64>)
where
    S: AddressSpace + ?Sized,
{
    let size = source.size_bytes();
    let bytes_max = core.budget.limit_bytes() / 8;
    let end = range
        .end
        .min(size)
        .min(range.start.saturating_add(bytes_max));
    let last = core.end_of(end.div_ceil(PAGE_BYTES as u64));
    let mut index = core.start_of(page_of(range.start));
    let _shared = core.fills.read();
    while index < last {
        let window = index..last.min(index.saturating_add(WINDOW_PAGES_MAX));
        let missing = missing_at(core, window.clone());
        if missing.is_empty() {
            let folio = core.pages.get_item(index);
            index = folio.map_or(index + core.min_order.span(), |folio| {
                folio.index() + folio.order().span()
            });
            continue;
        }
        match fill_window(core, source, missing.clone()) {
            Ok(Filled::Folio(_) | Filled::Raced) => index = missing.end,
            Ok(Filled::NoSpace) | Err(_) => return,
        }
    }
}

/// Folios that are being filled. What is left when this is dropped, after an error or a panic of
/// the source, leaves the index: threads that wait for it read anew.
struct Filling<'a, E: Clone + Send + Sync + 'static> {
    core: &'a Core<E>,
    folios: &'a [Ref<Folio<E>>],
}

impl<E: Clone + Send + Sync + 'static> Drop for Filling<'_, E> {
    fn drop(&mut self) {
        for folio in self.folios {
            self.core.detach(folio);
        }
    }
}

/// The bytes of a range of pages.
pub(super) fn bytes_of(pages: Range<u64>) -> Range<u64> {
    let page = PAGE_BYTES as u64;
    pages.start.saturating_mul(page)..pages.end.saturating_mul(page)
}
