//! Writeback of dirty pages to the file: runs of neighbours in one request each, and waiting for it.

use std::io::IoSlice;
use std::ops::Range;

use super::folio::{Content, Folio};
use super::insert::{DIRTY, TOWRITE, WRITEBACK};
use super::{Core, PAGE_BYTES, WritableSpace, page_of};
use crate::sync::RwLockReadGuard;
use crate::xarray::{Content as Entry, Order, Ref};

/// Pages that one request writes at most: 1 MiB.
const BATCH_PAGES: u64 = 256;
/// Entries that are marked or looked at under one hold of the lock.
const SWEEP_ENTRIES: usize = 1024;

/// See [`Mapping::write_back`](super::Mapping::write_back).
pub(super) fn write_back<S>(
    core: &Core<S::Error>,
    source: &S,
    range: Range<u64>,
) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let granule = granule_pages(source);
    let start = page_of(range.start) & !(granule - 1);
    let end = range.end.div_ceil(PAGE_BYTES as u64);
    let pages = start..end.saturating_add(granule - 1) & !(granule - 1);
    mark_to_write(core, pages.clone());
    // What another thread took and did not write is left to the threads that waited for it.
    while wait_for_writeback(core, pages.clone()) {
        write_marked(core, source, pages.clone())?;
    }
    Ok(())
}

/// Writes up to `count` dirty pages of a range, for any caller.
pub(super) fn write_back_some<S>(
    core: &Core<S::Error>,
    source: &S,
    pages: Range<u64>,
    count: u64,
) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let batch = begin_writeback(core, pages, Some(count), DIRTY, granule_pages(source));
    write_batch(core, source, &batch.folios)
}

/// Marks what is dirty now, so that a writer that goes on making pages dirty cannot keep a
/// sync busy for ever.
fn mark_to_write<E: Clone + Send + Sync + 'static>(core: &Core<E>, pages: Range<u64>) {
    let Some(last) = pages.end.checked_sub(1) else {
        return;
    };
    let mut next = Some(pages.start);
    while let Some(from) = next {
        next = core.change(|locked| {
            let mut cursor = locked.cursor(from, Order::ZERO);
            let mut found = cursor.find_marked(last, DIRTY);
            for _ in 0..SWEEP_ENTRIES {
                found?;
                cursor.set_mark(TOWRITE);
                found = cursor.find_next_marked(last, DIRTY);
            }
            found.map(|found| found.index)
        });
    }
}

fn write_marked<S>(core: &Core<S::Error>, source: &S, pages: Range<u64>) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let mut from = pages.start;
    loop {
        let granule = granule_pages(source);
        let batch = begin_writeback(core, from..pages.end, None, TOWRITE, granule);
        write_batch(core, source, &batch.folios)?;
        match batch.next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// Takes the next folios with `mark`, which are dirty, into writeback: about as many pages as
/// one request writes, or `count`, and the rest of the last `granule` of them.
pub(super) fn begin_writeback<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    pages: Range<u64>,
    count: Option<u64>,
    mark: crate::xarray::Mark,
    granule: u64,
) -> Batch<E> {
    let mut folios: Vec<Ref<Folio<E>>> = Vec::new();
    let Some(last) = pages.end.checked_sub(1) else {
        return Batch { folios, next: None };
    };
    let mut left = count.unwrap_or(BATCH_PAGES);
    let next = core.change(|locked| {
        let mut cursor = locked.cursor(pages.start, Order::ZERO);
        let mut found = cursor.find_marked(last, mark);
        let mut looks = 0;
        while let Some(entry) = found {
            let granule_end = || {
                folios
                    .last()
                    .map(|it| ends_at(it).next_multiple_of(granule))
            };
            if left == 0 && granule_end().is_none_or(|end| entry.index >= end)
                || looks == SWEEP_ENTRIES
            {
                return Some(entry.index);
            }
            looks += 1;
            // One that is being written was marked after that began, by a sync that waits for
            // the end of it before it comes here.
            if let Entry::Item(item) = entry.content
                && let Some(folio) = item.try_get()
                && !folio.is_in_writeback()
            {
                cursor.clear_mark(TOWRITE);
                folio.set_writeback(true);
                folio.set_dirty(false);
                cursor.set_mark(WRITEBACK);
                cursor.clear_mark(DIRTY);
                left = left.saturating_sub(folio.order().span());
                folios.push(folio);
            }
            found = cursor.find_next_marked(last, mark);
        }
        None
    });
    Batch { folios, next }
}

/// Writes folios that were taken into writeback. After an error none of the rest is written.
fn write_batch<S>(
    core: &Core<S::Error>,
    source: &S,
    folios: &[Ref<Folio<S::Error>>],
) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let mut writing = Writing { core, folios };
    let mut result = Ok(());
    for run in folios.chunk_by(|left, right| ends_at(left) == right.index()) {
        result = write_run(source, run);
        if let Err(error) = &result {
            core.errors.lock().record(error.clone());
            break;
        }
        writing.end(run.len());
    }
    result
}

