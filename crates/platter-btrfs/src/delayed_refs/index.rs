//! The heads of a transaction by address, in one of several indexes.

use std::cmp::Ordering;
use std::fmt;

use super::layout::{ARRAY_NAME, ColdHead, Head, HeadState, LinkedHead, SIDE_NAME, SideNode};
use super::radix::RadixTree;
use super::rbtree::{Links, Nodes, RbTree};
use super::slab::{Page, Slab, Slot, Slots};

/// What became of an insertion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Inserted {
    /// A new head has this slot.
    New(Slot),
    /// There is a head of this address.
    Exists(Slot),
    /// All slots are in use.
    Full,
}

/// Heads, unique and ordered by address.
pub trait HeadIndex: Default + fmt::Debug + Send + 'static {
    /// The name in reports.
    const NAME: &'static str;

    /// Inserts a head, unless there is one of its address: one search.
    fn insert(&mut self, address: u64, state: HeadState) -> Inserted;

    /// The head of an address.
    fn find(&self, address: u64) -> Option<Slot>;

    /// The first head at or after an address.
    fn at_or_after(&self, address: u64) -> Option<Slot>;

    /// Removes a head.
    fn remove(&mut self, slot: Slot);

    /// The address of a head.
    fn address(&self, slot: Slot) -> u64;

    /// What a head says.
    fn state(&self, slot: Slot) -> HeadState;

    /// Changes what a head says.
    fn set_state(&mut self, slot: Slot, state: HeadState);

    /// How many heads there are.
    fn len(&self) -> usize;

    /// Whether there are no heads.
    fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Panics if the index is not what it should be.
    #[cfg(test)]
    fn assert_invariants(&self);
}

/// Heads that are nodes of a red-black tree.
#[derive(Debug)]
pub struct TreeIndex<H: Head> {
    heads: Slab<H, H::Page>,
    tree: RbTree,
}

impl<H: LinkedHead> Default for TreeIndex<H> {
    fn default() -> Self {
        Self {
            heads: Slab::default(),
            tree: RbTree::default(),
        }
    }
}

impl<H: LinkedHead, P: Slots<H>> Nodes for Slab<H, P> {
    fn links(&self, at: Slot) -> Links {
        self.get(at).links()
    }

    fn set_links(&mut self, at: Slot, links: Links) {
        self.get_mut(at).set_links(links);
    }
}

impl<H: LinkedHead> TreeIndex<H> {
    fn compare(&self, address: u64) -> impl Fn(Slot) -> Ordering {
        move |at| address.cmp(&self.heads.get(at).address())
    }
}

impl<H: LinkedHead + Send> HeadIndex for TreeIndex<H>
where
    H::Page: Send,
{
    const NAME: &'static str = H::NAME;

    fn insert(&mut self, address: u64, state: HeadState) -> Inserted {
        let vacancy = match self.tree.find(&self.heads, self.compare(address)) {
            Ok(found) => return Inserted::Exists(found),
            Err(vacancy) => vacancy,
        };
        let Some(slot) = self.heads.insert(H::new(address, state)) else {
            return Inserted::Full;
        };
        self.tree.insert(&mut self.heads, slot, vacancy);
        Inserted::New(slot)
    }

    fn find(&self, address: u64) -> Option<Slot> {
        self.tree.find(&self.heads, self.compare(address)).ok()
    }

    fn at_or_after(&self, address: u64) -> Option<Slot> {
        self.tree.at_or_after(&self.heads, self.compare(address))
    }

    fn remove(&mut self, slot: Slot) {
        self.tree.remove(&mut self.heads, slot);
        self.heads.remove(slot);
    }

    fn address(&self, slot: Slot) -> u64 {
        self.heads.get(slot).address()
    }

    fn state(&self, slot: Slot) -> HeadState {
        self.heads.get(slot).state()
    }

    fn set_state(&mut self, slot: Slot, state: HeadState) {
        self.heads.get_mut(slot).set_state(state);
    }

    fn len(&self) -> usize {
        self.heads.len()
    }

    #[cfg(test)]
    fn assert_invariants(&self) {
        assert_eq!(self.tree.assert_invariants(&self.heads), self.heads.len());
    }
}

/// Heads whose addresses and links lie apart, in an array of their own with the same slots.
#[derive(Debug, Default)]
pub struct SideIndex {
    nodes: Slab<SideNode, Page<SideNode, 128>>,
    heads: Slab<ColdHead, Page<ColdHead, 32>>,
    tree: RbTree,
}

impl Nodes for Slab<SideNode, Page<SideNode, 128>> {
    fn links(&self, at: Slot) -> Links {
        self.get(at).links.into()
    }

