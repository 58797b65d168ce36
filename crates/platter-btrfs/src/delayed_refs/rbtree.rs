//! A red-black tree over slots.

use std::cmp::Ordering;
use std::mem::offset_of;

use super::slab::Slot;

/// The links of a node.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Links {
    /// The node above.
    pub parent: Slot,
    /// The nodes below, the lesser first.
    pub children: [Slot; 2],
    /// Its colour.
    pub is_red: bool,
}

/// Links in 12 bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct PackedLinks {
    parent_and_color: u32,
    children: [u32; 2],
}

/// Links in 24 bytes, as pointers take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[repr(C)]
pub struct WideLinks {
    parent_and_color: u64,
    children: [u64; 2],
}

impl WideLinks {
    /// Where the numbers of the nodes below lie in it.
    pub(super) const CHILDREN: [usize; 2] = {
        let first = offset_of!(Self, children);
        [first, first + size_of::<u64>()]
    };
}

impl PackedLinks {
    /// Where the numbers of the nodes below lie in it.
    pub(super) const CHILDREN: [usize; 2] = {
        let first = offset_of!(Self, children);
        [first, first + size_of::<u32>()]
    };
}

const RED: u32 = Slot::MASK + 1;

impl From<Links> for PackedLinks {
    fn from(links: Links) -> Self {
        let color = if links.is_red { RED } else { 0 };
        Self {
            parent_and_color: links.parent.bits() | color,
            children: links.children.map(Slot::bits),
        }
    }
}

impl From<PackedLinks> for Links {
    fn from(packed: PackedLinks) -> Self {
        Self {
            parent: Slot::from_bits(packed.parent_and_color),
            children: packed.children.map(Slot::from_bits),
            is_red: packed.parent_and_color & RED != 0,
        }
    }
}

impl From<Links> for WideLinks {
    fn from(links: Links) -> Self {
        let packed = PackedLinks::from(links);
        Self {
            parent_and_color: packed.parent_and_color.into(),
            children: packed.children.map(u64::from),
        }
    }
}

impl From<WideLinks> for Links {
    fn from(wide: WideLinks) -> Self {
        let narrow = |word: u64| u32::try_from(word).unwrap_or(Slot::MASK);
        PackedLinks {
            parent_and_color: narrow(wide.parent_and_color),
            children: wide.children.map(narrow),
        }
        .into()
    }
}

impl Default for PackedLinks {
    fn default() -> Self {
        Links::default().into()
    }
}

impl Default for WideLinks {
    fn default() -> Self {
        Links::default().into()
    }
}

/// Nodes that have links.
pub trait Nodes {
    /// The links of a node.
    fn links(&self, at: Slot) -> Links;

    /// Replaces the links of a node.
    fn set_links(&mut self, at: Slot, links: Links);
}

/// Which child of its parent a node is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Side {
    Left,
    Right,
}

impl Side {
    fn index(self) -> usize {
        match self {
            Self::Left => 0,
            Self::Right => 1,
        }
    }

    fn other(self) -> Self {
        match self {
            Self::Left => Self::Right,
            Self::Right => Self::Left,
        }
    }
}

/// Where a node that was searched for would be linked.
#[derive(Debug, Clone, Copy)]
pub struct Vacancy {
    parent: Slot,
    side: Side,
}

/// A red-black tree: its root. The order is that of the searches by which nodes are inserted.
///
/// # Invariants
/// - The root is black, and so is each child of a red node.
/// - All ways from a node down to where a child is missing pass equally many black nodes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
#[repr(transparent)]
pub struct RbTree {
    root: Slot,
}

impl RbTree {
    /// Whether there are no nodes.
    #[must_use]
    pub fn is_empty(self) -> bool {
        self.root == Slot::NONE
    }

    /// Searches a node. `compare` returns how the wanted one compares to a node.
    pub fn find(
        self,
        nodes: &impl Nodes,
        mut compare: impl FnMut(Slot) -> Ordering,
    ) -> Result<Slot, Vacancy> {
        let mut vacancy = Vacancy {
            parent: Slot::NONE,
            side: Side::Left,
        };
        let mut at = self.root;
        while at != Slot::NONE {
            let side = match compare(at) {
                Ordering::Equal => return Ok(at),
                Ordering::Less => Side::Left,
                Ordering::Greater => Side::Right,
            };
            vacancy = Vacancy { parent: at, side };
            at = nodes.links(at).children[side.index()];
        }
        Err(vacancy)
    }

