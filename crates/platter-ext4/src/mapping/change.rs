//! What changes of a block map work with: a transaction, and who keeps the filesystem's space.

use std::ops::Range;
use std::sync::atomic::{AtomicU32, Ordering};

use parking_lot::Mutex;
use platter_vfs::{FileKind, Result};

use crate::Volume;
use crate::alloc::{self, Portion, Reserve, Space};
use crate::ondisk::{BlockNr, FileBlock, GroupNr, Inode, InodeNr};
use crate::txn::Handle;

/// Metadata blocks that taking or giving back blocks of one group changes at most.
pub const SPACE_CREDITS: u32 = alloc::RECORD_CREDITS;

/// Who keeps the filesystem's space, as maps see it. Both record what they do in the transaction.
pub trait BlockSource: std::fmt::Debug + Send + Sync {
    /// Takes a cluster for a metadata block, near `goal`, and gives its first block.
    ///
    /// # Errors
    /// `NoSpace`.
    fn alloc(&self, volume: &Volume, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr>;

    /// As [`alloc`](Self::alloc), for the contents of a directory that has some.
    ///
    /// # Errors
    /// `NoSpace`.
    fn alloc_for_directory(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        _directory: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr> {
        self.alloc(volume, handle, goal)
    }

    /// Gives back whole clusters.
    ///
    /// # Errors
    /// `Corrupt` where they are free already.
    fn free(&self, volume: &Volume, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()>;
}

/// For the map of a file, whose contents were promised space or have it already.
impl BlockSource for Space {
    fn alloc(&self, volume: &Volume, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        self.portion(Reserve::Split).alloc(volume, handle, goal)
    }

    fn free(&self, volume: &Volume, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        Space::free(self, volume, handle, blocks)
    }
}

/// For what nobody promised space to, such as a directory that grows.
impl BlockSource for Portion<'_> {
    fn alloc(&self, volume: &Volume, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        let taken = self.space.alloc(volume, handle, goal, 1, self.from)?;
        Ok(taken.start)
    }

    fn alloc_for_directory(
        &self,
        volume: &Volume,
        handle: &mut Handle<'_>,
        directory: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr> {
        self.space
            .alloc_for_directory(volume, handle, directory, goal, self.from)
    }

    fn free(&self, volume: &Volume, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        self.space.free(volume, handle, blocks)
    }
}

/// A space of which so many clusters were promised to a map.
#[derive(Debug)]
pub struct PromisedSource<'a> {
    space: &'a Space,
    left: AtomicU32,
    /// What was taken from the promise.
    taken: Mutex<Vec<BlockNr>>,
}

impl<'a> PromisedSource<'a> {
    /// Takes up to `promised` clusters from a promise before others.
    #[must_use]
    pub fn new(space: &'a Space, promised: u32) -> Self {
        let left = AtomicU32::new(promised);
        Self {
            space,
            left,
            taken: Mutex::default(),
        }
    }

    /// How many of the promised clusters were not needed, or were given back.
    #[must_use]
    pub fn left(&self) -> u32 {
        self.left.load(Ordering::Relaxed)
    }
}

impl BlockSource for PromisedSource<'_> {
    fn alloc(&self, volume: &Volume, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        let left = self.left();
        if left == 0 {
            return BlockSource::alloc(self.space, volume, handle, goal);
        }
        let taken = Space::alloc(self.space, volume, handle, goal, 1, Reserve::Promised)?;
        self.left.store(left - 1, Ordering::Relaxed);
        self.taken.lock().push(taken.start);
        Ok(taken.start)
    }

    fn free(&self, volume: &Volume, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        let mut taken = self.taken.lock();
        let own = taken.iter().position(|block| blocks.contains(block));
        if let Some(own) = own {
            taken.swap_remove(own);
            self.space.renew_delayed(1);
            self.left.fetch_add(1, Ordering::Relaxed);
        }
        self.space.free(volume, handle, blocks)
    }
}

/// One change of the map of an inode, within a handle.
///
/// What can fail for want of space fails before anything was changed. An error behind the first
/// change aborts the transactions.
#[derive(Debug)]
pub struct MapChange<'a, 'h> {
    /// The filesystem.
    pub volume: &'a Volume,
    /// Its space.
    pub space: &'a dyn BlockSource,
    /// The transaction.
    pub handle: &'a mut Handle<'h>,
    /// The inode, which the caller stores afterwards.
    pub inode: &'a mut Inode,
}

/// How far a change came that may take more than one handle.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Progress {
    /// It is done.
    Done,
    /// The map is in order; with a new handle the change goes on from (what goes from the end to
    /// the start: before) this block.
    More(FileBlock),
}

