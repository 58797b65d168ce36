//! The superblock: 1024 bytes at byte 1024 of the device, and a backup in some groups.
//! Spec: `ext4/super`.

use std::mem::offset_of;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le16, Le32, Le64, join_u16, join_u32};
use platter_ondisk::{Locus, Uuid};
use platter_vfs::Timestamp;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::corrupt::{Corrupt, Rule};
use super::features::{Compat, Features, Incompat, RoCompat};
use super::types::InodeNr;

/// `s_magic`.
pub const SUPERBLOCK_MAGIC: u16 = 0xef53;
/// Where the primary superblock lies on the device, in bytes.
pub const SUPERBLOCK_OFFSET_BYTES: u64 = 1024;
/// Length of the superblock in bytes.
pub const SUPERBLOCK_LEN_BYTES: usize = 1024;
/// `s_encoding`: UTF-8 by the rules of Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;
/// The first inode that is not reserved, in revision 0.
const FIRST_INODE_REVISION_0: u32 = 11;
/// `s_checksum_type`: CRC-32C.
const CHECKSUM_TYPE_CRC32C: u8 = 1;

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
    /// `s_overhead_blocks`: clusters taken by the filesystem itself; zero if not computed.
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

/// What a superblock must hold to. The last ones are proven with the
/// [`Geometry`](super::geometry::Geometry).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum SuperblockRule {
    /// `s_magic`.
    Magic,
    /// `s_checksum_type` is one that exists.
    ChecksumType,
    /// `s_checksum`.
    Checksum,
    /// `s_log_block_size` is within the format.
    BlockSize,
    /// `s_log_cluster_size` is within the format and at least a block.
    ClusterSize,
    /// `s_inode_size` is a power of two between 128 and the block size.
    InodeSize,
    /// `s_first_ino` lies behind the reserved inodes.
    FirstInode,
    /// `s_desc_size` is a power of two between 64 and 1024.
    DescriptorSize,
    /// `s_blocks_per_group` fits one bitmap block, and is not zero.
    BlocksPerGroup,
    /// `s_clusters_per_group` agrees with the blocks per group.
    ClustersPerGroup,
    /// `s_inodes_per_group` fits one bitmap block, and fills a block of inodes.
    InodesPerGroup,
    /// `s_first_data_block` agrees with the block size and lies within the filesystem.
    FirstDataBlock,
    /// `s_blocks_count` stays within what the format can address.
    BlocksCount,
    /// `s_inodes_count` is the groups' inodes together.
    InodesCount,
    /// `s_reserved_gdt_blocks` is at most a quarter of the block size.
    ReservedGdtBlocks,
    /// `s_first_meta_bg` lies within the group descriptor table.
    FirstMetaBlockGroup,
    /// The device is as long as the filesystem.
    DeviceTooShort,
}

impl Rule for SuperblockRule {
    const STRUCTURE: &'static str = "superblock";

    fn text(self) -> &'static str {
        match self {
            Self::Magic => "magic is not 0xef53",
            Self::ChecksumType => "checksum type is unknown",
            Self::Checksum => "checksum does not match",
            Self::BlockSize => "block size is not between 1 KiB and 64 KiB",
            Self::ClusterSize => "cluster size does not fit the block size",
            Self::InodeSize => "inode size is not a power of two between 128 and the block size",
            Self::FirstInode => "first inode is below 11",
            Self::DescriptorSize => "descriptor size is not a power of two between 64 and 1024",
            Self::BlocksPerGroup => "blocks per group do not fit a bitmap block",
            Self::ClustersPerGroup => "clusters per group disagree with the blocks per group",
            Self::InodesPerGroup => "inodes per group do not fit a bitmap block",
            Self::FirstDataBlock => "first data block disagrees with the block size or count",
            Self::BlocksCount => "block count is beyond what can be addressed",
            Self::InodesCount => "inode count is not the number of groups times inodes per group",
            Self::ReservedGdtBlocks => "more reserved descriptor blocks than a quarter of a block",
            Self::DeviceTooShort => "block count is beyond the end of the device",
            Self::FirstMetaBlockGroup => "first meta block group is beyond the descriptor table",
        }
    }
}

/// `s_state`, of a filesystem that is not mounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State(pub u16);

