//! The new sizes and counts of a filesystem that grows. Spec: `ext4/super`, `ext4/blockgroup`.

use platter_vfs::Result;

use super::unsupported;
use crate::mkfs::is_last_group_too_short;
use crate::ondisk::features::{Compat, Incompat};
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{Geometry, GroupNr, Superblock};

/// The old and the new sizes.
#[derive(Debug)]
pub(super) struct Plan {
    pub(super) before: Geometry,
    pub(super) after: Geometry,
    /// The superblock with the new sizes.
    disk: DiskSuperblock,
}

impl Plan {
    /// Plans growth to `len_bytes`; `None` if that adds no whole group or cluster.
    pub(super) fn choose(
        disk: &DiskSuperblock,
        before: &Geometry,
        len_bytes: u64,
    ) -> Result<Option<Self>> {
        if len_bytes < before.len_bytes() {
            return Err(unsupported("making a filesystem smaller", None));
        }
        let mut blocks = len_bytes / u64::from(before.block_bytes);
        if !before.features.incompat.contains(Incompat::BIT64) {
            blocks = blocks.min(u64::from(u32::MAX));
        }
        blocks -= blocks % u64::from(before.cluster_blocks);
        while blocks > before.blocks_count {
            let (disk, after) = grown(disk, before, blocks)?;
            let last = GroupNr(after.groups_count - 1);
            if last.0 >= before.groups_count && is_last_group_too_short(&after) {
                blocks = after.group_first_block(last).0;
                continue;
            }
            return Ok(Some(Self {
                before: before.clone(),
                after,
                disk,
            }));
        }
        Ok(None)
    }

    /// Sets the new sizes, counts and features in a superblock.
    pub(super) fn apply(&self, disk: &mut DiskSuperblock) {
        let new = &self.disk;
        disk.blocks_count_lo = new.blocks_count_lo;
        disk.blocks_count_hi = new.blocks_count_hi;
        disk.reserved_blocks_count_lo = new.reserved_blocks_count_lo;
        disk.reserved_blocks_count_hi = new.reserved_blocks_count_hi;
        disk.inodes_count = new.inodes_count;
        disk.reserved_gdt_blocks = new.reserved_gdt_blocks;
        disk.first_meta_block_group = new.first_meta_block_group;
        // The journal's own flags may have changed meanwhile.
        let changed = |bit: bool, has: u32, mask: u32| if bit { has | mask } else { has & !mask };
        let is_meta = self.after.features.incompat.contains(Incompat::META_BG);
        let keeps = self.has_resize_inode();
        let incompat = disk.feature_incompat.get();
        disk.feature_incompat
            .set(changed(is_meta, incompat, Incompat::META_BG.bits()));
        let compat = disk.feature_compat.get();
        disk.feature_compat
            .set(changed(keeps, compat, Compat::RESIZE_INODE.bits()));
    }

    /// Returns the new groups.
    pub(super) fn new_groups(&self) -> impl Iterator<Item = GroupNr> + use<> {
        (self.before.groups_count..self.after.groups_count).map(GroupNr)
    }

    /// Whether there is a resize inode afterwards.
    pub(super) fn has_resize_inode(&self) -> bool {
        self.after.features.compat.contains(Compat::RESIZE_INODE)
    }
}

fn grown(
    disk: &DiskSuperblock,
    before: &Geometry,
    blocks: u64,
) -> Result<(DiskSuperblock, Geometry)> {
    let old = Superblock::decode(disk)?;
    let mut disk = *disk;
    let too_many = || {
        unsupported(
            "so large a size",
            Some("its blocks or inodes have no numbers"),
        )
    };
    let data_blocks = blocks - before.first_data_block.0;
    let groups = data_blocks.div_ceil(u64::from(before.blocks_per_group));
    let groups = u32::try_from(groups).map_err(|_| too_many())?;
    let inodes = groups.checked_mul(before.inodes_per_group);
    disk.inodes_count.set(inodes.ok_or_else(too_many)?);
    let reserved = u128::from(old.reserved_blocks) * u128::from(blocks);
    let reserved = reserved / u128::from(before.blocks_count.max(1));
    let reserved = u64::try_from(reserved).unwrap_or(old.reserved_blocks);
    let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
    disk.blocks_count_lo.set(low(blocks));
    disk.reserved_blocks_count_lo.set(low(reserved));
    if before.features.incompat.contains(Incompat::BIT64) {
        disk.blocks_count_hi.set(low(blocks >> 32));
        disk.reserved_blocks_count_hi.set(low(reserved >> 32));
    }
    grow_table(&mut disk, before, groups);
    disk.seal();
    let superblock = Superblock::decode(&disk)?;
    let after = Geometry::decode(&disk, &superblock)?;
    Ok((disk, after))
}

/// Grows the descriptor table into the reserved blocks. If they do not suffice, the descriptors of
/// all further groups are stored in the groups (`meta_bg`), and no blocks are reserved any more.
fn grow_table(disk: &mut DiskSuperblock, before: &Geometry, groups: u32) {
    if before.features.incompat.contains(Incompat::META_BG) {
        return;
    }
    let has = before.descriptor_blocks();
    let more = groups.div_ceil(before.descriptors_per_block) - has;
    let kept = before.reserved_gdt_blocks;
    let is_kept = before.features.compat.contains(Compat::RESIZE_INODE);
    match u16::try_from(more)
        .ok()
        .and_then(|more| kept.checked_sub(more))
    {
        Some(left) if is_kept || more == 0 => disk.reserved_gdt_blocks.set(left),
        _ => {
            let first = has + u32::from(kept);
            disk.first_meta_block_group.set(first);
            disk.reserved_gdt_blocks.set(0);
            let compat = disk.feature_compat.get() & !Compat::RESIZE_INODE.bits();
            disk.feature_compat.set(compat);
            let incompat = disk.feature_incompat.get() | Incompat::META_BG.bits();
            disk.feature_incompat.set(incompat);
        }
    }
}
