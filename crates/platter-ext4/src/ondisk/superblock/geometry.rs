//! Sizes and counts of the whole filesystem: validated once at mount and constant afterwards. Spec:
//! `ext4/super`, `ext4/blockgroup`.

use platter_ondisk::endian::{Le32, join_u32};
use platter_ondisk::{Corrupt, Uuid};

use super::{DiskSuperblock, LOCUS, SUPERBLOCK_OFFSET_BYTES, Superblock, SuperblockRule};
use crate::ondisk::features::{Compat, Features, Incompat, RoCompat};
use crate::ondisk::types::{BlockNr, GroupNr, InodeNr};

/// Maximum `s_log_block_size`: 64 KiB.
const LOG_BLOCK_SIZE_MAX: u32 = 6;
/// Maximum `s_log_cluster_size`: 1 GiB.
const LOG_CLUSTER_SIZE_MAX: u32 = 20;
/// Size of an inode of revision 0, and of the fixed part of every inode, in bytes.
pub const INODE_SIZE_MIN: u16 = 128;
/// Size of a group descriptor without the 64bit feature, in bytes.
pub const DESCRIPTOR_SIZE_MIN: u16 = 32;

/// Sizes and counts of a filesystem.
///
/// # Invariants
/// Divisors are not zero; every group, block and inode number below the counts converts to a byte
/// offset without overflow; one bitmap block covers a group.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Geometry {
    /// Block size in bytes: a power of two between 1 KiB and 64 KiB.
    pub block_bytes: u32,
    /// Binary logarithm of `block_bytes`.
    pub block_bits: u32,
    /// Blocks per cluster, the unit of allocation: a power of two, 1 without bigalloc.
    pub cluster_blocks: u32,
    /// Number of blocks, including the boot block.
    pub blocks_count: u64,
    /// First block of group 0: 1 with 1 KiB blocks and no bigalloc, else 0.
    pub first_data_block: BlockNr,
    /// Blocks per group; the last group may be shorter.
    pub blocks_per_group: u32,
    /// Clusters per group.
    pub clusters_per_group: u32,
    /// Number of groups, at least 1.
    pub groups_count: u32,
    /// Number of inodes.
    pub inodes_count: u32,
    /// Inodes per group.
    pub inodes_per_group: u32,
    /// Inode size in bytes: a power of two from 128 to the block size.
    pub inode_bytes: u16,
    /// Inodes per block.
    pub inodes_per_block: u32,
    /// Blocks per inode table.
    pub inode_table_blocks: u32,
    /// The first inode that is not reserved.
    pub first_inode: u32,
    /// Size of a group descriptor in bytes: 32, or a power of two from 64 to 1024.
    pub descriptor_bytes: u16,
    /// Group descriptors per block.
    pub descriptors_per_block: u32,
    /// The first block of the descriptor table that is stored in the groups it describes, with
    /// `meta_bg`.
    pub first_meta_block_group: u32,
    /// Blocks reserved after the group descriptor table for its growth.
    pub reserved_gdt_blocks: u16,
    /// The groups with a superblock backup under `sparse_super2`.
    pub backup_groups: [u32; 2],
    /// Groups per flex group, with `flex_bg`; else 1.
    pub groups_per_flex: u32,
    /// The creator, which selects the operating-system dependent inode fields.
    pub creator: Creator,
    /// The features.
    pub features: Features,
    /// Seed of all metadata checksums.
    pub checksum_seed: u32,
    /// The volume's UUID, which seeds the older checksums.
    pub uuid: Uuid,
    /// The block of the superblock in use; the descriptors follow it.
    pub superblock_block: BlockNr,
}

type Result<T> = std::result::Result<T, Corrupt<SuperblockRule>>;

fn broken(rule: SuperblockRule) -> Corrupt<SuperblockRule> {
    Corrupt::new(LOCUS, rule)
}

/// `s_creator_os`, as far as inode formats depend on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Creator {
    /// Linux.
    Linux,
    /// GNU/Hurd, whose inodes store a translator's block in place of the Linux inode version.
    Hurd,
    /// Masix, FreeBSD, Lites, and others.
    Other,
}

impl Creator {
    fn of(stored: u32) -> Self {
        match stored {
            0 => Self::Linux,
            1 => Self::Hurd,
            _ => Self::Other,
        }
    }
}

