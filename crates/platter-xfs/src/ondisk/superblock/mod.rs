//! The superblock: the first sector of each allocation group; that of group 0 counts.
//! Spec: `xfs/allocation_groups`, "Superblocks".

mod quota_flags;
mod disk;
mod backup;
mod build;
#[cfg(test)]
pub(crate) mod tests;

use platter_ondisk::{Corrupt, Locus, Uuid, rules};
use zerocopy::FromBytes;

use super::checksum;
use super::features::{Features, Features2, Incompat, RoCompat, Version};
use super::types::{FsBlock, InodeNr, Lsn};

pub use backup::SharedFields;
pub use disk::DiskSuperblock;
pub use quota_flags::QuotaFlags;

/// `sb_magicnum`: `XFSB`.
pub const SUPERBLOCK_MAGIC: u32 = 0x5846_5342;

const SECTOR_BITS: std::ops::RangeInclusive<u8> = 9..=15;
const BLOCK_BITS: std::ops::RangeInclusive<u8> = 9..=16;
const INODE_BITS: std::ops::RangeInclusive<u8> = 8..=11;
/// The fewest blocks of an allocation group.
const AG_BLOCKS_MIN: u32 = 64;
/// The largest allocation group in bytes, as a power of two.
const AG_BYTES_MAX: u64 = 1 << 40;
/// The longest directory block in bytes, as a power of two.
const DIR_BLOCK_BITS_MAX: u8 = 16;
const RT_EXTENT_BYTES_MAX: u64 = 1 << 30;
const LOG_STRIPE_UNIT_MAX: u32 = 256 << 10;
/// `sb_logsunit` of a log without a stripe, in version 2.
const LOG_STRIPE_UNIT_NONE: u32 = 1;

rules! {
    /// What a superblock must hold to.
    pub enum SuperblockRule of "superblock" {
        /// `sb_magicnum`.
        Magic => "bad magic number",
        /// The low bits of `sb_versionnum`, and the flags that it requires.
        Version => "bad version number",
        /// `sb_features2` has the checksum bit exactly in version 5.
        ChecksumFeature => "feature bits do not agree with the version",
        /// `sb_crc`.
        Checksum => "bad CRC",
        /// `sb_shared_vn`.
        SharedVersion => "shared version number is not zero",
        /// `sb_inprogress`.
        InProgress => "mkfs did not complete",
        /// `sb_sectsize` and `sb_sectlog`.
        SectorSize => "bad sector size",
        /// `sb_blocksize` and `sb_blocklog`.
        BlockSize => "bad block size",
        /// `sb_inodesize`, `sb_inodelog`, `sb_inopblock` and `sb_inopblog`.
        InodeSize => "bad inode size",
        /// `sb_dirblklog`.
        DirBlockSize => "bad directory block size",
        /// `sb_agblocks` and `sb_agblklog`.
        AgBlocks => "bad allocation group size",
        /// `sb_agcount` agrees with `sb_dblocks` and `sb_agblocks`.
        AgCount => "bad allocation group count",
        /// `sb_dblocks`.
        DataBlocks => "bad number of data blocks",
        /// `sb_rextsize`, `sb_rblocks`, `sb_rextents`, `sb_rextslog` and `sb_rbmblocks`.
        Realtime => "inconsistent realtime geometry",
        /// `sb_rgcount`, `sb_rgextents` and `sb_rgblklog`.
        RealtimeGroups => "inconsistent realtime group geometry",
        /// `sb_imax_pct`.
        InodePercent => "bad maximum inode percentage",
        /// `sb_logstart` and `sb_logblocks`.
        Log => "log lies outside its allocation group",
        /// `sb_logsectsize`, `sb_logsectlog` and `sb_logsunit`.
        LogGeometry => "bad log sector size or stripe unit",
        /// `sb_unit` and `sb_width`.
        Stripe => "bad stripe unit or width",
        /// `sb_spino_align` and `sb_inoalignmt`.
        InodeAlignment => "bad inode alignment",
        /// `sb_rootino`.
        RootInode => "root inode is null",
        /// The device is as long as the filesystem.
        DeviceTooShort => "device is smaller than the filesystem",
    }
}

