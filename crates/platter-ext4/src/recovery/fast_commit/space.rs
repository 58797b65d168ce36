//! Allocating and freeing clusters and inodes, with their metadata: bitmaps, checksums, group
//! descriptors.
//!
//! Bitmap checksums are ignored, and free counts recomputed: an interrupted replay may have changed
//! the bitmap, and the log then restored its old descriptor.

use std::collections::BTreeSet;
use std::ops::Range;

use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, FileKind, Result};
use zerocopy::FromBytes;

use crate::FsContext;
use crate::groups::{self, layout};
use crate::ondisk::bitmap;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::inode::DiskInode;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr, InodeNr};

/// The free space of a filesystem during fast commit replay.
#[derive(Debug)]
pub(super) struct ReplayAllocator<'v> {
    fs: &'v FsContext,
    /// Blocks that records map to files, now or later.
    regions: Vec<Range<u64>>,
    /// Groups whose directories are recounted at the end.
    recount: BTreeSet<GroupNr>,
}

impl<'v> ReplayAllocator<'v> {
    pub(super) fn new(fs: &'v FsContext, regions: Vec<Range<u64>>) -> Self {
        Self {
            fs,
            regions,
            recount: BTreeSet::new(),
        }
    }

    /// Marks the clusters of `count` blocks from `start` on as in use or free, whatever they were
    /// before. The blocks are within the filesystem.
    pub(super) fn assign(&self, start: BlockNr, count: u64, taken: bool) -> Result<()> {
        let geometry = &self.fs.geometry;
        let end = start.0.saturating_add(count);
        let mut at = start;
        while at.0 < end {
            let Some(group) = geometry.group_of_block(at) else {
                break;
            };
            let (desc, mut bits) = self.block_bitmap(group)?;
            for clusters in layout::clusters(geometry, group, Some(at.0..end)) {
                bitmap::assign_range(&mut bits, clusters, taken);
            }
            self.write_block_bitmap(group, &desc, bits)?;
            let blocks = u64::from(geometry.group_blocks(group));
            at = BlockNr(geometry.group_first_block(group).0 + blocks);
        }
        Ok(())
    }

    /// Whether clusters have several blocks.
    pub(super) fn has_clusters(&self) -> bool {
        self.fs.geometry.cluster_blocks > 1
    }

    /// Allocates a free cluster, near `goal` if possible, and returns its first block.
    pub(super) fn alloc(&self, goal: GroupNr) -> Result<BlockNr> {
        let groups = self.fs.geometry.groups_count;
        for step in 0..groups {
            let group = GroupNr((goal.0 % groups + step) % groups);
            if groups::read_descriptor(self.fs, group)?.free_clusters == 0 {
                continue;
            }
            if let Some(block) = self.alloc_in_group(group)? {
                return Ok(block);
            }
        }
        Err(Condition::NoSpace.into())
    }

    fn alloc_in_group(&self, group: GroupNr) -> Result<Option<BlockNr>> {
        let geometry = &self.fs.geometry;
        let first = geometry.group_first_block(group).0;
        let cluster = geometry.cluster_blocks;
        let (desc, mut bits) = self.block_bitmap(group)?;
        let whole_clusters = geometry.group_blocks(group) / cluster;
        for index in 0..whole_clusters {
            let start = first + u64::from(index) * u64::from(cluster);
            if bitmap::is_set(&bits, index) || self.is_mapped_by_records(start, cluster) {
                continue;
            }
            bitmap::assign(&mut bits, index, true);
            self.write_block_bitmap(group, &desc, bits)?;
            return Ok(Some(BlockNr(start)));
        }
        Ok(None)
    }

    fn is_mapped_by_records(&self, start: u64, count: u32) -> bool {
        let next = self.regions.partition_point(|region| region.end <= start);
        let region = self.regions.get(next);
        region.is_some_and(|region| region.start < start + u64::from(count))
    }

    /// Whether an inode is marked in use in the bitmap.
    pub(super) fn is_inode_taken(&self, inode: InodeNr) -> Result<bool> {
        let Some((group, index)) = self.fs.geometry.group_of_inode(inode) else {
            return Ok(false);
        };
        let (_, bits) = self.inode_bitmap(group)?;
        Ok(bitmap::is_set(&bits, index))
    }

    /// Marks an inode as in use. Unused slots of the table up to it are zeroed.
    pub(super) fn take_inode(&mut self, inode: InodeNr, is_directory: bool) -> Result<()> {
        let geometry = &self.fs.geometry;
        let Some((group, index)) = geometry.group_of_inode(inode) else {
            return Ok(());
        };
        if is_directory {
            self.recount.insert(group);
        }
        let (mut desc, mut bits) = self.inode_bitmap(group)?;
        bitmap::assign(&mut bits, index, true);
        let ever_used = geometry.inodes_per_group.saturating_sub(desc.unused_inodes);
        if geometry.features.has_group_csum() && index >= ever_used {
            if !desc.flags.contains(GroupFlags::INODE_ZEROED) {
                self.zero_slots(&desc, ever_used..index)?;
            }
            desc.unused_inodes = geometry.inodes_per_group - index - 1;
        }
        self.write_inode_bitmap(group, &desc, bits)
    }

    /// Marks an inode as free.
    pub(super) fn free_inode(&mut self, inode: InodeNr, is_directory: bool) -> Result<()> {
        let Some((group, index)) = self.fs.geometry.group_of_inode(inode) else {
            return Ok(());
        };
        if is_directory {
            self.recount.insert(group);
        }
        let (desc, mut bits) = self.inode_bitmap(group)?;
        bitmap::assign(&mut bits, index, false);
        self.write_inode_bitmap(group, &desc, bits)
    }

