//! Space and inodes as `statfs(2)` reports them.

use std::sync::Arc;

use platter_vfs::{InodeId, Result, StatFs};

use crate::FsContext;
use crate::groups;
use crate::inode;
use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::ops::{self, SuperBlock};

pub(super) fn stat_fs(sb: &SuperBlock) -> Result<StatFs> {
    let fs = &sb.fs;
    let geometry = &fs.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    let (blocks_free, inodes_free) = free(sb)?;
    let kept = groups::split_reserve_clusters(fs).saturating_mul(ratio);
    let reserved = fs.superblock.reserved_blocks.saturating_add(kept);
    let overhead = overhead_blocks(fs)?;
    Ok(StatFs {
        block_bytes: geometry.block_bytes,
        blocks: geometry.blocks_count.saturating_sub(overhead),
        blocks_free,
        blocks_available: blocks_free.saturating_sub(reserved),
        inodes: u64::from(geometry.inodes_count),
        inodes_free,
        name_len_max: 255,
        id: identity(fs),
        magic: u32::from(SUPERBLOCK_MAGIC),
    })
}

/// Space and inodes at an inode: of a directory whose project is inherited, no more than the limits of the project
/// leave, where they are enforced.
pub(super) fn stat_fs_at(sb: &Arc<SuperBlock>, inode: InodeId) -> Result<StatFs> {
    let mut stat = stat_fs(sb)?;
    // What the filesystem has is known where the inode cannot be read, too.
    let Ok(Some(project)) = ops::project_of_space(sb, inode) else {
        return Ok(stat);
    };
    let block_bytes = u64::from(stat.block_bytes);
    // As in Linux, a limit of less than a block is none here.
    let space = project.limits.space().map(|limit| limit / block_bytes);
    if let Some(limit) = space.filter(|&limit| limit > 0) {
        let left = limit.saturating_sub(project.space_with_reserved() / block_bytes);
        stat.blocks = stat.blocks.min(limit);
        stat.blocks_free = stat.blocks_free.min(left);
        stat.blocks_available = stat.blocks_available.min(left);
    }
    if let Some(limit) = project.limits.inodes() {
        stat.inodes = stat.inodes.min(limit);
        stat.inodes_free = stat
            .inodes_free
            .min(limit.saturating_sub(project.inodes_with_reserved()));
    }
    Ok(stat)
}

/// Free blocks and inodes. Where nothing is written, what a crash left half done counts as done.
fn free(sb: &SuperBlock) -> Result<(u64, u64)> {
    if let Ok(space) = sb.space() {
        let counts = space.stat();
        return Ok((counts.free_blocks, counts.free_inodes));
    }
    let free = groups::free_space(&sb.fs)?;
    let clusters = free.clusters.saturating_add(sb.orphans.freed_clusters);
    let ratio = u64::from(sb.fs.geometry.cluster_blocks);
    let inodes = free.inodes + sb.orphans.freed_inodes();
    Ok((clusters.saturating_mul(ratio), inodes))
}

/// Blocks of the filesystem's own structures, a journal inside of it included.
fn overhead_blocks(fs: &FsContext) -> Result<u64> {
    let geometry = &fs.geometry;
    let ratio = u64::from(geometry.cluster_blocks);
    if let Some(clusters) = groups::stored_overhead_clusters(fs) {
        return Ok(clusters.saturating_mul(ratio));
    }
    let clusters = groups::metadata_clusters(fs)?;
    let journal = match fs.superblock.journal_inode {
        Some(number) => inode::find(fs, number).ok().flatten(),
        None => None,
    };
    let journal_blocks = journal.map_or(0, |inode| inode.size_bytes >> geometry.block_bits);
    Ok(clusters
        .saturating_add(journal_blocks.div_ceil(ratio))
        .saturating_mul(ratio))
}

/// The two halves of the UUID folded onto each other.
fn identity(fs: &FsContext) -> u64 {
    let (low, high) = fs.superblock.uuid.as_u64_pair();
    low.swap_bytes() ^ high.swap_bytes()
}
