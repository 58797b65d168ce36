//! Taking and giving back clusters and inodes, with all that counts them: bitmaps, their
//! checksums, group descriptors.
//!
//! A bitmap is believed without its checksum, and what is free is counted anew: a replay that was
//! cut short may have changed the bitmap, and the log then brought its old descriptor back.

use std::collections::BTreeSet;
use std::ops::Range;

use platter_ondisk::verify::Unverified;
use platter_vfs::{Condition, FileKind, Result};
use zerocopy::FromBytes;

use crate::Volume;
use crate::groups;
use crate::ondisk::bitmap;
use crate::ondisk::features::Incompat;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::inode::DiskInode;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr, InodeNr};

/// The free space of a volume whose fast commits are being replayed.
#[derive(Debug)]
pub(super) struct Space<'v> {
    volume: &'v Volume,
    /// Blocks that records give to files, now or later.
    regions: Vec<Range<u64>>,
    /// Groups whose directories are to be counted in the end.
    recount: BTreeSet<GroupNr>,
}

impl<'v> Space<'v> {
    pub(super) fn new(volume: &'v Volume, regions: Vec<Range<u64>>) -> Self {
        Self {
            volume,
            regions,
            recount: BTreeSet::new(),
        }
    }

    /// Marks the clusters of `count` blocks from `start` on as taken or free; those that are so
    /// already stay. The blocks lie within the filesystem.
    pub(super) fn assign(&self, start: BlockNr, count: u64, taken: bool) -> Result<()> {
        let geometry = &self.volume.geometry;
        let end = start.0.saturating_add(count);
        let mut at = start.0;
        while at < end {
            let Some(group) = geometry.group_of_block(BlockNr(at)) else {
                break;
            };
            let first = geometry.group_first_block(group).0;
            let stop = end.min(first + u64::from(geometry.group_blocks(group)));
            self.assign_in_group(group, at - first..stop - first, taken)?;
            at = stop;
        }
        Ok(())
    }

    fn assign_in_group(&self, group: GroupNr, blocks: Range<u64>, taken: bool) -> Result<()> {
        let cluster = u64::from(self.volume.geometry.cluster_blocks);
        let (desc, mut bits) = self.block_bitmap(group)?;
        let clusters = blocks.start / cluster..(blocks.end - 1) / cluster + 1;
        for index in clusters.filter_map(|index| u32::try_from(index).ok()) {
            bitmap::assign(&mut bits, index, taken);
        }
        self.write_block_bitmap(group, &desc, bits)
    }

    /// Whether space is taken in clusters of several blocks.
    pub(super) fn has_clusters(&self) -> bool {
        self.volume.geometry.cluster_blocks > 1
    }

    /// Takes a free cluster, near `goal` if there is one, and gives its first block.
    pub(super) fn alloc(&self, goal: GroupNr) -> Result<BlockNr> {
        let groups = self.volume.geometry.groups_count;
        for step in 0..groups {
            let group = GroupNr((goal.0 % groups + step) % groups);
            if groups::read_descriptor(self.volume, group)?.free_clusters == 0 {
                continue;
            }
            if let Some(block) = self.alloc_in_group(group)? {
                return Ok(block);
            }
        }
        Err(Condition::NoSpace.into())
    }

    fn alloc_in_group(&self, group: GroupNr) -> Result<Option<BlockNr>> {
        let geometry = &self.volume.geometry;
        let first = geometry.group_first_block(group).0;
        let cluster = geometry.cluster_blocks;
        let (desc, mut bits) = self.block_bitmap(group)?;
        let whole_clusters = geometry.group_blocks(group) / cluster;
        for index in 0..whole_clusters {
            let start = first + u64::from(index) * u64::from(cluster);
            if bitmap::is_set(&bits, index) || self.is_promised(start, cluster) {
                continue;
            }
            bitmap::assign(&mut bits, index, true);
            self.write_block_bitmap(group, &desc, bits)?;
            return Ok(Some(BlockNr(start)));
        }
        Ok(None)
    }

    fn is_promised(&self, start: u64, count: u32) -> bool {
        let behind = self.regions.partition_point(|region| region.end <= start);
        let region = self.regions.get(behind);
        region.is_some_and(|region| region.start < start + u64::from(count))
    }

