//! Page frames: the memory of folios, in power-of-two runs of pages from 2 MiB chunks.
//!
//! A buddy allocator, so that a run can be given back in parts, memory is page-aligned, and the
//! memory taken from the system stays within what the budget allows: when no run of an order is
//! left, the caller makes do with a smaller one. All chunks but the first are huge
//! pages where the system has them: their pages are then not faulted in one by one.
#![expect(
    unsafe_code,
    reason = "owns raw chunks and hands out disjoint parts of them"
)]

#[cfg(miri)]
mod allocated;
#[cfg(not(miri))]
mod memory;

use std::alloc::{Layout, handle_alloc_error};
use std::fmt;
use std::ops::{Deref, DerefMut};
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

#[cfg(miri)]
use self::allocated::ChunkMemory;
#[cfg(not(miri))]
use self::memory::ChunkMemory;
use crate::sync::{Mutex, rank};

/// The size of a page in bytes.
pub const PAGE_BYTES: usize = 4096;

/// A chunk has `2^CHUNK_ORDER` pages.
const CHUNK_ORDER: u8 = 9;
const CHUNK_PAGES: usize = 1 << CHUNK_ORDER;
const CHUNK_BYTES: usize = CHUNK_PAGES * PAGE_BYTES;
/// Free chunks that are kept for the next run.
const SPARE_CHUNKS: usize = 1;

/// Where frames come from.
pub(crate) struct Arena {
    chunks_max: usize,
    /// Free page frames.
    state: Mutex<State, { rank(14, 3) }>,
}

#[derive(Default)]
struct State {
    chunks: Vec<Option<Chunk>>,
    /// How many chunks there are, and how many of them are wholly free.
    chunk_count: usize,
    free_chunks: usize,
    /// For each order a chunk before which none has a free run so large.
    first_fit: [usize; CHUNK_ORDER as usize + 1],
}

/// 2 MiB of zeroed or recycled memory, and which parts of it are free.
struct Chunk {
    memory: ChunkMemory,
    /// For each order a bit for each free run, by its number among the runs of that order.
    free: [[u64; CHUNK_PAGES / 64]; CHUNK_ORDER as usize + 1],
    /// A bit for each order that has a free run.
    orders: u16,
}

impl Chunk {
    const LAYOUT: Layout = match Layout::from_size_align(CHUNK_BYTES, CHUNK_BYTES) {
        Ok(layout) => layout,
        Err(_) => panic!("the size of a chunk is fixed"),
    };

    /// `None` where the system has no memory.
    fn new(is_huge: bool) -> Option<Self> {
        let memory = ChunkMemory::new(Self::LAYOUT, is_huge)?;
        let mut chunk = Self {
            memory,
            free: [[0; CHUNK_PAGES / 64]; CHUNK_ORDER as usize + 1],
            orders: 0,
        };
        chunk.set(CHUNK_ORDER, 0);
        Some(chunk)
    }

    fn set(&mut self, order: u8, run: usize) {
        self.free[usize::from(order)][run / 64] |= 1 << (run % 64);
        self.orders |= 1 << order;
    }

    /// Takes a run off the free ones. Whether it was among them.
    fn clear(&mut self, order: u8, run: usize) -> bool {
        let words = &mut self.free[usize::from(order)];
        let bit = 1 << (run % 64);
        let was_free = words[run / 64] & bit != 0;
        words[run / 64] &= !bit;
        if words.iter().all(|&word| word == 0) {
            self.orders &= !(1 << order);
        }
        was_free
    }

    /// Takes a run of `order`, halving a larger one if need be. Returns its first page.
    fn take(&mut self, order: u8) -> Option<usize> {
        let larger = self.orders >> order;
        let mut from = order + u8::try_from(larger.trailing_zeros()).ok()?;
        let words = self.free.get(usize::from(from))?;
        let (word, bits) = words.iter().enumerate().find(|&(_, &bits)| bits != 0)?;
        let run = word * 64 + bits.trailing_zeros() as usize;
        self.clear(from, run);
        let page = run << from;
        while from > order {
            from -= 1;
            self.set(from, (page >> from) + 1);
        }
        Some(page)
    }

    /// Frees a run, joining it with its free buddies. Returns whether the chunk is free now.
    fn give_back(&mut self, mut page: usize, mut order: u8) -> bool {
        while order < CHUNK_ORDER && self.clear(order, (page >> order) ^ 1) {
            page &= !(1 << order);
            order += 1;
        }
        self.set(order, page >> order);
        order == CHUNK_ORDER
    }
}

impl Arena {
    /// An arena that takes no more chunks than `bytes` need, and one.
    pub(crate) fn new(bytes: u64) -> Self {
        let chunks = bytes.div_ceil(CHUNK_BYTES as u64);
        Self {
            chunks_max: usize::try_from(chunks)
                .unwrap_or(usize::MAX)
                .saturating_add(1),
            state: Mutex::new(State::default()),
        }
    }

