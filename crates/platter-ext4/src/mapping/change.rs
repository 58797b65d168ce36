//! The context of a change of a block mapping: a transaction, and the source of blocks.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use platter_block::lock::Mutex;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{FileKind, Result};

use crate::FsContext;
use crate::alloc::{self, Allocator, Portion, Reserve, SpaceRule};
use crate::ondisk::{BlockNr, FileBlock, GroupNr, Inode, InodeNr};
use crate::txn::Handle;

/// Maximum number of metadata blocks modified by allocating or freeing blocks of one group.
pub const SPACE_CREDITS: u32 = alloc::RECORD_CREDITS;

/// The allocator as block mappings use it. Allocating and freeing are part of the transaction.
pub trait BlockSource: std::fmt::Debug + Send + Sync {
    /// Allocates a cluster for a metadata block, near `goal`, and returns its first block.
    ///
    /// # Errors
    /// `NoSpace`.
    fn alloc(&self, fs: &FsContext, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr>;

    /// Like [`alloc`](Self::alloc), for a further block of a directory.
    ///
    /// # Errors
    /// `NoSpace`.
    fn alloc_for_directory(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        _directory: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr> {
        self.alloc(fs, handle, goal)
    }

    /// Checks that whole clusters can be freed, which reads their bitmaps.
    ///
    /// # Errors
    /// Those of [`free`](Self::free).
    fn check_freeable(&self, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()>;

    /// Frees whole clusters.
    ///
    /// # Errors
    /// `Corrupt` if they are free already.
    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()>;
}

/// For the mapping of a file, whose data has a reservation or is allocated already.
impl BlockSource for Allocator {
    fn alloc(&self, fs: &FsContext, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        self.portion(Reserve::Split).alloc(fs, handle, goal)
    }

    fn check_freeable(&self, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()> {
        alloc::check_freeable(self, fs, blocks)
    }

    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        alloc::free_blocks(self, fs, handle, blocks)
    }
}

/// For allocations without a reservation, such as a directory that grows.
impl BlockSource for Portion<'_> {
    fn alloc(&self, fs: &FsContext, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        let taken = alloc::alloc_blocks(self.space, fs, handle, goal, 1, self.from)?;
        Ok(taken.start)
    }

    fn alloc_for_directory(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        directory: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr> {
        alloc::alloc_for_directory(self.space, fs, handle, directory, goal, self.from)
    }

    fn check_freeable(&self, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()> {
        alloc::check_freeable(self.space, fs, blocks)
    }

    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        alloc::free_blocks(self.space, fs, handle, blocks)
    }
}

/// A block source that uses a reservation of a block mapping first.
#[derive(Debug)]
pub struct ReservedSource<'a> {
    space: &'a Allocator,
    left: AtomicU32,
    /// Blocks allocated from the reservation.
    taken: Mutex<Vec<BlockNr>>,
}

impl<'a> ReservedSource<'a> {
    /// Uses up to `reserved` clusters of a reservation before others.
    #[must_use]
    pub fn new(space: &'a Allocator, reserved: u32) -> Self {
        let left = AtomicU32::new(reserved);
        Self {
            space,
            left,
            taken: Mutex::default(),
        }
    }

    /// Returns how many of the reserved clusters were not used, or were freed again.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }
}

impl BlockSource for ReservedSource<'_> {
    fn alloc(&self, fs: &FsContext, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        let left = self.left();
        if left == 0 {
            return BlockSource::alloc(self.space, fs, handle, goal);
        }
        let taken = alloc::alloc_blocks(self.space, fs, handle, goal, 1, Reserve::Delayed)?;
        self.left.store(left - 1, Ordering::Relaxed);
        self.taken.lock().push(taken.start);
        Ok(taken.start)
    }

    fn check_freeable(&self, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()> {
        alloc::check_freeable(self.space, fs, blocks)
    }

    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        let mut taken = self.taken.lock();
        let own = taken.iter().position(|block| blocks.contains(block));
        if let Some(own) = own {
            taken.swap_remove(own);
            self.space.renew_delayed(1);
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        drop(taken);
        alloc::free_blocks(self.space, fs, handle, blocks)
    }
}

/// One change of the block mapping of an inode, within a handle.
///
/// Allocations come before the first change. An error after it aborts the transaction.
#[derive(Debug)]
pub struct MapChange<'a, 'h> {
    /// The filesystem.
    pub fs: &'a FsContext,
    /// The source of blocks.
    pub space: &'a dyn BlockSource,
    /// The handle.
    pub handle: &'a mut Handle<'h>,
    /// The inode, which the caller stores afterwards.
    pub inode: &'a mut Inode,
}

/// Progress of a change that may need more than one handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It is done.
    Done,
    /// The mapping is consistent; with a new handle the change continues at (if it runs from the
    /// end to the start: before) this block.
    More(FileBlock),
}

impl MapChange<'_, '_> {
    /// Ensures that the handle has `credits` left, extending it if necessary.
    pub(super) fn ensure(&mut self, credits: u32) -> bool {
        let left = self.handle.credits();
        left >= credits || self.handle.extend(credits - left)
    }

