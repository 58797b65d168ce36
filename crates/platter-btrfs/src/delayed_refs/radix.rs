//! A radix tree of 64-way nodes in the shape of the kernel's XArray: numbers to slots.

use super::slab::{Page, Slab, Slot};

/// Binary logarithm of the children of a node.
const STEP_BITS: u32 = 6;
const CHILDREN: usize = 1 << STEP_BITS;

/// A node: slots at the lowest level, nodes at the others.
#[derive(Debug, Clone, Copy)]
struct Node {
    children: [Slot; CHILDREN],
    /// A bit for each child that there is.
    occupied: u64,
}

impl Default for Node {
    fn default() -> Self {
        Self {
            children: [Slot::NONE; CHILDREN],
            occupied: 0,
        }
    }
}

/// Numbers to slots.
///
/// # Invariants
/// - A node has a child, unless it is the root.
/// - A child's bit is set if there is one.
#[derive(Debug, Default)]
pub(super) struct RadixTree {
    nodes: Slab<Node, Page<Node, 15>>,
    root: Slot,
    /// Levels of nodes; 0 without a root.
    height: u32,
}

impl RadixTree {
    /// The slot at a number.
    pub(super) fn get(&self, index: u64) -> Option<Slot> {
        if !self.covers(index) {
            return None;
        }
        let mut at = self.root;
        for level in (0..self.height).rev() {
            at = self.nodes.get(at.get()?).children[digit(index, level)];
        }
        at.get()
    }

    /// Sets the slot at a number that has none. Returns `false` if there is no memory for nodes.
    pub(super) fn set(&mut self, index: u64, slot: Slot) -> bool {
        while !self.covers(index) || self.height == 0 {
            let is_empty = self
                .root
                .get()
                .is_none_or(|root| self.nodes.get(root).occupied == 0);
            if !is_empty || self.height == 0 {
                let Some(root) = self.nodes.insert(Node::default()) else {
                    return false;
                };
                if self.root != Slot::NONE {
                    self.link(root, 0, self.root);
                }
                self.root = root;
            }
            self.height += 1;
        }
        let mut at = self.root;
        for level in (1..self.height).rev() {
            let digit = digit(index, level);
            let below = self.nodes.get(at).children[digit];
            if let Some(below) = below.get() {
                at = below;
                continue;
            }
            let Some(new) = self.nodes.insert(Node::default()) else {
                return false;
            };
            self.link(at, digit, new);
            at = new;
        }
        self.link(at, digit(index, 0), slot);
        true
    }

    fn link(&mut self, node: Slot, digit: usize, child: Slot) {
        let node = self.nodes.get_mut(node);
        node.children[digit] = child;
        node.occupied |= 1 << digit;
    }

    /// Removes the slot at a number.
    pub(super) fn remove(&mut self, index: u64) {
        if !self.covers(index) {
            return;
        }
        let mut path = Vec::with_capacity(self.height as usize);
        let mut at = self.root;
        for level in (0..self.height).rev() {
            let Some(node) = at.get() else { return };
            path.push((node, digit(index, level)));
            at = self.nodes.get(node).children[digit(index, level)];
        }
        while let Some((at, digit)) = path.pop() {
            let node = self.nodes.get_mut(at);
            node.children[digit] = Slot::NONE;
            node.occupied &= !(1 << digit);
            if node.occupied != 0 {
                return;
            }
            self.nodes.remove(at);
        }
        (self.root, self.height) = (Slot::NONE, 0);
    }

    /// The first slot at or after a number.
    pub(super) fn at_or_after(&self, index: u64) -> Option<Slot> {
        if !self.covers(index) {
            return None;
        }
        self.search(self.root.get()?, self.height.checked_sub(1)?, index)
    }

    fn search(&self, at: Slot, level: u32, index: u64) -> Option<Slot> {
        let node = self.nodes.get(at);
        let first = digit(index, level);
        let mut left = node.occupied & (u64::MAX << first);
        while left != 0 {
            let found = left.trailing_zeros() as usize;
            let child = node.children[found];
            if level == 0 {
                return child.get();
            }
            let below = if found == first { index } else { 0 };
            if let Some(slot) = self.search(child.get()?, level - 1, below) {
                return Some(slot);
            }
            left &= left - 1;
        }
        None
    }

    fn covers(&self, index: u64) -> bool {
        let bits = self.height * STEP_BITS;
        index.checked_shr(bits).is_none_or(|rest| rest == 0)
    }

    /// Panics if an invariant does not hold. Returns how many slots there are.
    #[cfg(test)]
    pub(super) fn assert_invariants(&self) -> usize {
        fn visit(tree: &RadixTree, at: Slot, level: u32, nodes: &mut usize) -> usize {
            *nodes += 1;
            let node = tree.nodes.get(at);
            assert_ne!(node.occupied, 0);
            let mut count = 0;
            for (digit, child) in node.children.iter().enumerate() {
                let is_set = node.occupied & (1 << digit) != 0;
                assert_eq!(child.get().is_some(), is_set);
                count += match child.get() {
                    Some(child) if level > 0 => visit(tree, child, level - 1, nodes),
                    other => usize::from(other.is_some()),
                };
            }
            count
        }
        let mut nodes = 0;
        let root = self.root.get();
        let count = root.map_or(0, |root| visit(self, root, self.height - 1, &mut nodes));
        assert_eq!(nodes, self.nodes.len());
        count
    }
}

fn digit(index: u64, level: u32) -> usize {
    let shifted = index.checked_shr(level * STEP_BITS).unwrap_or(0);
    usize::try_from(shifted % CHILDREN as u64).unwrap_or(0)
}