impl State {
    /// It was unmounted, or has a journal that keeps it consistent.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self.0 & 0x1 != 0
    }

    /// The kernel found errors in it.
    #[must_use]
    pub fn has_errors(self) -> bool {
        self.0 & 0x2 != 0
    }

    /// The kernel was cleaning up orphaned inodes.
    #[must_use]
    pub fn is_cleaning_orphans(self) -> bool {
        self.0 & 0x4 != 0
    }

    /// The journal ends with fast commits to replay.
    #[must_use]
    pub fn is_replaying_fast_commits(self) -> bool {
        self.0 & 0x20 != 0
    }
}

/// A superblock whose magic, checksum and revision hold.
///
/// Its sizes and counts are proven with the [`Geometry`](super::geometry::Geometry).
#[derive(Debug, Clone)]
pub struct Superblock {
    /// The three feature words; none in revision 0.
    pub features: Features,
    /// Revision: 0 has fixed inode sizes and no features.
    pub revision: u32,
    /// The volume's UUID.
    pub uuid: Uuid,
    /// The label without padding.
    pub label: Vec<u8>,
    /// Where it was mounted last, without padding.
    pub last_mounted: Vec<u8>,
    /// Whether it was unmounted cleanly, and whether errors were found.
    pub state: State,
    /// Blocks only the superuser may take.
    pub reserved_blocks: u64,
    /// The user that may take them.
    pub reserved_uid: u32,
    /// The group that may take them.
    pub reserved_gid: u32,
    /// Free blocks, as of the last time somebody wrote them here.
    pub free_blocks: u64,
    /// Free inodes, as of the last time somebody wrote them here.
    pub free_inodes: u32,
    /// Last mount.
    pub mounted: Timestamp,
    /// Last write.
    pub written: Timestamp,
    /// Creation.
    pub created: Timestamp,
    /// Last check.
    pub checked: Timestamp,
    /// Mounts since the last check.
    pub mount_count: u16,
    /// Mounts before a check is due; zero or `u16::MAX` for never.
    pub max_mount_count: u16,
    /// Errors the kernel counted.
    pub error_count: u32,
    /// `s_default_mount_opts`.
    pub default_mount_options: u32,
    /// `s_flags`: how the directory hash treats characters.
    pub flags: u32,
    /// Seed of the directory hash.
    pub hash_seed: [u32; 4],
    /// The directory hash of new directories.
    pub default_hash_version: u8,
    /// The inode of the journal.
    pub journal_inode: Option<InodeNr>,
    /// The UUID of the external journal's superblock, when there is an external journal.
    pub journal_uuid: Uuid,
    /// The device number of the external journal as it was last.
    pub journal_device: u32,
    /// A copy of the journal inode's block map and size.
    pub journal_backup: [u32; 17],
    /// Head of the list of orphaned inodes.
    pub last_orphan: Option<InodeNr>,
    /// The inode of the orphan file.
    pub orphan_file_inode: Option<InodeNr>,
    /// The inodes of user, group and project quota.
    pub quota_inodes: [Option<InodeNr>; 3],
    /// The block of multiple mount protection, and its interval in seconds.
    pub mmp_block: u64,
    /// Seconds between updates of the multiple mount protection block.
    pub mmp_interval: u16,
    /// `s_overhead_blocks`: clusters of metadata, or zero if never computed.
    pub overhead_clusters: u32,
    /// The encoding of names in casefolded directories.
    pub encoding: u16,
    /// `s_encoding_flags`.
    pub encoding_flags: u16,
    /// What all metadata checksums start from.
    pub checksum_seed: u32,
}

impl DiskSuperblock {
    /// The checksum these bytes should have.
    #[must_use]
    pub fn expected_checksum(&self) -> u32 {
        let bytes = self.as_bytes();
        let covered = bytes.get(..offset_of!(Self, checksum)).unwrap_or(bytes);
        crc32c(!0, covered)
    }

    /// Puts the checksum in place, where there is one.
    pub fn seal(&mut self) {
        if self.features().has_metadata_csum() {
            self.checksum.set(self.expected_checksum());
        }
    }