    /// Allocates a block for the mapping itself.
    pub(super) fn alloc_node(&mut self, goal: BlockNr) -> Result<BlockNr> {
        let block = self.space.alloc(self.fs, self.handle, goal)?;
        self.inode.sectors = self.inode.sectors.saturating_add(self.cluster_sectors());
        Ok(block)
    }

    /// Checks that all of these runs of blocks can be freed: before the first change of a step, whose later
    /// errors abort the transaction.
    ///
    /// # Errors
    /// `Corrupt`, also for a block in two runs; `Io`.
    pub(super) fn check_freeable(&self, runs: &mut [(BlockNr, u64)]) -> Result<()> {
        runs.sort_unstable();
        let mut free_to = BlockNr(0);
        for &(first, count) in &*runs {
            if first < free_to {
                return Err(Corrupt::new(Locus::block(first.0), SpaceRule::BlockFreedTwice).into());
            }
            let blocks = self.clusters(first, count);
            self.space.check_freeable(self.fs, &blocks)?;
            free_to = BlockNr(first.0.saturating_add(count));
        }
        Ok(())
    }

    /// Frees a block of the mapping itself.
    pub(super) fn free_node(&mut self, block: BlockNr) -> Result<()> {
        self.free_clusters(block, 1, true)
    }

    /// Frees the clusters of data blocks.
    pub(super) fn free_data(&mut self, first: BlockNr, count: u64) -> Result<()> {
        // The journal may have copies of directories, link targets and journaled data.
        let is_metadata = self.inode.kind != FileKind::Regular || self.fs.journals_data(self.inode);
        self.free_clusters(first, count, is_metadata)
    }

    fn free_clusters(&mut self, first: BlockNr, count: u64, is_metadata: bool) -> Result<()> {
        let blocks = self.clusters(first, count);
        let ratio = u64::from(self.fs.geometry.cluster_blocks);
        let clusters = (blocks.end.0 - blocks.start.0).div_ceil(ratio);
        if is_metadata {
            self.handle.forget(blocks.clone());
        }
        self.space.free(self.fs, self.handle, blocks)?;
        let freed = clusters.saturating_mul(self.cluster_sectors());
        self.inode.sectors = self.inode.sectors.saturating_sub(freed);
        Ok(())
    }

    /// Returns the blocks of the clusters that a run of blocks lies in.
    fn clusters(&self, first: BlockNr, count: u64) -> Range<BlockNr> {
        let ratio = u64::from(self.fs.geometry.cluster_blocks);
        let start = first.0 - first.0 % ratio;
        let end = (first.0 + count).next_multiple_of(ratio);
        BlockNr(start)..BlockNr(end.min(self.fs.geometry.blocks_count))
    }

    /// Returns the size of a cluster in units of 512 bytes.
    #[must_use]
    pub fn cluster_sectors(&self) -> u64 {
        let geometry = &self.fs.geometry;
        u64::from(geometry.block_bytes >> 9) * u64::from(geometry.cluster_blocks)
    }

    /// Returns the last part of the `count` blocks from `first` that is within one group: its
    /// number of blocks, and the group.
    pub(super) fn last_piece(&self, first: BlockNr, count: u32) -> (u32, GroupNr) {
        let geometry = &self.fs.geometry;
        let last = BlockNr(first.0 + u64::from(count) - 1);
        let group = geometry.group_of_block(last).unwrap_or_default();
        let start = geometry.group_first_block(group).max(first);
        let blocks = last.0 - start.0 + 1;
        (u32::try_from(blocks).unwrap_or(count).min(count), group)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::alloc::tests::sample::{Sample, Shape};

    #[test]
    fn freed_blocks_return_to_the_reservation() {
        let sample = Sample::new(Shape::PLAIN);
        let (fs, space) = (&sample.fs, &sample.space);
        let before = space.stat();
        space.reserve_delayed(2, Reserve::Ordinary).unwrap();
        let source = ReservedSource::new(space, 2);
        let mut handle = fs.begin(10).unwrap();
        let block = source.alloc(fs, &mut handle, BlockNr(0)).unwrap();
        assert_eq!(source.left(), 1);
        let blocks = block..BlockNr(block.0 + 1);
        source.free(fs, &mut handle, blocks).unwrap();
        assert_eq!(source.left(), 2);
        drop(handle);
        sample.commit();
        assert_eq!(space.stat().free_blocks, before.free_blocks - 2);
        space.release_delayed(2);
        assert_eq!(space.stat(), before);
    }
}