    /// Whether an inode is in use, by the bitmap.
    pub(super) fn is_inode_taken(&self, inode: InodeNr) -> Result<bool> {
        let Some((group, index)) = self.volume.geometry.group_of_inode(inode) else {
            return Ok(false);
        };
        let (_, bits) = self.inode_bitmap(group)?;
        Ok(bitmap::is_set(&bits, index))
    }

    /// Marks an inode as in use. Slots of the table up to it that were never used are zeroed.
    pub(super) fn take_inode(&mut self, inode: InodeNr, is_directory: bool) -> Result<()> {
        let geometry = &self.volume.geometry;
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
        let Some((group, index)) = self.volume.geometry.group_of_inode(inode) else {
            return Ok(());
        };
        if is_directory {
            self.recount.insert(group);
        }
        let (desc, mut bits) = self.inode_bitmap(group)?;
        bitmap::assign(&mut bits, index, false);
        self.write_inode_bitmap(group, &desc, bits)
    }

    /// Counts the directories of the groups in which some came or went.
    pub(super) fn count_directories(&self) -> Result<()> {
        for &group in &self.recount {
            let (mut desc, bits) = self.inode_bitmap(group)?;
            let geometry = &self.volume.geometry;
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
        let bytes = self.volume.read_block(block, &Unverified)?;
        let slot = bytes.get(offset..).unwrap_or_default();
        let mode = DiskInode::ref_from_prefix(slot).map_or(0, |(disk, _)| disk.mode.get());
        Ok(FileKind::from_mode(u32::from(mode)) == Some(FileKind::Directory))
    }

    fn zero_slots(&self, desc: &GroupDesc, slots: Range<u32>) -> Result<()> {
        let inode_bytes = usize::from(self.volume.geometry.inode_bytes);
        for index in slots {
            let (block, offset) = self.slot(desc, index);
            let mut bytes = self.volume.read_block(block, &Unverified)?.to_vec();
            if let Some(slot) = bytes.get_mut(offset..offset + inode_bytes) {
                slot.fill(0);
            }
            self.volume.buffers().publish(block.0, bytes, &Unverified)?;
        }
        Ok(())
    }

    fn slot(&self, desc: &GroupDesc, index: u32) -> (BlockNr, usize) {
        let geometry = &self.volume.geometry;
        let block = desc.inode_table.0 + u64::from(index / geometry.inodes_per_block);
        let in_block = (index % geometry.inodes_per_block) as usize;
        (BlockNr(block), in_block * usize::from(geometry.inode_bytes))
    }

    fn block_bitmap(&self, group: GroupNr) -> Result<(GroupDesc, Vec<u8>)> {
        let desc = groups::read_descriptor(self.volume, group)?;
        if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
            return Ok((desc, self.fresh_block_bitmap(group, &desc)));
        }
        let bits = self
            .volume
            .read_block(desc.block_bitmap, &Unverified)?
            .to_vec();
        Ok((desc, bits))
    }

    /// The bitmap of a group in which nothing was ever allocated: its own metadata is taken, and
    /// what lies behind its end.
    fn fresh_block_bitmap(&self, group: GroupNr, desc: &GroupDesc) -> Vec<u8> {
        let geometry = &self.volume.geometry;
        let mut bits = vec![0; geometry.block_bytes as usize];
        let first = geometry.group_first_block(group).0;
        let cluster = u64::from(geometry.cluster_blocks);
        let mut take = |blocks: Range<u64>| {
            let inside = blocks.start.max(first)..blocks.end;
            for block in inside {
                let index = u32::try_from((block - first) / cluster).unwrap_or(u32::MAX);
                bitmap::assign(&mut bits, index, true);
            }
        };
        let end = first + u64::from(geometry.group_blocks(group));
        take(first..(first + self.group_head_blocks(group)).min(end));
        let table_end = desc.inode_table.0 + u64::from(geometry.inode_table_blocks);
        let own = [
            desc.block_bitmap.0..desc.block_bitmap.0 + 1,
            desc.inode_bitmap.0..desc.inode_bitmap.0 + 1,
            desc.inode_table.0..table_end,
        ];
        for blocks in own {
            take(blocks.start.min(end)..blocks.end.min(end));
        }
        let clusters = u64::from(geometry.group_blocks(group)).div_ceil(cluster);
        let clusters = u32::try_from(clusters).unwrap_or(u32::MAX);
        set_rest(&mut bits, clusters);
        bits
    }

