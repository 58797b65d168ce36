//! Nodes, slots and counted items: the part of the XArray that needs unsafe code.
//!
//! What is exported is safe to use in any order and from any thread: a slot owns what it holds,
//! exchanging its content moves the ownership, and whatever a lock-free reader may still see is
//! freed by the epoch scheme only. A word that was loaded under a pin came from a slot that owned
//! it at that moment, so its memory is retired, if at all, after the pin began.
#![expect(unsafe_code, reason = "tagged pointers with deferred reclamation")]

use std::cell::RefCell;
use std::fmt;
use std::marker::PhantomData;
use std::mem::ManuallyDrop;
use std::ops::Deref;
use std::process;
use std::ptr::{self, NonNull};

use super::{Mark, count};
use crate::sync::epoch::{self, Guard};
use crate::sync::{AtomicPtr, AtomicU8, AtomicU32, AtomicU64, Ordering, free};

/// Slots of a node.
pub(super) const SLOTS: u8 = 64;
/// Bits of an index that one level decides.
pub(super) const SLOT_BITS: u8 = 6;

/// Memory of a node in bytes.
pub(crate) const NODE_BYTES: usize = size_of::<Node>();

const FROZEN: u32 = 1 << 31;
const REFS_MAX: u32 = 1 << 30;
/// What the count of a freed item holds in debug builds, so that a read of it does not go unnoticed.
const FREED: u32 = FROZEN | (REFS_MAX + 1);
const MAGAZINE_NODES: usize = 16;

thread_local! {
    static MAGAZINE: RefCell<Magazine> = const { RefCell::new(Vec::new()) };
}

/// Spare nodes, each at the address it will have in a tree.
type Magazine = Vec<Box<Node>>;

/// A counted reference to an item: like an `Arc`, but the count can be frozen, and a
/// lock-free reader has to [try](ItemRef::try_get) to get one.
pub struct Ref<T: 'static> {
    counted: NonNull<Counted<T>>,
    owns: PhantomData<Counted<T>>,
}

struct Counted<T> {
    /// References; with the [`FROZEN`] bit set, no new ones are given to readers. At zero `value`
    /// is dropped and stays so.
    count: AtomicU32,
    value: ManuallyDrop<T>,
}

// SAFETY: a `Ref` shares its item between the threads that have one, and the last drops it.
unsafe impl<T: Send + Sync> Send for Ref<T> {}
// SAFETY: as above; a shared `Ref` can be cloned into another thread.
unsafe impl<T: Send + Sync> Sync for Ref<T> {}

impl<T> Ref<T> {
    /// Puts `value` under a count of one.
    pub fn new(value: T) -> Self {
        let counted = Box::new(Counted {
            count: AtomicU32::new(1),
            value: ManuallyDrop::new(value),
        });
        Self::from_raw(NonNull::from(Box::leak(counted)))
    }

    /// How many references there are; zero while frozen, as readers see it.
    #[must_use]
    pub fn count(&self) -> u32 {
        let count = self.counter().load(Ordering::Relaxed);
        if count & FROZEN == 0 { count } else { 0 }
    }

    /// Whether both refer to the same item.
    #[must_use]
    pub fn is_same(&self, other: &Self) -> bool {
        self.counted == other.counted
    }

    /// Removes the item from readers if exactly `expected` references exist, this one
    /// included: until the result is dropped, none is given out.
    pub fn freeze(self, expected: u32) -> Result<Frozen<T>, Self> {
        let frozen = expected | FROZEN;
        let (won, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        match self.counter().compare_exchange(expected, frozen, won, lost) {
            Ok(_) => Ok(Frozen { item: self }),
            Err(_) => Err(self),
        }
    }

    fn from_raw(counted: NonNull<Counted<T>>) -> Self {
        let owns = PhantomData;
        Self { counted, owns }
    }

    fn counter(&self) -> &AtomicU32 {
        // SAFETY: this reference is counted, so the allocation is live.
        unsafe { &(*self.counted.as_ptr()).count }
    }

    /// Drops the item, as the count is zero.
    #[cold]
    fn drop_item(&mut self) {
        // Whatever other owners did with the item happened before it is dropped.
        self.counter().load(Ordering::Acquire);
        // SAFETY: the allocation is live until the deferred deallocation below.
        let value = unsafe { &mut (*self.counted.as_ptr()).value };
        // SAFETY: the count stays zero, so no thread has, or can get, a reference to the value.
        unsafe { ManuallyDrop::drop(value) };
        let dead = Dead(self.counted);
        // Readers that are pinned now may still look at the count.
        epoch::pin().defer(move || dead.free());
    }
}

impl<T> Deref for Ref<T> {
    type Target = T;

