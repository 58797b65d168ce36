//! Backup superblocks and descriptors. They are read only if the primary ones are corrupt, so a
//! difference is a notice, not an error.

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::check::Checking as _;
use zerocopy::FromBytes;

use super::{BackupRule, Checker, Flow};
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr, Superblock};

/// Maximum number of backups that are compared, from the first on.
const COPIES_MAX: usize = 32;

/// Checks the backups of the superblock and of the descriptors.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    let groups = (1..geometry.groups_count).map(GroupNr);
    let backups = groups.filter(|&group| geometry.has_superblock(group));
    for group in backups.take(COPIES_MAX) {
        let block = geometry.group_first_block(group);
        let locus = Locus::group(u64::from(group.0)).at_block(block.0);
        // The filesystem may end within the few blocks of the last group.
        let Ok(buffer) = fs.read_block(block, &Unverified) else {
            continue;
        };
        if !is_copy(checker, &buffer, group) {
            checker.noticed(locus, BackupRule::Superblock)?;
        }
        let has_table = !geometry.features.incompat.contains(Incompat::META_BG);
        if has_table && !are_descriptors_copied(checker, group) {
            checker.noticed(locus, BackupRule::Descriptors)?;
        }
    }
    Ok(())
}

/// Whether the fields that recovery needs are equal in the backup.
fn is_copy(checker: &Checker<'_>, bytes: &[u8], group: GroupNr) -> bool {
    let Ok((disk, _)) = DiskSuperblock::read_from_prefix(bytes) else {
        return false;
    };
    let Ok(superblock) = Superblock::decode(&disk) else {
        return false;
    };
    let Ok(decoded) = Geometry::decode(&disk, &superblock) else {
        return false;
    };
    let own = &checker.fs.geometry;
    let as_own = Geometry {
        superblock_block: own.superblock_block,
        features: own.features,
        ..decoded
    };
    as_own == *own && is_number_of(disk.block_group.get(), group)
}

/// Whether the metadata locations of all groups are equal in the backup.
fn are_descriptors_copied(checker: &Checker<'_>, group: GroupNr) -> bool {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    let table = geometry.group_first_block(group).0 + 1;
    let size = usize::from(geometry.descriptor_bytes);
    let mut groups = (0u32..).map(GroupNr).zip(&checker.groups);
    (0..geometry.descriptor_blocks()).all(|index| {
        let block = BlockNr(table + u64::from(index));
        let Ok(buffer) = fs.read_block(block, &Unverified) else {
            return false;
        };
        // The end of the block ends the pairs before a group is consumed for it.
        let mut pairs = buffer.chunks_exact(size).zip(groups.by_ref());
        pairs.all(|(bytes, (number, own))| {
            let copy = GroupDesc::decode_unsummed(bytes, number, geometry).ok();
            let places =
                |desc: &GroupDesc| (desc.block_bitmap, desc.inode_bitmap, desc.inode_table);
            own.is_none() || copy.as_ref().map(places) == own.as_ref().map(places)
        })
    })
}

/// Whether a backup has the number of its group. `s_block_group_nr` has 16 bits: Linux truncates
/// larger numbers, and mke2fs stores the maximum.
fn is_number_of(stored: u16, group: GroupNr) -> bool {
    u32::from(stored) == group.0 & 0xffff || u32::from(stored) == group.0.min(0xffff)
}
