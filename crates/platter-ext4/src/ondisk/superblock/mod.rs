//! The superblock: 1024 bytes at byte 1024 of the device, and a backup in some groups.
//! Spec: `ext4/super`.

mod disk;
mod errors;
pub mod geometry;
mod mounting;
mod verifier;
#[cfg(test)]
pub(crate) mod tests;

use platter_ondisk::checksum::crc32c;
use platter_ondisk::endian::{Le32, join_u16, join_u32};
use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use platter_vfs::Timestamp;

use super::features::{Compat, Features, Incompat, RoCompat};
use super::types::InodeNr;

pub use disk::DiskSuperblock;
pub use errors::{ErrorCode, ErrorNote, keep_errors, note_error, note_errors};
pub use mounting::Remedy;
pub use verifier::SuperblockVerifier;

/// `s_magic`.
pub const SUPERBLOCK_MAGIC: u16 = 0xef53;
/// Offset of the primary superblock on the device in bytes.
pub const SUPERBLOCK_OFFSET_BYTES: u64 = 1024;
/// Length of the superblock in bytes.
pub const SUPERBLOCK_LEN_BYTES: usize = 1024;
/// `s_encoding`: UTF-8 by the rules of Unicode 12.1.
pub const ENCODING_UTF8_12_1: u16 = 1;
/// The first inode that is not reserved, in revision 0.
const FIRST_INODE_REVISION_0: u32 = 11;
/// `s_checksum_type`: CRC-32C.
const CHECKSUM_TYPE_CRC32C: u8 = 1;

rules! {
    /// The rules of a superblock. The sizes and counts are validated with the
    /// [`Geometry`](super::geometry::Geometry).
    pub enum SuperblockRule of "superblock" {
        /// `s_magic`.
        Magic => "magic is not 0xef53",
        /// `s_checksum_type` is known.
        ChecksumType => "unknown checksum algorithm",
        /// `s_checksum`.
        Checksum => "checksum does not match",
        /// `s_log_block_size` is within the format.
        BlockSize => "bad block size",
        /// `s_log_cluster_size` is within the format and at least a block.
        ClusterSize => "bad cluster size",
        /// `s_inode_size` is a power of two between 128 and the block size.
        InodeSize => "unsupported inode size",
        /// `s_first_ino` is after the reserved inodes.
        FirstInode => "invalid first ino: below 11",
        /// `s_desc_size` is a power of two between 64 and 1024.
        DescriptorSize => "unsupported descriptor size",
        /// `s_blocks_per_group` fits one bitmap block, and is not zero.
        BlocksPerGroup => "invalid blocks per group",
        /// `s_clusters_per_group` matches `s_blocks_per_group`.
        ClustersPerGroup => "blocks per group and clusters per group inconsistent",
        /// `s_inodes_per_group` fits one bitmap block, and is at least one block of inodes.
        InodesPerGroup => "invalid inodes per group",
        /// `s_first_data_block` matches the block size and is within the filesystem.
        FirstDataBlock => "bad geometry: first data block",
        /// `s_blocks_count` is within the addressable range.
        BlocksCount => "bad geometry: block count is too large",
        /// `s_inodes_count` is the number of groups times `s_inodes_per_group`.
        InodesCount => "inodes count not valid: not groups times inodes per group",
        /// `s_reserved_gdt_blocks` is at most a quarter of the block size.
        ReservedGdtBlocks => "number of reserved GDT blocks insanely large",
        /// `s_first_meta_bg` is within the group descriptor table.
        FirstMetaBlockGroup => "first meta block group too large",
        /// The device is as long as the filesystem.
        DeviceTooShort => "bad geometry: block count exceeds size of device",
    }
}

/// `s_state`: the state of the filesystem when it was last unmounted.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct State(pub u16);

impl State {
    /// Whether it was unmounted cleanly, or has a journal that keeps it consistent.
    #[must_use]
    pub fn is_clean(self) -> bool {
        self.0 & 0x1 != 0
    }

    /// Whether errors were detected.
    #[must_use]
    pub fn has_errors(self) -> bool {
        self.0 & 0x2 != 0
    }

    /// Whether orphan processing was in progress.
    #[must_use]
    pub fn is_cleaning_orphans(self) -> bool {
        self.0 & 0x4 != 0
    }

    /// Whether fast commit replay was in progress.
    #[must_use]
    pub fn is_replaying_fast_commits(self) -> bool {
        self.0 & 0x20 != 0
    }
}

/// A superblock with validated magic, checksum and revision.
///
/// Its sizes and counts are validated with the [`Geometry`](super::geometry::Geometry).
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
    /// The last mount point without padding.
    pub last_mounted: Vec<u8>,
    /// Whether it was unmounted cleanly, and whether errors were found.
    pub state: State,
    /// Blocks reserved for the superuser.
    pub reserved_blocks: u64,
    /// The user that may use them.
    pub reserved_uid: u32,
    /// The group that may use them.
    pub reserved_gid: u32,
    /// Free blocks, as last stored in the superblock.
    pub free_blocks: u64,
    /// Free inodes, as last stored in the superblock.
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
    /// `s_errors`: behaviour when errors are detected.
    pub errors: u16,
    /// Number of recorded errors.
    pub error_count: u32,
    /// Length of the fields after the first 128 bytes in new inodes.
    pub inode_extra_bytes: u16,
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
    /// The last known device number of the external journal.
    pub journal_device: u32,
    /// A copy of the journal inode's `i_block` and size.
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
    /// Seed of all metadata checksums.
    pub checksum_seed: u32,
}

impl Superblock {
    /// Validates magic and checksum, and decodes the fields without further rules.
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
            label: label_of(disk),
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
            errors: disk.errors.get(),
            error_count: disk.error_count.get(),
            inode_extra_bytes: inode_extra_bytes(disk, features),
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

    /// Returns `ext2`, `ext3` or `ext4`: the oldest driver that supports all features in use.
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

    /// Returns the number of the first inode that is not reserved.
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

/// The location of every report about the primary superblock.
pub(crate) const LOCUS: Locus = Locus::UNKNOWN.at_offset(SUPERBLOCK_OFFSET_BYTES);

/// Returns `s_want_extra_isize` if inodes are that long; else the length of all fields known here.
fn inode_extra_bytes(disk: &DiskSuperblock, features: Features) -> u16 {
    const KNOWN_BYTES: u16 = 32;
    let Some(space @ 1..) = disk.inode_size.get().checked_sub(128) else {
        return 0;
    };
    if disk.revision.get() == 0 {
        return 0;
    }
    let asked = if features.ro_compat.contains(RoCompat::EXTRA_ISIZE) {
        disk.want_extra_isize
            .get()
            .max(disk.min_extra_isize.get())
            .max(KNOWN_BYTES)
    } else {
        KNOWN_BYTES
    };
    let is_sound = asked <= space && asked % 4 == 0;
    if is_sound {
        asked
    } else {
        KNOWN_BYTES.min(space)
    }
}

/// Returns the label without padding.
pub(crate) fn label_of(disk: &DiskSuperblock) -> Vec<u8> {
    until_nul(&disk.volume_name)
}

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
