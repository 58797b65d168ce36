//! A decoded node, for modification.

use zerocopy::IntoBytes;

use crate::ondisk::FileBlock;
use crate::ondisk::extent::{Child, DiskExtent, DiskExtentIndex, Extent, ExtentNode};
use crate::ondisk::extent::{encode_node, node_capacity};

/// The header and entries of a node. It may temporarily exceed its capacity.
#[derive(Debug, Clone)]
pub(super) struct Node {
    /// Levels below it.
    pub(super) depth: u16,
    /// Capacity in entries.
    pub(super) capacity: usize,
    pub(super) entries: Entries,
}

/// The entries of a node.
#[derive(Debug, Clone)]
pub(super) enum Entries {
    Inner(Vec<Child>),
    Leaf(Vec<Extent>),
}

impl Node {
    /// Creates the node that `bytes` were decoded to.
    pub(super) fn new(node: &ExtentNode<'_>, bytes: &[u8]) -> Self {
        Self {
            depth: node.depth,
            capacity: node_capacity(bytes.len()),
            entries: if node.depth == 0 {
                Entries::Leaf(node.extents().collect())
            } else {
                Entries::Inner(node.children().collect())
            },
        }
    }

    /// Creates a leaf without extents.
    pub(super) fn empty(capacity: usize) -> Self {
        Self {
            depth: 0,
            capacity,
            entries: Entries::Leaf(Vec::new()),
        }
    }

    pub(super) fn len(&self) -> usize {
        match &self.entries {
            Entries::Inner(children) => children.len(),
            Entries::Leaf(extents) => extents.len(),
        }
    }

    /// Whether it exceeds its capacity.
    pub(super) fn overflows(&self) -> bool {
        self.len() > self.capacity
    }

    /// Returns the file block of its first entry.
    pub(super) fn first(&self) -> Option<FileBlock> {
        match &self.entries {
            Entries::Inner(children) => children.first().map(|child| child.first),
            Entries::Leaf(extents) => extents.first().map(|extent| extent.first),
        }
    }

    pub(super) fn extents(&self) -> &[Extent] {
        match &self.entries {
            Entries::Leaf(extents) => extents,
            Entries::Inner(_) => &[],
        }
    }

    pub(super) fn children(&self) -> &[Child] {
        match &self.entries {
            Entries::Leaf(_) => &[],
            Entries::Inner(children) => children,
        }
    }

    /// Returns the children of an index node, for modification; `None` for a leaf.
    pub(super) fn children_mut(&mut self) -> Option<&mut Vec<Child>> {
        match &mut self.entries {
            Entries::Leaf(_) => None,
            Entries::Inner(children) => Some(children),
        }
    }

    /// Moves the entries from `at` on into a new node.
    pub(super) fn split_off(&mut self, at: usize) -> Self {
        Self {
            depth: self.depth,
            capacity: self.capacity,
            entries: match &mut self.entries {
                Entries::Inner(children) => Entries::Inner(children.split_off(at)),
                Entries::Leaf(extents) => Entries::Leaf(extents.split_off(at)),
            },
        }
    }

    /// Encodes the node into `bytes`.
    pub(super) fn encode(&self, bytes: &mut [u8]) {
        bytes.fill(0);
        match &self.entries {
            Entries::Inner(children) => {
                let entries: Vec<DiskExtentIndex> = children.iter().map(Child::encode).collect();
                encode_node(bytes, self.depth, self.capacity, entries.as_bytes());
            }
            Entries::Leaf(extents) => {
                let entries: Vec<DiskExtent> = extents.iter().map(Extent::encode).collect();
                encode_node(bytes, self.depth, self.capacity, entries.as_bytes());
            }
        }
    }
}
