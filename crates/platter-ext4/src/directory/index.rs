//! Lookup in a directory's index, and iteration over its leaves. Spec: `ext4/directory` (hash tree
//! directories).

use platter_cache::Buffer;
use platter_vfs::{Error, Result};

use super::contents::{Contents, DirBlocks};
use super::naming::{Hashing, Wanted};
use super::{Directory, HtreeRule, Survey, Vacancy, linear};
use crate::ondisk::FileBlock;
use crate::ondisk::htree::{HtreeRoot, IndexEntries, decode_node};

/// Number of leaves read ahead at once.
const LEAVES_AHEAD: usize = 64;

/// A path from the root of an index to one of its leaves.
///
/// # Invariants
/// There are a root and as many interior nodes as the root says; the hashes of each block are
/// within the range given by the block above it. So iteration returns hashes in ascending order.
pub(super) struct Walker<'a, 'b> {
    directory: &'a Directory<'b>,
    blocks: &'a DirBlocks<'b>,
    frames: Vec<Frame>,
    /// Number of interior nodes of every path.
    levels: usize,
    hash_version: u8,
    /// Remaining leaves before their number exceeds the directory's blocks.
    leaves_left: u32,
}

/// One validated block of the path, and the entry that the path follows.
struct Frame {
    block: FileBlock,
    buffer: Buffer,
    index: usize,
    /// Readahead was started for the leaves before this entry.
    announced: usize,
}

/// An index block on the path to a leaf.
#[derive(Debug, Clone, Copy)]
pub(super) struct PathBlock<'w> {
    pub(super) block: FileBlock,
    pub(super) entries: IndexEntries<'w>,
    /// The entry that leads to the leaf.
    pub(super) index: usize,
}

/// Looks up the name in the leaf of its hash, and in following leaves that continue that hash. A
/// new name goes to the first one with space.
pub(super) fn survey(
    mut walker: Walker<'_, '_>,
    hashing: &Hashing,
    wanted: &Wanted<'_>,
) -> Result<Survey> {
    let directory = walker.directory;
    let major = wanted.hash(hashing).major;
    walker.seek(major)?;
    let mut vacancy = None;
    loop {
        let (block, leaf) = walker.read_leaf()?;
        let missing = match linear::look_through(directory, block.0, &leaf, wanted)? {
            Survey::Missing(_) if walker.is_on_path(block) => Vacancy { gap: None },
            Survey::Missing(missing) => missing,
            there @ Survey::There(_) => return Ok(there),
        };
        let vacancy = *vacancy.get_or_insert(missing);
        if walker.next_boundary()? != Some(major | 1) || !walker.advance()? {
            return Ok(Survey::Missing(vacancy));
        }
    }
}

fn read_root<'a, 'b>(directory: &'a Directory<'b>) -> Result<(&'a DirBlocks<'b>, Buffer)> {
    let missing = || directory.broken_index(FileBlock(0), HtreeRule::Block);
    let Contents::Blocks(blocks) = &directory.contents else {
        return Err(missing());
    };
    let root = blocks.read(FileBlock(0))?.ok_or_else(missing)?;
    Ok((blocks, root))
}

impl<'a, 'b> Walker<'a, 'b> {
    /// Opens the index at its validated root.
    pub(super) fn open(directory: &'a Directory<'b>) -> Result<Self> {
        let (blocks, buffer) = read_root(directory)?;
        let root = HtreeRoot::decode(&buffer, &directory.fs.geometry)
            .map_err(|rule| directory.broken_index(FileBlock(0), rule))?;
        let levels = usize::from(root.levels);
        let hash_version = root.hash_version;
        let mut frames = Vec::with_capacity(levels.saturating_add(1));
        frames.push(Frame {
            block: FileBlock(0),
            buffer,
            index: 0,
            announced: 0,
        });
        Ok(Self {
            directory,
            blocks,
            frames,
            levels,
            hash_version,
            leaves_left: blocks.count(),
        })
    }

    /// Returns the number of the index's hash function.
    pub(super) fn hash_version(&self) -> u8 {
        self.hash_version
    }

    /// Moves the path to the first leaf that may contain names of hash `major`, from the root.
    pub(super) fn seek(&mut self, major: u32) -> Result<()> {
        self.frames.truncate(1);
        let root = self.frames.first();
        let index = root.map(|root| Ok::<_, Error>(self.entries(root)?.position(major)));
        let index = index.transpose()?;
        if let Some((root, index)) = self.frames.first_mut().zip(index) {
            root.index = index;
        }
        self.descend(|entries| entries.position(major))
    }

    /// Whether a block that the path reaches as a leaf is an index block itself.
    pub(super) fn is_on_path(&self, block: FileBlock) -> bool {
        self.frames.iter().any(|frame| frame.block == block)
    }

