//! Space and inodes as `statfs(2)` tells them.

use platter_vfs::{Result, StatFs};

use crate::Volume;
use crate::groups;
use crate::inode;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::ops::Tree;

/// Space that is kept back for splitting extents under pressure: 2 %, at most so many clusters.
const SPLIT_RESERVE_CLUSTERS_MAX: u64 = 4096;

pub(super) fn stat_fs(tree: &Tree) -> Result<StatFs> {
    let volume = &tree.volume;
    let geometry = &volume.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    let free = groups::free_space(volume)?;
    let blocks_free = free.clusters.saturating_add(tree.orphans.freed_clusters);
    let blocks_free = blocks_free.saturating_mul(ratio);
    let has_extents = geometry.features.incompat.contains(Incompat::EXTENTS);
    let split_reserve = if has_extents {
        (geometry.blocks_count / ratio / 50).min(SPLIT_RESERVE_CLUSTERS_MAX)
    } else {
        0
    };
    let reserved = volume
        .superblock
        .reserved_blocks
        .saturating_add(split_reserve * ratio);
    let overhead = overhead_blocks(volume)?;
    Ok(StatFs {
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks_count.saturating_sub(overhead),
        blocks_free,
        blocks_available: blocks_free.saturating_sub(reserved),
        inodes: u64::from(geometry.inodes_count),
        inodes_free: free.inodes + tree.orphans.freed_inodes(),
        name_len_max: 255,
        id: identity(volume),
        magic: u32::from(SUPERBLOCK_MAGIC),
    })
}

/// Blocks of the filesystem's own structures, a journal inside of it included.
fn overhead_blocks(volume: &Volume) -> Result<u64> {
    let geometry = &volume.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    if let Some(clusters) = groups::stored_overhead_clusters(volume) {
        return Ok(clusters.saturating_mul(ratio));
    }
    let clusters = groups::metadata_clusters(volume)?;
    let journal = match volume.superblock.journal_inode {
        Some(number) => inode::find(volume, number).ok().flatten(),
        None => None,
    };
    let journal_blocks = journal.map_or(0, |inode| inode.size_bytes >> geometry.block_bits);
    Ok(clusters
        .saturating_add(journal_blocks.div_ceil(ratio))
        .saturating_mul(ratio))
}

/// The two halves of the UUID folded onto each other.
fn identity(volume: &Volume) -> u64 {
    let (low, high) = volume.superblock.uuid.as_u64_pair();
    low.swap_bytes() ^ high.swap_bytes()
}