/// Sets `sb_icount`, `sb_ifree` and `sb_fdblocks` in a sector. The checksum is still to be brought up to date.
pub fn set_counters(sector: &mut [u8], counters: [u64; 3]) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        let [inodes, free_inodes, free_blocks] = counters;
        disk.inode_count.set(inodes);
        disk.free_inodes.set(free_inodes);
        disk.free_data_blocks.set(free_blocks);
    }
}

/// Clears `sb_qflags` in a sector. The checksum is still to be brought up to date.
pub fn reset_quota_flags(sector: &mut [u8]) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.quota_flags.set(0);
    }
}

/// Clears `sb_features_log_incompat` in a sector. The checksum is still to be brought up to date.
pub fn clear_log_incompat(sector: &mut [u8]) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.log_incompat.set(0);
    }
}

/// Sets `sb_dblocks` and `sb_agcount` in a sector. The checksum is still to be brought up to date.
pub fn set_size(sector: &mut [u8], data_blocks: u64, ag_count: u32) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.data_blocks.set(data_blocks);
        disk.ag_count.set(ag_count);
    }
}

/// Sets `sb_fname` in a sector, which has no longer one. The checksum is still to be brought up to date.
pub fn set_label(sector: &mut [u8], label: &[u8]) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.label = [0; 12];
        for (stored, byte) in disk.label.iter_mut().zip(label) {
            *stored = *byte;
        }
    }
}

/// Sets `sb_uuid` in a sector. Metadata of version 5 keeps the UUID that it bears, which becomes `sb_meta_uuid` while it is
/// another one. The checksum is still to be brought up to date.
pub fn set_uuid(sector: &mut [u8], uuid: Uuid) {
    let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) else {
        return;
    };
    let features = disk.features();
    let borne = if features.has_meta_uuid() {
        disk.meta_uuid
    } else {
        disk.uuid
    };
    disk.uuid = uuid.into_bytes();
    if !features.is_v5() {
        return;
    }
    let differs = borne != disk.uuid;
    let mut incompat = Incompat::from_bits_retain(disk.incompat.get());
    incompat.set(Incompat::META_UUID, differs);
    disk.incompat.set(incompat.bits());
    disk.meta_uuid = if differs { borne } else { [0; 16] };
}

/// Sets bits of `sb_features_ro_compat` in a sector. The checksum is still to be brought up to date.
pub fn add_ro_compat(sector: &mut [u8], ro_compat: RoCompat) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.ro_compat.set(disk.ro_compat.get() | ro_compat.bits());
    }
}

/// Sets bits of `sb_features_incompat` in a sector. The checksum is still to be brought up to date.
pub fn add_incompat(sector: &mut [u8], incompat: Incompat) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.incompat.set(disk.incompat.get() | incompat.bits());
    }
}

/// Sets bits of `sb_versionnum` in a sector. The checksum is still to be brought up to date.
pub fn add_version(sector: &mut [u8], version: Version) {
    if let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(sector) {
        disk.version.set(disk.version.get() | version.bits());
    }
}

