//! A folio: one or more pages of a file that are cached, dirtied and evicted as a whole.

use std::ops::Range;
use std::sync::Arc;

use super::PAGE_BYTES;
use crate::budget::{Charge, Heat, LruId, MemoryBudget};
use crate::frame::Frame;
use crate::sync::{AtomicU8, AtomicU32, AtomicU64, Ordering, RwLock, RwLockReadGuard};
use crate::sync::{RwLockWriteGuard, rank};
use crate::xarray::{Order, Ref};

/// Bytes a folio costs in addition to its pages: its header and its place in the eviction order.
const OVERHEAD_BYTES: u64 = 256;

const UPTODATE: u8 = 1;
const DIRTY: u8 = 2;
const WRITEBACK: u8 = 4;
const DETACHED: u8 = 8;

/// No range of pages, as it is kept in an atomic.
const NO_PAGES: u64 = u32::MAX as u64;

/// Pages `index..index + 2^order` of a file whose driver fails with `E`.
///
/// # Invariants
/// - While a folio is being filled its content is locked for writing, so that a thread that finds it
///   waits; it is up to date, or failed, or detached once the lock is free.
/// - `DIRTY` and `WRITEBACK` change under the mapping's index lock, together with its marks. They
///   keep a folio from being evicted.
/// - A detached folio is in no index and never will be again.
/// - The order never changes: a split makes new folios of the parts.
#[derive(Debug)]
pub(crate) struct Folio<E> {
    index: u64,
    order: Order,
    flags: AtomicU8,
    heat: Heat,
    /// Where the last read ended: one that goes forward from there is the same use.
    read_end: AtomicU32,
    lru: AtomicU64,
    /// Pages written to since the last writeback, first and end in one number.
    dirty_pages: AtomicU64,
    /// The bytes of the pages.
    content: RwLock<Content<E>, { rank(5, 2) }>,
}

/// What a folio holds.
#[derive(Debug)]
pub(crate) struct Content<E> {
    /// The pages and their charge; absent once they went to the parts of a split.
    frame: Option<Frame>,
    charge: Option<Charge>,
    /// Why the folio could not be filled, for waiting threads.
    pub(crate) failure: Option<E>,
}

impl<E> Folio<E> {
    /// A folio with unspecified contents, charged; `None` if the budget has no space for one of
    /// this order.
    pub(crate) fn new(budget: &Arc<MemoryBudget>, index: u64, order: Order) -> Option<Ref<Self>> {
        let charge = budget.charge(cost_bytes(order))?;
        let frame = budget.frames().take(order.get())?;
        Some(Self::from_parts(index, order, frame, charge))
    }

    /// A folio that is charged, and gets its memory, beyond the ceiling if need be.
    pub(crate) fn new_beyond(
        budget: &Arc<MemoryBudget>,
        index: u64,
        order: Order,
    ) -> Option<Ref<Self>> {
        let charge = budget.charge_beyond(cost_bytes(order));
        let frame = budget.frames().take_beyond(order.get())?;
        Some(Self::from_parts(index, order, frame, charge))
    }

    fn from_parts(index: u64, order: Order, frame: Frame, charge: Charge) -> Ref<Self> {
        Ref::new(Self {
            index,
            order,
            flags: AtomicU8::new(0),
            heat: Heat::default(),
            read_end: AtomicU32::new(u32::MAX),
            lru: AtomicU64::new(LruId::NONE.to_bits()),
            dirty_pages: AtomicU64::new(NO_PAGES),
            content: RwLock::new(Content {
                frame: Some(frame),
                charge: Some(charge),
                failure: None,
            }),
        })
    }

    /// First page.
    pub(crate) fn index(&self) -> u64 {
        self.index
    }

    pub(crate) fn order(&self) -> Order {
        self.order
    }

    /// First byte in the file.
    pub(crate) fn offset(&self) -> u64 {
        self.index * PAGE_BYTES as u64
    }

    pub(crate) fn len(&self) -> usize {
        PAGE_BYTES << self.order.get()
    }

    /// Bytes of the pages, without the overhead.
    pub(crate) fn bytes(&self) -> u64 {
        self.len() as u64
    }

    pub(crate) fn covers(&self, index: u64) -> bool {
        index & !(self.order.span() - 1) == self.index
    }

    pub(crate) fn is_uptodate(&self) -> bool {
        self.has(UPTODATE)
    }

    pub(crate) fn set_uptodate(&self) {
        self.flags.fetch_or(UPTODATE, Ordering::Release);
    }

    pub(crate) fn is_dirty(&self) -> bool {
        self.has(DIRTY)
    }

    pub(crate) fn is_in_writeback(&self) -> bool {
        self.has(WRITEBACK)
    }

    /// Whether the folio is dirty, or was and is not yet written.
    pub(crate) fn is_unwritten(&self) -> bool {
        self.has(DIRTY | WRITEBACK)
    }

    pub(crate) fn is_detached(&self) -> bool {
        self.flags.load(Ordering::SeqCst) & DETACHED != 0
    }

    pub(crate) fn set_detached(&self) {
        self.flags.fetch_or(DETACHED, Ordering::SeqCst);
    }

    /// Sets or clears the dirty flag. Under the index lock.
    pub(crate) fn set_dirty(&self, is_dirty: bool) {
        self.set(DIRTY, is_dirty);
    }

    /// Sets or clears the writeback flag. Under the index lock.
    pub(crate) fn set_writeback(&self, is_in_writeback: bool) {
        self.set(WRITEBACK, is_in_writeback);
    }

    fn has(&self, flags: u8) -> bool {
        self.flags.load(Ordering::Acquire) & flags != 0
    }

