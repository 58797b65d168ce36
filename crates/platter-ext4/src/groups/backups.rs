//! Backups of the superblock and the descriptors. Spec: `ext4/blockgroup`.

use platter_block::BlockDevice;
use platter_vfs::Result;
use zerocopy::{FromBytes, IntoBytes};

use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES};
use crate::ondisk::{BlockNr, Geometry, GroupNr};

/// The state of a backup: not known to be clean.
const BACKUP_STATE: u16 = 0;

/// Copies the superblock and the descriptors of an offline filesystem to all backup groups.
pub(crate) fn write_backups(device: &dyn BlockDevice, geometry: &Geometry) -> Result<()> {
    let backups = backup_groups(geometry);
    let mut bytes = vec![0; geometry.block_bytes as usize];
    for index in 0..geometry.descriptor_blocks() {
        let first = geometry.descriptor_block(index);
        device.read_at(geometry.offset_bytes(first), &mut bytes)?;
        for copy in descriptor_copies(geometry, &backups, index) {
            device.write_at(geometry.offset_bytes(copy), &bytes)?;
        }
    }
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    device.read_at(SUPERBLOCK_OFFSET_BYTES, &mut bytes)?;
    for group in backups {
        let Ok(disk) = DiskSuperblock::mut_from_bytes(&mut bytes) else {
            break;
        };
        disk.block_group
            .set(u16::try_from(group.0).unwrap_or(u16::MAX));
        disk.state.set(BACKUP_STATE);
        disk.seal();
        let place = geometry.group_first_block(group);
        device.write_at(geometry.offset_bytes(place), disk.as_bytes())?;
    }
    Ok(())
}

/// Returns the groups, except the first, with a copy of the superblock and the descriptors.
pub(crate) fn backup_groups(geometry: &Geometry) -> Vec<GroupNr> {
    let groups = (1..geometry.groups_count).map(GroupNr);
    groups
        .filter(|&group| geometry.has_superblock(group))
        .collect()
}

/// Returns the copies of a descriptor block. `backups` are the groups with a superblock.
pub(crate) fn descriptor_copies(
    geometry: &Geometry,
    backups: &[GroupNr],
    index: u32,
) -> Vec<BlockNr> {
    let is_meta = geometry.features.incompat.contains(Incompat::META_BG);
    if !is_meta || index < geometry.first_meta_block_group {
        let skipped = 1 + u64::from(index);
        let place = |&group: &GroupNr| BlockNr(geometry.group_first_block(group).0 + skipped);
        return backups.iter().map(place).collect();
    }
    let per_block = geometry.descriptors_per_block;
    let first = index.saturating_mul(per_block);
    let groups = [first.saturating_add(1), first.saturating_add(per_block - 1)];
    let groups = groups
        .into_iter()
        .filter(|&group| group < geometry.groups_count);
    let place = |group: u32| {
        let skipped = u64::from(geometry.has_superblock(GroupNr(group)));
        BlockNr(geometry.group_first_block(GroupNr(group)).0 + skipped)
    };
    groups.map(place).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::features::Compat;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn meta_bg_copies_are_in_second_and_last_group() {
        let mut geometry = sample_geometry();
        geometry.features.incompat |= Incompat::META_BG;
        geometry.features.compat |= Compat::SPARSE_SUPER2;
        geometry.backup_groups = [1, 0];
        geometry.blocks_per_group = 512;
        geometry.first_data_block = BlockNr(1);
        geometry.descriptors_per_block = 16;
        geometry.first_meta_block_group = 1;
        geometry.groups_count = 40;
        let backups = backup_groups(&geometry);
        assert_eq!(backups, [GroupNr(1)]);
        let copies = |index| {
            let copies = descriptor_copies(&geometry, &backups, index);
            copies.iter().map(|block| block.0).collect::<Vec<_>>()
        };
        assert_eq!(copies(0), [514]);
        assert_eq!(copies(1), [17 * 512 + 1, 31 * 512 + 1]);
        assert_eq!(copies(2), [33 * 512 + 1], "there is no last one");
    }
}