    fn set_links(&mut self, at: Slot, links: Links) {
        self.get_mut(at).links = links.into();
    }
}

impl SideIndex {
    fn compare(&self, address: u64) -> impl Fn(Slot) -> Ordering {
        move |at| address.cmp(&self.nodes.get(at).address)
    }
}

impl HeadIndex for SideIndex {
    const NAME: &'static str = SIDE_NAME;

    fn insert(&mut self, address: u64, state: HeadState) -> Inserted {
        let vacancy = match self.tree.find(&self.nodes, self.compare(address)) {
            Ok(found) => return Inserted::Exists(found),
            Err(vacancy) => vacancy,
        };
        let node = SideNode {
            address,
            ..SideNode::default()
        };
        let (Some(slot), Some(head)) = (
            self.nodes.insert(node),
            self.heads.insert(ColdHead::new(address, state)),
        ) else {
            return Inserted::Full;
        };
        // Slots are allocated and freed in pairs, from pages that are added when no slot is free.
        self.nodes.get_mut(slot).spare[0] = head.bits();
        self.tree.insert(&mut self.nodes, slot, vacancy);
        Inserted::New(slot)
    }

    fn find(&self, address: u64) -> Option<Slot> {
        self.tree.find(&self.nodes, self.compare(address)).ok()
    }

    fn at_or_after(&self, address: u64) -> Option<Slot> {
        self.tree.at_or_after(&self.nodes, self.compare(address))
    }

    fn remove(&mut self, slot: Slot) {
        self.tree.remove(&mut self.nodes, slot);
        let node = self.nodes.remove(slot);
        self.heads.remove(Slot::from_bits(node.spare[0]));
    }

    fn address(&self, slot: Slot) -> u64 {
        self.nodes.get(slot).address
    }

    fn state(&self, slot: Slot) -> HeadState {
        self.heads.get(self.head(slot)).state()
    }

    fn set_state(&mut self, slot: Slot, state: HeadState) {
        let head = self.head(slot);
        self.heads.get_mut(head).set_state(state);
    }

    fn len(&self) -> usize {
        self.nodes.len()
    }

    #[cfg(test)]
    fn assert_invariants(&self) {
        assert_eq!(self.tree.assert_invariants(&self.nodes), self.nodes.len());
        assert_eq!(self.heads.len(), self.nodes.len());
    }
}

impl SideIndex {
    /// The slot of the head of a node.
    fn head(&self, slot: Slot) -> Slot {
        Slot::from_bits(self.nodes.get(slot).spare[0])
    }
}

/// Heads in an array that is indexed by address, in steps of the smallest sector.
#[derive(Debug, Default)]
pub struct ArrayIndex {
    heads: Slab<ColdHead, Page<ColdHead, 32>>,
    array: RadixTree,
}

/// Binary logarithm of the smallest sector: extents begin at multiples of it.
const SECTOR_SHIFT: u32 = 12;

impl HeadIndex for ArrayIndex {
    const NAME: &'static str = ARRAY_NAME;

    fn insert(&mut self, address: u64, state: HeadState) -> Inserted {
        let index = address >> SECTOR_SHIFT;
        if let Some(found) = self.array.get(index) {
            return Inserted::Exists(found);
        }
        // The array may need memory for nodes: the head's slot is allocated first, and freed.
        let Some(slot) = self.heads.insert(ColdHead::new(address, state)) else {
            return Inserted::Full;
        };
        if !self.array.set(index, slot) {
            self.heads.remove(slot);
            return Inserted::Full;
        }
        Inserted::New(slot)
    }

    fn find(&self, address: u64) -> Option<Slot> {
        let found = self.array.get(address >> SECTOR_SHIFT)?;
        (self.address(found) == address).then_some(found)
    }

    fn at_or_after(&self, address: u64) -> Option<Slot> {
        let first = address.div_ceil(1 << SECTOR_SHIFT);
        self.array.at_or_after(first)
    }

    fn remove(&mut self, slot: Slot) {
        let head = self.heads.remove(slot);
        self.array.remove(head.address() >> SECTOR_SHIFT);
    }

    fn address(&self, slot: Slot) -> u64 {
        self.heads.get(slot).address()
    }

    fn state(&self, slot: Slot) -> HeadState {
        self.heads.get(slot).state()
    }

    fn set_state(&mut self, slot: Slot, state: HeadState) {
        self.heads.get_mut(slot).set_state(state);
    }

    fn len(&self) -> usize {
        self.heads.len()
    }

    #[cfg(test)]
    fn assert_invariants(&self) {
        assert_eq!(self.array.assert_invariants(), self.heads.len());
    }
}