    /// Sets the time of the last write; times the format cannot hold become the nearest.
    pub fn set_write_time(&mut self, now: Timestamp) {
        let seconds = u64::try_from(now.seconds).unwrap_or(0).min(0xff_ffff_ffff);
        self.write_time_lo
            .set(u32::try_from(seconds & 0xffff_ffff).unwrap_or(u32::MAX));
        self.write_time_hi = u8::try_from(seconds >> 32).unwrap_or(u8::MAX);
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

    fn features(&self) -> Features {
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

impl Superblock {
    /// Proves magic and checksum, and takes over what has no further rule.
    pub fn decode(disk: &DiskSuperblock) -> Result<Self, Corrupt<SuperblockRule>> {
        let broken = |rule| Err(Corrupt::new(LOCUS, rule));
        if disk.magic.get() != SUPERBLOCK_MAGIC {
            return broken(SuperblockRule::Magic);
        }
        let features = disk.features();
        if features.has_metadata_csum() {
            if disk.checksum_type != CHECKSUM_TYPE_CRC32C {
                return broken(SuperblockRule::ChecksumType);
            }
            if disk.checksum.get() != disk.expected_checksum() {
                return broken(SuperblockRule::Checksum);
            }
        }
        Ok(Self::take(disk, features))
    }

    fn take(disk: &DiskSuperblock, features: Features) -> Self {
        let wide = features.incompat.contains(Incompat::BIT64);
        let join = |high: Le32, low: Le32| join_u32(if wide { high.get() } else { 0 }, low.get());
        let has_journal = features.compat.contains(Compat::HAS_JOURNAL);
        let orphan_file = features.compat.contains(Compat::ORPHAN_FILE);
        let quota = features.ro_compat.contains(RoCompat::QUOTA);
        let project = quota && features.ro_compat.contains(RoCompat::PROJECT);
        let inode = |on: bool, number: Le32| InodeNr::new(number.get()).filter(|_| on);
        Self {
            features,
            revision: disk.revision.get(),
            uuid: Uuid::from_bytes(disk.uuid),
            label: until_nul(&disk.volume_name),
            last_mounted: until_nul(&disk.last_mounted),
            state: State(disk.state.get()),
            reserved_blocks: join(disk.reserved_blocks_count_hi, disk.reserved_blocks_count_lo),
            reserved_uid: join_u16(disk.reserved_uid_hi.get(), disk.reserved_uid.get()),
            reserved_gid: join_u16(disk.reserved_gid_hi.get(), disk.reserved_gid.get()),
            free_blocks: join(disk.free_blocks_count_hi, disk.free_blocks_count_lo),
            free_inodes: disk.free_inodes_count.get(),
            mounted: time(disk.mount_time_hi, disk.mount_time_lo),
            written: time(disk.write_time_hi, disk.write_time_lo),
            created: time(disk.mkfs_time_hi, disk.mkfs_time_lo),
            checked: time(disk.last_check_hi, disk.last_check_lo),
            mount_count: disk.mount_count.get(),
            max_mount_count: disk.max_mount_count.get(),
            error_count: disk.error_count.get(),
            default_mount_options: disk.default_mount_options.get(),
            flags: disk.flags.get(),
            hash_seed: disk.hash_seed.map(Le32::get),
            default_hash_version: disk.default_hash_version,
            journal_inode: inode(has_journal, disk.journal_inode),
            journal_uuid: Uuid::from_bytes(disk.journal_uuid),
            journal_device: disk.journal_device.get(),
            journal_backup: disk.journal_blocks.map(Le32::get),
            last_orphan: inode(true, disk.last_orphan),
            orphan_file_inode: inode(orphan_file, disk.orphan_file_inode),
            quota_inodes: [
                inode(quota, disk.user_quota_inode),
                inode(quota, disk.group_quota_inode),
                inode(project, disk.project_quota_inode),
            ],
            mmp_block: disk.mmp_block.get(),
            mmp_interval: disk.mmp_interval.get(),
            overhead_clusters: disk.overhead_clusters.get(),
            encoding: disk.encoding.get(),
            encoding_flags: disk.encoding_flags.get(),
            checksum_seed: if features.incompat.contains(Incompat::CSUM_SEED) {
                disk.checksum_seed.get()
            } else {
                crc32c(!0, &disk.uuid)
            },
        }
    }

    /// `ext2`, `ext3` or `ext4`: the oldest driver that knows all features in use.
    #[must_use]
    pub fn kind(&self) -> &'static str {
        let ext2_incompat = Incompat::FILETYPE.union(Incompat::META_BG);
        let ext3_incompat = ext2_incompat.union(Incompat::RECOVER);
        let ext3_ro_compat = RoCompat::SPARSE_SUPER
            .union(RoCompat::LARGE_FILE)
            .union(RoCompat::BTREE_DIR);
        let Features {
            compat,
            incompat,
            ro_compat,
        } = self.features;
        let old = ext3_ro_compat.contains(ro_compat);
        if old && ext2_incompat.contains(incompat) && !compat.contains(Compat::HAS_JOURNAL) {
            "ext2"
        } else if old && ext3_incompat.contains(incompat) {
            "ext3"
        } else {
            "ext4"
        }
    }

    /// The number of the first inode that is not reserved.
    pub(super) fn first_inode(
        &self,
        disk: &DiskSuperblock,
    ) -> Result<u32, Corrupt<SuperblockRule>> {
        if self.revision == 0 {
            return Ok(FIRST_INODE_REVISION_0);
        }
        let first = disk.first_inode.get();
        if first < FIRST_INODE_REVISION_0 {
            return Err(Corrupt::new(LOCUS, SuperblockRule::FirstInode));
        }
        Ok(first)
    }
}

/// The place of every report about the primary superblock.
pub(crate) const LOCUS: Locus = Locus {
    block: None,
    offset: Some(SUPERBLOCK_OFFSET_BYTES),
    inode: None,
    group: None,
};

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    bytes
        .iter()
        .copied()
        .take_while(|&byte| byte != 0)
        .collect()
}

fn time(high: u8, low: Le32) -> Timestamp {
    let seconds = join_u32(u32::from(high), low.get());
    Timestamp {
        seconds: i64::try_from(seconds).unwrap_or_default(),
        nanoseconds: 0,
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;

    /// A small, valid superblock: 8192 blocks of 1 KiB in one group, metadata checksums on.
    pub(crate) fn sample() -> DiskSuperblock {
        let mut disk = DiskSuperblock::read_from_bytes(&[0; SUPERBLOCK_LEN_BYTES]).unwrap();
        disk.magic.set(SUPERBLOCK_MAGIC);
        disk.revision.set(1);
        disk.blocks_count_lo.set(8192);
        disk.first_data_block.set(1);
        disk.blocks_per_group.set(8192);
        disk.clusters_per_group.set(8192);
        disk.inodes_per_group.set(2048);
        disk.inodes_count.set(2048);
        disk.first_inode.set(11);
        disk.inode_size.set(256);
        disk.uuid = [0x5a; 16];
        disk.feature_incompat
            .set(Incompat::EXTENTS.union(Incompat::FILETYPE).bits());
        disk.feature_ro_compat.set(RoCompat::METADATA_CSUM.bits());
        disk.checksum_type = CHECKSUM_TYPE_CRC32C;
        seal(&mut disk);
        disk
    }

    pub(crate) fn seal(disk: &mut DiskSuperblock) {
        disk.checksum.set(disk.expected_checksum());
    }

    fn broken(change: impl FnOnce(&mut DiskSuperblock)) -> SuperblockRule {
        let mut disk = sample();
        change(&mut disk);
        Superblock::decode(&disk).unwrap_err().rule
    }

    #[test]
    fn superblock_without_its_magic_is_corrupt() {
        assert_eq!(broken(|disk| disk.magic.set(1)), SuperblockRule::Magic);
    }

    #[test]
    fn superblock_with_a_wrong_checksum_is_corrupt() {
        let rule = broken(|disk| disk.volume_name[3] ^= 1);
        assert_eq!(rule, SuperblockRule::Checksum);
        let rule = broken(|disk| disk.checksum_type = 2);
        assert_eq!(rule, SuperblockRule::ChecksumType);
    }

    #[test]
    fn checksum_is_not_asked_for_without_the_feature() {
        let mut disk = sample();
        disk.feature_ro_compat.set(0);
        disk.checksum.set(0);
        assert!(Superblock::decode(&disk).is_ok());
    }

    #[test]
    fn revision_0_has_no_features() {
        let mut disk = sample();
        disk.revision.set(0);
        disk.first_inode.set(0);
        let superblock = Superblock::decode(&disk).unwrap();
        assert_eq!(superblock.features, Features::default());
        assert_eq!(superblock.kind(), "ext2");
        assert_eq!(superblock.first_inode(&disk), Ok(11));
    }

    #[test]
    fn checksum_seed_is_the_uuid_unless_stored() {
        let mut disk = sample();
        let seed = Superblock::decode(&disk).unwrap().checksum_seed;
        assert_eq!(seed, crc32c(!0, &[0x5a; 16]));
        disk.feature_incompat.set(Incompat::CSUM_SEED.bits());
        disk.checksum_seed.set(77);
        seal(&mut disk);
        assert_eq!(Superblock::decode(&disk).unwrap().checksum_seed, 77);
    }
}