/// A superblock whose rules hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Superblock {
    /// All feature words.
    pub features: Features,
    /// The volume's UUID, which records of the log bear, too.
    pub uuid: Uuid,
    /// The UUID that metadata bears.
    pub meta_uuid: Uuid,
    /// The label without padding.
    pub label: Vec<u8>,
    /// Size of a sector, as a power of two.
    pub sector_bits: u8,
    /// Size of a block, as a power of two.
    pub block_bits: u8,
    /// Size of an inode, as a power of two.
    pub inode_bits: u8,
    /// Size of a directory block, as a power of two.
    pub dir_block_bits: u8,
    /// Blocks of the data device.
    pub data_blocks: u64,
    /// Blocks of an allocation group; the last one may have fewer.
    pub ag_blocks: u32,
    /// Bits of a block number within an allocation group.
    pub ag_block_bits: u8,
    /// Number of allocation groups.
    pub ag_count: u32,
    /// First block of the log; `None` for an external one.
    pub log_start: Option<FsBlock>,
    /// Blocks of the log.
    pub log_blocks: u32,
    /// Sector size of the log in bytes.
    pub log_sector_bytes: u32,
    /// Stripe unit of the log in bytes, as stored.
    pub log_stripe_unit: u32,
    /// Blocks of the realtime device; zero for none.
    pub rt_blocks: u64,
    /// Extents of the realtime device.
    pub rt_extents: u64,
    /// Blocks of a realtime extent.
    pub rt_extent_blocks: u32,
    /// Blocks of the realtime bitmap.
    pub rt_bitmap_blocks: u32,
    /// Realtime groups; zero without them.
    pub rt_group_count: u32,
    /// Realtime extents of a group.
    pub rt_group_extents: u32,
    /// Bits of a block number within a realtime group.
    pub rt_group_block_bits: u8,
    /// The root directory.
    pub root_inode: InodeNr,
    /// The realtime bitmap, unless it is in the metadata directory tree.
    pub rt_bitmap_inode: Option<InodeNr>,
    /// The realtime summary, unless it is in the metadata directory tree.
    pub rt_summary_inode: Option<InodeNr>,
    /// The quota inodes of users, groups and projects.
    pub quota_inodes: [Option<InodeNr>; 3],
    /// The root of the metadata directory tree.
    pub metadir_inode: Option<InodeNr>,
    /// `sb_qflags`.
    pub quota_flags: QuotaFlags,
    /// `sb_flags`.
    pub flags: u8,
    /// Alignment of inode chunks in blocks.
    pub inode_alignment: u32,
    /// Alignment of sparse inode chunks in blocks.
    pub sparse_inode_alignment: u32,
    /// Stripe unit in blocks.
    pub stripe_unit: u32,
    /// Stripe width in blocks.
    pub stripe_width: u32,
    /// The most space for inodes, in percent.
    pub inode_percent_max: u8,
    /// Allocated inodes, as of the last unmount.
    pub inode_count: u64,
    /// Free ones of them, as of the last unmount.
    pub free_inodes: u64,
    /// Free blocks, as of the last unmount.
    pub free_data_blocks: u64,
    /// Free realtime extents, as of the last unmount.
    pub free_rt_extents: u64,
    /// Position in the log of the last change of the superblock.
    pub lsn: Lsn,
}

impl Superblock {
    /// The sector size that a sector with a superblock names; `None` if it holds no superblock.
    #[must_use]
    pub fn sector_bytes(sector: &[u8]) -> Option<usize> {
        let (disk, _) = DiskSuperblock::ref_from_prefix(sector).ok()?;
        if disk.magic.get() != SUPERBLOCK_MAGIC {
            return None;
        }
        let bits = power_of_two(disk.sector_bytes.get().into(), disk.sector_bits)?;
        SECTOR_BITS
            .contains(&bits)
            .then(|| usize::from(disk.sector_bytes.get()))
    }

    /// Validates the primary superblock in a sector.
    pub fn decode(sector: &[u8], locus: Locus) -> Result<Self, Corrupt<SuperblockRule>> {
        Self::validated(sector, false).map_err(|rule| Corrupt::new(locus, rule))
    }

    /// Validates a copy of the superblock, in the first sector of another allocation group: `mkfs.xfs` leaves
    /// it as one in progress.
    pub fn decode_copy(sector: &[u8], locus: Locus) -> Result<Self, Corrupt<SuperblockRule>> {
        Self::validated(sector, true).map_err(|rule| Corrupt::new(locus, rule))
    }

    /// Validates a copy of the superblock. mkfs leaves copies marked as in progress, and most without a
    /// root inode.
    pub fn decode_backup(sector: &[u8], locus: Locus) -> Result<Self, Corrupt<SuperblockRule>> {
        let mut copy = sector.to_vec();
        let Ok((disk, _)) = DiskSuperblock::mut_from_prefix(&mut copy) else {
            return Err(Corrupt::new(locus, SuperblockRule::Magic));
        };
        let is_sealed = checksum::matches(sector, DiskSuperblock::CHECKSUM_OFFSET);
        disk.in_progress = 0;
        if disk.root_inode.get() == u64::MAX {
            disk.root_inode.set(u64::MAX >> 1);
        }
        // A checksum that did not match must not do so now.
        if is_sealed {
            DiskSuperblock::seal(&mut copy);
        }
        Self::decode(&copy, locus)
    }

