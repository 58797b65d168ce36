//! Writing into cached pages: what is not wholly overwritten is read first.

use std::ops::Range;

use super::fill::{Filled, FolioResult, bytes_of, fill_folios, fill_window, missing_at};
use super::folio::{Content, Folio};
use super::insert::{DIRTY, is_at};
use super::read::in_folio;
use super::writeback::write_back_some;
use super::{Core, PAGE_BYTES, WritableSpace, page_of};
use crate::sync::RwLockWriteGuard;
use crate::xarray::{Order, Ref};

/// The largest folio that is made for a write: a writer of one page should not have to write
/// back many.
const WRITE_ORDER_MAX: u8 = 4;
/// Pages that a writer writes back when there are too many dirty ones.
const THROTTLE_PAGES: u64 = 256;

/// See [`Mapping::write_at`](super::Mapping::write_at).
pub(super) fn write_at<S>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    data: &[u8],
) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let mut at = offset;
    let mut left = data;
    while !left.is_empty() {
        throttle(core, source)?;
        let count = write_some(core, source, at, left)?;
        at += count as u64;
        left = &left[count..];
    }
    Ok(())
}

/// See [`Mapping::write_past`](super::Mapping::write_past).
pub(super) fn write_past<E: Clone + Send + Sync + 'static, R>(
    core: &Core<E>,
    range: Range<u64>,
    write: impl FnOnce() -> R,
) -> Option<R> {
    let pages = page_of(range.start)..range.end.div_ceil(PAGE_BYTES as u64);
    let _exclusive = core.fills.write();
    // Of a single page, `missing_at` is not asked.
    let is_first_missing = core.pages.get_item(pages.start).is_none();
    (is_first_missing && missing_at(core, pages.clone()) == pages).then(write)
}

/// Writes into the folio of the first byte. Returns how many bytes went there.
fn write_some<S>(core: &Core<S::Error>, source: &S, at: u64, data: &[u8]) -> Result<usize, S::Error>
where
    S: WritableSpace + ?Sized,
{
    loop {
        let index = page_of(at);
        let Some(folio) = core.pages.get_item(index) else {
            if let Some(count) = write_new(core, source, at, data)? {
                return Ok(count);
            }
            continue;
        };
        if !folio.wait_filled()? {
            continue;
        }
        let mut content = folio.write();
        let range = at..at + data.len().min(folio.len() - in_folio(&folio, at)) as u64;
        if !source.is_reserved(range.clone()) {
            drop(content);
            source.reserve_again(range)?;
            continue;
        }
        if let Some(count) = copy_in(core, &folio, &mut content, at, data) {
            source.extend(at + count as u64);
            return Ok(count);
        }
    }
}

/// Copies into a folio that is up to date, and makes it dirty. `None` if it has left the
/// index.
fn copy_in<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
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
    make_dirty(core, folio, start, start + count).then_some(count)
}

/// Makes bytes of a folio, whose content the caller has locked, dirty. Whether it is still in
/// the index.
fn make_dirty<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    folio: &Ref<Folio<E>>,
    start: usize,
    end: usize,
) -> bool {
    let span = PAGE_BYTES << core.min_order.get();
    let page = |byte: usize| u32::try_from(byte / PAGE_BYTES).unwrap_or(u32::MAX);
    // Of whole blocks.
    let pages = page(start & !(span - 1))..page((end.max(1) + span - 1) & !(span - 1));
    // A writeback takes the pages under the content's lock, after it has cleared the flag.
    folio.add_dirty_pages(pages);
    if folio.is_dirty() {
        return true;
    }
    core.change(|locked| {
        let mut cursor = locked.cursor(folio.index(), folio.order());
        if !is_at(&mut cursor, folio) {
            return false;
        }
        if !folio.is_unwritten() {
            core.budget.add_dirty(folio.bytes());
        }
        folio.set_dirty(true);
        cursor.set_mark(DIRTY);
        true
    })
}

