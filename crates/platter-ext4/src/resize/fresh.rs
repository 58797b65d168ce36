//! New groups: their bitmaps, inode tables and descriptors. They are not visible yet, so they are
//! written directly to the device.

use platter_block::BlockDevice;
use platter_vfs::Result;

use super::plan::Plan;
use crate::groups::backups::{backup_groups, descriptor_copies};
use crate::mkfs::layout::Layout;
use crate::mkfs::skeleton::{OldTables, Used, write_groups};
use crate::ondisk::GroupNr;

/// The new groups.
#[derive(Debug)]
pub(super) struct Fresh {
    layout: Layout,
    pub(super) free_clusters: u64,
    pub(super) free_inodes: u64,
}

/// Writes the new groups.
pub(super) fn write(device: &dyn BlockDevice, plan: &Plan) -> Result<Fresh> {
    let geometry = &plan.after;
    let mut layout = Layout::place(geometry, GroupNr(plan.before.groups_count))?;
    let old_end = plan.before.len_bytes();
    let is_zero = device.next_data(old_end)?.is_none();
    let old = if is_zero {
        OldTables::Zeros
    } else {
        OldTables::MayStay
    };
    let free = write_groups(device, geometry, &mut layout, Used::default(), old)?;
    let fresh = Fresh {
        layout,
        free_clusters: free.clusters,
        free_inodes: free.inodes,
    };
    let backups = backup_groups(geometry);
    for index in 0..geometry.descriptor_blocks() {
        let block = geometry.descriptor_block(index);
        if block.0 < plan.before.blocks_count {
            continue;
        }
        let mut bytes = vec![0; geometry.block_bytes as usize];
        fresh.encode_descriptors(plan, index, &mut bytes);
        device.write_at(geometry.offset_bytes(block), &bytes)?;
        for copy in descriptor_copies(geometry, &backups, index) {
            device.write_at(geometry.offset_bytes(copy), &bytes)?;
        }
    }
    Ok(fresh)
}

impl Fresh {
    /// Encodes the descriptors of new groups into block `index` of the table.
    pub(super) fn encode_descriptors(&self, plan: &Plan, index: u32, bytes: &mut [u8]) {
        let geometry = &plan.after;
        let per_block = geometry.descriptors_per_block;
        let first = index.saturating_mul(per_block);
        let len = usize::from(geometry.descriptor_bytes);
        let skipped = first.saturating_sub(plan.before.groups_count) as usize;
        for (group, desc) in self.layout.groups().skip(skipped) {
            let Some(slot) = group.0.checked_sub(first) else {
                continue;
            };
            let start = slot as usize * len;
            let Some(bytes) = bytes
                .get_mut(start..)
                .and_then(|bytes| bytes.get_mut(..len))
            else {
                break;
            };
            desc.encode(bytes, group, geometry);
        }
    }
}
