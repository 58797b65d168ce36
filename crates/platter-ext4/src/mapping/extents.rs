//! Maps made of extents: a tree of at most five levels below its root in the inode.

use std::ops::ControlFlow;

use platter_cache::Buffer;
use platter_ondisk::Locus;
use platter_vfs::Result;

use super::{Backing, Piece, PieceSink, Run};
use crate::Volume;
use crate::ondisk::corrupt::Corrupt;
use crate::ondisk::extent::{Child, Extent, ExtentBlockRules, ExtentNode, ExtentRule, Found};
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::{FileBlock, Inode, InodeNr};

/// The tree of one inode.
///
/// # Invariants
/// The root's header and entries were proven.
#[derive(Debug)]
pub(super) struct ExtentMap {
    root: [u8; BLOCK_AREA_BYTES],
    inode: InodeNr,
    inode_seed: u32,
}

impl ExtentMap {
    /// Proves the root.
    pub(super) fn decode(volume: &Volume, inode: &Inode) -> Result<Self> {
        let root = ExtentNode::decode(&inode.block);
        root.and_then(|root| root.verify(&volume.geometry))
            .map_err(|rule| Corrupt::new(Locus::inode(u64::from(inode.number.get())), rule))?;
        Ok(Self {
            root: inode.block,
            inode: inode.number,
            inode_seed: inode.checksum_seed,
        })
    }

    /// The run that holds `block`: all of its extent, or a hole from `block` on.
    pub(super) fn lookup(&self, volume: &Volume, block: FileBlock) -> Result<Run> {
        let root = self.node(&self.root, None)?;
        let mut depth = root.depth;
        let mut found = root.lookup(block);
        // The first entry behind `block` on the levels above.
        let mut bound = None;
        loop {
            match found {
                Found::Extent(extent) => return Ok(run_of(extent)),
                Found::Hole(next) => return Ok(Run::hole(block, next.or(bound))),
                Found::Child(child, next) => {
                    bound = next.or(bound);
                    // Ends: `read` only lets a node pass that is one level further down.
                    let buffer = self.read(volume, child, depth)?;
                    let node = self.node(&buffer, Some(child))?;
                    depth = node.depth;
                    found = node.lookup(block);
                }
            }
        }
    }

    /// See [`super::BlockMap::visit`].
    pub(super) fn visit(&self, volume: &Volume, sink: &mut PieceSink<'_>) -> Result<()> {
        let root = self.node(&self.root, None)?;
        self.visit_node(volume, &root, sink).map(|_| ())
    }

    /// Recurses at most [`EXTENT_DEPTH_MAX`](crate::ondisk::extent::EXTENT_DEPTH_MAX) deep, since
    /// each child is one level further down.
    fn visit_node(
        &self,
        volume: &Volume,
        node: &ExtentNode<'_>,
        sink: &mut PieceSink<'_>,
    ) -> Result<ControlFlow<()>> {
        for extent in node.extents() {
            if sink(Piece::Run(run_of(extent))).is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        for child in node.children() {
            if sink(Piece::Node(child.first, child.block)).is_break() {
                return Ok(ControlFlow::Break(()));
            }
            let buffer = self.read(volume, child, node.depth)?;
            let below = self.node(&buffer, Some(child))?;
            if self.visit_node(volume, &below, sink)?.is_break() {
                return Ok(ControlFlow::Break(()));
            }
        }
        Ok(ControlFlow::Continue(()))
    }

    /// A child of a node of `depth`, proven by itself and against its parent.
    fn read(&self, volume: &Volume, child: Child, depth: u16) -> Result<Buffer> {
        let rules = ExtentBlockRules {
            geometry: &volume.geometry,
            inode_seed: self.inode_seed,
        };
        let buffer = volume.read_block(child.block, &rules)?;
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

    fn corrupt(&self, place: Option<Child>, rule: ExtentRule) -> Corrupt<ExtentRule> {
        let mut locus = Locus::inode(u64::from(self.inode.get()));
        locus.block = place.map(|child| child.block.0);
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