impl Geometry {
    /// Validates the sizes and counts of a superblock.
    pub fn decode(disk: &DiskSuperblock, superblock: &Superblock) -> Result<Self> {
        let features = superblock.features;
        let wide = features.incompat.contains(Incompat::BIT64);
        let (block_bits, block_bytes) = block_size(disk)?;
        let cluster_blocks = cluster_blocks(disk, features, block_bytes)?;
        let inode_bytes = inode_bytes(disk, superblock.revision, block_bytes)?;
        let descriptor_bytes = descriptor_bytes(disk, wide)?;
        let (blocks_per_group, clusters_per_group) =
            group_size(disk, features, block_bytes, cluster_blocks)?;
        let blocks_count = blocks_count(disk, wide, block_bits)?;
        let first_data_block = first_data_block(disk, block_bytes, cluster_blocks, blocks_count)?;
        let data_blocks = blocks_count.saturating_sub(first_data_block.0);
        let groups_count = u32::try_from(data_blocks.div_ceil(u64::from(blocks_per_group)))
            .map_err(|_| broken(SuperblockRule::BlocksCount))?;
        let inodes_per_block = per_block(block_bytes, inode_bytes);
        let inodes_per_group = disk.inodes_per_group.get();
        if inodes_per_group < inodes_per_block || inodes_per_group > bitmap_bits(block_bytes) {
            return Err(broken(SuperblockRule::InodesPerGroup));
        }
        let inodes_count = disk.inodes_count.get();
        if groups_count.checked_mul(inodes_per_group) != Some(inodes_count) {
            return Err(broken(SuperblockRule::InodesCount));
        }
        let descriptors_per_block = per_block(block_bytes, descriptor_bytes);
        let geometry = Self {
            block_bytes,
            block_bits,
            cluster_blocks,
            blocks_count,
            first_data_block,
            blocks_per_group,
            clusters_per_group,
            groups_count,
            inodes_count,
            inodes_per_group,
            inode_bytes,
            inodes_per_block,
            inode_table_blocks: inodes_per_group.div_ceil(inodes_per_block.max(1)),
            first_inode: superblock.first_inode(disk)?,
            descriptor_bytes,
            descriptors_per_block,
            first_meta_block_group: disk.first_meta_block_group.get(),
            reserved_gdt_blocks: disk.reserved_gdt_blocks.get(),
            backup_groups: disk.backup_groups.map(Le32::get),
            groups_per_flex: groups_per_flex(disk, features),
            creator: Creator::of(disk.creator_os.get()),
            features,
            checksum_seed: superblock.checksum_seed,
            uuid: superblock.uuid,
            superblock_block: BlockNr(SUPERBLOCK_OFFSET_BYTES.checked_shr(block_bits).unwrap_or(0)),
        };
        geometry.validate_descriptor_table()?;
        Ok(geometry)
    }

    fn validate_descriptor_table(&self) -> Result<()> {
        if u32::from(self.reserved_gdt_blocks) > self.block_bytes / 4 {
            return Err(broken(SuperblockRule::ReservedGdtBlocks));
        }
        let meta = self.features.incompat.contains(Incompat::META_BG);
        if meta && self.first_meta_block_group > self.descriptor_blocks() {
            return Err(broken(SuperblockRule::FirstMetaBlockGroup));
        }
        Ok(())
    }

    /// Returns the length of the group descriptor table in blocks.
    #[must_use]
    pub fn descriptor_blocks(&self) -> u32 {
        self.groups_count
            .div_ceil(self.descriptors_per_block.max(1))
    }