    fn deref(&self) -> &T {
        // SAFETY: this reference is counted, so the value is not dropped while it exists.
        unsafe { &(*self.counted.as_ptr()).value }
    }
}

impl<T> Clone for Ref<T> {
    fn clone(&self) -> Self {
        let before = self.counter().fetch_add(1, Ordering::Relaxed);
        if before & !FROZEN > REFS_MAX {
            process::abort();
        }
        Self::from_raw(self.counted)
    }
}

impl<T> Drop for Ref<T> {
    #[inline]
    fn drop(&mut self) {
        if self.counter().fetch_sub(1, Ordering::Release) & !FROZEN == 1 {
            self.drop_item();
        }
    }
}

impl<T: fmt::Debug> fmt::Debug for Ref<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        T::fmt(self, out)
    }
}

/// An allocation that is unreachable once the current pins are gone; its contents are dropped.
struct Dead<P>(NonNull<P>);

// SAFETY: only the memory is given back; no value in it is touched.
unsafe impl<P> Send for Dead<P> {}

impl<T: 'static> Dead<Counted<T>> {
    fn free(self) {
        // SAFETY: allocated as a box by `Ref::new`, freed once, with its last reference.
        let counted = unsafe { Box::from_raw(self.0.as_ptr()) };
        if cfg!(debug_assertions) {
            counted.count.store(FREED, Ordering::Relaxed);
        }
        free(counted);
    }
}

impl Dead<Node> {
    fn free(self) {
        // SAFETY: allocated as a box, freed once, by the owner of the unlinked node.
        let node = unsafe { Box::from_raw(self.0.as_ptr()) };
        node.give_back();
    }
}

/// An item that readers cannot get until this is dropped.
#[must_use]
pub struct Frozen<T: 'static> {
    item: Ref<T>,
}

impl<T> Frozen<T> {
    /// Makes the item available to readers again.
    #[must_use]
    pub fn thaw(self) -> Ref<T> {
        self.item.clone()
    }
}

impl<T> Deref for Frozen<T> {
    type Target = Ref<T>;

    fn deref(&self) -> &Ref<T> {
        &self.item
    }
}

impl<T> Drop for Frozen<T> {
    fn drop(&mut self) {
        self.item.counter().fetch_and(!FROZEN, Ordering::Release);
    }
}

impl<T: fmt::Debug> fmt::Debug for Frozen<T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_tuple("Frozen").field(&self.item).finish()
    }
}

/// An item seen in a slot, without a reference to it. Valid as an address while pinned.
pub struct ItemRef<'g, T: 'static> {
    counted: NonNull<Counted<T>>,
    pinned: PhantomData<&'g Counted<T>>,
}

impl<T> Clone for ItemRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for ItemRef<'_, T> {}

impl<T> ItemRef<'_, T> {
    /// Returns a reference, unless the item is frozen or already gone.
    #[must_use]
    pub fn try_get(self) -> Option<Ref<T>> {
        self.get_unless(|count| count == 0 || count & FROZEN != 0)
    }

    /// Returns a reference, frozen or not. Only for the owner of the lock, which is the one that
    /// freezes.
    #[must_use]
    pub fn try_get_frozen(self) -> Option<Ref<T>> {
        self.get_unless(|count| count & !FROZEN == 0)
    }

    /// Whether this is the item that `other` refers to.
    #[must_use]
    pub fn is(self, other: &Ref<T>) -> bool {
        self.counted == other.counted
    }

    /// Returns the item's address as a number. Another item may have it once this one is gone.
    pub(super) fn address(self) -> usize {
        self.counted.addr().get()
    }

    fn get_unless(self, refused: impl Fn(u32) -> bool) -> Option<Ref<T>> {
        // SAFETY: the address was loaded from a slot under a pin that still lasts, and the slot
        // owned a reference then; the allocation is freed by the epoch only.
        let counter = unsafe { &(*self.counted.as_ptr()).count };
        let mut count = counter.load(Ordering::Relaxed);
        loop {
            debug_assert_ne!(count, FREED, "a freed item was read");
            if refused(count) {
                return None;
            }
            if count & !FROZEN > REFS_MAX {
                process::abort();
            }
            let (won, lost) = (Ordering::Acquire, Ordering::Relaxed);
            match counter.compare_exchange_weak(count, count + 1, won, lost) {
                Ok(_) => return Some(Ref::from_raw(self.counted)),
                Err(now) => count = now,
            }
        }
    }
}

