//! Changes within the old filesystem: one transaction.

use std::ops::Range;

use platter_ondisk::verify::Unverified;
use platter_vfs::{Result, Timestamp};

use super::fresh::Fresh;
use super::plan::Plan;
use super::{resize_inode, unsupported};
use crate::groups::layout::{clusters, clusters_counted, fresh_bitmap, head, own};
use crate::groups::{edit_descriptor, read_descriptor, read_table_ahead};
use crate::inode::STORE_CREDITS;
use crate::ondisk::bitmap::{self, BitmapVerifier};
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, GroupNr};
use crate::txn::Handle;
use crate::{FsContext, superblock};

/// Credits besides descriptors and the resize inode: the superblock, two bitmaps with their
/// descriptors, the inode.
const CREDITS: u32 = 1 + 2 * 2 + STORE_CREDITS;

/// Performs the planned growth.
///
/// # Errors
/// Nothing was changed. `Unsupported` if the journal or the memory budget is too small for the transaction.
pub(super) fn change(fs: &FsContext, plan: &Plan, fresh: &Fresh, now: Timestamp) -> Result<()> {
    let tables = table_blocks(plan);
    let kept = u32::from(plan.before.reserved_gdt_blocks);
    let credits = CREDITS + 1 + kept + tables.end - tables.start;
    if fs.log().is_some_and(|log| credits > log.credits_max()) {
        let reason = "what has to change at once does not fit into the journal or into memory";
        return Err(unsupported("so large a size", Some(reason)));
    }
    let mut handle = fs.begin(credits)?;
    let changed = change_all(fs, &mut handle, plan, fresh, now);
    changed.map_err(|error| handle.abort(error))
}

fn change_all(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    plan: &Plan,
    fresh: &Fresh,
    now: Timestamp,
) -> Result<()> {
    let mut freed = extend_last_group(fs, handle, plan)?;
    for index in table_blocks(plan) {
        let block = plan.after.descriptor_block(index);
        if index < plan.before.descriptor_blocks() {
            handle.edit(block, &Unverified, |bytes| {
                fresh.encode_descriptors(plan, index, bytes);
                Ok(())
            })?;
        } else {
            let mut bytes = vec![0; plan.after.block_bytes as usize];
            fresh.encode_descriptors(plan, index, &mut bytes);
            handle.replace(block, &Unverified, bytes)?;
        }
    }
    if let Some(block) = resize_inode::change(fs, handle, plan)? {
        freed += free_block(fs, handle, plan, block)?;
    }
    superblock::edit(fs, handle, |disk| {
        let geometry = &plan.after;
        plan.apply(disk);
        let clusters = fresh.free_clusters + u64::from(freed);
        let free_blocks = clusters * u64::from(geometry.cluster_blocks);
        let free_blocks = fs.superblock.free_blocks.saturating_add(free_blocks);
        let free_inodes = u64::from(fs.superblock.free_inodes) + fresh.free_inodes;
        disk.set_free_counts(free_blocks, u32::try_from(free_inodes).unwrap_or(u32::MAX));
        let overhead = u64::from(disk.overhead_clusters.get());
        if overhead > 0 {
            let new = plan
                .new_groups()
                .map(|group| u64::from(clusters_counted(geometry, group)));
            let taken = new.sum::<u64>().saturating_sub(fresh.free_clusters);
            disk.overhead_clusters
                .set(u32::try_from(overhead + taken).unwrap_or(0));
        }
        disk.set_write_time(now);
    })
}

/// Returns the blocks of the descriptor table within the old filesystem with descriptors of new
/// groups.
fn table_blocks(plan: &Plan) -> Range<u32> {
    let first = plan.before.groups_count / plan.after.descriptors_per_block;
    let is_inside = |&index: &u32| plan.after.descriptor_block(index).0 < plan.before.blocks_count;
    let count = (first..plan.after.descriptor_blocks()).take_while(is_inside);
    first..first + u32::try_from(count.count()).unwrap_or(0)
}

/// Extends the last group to its new end, and returns the number of added clusters.
fn extend_last_group(fs: &FsContext, handle: &mut Handle<'_>, plan: &Plan) -> Result<u32> {
    let last = GroupNr(plan.before.groups_count - 1);
    let from = clusters_counted(&plan.before, last);
    let to = clusters_counted(&plan.after, last);
    if to > from {
        clear_bits(fs, handle, plan, last, from..to)?;
    }
    Ok(to - from)
}

/// Frees a block, with its whole cluster.
fn free_block(fs: &FsContext, handle: &mut Handle<'_>, plan: &Plan, block: BlockNr) -> Result<u32> {
    let Some(group) = plan.before.group_of_block(block) else {
        return Ok(0);
    };
    let blocks = block.0..block.0 + 1;
    let Some(bits) = clusters(&plan.before, group, Some(blocks)).next() else {
        return Ok(0);
    };
    clear_bits(fs, handle, plan, group, bits)?;
    Ok(1)
}

/// Marks clusters of a group as free that were in use, or beyond its end.
fn clear_bits(
    fs: &FsContext,
    handle: &mut Handle<'_>,
    plan: &Plan,
    group: GroupNr,
    bits: Range<u32>,
) -> Result<()> {
    let geometry = &plan.before;
    let desc = read_descriptor(fs, group)?;
    let mut bytes = if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
        fresh_bitmap(geometry, group, fixed_blocks(fs)?)
    } else {
        let verifier = BitmapVerifier::of_blocks(group, &desc, geometry);
        fs.read_block(desc.block_bitmap, &verifier)?.to_vec()
    };
    let count = bits.end - bits.start;
    bitmap::assign_range(&mut bytes, bits, false);
    let sum = bitmap::expected_checksum(&bytes, geometry.clusters_per_group, geometry);
    handle.replace(desc.block_bitmap, &Unverified, bytes)?;
    edit_descriptor(handle, geometry, group, |desc| {
        desc.flags -= GroupFlags::BLOCK_UNINIT;
        desc.free_clusters += count;
        desc.block_bitmap_checksum = sum.unwrap_or(desc.block_bitmap_checksum);
        Ok(())
    })
}

/// Returns the metadata blocks of all groups.
fn fixed_blocks(fs: &FsContext) -> Result<Vec<Range<u64>>> {
    let geometry = &fs.geometry;
    let mut fixed = Vec::new();
    for group in (0..geometry.groups_count).map(GroupNr) {
        read_table_ahead(fs, group);
        fixed.push(head(geometry, group));
        fixed.extend(own(geometry, &read_descriptor(fs, group)?));
    }
    Ok(fixed)
}
