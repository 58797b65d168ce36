//! Where the filesystem's own blocks lie: copies of the superblock and of the descriptors at the
//! start of a group, bitmaps and inode table where the descriptor says. Spec: `ext4/blockgroup`.

use std::ops::Range;

use crate::ondisk::features::Incompat;
use crate::ondisk::{Geometry, GroupDesc, GroupNr};

/// The blocks at the start of a group that hold a copy of the superblock and of descriptors, or are
/// kept for more of them. The boot block counts among those of the first group.
#[must_use]
pub fn head(geometry: &Geometry, group: GroupNr) -> Range<u64> {
    let first = geometry.group_first_block(group).0;
    let boot_blocks = if group.0 == 0 {
        // With clusters of 1 KiB blocks, the first group begins with the boot block.
        geometry.superblock_block.0.saturating_sub(first)
    } else {
        0
    };
    let end = first.saturating_add(boot_blocks + head_blocks(geometry, group));
    first..end.min(geometry.blocks_count)
}

/// Blocks of the superblock copy and the descriptors in a group.
pub(super) fn head_blocks(geometry: &Geometry, group: GroupNr) -> u64 {
    let copy = u64::from(geometry.has_superblock(group));
    let meta = geometry.features.incompat.contains(Incompat::META_BG);
    let own_block = group.0 / geometry.descriptors_per_block;
    if meta && own_block >= geometry.first_meta_block_group {
        // The first, second and last group of a meta block group hold its one block.
        let place = group.0 % geometry.descriptors_per_block;
        let holds = place <= 1 || place == geometry.descriptors_per_block - 1;
        return copy + u64::from(holds);
    }
    if copy == 0 {
        return 0;
    }
    let table = if meta {
        geometry.first_meta_block_group
    } else {
        geometry.descriptor_blocks()
    };
    copy + u64::from(table) + u64::from(geometry.reserved_gdt_blocks)
}

/// The block bitmap, the inode bitmap and the inode table of a group.
#[must_use]
pub fn own(geometry: &Geometry, desc: &GroupDesc) -> [Range<u64>; 3] {
    let blocks = |first: u64, count: u32| first..first.saturating_add(u64::from(count));
    [
        blocks(desc.block_bitmap.0, 1),
        blocks(desc.inode_bitmap.0, 1),
        blocks(desc.inode_table.0, geometry.inode_table_blocks),
    ]
}
