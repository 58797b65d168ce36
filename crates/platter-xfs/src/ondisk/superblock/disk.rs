//! The bytes of the superblock. Spec: `xfs/allocation_groups`, `struct xfs_sb`; the fields of
//! metadata directories and realtime groups: `xfs-headers/xfs_format.h`.

use std::mem::offset_of;

use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use crate::ondisk::checksum;
use crate::ondisk::features::{
    Compat, Features, Features2, Incompat, LogIncompat, RoCompat, Version,
};

/// The superblock as stored, at the start of its sector.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskSuperblock {
    /// `sb_magicnum`.
    pub magic: Be32,
    /// `sb_blocksize`.
    pub block_bytes: Be32,
    /// `sb_dblocks`: blocks of the data device.
    pub data_blocks: Be64,
    /// `sb_rblocks`: blocks of the realtime device.
    pub rt_blocks: Be64,
    /// `sb_rextents`: realtime extents.
    pub rt_extents: Be64,
    /// `sb_uuid`.
    pub uuid: [u8; 16],
    /// `sb_logstart`: zero for an external log.
    pub log_start: Be64,
    /// `sb_rootino`.
    pub root_inode: Be64,
    /// `sb_rbmino`.
    pub rt_bitmap_inode: Be64,
    /// `sb_rsumino`.
    pub rt_summary_inode: Be64,
    /// `sb_rextsize`: blocks of a realtime extent.
    pub rt_extent_blocks: Be32,
    /// `sb_agblocks`.
    pub ag_blocks: Be32,
    /// `sb_agcount`.
    pub ag_count: Be32,
    /// `sb_rbmblocks`.
    pub rt_bitmap_blocks: Be32,
    /// `sb_logblocks`.
    pub log_blocks: Be32,
    /// `sb_versionnum`.
    pub version: Be16,
    /// `sb_sectsize`.
    pub sector_bytes: Be16,
    /// `sb_inodesize`.
    pub inode_bytes: Be16,
    /// `sb_inopblock`.
    pub inodes_per_block: Be16,
    /// `sb_fname`: the label.
    pub label: [u8; 12],
    /// `sb_blocklog`.
    pub block_bits: u8,
    /// `sb_sectlog`.
    pub sector_bits: u8,
    /// `sb_inodelog`.
    pub inode_bits: u8,
    /// `sb_inopblog`.
    pub inodes_per_block_bits: u8,
    /// `sb_agblklog`: bits of a block number within a group.
    pub ag_block_bits: u8,
    /// `sb_rextslog`.
    pub rt_extents_bits: u8,
    /// `sb_inprogress`: mkfs did not finish.
    pub in_progress: u8,
    /// `sb_imax_pct`: the most space for inodes, in percent.
    pub inode_percent_max: u8,
    /// `sb_icount`: allocated inodes.
    pub inode_count: Be64,
    /// `sb_ifree`: free ones of them.
    pub free_inodes: Be64,
    /// `sb_fdblocks`.
    pub free_data_blocks: Be64,
    /// `sb_frextents`.
    pub free_rt_extents: Be64,
    /// `sb_uquotino`.
    pub user_quota_inode: Be64,
    /// `sb_gquotino`.
    pub group_quota_inode: Be64,
    /// `sb_qflags`.
    pub quota_flags: Be16,
    /// `sb_flags`.
    pub flags: u8,
    /// `sb_shared_vn`.
    pub shared_version: u8,
    /// `sb_inoalignmt`: alignment of inode chunks in blocks.
    pub inode_alignment: Be32,
    /// `sb_unit`: stripe unit in blocks.
    pub stripe_unit: Be32,
    /// `sb_width`: stripe width in blocks.
    pub stripe_width: Be32,
    /// `sb_dirblklog`: how many times a directory block doubles a block.
    pub dir_block_shift: u8,
    /// `sb_logsectlog`.
    pub log_sector_bits: u8,
    /// `sb_logsectsize`.
    pub log_sector_bytes: Be16,
    /// `sb_logsunit`: stripe unit of the log in bytes.
    pub log_stripe_unit: Be32,
    /// `sb_features2`.
    pub features2: Be32,
    /// `sb_bad_features2`: a copy where some kernels expected it.
    pub bad_features2: Be32,
    /// `sb_features_compat`.
    pub compat: Be32,
    /// `sb_features_ro_compat`.
    pub ro_compat: Be32,
    /// `sb_features_incompat`.
    pub incompat: Be32,
    /// `sb_features_log_incompat`.
    pub log_incompat: Be32,
    /// `sb_crc`, of the sector.
    pub checksum: Le32,
    /// `sb_spino_align`: alignment of sparse inode chunks in blocks.
    pub sparse_inode_alignment: Be32,
    /// `sb_pquotino`.
    pub project_quota_inode: Be64,
    /// `sb_lsn`.
    pub lsn: Be64,
    /// `sb_meta_uuid`.
    pub meta_uuid: [u8; 16],
    /// `sb_metadirino`.
    pub metadir_inode: Be64,
    /// `sb_rgcount`: realtime groups.
    pub rt_group_count: Be32,
    /// `sb_rgextents`: realtime extents of a group.
    pub rt_group_extents: Be32,
    /// `sb_rgblklog`: bits of a block number within a realtime group.
    pub rt_group_block_bits: u8,
    /// `sb_pad`.
    pub padding: [u8; 7],
    /// `sb_rtstart`: first block of an internal realtime section.
    pub rt_start: Be64,
    /// `sb_rtreserved`.
    pub rt_reserved: Be64,
}

