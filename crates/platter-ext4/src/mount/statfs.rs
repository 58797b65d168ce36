//! Space and inodes as `statfs(2)` reports them.

use platter_vfs::{Result, StatFs};

use crate::Volume;
use crate::groups;
use crate::inode;
use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::ops::Tree;

pub(super) fn stat_fs(tree: &Tree) -> Result<StatFs> {
    let volume = &tree.volume;
    let geometry = &volume.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    let (blocks_free, inodes_free) = free(tree)?;
    let kept = groups::split_reserve_clusters(volume).saturating_mul(ratio);
    let reserved = volume.superblock.reserved_blocks.saturating_add(kept);
    let overhead = overhead_blocks(volume)?;
    Ok(StatFs {
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks_count.saturating_sub(overhead),
        blocks_free,
        blocks_available: blocks_free.saturating_sub(reserved),
        inodes: u64::from(geometry.inodes_count),
        inodes_free,
        name_len_max: 255,
        id: identity(volume),
        magic: u32::from(SUPERBLOCK_MAGIC),
    })
}

/// Free blocks and inodes. Where nothing is written, what a crash left half done counts as done.
fn free(tree: &Tree) -> Result<(u64, u64)> {
    if let Ok(space) = tree.space() {
        let counts = space.stat();
        return Ok((counts.free_blocks, counts.free_inodes));
    }
    let free = groups::free_space(&tree.volume)?;
    let clusters = free.clusters.saturating_add(tree.orphans.freed_clusters);
    let ratio = u64::from(tree.volume.geometry.cluster_blocks);
    let inodes = free.inodes + tree.orphans.freed_inodes();
    Ok((clusters.saturating_mul(ratio), inodes))
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