/// Writes to a page that is not cached. `None` if another thread was faster.
fn write_new<S>(
    core: &Core<S::Error>,
    source: &S,
    at: u64,
    data: &[u8],
) -> Result<Option<usize>, S::Error>
where
    S: WritableSpace + ?Sized,
{
    let index = core.start_of(page_of(at));
    let start = usize::try_from(at - bytes_of(index..index).start).unwrap_or_default();
    let shared = core.fills.read();
    let span = PAGE_BYTES << core.min_order.get();
    let is_whole = start == 0 && data.len() >= span;
    let is_beyond = bytes_of(index..index).start >= source.size_bytes();
    if !is_whole && !is_beyond {
        return fill_for_write(core, source, index);
    }
    let whole_pages = if is_whole { data.len() / PAGE_BYTES } else { 1 };
    let pages = (whole_pages as u64).clamp(core.min_order.span(), 1 << WRITE_ORDER_MAX);
    let missing = missing_at(core, index..index.saturating_add(pages));
    let order = order_for(index, missing.end.saturating_sub(index)).max(core.min_order);
    let end = bytes_of(index..index.saturating_add(order.span())).end;
    let range = at..end.min(at.saturating_add(data.len() as u64));
    // What is not cached is not written back any more.
    if !source.is_reserved(range.clone()) {
        drop(shared);
        source.reserve_again(range)?;
        return Ok(None);
    }
    let Some(folio) = folio_for_write(core, source, index, order)? else {
        return Ok(None);
    };
    let mut content = folio.write();
    if core.add_folio(&folio).is_err() {
        return Ok(None);
    }
    let count = data.len().min(folio.len() - start);
    let bytes = content.bytes_mut();
    bytes[..start].fill(0);
    bytes[start..start + count].copy_from_slice(&data[..count]);
    bytes[start + count..].fill(0);
    folio.set_uptodate();
    folio.touch(start, start + count);
    let is_dirty = make_dirty(core, &folio, 0, folio.len());
    if is_dirty {
        // Not before: a thread that finds nothing dirty takes it that the file is written to its end.
        source.extend(at + count as u64);
    }
    Ok(is_dirty.then_some(count))
}

/// Reads the pages of which the first, `index`, begins a block to be written in part. Always returns
/// `None`: the caller looks again.
fn fill_for_write<S>(
    core: &Core<S::Error>,
    source: &S,
    index: u64,
) -> Result<Option<usize>, S::Error>
where
    S: WritableSpace + ?Sized,
{
    match fill_window(core, source, index..index + core.min_order.span())? {
        Filled::Folio(_) | Filled::Raced => {}
        Filled::NoSpace => {
            write_back_some(core, source, 0..u64::MAX, THROTTLE_PAGES)?;
            if let Some(folio) = Folio::new_beyond(&core.budget, index, core.min_order) {
                fill_folios(core, source, &[folio], index)?;
            }
        }
    }
    Ok(None)
}

/// A folio to be written to, whatever the budget says: clean pages first give way, then dirty
/// ones are written, and in the end one of the smallest goes beyond it.
fn folio_for_write<S>(
    core: &Core<S::Error>,
    source: &S,
    index: u64,
    order: Order,
) -> FolioResult<S::Error>
where
    S: WritableSpace + ?Sized,
{
    for order in [order, core.min_order] {
        let folio = Folio::new(&core.budget, index, order);
        if folio.is_some() {
            return Ok(folio);
        }
    }
    write_back_some(core, source, 0..u64::MAX, THROTTLE_PAGES)?;
    Ok(Folio::new_beyond(&core.budget, index, core.min_order))
}

/// Has a writer write back while too much of the budget is dirty.
fn throttle<S>(core: &Core<S::Error>, source: &S) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    if core.budget.dirty_bytes() > core.budget.dirty_limit_bytes() {
        write_back_some(core, source, 0..u64::MAX, THROTTLE_PAGES)?;
    }
    Ok(())
}

/// The order of a new folio for up to `pages` pages from `index` on.
fn order_for(index: u64, pages: u64) -> Order {
    let order = index.trailing_zeros().min(pages.max(1).ilog2());
    let order = u8::try_from(order).ok().and_then(Order::new);
    order.unwrap_or_default()
}