const _: () = assert!(size_of::<DiskSuperblock>() == 304);
const _: () = assert!(offset_of!(DiskSuperblock, uuid) == 32);
const _: () = assert!(offset_of!(DiskSuperblock, version) == 100);
const _: () = assert!(offset_of!(DiskSuperblock, inode_count) == 128);
const _: () = assert!(offset_of!(DiskSuperblock, quota_flags) == 176);
const _: () = assert!(offset_of!(DiskSuperblock, dir_block_shift) == 192);
const _: () = assert!(offset_of!(DiskSuperblock, compat) == 208);
const _: () = assert!(offset_of!(DiskSuperblock, checksum) == 224);
const _: () = assert!(offset_of!(DiskSuperblock, lsn) == 240);
const _: () = assert!(offset_of!(DiskSuperblock, metadir_inode) == 264);
const _: () = assert!(offset_of!(DiskSuperblock, rt_start) == 288);

impl DiskSuperblock {
    /// Where the checksum lies in the sector.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);

    /// The feature words; what the version does not have is empty.
    #[must_use]
    pub fn features(&self) -> Features {
        let version = self.version.get();
        let number = version & Version::NUMBER_MASK;
        let v5 = |word: Be32| if number == 5 { word.get() } else { 0 };
        let version = Version::from_bits_retain(version & !Version::NUMBER_MASK);
        // Some kernels of old stored the word where the other one belongs.
        let features2 = if version.contains(Version::MOREBITS) {
            self.features2.get() | self.bad_features2.get()
        } else {
            0
        };
        Features {
            number,
            version,
            features2: Features2::from_bits_retain(features2),
            compat: Compat::from_bits_retain(v5(self.compat)),
            ro_compat: RoCompat::from_bits_retain(v5(self.ro_compat)),
            incompat: Incompat::from_bits_retain(v5(self.incompat)),
            log_incompat: LogIncompat::from_bits_retain(v5(self.log_incompat)),
        }
    }

    /// Stores the checksum of the sector that begins with a superblock, where the version has one.
    pub fn seal(sector: &mut [u8]) {
        let disk = Self::ref_from_prefix(sector);
        if disk.is_ok_and(|(disk, _)| disk.features().is_v5()) {
            checksum::seal(sector, Self::CHECKSUM_OFFSET);
        }
    }

    /// Makes a copy, which fills the sector, the primary superblock.
    pub fn make_primary(sector: &mut [u8]) {
        if let Ok((disk, _)) = Self::mut_from_prefix(sector) {
            disk.in_progress = 0;
        }
        Self::seal(sector);
    }
}
