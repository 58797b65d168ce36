//! The path from the root to the leaf of a file block.

use platter_vfs::Result;

use super::ExtentMap;
use super::node::Node;
use crate::FsContext;
use crate::ondisk::extent::{Child, Extent};
use crate::ondisk::{BlockNr, FileBlock};

/// One node of a path.
#[derive(Debug)]
pub(super) struct Level {
    /// Its block; `None` for the root, in the inode.
    pub(super) place: Option<BlockNr>,
    pub(super) node: Node,
    /// In an index node: the child that the path follows. In a leaf: the first extent after the
    /// block.
    pub(super) at: usize,
}

/// The path to the leaf that contains a file block, or would contain it.
#[derive(Debug)]
pub(super) struct Path {
    /// The nodes above the leaf, from the root on.
    pub(super) above: Vec<Level>,
    pub(super) leaf: Level,
    /// The first file block of the next leaf.
    pub(super) bound: Option<FileBlock>,
}

impl Path {
    pub(super) fn extents(&self) -> &[Extent] {
        self.leaf.node.extents()
    }

    /// Returns the last extent that begins at or before the block.
    pub(super) fn before(&self) -> Option<(usize, Extent)> {
        let at = self.leaf.at.checked_sub(1)?;
        Some((at, *self.extents().get(at)?))
    }

    /// Returns the first extent after the block, in the same leaf.
    pub(super) fn after(&self) -> Option<Extent> {
        self.extents().get(self.leaf.at).copied()
    }

    /// Returns the start of the first extent after the block.
    pub(super) fn next(&self) -> Option<FileBlock> {
        self.after().map(|extent| extent.first).or(self.bound)
    }

    /// Returns the number of levels below the root.
    pub(super) fn depth(&self) -> u16 {
        u16::try_from(self.above.len()).unwrap_or(u16::MAX)
    }
}

/// Returns the first block after all extents.
pub(in crate::mapping) fn end(map: &ExtentMap, fs: &FsContext) -> Result<FileBlock> {
    let path = descend(map, fs, FileBlock::MAX)?;
    let last = path.before();
    Ok(last.map_or(FileBlock(0), |(_, extent)| extent.end()))
}

/// Finds the path to the leaf of `block`; for one before all others, to the first leaf.
pub(super) fn descend(map: &ExtentMap, fs: &FsContext, block: FileBlock) -> Result<Path> {
    let root = map.node(&map.root, None)?;
    let mut node = Node::new(&root, &map.root);
    let mut place: Option<Child> = None;
    let mut above = Vec::new();
    let mut bound = None;
    // Terminates: `read` accepts only a node one level further down.
    while node.depth > 0 {
        let children = node.children();
        let next = children.partition_point(|child| child.first <= block);
        let at = next.saturating_sub(1);
        let child = children.get(at).copied();
        bound = children.get(at + 1).map(|next| next.first).or(bound);
        let depth = node.depth;
        above.push(Level {
            place: place.map(|place| place.block),
            node,
            at,
        });
        place = child;
        let child = child.ok_or_else(|| map.no_child())?;
        let buffer = map.read(fs, child, depth)?;
        node = Node::new(&map.node(&buffer, Some(child))?, &buffer);
    }
    let at = node
        .extents()
        .partition_point(|extent| extent.first <= block);
    let place = place.map(|place| place.block);
    let leaf = Level { place, node, at };
    Ok(Path { above, leaf, bound })
}