/// Waits until nothing in a range is being written. Whether anything is marked to be written then.
pub(super) fn wait_for_writeback<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    pages: Range<u64>,
) -> bool {
    let Some(last) = pages.end.checked_sub(1) else {
        return false;
    };
    loop {
        let seen = *core.writebacks.lock();
        {
            let mut locked = core.pages.lock();
            let mut is_any = |mark| {
                let mut cursor = locked.cursor(pages.start, Order::ZERO);
                cursor.find_marked(last, mark).is_some()
            };
            if !is_any(WRITEBACK) {
                return is_any(TOWRITE);
            }
        }
        let mut ended = core.writebacks.lock();
        while *ended == seen {
            ended = core.writeback_ended.wait(ended);
        }
    }
}

/// Ends the writeback of folios; those that were not written are dirty again, and to be written by
/// the threads that wait for them.
pub(super) fn end_writeback<E: Clone + Send + Sync + 'static>(
    core: &Core<E>,
    folios: &[Ref<Folio<E>>],
    is_written: bool,
) {
    core.change(|locked| {
        for folio in folios {
            let mut cursor = locked.cursor(folio.index(), folio.order());
            folio.set_writeback(false);
            cursor.clear_mark(WRITEBACK);
            if !is_written {
                folio.add_dirty_pages(folio.all_pages());
                folio.set_dirty(true);
                cursor.set_mark(DIRTY);
                cursor.set_mark(TOWRITE);
            }
            if !folio.is_unwritten() {
                core.budget.sub_dirty(folio.bytes());
            }
        }
    });
    *core.writebacks.lock() += 1;
    core.writeback_ended.notify_all();
}

/// Folios taken into writeback, and where to go on.
pub(super) struct Batch<E: 'static> {
    pub(super) folios: Vec<Ref<Folio<E>>>,
    next: Option<u64>,
}

/// Folios in writeback. Those that are left when this is dropped, after an error or a panic of the
/// source, are dirty again.
struct Writing<'a, E: Clone + Send + Sync + 'static> {
    core: &'a Core<E>,
    folios: &'a [Ref<Folio<E>>],
}

impl<E: Clone + Send + Sync + 'static> Writing<'_, E> {
    /// The first `count` folios are written.
    fn end(&mut self, count: usize) {
        let (written, left) = self.folios.split_at(count);
        self.folios = left;
        end_writeback(self.core, written, true);
    }
}

impl<E: Clone + Send + Sync + 'static> Drop for Writing<'_, E> {
    fn drop(&mut self) {
        if !self.folios.is_empty() {
            end_writeback(self.core, self.folios, false);
        }
    }
}

/// The pages of a unit of writeback.
fn granule_pages<S: WritableSpace + ?Sized>(source: &S) -> u64 {
    let granule = source.write_granule();
    debug_assert!(granule.is_power_of_two(), "granules are powers of two");
    (granule / PAGE_BYTES as u64).max(1)
}

fn ends_at<E>(folio: &Folio<E>) -> u64 {
    folio.index() + folio.order().span()
}

/// Writes neighbouring folios, of each only what was written to. Writers of these pages wait.
fn write_run<S>(source: &S, run: &[Ref<Folio<S::Error>>]) -> Result<(), S::Error>
where
    S: WritableSpace + ?Sized,
{
    let contents: Vec<_> = run.iter().map(|folio| folio.read()).collect();
    let size = source.size_bytes();
    let mut pieces: Vec<(u64, &[u8])> = Vec::with_capacity(run.len());
    for (folio, content) in run.iter().zip(&contents) {
        pieces.extend(dirty_piece(folio, content, size));
    }
    for request in pieces.chunk_by(|(at, bytes), (next, _)| at + bytes.len() as u64 == *next) {
        let Some((offset, _)) = request.first() else {
            continue;
        };
        let bufs: Vec<_> = request
            .iter()
            .map(|(_, bytes)| IoSlice::new(bytes))
            .collect();
        source.write_folios(*offset, &bufs)?;
    }
    Ok(())
}

/// Where the pages lie that were written to, and their bytes, none beyond the end of the file.
pub(super) fn dirty_piece<'a, E>(
    folio: &Folio<E>,
    content: &'a RwLockReadGuard<'_, Content<E>>,
    size: u64,
) -> Option<(u64, &'a [u8])> {
    let pages = folio.take_dirty_pages();
    let first = pages.start as usize * PAGE_BYTES;
    let end = pages.end as usize * PAGE_BYTES;
    let offset = folio.offset() + first as u64;
    let bytes = content.bytes().get(first..end)?;
    let left = usize::try_from(size.saturating_sub(offset)).unwrap_or(usize::MAX);
    let bytes = &bytes[..bytes.len().min(left)];
    (!bytes.is_empty()).then_some((offset, bytes))
}
