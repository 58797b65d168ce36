//! Mapping by extents: a tree of at most five levels below its root in the inode.

mod node;
mod path;
mod splice;
mod insert;
mod remove;
mod shift;

use std::ops::ControlFlow;

use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::{Backing, Piece, Progress, Run, Visitor};

use crate::FsContext;
use crate::ondisk::extent::{
    Child, Extent, ExtentBlockRules, ExtentNode, ExtentRule, Found, node_capacity,
};
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{FileBlock, Inode, InodeNr};
use node::Node;

pub(super) use insert::{convert, insert};
pub(super) use path::end;
pub(super) use remove::remove;
pub(super) use shift::{part, shift_down, shift_up};
pub(super) use splice::splice_credits;

/// The extent tree of one inode.
///
/// # Invariants
/// The root's header and entries are valid.
#[derive(Debug)]
pub(super) struct ExtentMap {
    root: [u8; BLOCK_AREA_BYTES],
    inode: InodeNr,
    inode_seed: u32,
}

impl ExtentMap {
    /// Creates the root of an empty mapping.
    pub(super) fn empty(inode: InodeNr, inode_seed: u32) -> Self {
        let mut root = [0; BLOCK_AREA_BYTES];
        Node::empty(node_capacity(root.len())).encode(&mut root);
        Self {
            root,
            inode,
            inode_seed,
        }
    }

    /// Decodes and validates the root.
    pub(super) fn decode(fs: &FsContext, inode: &Inode) -> Result<Self> {
        let root = ExtentNode::decode(&inode.block);
        root.and_then(|root| root.verify(&fs.geometry))
            .map_err(|rule| Corrupt::new(Locus::inode(u64::from(inode.number.get())), rule))?;
        Ok(Self {
            root: inode.block,
            inode: inode.number,
            inode_seed: inode.checksum_seed,
        })
    }

    /// Returns the run that contains `block`: its whole extent, or a hole from `block` on.
    pub(super) fn lookup(&self, fs: &FsContext, block: FileBlock) -> Result<Run> {
        let root = self.node(&self.root, None)?;
        let mut depth = root.depth;
        let mut found = root.lookup(block);
        // The first entry after the block on the levels above.
        let mut bound = None;
        loop {
            match found {
                Found::Extent(extent) => return Ok(run_of(extent)),
                Found::Hole(next) => return Ok(Run::hole(block, next.or(bound))),
                Found::Child(child, next) => {
                    bound = next.or(bound);
                    // Terminates: `read` accepts only a node one level further down.
                    let buffer = self.read(fs, child, depth)?;
                    let node = self.node(&buffer, Some(child))?;
                    depth = node.depth;
                    found = node.lookup(block);
                }
            }
        }
    }

    /// See [`super::BlockMap::visit_sound`].
    pub(super) fn visit(&self, fs: &FsContext, visitor: &mut Visitor<'_>) -> ControlFlow<()> {
        match self.node(&self.root, None) {
            Ok(root) => self.visit_node(fs, &root, visitor),
            Err(corrupt) => visitor(Err(corrupt.into())),
        }
    }

    /// Recurses at most [`EXTENT_DEPTH_MAX`](crate::ondisk::extent::EXTENT_DEPTH_MAX) deep, since
    /// each child is one level further down.
    fn visit_node(
        &self,
        fs: &FsContext,
        node: &ExtentNode<'_>,
        visitor: &mut Visitor<'_>,
    ) -> ControlFlow<()> {
        for extent in node.extents() {
            visitor(Ok(Piece::Run(run_of(extent))))?;
        }
        for child in node.children() {
            visitor(Ok(Piece::Node(child.first, child.block)))?;
            match self.read(fs, child, node.depth) {
                Err(error) => visitor(Err(error))?,
                Ok(buffer) => match self.node(&buffer, Some(child)) {
                    Err(corrupt) => visitor(Err(corrupt.into()))?,
                    Ok(below) => self.visit_node(fs, &below, visitor)?,
                },
            }
        }
        ControlFlow::Continue(())
    }

    /// Reads a child of a node of `depth`, and validates it by itself and against its parent.
    fn read(&self, fs: &FsContext, child: Child, depth: u16) -> Result<Buffer> {
        let rules = ExtentBlockRules {
            geometry: &fs.geometry,
            inode_seed: self.inode_seed,
        };
        let buffer = fs.read_block(child.block, &rules)?;
        let node = self.node(&buffer, Some(child))?;
        if node.depth.checked_add(1) != Some(depth) {
            return Err(self.corrupt(Some(child), ExtentRule::Depth).into());
        }
        if node.first().is_some_and(|first| first != child.first) {
            return Err(self.corrupt(Some(child), ExtentRule::FirstBlock).into());
        }
        Ok(buffer)
    }

    fn node<'a>(
        &self,
        bytes: &'a [u8],
        place: Option<Child>,
    ) -> Result<ExtentNode<'a>, Corrupt<ExtentRule>> {
        ExtentNode::decode(bytes).map_err(|rule| self.corrupt(place, rule))
    }

    fn no_child(&self) -> Corrupt<ExtentRule> {
        self.corrupt(None, ExtentRule::Entries)
    }

    /// Returns the root's bytes.
    pub(super) fn root(&self) -> [u8; BLOCK_AREA_BYTES] {
        self.root
    }

    /// Whether the root has no entries.
    pub(super) fn is_empty(&self) -> bool {
        let is_blank = |root: ExtentNode<'_>| {
            root.depth == 0 && matches!(root.lookup(FileBlock(0)), Found::Hole(None))
        };
        self.node(&self.root, None).is_ok_and(is_blank)
    }

    /// Returns how many more extents fit in the root; none if there are levels below it.
    pub(super) fn free_in_root(&self) -> usize {
        let free = |root: ExtentNode<'_>| {
            let capacity = node_capacity(self.root.len());
            if root.depth == 0 {
                capacity.saturating_sub(root.extents().count())
            } else {
                0
            }
        };
        self.node(&self.root, None).map_or(0, free)
    }

    /// Returns the number of levels below the root.
    pub(super) fn depth(&self) -> u16 {
        self.node(&self.root, None).map_or(0, |root| root.depth)
    }

    fn corrupt(&self, place: Option<Child>, rule: ExtentRule) -> Corrupt<ExtentRule> {
        let inode = Locus::inode(u64::from(self.inode.get()));
        let locus = place.map_or(inode, |child| inode.at_block(child.block.0));
        Corrupt::new(locus, rule)
    }
}

fn run_of(extent: Extent) -> Run {
    Run {
        first: extent.first,
        count: extent.count,
        backing: if extent.unwritten {
            Backing::Unwritten(extent.start)
        } else {
            Backing::Written(extent.start)
        },
    }
}
