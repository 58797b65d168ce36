//! The bytes of the superblock. Spec: `ext4/super`, `struct ext4_super_block`.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, Le64};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::SUPERBLOCK_LEN_BYTES;
use crate::ondisk::features::{Features, Incompat};

/// The superblock as stored. Spec: `ext4/super`, `struct ext4_super_block`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskSuperblock {
    /// `s_inodes_count`.
    pub inodes_count: Le32,
    /// `s_blocks_count_lo`.
    pub blocks_count_lo: Le32,
    /// `s_r_blocks_count_lo`.
    pub reserved_blocks_count_lo: Le32,
    /// `s_free_blocks_count_lo`.
    pub free_blocks_count_lo: Le32,
    /// `s_free_inodes_count`.
    pub free_inodes_count: Le32,
    /// `s_first_data_block`.
    pub first_data_block: Le32,
    /// `s_log_block_size`: block size is 1 KiB shifted by this.
    pub log_block_size: Le32,
    /// `s_log_cluster_size`: cluster size is 1 KiB shifted by this.
    pub log_cluster_size: Le32,
    /// `s_blocks_per_group`.
    pub blocks_per_group: Le32,
    /// `s_clusters_per_group`.
    pub clusters_per_group: Le32,
    /// `s_inodes_per_group`.
    pub inodes_per_group: Le32,
    /// `s_mtime`: last mount.
    pub mount_time_lo: Le32,
    /// `s_wtime`: last write.
    pub write_time_lo: Le32,
    /// `s_mnt_count`: mounts since the last check.
    pub mount_count: Le16,
    /// `s_max_mnt_count`: mounts before a check is due.
    pub max_mount_count: Le16,
    /// `s_magic`.
    pub magic: Le16,
    /// `s_state`.
    pub state: Le16,
    /// `s_errors`: what to do about an error.
    pub errors: Le16,
    /// `s_minor_rev_level`.
    pub minor_revision: Le16,
    /// `s_lastcheck`.
    pub last_check_lo: Le32,
    /// `s_checkinterval`: seconds between checks.
    pub check_interval: Le32,
    /// `s_creator_os`.
    pub creator_os: Le32,
    /// `s_rev_level`.
    pub revision: Le32,
    /// `s_def_resuid`.
    pub reserved_uid: Le16,
    /// `s_def_resgid`.
    pub reserved_gid: Le16,
    /// `s_first_ino`: first inode that is not reserved.
    pub first_inode: Le32,
    /// `s_inode_size`.
    pub inode_size: Le16,
    /// `s_block_group_nr`: group of this copy.
    pub block_group: Le16,
    /// `s_feature_compat`.
    pub feature_compat: Le32,
    /// `s_feature_incompat`.
    pub feature_incompat: Le32,
    /// `s_feature_ro_compat`.
    pub feature_ro_compat: Le32,
    /// `s_uuid`.
    pub uuid: [u8; 16],
    /// `s_volume_name`.
    pub volume_name: [u8; 16],
    /// `s_last_mounted`.
    pub last_mounted: [u8; 64],
    /// `s_algorithm_usage_bitmap`.
    pub algorithm_usage_bitmap: Le32,
    /// `s_prealloc_blocks`.
    pub prealloc_blocks: u8,
    /// `s_prealloc_dir_blocks`.
    pub prealloc_dir_blocks: u8,
    /// `s_reserved_gdt_blocks`.
    pub reserved_gdt_blocks: Le16,
    /// `s_journal_uuid`.
    pub journal_uuid: [u8; 16],
    /// `s_journal_inum`.
    pub journal_inode: Le32,
    /// `s_journal_dev`.
    pub journal_device: Le32,
    /// `s_last_orphan`: head of the orphan list.
    pub last_orphan: Le32,
    /// `s_hash_seed`.
    pub hash_seed: [Le32; 4],
    /// `s_def_hash_version`.
    pub default_hash_version: u8,
    /// `s_jnl_backup_type`.
    pub journal_backup_type: u8,
    /// `s_desc_size`: bytes of a group descriptor, with the 64bit feature.
    pub descriptor_size: Le16,
    /// `s_default_mount_opts`.
    pub default_mount_options: Le32,
    /// `s_first_meta_bg`.
    pub first_meta_block_group: Le32,
    /// `s_mkfs_time`.
    pub mkfs_time_lo: Le32,
    /// `s_jnl_blocks`: copy of the journal inode's `i_block`, and its size.
    pub journal_blocks: [Le32; 17],
    /// `s_blocks_count_hi`.
    pub blocks_count_hi: Le32,
    /// `s_r_blocks_count_hi`.
    pub reserved_blocks_count_hi: Le32,
    /// `s_free_blocks_count_hi`.
    pub free_blocks_count_hi: Le32,
    /// `s_min_extra_isize`.
    pub min_extra_isize: Le16,
    /// `s_want_extra_isize`.
    pub want_extra_isize: Le16,
    /// `s_flags`.
    pub flags: Le32,
    /// `s_raid_stride`.
    pub raid_stride: Le16,
    /// `s_mmp_interval`: seconds.
    pub mmp_interval: Le16,
    /// `s_mmp_block`.
    pub mmp_block: Le64,
    /// `s_raid_stripe_width`.
    pub raid_stripe_width: Le32,
    /// `s_log_groups_per_flex`.
    pub log_groups_per_flex: u8,
    /// `s_checksum_type`.
    pub checksum_type: u8,
    /// `s_encryption_level`.
    pub encryption_level: u8,
    /// `s_reserved_pad`.
    pub reserved_pad: u8,
    /// `s_kbytes_written`.
    pub kbytes_written: Le64,
    /// `s_snapshot_inum`.
    pub snapshot_inode: Le32,
    /// `s_snapshot_id`.
    pub snapshot_id: Le32,
    /// `s_snapshot_r_blocks_count`.
    pub snapshot_reserved_blocks_count: Le64,
    /// `s_snapshot_list`.
    pub snapshot_list: Le32,
    /// `s_error_count`.
    pub error_count: Le32,
    /// `s_first_error_time`.
    pub first_error_time_lo: Le32,
    /// `s_first_error_ino`.
    pub first_error_inode: Le32,
    /// `s_first_error_block`.
    pub first_error_block: Le64,
    /// `s_first_error_func`.
    pub first_error_func: [u8; 32],
    /// `s_first_error_line`.
    pub first_error_line: Le32,
    /// `s_last_error_time`.
    pub last_error_time_lo: Le32,
    /// `s_last_error_ino`.
    pub last_error_inode: Le32,
    /// `s_last_error_line`.
    pub last_error_line: Le32,
    /// `s_last_error_block`.
    pub last_error_block: Le64,
    /// `s_last_error_func`.
    pub last_error_func: [u8; 32],
    /// `s_mount_opts`.
    pub mount_options: [u8; 64],
    /// `s_usr_quota_inum`.
    pub user_quota_inode: Le32,
    /// `s_grp_quota_inum`.
    pub group_quota_inode: Le32,
    /// `s_overhead_blocks`: clusters of metadata; zero if not computed.
    pub overhead_clusters: Le32,
    /// `s_backup_bgs`: with `sparse_super2`, the groups with backups.
    pub backup_groups: [Le32; 2],
    /// `s_encrypt_algos`.
    pub encryption_algorithms: [u8; 4],
    /// `s_encrypt_pw_salt`.
    pub encryption_salt: [u8; 16],
    /// `s_lpf_ino`.
    pub lost_found_inode: Le32,
    /// `s_prj_quota_inum`.
    pub project_quota_inode: Le32,
    /// `s_checksum_seed`.
    pub checksum_seed: Le32,
    /// `s_wtime_hi`.
    pub write_time_hi: u8,
    /// `s_mtime_hi`.
    pub mount_time_hi: u8,
    /// `s_mkfs_time_hi`.
    pub mkfs_time_hi: u8,
    /// `s_lastcheck_hi`.
    pub last_check_hi: u8,
    /// `s_first_error_time_hi`.
    pub first_error_time_hi: u8,
    /// `s_last_error_time_hi`.
    pub last_error_time_hi: u8,
    /// `s_first_error_errcode`.
    pub first_error_code: u8,
    /// `s_last_error_errcode`.
    pub last_error_code: u8,
    /// `s_encoding`: of the names in casefolded directories.
    pub encoding: Le16,
    /// `s_encoding_flags`.
    pub encoding_flags: Le16,
    /// `s_orphan_file_inum`.
    pub orphan_file_inode: Le32,
    /// `s_def_resuid_hi`.
    pub reserved_uid_hi: Le16,
    /// `s_def_resgid_hi`.
    pub reserved_gid_hi: Le16,
    /// `s_reserved`.
    pub reserved: [Le32; 93],
    /// `s_checksum`: CRC-32C of all before it, from `!0`.
    pub checksum: Le32,
}

