//! Space and inodes as `statfs(2)` reports them.

use platter_vfs::StatFs;

use crate::context::FsContext;
use crate::ondisk::superblock::SUPERBLOCK_MAGIC;
use crate::xfs_mount::StripedCounter;

/// In filesystems of more groups, headers are not read to count what few blocks their B-trees take.
const GROUPS_COUNTED_MAX: u32 = 1024;
const NAME_BYTES_MAX: u32 = 255;

pub(super) fn stat_fs(context: &FsContext) -> StatFs {
    let (geometry, superblock) = (context.geometry(), &context.superblock);
    let log_blocks = match superblock.log_start {
        Some(_) => superblock.log_blocks.into(),
        None => 0,
    };
    let mount = context.mount();
    let count = |counter: &StripedCounter| u64::try_from(counter.sum()).unwrap_or_default();
    let inode_count = count(mount.inodes());
    // The floor of a filesystem that is written has the B-trees of free space, too.
    let unavailable = match context.log() {
        Some(_) => u64::try_from(context.space().floor()).unwrap_or_default(),
        None => mount
            .set_aside()
            .saturating_add(free_space_btree_blocks(context)),
    };
    let free = count(mount.free_blocks()).saturating_sub(unavailable);
    let per_block = u64::from(geometry.inodes_per_block());
    let possible = inode_count.saturating_add(free.saturating_mul(per_block));
    let inodes = match context.inodes_max() {
        Some(most) => possible.min(most).max(inode_count),
        None => possible,
    };
    let used = inode_count.saturating_sub(count(mount.free_inodes()));
    StatFs {
        block_bytes: geometry.block_bytes(),
        blocks: geometry.data_blocks().saturating_sub(log_blocks),
        blocks_free: free,
        blocks_available: free,
        inodes,
        inodes_free: inodes.saturating_sub(used),
        name_len_max: NAME_BYTES_MAX,
        id: identity(context),
        magic: SUPERBLOCK_MAGIC,
    }
}

/// Blocks of the B-trees of free space, which count as free and cannot be used. Headers that are corrupt
/// are left out.
fn free_space_btree_blocks(context: &FsContext) -> u64 {
    if context.geometry().ag_count() > GROUPS_COUNTED_MAX {
        return 0;
    }
    let blocks = context.geometry().groups().filter_map(|ag| {
        let agf = context.agf(ag).ok()?;
        let rmap = if agf.rmap.is_some() {
            agf.rmap_blocks.saturating_sub(1)
        } else {
            0
        };
        Some(u64::from(agf.btree_blocks.saturating_sub(rmap)))
    });
    blocks.sum()
}

/// The two halves of the UUID folded onto each other.
fn identity(context: &FsContext) -> u64 {
    let (low, high) = context.superblock.uuid.as_u64_pair();
    low.swap_bytes() ^ high.swap_bytes()
}
