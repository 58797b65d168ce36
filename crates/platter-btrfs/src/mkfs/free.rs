//! What is left of a device.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::Result;

use crate::block_group::load_groups;
use crate::mount::{self, MountOptions};
use crate::ondisk::TreeId;
use crate::ondisk::chunk_item::{BlockGroupFlags, Profile};
use crate::ondisk::features::CompatRo;

/// Memory for reading the trees.
const BUDGET_BYTES: u64 = 8 << 20;

/// Bytes of the device of a filesystem that is not mounted that hold nothing: copies of what is used count, and space
/// that chunks have beyond it does not, but for those of the chunk tree.
///
/// # Errors
/// Those of reading its trees.
pub fn free_bytes(device: &Arc<dyn BlockDevice>) -> Result<u64> {
    let budget = Arc::new(MemoryBudget::new(BUDGET_BYTES));
    let devices = [Arc::clone(device)];
    let context = mount::open(&devices, &MountOptions::default(), &budget)?;
    let superblock = &context.superblock;
    let compat_ro = superblock.features.compat_ro;
    let tree = if compat_ro.contains(CompatRo::BLOCK_GROUP_TREE) {
        TreeId::BLOCK_GROUP
    } else {
        TreeId::EXTENT
    };
    let tree = context.required_tree(tree)?;
    let map = context.blocks.store().map();
    let groups = load_groups(&context.blocks, tree, &map)?;
    let used = groups.iter().map(|group| {
        let copies = Profile::of(group.flags()).map_or(1, Profile::copies);
        let used = if group.holds(BlockGroupFlags::SYSTEM) {
            group.len_bytes()
        } else {
            group.space().used
        };
        used.saturating_mul(copies.into())
    });
    let used = used.fold(0, u64::saturating_add);
    Ok(superblock.total_bytes.saturating_sub(used))
}