    /// Blocks at the start of a group that hold a superblock and group descriptors.
    fn group_head_blocks(&self, group: GroupNr) -> u64 {
        let geometry = &self.volume.geometry;
        let has_superblock = geometry.has_superblock(group);
        let table_block = group.0 / geometry.descriptors_per_block;
        let meta = geometry.features.incompat.contains(Incompat::META_BG)
            && table_block >= geometry.first_meta_block_group;
        let descriptors = if meta {
            // The first, second and last group of a meta group each have a copy.
            let in_meta = group.0 % geometry.descriptors_per_block;
            u64::from([0, 1, geometry.descriptors_per_block - 1].contains(&in_meta))
        } else if has_superblock {
            let table = if geometry.features.incompat.contains(Incompat::META_BG) {
                geometry.first_meta_block_group
            } else {
                geometry.descriptor_blocks()
            };
            u64::from(table) + u64::from(geometry.reserved_gdt_blocks)
        } else {
            0
        };
        u64::from(has_superblock) + descriptors
    }

    fn write_block_bitmap(&self, group: GroupNr, desc: &GroupDesc, bits: Vec<u8>) -> Result<()> {
        let geometry = &self.volume.geometry;
        let clusters = geometry
            .group_blocks(group)
            .div_ceil(geometry.cluster_blocks);
        let sum = bitmap::expected_checksum(&bits, geometry.clusters_per_group, geometry);
        let desc = GroupDesc {
            free_clusters: bitmap::count_clear(&bits, clusters),
            block_bitmap_checksum: sum.unwrap_or(desc.block_bitmap_checksum),
            flags: desc.flags.difference(GroupFlags::BLOCK_UNINIT),
            ..*desc
        };
        let block = desc.block_bitmap.0;
        self.volume.buffers().publish(block, bits, &Unverified)?;
        self.write_descriptor(group, &desc)
    }

    fn inode_bitmap(&self, group: GroupNr) -> Result<(GroupDesc, Vec<u8>)> {
        let geometry = &self.volume.geometry;
        let desc = groups::read_descriptor(self.volume, group)?;
        if desc.flags.contains(GroupFlags::INODE_UNINIT) {
            let mut bits = vec![0; geometry.block_bytes as usize];
            set_rest(&mut bits, geometry.inodes_per_group);
            return Ok((desc, bits));
        }
        let bits = self
            .volume
            .read_block(desc.inode_bitmap, &Unverified)?
            .to_vec();
        Ok((desc, bits))
    }

    fn write_inode_bitmap(&self, group: GroupNr, desc: &GroupDesc, bits: Vec<u8>) -> Result<()> {
        let geometry = &self.volume.geometry;
        let sum = bitmap::expected_checksum(&bits, geometry.inodes_per_group, geometry);
        let desc = GroupDesc {
            free_inodes: bitmap::count_clear(&bits, geometry.inodes_per_group),
            inode_bitmap_checksum: sum.unwrap_or(desc.inode_bitmap_checksum),
            flags: desc.flags.difference(GroupFlags::INODE_UNINIT),
            ..*desc
        };
        let block = desc.inode_bitmap.0;
        self.volume.buffers().publish(block, bits, &Unverified)?;
        self.write_descriptor(group, &desc)
    }

    fn write_descriptor(&self, group: GroupNr, desc: &GroupDesc) -> Result<()> {
        let geometry = &self.volume.geometry;
        let per_block = geometry.descriptors_per_block;
        let block = geometry.descriptor_block(group.0 / per_block);
        let mut bytes = self.volume.read_block(block, &Unverified)?.to_vec();
        let offset = (group.0 % per_block) as usize * usize::from(geometry.descriptor_bytes);
        if let Some(bytes) = bytes.get_mut(offset..) {
            desc.encode_into(bytes, group, geometry);
        }
        self.volume.buffers().publish(block.0, bytes, &Unverified)?;
        Ok(())
    }
}

fn set_rest(bits: &mut [u8], from: u32) {
    let end = u32::try_from(bits.len() * 8).unwrap_or(u32::MAX);
    for bit in from..end {
        bitmap::assign(bits, bit, true);
    }
}
