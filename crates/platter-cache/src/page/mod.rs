//! The page cache: a file's contents by page index.
//!
//! A [`Mapping`] holds the cached pages of one file in folios of several sizes, indexed by an
//! [`XArray`]. What is missing is filled through the driver's [`AddressSpace`], straight into the
//! folios' memory; what was written goes back through its [`WritableSpace`].
//!
//! Locks, in the order they are taken: a mapping's `fills`, a folio's content, a mapping's index,
//! the eviction order. The content of a folio is locked while it is read from or written to the
//! device, which is how others wait for it; no other lock is held meanwhile but `fills`, shared.

mod errors;
mod folio;
mod insert;
mod readahead;
mod fill;
mod writeback;
mod read;
mod truncate;
mod write;
mod gather;
mod mapping;
#[cfg(test)]
mod tests;

use std::io::{IoSlice, IoSliceMut};
use std::ops::Range;
use std::sync::{Arc, Weak};

use crate::MemoryBudget;
use crate::budget::Registration;
use crate::sync::{AtomicU64, Condvar, Mutex, RwLock, rank};
use crate::xarray::{Order, XArray};
use errors::ErrorSequence;
use folio::Folio;
use readahead::Streams;

pub use crate::frame::PAGE_BYTES;
pub use errors::ErrorCursor;
pub use gather::{DirtyPages, LockedPages};
pub use mapping::Mapping;

/// What a mapping is filled from: the driver's side of one file.
///
/// Called with pages of the file locked: an implementation takes no lock that is held while a
/// mapping of this file is used.
pub trait AddressSpace {
    /// The driver's error. A clone reaches every reader that waited for the failed page.
    type Error: Clone + Send + Sync + 'static;

    /// The file's size in bytes at this moment.
    fn size_bytes(&self) -> u64;

    /// Fills `bufs`, which lie one after the other in the file from byte `offset`, with what the
    /// file holds: holes and bytes beyond the end of the file are zeros. `offset` is a multiple of
    /// the page size and so is the length of every buffer.
    fn read_folios(&self, offset: u64, bufs: &mut [IoSliceMut<'_>]) -> Result<(), Self::Error>;

    /// Returns the range widened so that it has whole units where only those can be filled, such as
    /// compressed extents. By up to 128 KiB at either end; more is ignored. The default is for files that
    /// can be filled page by page.
    fn fill_range(&self, range: Range<u64>) -> Range<u64> {
        range
    }

    /// Announces that a range will probably be read soon. A hint, without effect on what is read.
    fn will_need(&self, range: Range<u64>) {
        let _ = range;
    }
}

/// What a mapping writes its dirty pages to.
pub trait WritableSpace: AddressSpace {
    /// Moves the end of the file to byte `end` if it is before that: so far was written into the
    /// cache. Called before anything of it can be written back, with pages of the file locked: an
    /// implementation takes no lock that is held while a mapping is used.
    fn extend(&self, end: u64);

    /// Whether there is space for the bytes of `range`, which are about to become dirty: a writeback may have used what
    /// was reserved for them. Called as [`extend`](Self::extend) is, so that none uses it between this and the change.
    fn is_reserved(&self, range: Range<u64>) -> bool {
        let _ = range;
        true
    }

    /// Reserves space for the bytes of `range` again. Called without pages locked.
    ///
    /// # Errors
    /// That there is none; nothing more is written then.
    fn reserve_again(&self, range: Range<u64>) -> Result<(), Self::Error> {
        let _ = range;
        Ok(())
    }

    /// Writes `bufs`, which lie one after the other in the file from byte `offset`, a multiple of
    /// the page size. Every length but the last is a multiple of the page size too; the last ends
    /// at the end of the file if that comes earlier.
    fn write_folios(&self, offset: u64, bufs: &[IoSlice<'_>]) -> Result<(), Self::Error>;

    /// Bytes of a unit of writeback, a power of two and at least a page: dirty pages that share a unit go
    /// to one call of [`write_folios`](Self::write_folios), unless clean ones lie between them.
    fn write_granule(&self) -> u64 {
        PAGE_BYTES as u64
    }
}

/// What the eviction order reaches the pages by.
struct Core<E: Clone + Send + Sync + 'static> {
    pages: XArray<Folio<E>>,
    /// No folio is smaller, and each lies at a multiple of its size.
    min_order: Order,
    budget: Arc<MemoryBudget>,
    registration: Registration,
    /// Held shared to bring pages in, exclusively to remove a range.
    fills: RwLock<(), { rank(5, 1) }>,
    /// Sequential readers.
    streams: Mutex<Streams>,
    /// Errors of writeback.
    errors: Mutex<ErrorSequence<E>>,
    /// How many writebacks have ended, for threads that wait for one.
    writebacks: Mutex<u64>,
    writeback_ended: Condvar,
    page_count: AtomicU64,
}

impl<E: Clone + Send + Sync + 'static> Core<E> {
    fn new(budget: Arc<MemoryBudget>, min_order: Order) -> Arc<Self> {
        Arc::new_cyclic(|core: &Weak<Self>| Self {
            pages: XArray::new(),
            min_order,
            registration: budget.register(Weak::<Self>::clone(core)),
            budget,
            fills: RwLock::new(()),
            streams: Mutex::default(),
            errors: Mutex::default(),
            writebacks: Mutex::default(),
            writeback_ended: Condvar::default(),
            page_count: AtomicU64::new(0),
        })
    }

    /// The first page of the smallest folio that page `index` can lie in.
    fn start_of(&self, index: u64) -> u64 {
        index & !(self.min_order.span() - 1)
    }

    /// The first page at or after `index` that a folio can begin at.
    fn end_of(&self, index: u64) -> u64 {
        self.start_of(index.saturating_add(self.min_order.span() - 1))
    }

    /// Takes everything out of the index, written or not.
    fn remove_all(&self) {
        let mut next = Some(0);
        while let Some(from) = next {
            let (batch, after) = self.change(|locked| {
                let mut cursor = locked.cursor(from, Order::ZERO);
                let mut batch = Vec::new();
                let mut found = cursor.find(u64::MAX);
                while found.is_some() && batch.len() < REMOVE_BATCH {
                    batch.extend(self.remove_at(&mut cursor));
                    found = cursor.find_next(u64::MAX);
                }
                (batch, found.map(|found| found.index))
            });
            for folio in batch {
                self.budget.lru().remove(folio.lru());
            }
            next = after;
        }
    }
}

/// Folios that are taken out under one hold of the lock.
const REMOVE_BATCH: usize = 256;

/// The page that byte `offset` lies in.
fn page_of(offset: u64) -> u64 {
    offset / PAGE_BYTES as u64
}
