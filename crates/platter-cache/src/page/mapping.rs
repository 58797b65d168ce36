//! The cached pages of a file: what a driver calls.

use std::fmt;
use std::ops::Range;
use std::sync::{Arc, OnceLock};

use super::insert::{DIRTY, WRITEBACK};
use super::{
    AddressSpace, Core, DirtyPages, ErrorCursor, WritableSpace, fill, read, truncate, write,
    writeback,
};
use crate::MemoryBudget;
use crate::sync::Ordering;
use crate::xarray::Order;

/// The largest minimum order: 64 KiB.
const MIN_ORDER_MAX: u8 = 4;

/// The cached pages of one file, whose driver fails with `E`.
///
/// The driver passes its side of the file to each call; the mapping keeps no reference to it.
/// Dropping the mapping gives all its memory back, and what was not written is lost.
pub struct Mapping<E: Clone + Send + Sync + 'static> {
    budget: Arc<MemoryBudget>,
    min_order: Order,
    /// Made when the first page comes in: most files that are listed are never read.
    pub(super) core: OnceLock<Arc<Core<E>>>,
}

impl<E: Clone + Send + Sync + 'static> Mapping<E> {
    /// An empty mapping whose pages are charged to `budget`.
    #[must_use]
    pub fn new(budget: Arc<MemoryBudget>) -> Self {
        Self::with_min_order(budget, Order::ZERO)
    }

    /// An empty mapping whose folios have `2^min_order` pages or more, so that they hold whole blocks of
    /// a filesystem whose blocks are larger than a page. They are read, and written back, in multiples of
    /// that.
    ///
    /// # Panics
    /// If the blocks are larger than 64 KiB.
    #[must_use]
    pub fn with_min_order(budget: Arc<MemoryBudget>, min_order: Order) -> Self {
        assert!(
            min_order.get() <= MIN_ORDER_MAX,
            "a block has 64 KiB or less"
        );
        Self {
            budget,
            min_order,
            core: OnceLock::new(),
        }
    }

    /// The budget its pages are charged to.
    #[must_use]
    pub fn budget(&self) -> &Arc<MemoryBudget> {
        &self.budget
    }

    /// How many pages are cached.
    #[must_use]
    pub fn page_count(&self) -> u64 {
        let core = self.core.get();
        core.map_or(0, |core| core.page_count.load(Ordering::Relaxed))
    }

    /// Reads up to `buf.len()` bytes at `offset`, from the cache or from `source`. Of a long range, what
    /// is not cached goes straight to `buf`, and is not cached then.
    ///
    /// Returns how many bytes there were before the end of the file.
    pub fn read_at<S>(&self, source: &S, offset: u64, buf: &mut [u8]) -> Result<usize, E>
    where
        S: AddressSpace<Error = E> + ?Sized,
    {
        read::read_at(self.core(), source, offset, buf)
    }

    /// As [`read_at`](Self::read_at), for a reader that reads all of a file once: a range of it that begins with a page
    /// and ends with the file goes past the cache if nothing of the file is in it.
    pub fn read_once<S>(&self, source: &S, offset: u64, buf: &mut [u8]) -> Result<usize, E>
    where
        S: AddressSpace<Error = E> + ?Sized,
    {
        read::read_once(self.core(), source, offset, buf)
    }

    /// Shows up to `len` bytes at `offset` in place, one slice after the other, to `visit`.
    ///
    /// There are fewer bytes at the end of the file, or when they would be more than 2 MiB: then
    /// the next call goes on where this one ended. `visit` must not use the mapping; it keeps
    /// writers of these pages waiting, not readers.
    pub fn read_with<S, R>(
        &self,
        source: &S,
        offset: u64,
        len: usize,
        visit: impl FnOnce(&[&[u8]]) -> R,
    ) -> Result<R, E>
    where
        S: AddressSpace<Error = E> + ?Sized,
    {
        read::read_with(self.core(), source, offset, len, visit)
    }

    /// Brings the pages of a range in, with as few requests as possible. A hint: what cannot be
    /// read ahead is read, and fails, when it is asked for. At most an eighth of the budget.
    pub fn will_need<S>(&self, source: &S, range: Range<u64>)
    where
        S: AddressSpace<Error = E> + ?Sized,
    {
        fill::will_need(self.core(), source, range);
    }

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
        write::write_at(self.core(), source, offset, data)
    }

    /// Calls `write` to write whole pages of the file past the cache, if none of them is cached. No
    /// pages are brought in meanwhile. The caller keeps writes and truncations of one file apart.
    pub fn write_past<R>(&self, range: Range<u64>, write: impl FnOnce() -> R) -> Option<R> {
        write::write_past(self.core(), range, write)
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

    /// Writes the pages of `range` that are dirty now to the file, and waits for those that others
    /// write. Pages made dirty meanwhile are left.
    ///
    /// Ends at the first error: what was not written stays dirty, and each error cursor reports
    /// it at the next [`check_errors`](Self::check_errors).
    pub fn write_back<S>(&self, source: &S, range: Range<u64>) -> Result<(), E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        match self.core.get() {
            Some(core) => writeback::write_back(core, source, range),
            None => Ok(()),
        }
    }

    /// Writes the dirty pages of `range`, and returns an error that `cursor` has not reported yet, be it
    /// of this writeback or of an earlier one.
    ///
    /// The file's metadata, and a flush of the device, are the driver's to add.
    pub fn sync<S>(&self, source: &S, range: Range<u64>, cursor: &mut ErrorCursor) -> Result<(), E>
    where
        S: WritableSpace<Error = E> + ?Sized,
    {
        // Its error is recorded, and comes back from the check.
        let _ = self.write_back(source, range);
        self.check_errors(cursor)
    }

    /// Returns the error cursor of a file that is opened now.
    #[must_use]
    pub fn error_cursor(&self) -> ErrorCursor {
        self.core().errors.lock().cursor()
    }

    /// The last error of a writeback, once for each cursor.
    pub fn check_errors(&self, cursor: &mut ErrorCursor) -> Result<(), E> {
        self.core().errors.lock().check(cursor)
    }

    /// Takes all dirty pages of the file into writeback, if no more than `pages_max` are cached at all.
    /// Does not wait: pages that other threads write are not among them.
    #[must_use]
    pub fn take_dirty(&self, pages_max: u64) -> Option<DirtyPages<E>> {
        let core = self.core.get().filter(|_| self.page_count() <= pages_max)?;
        DirtyPages::take(core)
    }

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
        if let Some(core) = self.core.get() {
            truncate::remove_range(core, range);
        }
    }

    /// Takes whatever holds bytes of a range out of the cache, as a whole: the file has other bytes
    /// there now. The caller has had it written back, and blocks writers since then.
    pub fn invalidate(&self, range: Range<u64>) {
        if let Some(core) = self.core.get() {
            truncate::invalidate(core, range);
        }
    }

    #[inline]
    pub(super) fn core(&self) -> &Arc<Core<E>> {
        self.core.get().unwrap_or_else(|| self.make_core())
    }

    #[cold]
    fn make_core(&self) -> &Arc<Core<E>> {
        let core = Core::new(Arc::clone(&self.budget), self.min_order);
        self.core.get_or_init(|| core)
    }
}

impl<E: Clone + Send + Sync + 'static> fmt::Debug for Mapping<E> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Mapping")
            .field("page_count", &self.page_count())
            .finish_non_exhaustive()
    }
}

impl<E: Clone + Send + Sync + 'static> Drop for Mapping<E> {
    fn drop(&mut self) {
        // An evictor may hold the core a moment longer; the memory goes back now.
        if let Some(core) = self.core.get() {
            core.remove_all();
        }
    }
}
