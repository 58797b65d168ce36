//! The sizes and counts of a new filesystem, and its superblock. Spec: `ext4/super`,
//! `ext4/blockgroup`.

use platter_ondisk::checksum::crc32c;
use platter_vfs::{Clock, Condition, Result};
use zerocopy::FromZeros;

use super::options::{MkfsOptions, SizeClass, cannot_make, journal_blocks};
use crate::groups::layout::head_blocks;
use crate::ondisk::features::{Compat, Features, Incompat, RoCompat};
use crate::ondisk::geometry::{DESCRIPTOR_SIZE_MIN, INODE_SIZE_MIN};
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{Geometry, GroupNr, InodeNr, Superblock};

/// `EXT2_MAGIC`.
const MAGIC: u16 = 0xef53;
/// Descriptor size with 64-bit block numbers.
const WIDE_DESCRIPTOR_BYTES: u16 = 64;
/// The last reserved inode plus one; it is that of `lost+found`.
const FIRST_INODE: u32 = 11;
/// The inode of project quota: none is reserved for it, and it follows that of `lost+found`.
pub(super) const PROJECT_QUOTA_INODE: u32 = FIRST_INODE + 1;
/// Length of the inode fields after the first 128 bytes.
const EXTRA_INODE_BYTES: u16 = 32;
/// Maximum growth factor that the reserved descriptor blocks allow.
const GROWTH_MAX: u64 = 1024;
/// Minimum length of the last group without its own metadata, in blocks.
const LAST_GROUP_BLOCKS_MIN: u64 = 50;
/// Maximum number of clusters per group, limited by the descriptor's free count.
const GROUP_CLUSTERS_MAX: u32 = 65528;
/// Default cluster size in blocks.
const CLUSTER_BLOCKS: u32 = 16;
/// Minimum journal length in blocks.
const JOURNAL_BLOCKS_MIN: u64 = 1024;
const JOURNAL_BLOCKS_MAX: u64 = 10_240_000;
/// `EXT2_DEFM_XATTR_USER`, `EXT2_DEFM_ACL`.
const DEFAULT_MOUNT_OPTIONS: u32 = 0x4 | 0x8;
/// `EXT2_FLAGS_SIGNED_HASH`, on every host.
const SIGNED_HASH: u32 = 1;
/// `EXT2_HASH_HALF_MD4`.
const HALF_MD4: u8 = 1;
/// `EXT4_CRC32C_CHKSUM`.
const CRC32C: u8 = 1;
/// `EXT3_JNL_BACKUP_BLOCKS`.
pub(super) const JOURNAL_BACKUP: u8 = 1;

/// A new filesystem before it is written.
#[derive(Debug, Clone)]
pub(super) struct Shape {
    pub(super) disk: DiskSuperblock,
    pub(super) superblock: Superblock,
    pub(super) geometry: Geometry,
    pub(super) journal_blocks: Option<u32>,
}

/// Sizes that do not depend on the number of groups.
struct Sizes {
    features: Features,
    block_bytes: u32,
    cluster_blocks: u32,
    inode_bytes: u16,
    descriptor_bytes: u16,
    clusters_per_group: u32,
    first_data_block: u64,
}

/// The requested number of inodes.
struct Inodes {
    /// From the inode ratio: fewer if the groups hold no more.
    by_ratio: u64,
    /// Explicitly requested.
    wanted: Option<u64>,
    /// Minimum.
    needed: u64,
}

impl Shape {
    /// Chooses the sizes of a filesystem of `len_bytes`.
    ///
    /// # Errors
    /// `NoSpace` if that is too short, `InvalidArgument` for invalid sizes.
    pub(super) fn choose(len_bytes: u64, options: &MkfsOptions, clock: &dyn Clock) -> Result<Self> {
        let class = SizeClass::of(len_bytes);
        let mut sizes = Sizes::choose(options, class)?;
        let mut blocks = len_bytes / u64::from(sizes.block_bytes);
        if !sizes.features.incompat.contains(Incompat::BIT64) {
            blocks = blocks.min(u64::from(u32::MAX));
        }
        blocks -= blocks % u64::from(sizes.cluster_blocks);
        let journal = match options.journal_bytes {
            Some(bytes) => Some(sizes.journal_blocks(bytes, blocks)?),
            None => journal_blocks(blocks),
        };
        if journal.is_none() {
            sizes.features.compat -= Compat::HAS_JOURNAL;
        }
        let journal_blocks = journal.filter(|_| sizes.features.has_journal());
        let per_inode = options.bytes_per_inode.unwrap_or(class.bytes_per_inode);
        // Every file with data uses at least one cluster.
        let per_inode = per_inode.max(sizes.block_bytes * sizes.cluster_blocks);
        let by_ratio = blocks * u64::from(sizes.block_bytes) / u64::from(per_inode);
        let inodes = Inodes {
            by_ratio,
            wanted: options.inodes.map(u64::from),
            needed: u64::from(options.inodes_min),
        };
        loop {
            let disk = sizes.superblock(blocks, &inodes, options, clock)?;
            let superblock = Superblock::decode(&disk)?;
            let geometry = Geometry::decode(&disk, &superblock)?;
            let last = last_group_blocks(&geometry);
            let own = own_blocks(&geometry);
            if geometry.groups_count == 1 && last < own + LAST_GROUP_BLOCKS_MIN / 5 {
                return Err(Condition::NoSpace.into());
            }
            if is_last_group_too_short(&geometry) {
                blocks -= last;
                continue;
            }
            return Ok(Self {
                disk,
                superblock,
                geometry,
                journal_blocks,
            });
        }
    }
}

