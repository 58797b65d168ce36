//! What a replay of fast commits asks of the allocator: blocks and inodes that the records name become
//! in use, whatever they were before (`ext4_mb_mark_bb`, `ext4_mark_inode_used`).
//!
//! An interrupted replay may have written some of bitmaps and descriptors. So bitmaps count, not
//! what descriptors say of them; a group that is changed gets a descriptor that agrees.

use std::ops::Range;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::ranges::BlockRanges;
use super::{Allocator, ContentsShare, SpaceRule, record, recording, slot};
use crate::FsContext;
use crate::ondisk::bitmap;
use crate::ondisk::{BlockNr, GroupNr, InodeNr};
use crate::txn::Handle;

impl Allocator {
    /// Opens the allocator for a replay of fast commits, which allocates `excluded` blocks by
    /// [marking](Self::mark) them only: ascending ranges that are neither empty nor overlapping.
    /// What it frees is not allocated again in the same transaction.
    ///
    /// All requests may use all of the space: what they replay had it. A group with a corrupt descriptor
    /// has no free space.
    ///
    /// # Errors
    /// `Unsupported` with too many groups; `Corrupt` if metadata of groups overlaps.
    pub fn open_for_replay(fs: &FsContext, excluded: Vec<Range<u64>>) -> Result<Self> {
        let space = Self::open_with(fs, Some(BlockRanges::new(excluded)))?;
        Ok(space.with_share(ContentsShare::Everything))
    }

    /// Marks blocks as in use or as free. With bigalloc, all clusters that the range overlaps. Only
    /// for a [replay](Self::open_for_replay). Modifies [`free_credits`](Self::free_credits) blocks.
    ///
    /// # Errors
    /// `Corrupt` for blocks that are not allocatable: nothing is changed.
    pub fn mark(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        blocks: Range<BlockNr>,
        in_use: bool,
    ) -> Result<()> {
        let count = blocks.end.0.saturating_sub(blocks.start.0);
        if !self.may_hold_contents(blocks.start, count) {
            let rule = if in_use {
                SpaceRule::MarkedOwn
            } else {
                SpaceRule::FreedOwn
            };
            return Err(Corrupt::new(Locus::block(blocks.start.0), rule).into());
        }
        for (group, clusters) in self.clusters_of(blocks) {
            let mut held = slot::clusters(self, fs, group)?;
            if !held.may_disagree && held.is_recorded(clusters.clone(), in_use) {
                continue;
            }
            recording::join(self, handle, group, &mut held.recording)?;
            held.may_disagree = false;
            bitmap::assign_range(&mut held.recorded, clusters.clone(), in_use);
            held.free.assign(clusters, false);
            self.slot(group).note(&held);
        }
        Ok(())
    }

    /// Returns the blocks of an inode's table, up to the one with the inode, that no inode was ever
    /// in, if their contents are undefined: they are to be zeroed before the inode is
    /// [marked](Self::mark_inode).
    ///
    /// # Errors
    /// Those of reading the bitmap.
    pub fn blank_table_blocks(&self, fs: &FsContext, number: InodeNr) -> Result<Range<BlockNr>> {
        let Some((group, index)) = self.geometry.group_of_inode(number) else {
            return Ok(BlockNr(0)..BlockNr(0));
        };
        Ok(slot::inodes(self, fs, group)?.blank_blocks(&self.geometry, index))
    }

    /// Marks an inode as in use. Modifies
    /// [`ALLOC_INODE_CREDITS`](super::ALLOC_INODE_CREDITS) blocks.
    ///
    /// The directories of the group are to be [counted](Self::set_directories), if it is one.
    ///
    /// # Errors
    /// Those of reading the bitmaps of the group.
    pub fn mark_inode(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        number: InodeNr,
    ) -> Result<()> {
        let Some((group, index)) = self.geometry.group_of_inode(number) else {
            return Ok(());
        };
        let mut held = slot::inodes(self, fs, group)?;
        if !held.has_block_bitmap {
            record::initialize_bitmap(self, fs, handle, group)?;
            held.has_block_bitmap = true;
        }
        recording::join(self, handle, group, &mut held.recording)?;
        held.mark(index);
        self.slot(group).note_inodes(&held);
        Ok(())
    }

    /// Returns the inodes of a group that are in use.
    ///
    /// # Errors
    /// Those of reading the bitmap.
    pub fn inodes_in_use(&self, fs: &FsContext, group: GroupNr) -> Result<Vec<InodeNr>> {
        let held = slot::inodes(self, fs, group)?;
        let first = u64::from(group.0) * u64::from(self.geometry.inodes_per_group) + 1;
        let in_use = (0..self.geometry.inodes_per_group).filter(|&index| held.is_taken(index));
        let numbers = in_use.map(|index| u32::try_from(first + u64::from(index)));
        Ok(numbers.flatten().filter_map(InodeNr::new).collect())
    }

    /// Sets the number of directories of a group. Modifies two blocks.
    ///
    /// # Errors
    /// Those of reading the bitmap.
    pub fn set_directories(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        group: GroupNr,
        count: u32,
    ) -> Result<()> {
        let mut held = slot::inodes(self, fs, group)?;
        recording::join(self, handle, group, &mut held.recording)?;
        held.set_directories(count);
        self.slot(group).note_inodes(&held);
        Ok(())
    }
}
