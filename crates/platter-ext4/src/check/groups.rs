//! The groups: every descriptor, and that no two fixed structures share a block.

use platter_ondisk::Locus;

use super::{Checker, Flow, GroupUseRule};
use crate::groups;
use crate::ondisk::features::Incompat;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr};

/// Blocks of a fixed structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fixed {
    first: BlockNr,
    count: u64,
    group: GroupNr,
    is_inode_table: bool,
}

impl Checker<'_> {
    pub(super) fn check_groups(&mut self) -> Flow {
        let volume = self.volume;
        let geometry = &volume.geometry;
        let mut fixed = Vec::new();
        for number in 0..geometry.groups_count {
            let group = GroupNr(number);
            let locus = Locus::group(u64::from(number));
            let read = groups::read_descriptor(volume, group);
            let mut desc = self.tolerate("group descriptor", locus, read)?;
            if desc.is_none() {
                desc = groups::read_unsummed_descriptor(volume, group)
                    .ok()
                    .map(trusted);
            }
            if let Some(desc) = &desc {
                if desc.unused_inodes > geometry.inodes_per_group {
                    self.found(locus, GroupUseRule::UnusedInodes)?;
                }
                let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
                let is_initialized =
                    !desc.stored_flags.intersects(uninit) && desc.unused_inodes == 0;
                if !geometry.features.has_group_csum() && !is_initialized {
                    self.found(locus, GroupUseRule::UninitFlag)?;
                }
                fixed.extend(own_metadata(geometry, group, desc));
            }
            fixed.extend(copies(geometry, group));
            self.groups.push(desc);
            if number.is_multiple_of(4096) {
                self.progress(
                    "groups",
                    u64::from(number),
                    u64::from(geometry.groups_count),
                )?;
            }
        }
        fixed.extend(self.mmp_block());
        fixed.sort_unstable();
        self.claim_fixed(&fixed)?;
        self.report
            .count("groups", u64::from(geometry.groups_count));
        Ok(())
    }

    /// The block of multiple mount protection.
    fn mmp_block(&self) -> Option<Fixed> {
        let volume = self.volume;
        let block = BlockNr(volume.superblock.mmp_block);
        let group = volume.geometry.group_of_block(block)?;
        let has_mmp = volume.geometry.features.incompat.contains(Incompat::MMP);
        let is_set = has_mmp && volume.geometry.contains(block, 1);
        is_set.then_some(Fixed {
            first: block,
            count: 1,
            group,
            is_inode_table: false,
        })
    }

    fn claim_fixed(&mut self, fixed: &[Fixed]) -> Flow {
        let volume = self.volume;
        let mut claimed_to = 0;
        for structure in fixed {
            if structure.first.0 < claimed_to {
                let locus = Locus::group(u64::from(structure.group.0));
                self.found(locus.at_block(structure.first.0), GroupUseRule::Overlap)?;
                // Whose inodes they are is not known: they are not read.
                if structure.is_inode_table {
                    self.groups[structure.group.0 as usize] = None;
                }
            }
            let end = structure.first.0.saturating_add(structure.count);
            let blocks = structure.count;
            self.claims
                .claim_fixed(&volume.geometry, structure.first, blocks);
            claimed_to = claimed_to.max(end);
        }
        Ok(())
    }
}

/// What is taken of a descriptor whose checksum is wrong: places that lie where they may.
fn trusted(desc: GroupDesc) -> GroupDesc {
    GroupDesc {
        flags: GroupFlags::empty(),
        unused_inodes: 0,
        ..desc
    }
}

/// The bitmaps and the inode table of a group.
fn own_metadata(geometry: &Geometry, group: GroupNr, desc: &GroupDesc) -> [Fixed; 3] {
    let one = |first| Fixed {
        first,
        count: 1,
        group,
        is_inode_table: false,
    };
    let table = Fixed {
        first: desc.inode_table,
        count: u64::from(geometry.inode_table_blocks),
        group,
        is_inode_table: true,
    };
    [one(desc.block_bitmap), one(desc.inode_bitmap), table]
}

/// The copies of superblock and descriptors that lie in a group.
fn copies(geometry: &Geometry, group: GroupNr) -> Option<Fixed> {
    let first = geometry.group_first_block(group);
    let has_superblock = geometry.has_superblock(group);
    let superblock_blocks = if group.0 == 0 {
        // With clusters of 1 KiB blocks, the boot block belongs to the first group.
        geometry.superblock_block.0.saturating_sub(first.0) + 1
    } else {
        u64::from(has_superblock)
    };
    let descriptors = descriptor_copies(geometry, group, has_superblock);
    let count = superblock_blocks + descriptors;
    (count > 0).then_some(Fixed {
        first,
        count,
        group,
        is_inode_table: false,
    })
}

fn descriptor_copies(geometry: &Geometry, group: GroupNr, has_superblock: bool) -> u64 {
    let meta_bg = geometry.features.incompat.contains(Incompat::META_BG);
    let meta_group = group.0 / geometry.descriptors_per_block;
    if !meta_bg || meta_group < geometry.first_meta_block_group {
        let table = if meta_bg {
            u64::from(geometry.first_meta_block_group)
        } else {
            u64::from(geometry.descriptor_blocks())
        };
        let reserved = u64::from(geometry.reserved_gdt_blocks);
        return if has_superblock { table + reserved } else { 0 };
    }
    // The first, the second and the last group of a meta group hold its descriptor block.
    let index = group.0 % geometry.descriptors_per_block;
    let is_holder = index < 2 || index == geometry.descriptors_per_block - 1;
    u64::from(is_holder)
}
