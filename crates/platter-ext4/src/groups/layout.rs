//! Locations of fixed metadata: superblock copy and descriptors at the start of a group, bitmaps
//! and inode table according to the descriptor. Spec: `ext4/blockgroup`, `ext4/bigalloc`.

use std::ops::Range;

use crate::ondisk::bitmap;
use crate::ondisk::features::Incompat;
use crate::ondisk::{Geometry, GroupDesc, GroupNr};

/// Returns the blocks at the start of a group with a superblock copy and descriptors, or reserved
/// for more of them. In the first group they include the boot block.
#[must_use]
pub fn head(geometry: &Geometry, group: GroupNr) -> Range<u64> {
    let first = geometry.group_first_block(group).0;
    // With bigalloc and 1 KiB blocks, the first group begins with the boot block.
    let has_boot_block = group.0 == 0 && first == 0 && geometry.block_bytes == 1024;
    let end = first + u64::from(has_boot_block) + head_blocks(geometry, group);
    first..end.min(geometry.blocks_count)
}

/// Returns the number of superblock copy and descriptor blocks in a group.
pub(crate) fn head_blocks(geometry: &Geometry, group: GroupNr) -> u64 {
    let copy = u64::from(geometry.has_superblock(group));
    let meta = geometry.features.incompat.contains(Incompat::META_BG);
    let own_block = group.0 / geometry.descriptors_per_block;
    if meta && own_block >= geometry.first_meta_block_group {
        // The first, second and last group of a meta block group have its descriptor block.
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

/// Returns the block bitmap, the inode bitmap and the inode table of a group.
#[must_use]
pub fn own(geometry: &Geometry, desc: &GroupDesc) -> [Range<u64>; 3] {
    let blocks = |first: u64, count: u32| first..first.saturating_add(u64::from(count));
    [
        blocks(desc.block_bitmap.0, 1),
        blocks(desc.inode_bitmap.0, 1),
        blocks(desc.inode_table.0, geometry.inode_table_blocks),
    ]
}

/// Returns the block bitmap of a group in which only `fixed` blocks are in use.
#[must_use]
pub fn fresh_bitmap(
    geometry: &Geometry,
    group: GroupNr,
    fixed: impl IntoIterator<Item = Range<u64>>,
) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_bytes as usize];
    for clusters in clusters(geometry, group, fixed) {
        bitmap::assign_range(&mut bits, clusters, true);
    }
    pad(&mut bits, clusters_counted(geometry, group));
    bits
}

/// Returns the clusters of a group that contain these blocks, range by range.
pub fn clusters(
    geometry: &Geometry,
    group: GroupNr,
    blocks: impl IntoIterator<Item = Range<u64>>,
) -> impl Iterator<Item = Range<u32>> {
    let first = geometry.group_first_block(group).0;
    let end = first.saturating_add(u64::from(geometry.group_blocks(group)));
    let ratio = u64::from(geometry.cluster_blocks);
    blocks.into_iter().filter_map(move |blocks| {
        let (start, end) = (blocks.start.max(first), blocks.end.min(end));
        let last = end.checked_sub(1).filter(|&last| last >= start)?;
        let index = |block: u64| u32::try_from((block - first) / ratio).ok();
        Some(index(start)?..index(last)? + 1)
    })
}

/// Returns the number of clusters that a group's descriptor counts; the last one may be partial.
#[must_use]
pub fn clusters_counted(geometry: &Geometry, group: GroupNr) -> u32 {
    let blocks = geometry.group_blocks(group);
    blocks.div_ceil(geometry.cluster_blocks)
}

/// Sets the bits after the first `bits` bits of a bitmap.
pub fn pad(bitmap: &mut [u8], bits: u32) {
    let end = u32::try_from(bitmap.len() * 8).unwrap_or(u32::MAX);
    bitmap::assign_range(bitmap, bits..end, true);
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::BlockNr;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn blocks_of_other_groups_use_no_cluster() {
        let mut geometry = sample_geometry();
        geometry.cluster_blocks = 4;
        geometry.first_data_block = BlockNr(0);
        geometry.blocks_per_group = 512;
        geometry.clusters_per_group = 128;
        geometry.groups_count = 16;
        let group = GroupNr(1);
        let blocks = [0..5, 500..513, 515..521, 530..530, 1023..2000];
        let found: Vec<_> = clusters(&geometry, group, blocks).collect();
        assert_eq!(found, [0..1, 0..3, 127..128]);
    }

    #[test]
    fn fresh_bitmap_is_padded() {
        let mut geometry = sample_geometry();
        geometry.blocks_count = 101;
        let bits = fresh_bitmap(&geometry, GroupNr(0), [1..4, 50..51]);
        let taken = (0..100).filter(|&bit| bitmap::is_set(&bits, bit));
        assert_eq!(taken.collect::<Vec<_>>(), [0, 1, 2, 49]);
        assert!((100..8192).all(|bit| bitmap::is_set(&bits, bit)));
    }

    #[test]
    fn boot_block_belongs_to_the_first_group_of_small_clusters() {
        let mut geometry = sample_geometry();
        assert_eq!(head(&geometry, GroupNr(0)), 1..3);
        geometry.first_data_block = BlockNr(0);
        geometry.cluster_blocks = 16;
        assert_eq!(head(&geometry, GroupNr(0)), 0..3);
    }
}