    fn validated(sector: &[u8], is_copy: bool) -> Result<Self, SuperblockRule> {
        let (disk, _) =
            DiskSuperblock::ref_from_prefix(sector).map_err(|_| SuperblockRule::Magic)?;
        if disk.magic.get() != SUPERBLOCK_MAGIC {
            return Err(SuperblockRule::Magic);
        }
        let features = disk.features();
        validate_version(&features)?;
        let sector_bytes = Self::sector_bytes(sector).ok_or(SuperblockRule::SectorSize)?;
        let sector = sector
            .get(..sector_bytes)
            .ok_or(SuperblockRule::SectorSize)?;
        if features.is_v5() && !checksum::matches(sector, DiskSuperblock::CHECKSUM_OFFSET) {
            return Err(SuperblockRule::Checksum);
        }
        if disk.in_progress != 0 && !is_copy {
            return Err(SuperblockRule::InProgress);
        }
        let superblock = Self::take(disk, features)?;
        superblock.validate_sizes(disk)?;
        superblock.validate_log(disk)?;
        superblock.validate_realtime(disk)?;
        Ok(superblock)
    }

    fn take(disk: &DiskSuperblock, features: Features) -> Result<Self, SuperblockRule> {
        let uuid = Uuid::from_bytes(disk.uuid);
        let inode = |on: bool, number: u64| InodeNr::new(number).filter(|_| on);
        let by_number = !features.has_metadir();
        let quota = features.has_quota() && by_number;
        let group_quota = inode(quota, disk.group_quota_inode.get());
        let project_quota = inode(quota && features.is_v5(), disk.project_quota_inode.get());
        let is_internal = disk.log_start.get() != 0;
        let has_groups = features.has_rtgroups();
        Ok(Self {
            uuid,
            meta_uuid: if features.has_meta_uuid() {
                Uuid::from_bytes(disk.meta_uuid)
            } else {
                uuid
            },
            label: until_nul(&disk.label),
            sector_bits: disk.sector_bits,
            block_bits: disk.block_bits,
            inode_bits: disk.inode_bits,
            dir_block_bits: disk.block_bits.saturating_add(disk.dir_block_shift),
            data_blocks: disk.data_blocks.get(),
            ag_blocks: disk.ag_blocks.get(),
            ag_block_bits: disk.ag_block_bits,
            ag_count: disk.ag_count.get(),
            log_start: is_internal.then(|| FsBlock(disk.log_start.get())),
            log_blocks: disk.log_blocks.get(),
            log_sector_bytes: match disk.log_sector_bytes.get() {
                0 if features.has_sector() && is_internal => disk.sector_bytes.get().into(),
                0 => 512,
                bytes => bytes.into(),
            },
            log_stripe_unit: if features.has_logv2() {
                disk.log_stripe_unit.get()
            } else {
                0
            },
            rt_blocks: disk.rt_blocks.get(),
            rt_extents: disk.rt_extents.get(),
            rt_extent_blocks: disk.rt_extent_blocks.get(),
            rt_bitmap_blocks: disk.rt_bitmap_blocks.get(),
            rt_group_count: if has_groups {
                disk.rt_group_count.get()
            } else {
                0
            },
            rt_group_extents: if has_groups {
                disk.rt_group_extents.get()
            } else {
                0
            },
            rt_group_block_bits: if has_groups {
                disk.rt_group_block_bits
            } else {
                0
            },
            root_inode: InodeNr::new(disk.root_inode.get()).ok_or(SuperblockRule::RootInode)?,
            rt_bitmap_inode: inode(by_number, disk.rt_bitmap_inode.get()),
            rt_summary_inode: inode(by_number, disk.rt_summary_inode.get()),
            quota_inodes: [
                inode(quota, disk.user_quota_inode.get()),
                group_quota.filter(|_| features.is_v5() || !is_project_quota(disk)),
                project_quota
                    .or(group_quota.filter(|_| !features.is_v5() && is_project_quota(disk))),
            ],
            metadir_inode: inode(features.has_metadir(), disk.metadir_inode.get()),
            quota_flags: QuotaFlags::from_bits_retain(disk.quota_flags.get()),
            flags: disk.flags,
            inode_alignment: if features.has_align() {
                disk.inode_alignment.get()
            } else {
                0
            },
            sparse_inode_alignment: if features.has_sparse_inodes() {
                disk.sparse_inode_alignment.get()
            } else {
                0
            },
            stripe_unit: disk.stripe_unit.get(),
            stripe_width: disk.stripe_width.get(),
            inode_percent_max: disk.inode_percent_max,
            inode_count: disk.inode_count.get(),
            free_inodes: disk.free_inodes.get(),
            free_data_blocks: disk.free_data_blocks.get(),
            free_rt_extents: disk.free_rt_extents.get(),
            lsn: Lsn(if features.is_v5() { disk.lsn.get() } else { 0 }),
            features,
        })
    }