    fn set(&self, flag: u8, value: bool) {
        if value {
            self.flags.fetch_or(flag, Ordering::SeqCst);
        } else {
            self.flags.fetch_and(!flag, Ordering::SeqCst);
        }
    }

    /// Adds pages of this folio to those a writeback has to write.
    pub(crate) fn add_dirty_pages(&self, pages: Range<u32>) {
        let add = |now: u64| {
            let now = unpack(now);
            let joined = if now.is_empty() {
                pages.clone()
            } else {
                now.start.min(pages.start)..now.end.max(pages.end)
            };
            Some(pack(&joined))
        };
        let (set, fetch) = (Ordering::SeqCst, Ordering::SeqCst);
        let _ = self.dirty_pages.fetch_update(set, fetch, add);
    }

    /// Takes over the state of the folio this one is a part of. Whatever was to be written of it
    /// is to be written of each part.
    pub(crate) fn inherit(&self, whole: &Self) {
        let flags = whole.flags.load(Ordering::SeqCst) & (UPTODATE | DIRTY);
        self.flags.store(flags, Ordering::SeqCst);
        if self.is_dirty() {
            self.add_dirty_pages(self.all_pages());
        }
    }

    /// Takes the pages to be written.
    pub(crate) fn take_dirty_pages(&self) -> Range<u32> {
        unpack(self.dirty_pages.swap(NO_PAGES, Ordering::SeqCst))
    }

    /// All pages of the folio.
    pub(crate) fn all_pages(&self) -> Range<u32> {
        0..1 << self.order.get()
    }

    /// Counts a use, unless it goes forward from where the last one ended.
    pub(crate) fn touch(&self, start: usize, end: usize) {
        let start = u32::try_from(start).unwrap_or_default();
        if start < self.read_end.load(Ordering::Relaxed) {
            self.heat.touch();
        }
        let end = u32::try_from(end).unwrap_or_default();
        self.read_end.store(end, Ordering::Relaxed);
    }

    pub(crate) fn heat(&self) -> &Heat {
        &self.heat
    }

    pub(crate) fn lru(&self) -> LruId {
        LruId::from_bits(self.lru.load(Ordering::Relaxed))
    }

    pub(crate) fn set_lru(&self, id: LruId) {
        self.lru.store(id.to_bits(), Ordering::Relaxed);
    }

    pub(crate) fn read(&self) -> RwLockReadGuard<'_, Content<E>> {
        self.content.read_nth(self.index)
    }

    /// Locks the contents shared, also where the thread has those of other files: threads that wait to write do not
    /// come first, so that two that lock several files wait for none that waits for them.
    pub(crate) fn read_also(&self) -> RwLockReadGuard<'_, Content<E>> {
        self.content.read_recursive()
    }

    pub(crate) fn write(&self) -> RwLockWriteGuard<'_, Content<E>> {
        self.content.write_nth(self.index)
    }

    pub(crate) fn try_write(&self) -> Option<RwLockWriteGuard<'_, Content<E>>> {
        self.content.try_write()
    }
}

impl<E: Clone> Folio<E> {
    /// Waits for the thread that fills the folio. Returns whether it is up to date; if not, its filler
    /// gave up without having asked for it alone.
    pub(crate) fn wait_filled(&self) -> Result<bool, E> {
        if self.is_uptodate() {
            return Ok(true);
        }
        let content = self.read();
        match &content.failure {
            Some(error) => Err(error.clone()),
            None => Ok(self.is_uptodate()),
        }
    }
}

impl<E> Content<E> {
    pub(crate) fn bytes(&self) -> &[u8] {
        self.frame.as_deref().unwrap_or_default()
    }

    pub(crate) fn bytes_mut(&mut self) -> &mut [u8] {
        self.frame.as_deref_mut().unwrap_or_default()
    }

    /// Makes folios of the parts of this one, of `order` at `index`, which is left empty: that of order
    /// `min` with the page `wanted` alone, and the rest in as few folios as can be, in the order of the
    /// file. `extra` pays for what the parts cost more than the whole.
    pub(crate) fn split(
        &mut self,
        (index, order): (u64, Order),
        (wanted, min): (u64, Order),
        extra: Charge,
    ) -> Vec<Ref<Folio<E>>> {
        let (Some(mut frame), Some(mut charge)) = (self.frame.take(), self.charge.take()) else {
            return Vec::new();
        };
        charge.join(extra);
        let (mut before, mut after) = (Vec::new(), Vec::new());
        let (mut index, mut order) = (index, order);
        let mut part = |index, order, frame| {
            let charge = charge.split(cost_bytes(order));
            Folio::from_parts(index, order, frame, charge)
        };
        while order > min {
            order = order.halved();
            let middle = index + order.span();
            let (lower, upper) = frame.halve();
            if wanted < middle {
                after.push(part(middle, order, upper));
                frame = lower;
            } else {
                before.push(part(index, order, lower));
                (index, frame) = (middle, upper);
            }
        }
        before.push(part(index, order, frame));
        before.extend(after.into_iter().rev());
        before
    }
}

/// What the parts of a folio of this order cost more than the whole, when one page is split off.
pub(crate) fn split_cost_bytes(order: Order) -> u64 {
    OVERHEAD_BYTES * u64::from(order.get())
}

/// What a folio of this order is charged.
fn cost_bytes(order: Order) -> u64 {
    (PAGE_BYTES as u64) * order.span() + OVERHEAD_BYTES
}

fn pack(pages: &Range<u32>) -> u64 {
    u64::from(pages.end) << 32 | u64::from(pages.start)
}

fn unpack(pages: u64) -> Range<u32> {
    let half = |half: u64| u32::try_from(half & u64::from(u32::MAX)).unwrap_or_default();
    half(pages)..half(pages >> 32)
}