impl Sizes {
    fn choose(options: &MkfsOptions, class: SizeClass) -> Result<Self> {
        let features = options.final_features()?;
        let block_bytes = options.block_bytes.unwrap_or(class.block_bytes);
        if !block_bytes.is_power_of_two() || !(1 << 10..=1 << 16).contains(&block_bytes) {
            return Err(Condition::InvalidArgument.into());
        }
        let cluster_blocks = if features.has_bigalloc() {
            let wanted = options
                .cluster_bytes
                .unwrap_or(block_bytes * CLUSTER_BLOCKS);
            if !wanted.is_power_of_two() || wanted <= block_bytes || wanted > 1 << 29 {
                return Err(Condition::InvalidArgument.into());
            }
            wanted / block_bytes
        } else {
            1
        };
        let inode_bytes = options.inode_bytes.unwrap_or(256);
        let fits = u32::from(inode_bytes) <= block_bytes && inode_bytes >= INODE_SIZE_MIN;
        if !inode_bytes.is_power_of_two() || !fits {
            return Err(Condition::InvalidArgument.into());
        }
        let is_inline = features.incompat.contains(Incompat::INLINE_DATA);
        if is_inline && inode_bytes == INODE_SIZE_MIN {
            return Err(cannot_make("inline_data", Some("in inodes of 128 bytes")).into());
        }
        let wide = features.incompat.contains(Incompat::BIT64);
        Ok(Self {
            features,
            block_bytes,
            cluster_blocks,
            inode_bytes,
            descriptor_bytes: if wide {
                WIDE_DESCRIPTOR_BYTES
            } else {
                DESCRIPTOR_SIZE_MIN
            },
            clusters_per_group: (block_bytes * 8).min(GROUP_CLUSTERS_MAX),
            first_data_block: u64::from(block_bytes == 1024 && !features.has_bigalloc()),
        })
    }

