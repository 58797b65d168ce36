//! Reading a file through its cached pages: copied out, or shown in place.

use std::io::IoSliceMut;
use std::ops::Range;

use super::fill::{bytes_of, missing_at, uptodate_folio};
use super::folio::Folio;
use super::{AddressSpace, Core, PAGE_BYTES, page_of};
use crate::sync::Ordering;
use crate::xarray::Ref;

/// The most that is shown in place at once.
const SHOW_BYTES_MAX: usize = 2 << 20;
/// Pages that are read at once when the budget has no space to cache them.
const UNCACHED_PAGES: usize = 16;
/// A read of so many missing pages at once gets them from the file, without a second copy: 128 KiB.
const PAST_PAGES_MIN: usize = 32;

/// See [`Mapping::read_at`](super::Mapping::read_at).
pub(super) fn read_at<S>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let range = within(source, offset, buf.len());
    let mut at = range.start;
    let mut done = 0;
    let mut may_pass = true;
    while at < range.end {
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let wanted = &mut buf[done..][..left];
        if may_pass && left >= PAST_PAGES_MIN * PAGE_BYTES {
            // What fails may succeed in part, page by page.
            let passed = read_past(core, source, at, wanted).unwrap_or_else(|_| {
                may_pass = false;
                0
            });
            if passed > 0 {
                at += passed as u64;
                done += passed;
                continue;
            }
        }
        let copied = match uptodate_folio(core, source, page_of(at), pages_left(at, &range))? {
            Some(folio) => copy_out(&folio, at, wanted),
            None => read_uncached(core, source, at, wanted)?,
        };
        at += copied as u64;
        done += copied;
    }
    Ok(done)
}

/// See [`Mapping::read_once`](super::Mapping::read_once).
pub(super) fn read_once<S>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let range = within(source, offset, buf.len());
    let pages = page_of(range.start)..range.end.div_ceil(PAGE_BYTES as u64);
    let bytes = bytes_of(pages.clone());
    let is_last = range.end == source.size_bytes();
    let is_whole = bytes.start == offset && is_last && !range.is_empty();
    if !is_whole
        || core.page_count.load(Ordering::Relaxed) > 0
        || source.fill_range(bytes.clone()) != bytes
    {
        return read_at(core, source, offset, buf);
    }
    let shared = core.fills.read();
    let missing = missing_at(core, pages.clone());
    if missing != pages || core.pages.get_item(pages.start).is_some() {
        drop(shared);
        return read_at(core, source, offset, buf);
    }
    let count = usize::try_from(range.end - range.start).unwrap_or_default();
    let (whole, tail) = buf[..count].split_at_mut(count - count % PAGE_BYTES);
    if tail.is_empty() {
        source.read_folios(offset, &mut [IoSliceMut::new(whole)])?;
        return Ok(count);
    }
    let mut last = [0; PAGE_BYTES];
    if whole.is_empty() {
        source.read_folios(offset, &mut [IoSliceMut::new(&mut last)])?;
    } else {
        let bufs = &mut [IoSliceMut::new(whole), IoSliceMut::new(&mut last)];
        source.read_folios(offset, bufs)?;
    }
    tail.copy_from_slice(&last[..tail.len()]);
    Ok(count)
}

/// See [`Mapping::read_with`](super::Mapping::read_with).
pub(super) fn read_with<S, R>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    len: usize,
    visit: impl FnOnce(&[&[u8]]) -> R,
) -> Result<R, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let range = within(source, offset, len.min(SHOW_BYTES_MAX));
    let mut folios = Vec::new();
    let mut at = range.start;
    while at < range.end {
        let folio = uptodate_folio(core, source, page_of(at), pages_left(at, &range))?;
        if let Some(folio) = folio {
            at = folio.offset() + folio.bytes();
            folios.push(folio);
            continue;
        }
        if !folios.is_empty() {
            break;
        }
        let left = usize::try_from(range.end - at).unwrap_or(usize::MAX);
        let mut buf = vec![0; left.min(UNCACHED_PAGES * PAGE_BYTES)];
        let count = read_uncached(core, source, at, &mut buf)?;
        if count > 0 {
            return Ok(visit(&[&buf[..count]]));
        }
    }
    let contents: Vec<_> = folios.iter().map(|folio| folio.read()).collect();
    let mut slices = Vec::with_capacity(folios.len());
    for (folio, content) in folios.iter().zip(&contents) {
        let start = in_folio(folio, range.start.max(folio.offset()));
        let end = in_folio(folio, range.end.min(folio.offset() + folio.bytes()));
        folio.touch(start, end);
        slices.push(&content.bytes()[start..end]);
    }
    Ok(visit(&slices))
}