impl<T> fmt::Debug for ItemRef<'_, T> {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(out, "ItemRef({:p})", self.counted)
    }
}

/// The contents that a slot can own.
pub(super) enum Stored<T: 'static> {
    Empty,
    /// A number of 63 bits.
    Value(u64),
    /// Refers to the canonical slot of the entry, in the same node.
    Sibling(u8),
    /// The node is leaving the tree: restart from the head.
    Retry,
    Item(Ref<T>),
    Node(NodeBox<T>),
}

/// The contents of a slot as seen by a reader.
pub(super) enum Seen<'g, T: 'static> {
    Empty,
    Value(u64),
    Sibling(u8),
    Retry,
    Item(ItemRef<'g, T>),
    Node(NodeRef<'g, T>),
}

impl<T> Clone for Seen<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Seen<'_, T> {}

/// Tags in the two low bits of a word: `x1` value, `10` node or a small number, `00` item.
const VALUE_TAG: usize = 1;
const INTERNAL_TAG: usize = 2;
const TAG_MASK: usize = 3;
/// Internal numbers below this are sibling offsets; nodes lie above all internal numbers.
const RETRY_NUMBER: usize = 256;
/// Contents of a freed node's slots in debug builds, so that a use after free is detected.
const POISON_NUMBER: usize = 257;
const INTERNAL_NUMBERS: usize = 1024;

fn internal(number: usize) -> *mut () {
    ptr::without_provenance_mut(number << 2 | INTERNAL_TAG)
}

impl<T> Stored<T> {
    fn into_word(self) -> *mut () {
        match self {
            Self::Empty => ptr::null_mut(),
            Self::Value(value) => {
                let word = usize::try_from(value << 1).unwrap_or_default() | VALUE_TAG;
                ptr::without_provenance_mut(word)
            }
            Self::Sibling(offset) => internal(usize::from(offset)),
            Self::Retry => internal(RETRY_NUMBER),
            Self::Item(item) => ManuallyDrop::new(item).counted.as_ptr().cast(),
            Self::Node(node) => ManuallyDrop::new(node).word(),
        }
    }

    /// Takes ownership of what `word` owns. Nodes count as published: the word was in a slot.
    ///
    /// # Safety
    /// `word` came from `into_word` of this type, and is in no slot any more.
    unsafe fn from_word(word: *mut ()) -> Self {
        match Word::of(word) {
            Word::Empty => Self::Empty,
            Word::Value(value) => Self::Value(value),
            Word::Sibling(offset) => Self::Sibling(offset),
            Word::Retry => Self::Retry,
            Word::Item(item) => Self::Item(Ref::from_raw(item.cast())),
            Word::Node(node) => Self::Node(NodeBox {
                node,
                published: true,
                holds: PhantomData,
            }),
        }
    }
}

/// A decoded word.
enum Word {
    Empty,
    Value(u64),
    Sibling(u8),
    Retry,
    Item(NonNull<()>),
    Node(NonNull<Node>),
}

impl Word {
    fn of(word: *mut ()) -> Self {
        let Some(pointer) = NonNull::new(word) else {
            return Self::Empty;
        };
        let address = word.addr();
        match address & TAG_MASK {
            0 => Self::Item(pointer),
            INTERNAL_TAG => match address >> 2 {
                number if number < usize::from(SLOTS) => {
                    Self::Sibling(u8::try_from(number).unwrap_or_default())
                }
                RETRY_NUMBER => Self::Retry,
                number => {
                    debug_assert!(number > INTERNAL_NUMBERS, "a freed node was read");
                    let node = word.map_addr(|address| address & !TAG_MASK).cast();
                    NonNull::new(node).map_or(Self::Empty, Self::Node)
                }
            },
            _ => Self::Value(address as u64 >> 1),
        }
    }
}

/// A slot, with the array's item type.
pub(super) struct SlotRef<'g, T: 'static> {
    word: &'g AtomicPtr<()>,
    holds: PhantomData<fn(T) -> T>,
}

impl<T> Clone for SlotRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for SlotRef<'_, T> {}

impl<T> SlotRef<'_, T> {
    /// Loads the contents of the slot.
    pub(super) fn load(self, _pin: &Guard) -> Loaded<'_, T> {
        Loaded {
            word: self.word.load(Ordering::Acquire),
            pinned: PhantomData,
        }
    }