impl MapChange<'_, '_> {
    /// Whether the handle has `credits` left, or got them.
    pub(super) fn ensure(&mut self, credits: u32) -> bool {
        let left = self.handle.credits();
        left >= credits || self.handle.extend(credits - left)
    }

    /// Takes a block for the map itself.
    pub(super) fn alloc_node(&mut self, goal: BlockNr) -> Result<BlockNr> {
        let block = self.space.alloc(self.volume, self.handle, goal)?;
        self.inode.sectors = self.inode.sectors.saturating_add(self.cluster_sectors());
        Ok(block)
    }

    /// Gives back a block of the map itself.
    pub(super) fn free_node(&mut self, block: BlockNr) -> Result<()> {
        self.free_clusters(block, 1, true)
    }

    /// Gives back the clusters that blocks of the file lie in.
    pub(super) fn free_data(&mut self, first: BlockNr, count: u64) -> Result<()> {
        // The journal may have copies: of directories and link targets, and of journaled contents.
        let is_metadata =
            self.inode.kind != FileKind::Regular || self.volume.journals_data(self.inode);
        self.free_clusters(first, count, is_metadata)
    }

    fn free_clusters(&mut self, first: BlockNr, count: u64, is_metadata: bool) -> Result<()> {
        let ratio = u64::from(self.volume.geometry.cluster_blocks);
        let start = first.0 - first.0 % ratio;
        let end = (first.0 + count).next_multiple_of(ratio);
        let end = end.min(self.volume.geometry.blocks_count);
        let blocks = BlockNr(start)..BlockNr(end);
        if is_metadata {
            self.handle.forget(blocks.clone());
        }
        self.space.free(self.volume, self.handle, blocks)?;
        let clusters = (end - start).div_ceil(ratio);
        let freed = clusters.saturating_mul(self.cluster_sectors());
        self.inode.sectors = self.inode.sectors.saturating_sub(freed);
        Ok(())
    }

    /// The space of a cluster in units of 512 bytes.
    #[must_use]
    pub fn cluster_sectors(&self) -> u64 {
        let geometry = &self.volume.geometry;
        u64::from(geometry.block_bytes >> 9) * u64::from(geometry.cluster_blocks)
    }

    /// The last piece of the `count` blocks from `first` that lies within one group: how many
    /// blocks it has, and the group.
    pub(super) fn last_piece(&self, first: BlockNr, count: u32) -> (u32, GroupNr) {
        let geometry = &self.volume.geometry;
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
    fn what_is_taken_from_a_promise_and_given_back_is_promised_again() {
        let sample = Sample::new(Shape::PLAIN);
        let (volume, space) = (&sample.volume, &sample.space);
        let before = space.stat();
        space.reserve_delayed(2, Reserve::Ordinary).unwrap();
        let source = PromisedSource::new(space, 2);
        let mut handle = volume.begin(10).unwrap();
        let block = source.alloc(volume, &mut handle, BlockNr(0)).unwrap();
        assert_eq!(source.left(), 1);
        let blocks = block..BlockNr(block.0 + 1);
        source.free(volume, &mut handle, blocks).unwrap();
        assert_eq!(source.left(), 2);
        drop(handle);
        sample.commit();
        assert_eq!(space.stat().free_blocks, before.free_blocks - 2);
        space.release_delayed(2);
        assert_eq!(space.stat(), before);
    }
}
