//! A filesystem without files: superblock, descriptors, bitmaps and inode tables, written directly
//! to the device.

use platter_block::BlockDevice;
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::layout::{Layout, blocks_of};
use super::shape::Shape;
use crate::groups::FreeSpace;
use crate::ondisk::bitmap;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET_BYTES;
use crate::ondisk::{Geometry, GroupDesc, GroupNr};

/// Bytes of one write of zeros.
static ZEROS: [u8; 1 << 16] = [0; 1 << 16];

/// Old contents of the inode tables, and their treatment.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum OldTables {
    /// Zeros, as everywhere on the device.
    Zeros,
    /// Undefined, and ignored thanks to descriptor checksums: the kernel zeroes them later.
    MayStay,
    /// Undefined, and overwritten now.
    Overwritten,
}

/// Writes the skeleton; the inodes below `inodes_used` of the first group count as in use, and
/// `directories` of them as directories.
pub(super) fn write(
    device: &dyn BlockDevice,
    shape: &mut Shape,
    mut layout: Layout,
    reserved_inodes: u32,
    directories: u32,
    old: OldTables,
) -> Result<()> {
    let geometry = &shape.geometry;
    // Signatures of an earlier filesystem are overwritten.
    device.write_at(0, &ZEROS[..2048])?;
    let free = write_groups(
        device,
        geometry,
        &mut layout,
        Used {
            reserved_inodes,
            directories,
        },
        old,
    )?;
    write_descriptors(device, geometry, &layout.descs)?;
    let free_blocks = free.clusters * u64::from(geometry.cluster_blocks);
    let free_inodes = u32::try_from(free.inodes).unwrap_or(u32::MAX);
    shape.disk.set_free_counts(free_blocks, free_inodes);
    shape.disk.seal();
    device.write_at(SUPERBLOCK_OFFSET_BYTES, shape.disk.as_bytes())?;
    Ok(())
}

/// What is in use in the first group from the start.
#[derive(Debug, Clone, Copy, Default)]
pub(crate) struct Used {
    pub(crate) reserved_inodes: u32,
    pub(crate) directories: u32,
}

/// Completes the descriptors of placed groups, writes bitmaps and inode tables, and returns the
/// free counts.
pub(crate) fn write_groups(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    layout: &mut Layout,
    used: Used,
    old: OldTables,
) -> Result<FreeSpace> {
    let mut free = FreeSpace::default();
    let groups: Vec<GroupNr> = layout.groups().map(|(group, _)| group).collect();
    for (index, group) in groups.into_iter().enumerate() {
        let is_plain = layout.is_plain(geometry, group);
        let bits = block_bitmap(geometry, layout, group);
        let Some(desc) = layout.descs.get_mut(index) else {
            break;
        };
        let inodes = if group.0 == 0 {
            used.reserved_inodes
        } else {
            0
        };
        fill_in(geometry, group, desc, &bits, inodes, is_plain, old);
        if group.0 == 0 {
            desc.used_dirs = used.directories;
        }
        write_group(device, geometry, desc, &bits, inodes, old)?;
        free.clusters += u64::from(desc.free_clusters);
        free.inodes += u64::from(desc.free_inodes);
    }
    Ok(free)
}

/// Writes zeros.
pub(super) fn zero(device: &dyn BlockDevice, from: u64, count: u64) -> Result<()> {
    let (mut at, end) = (from, from + count);
    while at < end {
        let len = (end - at).min(ZEROS.len() as u64);
        let len = usize::try_from(len).unwrap_or(ZEROS.len());
        device.write_at(at, &ZEROS[..len])?;
        at += len as u64;
    }
    Ok(())
}