    /// Checks that the data device, of `len` bytes, holds the filesystem.
    pub fn check_device(&self, len: u64) -> Result<(), Corrupt<SuperblockRule>> {
        let blocks = len.checked_shr(self.block_bits.into()).unwrap_or_default();
        if blocks < self.data_blocks {
            let rule = SuperblockRule::DeviceTooShort;
            return Err(Corrupt::new(Locus::UNKNOWN.at_offset(0), rule));
        }
        Ok(())
    }

    fn validate_sizes(&self, disk: &DiskSuperblock) -> Result<(), SuperblockRule> {
        if disk.shared_version != 0 {
            return Err(SuperblockRule::SharedVersion);
        }
        power_of_two(disk.block_bytes.get(), disk.block_bits)
            .filter(|bits| BLOCK_BITS.contains(bits) && *bits >= self.sector_bits)
            .ok_or(SuperblockRule::BlockSize)?;
        let smallest = if self.features.is_v5() {
            9
        } else {
            *INODE_BITS.start()
        };
        let inode_bits = power_of_two(disk.inode_bytes.get().into(), disk.inode_bits)
            .filter(|bits| INODE_BITS.contains(bits) && *bits >= smallest)
            .ok_or(SuperblockRule::InodeSize)?;
        let per_block = power_of_two(
            disk.inodes_per_block.get().into(),
            disk.inodes_per_block_bits,
        );
        if per_block.is_none() || per_block != disk.block_bits.checked_sub(inode_bits) {
            return Err(SuperblockRule::InodeSize);
        }
        if disk.dir_block_shift > DIR_BLOCK_BITS_MAX || self.dir_block_bits > DIR_BLOCK_BITS_MAX {
            return Err(SuperblockRule::DirBlockSize);
        }
        self.validate_groups()?;
        if self.inode_percent_max > 100 {
            return Err(SuperblockRule::InodePercent);
        }
        let (unit, width) = (self.stripe_unit, self.stripe_width);
        let has_stripe = match unit {
            0 => width == 0,
            _ => width >= unit && width.checked_rem(unit) == Some(0),
        };
        if !has_stripe || (unit != 0) != self.features.has_dalign() {
            return Err(SuperblockRule::Stripe);
        }
        // An alignment that is no power of two, or longer than a chunk can be, cannot be satisfied.
        let is_sound = |blocks: u32| blocks == 0 || blocks.is_power_of_two();
        let aligned = is_sound(self.inode_alignment) && is_sound(self.sparse_inode_alignment);
        if !aligned || self.inode_alignment > self.ag_blocks {
            return Err(SuperblockRule::InodeAlignment);
        }
        Ok(())
    }

    fn validate_groups(&self) -> Result<(), SuperblockRule> {
        let bytes = u64::from(self.ag_blocks)
            .checked_shl(self.block_bits.into())
            .filter(|&bytes| bytes <= AG_BYTES_MAX);
        if self.ag_blocks < AG_BLOCKS_MIN || bytes.is_none() {
            return Err(SuperblockRule::AgBlocks);
        }
        let bits = self
            .ag_blocks
            .checked_next_power_of_two()
            .map(u32::trailing_zeros);
        if bits != Some(self.ag_block_bits.into()) {
            return Err(SuperblockRule::AgBlocks);
        }
        // Inode numbers within a group have 32 bits.
        let per_block = self.block_bits.saturating_sub(self.inode_bits);
        if self.ag_block_bits.saturating_add(per_block) > 32 {
            return Err(SuperblockRule::AgBlocks);
        }
        // Byte offsets within the device are 63 bits long.
        if self.data_blocks.leading_zeros() <= u32::from(self.block_bits) {
            return Err(SuperblockRule::DataBlocks);
        }
        let whole = u64::from(self.ag_blocks);
        if self.ag_count == 0 || self.data_blocks.div_ceil(whole) != u64::from(self.ag_count) {
            return Err(SuperblockRule::AgCount);
        }
        Ok(())
    }