    fn superblock(
        &self,
        blocks: u64,
        inodes: &Inodes,
        options: &MkfsOptions,
        clock: &dyn Clock,
    ) -> Result<DiskSuperblock> {
        let blocks_per_group = u64::from(self.clusters_per_group) * u64::from(self.cluster_blocks);
        let data_blocks = blocks.saturating_sub(self.first_data_block);
        let groups = data_blocks.div_ceil(blocks_per_group);
        if groups == 0 {
            return Err(Condition::NoSpace.into());
        }
        let per_group = self.inodes_per_group(inodes, groups)?;
        let mut disk = DiskSuperblock::new_zeroed();
        let low = |number: u64| u32::try_from(number & u64::from(u32::MAX)).unwrap_or_default();
        disk.blocks_count_lo.set(low(blocks));
        disk.blocks_count_hi.set(low(blocks >> 32));
        let reserved = u128::from(blocks) * u128::from(options.reserved) / 10_000;
        let reserved = u64::try_from(reserved).map_err(|_| Condition::InvalidArgument)?;
        disk.reserved_blocks_count_lo.set(low(reserved));
        disk.reserved_blocks_count_hi.set(low(reserved >> 32));
        disk.inodes_count.set(per_group * low(groups));
        disk.inodes_per_group.set(per_group);
        disk.first_data_block.set(low(self.first_data_block));
        disk.log_block_size.set(self.block_bytes.ilog2() - 10);
        disk.log_cluster_size
            .set((self.block_bytes * self.cluster_blocks).ilog2() - 10);
        disk.blocks_per_group.set(low(blocks_per_group));
        disk.clusters_per_group.set(self.clusters_per_group);
        disk.magic.set(MAGIC);
        disk.revision.set(1);
        disk.first_inode.set(FIRST_INODE);
        disk.inode_size.set(self.inode_bytes);
        disk.feature_compat.set(self.features.compat.bits());
        disk.feature_incompat.set(self.features.incompat.bits());
        disk.feature_ro_compat.set(self.features.ro_compat.bits());
        if self.descriptor_bytes > DESCRIPTOR_SIZE_MIN {
            disk.descriptor_size.set(self.descriptor_bytes);
        }
        if self.features.compat.contains(Compat::RESIZE_INODE) {
            disk.reserved_gdt_blocks.set(self.reserved_gdt_blocks(
                blocks,
                blocks_per_group,
                groups,
            ));
        }
        if self.features.incompat.contains(Incompat::FLEX_BG) {
            if !options.groups_per_flex.is_power_of_two() {
                return Err(Condition::InvalidArgument.into());
            }
            disk.log_groups_per_flex =
                u8::try_from(options.groups_per_flex.ilog2()).unwrap_or_default();
        }
        if self.inode_bytes > INODE_SIZE_MIN {
            disk.min_extra_isize.set(EXTRA_INODE_BYTES);
            disk.want_extra_isize.set(EXTRA_INODE_BYTES);
        }
        if self.features.ro_compat.contains(RoCompat::QUOTA) {
            disk.user_quota_inode.set(InodeNr::USER_QUOTA.get());
            disk.group_quota_inode.set(InodeNr::GROUP_QUOTA.get());
            if self.features.ro_compat.contains(RoCompat::PROJECT) {
                disk.project_quota_inode.set(PROJECT_QUOTA_INODE);
            }
        }
        name(&mut disk, self.features, options, clock)?;
        Ok(disk)
    }

    /// Returns the length of a journal of this size, which must suit the format and the filesystem.
    fn journal_blocks(&self, bytes: u64, blocks: u64) -> Result<u32> {
        let wanted = bytes / u64::from(self.block_bytes);
        if !(JOURNAL_BLOCKS_MIN..=JOURNAL_BLOCKS_MAX.min(blocks / 2)).contains(&wanted) {
            return Err(Condition::InvalidArgument.into());
        }
        u32::try_from(wanted).map_err(|_| Condition::InvalidArgument.into())
    }

    /// Returns the inodes per group: full inode table blocks, and a multiple of eight.
    fn inodes_per_group(&self, inodes: &Inodes, groups: u64) -> Result<u32> {
        let per_block = u64::from(self.block_bytes / u32::from(self.inode_bytes));
        let max = u64::from(self.block_bytes * 8).min(u64::from(u16::MAX) & !7);
        if inodes.needed > max * groups {
            return Err(Condition::NoSpace.into());
        }
        if inodes.wanted.is_some_and(|wanted| wanted > max * groups) {
            return Err(Condition::InvalidArgument.into());
        }
        let count = inodes.wanted.unwrap_or(inodes.by_ratio).max(inodes.needed);
        let wanted = count.max(u64::from(FIRST_INODE)).div_ceil(groups).min(max);
        let filled = (wanted.div_ceil(per_block) * per_block).min(max);
        // The first group contains the reserved inodes.
        let own = u64::from(FIRST_INODE).next_multiple_of(8);
        let per_group = (filled & !7).max(own);
        if per_group * groups > u64::from(u32::MAX) {
            return Err(Condition::InvalidArgument.into());
        }
        u32::try_from(per_group).map_err(|_| Condition::InvalidArgument.into())
    }

    /// Returns the number of blocks reserved for growing the descriptor table.
    fn reserved_gdt_blocks(&self, blocks: u64, blocks_per_group: u64, groups: u64) -> u16 {
        let per_block = u64::from(self.block_bytes / u32::from(self.descriptor_bytes));
        let grown = (blocks.saturating_mul(GROWTH_MAX)).min(u64::from(u32::MAX));
        let grown = grown
            .saturating_sub(self.first_data_block)
            .div_ceil(blocks_per_group);
        let more = grown
            .div_ceil(per_block)
            .saturating_sub(groups.div_ceil(per_block));
        let most = u64::from(self.block_bytes / 4);
        u16::try_from(more.min(most)).unwrap_or(u16::MAX)
    }
}