    /// Returns the length of the filesystem in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.blocks_count
            .saturating_mul(u64::from(self.block_bytes))
    }

    /// Whether `count` blocks from `first` are within the filesystem and after its first block,
    /// which only the superblock uses.
    #[must_use]
    pub fn contains(&self, first: BlockNr, count: u64) -> bool {
        let end = first.checked_add(count);
        first > self.first_data_block && end.is_some_and(|end| end.0 <= self.blocks_count)
    }

    /// Returns the device offset of a block in bytes.
    #[must_use]
    pub fn offset_bytes(&self, block: BlockNr) -> u64 {
        block.0.saturating_mul(u64::from(self.block_bytes))
    }

    /// Returns the location of block `index` of the group descriptor table.
    #[must_use]
    pub fn descriptor_block(&self, index: u32) -> BlockNr {
        let meta = self.features.incompat.contains(Incompat::META_BG);
        if !meta || index < self.first_meta_block_group {
            let skipped = u64::from(index).saturating_add(1);
            return BlockNr(self.superblock_block.0.saturating_add(skipped));
        }
        // A meta block group begins with its descriptor block, after a superblock if it has one.
        let group = GroupNr(index.saturating_mul(self.descriptors_per_block));
        let first = self.group_first_block(group);
        let boot_block = group.0 == 0 && first.0 == 0 && self.block_bytes == 1024;
        let skipped = u64::from(self.has_superblock(group)).saturating_add(u64::from(boot_block));
        BlockNr(first.0.saturating_add(skipped))
    }

    /// Returns the first block of a group.
    #[must_use]
    pub fn group_first_block(&self, group: GroupNr) -> BlockNr {
        let skipped = u64::from(group.0).saturating_mul(u64::from(self.blocks_per_group));
        BlockNr(self.first_data_block.0.saturating_add(skipped))
    }

    /// Returns the number of blocks of a group.
    #[must_use]
    pub fn group_blocks(&self, group: GroupNr) -> u32 {
        let rest = self
            .blocks_count
            .saturating_sub(self.group_first_block(group).0);
        u32::try_from(rest)
            .unwrap_or(u32::MAX)
            .min(self.blocks_per_group)
    }

    /// Returns the group of a block; `None` outside all groups.
    #[must_use]
    pub fn group_of_block(&self, block: BlockNr) -> Option<GroupNr> {
        let skipped = block.checked_since(self.first_data_block)?;
        let group = u32::try_from(skipped.checked_div(u64::from(self.blocks_per_group))?).ok()?;
        (block.0 < self.blocks_count).then_some(GroupNr(group))
    }

    /// Returns the group of an inode and its index there; `None` for a number beyond the last
    /// inode.
    #[must_use]
    pub fn group_of_inode(&self, inode: InodeNr) -> Option<(GroupNr, u32)> {
        let index = inode.get().saturating_sub(1);
        let group = index.checked_div(self.inodes_per_group)?;
        let in_group = index.checked_rem(self.inodes_per_group)?;
        (inode.get() <= self.inodes_count).then_some((GroupNr(group), in_group))
    }

    /// Whether a group has a copy of the superblock.
    #[must_use]
    pub fn has_superblock(&self, group: GroupNr) -> bool {
        if group.0 == 0 {
            return true;
        }
        if self.features.compat.contains(Compat::SPARSE_SUPER2) {
            return self.backup_groups.contains(&group.0);
        }
        if group.0 == 1 || !self.features.ro_compat.contains(RoCompat::SPARSE_SUPER) {
            return true;
        }
        [3, 5, 7].into_iter().any(|base| is_power_of(base, group.0))
    }

    /// Whether an inode is reserved for the filesystem's own use and has no directory entry.
    #[must_use]
    pub fn is_reserved(&self, inode: InodeNr) -> bool {
        inode != InodeNr::ROOT && inode.get() < self.first_inode
    }
}

fn is_power_of(base: u32, mut number: u32) -> bool {
    while number > 1 && number.checked_rem(base) == Some(0) {
        number = number.checked_div(base).unwrap_or(0);
    }
    number == 1
}

fn per_block(block_bytes: u32, each_bytes: u16) -> u32 {
    block_bytes.checked_div(u32::from(each_bytes)).unwrap_or(1)
}

fn bitmap_bits(block_bytes: u32) -> u32 {
    block_bytes.saturating_mul(8)
}

fn block_size(disk: &DiskSuperblock) -> Result<(u32, u32)> {
    let log = disk.log_block_size.get();
    let bits = log.checked_add(10).filter(|_| log <= LOG_BLOCK_SIZE_MAX);
    let size = bits.and_then(|bits| Some((bits, 1u32.checked_shl(bits)?)));
    size.ok_or(broken(SuperblockRule::BlockSize))
}

fn cluster_blocks(disk: &DiskSuperblock, features: Features, block_bytes: u32) -> Result<u32> {
    if !features.has_bigalloc() {
        return Ok(1);
    }
    let log = disk.log_cluster_size.get();
    let bytes = 1024u32
        .checked_shl(log)
        .filter(|_| log <= LOG_CLUSTER_SIZE_MAX);
    let blocks = bytes.and_then(|bytes| bytes.checked_div(block_bytes));
    blocks
        .filter(|&blocks| blocks > 0)
        .ok_or(broken(SuperblockRule::ClusterSize))
}