const _: () = assert!(size_of::<DiskSuperblock>() == SUPERBLOCK_LEN_BYTES);
const _: () = assert!(offset_of!(DiskSuperblock, magic) == 0x38);
const _: () = assert!(offset_of!(DiskSuperblock, first_inode) == 0x54);
const _: () = assert!(offset_of!(DiskSuperblock, uuid) == 0x68);
const _: () = assert!(offset_of!(DiskSuperblock, reserved_gdt_blocks) == 0xce);
const _: () = assert!(offset_of!(DiskSuperblock, hash_seed) == 0xec);
const _: () = assert!(offset_of!(DiskSuperblock, descriptor_size) == 0xfe);
const _: () = assert!(offset_of!(DiskSuperblock, blocks_count_hi) == 0x150);
const _: () = assert!(offset_of!(DiskSuperblock, mmp_block) == 0x168);
const _: () = assert!(offset_of!(DiskSuperblock, kbytes_written) == 0x178);
const _: () = assert!(offset_of!(DiskSuperblock, first_error_func) == 0x1a8);
const _: () = assert!(offset_of!(DiskSuperblock, mount_options) == 0x200);
const _: () = assert!(offset_of!(DiskSuperblock, checksum_seed) == 0x270);
const _: () = assert!(offset_of!(DiskSuperblock, orphan_file_inode) == 0x280);
const _: () = assert!(offset_of!(DiskSuperblock, checksum) == 0x3fc);