/// Sets counts, flags and checksums of a group without files.
fn fill_in(
    geometry: &Geometry,
    group: GroupNr,
    desc: &mut GroupDesc,
    bits: &[u8],
    used: u32,
    is_plain: bool,
    old: OldTables,
) {
    let clusters = geometry
        .group_blocks(group)
        .div_ceil(geometry.cluster_blocks);
    desc.free_clusters = bitmap::count_clear(bits, clusters);
    desc.free_inodes = geometry.inodes_per_group - used;
    let sum = bitmap::expected_checksum(bits, geometry.clusters_per_group, geometry);
    desc.block_bitmap_checksum = sum.unwrap_or(0);
    let inodes = inode_bitmap(geometry, used);
    let sum = bitmap::expected_checksum(&inodes, geometry.inodes_per_group, geometry);
    desc.inode_bitmap_checksum = sum.unwrap_or(0);
    if !geometry.features.has_group_csum() {
        return;
    }
    desc.unused_inodes = desc.free_inodes;
    if used == 0 {
        desc.flags |= GroupFlags::INODE_UNINIT;
        desc.inode_bitmap_checksum = 0;
    }
    let is_last = group.0 + 1 == geometry.groups_count;
    if is_plain && used == 0 && !is_last {
        desc.flags |= GroupFlags::BLOCK_UNINIT;
        desc.block_bitmap_checksum = 0;
    }
    if old != OldTables::MayStay || used > 0 {
        desc.flags |= GroupFlags::INODE_ZEROED;
    }
}

fn write_group(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    desc: &GroupDesc,
    bits: &[u8],
    used: u32,
    old: OldTables,
) -> Result<()> {
    if !desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
        device.write_at(geometry.offset_bytes(desc.block_bitmap), bits)?;
    }
    if !desc.flags.contains(GroupFlags::INODE_UNINIT) {
        let bits = inode_bitmap(geometry, used);
        device.write_at(geometry.offset_bytes(desc.inode_bitmap), &bits)?;
    }
    let may_stay = geometry.features.has_group_csum() && used == 0;
    let is_overwritten = match old {
        OldTables::Zeros => false,
        OldTables::MayStay => !may_stay,
        OldTables::Overwritten => true,
    };
    if is_overwritten {
        let len = u64::from(geometry.inode_table_blocks) * u64::from(geometry.block_bytes);
        zero(device, geometry.offset_bytes(desc.inode_table), len)?;
    }
    Ok(())
}

/// Returns a bitmap with metadata, and the bits after the end of the group, in use.
fn block_bitmap(geometry: &Geometry, layout: &Layout, group: GroupNr) -> Vec<u8> {
    let blocks = blocks_of(geometry, group);
    let ratio = u64::from(geometry.cluster_blocks);
    let mut bits = vec![0; geometry.block_bytes as usize];
    let cluster = |block: u64| u32::try_from((block - blocks.start) / ratio).unwrap_or(u32::MAX);
    for range in layout.taken_in(blocks.clone()) {
        for bit in cluster(range.start)..=cluster(range.end - 1) {
            bitmap::assign(&mut bits, bit, true);
        }
    }
    for bit in cluster(blocks.end - 1) + 1..geometry.block_bytes * 8 {
        bitmap::assign(&mut bits, bit, true);
    }
    bits
}

fn inode_bitmap(geometry: &Geometry, used: u32) -> Vec<u8> {
    let mut bits = vec![0; geometry.block_bytes as usize];
    for bit in (0..used).chain(geometry.inodes_per_group..geometry.block_bytes * 8) {
        bitmap::assign(&mut bits, bit, true);
    }
    bits
}

fn write_descriptors(
    device: &dyn BlockDevice,
    geometry: &Geometry,
    descs: &[GroupDesc],
) -> Result<()> {
    let per_block = geometry.descriptors_per_block as usize;
    for (index, chunk) in (0..).zip(descs.chunks(per_block)) {
        let mut bytes = vec![0; geometry.block_bytes as usize];
        let len = usize::from(geometry.descriptor_bytes);
        let first = index * geometry.descriptors_per_block;
        for ((group, desc), bytes) in (first..).zip(chunk).zip(bytes.chunks_mut(len)) {
            desc.encode(bytes, GroupNr(group), geometry);
        }
        let block = geometry.descriptor_block(index);
        device.write_at(geometry.offset_bytes(block), &bytes)?;
    }
    Ok(())
}