/// Sets identity, times and defaults.
fn name(
    disk: &mut DiskSuperblock,
    features: Features,
    options: &MkfsOptions,
    clock: &dyn Clock,
) -> Result<()> {
    let uuid = options.uuid.unwrap_or_else(|| clock.random_uuid());
    let hash_seed = options.hash_seed.unwrap_or_else(|| clock.random_uuid());
    disk.uuid = *uuid.as_bytes();
    for (word, bytes) in disk
        .hash_seed
        .iter_mut()
        .zip(hash_seed.as_bytes().as_chunks().0)
    {
        *word = platter_ondisk::endian::Le32::from_bytes(*bytes);
    }
    let label = disk.volume_name.get_mut(..options.label.len());
    label
        .ok_or(Condition::InvalidArgument)?
        .copy_from_slice(&options.label);
    let now = u64::try_from(clock.now().seconds)
        .unwrap_or(0)
        .min(0xff_ffff_ffff);
    let (low, high) = (now & u64::from(u32::MAX), now >> 32);
    let low = u32::try_from(low).unwrap_or_default();
    let high = u8::try_from(high).unwrap_or_default();
    for time in [
        &mut disk.mkfs_time_lo,
        &mut disk.write_time_lo,
        &mut disk.last_check_lo,
    ] {
        time.set(low);
    }
    (disk.mkfs_time_hi, disk.write_time_hi, disk.last_check_hi) = (high, high, high);
    disk.state.set(1);
    disk.errors.set(1);
    disk.max_mount_count.set(u16::MAX);
    disk.default_mount_options.set(DEFAULT_MOUNT_OPTIONS);
    disk.default_hash_version = HALF_MD4;
    disk.flags.set(SIGNED_HASH);
    (disk.raid_stride, disk.raid_stripe_width) = (options.stripe.0.into(), options.stripe.1.into());
    if features.has_metadata_csum() {
        disk.checksum_type = CRC32C;
    }
    if features.incompat.contains(Incompat::CSUM_SEED) {
        disk.checksum_seed.set(crc32c(!0, uuid.as_bytes()));
    }
    disk.seal();
    Ok(())
}

/// Whether the last group has hardly more space than its own metadata needs.
pub(crate) fn is_last_group_too_short(geometry: &Geometry) -> bool {
    let last = last_group_blocks(geometry);
    let is_full = last == u64::from(geometry.blocks_per_group);
    geometry.groups_count > 1 && !is_full && last < own_blocks(geometry) + LAST_GROUP_BLOCKS_MIN
}

fn last_group_blocks(geometry: &Geometry) -> u64 {
    let last = GroupNr(geometry.groups_count - 1);
    u64::from(geometry.group_blocks(last))
}

/// Returns the metadata blocks of the last group.
fn own_blocks(geometry: &Geometry) -> u64 {
    let last = GroupNr(geometry.groups_count - 1);
    head_blocks(geometry, last) + 2 + u64::from(geometry.inode_table_blocks)
}

#[cfg(test)]
mod tests {
    use platter_vfs::{Error, FixedClock, Timestamp};

    use super::super::Generation;
    use super::*;

    fn choose(change: impl FnOnce(&mut MkfsOptions)) -> Result<Shape> {
        let mut options = MkfsOptions::new(Generation::Ext4);
        change(&mut options);
        let clock = FixedClock::new(Timestamp::default(), 1);
        Shape::choose(20 << 20, &options, &clock)
    }

    #[test]
    fn first_group_holds_the_reserved_inodes() {
        let mut options = MkfsOptions::new(Generation::Ext4);
        options.bytes_per_inode = Some(1 << 20);
        let clock = FixedClock::new(Timestamp::default(), 1);
        for (len_bytes, block_bytes) in [(64 << 10, 1024), (64 << 20, 1024), (64 << 20, 4096)] {
            options.block_bytes = Some(block_bytes);
            let shape = Shape::choose(len_bytes, &options, &clock).unwrap();
            let count = shape.geometry.inodes_per_group;
            assert!(count >= FIRST_INODE && count.is_multiple_of(8), "{count}");
        }
    }

    #[test]
    fn more_inodes_than_the_groups_hold_are_refused() {
        // Three groups, each with a bitmap of 8192 bits.
        let most = choose(|options| options.inodes = Some(3 * 8192)).unwrap();
        assert_eq!(most.geometry.inodes_count, 3 * 8192);
        let refused = choose(|options| options.inodes = Some(3 * 8192 + 1)).unwrap_err();
        let expected = Error::Condition(Condition::InvalidArgument);
        assert_eq!(refused.errno(), expected.errno());
        let full = choose(|options| options.inodes_min = 3 * 8192 + 1).unwrap_err();
        assert_eq!(full.errno(), Error::Condition(Condition::NoSpace).errno());
        assert!(choose(|options| options.bytes_per_inode = Some(1024)).is_ok());
    }
}