impl DiskSuperblock {
    /// Returns the expected checksum.
    #[must_use]
    pub fn expected_checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        let covered = bytes.get(..offset_of!(Self, checksum)).unwrap_or(bytes);
        crc32c(!0, covered)
    }

    /// Stores the checksum, if there is one.
    pub fn seal(&mut self) {
        if self.features().has_metadata_csum() {
            self.checksum.set(self.expected_checksum());
        }
    }

    /// Sets the time of the last write, clamped to the format's range.
    pub fn set_write_time(&mut self, now: Timestamp) {
        (self.write_time_lo, self.write_time_hi) = split_time(now);
    }

    /// Stores the number of free blocks and inodes.
    pub fn set_free_counts(&mut self, blocks: u64, inodes: u32) {
        let [b0, b1, b2, b3, b4, b5, b6, b7] = blocks.to_le_bytes();
        self.free_blocks_count_lo = Le32::from_bytes([b0, b1, b2, b3]);
        if self.features().incompat.contains(Incompat::BIT64) {
            self.free_blocks_count_hi = Le32::from_bytes([b4, b5, b6, b7]);
        }
        self.free_inodes_count = inodes.into();
    }

    pub(crate) fn features(&self) -> Features {
        if self.revision.get() == 0 {
            return Features::default();
        }
        Features::from_bits(
            self.feature_compat.get(),
            self.feature_incompat.get(),
            self.feature_ro_compat.get(),
        )
    }
}

/// Returns the two fields of a time, clamped to the format's range.
pub(super) fn split_time(time: Timestamp) -> (Le32, u8) {
    let seconds = u64::try_from(time.seconds).unwrap_or(0).min(0xff_ffff_ffff);
    let [b0, b1, b2, b3, high, ..] = seconds.to_le_bytes();
    (Le32::from_bytes([b0, b1, b2, b3]), high)
}