/// Reads the first of a range of whole pages past the cache, if so many are missing that it is worth
/// it. Returns how many bytes.
fn read_past<S>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let first = page_of(offset);
    if bytes_of(first..first).start != offset || core.pages.get_item(first).is_some() {
        return Ok(0);
    }
    let _shared = core.fills.read();
    let pages = (buf.len() / PAGE_BYTES) as u64;
    let missing = missing_at(core, first..first.saturating_add(pages));
    let missing = without_parts(source, missing);
    let count = usize::try_from(missing.end - first).unwrap_or_default();
    if count < PAST_PAGES_MIN {
        return Ok(0);
    }
    let bytes = count * PAGE_BYTES;
    source.read_folios(offset, &mut [IoSliceMut::new(&mut buf[..bytes])])?;
    Ok(bytes)
}

/// Reads at `offset` past the cache, because the budget has no space for a page. Bytes of
/// cached pages are not touched: the read ends before the first of them, and gives at least
/// one byte, or none if the first page was cached meanwhile.
fn read_uncached<S>(
    core: &Core<S::Error>,
    source: &S,
    offset: u64,
    buf: &mut [u8],
) -> Result<usize, S::Error>
where
    S: AddressSpace + ?Sized,
{
    let _shared = core.fills.read();
    let first = page_of(offset);
    let skip = usize::try_from(offset - bytes_of(first..first).start).unwrap_or_default();
    let wanted = (skip + buf.len()).div_ceil(PAGE_BYTES).min(UNCACHED_PAGES);
    let is_missing = |&page: &u64| core.pages.get_item(page).is_none();
    let missing = (first..).take(wanted).take_while(is_missing).count();
    let mut pages = vec![0; missing * PAGE_BYTES];
    if missing == 0 {
        return Ok(0);
    }
    let bufs = &mut [IoSliceMut::new(&mut pages)];
    source.read_folios(bytes_of(first..first).start, bufs)?;
    let read = &pages[skip..];
    let count = read.len().min(buf.len());
    buf[..count].copy_from_slice(&read[..count]);
    Ok(count)
}

/// The pages at the beginning of a range that make whole units of the source. Of a unit that is read in
/// part, the rest would have to be read again.
fn without_parts<S: AddressSpace + ?Sized>(source: &S, pages: Range<u64>) -> Range<u64> {
    let bytes = bytes_of(pages.clone());
    let page = PAGE_BYTES as u64;
    if bytes.is_empty() || source.fill_range(bytes.start..bytes.start + page).start < bytes.start {
        return pages.start..pages.start;
    }
    let last = source.fill_range(bytes.end - page..bytes.end);
    if last.end <= bytes.end {
        return pages;
    }
    pages.start..page_of(last.start).clamp(pages.start, pages.end)
}

/// Copies what a folio holds from byte `at` of the file on.
fn copy_out<E>(folio: &Ref<Folio<E>>, at: u64, buf: &mut [u8]) -> usize {
    let start = in_folio(folio, at);
    let content = folio.read();
    let bytes = &content.bytes()[start..];
    let count = bytes.len().min(buf.len());
    buf[..count].copy_from_slice(&bytes[..count]);
    folio.touch(start, start + count);
    count
}

/// The bytes of the file among `len` from `offset` on.
fn within<S: AddressSpace + ?Sized>(source: &S, offset: u64, len: usize) -> Range<u64> {
    let end = source.size_bytes().min(offset.saturating_add(len as u64));
    offset..end.max(offset)
}

/// How many pages a reader at `at` wants of the rest of its range.
fn pages_left(at: u64, range: &Range<u64>) -> u64 {
    range.end.div_ceil(PAGE_BYTES as u64) - page_of(at)
}

/// Where byte `at` of the file lies in a folio that covers it, or ends at it.
pub(super) fn in_folio<E>(folio: &Folio<E>, at: u64) -> usize {
    usize::try_from(at - folio.offset()).unwrap_or(usize::MAX)
}
