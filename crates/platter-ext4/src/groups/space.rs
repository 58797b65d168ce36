//! Space of the whole filesystem: free space and overhead.

use platter_ondisk::verify::Unverified;
use platter_vfs::{Error, Result};

use super::layout::head_blocks;
use super::{descriptor_place, truncated};
use crate::FsContext;
use crate::ondisk::features::Incompat;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr};

/// Descriptor table blocks read ahead when all are needed.
const TABLE_READ_AHEAD_BLOCKS: u32 = 256;

/// Maximum space reserved for splitting extents, in clusters: 2 % of the filesystem, up to this.
const SPLIT_RESERVE_CLUSTERS_MAX: u64 = 4096;

/// With more groups, 128 TiB at the usual size, the superblock's counts are used.
pub const GROUPS_SUMMED_MAX: u32 = 1 << 20;

/// Free clusters and inodes according to the descriptors of all groups.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FreeSpace {
    /// Free clusters.
    pub clusters: u64,
    /// Free inodes.
    pub inodes: u64,
}

/// Sums up free space. A group with a corrupt descriptor has none.
pub fn free_space(fs: &FsContext) -> Result<FreeSpace> {
    let geometry = &fs.geometry;
    if geometry.groups_count > GROUPS_SUMMED_MAX {
        return Ok(FreeSpace {
            clusters: fs.superblock.free_blocks / u64::from(geometry.cluster_blocks),
            inodes: u64::from(fs.superblock.free_inodes),
        });
    }
    let mut free = FreeSpace::default();
    visit_descriptors(fs, |_, desc| {
        if let Some(desc) = unless_corrupt(desc)? {
            free.clusters += u64::from(desc.free_clusters);
            free.inodes += u64::from(desc.free_inodes);
        }
        Ok(())
    })?;
    Ok(free)
}

/// Passes the descriptors of all groups to `each` in order, reading each block of the table once.
pub fn visit_descriptors(
    fs: &FsContext,
    mut each: impl FnMut(GroupNr, Result<GroupDesc>) -> Result<()>,
) -> Result<()> {
    let geometry = &fs.geometry;
    let mut table = None;
    for group in (0..geometry.groups_count).map(GroupNr) {
        let (block, offset) = descriptor_place(geometry, group);
        if offset == 0 {
            read_table_ahead(fs, group);
            table = Some(fs.read_block(block, &Unverified));
        }
        let desc = match &table {
            Some(Ok(buffer)) => {
                let bytes = buffer.get(offset..).ok_or(truncated(group))?;
                GroupDesc::decode(bytes, group, geometry).map_err(Error::from)
            }
            Some(Err(error)) => Err(error.clone()),
            None => Err(truncated(group).into()),
        };
        each(group, desc)?;
    }
    Ok(())
}

fn unless_corrupt(desc: Result<GroupDesc>) -> Result<Option<GroupDesc>> {
    match desc {
        Ok(desc) => Ok(Some(desc)),
        Err(Error::Corrupt(_)) => Ok(None),
        Err(error) => Err(error),
    }
}

/// Starts readahead of the descriptor table from `group` on, for sequential readers.
pub fn read_table_ahead(fs: &FsContext, group: GroupNr) {
    let geometry = &fs.geometry;
    let in_a_row = !geometry.features.incompat.contains(Incompat::META_BG);
    let at_once = u64::from(geometry.descriptors_per_block) * u64::from(TABLE_READ_AHEAD_BLOCKS);
    if in_a_row && u64::from(group.0).is_multiple_of(at_once) {
        let block = group.0 / geometry.descriptors_per_block;
        let rest = geometry.descriptor_blocks() - block;
        let count = rest.min(TABLE_READ_AHEAD_BLOCKS);
        fs.read_ahead(geometry.descriptor_block(block), u64::from(count));
    }
}

/// Returns the superblock's overhead (clusters of metadata, including the journal) if recomputing
/// it is inexact or slow: with bigalloc, and with very many groups.
#[must_use]
pub fn stored_overhead_clusters(fs: &FsContext) -> Option<u64> {
    let geometry = &fs.geometry;
    let stored = u64::from(fs.superblock.overhead_clusters);
    if geometry.groups_count > GROUPS_SUMMED_MAX {
        return Some(stored);
    }
    let is_sound = stored != 0 && stored <= geometry.blocks_count;
    (geometry.cluster_blocks > 1 && is_sound).then_some(stored)
}

/// Returns the clusters reserved for the metadata of delayed data.
#[must_use]
pub fn split_reserve_clusters(fs: &FsContext) -> u64 {
    let geometry = &fs.geometry;
    if !geometry.features.incompat.contains(Incompat::EXTENTS) {
        return 0;
    }
    let clusters = geometry.blocks_count / u64::from(geometry.cluster_blocks);
    (clusters / 50).min(SPLIT_RESERVE_CLUSTERS_MAX)
}

/// Returns the clusters of metadata, except an internal journal.
pub fn metadata_clusters(fs: &FsContext) -> Result<u64> {
    let geometry = &fs.geometry;
    if geometry.cluster_blocks > 1 {
        return count_metadata_clusters(fs);
    }
    let groups = (0..geometry.groups_count).map(GroupNr);
    let tables = u64::from(geometry.inode_table_blocks) + 2;
    let blocks: u64 = groups
        .map(|group| head_blocks(geometry, group) + tables)
        .sum();
    Ok(geometry.first_data_block.0 + blocks)
}

fn count_metadata_clusters(fs: &FsContext) -> Result<u64> {
    let geometry = &fs.geometry;
    let mut used = Vec::new();
    visit_descriptors(fs, |group, desc| {
        let first = geometry.group_first_block(group);
        used.push((first, head_blocks(geometry, group)));
        if let Some(desc) = unless_corrupt(desc)? {
            used.extend([
                (desc.block_bitmap, 1),
                (desc.inode_bitmap, 1),
                (desc.inode_table, u64::from(geometry.inode_table_blocks)),
            ]);
        }
        Ok(())
    })?;
    let ratio = u64::from(geometry.cluster_blocks);
    let cluster = |block: BlockNr| (block.0 - geometry.first_data_block.0.min(block.0)) / ratio;
    let mut clusters: Vec<_> = used
        .into_iter()
        .filter(|&(_, count)| count > 0)
        .map(|(first, count)| (cluster(first), cluster(BlockNr(first.0 + count - 1)) + 1))
        .collect();
    clusters.sort_unstable();
    let mut counted_to = 0;
    let mut total = 0;
    for (start, end) in clusters {
        total += end.saturating_sub(start.max(counted_to));
        counted_to = counted_to.max(end);
    }
    Ok(total)
}