    /// Recounts the directories of the groups with changes.
    pub(super) fn count_directories(&self) -> Result<()> {
        for &group in &self.recount {
            let (mut desc, bits) = self.inode_bitmap(group)?;
            let geometry = &self.fs.geometry;
            let mut used_dirs = 0;
            for index in 0..geometry.inodes_per_group.saturating_sub(desc.unused_inodes) {
                if bitmap::is_set(&bits, index) && self.is_directory(&desc, index)? {
                    used_dirs += 1;
                }
            }
            desc.used_dirs = used_dirs;
            self.write_descriptor(group, &desc)?;
        }
        Ok(())
    }

    fn is_directory(&self, desc: &GroupDesc, index: u32) -> Result<bool> {
        let (block, offset) = self.slot(desc, index);
        let bytes = self.fs.read_block(block, &Unverified)?;
        let slot = bytes.get(offset..).unwrap_or_default();
        let mode = DiskInode::ref_from_prefix(slot).map_or(0, |(disk, _)| disk.mode.get());
        Ok(FileKind::from_mode(u32::from(mode)) == Some(FileKind::Directory))
    }

    fn zero_slots(&self, desc: &GroupDesc, slots: Range<u32>) -> Result<()> {
        let inode_bytes = usize::from(self.fs.geometry.inode_bytes);
        for index in slots {
            let (block, offset) = self.slot(desc, index);
            let mut bytes = self.fs.read_block(block, &Unverified)?.to_vec();
            if let Some(slot) = bytes.get_mut(offset..offset + inode_bytes) {
                slot.fill(0);
            }
            self.fs.buffers().publish(block.0, bytes, &Unverified)?;
        }
        Ok(())
    }

    fn slot(&self, desc: &GroupDesc, index: u32) -> (BlockNr, usize) {
        let geometry = &self.fs.geometry;
        let block = desc.inode_table.0 + u64::from(index / geometry.inodes_per_block);
        let in_block = (index % geometry.inodes_per_block) as usize;
        (BlockNr(block), in_block * usize::from(geometry.inode_bytes))
    }

    fn block_bitmap(&self, group: GroupNr) -> Result<(GroupDesc, Vec<u8>)> {
        let desc = groups::read_descriptor(self.fs, group)?;
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            let geometry = &self.fs.geometry;
            let mut own = layout::own(geometry, &desc).to_vec();
            own.push(layout::head(geometry, group));
            return Ok((desc, layout::fresh_bitmap(geometry, group, own)));
        }
        let bits = self.fs.read_block(desc.block_bitmap, &Unverified)?.to_vec();
        Ok((desc, bits))
    }

    fn write_block_bitmap(&self, group: GroupNr, desc: &GroupDesc, bits: Vec<u8>) -> Result<()> {
        let geometry = &self.fs.geometry;
        let clusters = layout::clusters_counted(geometry, group);
        let sum = bitmap::expected_checksum(&bits, geometry.clusters_per_group, geometry);
        let desc = GroupDesc {
            free_clusters: bitmap::count_clear(&bits, clusters),
            block_bitmap_checksum: sum.unwrap_or(desc.block_bitmap_checksum),
            flags: desc.flags.difference(GroupFlags::BLOCK_UNINIT),
            ..*desc
        };
        let block = desc.block_bitmap.0;
        self.fs.buffers().publish(block, bits, &Unverified)?;
        self.write_descriptor(group, &desc)
    }

    fn inode_bitmap(&self, group: GroupNr) -> Result<(GroupDesc, Vec<u8>)> {
        let geometry = &self.fs.geometry;
        let desc = groups::read_descriptor(self.fs, group)?;
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            let mut bits = vec![0; geometry.block_bytes as usize];
            layout::pad(&mut bits, geometry.inodes_per_group);
            return Ok((desc, bits));
        }
        let bits = self.fs.read_block(desc.inode_bitmap, &Unverified)?.to_vec();
        Ok((desc, bits))
    }

    fn write_inode_bitmap(&self, group: GroupNr, desc: &GroupDesc, bits: Vec<u8>) -> Result<()> {
        let geometry = &self.fs.geometry;
        let sum = bitmap::expected_checksum(&bits, geometry.inodes_per_group, geometry);
        let desc = GroupDesc {
            free_inodes: bitmap::count_clear(&bits, geometry.inodes_per_group),
            inode_bitmap_checksum: sum.unwrap_or(desc.inode_bitmap_checksum),
            flags: desc.flags.difference(GroupFlags::INODE_UNINIT),
            ..*desc
        };
        let block = desc.inode_bitmap.0;
        self.fs.buffers().publish(block, bits, &Unverified)?;
        self.write_descriptor(group, &desc)
    }

    fn write_descriptor(&self, group: GroupNr, desc: &GroupDesc) -> Result<()> {
        let geometry = &self.fs.geometry;
        let per_block = geometry.descriptors_per_block;
        let block = geometry.descriptor_block(group.0 / per_block);
        let mut bytes = self.fs.read_block(block, &Unverified)?.to_vec();
        let offset = (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
        if let Some(bytes) = bytes.get_mut(offset..) {
            desc.encode_into(bytes, group, geometry);
        }
        self.fs.buffers().publish(block.0, bytes, &Unverified)?;
        Ok(())
    }
}
