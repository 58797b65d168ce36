//! Bitmaps and counts, compared with the blocks and inodes found in use.

use platter_ondisk::Locus;
use platter_ondisk::verify::Unverified;
use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::inode_states::Use;
use super::{BitmapUseRule, Checker, Flow, GroupUseRule, TotalsRule};
use crate::ondisk::bitmap::BitmapVerifier;
use crate::ondisk::group_desc::GroupFlags;
use crate::ondisk::{BlockNr, GroupDesc, GroupNr, InodeNr};

/// Blocks and inodes found in use in one group.
#[derive(Debug, Default)]
struct Tally {
    /// One bit for each inode in use.
    inodes: Vec<u8>,
    used_inodes: u32,
    directories: u32,
}

/// Compares the bitmaps and free counts with what was found in use.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let groups = std::mem::take(&mut checker.groups);
    let mut free_clusters = 0u64;
    let mut free_inodes = 0u64;
    let mut states = checker
        .inodes
        .used()
        .collect::<Vec<_>>()
        .into_iter()
        .peekable();
    for (number, desc) in (0u32..).zip(&groups) {
        let group = GroupNr(number);
        checker
            .report
            .progress("bitmaps", u64::from(number), groups.len() as u64)?;
        let mut tally = Tally::default();
        let in_group = |inode: &InodeNr| {
            let place = checker.fs.geometry.group_of_inode(*inode);
            place.filter(|(of, _)| *of == group).map(|(_, index)| index)
        };
        while let Some((inode, state)) = states.peek().copied() {
            let Some(index) = in_group(&inode) else { break };
            states.next();
            tally.take(index, state.used_as, state.kind);
        }
        let Some(desc) = desc else { continue };
        free_clusters += u64::from(desc.free_clusters);
        free_inodes += u64::from(desc.free_inodes);
        check_block_bitmap(checker, group, desc)?;
        check_inode_bitmap(checker, group, desc, &tally)?;
    }
    check_totals(checker, free_clusters, free_inodes)
}

fn check_totals(checker: &mut Checker<'_>, free_clusters: u64, free_inodes: u64) -> Flow {
    let fs = checker.fs;
    let locus = Locus::block(fs.geometry.superblock_block.0);
    let cluster_blocks = u64::from(fs.geometry.cluster_blocks);
    if fs.superblock.free_blocks != free_clusters.saturating_mul(cluster_blocks) {
        wrong_total(checker, locus, TotalsRule::FreeBlocks)?;
    }
    if u64::from(fs.superblock.free_inodes) != free_inodes {
        wrong_total(checker, locus, TotalsRule::FreeInodes)?;
    }
    Ok(())
}

/// Reports a wrong total. Linux updates the totals at unmount and ignores them at mount.
fn wrong_total(checker: &mut Checker<'_>, locus: Locus, rule: TotalsRule) -> Flow {
    if checker.was_replayed {
        checker.noticed(locus, rule)
    } else {
        checker.found(locus, rule)
    }
}

fn check_block_bitmap(checker: &mut Checker<'_>, group: GroupNr, desc: &GroupDesc) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    let locus = Locus::group(u64::from(group.0));
    let clusters = geometry
        .group_blocks(group)
        .div_ceil(geometry.cluster_blocks);
    let claims = checker.claims.group(group);
    let used = claims.map_or(0, |claims| claims.count);
    let by_inodes = claims.is_some_and(|claims| claims.by_inodes);
    // After a corrupt block mapping, the blocks found in use are incomplete.
    let free = clusters.saturating_sub(used);
    if desc.free_clusters != free && (!checker.is_blind || desc.free_clusters > free) {
        checker.found(locus, GroupUseRule::FreeBlocks)?;
    }
    if desc.flags.contains(GroupFlags::BLOCK_UNINIT) {
        if by_inodes {
            checker.found(locus, GroupUseRule::BlocksUninit)?;
        }
        return Ok(());
    }
    let verifier = BitmapVerifier::of_blocks(group, desc, geometry);
    let Some(bitmap) = read(checker, desc.block_bitmap, &verifier, locus)? else {
        return Ok(());
    };
    let empty = Vec::new();
    let claimed = checker.claims.group(group).map_or(&empty[..], |c| &c.bits);
    let difference = compare(claimed, &bitmap, clusters);
    let place = |index: u32| {
        let first = geometry.group_first_block(group).0;
        locus.at_block(first + u64::from(index) * u64::from(geometry.cluster_blocks))
    };
    let padded = (clusters..geometry.block_bytes * 8).all(|index| bit(&bitmap, index));
    if let Some(index) = difference.marked_free {
        checker.found(place(index), BitmapUseRule::BlockMarkedFree)?;
    }
    if let Some(index) = difference.marked_used.filter(|_| !checker.is_blind) {
        checker.found(place(index), BitmapUseRule::BlockMarkedUsed)?;
    }
    if !padded {
        checker.found(locus.at_block(desc.block_bitmap.0), BitmapUseRule::Padding)?;
    }
    Ok(())
}