    /// A run of `2^order` pages with unspecified contents. An order of zero never fails, larger
    /// ones do when the arena is too fragmented or the system has no memory, or always if no chunk is so large.
    pub(crate) fn take(self: &Arc<Self>, order: u8) -> Option<Frame> {
        self.take_within(
            order,
            if order == 0 {
                usize::MAX
            } else {
                self.chunks_max
            },
        )
    }

    /// As [`take`](Self::take), with another chunk if there is no run of the order. Fails only if no
    /// chunk is so large, or the system has no memory for a larger order than zero.
    pub(crate) fn take_beyond(self: &Arc<Self>, order: u8) -> Option<Frame> {
        self.take_within(order, usize::MAX)
    }

    fn take_within(self: &Arc<Self>, order: u8, chunks_max: usize) -> Option<Frame> {
        if order > CHUNK_ORDER {
            return None;
        }
        let mut state = self.state.lock();
        let number = match state.find(order) {
            Some(number) => number,
            None if state.chunk_count < chunks_max => {
                // A small cache need not fill a huge page.
                let is_huge = state.chunk_count > 0;
                state.chunk_count += 1;
                // The system is asked without the lock, which every frame takes.
                drop(state);
                let chunk = Chunk::new(is_huge);
                state = self.state.lock();
                match chunk {
                    Some(chunk) => state.insert(chunk),
                    None if order == 0 => handle_alloc_error(Chunk::LAYOUT),
                    None => {
                        state.chunk_count -= 1;
                        return None;
                    }
                }
            }
            None => return None,
        };
        let chunk = state.chunks.get_mut(number)?.as_mut()?;
        let was_free = chunk.orders == 1 << CHUNK_ORDER;
        let page = chunk.take(order)?;
        // SAFETY: the page lies in the chunk.
        let memory = unsafe { chunk.memory.start().add(page * PAGE_BYTES) };
        state.free_chunks -= usize::from(was_free);
        drop(state);
        Some(Frame {
            arena: Arc::clone(self),
            memory,
            chunk: number,
            page,
            order,
        })
    }

    /// How many bytes are taken from the system.
    #[cfg(test)]
    pub(crate) fn reserved_bytes(&self) -> usize {
        self.state.lock().chunk_count * CHUNK_BYTES
    }

    fn give_back(&self, chunk_number: usize, page: usize, order: u8) {
        let mut state = self.state.lock();
        let Some(Some(chunk)) = state.chunks.get_mut(chunk_number) else {
            return;
        };
        let is_free = chunk.give_back(page, order);
        let orders = chunk.orders;
        state.note_free(chunk_number, orders);
        if !is_free {
            return;
        }
        let surplus = if state.free_chunks < SPARE_CHUNKS {
            state.free_chunks += 1;
            None
        } else {
            state.chunk_count -= 1;
            state.chunks[chunk_number].take()
        };
        drop(state);
        drop(surplus);
    }
}

impl State {
    /// The first chunk with a free run of at least `order`.
    fn find(&mut self, order: u8) -> Option<usize> {
        let from = self.first_fit[usize::from(order)];
        let fits = |chunk: &Option<Chunk>| {
            let orders = chunk.as_ref().map_or(0, |chunk| chunk.orders);
            orders >> order != 0
        };
        let found = self.chunks.iter().skip(from).position(fits);
        let first = found.map_or(self.chunks.len(), |found| from + found);
        self.first_fit[usize::from(order)] = first;
        found.map(|_| first)
    }

    fn note_free(&mut self, number: usize, orders: u16) {
        let largest = orders.checked_ilog2().unwrap_or_default() as usize;
        for first in &mut self.first_fit[..=largest] {
            *first = number.min(*first);
        }
    }

    /// Adds a chunk that is counted already. Returns its number.
    fn insert(&mut self, chunk: Chunk) -> usize {
        self.free_chunks += 1;
        let vacant = self.chunks.iter().position(Option::is_none);
        let number = vacant.unwrap_or_else(|| {
            self.chunks.push(None);
            self.chunks.len() - 1
        });
        self.chunks[number] = Some(chunk);
        self.note_free(number, 1 << CHUNK_ORDER);
        number
    }
}

impl fmt::Debug for Arena {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        let state = self.state.lock();
        out.debug_struct("Arena")
            .field("chunks", &state.chunk_count)
            .field("chunks_max", &self.chunks_max)
            .finish_non_exhaustive()
    }
}

/// A run of pages, owned.
pub(crate) struct Frame {
    arena: Arc<Arena>,
    memory: NonNull<u8>,
    chunk: usize,
    page: usize,
    order: u8,
}

// SAFETY: a frame is the only way to its memory.
unsafe impl Send for Frame {}
// SAFETY: shared, it is only read.
unsafe impl Sync for Frame {}

