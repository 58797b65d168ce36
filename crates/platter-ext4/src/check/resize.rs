//! The resize inode: one doubly indirect block whose entries are the reserved descriptor blocks,
//! each of which lists its copies in the groups that have a backup. Spec: `ext4/special_inodes`,
//! `ext4/blockgroup`.

use std::collections::HashSet;

use platter_ondisk::endian::Le32;
use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;
use zerocopy::FromBytes;

use super::{Checker, Flow, InodeUseRule, contents, locus_of};
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::SUPERBLOCK_OFFSET_BYTES;
use crate::ondisk::{BlockNr, GroupNr, Inode};

/// Index of the doubly indirect block in `i_block`.
const DOUBLY_INDIRECT: usize = 13;

/// Checks the resize inode, and claims its blocks.
pub(super) fn check(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    let locus = locus_of(inode.number);
    let numbers = <[Le32]>::ref_from_bytes(&inode.block).unwrap_or_default();
    let others = numbers
        .iter()
        .enumerate()
        .filter(|&(at, _)| at != DOUBLY_INDIRECT);
    if inode.kind != FileKind::Regular || inode.links == 0 {
        checker.found(locus, InodeUseRule::ResizeInode)?;
    }
    let has_others = others.into_iter().any(|(_, number)| number.get() != 0);
    let root = numbers
        .get(DOUBLY_INDIRECT)
        .map_or(0, |number| number.get());
    let reserved = u64::from(checker.fs.geometry.reserved_gdt_blocks);
    if root == 0 && reserved == 0 && !has_others {
        return check_blocks(checker, inode, 0);
    }
    let root = BlockNr(u64::from(root));
    let geometry = &checker.fs.geometry;
    if has_others || !geometry.contains(root, 1) {
        return checker.found(locus, InodeUseRule::ResizeMap);
    }
    if checker.claims.claim(geometry, root, 1).count > 0 {
        checker.found(locus.at_block(root.0), InodeUseRule::SharedBlock)?;
    }
    if !is_map(checker, root) {
        return checker.found(locus, InodeUseRule::ResizeMap);
    }
    if has_strays(checker, root) {
        checker.found(locus, InodeUseRule::ResizeStray)?;
    }
    check_size(checker, inode)?;
    check_blocks(
        checker,
        inode,
        1 + reserved * (1 + backup_groups(checker).len() as u64),
    )
}

/// Returns the slots of the doubly indirect block for the reserved blocks, and those blocks.
fn slots(checker: &Checker<'_>) -> impl Iterator<Item = (usize, u64)> + use<> {
    let geometry = &checker.fs.geometry;
    let table = u64::from(geometry.descriptor_blocks()) + 1;
    let numbers = (geometry.block_bytes / 4) as usize;
    // Also if a backup superblock is in use.
    let superblock = SUPERBLOCK_OFFSET_BYTES >> geometry.block_bits;
    (0..u64::from(geometry.reserved_gdt_blocks)).map(move |index| {
        let slot = usize::try_from(table - 1 + index).unwrap_or(0) % numbers;
        (slot, superblock + table + index)
    })
}

/// Whether the mapping has blocks that are not reserved.
fn has_strays(checker: &Checker<'_>, root: BlockNr) -> bool {
    let geometry = &checker.fs.geometry;
    if geometry.features.incompat.contains(Incompat::META_BG) {
        return false;
    }
    let used: HashSet<usize> = slots(checker).map(|(slot, _)| slot).collect();
    let numbers = read_numbers(checker, root).unwrap_or_default();
    let mut numbers = numbers.into_iter().enumerate();
    numbers.any(|(slot, number)| number != 0 && !used.contains(&slot))
}

/// Checks that `i_size` covers the mapped blocks and is possible for a mapping.
fn check_size(checker: &mut Checker<'_>, inode: &Inode) -> Flow {
    let geometry = &checker.fs.geometry;
    let locus = locus_of(inode.number);
    let block_bytes = u64::from(geometry.block_bytes);
    let numbers = block_bytes / 4;
    let slot = slots(checker).map(|(slot, _)| slot as u64).max();
    let backups = backup_groups(checker).len() as u64;
    let last = slot.filter(|_| backups > 0);
    let blocks = last.map_or(0, |slot| 12 + numbers * (1 + slot) + backups);
    if inode.size_bytes > contents::size_bytes_max(checker, inode) {
        checker.found(locus, InodeUseRule::SizeTooLarge)?;
    } else if inode.size_bytes < blocks.saturating_sub(1) * block_bytes {
        checker.found(locus, InodeUseRule::SizeTooSmall)?;
    }
    Ok(())
}

/// Returns the groups with a copy of the descriptor table.
fn backup_groups(checker: &Checker<'_>) -> Vec<GroupNr> {
    let geometry = &checker.fs.geometry;
    let groups = (1..geometry.groups_count).map(GroupNr);
    groups
        .filter(|&group| geometry.has_superblock(group))
        .collect()
}

/// Whether the mapping is the one that the geometry implies.
fn is_map(checker: &Checker<'_>, root: BlockNr) -> bool {
    let geometry = &checker.fs.geometry;
    if geometry.features.incompat.contains(Incompat::META_BG) {
        return true;
    }
    let Some(root) = read_numbers(checker, root) else {
        return false;
    };
    let backups = backup_groups(checker);
    for (slot, block) in slots(checker) {
        if root.get(slot) != Some(&block) {
            return false;
        }
        let Some(copies) = read_numbers(checker, BlockNr(block)) else {
            return false;
        };
        // At the same distance from the first as between groups; with clusters and blocks of 1
        // KiB that is one block after the copy, as mke2fs makes it.
        let apart = u64::from(geometry.blocks_per_group);
        let places = backups
            .iter()
            .map(|group| block.saturating_add(apart.saturating_mul(u64::from(group.0))));
        let mut rest = copies.iter().copied();
        if !places.into_iter().all(|place| rest.next() == Some(place))
            || rest.any(|number| number != 0)
        {
            return false;
        }
    }
    true
}

fn read_numbers(checker: &Checker<'_>, block: BlockNr) -> Option<Vec<u64>> {
    let buffer = checker.fs.read_block(block, &Unverified).ok()?;
    let numbers = <[Le32]>::ref_from_bytes(&buffer).ok()?;
    Some(
        numbers
            .iter()
            .map(|number| u64::from(number.get()))
            .collect(),
    )
}

fn check_blocks(checker: &mut Checker<'_>, inode: &Inode, blocks: u64) -> Flow {
    let geometry = &checker.fs.geometry;
    let sectors = blocks.saturating_mul(u64::from(geometry.block_bytes >> 9));
    // With larger clusters, tools count differently.
    if geometry.cluster_blocks == 1 && inode.sectors != sectors {
        checker.found(locus_of(inode.number), InodeUseRule::BlockCount)?;
    }
    Ok(())
}