fn inode_bytes(disk: &DiskSuperblock, revision: u32, block_bytes: u32) -> Result<u16> {
    if revision == 0 {
        return Ok(INODE_SIZE_MIN);
    }
    let size = disk.inode_size.get();
    if !size.is_power_of_two() || size < INODE_SIZE_MIN || u32::from(size) > block_bytes {
        return Err(broken(SuperblockRule::InodeSize));
    }
    Ok(size)
}

fn descriptor_bytes(disk: &DiskSuperblock, wide: bool) -> Result<u16> {
    if !wide {
        return Ok(DESCRIPTOR_SIZE_MIN);
    }
    let size = disk.descriptor_size.get();
    if !size.is_power_of_two() || !(64..=1024).contains(&size) {
        return Err(broken(SuperblockRule::DescriptorSize));
    }
    Ok(size)
}

fn group_size(
    disk: &DiskSuperblock,
    features: Features,
    block_bytes: u32,
    cluster_blocks: u32,
) -> Result<(u32, u32)> {
    let blocks = disk.blocks_per_group.get();
    let clusters = if features.has_bigalloc() {
        disk.clusters_per_group.get()
    } else {
        blocks
    };
    if blocks == 0 || clusters > bitmap_bits(block_bytes) {
        return Err(broken(SuperblockRule::BlocksPerGroup));
    }
    if clusters.checked_mul(cluster_blocks) != Some(blocks) {
        return Err(broken(SuperblockRule::ClustersPerGroup));
    }
    Ok((blocks, clusters))
}

fn blocks_count(disk: &DiskSuperblock, wide: bool, block_bits: u32) -> Result<u64> {
    let high = if wide { disk.blocks_count_hi.get() } else { 0 };
    let count = join_u32(high, disk.blocks_count_lo.get());
    // Byte offsets stay below 2^63, the largest file offset of the host.
    let limit = i64::MAX.unsigned_abs().checked_shr(block_bits).unwrap_or(0);
    if count == 0 || count > limit {
        return Err(broken(SuperblockRule::BlocksCount));
    }
    Ok(count)
}

fn first_data_block(
    disk: &DiskSuperblock,
    block_bytes: u32,
    cluster_blocks: u32,
    blocks_count: u64,
) -> Result<BlockNr> {
    let first = u64::from(disk.first_data_block.get());
    let superblock_is_outside = first == 0 && block_bytes == 1024 && cluster_blocks == 1;
    if first >= blocks_count || superblock_is_outside {
        return Err(broken(SuperblockRule::FirstDataBlock));
    }
    Ok(BlockNr(first))
}

