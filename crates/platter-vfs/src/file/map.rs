//! Block mappings as they are read: runs of blocks with one backing.

use std::ops::Range;

use crate::{Error, Place, Result};

/// What backs a run of file blocks.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Backing {
    /// Nothing: the run reads as zeros.
    Hole,
    /// Bytes of the device from this one on; of a filesystem over several devices, of its logical
    /// addresses.
    Written(u64),
    /// As written ones, but they read as zeros.
    Unwritten(u64),
}

/// Blocks of a file in a row with one kind of backing.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct FileRun {
    /// The first block.
    pub first: u64,
    /// Number of blocks, at least 1.
    pub count: u64,
    /// What backs them.
    pub backing: Backing,
}

impl FileRun {
    /// The first block after the run.
    #[must_use]
    pub fn end(&self) -> u64 {
        self.first.saturating_add(self.count)
    }

    /// At most `count` blocks of the run.
    #[must_use]
    pub fn truncated(mut self, count: u64) -> Self {
        self.count = self.count.min(count);
        self
    }
}

/// The runs of blocks of one file: what reading and writing it have in common.
pub trait BlockRuns {
    /// The block size as a power of two.
    fn block_bits(&self) -> u32;

    /// The run that `block` lies in, from `block` on; `None` for a block that cannot be mapped.
    fn run(&self, block: u64) -> Result<Option<FileRun>>;

    /// The first dirty blocks that get others at writeback and end after `block`, from `block` on: those
    /// without written ones, and those that are copied on write.
    fn next_delayed(&self, block: u64) -> Option<Range<u64>>;
}

/// The block mapping of one file, kept as it is while it is read.
pub trait FileMap: BlockRuns {
    /// The most blocks that the file may have: those of the filesystem, or those that its inode counts.
    fn filesystem_blocks(&self) -> u64;

    /// Where an address of a [`Backing`] is.
    fn place(&self, address: u64) -> Option<Place> {
        Some(Place {
            member: 0,
            offset: address,
        })
    }

    /// The error for a mapping that has more blocks than the filesystem.
    fn too_many_blocks(&self) -> Error;
}

/// A mapping has more blocks than the filesystem.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TooManyBlocks;

/// Bounds a walk over the runs of one file: what may still follow before there is more than an intact file
/// has.
#[derive(Debug, Clone, Copy)]
pub struct RunBudget {
    /// Blocks of the file: never more than it may have.
    blocks: u64,
    /// Holes. Each ends at a block of the file or of its mapping, or at the end of a block of the mapping
    /// or of one of its four parts.
    holes: u64,
}

impl RunBudget {
    /// For a filesystem with so many blocks.
    #[must_use]
    pub fn new(filesystem_blocks: u64) -> Self {
        Self {
            blocks: filesystem_blocks,
            holes: filesystem_blocks.saturating_mul(2).saturating_add(4),
        }
    }

    /// Counts a hole, or `count` blocks.
    ///
    /// # Errors
    /// Where there are more than can be.
    pub fn spend(&mut self, is_hole: bool, count: u64) -> Result<(), TooManyBlocks> {
        let (left, cost) = if is_hole {
            (&mut self.holes, 1)
        } else {
            (&mut self.blocks, count)
        };
        *left = left.checked_sub(cost).ok_or(TooManyBlocks)?;
        Ok(())
    }

    /// Takes back what was spent on a hole that was looked at in part, or on `count` blocks.
    pub(super) fn give_back(&mut self, is_hole: bool, count: u64) {
        let (left, cost) = if is_hole {
            (&mut self.holes, 1)
        } else {
            (&mut self.blocks, count)
        };
        *left = left.saturating_add(cost);
    }
}

/// Whether a block has contents on the device.
pub(super) fn is_written<F: BlockRuns + ?Sized>(file: &F, block: u64) -> Result<bool> {
    let run = file.run(block)?;
    Ok(run.is_some_and(|run| matches!(run.backing, Backing::Written(_))))
}

/// The run of `block`, within what `budget` allows.
pub(super) fn counted_run<M: FileMap + ?Sized>(
    map: &M,
    block: u64,
    budget: &mut RunBudget,
) -> Result<Option<FileRun>> {
    let Some(run) = map.run(block)? else {
        return Ok(None);
    };
    let spent = budget.spend(run.backing == Backing::Hole, run.count);
    spent.map_err(|TooManyBlocks| map.too_many_blocks())?;
    Ok(Some(run))
}