    /// Exchanges the contents of the slot.
    pub(super) fn swap(self, new: Stored<T>) -> Stored<T> {
        let old = self.word.swap(new.into_word(), Ordering::AcqRel);
        // SAFETY: the slot owned the word and gave it to this caller alone.
        unsafe { Stored::from_word(old) }
    }

    /// Inserts `node`, whose first slot is empty, above the contents of the slot, so that readers
    /// find them through one or the other at any time. Returns the node, with nothing changed, if
    /// the contents changed meanwhile.
    pub(super) fn wrap(self, node: NodeBox<T>) -> Result<(), NodeBox<T>> {
        let held = self.word.load(Ordering::Acquire);
        let node_slot = node.as_node().slot(0).word;
        let empty = node_slot.swap(held, Ordering::Relaxed);
        // SAFETY: the private node's slot owned the word it held.
        drop(unsafe { Stored::<T>::from_word(empty) });
        let above = node.word();
        let (won, lost) = (Ordering::AcqRel, Ordering::Relaxed);
        let exchange = self.word.compare_exchange(held, above, won, lost);
        if exchange.is_err() {
            node_slot.store(ptr::null_mut(), Ordering::Relaxed);
            return Err(node);
        }
        // The slot owns the node from here on, and the node's slot what this one held.
        let _owned = ManuallyDrop::new(node);
        Ok(())
    }
}

/// The head of an array: a single slot.
pub(super) struct Head<T: 'static> {
    word: AtomicPtr<()>,
    holds: PhantomData<Ref<T>>,
}

impl<T> Default for Head<T> {
    fn default() -> Self {
        Self {
            word: AtomicPtr::new(ptr::null_mut()),
            holds: PhantomData,
        }
    }
}

impl<T> Head<T> {
    pub(super) fn slot(&self) -> SlotRef<'_, T> {
        SlotRef {
            word: &self.word,
            holds: PhantomData,
        }
    }
}

impl<T> Drop for Head<T> {
    fn drop(&mut self) {
        let word = self.word.swap(ptr::null_mut(), Ordering::AcqRel);
        // SAFETY: the head owned the word; no reader is left, since each borrows the array.
        drop(unsafe { Stored::<T>::from_word(word) });
    }
}

/// A word seen in a slot. Two are equal when the slot's content did not change between.
pub(super) struct Loaded<'g, T: 'static> {
    word: *mut (),
    pinned: PhantomData<&'g T>,
}

impl<T> Clone for Loaded<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for Loaded<'_, T> {}

impl<T> PartialEq for Loaded<'_, T> {
    fn eq(&self, other: &Self) -> bool {
        self.word == other.word
    }
}

impl<'g, T> Loaded<'g, T> {
    /// Decodes the word.
    pub(super) fn seen(self) -> Seen<'g, T> {
        match Word::of(self.word) {
            Word::Empty => Seen::Empty,
            Word::Value(value) => Seen::Value(value),
            Word::Sibling(offset) => Seen::Sibling(offset),
            Word::Retry => Seen::Retry,
            Word::Item(counted) => Seen::Item(ItemRef {
                counted: counted.cast(),
                pinned: PhantomData,
            }),
            // SAFETY: loaded under the pin whose lifetime this has, from the slot that owned the
            // node; an unlinked node is freed by the epoch only.
            Word::Node(node) => Seen::Node(NodeRef::of(unsafe { node.as_ref() })),
        }
    }
}

/// A node: 64 slots that share the index bits above them.
struct Node {
    /// Index bits below this node's own six.
    shift: u8,
    /// Slots that are not empty. Changed by writers only, as are the next two.
    count: AtomicU8,
    /// Slots that hold a value or belong to one.
    value_count: AtomicU8,
    marks: [AtomicU64; Mark::COUNT],
    slots: [AtomicPtr<()>; SLOTS as usize],
}

impl Node {
    fn new(shift: u8) -> Self {
        Self {
            shift,
            count: AtomicU8::new(0),
            value_count: AtomicU8::new(0),
            marks: [const { AtomicU64::new(0) }; Mark::COUNT],
            slots: [const { AtomicPtr::new(ptr::null_mut()) }; SLOTS as usize],
        }
    }

    /// Allocates from the thread's magazine, or the heap.
    fn take(shift: u8) -> Box<Self> {
        count::node_taken();
        let spare = MAGAZINE.with(|magazine| magazine.borrow_mut().pop());
        if let Some(mut node) = spare {
            *node = Self::new(shift);
            return node;
        }
        Box::new(Self::new(shift))
    }