    /// Completes the path downwards; `pick` chooses the entry of each block.
    fn descend(&mut self, pick: impl Fn(IndexEntries<'_>) -> usize) -> Result<()> {
        while self.frames.len() <= self.levels {
            let (lower, upper) = (self.boundary()?, self.next_boundary()?);
            let block = self.child()?;
            let broken = |rule| self.directory.broken_index(block, rule);
            let buffer = self
                .blocks
                .read(block)?
                .ok_or_else(|| broken(HtreeRule::Block))?;
            let entries = decode_node(&buffer, &self.directory.fs.geometry).map_err(broken)?;
            let last = entries.len().saturating_sub(1);
            let is_within = last == 0
                || entries.hash(1) >= lower
                    && upper.is_none_or(|upper| entries.hash(last) <= upper);
            if !is_within {
                return Err(broken(HtreeRule::Order));
            }
            let index = pick(entries);
            self.frames.push(Frame {
                block,
                buffer,
                index,
                announced: 0,
            });
        }
        Ok(())
    }

    /// Moves to the next leaf; `false` at the last one.
    pub(super) fn advance(&mut self) -> Result<bool> {
        self.leaves_left = self
            .leaves_left
            .checked_sub(1)
            .ok_or_else(|| self.directory.broken_index(FileBlock(0), HtreeRule::Block))?;
        while let Some(frame) = self.frames.last() {
            if frame.index.saturating_add(1) < self.entries(frame)?.len() {
                break;
            }
            self.frames.pop();
        }
        let Some(frame) = self.frames.last_mut() else {
            return Ok(false);
        };
        frame.index = frame.index.saturating_add(1);
        self.descend(|_| 0)?;
        Ok(true)
    }

    /// Returns the lowest hash of the current leaf, with the continuation bit.
    pub(super) fn boundary(&self) -> Result<u32> {
        let mut upwards = self.frames.iter().rev();
        match upwards.find(|frame| frame.index > 0) {
            Some(frame) => Ok(self.entries(frame)?.hash(frame.index)),
            None => Ok(0),
        }
    }

    /// Returns the lowest hash of the next leaf, with the continuation bit.
    pub(super) fn next_boundary(&self) -> Result<Option<u32>> {
        for frame in self.frames.iter().rev() {
            let entries = self.entries(frame)?;
            let next = frame.index.saturating_add(1);
            if next < entries.len() {
                return Ok(Some(entries.hash(next)));
            }
        }
        Ok(None)
    }

    /// Returns the path to the current leaf, from the root on: each block, its entries, and the one
    /// followed.
    pub(super) fn path(&self) -> impl DoubleEndedIterator<Item = Result<PathBlock<'_>>> {
        self.frames.iter().map(|frame| {
            Ok(PathBlock {
                block: frame.block,
                entries: self.entries(frame)?,
                index: frame.index,
            })
        })
    }

    /// Reads the current leaf.
    pub(super) fn read_leaf(&self) -> Result<(FileBlock, Buffer)> {
        let block = self.child()?;
        let leaf = self.blocks.read(block)?;
        let missing = || self.directory.broken_index(block, HtreeRule::Block);
        Ok((block, leaf.ok_or_else(missing)?))
    }

    /// Starts readahead of the following leaves.
    pub(super) fn announce(&mut self) -> Result<()> {
        let Some(frame) = self.frames.last() else {
            return Ok(());
        };
        let from = frame.index;
        if from < frame.announced {
            return Ok(());
        }
        let entries = self.entries(frame)?;
        let end = from.saturating_add(LEAVES_AHEAD).min(entries.len());
        let leaves = (from..end)
            .filter_map(|index| entries.block(index))
            .collect();
        self.blocks.announce_all(leaves);
        if let Some(frame) = self.frames.last_mut() {
            frame.announced = end;
        }
        Ok(())
    }

    /// Returns the block that the last entry of the path points to.
    fn child(&self) -> Result<FileBlock> {
        let outside = || self.directory.broken_index(FileBlock(0), HtreeRule::Block);
        let frame = self.frames.last().ok_or_else(outside)?;
        let block = self.entries(frame)?.block(frame.index);
        block
            .filter(|block| block.0 != 0 && block.0 < self.blocks.count())
            .ok_or_else(|| self.directory.broken_index(frame.block, HtreeRule::Block))
    }

    fn entries<'f>(&self, frame: &'f Frame) -> Result<IndexEntries<'f>> {
        IndexEntries::decode_validated(&frame.buffer, &self.directory.fs.geometry)
            .map_err(|rule| self.directory.broken_index(frame.block, rule))
    }
}
