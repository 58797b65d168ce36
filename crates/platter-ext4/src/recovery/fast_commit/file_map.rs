//! The whole block mapping of one file, decoded, modified, and encoded again.
//!
//! When encoded, adjacent extents are merged, and the tree is as shallow as possible. Its nodes use
//! the old node blocks first.

use std::ops::ControlFlow;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::inode_slot::{self, ROOT_ENTRIES};
use super::space::ReplayAllocator;
use crate::FsContext;
use crate::file::BlockMapRule;
use crate::mapping::{Backing, BlockMap, Piece};
use crate::ondisk::extent::{
    DiskExtentHeader, EXTENT_LEN_MAX, Extent, ExtentBlockRules, ExtentRule, encode_node,
};
use crate::ondisk::jbd2::fast_commit::FastCommitRule;
use crate::ondisk::{BlockNr, FileBlock, GroupNr, Inode, InodeFlags};

/// Maximum length of an unwritten extent in blocks.
const UNWRITTEN_LEN_MAX: u32 = EXTENT_LEN_MAX as u32 - 1;

/// The mapping of one file.
#[derive(Debug)]
pub(super) struct FileMap {
    inode: Inode,
    /// Ascending and without overlaps.
    extents: Vec<Extent>,
    /// The blocks of the tree.
    nodes: Vec<BlockNr>,
}

impl FileMap {
    /// Loads the mapping of a file with extents.
    pub(super) fn load(fs: &FsContext, inode: Inode) -> Result<Self> {
        if !inode.flags.contains(InodeFlags::EXTENTS) {
            let locus = Locus::inode(u64::from(inode.number.get()));
            return Err(Corrupt::new(locus, FastCommitRule::NoExtents).into());
        }
        let (mut extents, mut nodes) = (Vec::<Extent>::new(), Vec::new());
        let mut is_ordered = true;
        // A valid mapping has no more blocks than the filesystem, which bounds the work of each
        // record.
        let mut blocks_left = Some(fs.geometry.blocks_count);
        BlockMap::decode(fs, &inode)?.visit(fs, &mut |piece| {
            let count = match piece {
                Piece::Node(..) => 1,
                Piece::Run(run) => u64::from(run.count),
            };
            blocks_left = blocks_left.and_then(|left| left.checked_sub(count));
            match piece {
                Piece::Node(_, block) => nodes.push(block),
                Piece::Run(run) => {
                    let (start, unwritten) = match run.backing {
                        Backing::Written(start) => (start, false),
                        Backing::Unwritten(start) => (start, true),
                        Backing::Hole => return ControlFlow::Continue(()),
                    };
                    is_ordered &= extents
                        .last()
                        .is_none_or(|last| end_of(last) <= run.first.0);
                    extents.push(Extent {
                        first: run.first,
                        count: run.count,
                        start,
                        unwritten,
                    });
                }
            }
            if is_ordered && blocks_left.is_some() {
                ControlFlow::Continue(())
            } else {
                ControlFlow::Break(())
            }
        })?;
        let locus = Locus::inode(u64::from(inode.number.get()));
        if blocks_left.is_none() {
            return Err(Corrupt::new(locus, BlockMapRule::TooManyBlocks).into());
        }
        if !is_ordered {
            return Err(Corrupt::new(locus, ExtentRule::Order).into());
        }
        Ok(Self {
            inode,
            extents,
            nodes,
        })
    }

    /// Returns the inode.
    pub(super) fn inode(&self) -> &Inode {
        &self.inode
    }

    /// Returns the extents in ascending order.
    pub(super) fn extents(&self) -> &[Extent] {
        &self.extents
    }

    /// Maps the file blocks of `extent`, replacing an existing mapping. Replaced blocks are freed.
    pub(super) fn insert(&mut self, space: &ReplayAllocator<'_>, extent: Extent) -> Result<()> {
        let taken = self.cut(extent.first, extent.count);
        let at = self
            .extents
            .partition_point(|other| other.first < extent.first);
        self.extents.insert(at, extent);
        self.release(space, &taken)?;
        space.assign(extent.start, u64::from(extent.count), true)
    }

    /// Unmaps and frees `count` blocks from `first` on.
    pub(super) fn remove(
        &mut self,
        space: &ReplayAllocator<'_>,
        first: FileBlock,
        count: u32,
    ) -> Result<()> {
        let taken = self.cut(first, count);
        self.release(space, &taken)
    }

    /// Removes a range of file blocks from the extents, and returns what was removed.
    fn cut(&mut self, first: FileBlock, count: u32) -> Vec<Extent> {
        let (start, end) = (first.0, first.0.saturating_add(count));
        let from = self
            .extents
            .partition_point(|extent| end_of(extent) <= start);
        let to = self.extents.partition_point(|extent| extent.first.0 < end);
        if from >= to {
            return Vec::new();
        }
        let hit: Vec<_> = self.extents[from..to].to_vec();
        let part = |extent: &Extent, part_first: u32, part_end: u32| {
            let low = part_first.max(extent.first.0);
            let high = part_end.min(end_of(extent));
            (low < high).then(|| Extent {
                first: FileBlock(low),
                count: high - low,
                start: BlockNr(extent.start.0 + u64::from(low - extent.first.0)),
                unwritten: extent.unwritten,
            })
        };
        let kept = hit
            .iter()
            .flat_map(|extent| [part(extent, 0, start), part(extent, end, u32::MAX)])
            .flatten();
        let kept: Vec<_> = kept.collect();
        let taken = hit
            .iter()
            .filter_map(|extent| part(extent, start, end))
            .collect();
        self.extents.splice(from..to, kept);
        taken
    }