    /// The node, or else the next one.
    pub fn at_or_after(
        self,
        nodes: &impl Nodes,
        mut compare: impl FnMut(Slot) -> Ordering,
    ) -> Option<Slot> {
        let mut best = Slot::NONE;
        let mut at = self.root;
        while at != Slot::NONE {
            let side = match compare(at) {
                Ordering::Equal => return Some(at),
                Ordering::Less => {
                    best = at;
                    Side::Left
                }
                Ordering::Greater => Side::Right,
            };
            at = nodes.links(at).children[side.index()];
        }
        best.get()
    }

    /// The first node.
    pub fn first(self, nodes: &impl Nodes) -> Option<Slot> {
        self.root.get().map(|root| leftmost(nodes, root))
    }

    /// The node after this one.
    pub fn after(self, nodes: &impl Nodes, at: Slot) -> Option<Slot> {
        let right = nodes.links(at).children[Side::Right.index()];
        if let Some(right) = right.get() {
            return Some(leftmost(nodes, right));
        }
        let mut below = at;
        loop {
            let parent = nodes.links(below).parent.get()?;
            if nodes.links(parent).children[Side::Left.index()] == below {
                return Some(parent);
            }
            below = parent;
        }
    }

    /// Links a node where a search did not find it.
    pub fn insert(&mut self, nodes: &mut impl Nodes, at: Slot, vacancy: Vacancy) {
        let links = Links {
            parent: vacancy.parent,
            children: [Slot::NONE; 2],
            is_red: true,
        };
        nodes.set_links(at, links);
        match vacancy.parent.get() {
            None => self.root = at,
            Some(parent) => set_child(nodes, parent, vacancy.side, at),
        }
        self.repair_red(nodes, at);
    }

    /// Restores the colours after the red node `at` was linked: its parent may be red, too.
    fn repair_red(&mut self, nodes: &mut impl Nodes, mut at: Slot) {
        while let Some(parent) = nodes.links(at).parent.get()
            && nodes.links(parent).is_red
        {
            // A red node is not the root.
            let Some(grandparent) = nodes.links(parent).parent.get() else {
                break;
            };
            let side = side_of(nodes, grandparent, parent);
            let uncle = nodes.links(grandparent).children[side.other().index()];
            if is_red(nodes, uncle) {
                set_red(nodes, parent, false);
                set_red(nodes, uncle, false);
                set_red(nodes, grandparent, true);
                at = grandparent;
                continue;
            }
            let mut upper = parent;
            if side_of(nodes, parent, at) != side {
                self.rotate(nodes, parent, side);
                upper = at;
            }
            set_red(nodes, upper, false);
            set_red(nodes, grandparent, true);
            self.rotate(nodes, grandparent, side.other());
            break;
        }
        set_red(nodes, self.root, false);
    }

    /// Unlinks a node.
    pub fn remove(&mut self, nodes: &mut impl Nodes, at: Slot) {
        let links = nodes.links(at);
        let [left, right] = links.children;
        let (removed_red, child, parent, side);
        if left != Slot::NONE && right != Slot::NONE {
            // The next node takes its position, and leaves its own.
            let next = leftmost(nodes, right);
            let next_links = nodes.links(next);
            removed_red = next_links.is_red;
            child = next_links.children[Side::Right.index()];
            if next_links.parent == at {
                (parent, side) = (next, Side::Right);
            } else {
                (parent, side) = (next_links.parent, Side::Left);
                set_child(nodes, parent, side, child);
                set_parent(nodes, child, parent);
                set_child(nodes, next, Side::Right, right);
                set_parent(nodes, right, next);
            }
            self.replace(nodes, at, next);
            set_child(nodes, next, Side::Left, left);
            set_parent(nodes, left, next);
            set_red(nodes, next, links.is_red);
        } else {
            removed_red = links.is_red;
            child = if left == Slot::NONE { right } else { left };
            parent = links.parent;
            side = match parent.get() {
                Some(parent) => side_of(nodes, parent, at),
                None => Side::Left,
            };
            self.replace(nodes, at, child);
        }
        nodes.set_links(at, Links::default());
        if !removed_red {
            self.repair_black(nodes, child, parent, side);
        }
    }