fn check_inode_bitmap(
    checker: &mut Checker<'_>,
    group: GroupNr,
    desc: &GroupDesc,
    tally: &Tally,
) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    let locus = Locus::group(u64::from(group.0));
    let inodes = geometry.inodes_per_group;
    if desc.free_inodes != inodes.saturating_sub(tally.used_inodes) {
        checker.found(locus, GroupUseRule::FreeInodes)?;
    }
    if desc.used_dirs != tally.directories {
        checker.found(locus, GroupUseRule::UsedDirs)?;
    }
    if desc.flags.contains(GroupFlags::INODE_UNINIT) {
        return Ok(());
    }
    let verifier = BitmapVerifier::of_inodes(group, desc, geometry);
    let Some(bitmap) = read(checker, desc.inode_bitmap, &verifier, locus)? else {
        return Ok(());
    };
    let difference = compare(&tally.inodes, &bitmap, inodes);
    let padded = (inodes..geometry.block_bytes * 8).all(|index| bit(&bitmap, index));
    if !padded {
        checker.found(locus.at_block(desc.inode_bitmap.0), BitmapUseRule::Padding)?;
    }
    let first = u64::from(group.0) * u64::from(inodes) + 1;
    if let Some(index) = difference.marked_free {
        let locus = locus.of_inode(first + u64::from(index));
        checker.found(locus, BitmapUseRule::InodeMarkedFree)?;
    }
    if let Some(index) = difference.marked_used {
        let locus = locus.of_inode(first + u64::from(index));
        checker.found(locus, BitmapUseRule::InodeMarkedUsed)?;
    }
    Ok(())
}

/// Reads a bitmap, also if its checksum does not match.
fn read(
    checker: &mut Checker<'_>,
    block: BlockNr,
    verifier: &BitmapVerifier,
    locus: Locus,
) -> Flow<Option<platter_cache::Buffer>> {
    let fs = checker.fs;
    let read = fs.read_block(block, verifier);
    if let Some(buffer) = checker.tolerate("bitmap", locus.at_block(block.0), read)? {
        return Ok(Some(buffer));
    }
    Ok(fs.read_block(block, &Unverified).ok())
}

impl Tally {
    fn take(&mut self, index: u32, used_as: Use, kind: Option<FileKind>) {
        let byte = (index / 8) as usize;
        if byte >= self.inodes.len() {
            self.inodes.resize(byte + 1, 0);
        }
        self.inodes[byte] |= 1 << (index % 8);
        self.used_inodes += 1;
        let is_directory = kind == Some(FileKind::Directory) && used_as != Use::Reserved;
        self.directories += u32::from(is_directory);
    }
}

/// The first differing bits.
#[derive(Debug, Default, PartialEq, Eq)]
struct Difference {
    marked_free: Option<u32>,
    marked_used: Option<u32>,
}

fn compare(found: &[u8], stored: &[u8], bits: u32) -> Difference {
    let mut difference = Difference::default();
    for index in 0..bits {
        match (bit(found, index), bit(stored, index)) {
            (true, false) => difference.marked_free = difference.marked_free.or(Some(index)),
            (false, true) => difference.marked_used = difference.marked_used.or(Some(index)),
            (true, true) | (false, false) => {}
        }
    }
    difference
}

fn bit(bitmap: &[u8], index: u32) -> bool {
    let byte = bitmap.get((index / 8) as usize).copied().unwrap_or(0);
    byte & (1 << (index % 8)) != 0
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bitmaps_differ_at_the_first_bits() {
        assert_eq!(compare(&[0b101], &[0b101], 8), Difference::default());
        let difference = compare(&[0b0101], &[0b0010, 1], 16);
        assert_eq!(difference.marked_free, Some(0));
        assert_eq!(difference.marked_used, Some(1));
    }
}