    /// Frees to the thread's magazine, or the heap.
    fn give_back(mut self: Box<Self>) {
        if cfg!(debug_assertions) {
            self.slots = [const { AtomicPtr::new(POISON) }; SLOTS as usize];
        }
        // While the thread ends, its magazine may be gone already.
        let _ = MAGAZINE.try_with(|magazine| {
            let mut magazine = magazine.borrow_mut();
            if magazine.len() < MAGAZINE_NODES {
                magazine.push(self);
            }
        });
    }
}

const POISON: *mut () = ptr::without_provenance_mut(POISON_NUMBER << 2 | INTERNAL_TAG);

/// Fills the thread's magazine so that its next `count` nodes need no allocation, and none is made
/// under a lock.
pub(super) fn fill_magazine(count: usize) {
    MAGAZINE.with(|magazine| {
        let mut magazine = magazine.borrow_mut();
        while magazine.len() < count.min(MAGAZINE_NODES) {
            magazine.push(Box::new(Node::new(0)));
        }
    });
}

/// A node outside the tree, with its subtree.
pub(super) struct NodeBox<T: 'static> {
    node: NonNull<Node>,
    /// It was in the tree, so that readers may still access it.
    published: bool,
    holds: PhantomData<Ref<T>>,
}

// SAFETY: owns its items, which may be sent as `Ref`s are.
unsafe impl<T: Send + Sync> Send for NodeBox<T> {}

impl<T> NodeBox<T> {
    /// Creates an empty node of a level.
    pub(super) fn new(shift: u8) -> Self {
        Self {
            node: NonNull::from(Box::leak(Node::take(shift))),
            published: false,
            holds: PhantomData,
        }
    }

    fn word(&self) -> *mut () {
        let word: *mut () = self.node.as_ptr().cast();
        word.map_addr(|address| address | INTERNAL_TAG)
    }

    pub(super) fn as_node(&self) -> NodeRef<'_, T> {
        // SAFETY: owned by this box.
        NodeRef::of(unsafe { self.node.as_ref() })
    }
}

impl<T> Drop for NodeBox<T> {
    fn drop(&mut self) {
        for offset in 0..SLOTS {
            let slot = self.as_node().slot(offset).word;
            let word = slot.load(Ordering::Acquire);
            if word.is_null() {
                continue;
            }
            let retry = internal(RETRY_NUMBER);
            let word = slot.swap(retry, Ordering::AcqRel);
            // SAFETY: the slot owned the word. The depth is bounded by the levels of an index.
            drop(unsafe { Stored::<T>::from_word(word) });
        }
        let dead = Dead(self.node);
        if self.published {
            epoch::pin().defer(move || dead.free());
        } else {
            dead.free();
        }
    }
}

/// A node in the tree.
pub(super) struct NodeRef<'g, T: 'static> {
    node: &'g Node,
    holds: PhantomData<fn(T) -> T>,
}

impl<T> Clone for NodeRef<'_, T> {
    fn clone(&self) -> Self {
        *self
    }
}

impl<T> Copy for NodeRef<'_, T> {}

impl<'g, T> NodeRef<'g, T> {
    fn of(node: &'g Node) -> Self {
        Self {
            node,
            holds: PhantomData,
        }
    }

    pub(super) fn shift(self) -> u8 {
        self.node.shift
    }

    /// Returns the slot at `offset`, taken modulo the node's size.
    pub(super) fn slot(self, offset: u8) -> SlotRef<'g, T> {
        SlotRef {
            word: &self.node.slots[usize::from(offset % SLOTS)],
            holds: PhantomData,
        }
    }

    pub(super) fn count(self) -> u8 {
        self.node.count.load(Ordering::Relaxed)
    }

    pub(super) fn value_count(self) -> u8 {
        self.node.value_count.load(Ordering::Relaxed)
    }

    pub(super) fn set_counts(self, count: u8, value_count: u8) {
        self.node.count.store(count, Ordering::Relaxed);
        self.node.value_count.store(value_count, Ordering::Relaxed);
    }

    /// Returns a bit for each slot that has the mark, or has it in its subtree.
    pub(super) fn marks(self, mark: Mark) -> u64 {
        self.node.marks[mark.index()].load(Ordering::Relaxed)
    }

    pub(super) fn set_marks(self, mark: Mark, bits: u64) {
        self.node.marks[mark.index()].store(bits, Ordering::Relaxed);
    }
}