impl Frame {
    /// The two halves of a run of at least two pages.
    pub(crate) fn halve(self) -> (Self, Self) {
        assert!(self.order > 0, "a page is not halved");
        let order = self.order - 1;
        let pages = 1 << order;
        // SAFETY: the upper half begins inside the run.
        let upper = unsafe { self.memory.add(pages * PAGE_BYTES) };
        let half = |memory, page| Self {
            arena: Arc::clone(&self.arena),
            memory,
            chunk: self.chunk,
            page,
            order,
        };
        let halves = (half(self.memory, self.page), half(upper, self.page + pages));
        // The halves own the run now; its reference to the arena is given up by hand.
        let whole = std::mem::ManuallyDrop::new(self);
        // SAFETY: read once, and the original is never dropped.
        drop(unsafe { std::ptr::read(&raw const whole.arena) });
        halves
    }

    fn len(&self) -> usize {
        PAGE_BYTES << self.order
    }
}

impl Deref for Frame {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        // SAFETY: the run is initialised, owned by this frame, and its chunk is kept while any
        // part of it is taken.
        unsafe { slice::from_raw_parts(self.memory.as_ptr(), self.len()) }
    }
}

impl DerefMut for Frame {
    fn deref_mut(&mut self) -> &mut [u8] {
        // SAFETY: as for `deref`; the frame is borrowed mutably.
        unsafe { slice::from_raw_parts_mut(self.memory.as_ptr(), self.len()) }
    }
}

impl Drop for Frame {
    fn drop(&mut self) {
        self.arena.give_back(self.chunk, self.page, self.order);
    }
}

impl fmt::Debug for Frame {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "Frame({} bytes)", self.len())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn arena(chunks: u64) -> Arc<Arena> {
        Arc::new(Arena::new((chunks - 1) * CHUNK_BYTES as u64))
    }

    #[test]
    fn frames_are_aligned_and_disjoint() {
        let arena = arena(2);
        let orders = [0, 3, 1, 0, 9, 2, 5];
        let mut frames: Vec<_> = orders.map(|order| arena.take(order).unwrap()).into();
        for (number, frame) in (0..).zip(&mut frames) {
            assert_eq!(frame.as_ptr().addr() % PAGE_BYTES, 0);
            frame.fill(number);
        }
        for (number, frame) in (0..).zip(&frames) {
            assert!(**frame == *vec![number; frame.len()]);
        }
    }

    #[test]
    fn chunks_are_aligned_and_freed_whole() {
        let arena = arena(40);
        let chunks: Vec<_> = (0..40).map(|_| arena.take(CHUNK_ORDER).unwrap()).collect();
        for chunk in &chunks {
            assert_eq!(chunk.as_ptr().addr() % CHUNK_BYTES, 0);
            assert!(chunk.iter().all(|&byte| byte == 0));
        }
        drop(chunks);
        assert_eq!(arena.reserved_bytes(), CHUNK_BYTES);
    }

    #[test]
    fn freed_runs_join_again() {
        let arena = arena(1);
        let pages: Vec<_> = (0..CHUNK_PAGES).map(|_| arena.take(0).unwrap()).collect();
        assert!(arena.take(1).is_none(), "nothing is left");
        drop(pages);
        assert!(arena.take(CHUNK_ORDER).is_some());
        assert_eq!(arena.reserved_bytes(), CHUNK_BYTES);
    }

    #[test]
    fn fragmentation_never_takes_more_chunks_than_allowed() {
        let arena = arena(4);
        let mut pages: Vec<_> = (0..4 * CHUNK_PAGES)
            .map(|_| arena.take(0).unwrap())
            .collect();
        let mut number = 0;
        pages.retain(|_| {
            number += 1;
            number % 64 == 0
        });
        assert!(arena.take(CHUNK_ORDER).is_none());
        assert!(arena.take(5).is_some());
        assert_eq!(arena.reserved_bytes(), 4 * CHUNK_BYTES);
    }

    #[test]
    fn a_single_page_is_always_to_be_had() {
        let arena = arena(1);
        let pages: Vec<_> = (0..=CHUNK_PAGES).map(|_| arena.take(0).unwrap()).collect();
        assert_eq!(arena.reserved_bytes(), 2 * CHUNK_BYTES);
        drop(pages);
        assert_eq!(arena.reserved_bytes(), CHUNK_BYTES, "one spare is kept");
    }

    #[test]
    fn halves_keep_their_bytes_and_are_freed_alone() {
        let arena = arena(1);
        let mut whole = arena.take(CHUNK_ORDER).unwrap();
        whole[0] = 1;
        whole[CHUNK_BYTES / 2] = 2;
        let (lower, upper) = whole.halve();
        assert_eq!((lower[0], upper[0], lower.len()), (1, 2, CHUNK_BYTES / 2));
        assert!(arena.take(0).is_none() || arena.reserved_bytes() > CHUNK_BYTES);
        drop(lower);
        assert!(arena.take(CHUNK_ORDER - 1).is_some());
        drop(upper);
    }
}
