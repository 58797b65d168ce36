//! Block groups: validates every descriptor, and that no two fixed structures share a block.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, GroupUseRule};
use crate::groups::{self, layout};
use crate::ondisk::features::Incompat;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::mmp::{MmpRule, MmpRules};
use crate::ondisk::{BlockNr, Geometry, GroupDesc, GroupNr};

/// The blocks of a fixed structure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
struct Fixed {
    first: BlockNr,
    count: u64,
    group: GroupNr,
    is_inode_table: bool,
}

/// Reads the descriptors of all groups, and claims the blocks of their metadata.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    let mut fixed = Vec::new();
    for number in 0..geometry.groups_count {
        let group = GroupNr(number);
        let locus = Locus::group(u64::from(number));
        let read = groups::read_descriptor(fs, group);
        let mut desc = checker.tolerate("group descriptor", locus, read)?;
        if desc.is_none() {
            desc = groups::read_unsummed_descriptor(fs, group)
                .ok()
                .map(trusted);
        }
        if let Some(desc) = &desc {
            if desc.unused_inodes > geometry.inodes_per_group {
                checker.found(locus, GroupUseRule::UnusedInodes)?;
            }
            let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
            let is_initialized = !desc.stored_flags.intersects(uninit) && desc.unused_inodes == 0;
            if !geometry.features.has_group_csum() && !is_initialized {
                checker.found(locus, GroupUseRule::UninitFlag)?;
            }
            fixed.extend(own_metadata(geometry, group, desc));
        }
        fixed.extend(copies(geometry, group));
        checker.groups.push(desc);
        if number.is_multiple_of(4096) {
            checker.report.progress(
                "groups",
                u64::from(number),
                u64::from(geometry.groups_count),
            )?;
        }
    }
    fixed.extend(mmp_block(checker));
    fixed.sort_unstable();
    claim_fixed(checker, &fixed)?;
    check_mmp(checker)?;
    checker
        .report
        .count("groups", u64::from(geometry.groups_count));
    Ok(())
}

/// Returns the multiple mount protection block.
fn mmp_block(checker: &Checker<'_>) -> Option<Fixed> {
    let fs = checker.fs;
    let block = BlockNr(fs.superblock.mmp_block);
    let group = fs.geometry.group_of_block(block)?;
    let has_mmp = fs.geometry.features.incompat.contains(Incompat::MMP);
    let is_set = has_mmp && fs.geometry.contains(block, 1);
    is_set.then_some(Fixed {
        first: block,
        count: 1,
        group,
        is_inode_table: false,
    })
}

/// Checks the MMP block: a corrupt one prevents read-write mounts.
fn check_mmp(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    if !geometry.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let block = BlockNr(fs.superblock.mmp_block);
    let locus = Locus::block(block.0);
    if !geometry.contains(block, 1) {
        return checker.found(locus, MmpRule::Place);
    }
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = MmpRules {
        checksum_seed: has_checksum.then_some(geometry.checksum_seed),
    };
    let read = fs.read_block(block, &rules);
    checker.tolerate("multiple mount protection block", locus, read)?;
    Ok(())
}

fn claim_fixed(checker: &mut Checker<'_>, fixed: &[Fixed]) -> Flow {
    let fs = checker.fs;
    let mut claimed_to = 0;
    for structure in fixed {
        if structure.first.0 < claimed_to {
            let locus = Locus::group(u64::from(structure.group.0));
            checker.found(locus.at_block(structure.first.0), GroupUseRule::Overlap)?;
            // It is unknown which group the inodes belong to: they are not read.
            if structure.is_inode_table {
                checker.groups[structure.group.0 as usize] = None;
            }
        }
        let end = structure.first.0.saturating_add(structure.count);
        let blocks = structure.count;
        checker
            .claims
            .claim_fixed(&fs.geometry, structure.first, blocks);
        claimed_to = claimed_to.max(end);
    }
    Ok(())
}

/// Returns the usable fields of a descriptor whose checksum does not match: valid locations.
fn trusted(desc: GroupDesc) -> GroupDesc {
    GroupDesc {
        flags: GroupFlags::empty(),
        unused_inodes: 0,
        ..desc
    }
}

/// Returns the bitmaps and the inode table of a group.
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

/// Returns the copies of superblock and descriptors in a group.
fn copies(geometry: &Geometry, group: GroupNr) -> Option<Fixed> {
    let head = layout::head(geometry, group);
    (!head.is_empty()).then_some(Fixed {
        first: BlockNr(head.start),
        count: head.end - head.start,
        group,
        is_inode_table: false,
    })
}
