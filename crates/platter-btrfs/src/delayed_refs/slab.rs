//! Slots in pages: objects of one size that refer to each other by number.

use std::fmt;
use std::marker::PhantomData;

/// The number of a slot.
#[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(transparent)]
pub struct Slot(u32);

impl Slot {
    /// No slot.
    pub const NONE: Self = Self(Self::MASK);
    /// The bits of a number; one is left for the colour of a tree node.
    pub(super) const MASK: u32 = u32::MAX >> 1;

    /// The slot, unless it is [`NONE`](Self::NONE).
    #[must_use]
    pub fn get(self) -> Option<Self> {
        (self != Self::NONE).then_some(self)
    }

    pub(super) fn from_bits(bits: u32) -> Self {
        Self(bits & Self::MASK)
    }

    pub(super) fn bits(self) -> u32 {
        self.0
    }

    fn index(self) -> usize {
        self.0 as usize
    }
}

impl Default for Slot {
    fn default() -> Self {
        Self::NONE
    }
}

impl fmt::Debug for Slot {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.get() {
            Some(Self(number)) => number.fmt(out),
            None => out.write_str("none"),
        }
    }
}

/// Bytes of a page of slots.
pub const PAGE_BYTES: usize = 4096;

/// A page of `N` objects, as the kernel's slab allocator lays them out: from the beginning of the page on,
/// without gaps.
#[derive(Debug)]
#[repr(C, align(4096))]
pub struct Page<T, const N: usize>([T; N]);

/// What a slab is made of.
pub trait Slots<T>: fmt::Debug {
    /// Objects in a page.
    const COUNT: usize;

    /// A page of default objects.
    fn new() -> Box<Self>;

    /// The objects.
    fn slots(&self) -> &[T];

    /// The objects.
    fn slots_mut(&mut self) -> &mut [T];
}

impl<T: Copy + Default + fmt::Debug, const N: usize> Slots<T> for Page<T, N> {
    const COUNT: usize = {
        assert!(N > 0 && N * size_of::<T>() <= PAGE_BYTES, "a page");
        assert!((N + 1) * size_of::<T>() > PAGE_BYTES, "a full page");
        N
    };

    fn new() -> Box<Self> {
        Box::new(Self([T::default(); N]))
    }

    fn slots(&self) -> &[T] {
        &self.0
    }

    fn slots_mut(&mut self) -> &mut [T] {
        &mut self.0
    }
}

/// Objects in pages.
pub struct Slab<T, P> {
    pages: Vec<Box<P>>,
    free: Vec<Slot>,
    len: usize,
    slots_max: u32,
    of: PhantomData<T>,
}

impl<T: Copy + Default, P: Slots<T>> Default for Slab<T, P> {
    fn default() -> Self {
        Self::with_slots_max(Slot::MASK)
    }
}

impl<T: Copy + Default, P: Slots<T>> Slab<T, P> {
    /// An empty slab of at most so many slots.
    #[must_use]
    pub fn with_slots_max(slots_max: u32) -> Self {
        Self {
            pages: Vec::new(),
            free: Vec::new(),
            len: 0,
            slots_max: slots_max.min(Slot::MASK),
            of: PhantomData,
        }
    }

    /// Puts an object into a free slot. `None` if all numbers are in use.
    pub fn insert(&mut self, object: T) -> Option<Slot> {
        if self.free.is_empty() {
            self.add_page();
        }
        let slot = self.free.pop()?;
        *self.get_mut(slot) = object;
        self.len += 1;
        Some(slot)
    }

    fn add_page(&mut self) {
        let first = self.pages.len() * P::COUNT;
        let end = first + P::COUNT;
        let Some(end) = u32::try_from(end).ok().filter(|&end| end <= self.slots_max) else {
            return;
        };
        self.pages.push(P::new());
        // The lowest is used first.
        let numbers = (end - u32::try_from(P::COUNT).unwrap_or(end)..end).rev();
        self.free.extend(numbers.map(Slot));
    }

    /// Frees a slot.
    pub fn remove(&mut self, slot: Slot) -> T {
        let object = std::mem::take(self.get_mut(slot));
        self.free.push(slot);
        self.len -= 1;
        object
    }

    /// The object in a slot.
    #[must_use]
    pub fn get(&self, slot: Slot) -> &T {
        let index = slot.index();
        &self.pages[index / P::COUNT].slots()[index % P::COUNT]
    }

    /// The object in a slot.
    pub fn get_mut(&mut self, slot: Slot) -> &mut T {
        let index = slot.index();
        &mut self.pages[index / P::COUNT].slots_mut()[index % P::COUNT]
    }

    /// How many slots are in use.
    #[must_use]
    pub fn len(&self) -> usize {
        self.len
    }

    /// Whether no slot is in use.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len == 0
    }
}

impl<T, P> fmt::Debug for Slab<T, P> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Slab")
            .field("pages", &self.pages.len())
            .field("len", &self.len)
            .finish_non_exhaustive()
    }
}