    /// Frees physical blocks, except clusters in which the file still has others.
    fn release(&self, space: &ReplayAllocator<'_>, taken: &[Extent]) -> Result<()> {
        for extent in taken {
            space.assign(extent.start, u64::from(extent.count), false)?;
        }
        // A cluster belongs to one file only, so what it still uses is allocated again.
        if !taken.is_empty() && space.has_clusters() {
            for extent in &self.extents {
                space.assign(extent.start, u64::from(extent.count), true)?;
            }
        }
        Ok(())
    }

    /// Frees all blocks, including those of the tree.
    pub(super) fn free_all(mut self, space: &ReplayAllocator<'_>) -> Result<()> {
        let taken = std::mem::take(&mut self.extents);
        self.release(space, &taken)?;
        self.nodes
            .iter()
            .try_for_each(|node| space.assign(*node, 1, false))
    }

    /// Allocates all blocks, including those of the tree: a file that had them before may have
    /// freed them.
    pub(super) fn take_all(&self, space: &ReplayAllocator<'_>) -> Result<()> {
        for extent in &self.extents {
            space.assign(extent.start, u64::from(extent.count), true)?;
        }
        self.nodes
            .iter()
            .try_for_each(|node| space.assign(*node, 1, true))
    }

    /// Returns the number of the file's clusters, without its attributes.
    pub(super) fn clusters(&self, cluster_blocks: u32) -> u64 {
        let cluster = u64::from(cluster_blocks);
        let (mut count, mut last) = (self.nodes.len() as u64, None);
        for extent in &self.extents {
            let first = extent.start.0 / cluster;
            let end = (extent.start.0 + u64::from(extent.count) - 1) / cluster;
            count += end - first + u64::from(last != Some(first));
            last = Some(end);
        }
        count
    }

    /// Writes the tree into the inode and its node blocks.
    pub(super) fn store(&mut self, fs: &FsContext, space: &ReplayAllocator<'_>) -> Result<()> {
        let mut spare = std::mem::take(&mut self.nodes);
        let goal = fs.geometry.group_of_inode(self.inode.number);
        let goal = goal.map_or(GroupNr(0), |(group, _)| group);
        let capacity = fs.geometry.block_bytes as usize - size_of::<DiskExtentHeader>();
        let per_node = capacity / size_of::<DiskExtentHeader>();
        let rules = ExtentBlockRules {
            geometry: &fs.geometry,
            inode_seed: self.inode.checksum_seed,
        };
        let merged = merged(&self.extents);
        let mut level = Level::Leaf(merged);
        let mut depth = 0u16;
        while level.len() > ROOT_ENTRIES {
            let mut parents = Vec::new();
            for at in (0..level.len()).step_by(per_node) {
                let block = match spare.pop() {
                    Some(block) => block,
                    None => space.alloc(goal)?,
                };
                let mut bytes = vec![0; fs.geometry.block_bytes as usize];
                let first = level.encode(at, per_node, per_node, depth, &mut bytes);
                fs.buffers().publish(block.0, bytes, &rules)?;
                self.nodes.push(block);
                parents.push((first, block));
            }
            level = Level::Inner(parents);
            depth += 1;
        }
        for block in spare {
            space.assign(block, 1, false)?;
        }
        let mut root = self.inode.block;
        root.fill(0);
        level.encode(0, ROOT_ENTRIES, ROOT_ENTRIES, depth, &mut root);
        self.inode.block = root;
        inode_slot::edit(fs, self.inode.number, |disk| disk.block = root)
    }
}

/// The entries of one level of the tree.
enum Level {
    Leaf(Vec<Extent>),
    Inner(Vec<(FileBlock, BlockNr)>),
}

impl Level {
    fn len(&self) -> usize {
        match self {
            Self::Leaf(extents) => extents.len(),
            Self::Inner(children) => children.len(),
        }
    }

    /// Encodes the node of at most `count` entries from `at` on, and returns its first file block.
    fn encode(
        &self,
        at: usize,
        count: usize,
        capacity: usize,
        depth: u16,
        bytes: &mut [u8],
    ) -> FileBlock {
        let end = self.len().min(at + count);
        match self {
            Self::Leaf(extents) => {
                let entries: Vec<_> = extents[at..end].iter().map(Extent::encode).collect();
                encode_node(bytes, depth, capacity, entries.as_bytes());
                extents.get(at).map_or(FileBlock(0), |extent| extent.first)
            }
            Self::Inner(children) => {
                let children = &children[at..end];
                let entries: Vec<_> = children
                    .iter()
                    .map(|&(first, block)| crate::ondisk::extent::Child { first, block }.encode())
                    .collect();
                encode_node(bytes, depth, capacity, entries.as_bytes());
                children.first().map_or(FileBlock(0), |child| child.0)
            }
        }
    }
}

fn end_of(extent: &Extent) -> u32 {
    extent.first.0.saturating_add(extent.count)
}

/// Merges extents that are contiguous in the file and on the device, up to the maximum length.
fn merged(extents: &[Extent]) -> Vec<Extent> {
    let mut merged: Vec<Extent> = Vec::new();
    for extent in extents {
        let len_max = if extent.unwritten {
            UNWRITTEN_LEN_MAX
        } else {
            u32::from(EXTENT_LEN_MAX)
        };
        match merged.last_mut() {
            Some(last)
                if last.unwritten == extent.unwritten
                    && end_of(last) == extent.first.0
                    && last.start.0 + u64::from(last.count) == extent.start.0
                    && last.count + extent.count <= len_max =>
            {
                last.count += extent.count;
            }
            _ => merged.push(*extent),
        }
    }
    merged
}
