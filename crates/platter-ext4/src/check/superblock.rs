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

impl Checker<'_> {
    pub(super) fn check_superblock(&mut self) -> Flow {
        let fs = self.fs;
        let superblock = &fs.superblock;
        let locus = Locus::block(fs.geometry.superblock_block.0);
        if superblock.revision > REVISION_MAX {
            self.found(locus, SuperblockUseRule::Revision)?;
        }
        let inside = superblock.journal_inode.is_some();
        let outside = !superblock.journal_uuid.is_nil();
        let journals = u32::from(inside) + u32::from(outside);
        let expected = u32::from(superblock.features.compat.contains(Compat::HAS_JOURNAL));
        if journals != expected {
            self.found(locus, SuperblockUseRule::Journal)?;
        }
        self.check_features(locus)?;
        if superblock.state.has_errors() {
            self.noticed(locus, SuperblockUseRule::Errors)?;
        }
        if !superblock.state.is_clean() {
            self.noticed(locus, SuperblockUseRule::Unclean)?;
        }
        let read = read_stored(fs).map_err(Into::into);
        match self.tolerate("superblock", locus, read)? {
            Some(disk) => self.check_stored(locus, &disk),
            None => Ok(()),
        }
    }

    /// Reports unknown features, which may have changed the meaning of other structures.
    fn check_features(&mut self, locus: Locus) -> Flow {
        let features = self.fs.geometry.features;
        if !CHECKED_COMPAT.contains(features.compat)
            || !CHECKED_RO_COMPAT.contains(features.ro_compat)
        {
            self.found(locus, SuperblockUseRule::UnknownFeature)?;
        }
        Ok(())
    }

    /// Checks fields that a mount ignores as redundant.
    fn check_stored(&mut self, locus: Locus, disk: &DiskSuperblock) -> Flow {
        let geometry = &self.fs.geometry;
        let is_equal = disk.log_cluster_size == disk.log_block_size
            && disk.clusters_per_group == disk.blocks_per_group;
        if !geometry.features.has_bigalloc() && !is_equal {
            self.found(locus, SuperblockUseRule::ClusterSize)?;
        }
        if disk.journal_inode.get() != 0 && !geometry.features.has_journal() {
            self.found(locus, SuperblockUseRule::Journal)?;
        }
        if !self.are_quota_inodes(disk) {
            self.found(locus, SuperblockUseRule::QuotaInode)?;
        }
        let tail = u32::from(geometry.inode_bytes).saturating_sub(INODE_BYTES_MIN);
        let extra = [disk.min_extra_isize.get(), disk.want_extra_isize.get()].map(u32::from);
        let is_extra = |bytes| bytes == 0 || (EXTRA_BYTES_MIN..=tail).contains(&bytes);
        if tail > 0 && !extra.into_iter().all(is_extra) {
            self.found(locus, SuperblockUseRule::ExtraSize)?;
        }
        let reserved_blocks = self.fs.superblock.reserved_blocks;
        if reserved_blocks > self.fs.geometry.blocks_count / 2 {
            self.found(locus, SuperblockUseRule::ReservedBlocks)?;
        }
        let wide = self.fs.geometry.features.incompat.contains(Incompat::BIT64);
        let is_wide = disk.blocks_count_hi.get() != 0 || disk.free_blocks_count_hi.get() != 0;
        if !wide && is_wide {
            self.found(locus, SuperblockUseRule::HighHalves)?;
        }
        Ok(())
    }
}

impl Checker<'_> {
    /// Whether each quota file has its reserved inode or an ordinary one.
    fn are_quota_inodes(&self, disk: &DiskSuperblock) -> bool {
        let geometry = &self.fs.geometry;
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
