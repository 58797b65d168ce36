//! The inodes of one group: its bitmap and counts.

use std::ops::Range;

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Error, Result};

use super::SpaceRule;
use super::recording::Recording;
use crate::FsContext;
use crate::groups::{self, layout};
use crate::ondisk::bitmap::{self, BitmapVerifier};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr};

/// The inodes of a group, in the state of the running transaction.
///
/// # Invariants
/// No allocatable inode before `lowest_free` is free.
#[derive(Debug)]
pub(super) struct Inodes {
    group: GroupNr,
    bits: Box<[u8]>,
    /// Number of inodes of the group.
    count: u32,
    free: u32,
    directories: u32,
    /// Number of inodes at the end that were never used.
    unused: u32,
    lowest_free: u32,
    table: BlockNr,
    /// What was never used of the table holds zeros.
    is_table_zeroed: bool,
    pub(super) has_block_bitmap: bool,
    pub(super) recording: Recording,
}

impl Inodes {
    /// Reads the bitmap of a group, or initializes an uninitialized one. In a replay it counts
    /// whatever its descriptor says.
    pub(super) fn load(fs: &FsContext, group: GroupNr, is_replay: bool) -> Result<Self> {
        let geometry = &fs.geometry;
        let desc = groups::read_descriptor(fs, group)?;
        let is_new = desc.flags.contains(GroupFlags::INODE_UNINIT);
        let mut bits = if is_new {
            vec![0; geometry.block_bytes as usize]
        } else if is_replay {
            fs.read_block(desc.inode_bitmap, &Unverified)?.to_vec()
        } else {
            let verifier = BitmapVerifier::of_inodes(group, &desc, geometry);
            fs.read_block(desc.inode_bitmap, &verifier)?.to_vec()
        };
        let count = geometry.inodes_per_group;
        layout::pad(&mut bits, count);
        let free = if is_replay {
            bitmap::count_clear(&bits, count)
        } else {
            desc.free_inodes
        };
        Ok(Self {
            group,
            bits: bits.into(),
            count,
            free,
            directories: desc.used_dirs,
            unused: if is_new { count } else { desc.unused_inodes },
            lowest_free: 0,
            table: desc.inode_table,
            is_table_zeroed: desc.flags.contains(GroupFlags::INODE_ZEROED),
            has_block_bitmap: !desc.flags.contains(GroupFlags::BLOCK_UNINIT),
            recording: Recording::of(desc.inode_bitmap, is_new),
        })
    }

    /// Returns the number of free inodes.
    pub(super) fn free(&self) -> u32 {
        self.free
    }

    /// Returns the number of directories.
    pub(super) fn directories(&self) -> u32 {
        self.directories
    }

    /// Returns the first free inode from `from` on, the first allocatable one.
    pub(super) fn first_free(&self, from: u32) -> Option<u32> {
        bitmap::first_clear(&self.bits, from.max(self.lowest_free)..self.count)
    }

    pub(super) fn is_taken(&self, index: u32) -> bool {
        bitmap::is_set(&self.bits, index)
    }

    /// Marks the first free inode as in use.
    pub(super) fn take(&mut self, index: u32, is_directory: bool) {
        bitmap::assign(&mut self.bits, index, true);
        self.free = self.free.saturating_sub(1);
        self.directories = self.directories.saturating_add(u32::from(is_directory));
        self.unused = self.unused.min(self.count - index - 1);
        self.lowest_free = index + 1;
    }

    /// Marks an inode as free.
    pub(super) fn give(&mut self, index: u32, was_directory: bool) {
        bitmap::assign(&mut self.bits, index, false);
        self.free += 1;
        self.directories -= u32::from(was_directory);
        self.lowest_free = self.lowest_free.min(index);
    }

    /// Marks an inode as in use, which may be so already.
    pub(super) fn mark(&mut self, index: u32) {
        let was_taken = self.is_taken(index);
        bitmap::assign(&mut self.bits, index, true);
        self.free = self.free.saturating_sub(u32::from(!was_taken));
        self.unused = self.unused.min(self.count - index - 1);
    }

    /// Sets the number of directories.
    pub(super) fn set_directories(&mut self, count: u32) {
        self.directories = count;
    }

    /// Returns the blocks of the table, up to the one of an inode, that no inode was ever in, if their
    /// contents are undefined.
    pub(super) fn blank_blocks(&self, geometry: &Geometry, index: u32) -> Range<BlockNr> {
        let per_block = geometry.inodes_per_block;
        let used = self.count.saturating_sub(self.unused).div_ceil(per_block);
        let is_defined = self.is_table_zeroed || !geometry.features.has_group_csum();
        let end = if is_defined { 0 } else { index / per_block + 1 };
        let block = |index: u32| BlockNr(self.table.0 + u64::from(index));
        block(used.min(end))..block(end)
    }

    /// Returns the inode table block of an inode if none of its inodes was ever used, so that its
    /// contents are undefined.
    pub(super) fn untouched(&self, geometry: &Geometry, index: u32) -> Result<Option<BlockNr>> {
        if !geometry.features.has_group_csum() {
            return Ok(None);
        }
        let ever_used = self.count.saturating_sub(self.unused);
        if index > ever_used {
            return Err(self.corrupt(SpaceRule::NeverUsed));
        }
        let block = index / geometry.inodes_per_block;
        let is_first = block * geometry.inodes_per_block >= ever_used;
        Ok(is_first.then(|| BlockNr(self.table.0 + u64::from(block))))
    }

    /// Returns the bitmap and its state in the transaction.
    pub(super) fn split_mut(&mut self) -> (&[u8], &mut Recording) {
        (&self.bits, &mut self.recording)
    }

    /// Updates the group's descriptor.
    pub(super) fn describe(&self, desc: &mut GroupDesc, geometry: &Geometry) {
        desc.free_inodes = self.free;
        desc.used_dirs = self.directories;
        desc.flags.remove(GroupFlags::INODE_UNINIT);
        if geometry.features.has_group_csum() {
            desc.unused_inodes = self.unused;
        }
        let sum = bitmap::expected_checksum(&self.bits, self.count, geometry);
        desc.inode_bitmap_checksum = sum.unwrap_or(desc.inode_bitmap_checksum);
    }

    pub(super) fn corrupt(&self, rule: SpaceRule) -> Error {
        let block = self.recording.bitmap().0;
        let locus = Locus::group(u64::from(self.group.0)).at_block(block);
        Corrupt::new(locus, rule).into()
    }
}