    fn validate_log(&self, disk: &DiskSuperblock) -> Result<(), SuperblockRule> {
        let log_sector = disk.log_sector_bytes.get();
        if log_sector != 0 || disk.log_sector_bits != 0 {
            power_of_two(log_sector.into(), disk.log_sector_bits)
                .filter(|bits| SECTOR_BITS.contains(bits))
                .ok_or(SuperblockRule::LogGeometry)?;
        }
        let unit = self.log_stripe_unit;
        let is_stripe = unit > LOG_STRIPE_UNIT_NONE;
        if unit > LOG_STRIPE_UNIT_MAX || (is_stripe && unit.checked_rem(512) != Some(0)) {
            return Err(SuperblockRule::LogGeometry);
        }
        if let Some(start) = self.log_start {
            let mask = 1_u64
                .checked_shl(self.ag_block_bits.into())
                .map_or(u64::MAX, |size| size.saturating_sub(1));
            let within = start.0 & mask;
            let group = start
                .0
                .checked_shr(self.ag_block_bits.into())
                .unwrap_or_default();
            let end = within.saturating_add(self.log_blocks.into());
            let is_inside = group < u64::from(self.ag_count) && end <= u64::from(self.ag_blocks);
            if !is_inside || self.log_blocks == 0 {
                return Err(SuperblockRule::Log);
            }
        }
        Ok(())
    }

    fn validate_realtime(&self, disk: &DiskSuperblock) -> Result<(), SuperblockRule> {
        if self.rt_blocks == 0 {
            let is_zero = self.rt_extents == 0
                && self.rt_bitmap_blocks == 0
                && disk.rt_extents_bits == 0
                && self.free_rt_extents == 0;
            return if is_zero {
                Ok(())
            } else {
                Err(SuperblockRule::Realtime)
            };
        }
        let extent_bytes = u64::from(self.rt_extent_blocks)
            .checked_shl(self.block_bits.into())
            .filter(|bytes| (1..=RT_EXTENT_BYTES_MAX).contains(bytes));
        let extents = self.rt_blocks.checked_div(self.rt_extent_blocks.into());
        let log = self.rt_extents.checked_ilog2().map(|bits| bits.min(255));
        let is_sound = extent_bytes.is_some()
            && extents == Some(self.rt_extents)
            && log == Some(disk.rt_extents_bits.into())
            && self.rt_blocks.leading_zeros() > u32::from(self.block_bits);
        if !is_sound {
            return Err(SuperblockRule::Realtime);
        }
        if self.features.has_rtgroups() {
            let group_blocks =
                u64::from(self.rt_group_extents).saturating_mul(self.rt_extent_blocks.into());
            let bits = group_blocks
                .checked_next_power_of_two()
                .map(u64::trailing_zeros);
            let count = self.rt_blocks.checked_div(group_blocks);
            let rest = self.rt_blocks.checked_rem(group_blocks);
            let count = count.map(|count| count.saturating_add(u64::from(rest != Some(0))));
            let fits = bits == Some(self.rt_group_block_bits.into())
                && u32::try_from(group_blocks).is_ok()
                && count == Some(self.rt_group_count.into());
            return if fits {
                Ok(())
            } else {
                Err(SuperblockRule::RealtimeGroups)
            };
        }
        let bits_per_block = 8_u64
            .checked_shl(self.block_bits.into())
            .unwrap_or(u64::MAX);
        if self.rt_extents.div_ceil(bits_per_block.max(1)) != u64::from(self.rt_bitmap_blocks) {
            return Err(SuperblockRule::Realtime);
        }
        Ok(())
    }
}

/// Whether the one inode for quota of groups or projects, in version 4, is for projects.
fn is_project_quota(disk: &DiskSuperblock) -> bool {
    let flags = QuotaFlags::from_bits_retain(disk.quota_flags.get());
    flags.contains(QuotaFlags::PROJECTS_ACCOUNTED)
}

fn validate_version(features: &Features) -> Result<(), SuperblockRule> {
    let has_crc = features.features2.contains(Features2::CRC);
    match features.number {
        4 if !features.version.contains(Version::REQUIRED) => Err(SuperblockRule::Version),
        4 | 5 if has_crc != features.is_v5() => Err(SuperblockRule::ChecksumFeature),
        4 | 5 => Ok(()),
        _ => Err(SuperblockRule::Version),
    }
}

/// The exponent of a power of two that is stored together with it.
fn power_of_two(size: u32, bits: u8) -> Option<u8> {
    (1_u32.checked_shl(bits.into()) == Some(size)).then_some(bits)
}

fn until_nul(bytes: &[u8]) -> Vec<u8> {
    let bytes = bytes.iter().copied();
    bytes.take_while(|&byte| byte != 0).collect()
}
