//! The orphan file: every block is valid, and empty unless `orphan_present` is set. Spec:
//! `ext4/orphan`.

use platter_vfs::FileKind;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, OrphanFileRule, locus_of};
use crate::mapping::{Backing, BlockMap};
use crate::ondisk::FileBlock;
use crate::ondisk::features::{Compat, RoCompat};
use crate::ondisk::orphan::{OrphanBlockRules, orphans};

/// Maximum length of an orphan file in blocks, as in Linux.
const BLOCKS_MAX: u64 = 512;

/// Checks the orphan file.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let geometry = &fs.geometry;
    if !geometry.features.compat.contains(Compat::ORPHAN_FILE) {
        return Ok(());
    }
    let Some(number) = fs.superblock.orphan_file_inode else {
        let locus = platter_ondisk::Locus::block(geometry.superblock_block.0);
        return checker.found(locus, OrphanFileRule::Missing);
    };
    let locus = locus_of(number);
    // A corrupt one is reported with its table.
    let Some(inode) = checker.inode(number) else {
        return Ok(());
    };
    let map = BlockMap::decode(fs, &inode);
    let Some(map) = checker.tolerate("orphan file", locus, map)? else {
        return Ok(());
    };
    let blocks = inode.size_bytes >> geometry.block_bits;
    if inode.kind != FileKind::Regular
        || !inode
            .size_bytes
            .is_multiple_of(u64::from(geometry.block_bytes))
        || !(1..=BLOCKS_MAX).contains(&blocks)
    {
        return checker.found(locus, OrphanFileRule::Inode);
    }
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = OrphanBlockRules {
        inode_seed: has_checksum.then_some(inode.checksum_seed),
    };
    let may_hold = geometry
        .features
        .ro_compat
        .contains(RoCompat::ORPHAN_PRESENT);
    for block in (0..u32::try_from(blocks).unwrap_or(0)).map(FileBlock) {
        let found = map.lookup(fs, block);
        let Some(run) = checker.tolerate("orphan file", locus, found)? else {
            return Ok(());
        };
        let Backing::Written(place) = run.backing else {
            checker.found(locus, OrphanFileRule::Hole)?;
            continue;
        };
        let read = fs.read_block(place, &rules);
        let at = locus.at_block(place.0);
        let Some(buffer) = checker.tolerate("orphan file block", at, read)? else {
            continue;
        };
        if !may_hold && orphans(&buffer).next().is_some() {
            checker.found(at, OrphanFileRule::Unmarked)?;
        }
    }
    Ok(())
}
