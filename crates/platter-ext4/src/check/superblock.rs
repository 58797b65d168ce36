//! Rules of the superblock that a mount does not need.

use platter_ondisk::Locus;
use platter_vfs::check::Checking as _;

use super::{Checker, Flow, SuperblockUseRule};
use crate::FsContext;
use crate::ondisk::InodeNr;
use crate::ondisk::features::{Compat, Incompat, RoCompat};
use crate::ondisk::superblock::{DiskSuperblock, SUPERBLOCK_LEN_BYTES, SUPERBLOCK_OFFSET_BYTES};

/// Compatible features whose structures are checked or were never implemented.
const CHECKED_COMPAT: Compat = Compat::all()
    .difference(Compat::LAZY_BG)
    .difference(Compat::EXCLUDE_INODE)
    .difference(Compat::EXCLUDE_BITMAP);
/// Read-only compatible features whose structures are checked.
const CHECKED_RO_COMPAT: RoCompat = RoCompat::SUPPORTED
    .difference(RoCompat::BTREE_DIR)
    .union(RoCompat::READONLY)
    .union(RoCompat::SHARED_BLOCKS);
/// Inode size of revision 0 in bytes.
const INODE_BYTES_MIN: u32 = 128;
/// `i_extra_isize` and `i_checksum_hi`: the minimum length of extra fields.
const EXTRA_BYTES_MIN: u32 = 4;
/// Maximum known `s_rev_level`.
const REVISION_MAX: u32 = 1;

/// Checks the fields of the superblock that a mount does not need.
pub(super) fn check(checker: &mut Checker<'_>) -> Flow {
    let fs = checker.fs;
    let superblock = &fs.superblock;
    let locus = Locus::block(fs.geometry.superblock_block.0);
    if superblock.revision > REVISION_MAX {
        checker.found(locus, SuperblockUseRule::Revision)?;
    }
    let inside = superblock.journal_inode.is_some();
    let outside = !superblock.journal_uuid.is_nil();
    let journals = u32::from(inside) + u32::from(outside);
    let expected = u32::from(superblock.features.compat.contains(Compat::HAS_JOURNAL));
    if journals != expected {
        checker.found(locus, SuperblockUseRule::Journal)?;
    }
    check_features(checker, locus)?;
    if superblock.state.has_errors() {
        checker.noticed(locus, SuperblockUseRule::Errors)?;
    }
    if !superblock.state.is_clean() {
        checker.noticed(locus, SuperblockUseRule::Unclean)?;
    }
    let read = read_stored(fs).map_err(Into::into);
    match checker.tolerate("superblock", locus, read)? {
        Some(disk) => check_stored(checker, locus, &disk),
        None => Ok(()),
    }
}

/// Reports unknown features, which may have changed the meaning of other structures.
fn check_features(checker: &mut Checker<'_>, locus: Locus) -> Flow {
    let features = checker.fs.geometry.features;
    if !CHECKED_COMPAT.contains(features.compat) || !CHECKED_RO_COMPAT.contains(features.ro_compat)
    {
        checker.found(locus, SuperblockUseRule::UnknownFeature)?;
    }
    Ok(())
}

/// Checks fields that a mount ignores as redundant.
fn check_stored(checker: &mut Checker<'_>, locus: Locus, disk: &DiskSuperblock) -> Flow {
    let geometry = &checker.fs.geometry;
    let is_equal = disk.log_cluster_size == disk.log_block_size
        && disk.clusters_per_group == disk.blocks_per_group;
    if !geometry.features.has_bigalloc() && !is_equal {
        checker.found(locus, SuperblockUseRule::ClusterSize)?;
    }
    if disk.journal_inode.get() != 0 && !geometry.features.has_journal() {
        checker.found(locus, SuperblockUseRule::Journal)?;
    }
    if !are_quota_inodes(checker, disk) {
        checker.found(locus, SuperblockUseRule::QuotaInode)?;
    }
    let tail = u32::from(geometry.inode_bytes).saturating_sub(INODE_BYTES_MIN);
    let extra = [disk.min_extra_isize.get(), disk.want_extra_isize.get()].map(u32::from);
    let is_extra = |bytes| bytes == 0 || (EXTRA_BYTES_MIN..=tail).contains(&bytes);
    if tail > 0 && !extra.into_iter().all(is_extra) {
        checker.found(locus, SuperblockUseRule::ExtraSize)?;
    }
    let reserved_blocks = checker.fs.superblock.reserved_blocks;
    if reserved_blocks > checker.fs.geometry.blocks_count / 2 {
        checker.found(locus, SuperblockUseRule::ReservedBlocks)?;
    }
    let wide = checker
        .fs
        .geometry
        .features
        .incompat
        .contains(Incompat::BIT64);
    let is_wide = disk.blocks_count_hi.get() != 0 || disk.free_blocks_count_hi.get() != 0;
    if !wide && is_wide {
        checker.found(locus, SuperblockUseRule::HighHalves)?;
    }
    Ok(())
}

/// Whether each quota file has its reserved inode or an ordinary one.
fn are_quota_inodes(checker: &Checker<'_>, disk: &DiskSuperblock) -> bool {
    let geometry = &checker.fs.geometry;
    if !geometry.features.ro_compat.contains(RoCompat::QUOTA) {
        return true;
    }
    let stored = [
        (disk.user_quota_inode.get(), Some(InodeNr::USER_QUOTA)),
        (disk.group_quota_inode.get(), Some(InodeNr::GROUP_QUOTA)),
        (disk.project_quota_inode.get(), None),
    ];
    let is_possible = |(number, own): (u32, Option<InodeNr>)| match InodeNr::new(number) {
        None => true,
        number if number == own => true,
        Some(number) => {
            number.get() >= geometry.first_inode && geometry.group_of_inode(number).is_some()
        }
    };
    stored.into_iter().all(is_possible)
}

/// Reads the superblock in use as it is stored.
fn read_stored(fs: &FsContext) -> Result<DiskSuperblock, platter_block::IoError> {
    let geometry = &fs.geometry;
    let primary = SUPERBLOCK_OFFSET_BYTES >> geometry.block_bits;
    let at = if geometry.superblock_block.0 == primary {
        SUPERBLOCK_OFFSET_BYTES
    } else {
        geometry.offset_bytes(geometry.superblock_block)
    };
    let mut bytes = [0; SUPERBLOCK_LEN_BYTES];
    fs.device().read_at(at, &mut bytes)?;
    Ok(zerocopy::transmute!(bytes))
}