    /// Restores the colours where ways through `at`, the child of `parent` on `side` or missing, pass one
    /// black node too few.
    fn repair_black(&mut self, nodes: &mut impl Nodes, at: Slot, parent: Slot, side: Side) {
        let (mut at, mut parent, mut side) = (at, parent, side);
        while !is_red(nodes, at)
            && let Some(above) = parent.get()
        {
            let far = side.other();
            let mut sibling = nodes.links(above).children[far.index()];
            if is_red(nodes, sibling) {
                set_red(nodes, sibling, false);
                set_red(nodes, above, true);
                self.rotate(nodes, above, side);
                sibling = nodes.links(above).children[far.index()];
            }
            // One black node more is on the other side, so there is a sibling.
            let children = nodes.links(sibling).children;
            let (near_red, far_red) = (
                is_red(nodes, children[side.index()]),
                is_red(nodes, children[far.index()]),
            );
            if !near_red && !far_red {
                set_red(nodes, sibling, true);
                at = above;
                parent = nodes.links(above).parent;
                if let Some(above) = parent.get() {
                    side = side_of(nodes, above, at);
                }
                continue;
            }
            if !far_red {
                set_red(nodes, children[side.index()], false);
                set_red(nodes, sibling, true);
                self.rotate(nodes, sibling, far);
                sibling = nodes.links(above).children[far.index()];
            }
            let color = is_red(nodes, above);
            set_red(nodes, sibling, color);
            set_red(nodes, above, false);
            let outer = nodes.links(sibling).children[far.index()];
            set_red(nodes, outer, false);
            self.rotate(nodes, above, side);
            return;
        }
        set_red(nodes, at, false);
    }

    /// Moves `at` down to `side`, and its child on the other side up to where it was.
    fn rotate(&mut self, nodes: &mut impl Nodes, at: Slot, side: Side) {
        let up = nodes.links(at).children[side.other().index()];
        let inner = nodes.links(up).children[side.index()];
        self.replace(nodes, at, up);
        set_child(nodes, at, side.other(), inner);
        set_parent(nodes, inner, at);
        set_child(nodes, up, side, at);
        set_parent(nodes, at, up);
    }

    /// Links `by`, or no node, to the parent of `at` in its stead.
    fn replace(&mut self, nodes: &mut impl Nodes, at: Slot, by: Slot) {
        let parent = nodes.links(at).parent;
        match parent.get() {
            None => self.root = by,
            Some(parent) => {
                let side = side_of(nodes, parent, at);
                set_child(nodes, parent, side, by);
            }
        }
        set_parent(nodes, by, parent);
    }

    /// Panics if an invariant does not hold. Returns the number of nodes.
    #[cfg(test)]
    pub(super) fn assert_invariants(self, nodes: &impl Nodes) -> usize {
        fn visit(nodes: &impl Nodes, at: Slot, parent: Slot) -> (usize, usize) {
            let Some(at) = at.get() else { return (0, 1) };
            let links = nodes.links(at);
            assert_eq!(links.parent, parent);
            let [left, right] = links.children;
            if links.is_red {
                assert!(
                    !is_red(nodes, left) && !is_red(nodes, right),
                    "red below red"
                );
            }
            let (left, left_black) = visit(nodes, left, at);
            let (right, right_black) = visit(nodes, right, at);
            assert_eq!(left_black, right_black, "black nodes");
            (left + right + 1, left_black + usize::from(!links.is_red))
        }
        assert!(!is_red(nodes, self.root));
        visit(nodes, self.root, Slot::NONE).0
    }
}

fn leftmost(nodes: &impl Nodes, at: Slot) -> Slot {
    let mut at = at;
    while let Some(left) = nodes.links(at).children[Side::Left.index()].get() {
        at = left;
    }
    at
}

fn side_of(nodes: &impl Nodes, parent: Slot, at: Slot) -> Side {
    if nodes.links(parent).children[Side::Left.index()] == at {
        Side::Left
    } else {
        Side::Right
    }
}

fn is_red(nodes: &impl Nodes, at: Slot) -> bool {
    at.get().is_some_and(|at| nodes.links(at).is_red)
}

fn set_red(nodes: &mut impl Nodes, at: Slot, is_red: bool) {
    if let Some(at) = at.get() {
        let links = nodes.links(at);
        nodes.set_links(at, Links { is_red, ..links });
    }
}

fn set_parent(nodes: &mut impl Nodes, at: Slot, parent: Slot) {
    if let Some(at) = at.get() {
        let links = nodes.links(at);
        nodes.set_links(at, Links { parent, ..links });
    }
}

fn set_child(nodes: &mut impl Nodes, at: Slot, side: Side, child: Slot) {
    let mut links = nodes.links(at);
    links.children[side.index()] = child;
    nodes.set_links(at, links);
}