fn groups_per_flex(disk: &DiskSuperblock, features: Features) -> u32 {
    let log = u32::from(disk.log_groups_per_flex);
    if !features.incompat.contains(Incompat::FLEX_BG) || log > 31 {
        return 1;
    }
    1u32.checked_shl(log).unwrap_or(1)
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::tests::{sample, seal};
    use super::*;

    /// Returns the geometry of the sample superblock.
    pub(crate) fn sample_geometry() -> Geometry {
        decode(&sample()).unwrap()
    }

    fn decode(disk: &DiskSuperblock) -> Result<Geometry> {
        Geometry::decode(disk, &Superblock::decode(disk)?)
    }

    fn broken(change: impl FnOnce(&mut DiskSuperblock)) -> SuperblockRule {
        let mut disk = sample();
        change(&mut disk);
        seal(&mut disk);
        decode(&disk).unwrap_err().rule
    }

    fn with(disk: &mut DiskSuperblock, incompat: Incompat, ro_compat: RoCompat) {
        disk.feature_incompat.set(incompat.bits());
        disk.feature_ro_compat.set(ro_compat.bits());
    }

    #[test]
    fn sizes_outside_the_format_are_corrupt() {
        assert_eq!(
            broken(|d| d.log_block_size.set(7)),
            SuperblockRule::BlockSize
        );
        assert_eq!(
            broken(|d| d.log_block_size.set(u32::MAX)),
            SuperblockRule::BlockSize
        );
        assert_eq!(broken(|d| d.inode_size.set(0)), SuperblockRule::InodeSize);
        assert_eq!(broken(|d| d.inode_size.set(192)), SuperblockRule::InodeSize);
        assert_eq!(
            broken(|d| d.inode_size.set(2048)),
            SuperblockRule::InodeSize
        );
        assert_eq!(
            broken(|d| d.first_inode.set(10)),
            SuperblockRule::FirstInode
        );
        let rule = broken(|disk| {
            with(disk, Incompat::BIT64, RoCompat::empty());
            disk.descriptor_size.set(32);
        });
        assert_eq!(rule, SuperblockRule::DescriptorSize);
        let rule = broken(|disk| {
            with(disk, Incompat::EXTENTS, RoCompat::BIGALLOC);
            disk.log_block_size.set(2);
            disk.log_cluster_size.set(1);
        });
        assert_eq!(rule, SuperblockRule::ClusterSize);
    }

    #[test]
    fn counts_that_disagree_are_corrupt() {
        assert_eq!(
            broken(|d| d.blocks_per_group.set(0)),
            SuperblockRule::BlocksPerGroup
        );
        assert_eq!(
            broken(|d| d.blocks_per_group.set(8193)),
            SuperblockRule::BlocksPerGroup
        );
        assert_eq!(
            broken(|d| d.inodes_per_group.set(0)),
            SuperblockRule::InodesPerGroup
        );
        assert_eq!(
            broken(|d| d.inodes_per_group.set(8193)),
            SuperblockRule::InodesPerGroup
        );
        assert_eq!(
            broken(|d| d.inodes_count.set(2049)),
            SuperblockRule::InodesCount
        );
        assert_eq!(
            broken(|d| d.blocks_count_lo.set(0)),
            SuperblockRule::BlocksCount
        );
        assert_eq!(
            broken(|d| d.first_data_block.set(0)),
            SuperblockRule::FirstDataBlock
        );
        assert_eq!(
            broken(|d| d.first_data_block.set(8192)),
            SuperblockRule::FirstDataBlock
        );
        assert_eq!(
            broken(|d| d.reserved_gdt_blocks.set(257)),
            SuperblockRule::ReservedGdtBlocks
        );
        let rule = broken(|disk| {
            with(disk, Incompat::EXTENTS, RoCompat::BIGALLOC);
            disk.log_cluster_size.set(4);
            disk.clusters_per_group.set(511);
        });
        assert_eq!(rule, SuperblockRule::ClustersPerGroup);
        let rule = broken(|disk| {
            with(disk, Incompat::META_BG, RoCompat::empty());
            disk.first_meta_block_group.set(2);
        });
        assert_eq!(rule, SuperblockRule::FirstMetaBlockGroup);
        let rule = broken(|disk| {
            with(disk, Incompat::BIT64, RoCompat::empty());
            disk.descriptor_size.set(64);
            disk.blocks_count_hi.set(u32::MAX);
        });
        assert_eq!(rule, SuperblockRule::BlocksCount);
    }

    #[test]
    fn backup_groups_follow_the_features() {
        let mut geometry = sample_geometry();
        geometry.features.ro_compat = RoCompat::SPARSE_SUPER;
        let with_backup: Vec<_> = (0..130)
            .filter(|&n| geometry.has_superblock(GroupNr(n)))
            .collect();
        assert_eq!(with_backup, [0, 1, 3, 5, 7, 9, 25, 27, 49, 81, 125]);
    }

    #[test]
    fn meta_bg_stores_descriptors_in_their_groups() {
        let mut geometry = sample_geometry();
        assert_eq!(geometry.descriptor_block(3), BlockNr(5));
        geometry.features.incompat = Incompat::META_BG;
        geometry.first_meta_block_group = 1;
        assert_eq!(geometry.descriptor_block(0), BlockNr(2));
        // Group 32, after its superblock copy.
        assert_eq!(geometry.descriptor_block(1), BlockNr(1 + 32 * 8192 + 1));
        geometry.features.ro_compat = RoCompat::SPARSE_SUPER;
        assert_eq!(geometry.descriptor_block(1), BlockNr(1 + 32 * 8192));
    }

    #[test]
    fn inodes_and_blocks_have_a_group_unless_outside() {
        let geometry = sample_geometry();
        let last = InodeNr::new(2048).unwrap();
        assert_eq!(geometry.group_of_inode(last), Some((GroupNr(0), 2047)));
        assert_eq!(geometry.group_of_inode(InodeNr::new(2049).unwrap()), None);
        assert_eq!(geometry.group_of_block(BlockNr(0)), None);
        assert_eq!(geometry.group_of_block(BlockNr(8191)), Some(GroupNr(0)));
        assert_eq!(geometry.group_of_block(BlockNr(8192)), None);
        assert_eq!(geometry.group_blocks(GroupNr(0)), 8191);
    }
}
