//! Sizes and counts, and the arithmetic of block and inode numbers.
//! Spec: `xfs/allocation_groups`, "Inode Numbers".

use std::ops::Range;

use platter_ondisk::{Locus, Uuid};

use super::features::Features;
use super::growth::{FsSize, Growth};
use super::superblock::Superblock;
use super::types::{AgBlock, AgInode, AgNr, BasicBlock, FsBlock, InodeNr, RtBlock};

/// Inodes of a chunk.
pub const CHUNK_INODES: u32 = 64;
/// Size of a cluster of inodes of 256 bytes, in bytes; it grows with the inode in version 5.
const CLUSTER_BYTES: u32 = 8192;

/// Size of a basic block, as a power of two.
const BASIC_BLOCK_BITS: u8 = 9;
/// The sector of a group that holds its free list.
const AGFL_SECTOR: u32 = 3;

/// What locates everything in a filesystem. All that use a mounted one read the same object, since it may
/// [grow](Growth); a clone stays as it is.
#[derive(Debug, Clone, PartialEq, Eq)]
#[repr(C)]
pub struct Geometry {
    /// All feature words.
    pub features: Features,
    /// The UUID that metadata bears.
    pub meta_uuid: Uuid,
    /// Size of a sector, as a power of two.
    pub sector_bits: u8,
    /// Size of a block, as a power of two.
    pub block_bits: u8,
    /// Size of an inode, as a power of two.
    pub inode_bits: u8,
    /// Size of a directory block, as a power of two.
    pub dir_block_bits: u8,
    /// Bits of a block number within an allocation group.
    pub ag_block_bits: u8,
    /// Blocks of an allocation group; the last one may have fewer.
    pub ag_blocks: u32,
    /// Number of allocation groups, and blocks of the data device.
    pub growth: Growth,
    /// Blocks of the realtime device; zero for none.
    pub rt_blocks: u64,
    /// Blocks of a realtime extent.
    pub rt_extent_blocks: u32,
    /// Bits of a block number within a realtime group; zero without groups.
    pub rt_group_block_bits: u8,
    /// Blocks of a realtime group; zero without groups.
    pub rt_group_blocks: u32,
    /// Realtime groups; zero without them.
    pub rt_group_count: u32,
    /// Alignment of inode chunks in blocks; zero for none.
    pub inode_alignment: u32,
    /// Alignment and length of chunks with holes in blocks (`sb_spino_align`).
    pub sparse_inode_alignment: u32,
}

/// Where an inode lies.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InodeLocation {
    /// Its allocation group.
    pub ag: AgNr,
    /// The block that holds it.
    pub block: AgBlock,
    /// Its first byte in that block.
    pub offset: usize,
}

impl Geometry {
    /// The geometry that a superblock describes.
    #[must_use]
    pub fn new(superblock: &Superblock) -> Self {
        let group_blocks = superblock
            .rt_group_extents
            .saturating_mul(superblock.rt_extent_blocks);
        Self {
            features: superblock.features,
            meta_uuid: superblock.meta_uuid,
            sector_bits: superblock.sector_bits,
            block_bits: superblock.block_bits,
            inode_bits: superblock.inode_bits,
            dir_block_bits: superblock.dir_block_bits,
            ag_block_bits: superblock.ag_block_bits,
            ag_blocks: superblock.ag_blocks,
            growth: Growth::new(FsSize {
                ag_count: superblock.ag_count,
                data_blocks: superblock.data_blocks,
            }),
            rt_blocks: superblock.rt_blocks,
            rt_extent_blocks: superblock.rt_extent_blocks,
            rt_group_block_bits: superblock.rt_group_block_bits,
            rt_group_blocks: group_blocks,
            rt_group_count: superblock.rt_group_count,
            inode_alignment: superblock.inode_alignment,
            sparse_inode_alignment: superblock.sparse_inode_alignment,
        }
    }

    /// Number of allocation groups.
    #[must_use]
    pub fn ag_count(&self) -> u32 {
        self.growth.ag_count()
    }

    /// Blocks of the data device.
    #[must_use]
    pub fn data_blocks(&self) -> u64 {
        self.growth.data_blocks()
    }

    /// Size of a block in bytes.
    #[must_use]
    pub fn block_bytes(&self) -> u32 {
        shift(self.block_bits)
    }

    /// Size of a sector in bytes.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        shift(self.sector_bits)
    }

    /// Size of an inode in bytes.
    #[must_use]
    pub fn inode_bytes(&self) -> u32 {
        shift(self.inode_bits)
    }

    /// Size of a directory block in bytes.
    #[must_use]
    pub fn dir_block_bytes(&self) -> u32 {
        shift(self.dir_block_bits)
    }

    /// Blocks of a directory block.
    #[must_use]
    pub fn dir_block_blocks(&self) -> u32 {
        shift(self.dir_block_bits.saturating_sub(self.block_bits))
    }

    /// Inodes of a block, as a power of two.
    #[must_use]
    pub fn inodes_per_block_bits(&self) -> u8 {
        self.block_bits.saturating_sub(self.inode_bits)
    }

    /// Inodes of a block.
    #[must_use]
    pub fn inodes_per_block(&self) -> u32 {
        shift(self.inodes_per_block_bits())
    }

    /// Size of the data device in bytes.
    #[must_use]
    pub fn len_bytes(&self) -> u64 {
        self.data_blocks()
            .checked_shl(self.block_bits.into())
            .unwrap_or(u64::MAX)
    }

    /// Blocks of an inode cluster, which is read and written as a whole: 8 KiB for inodes of 256
    /// bytes and more for larger ones in version 5; at least a block.
    #[must_use]
    pub fn cluster_blocks(&self) -> u32 {
        let smallest = 8_u8;
        let factor = if self.features.is_v5() {
            shift(self.inode_bits.saturating_sub(smallest))
        } else {
            1
        };
        let bytes = CLUSTER_BYTES.saturating_mul(factor);
        bytes
            .checked_shr(self.block_bits.into())
            .unwrap_or(0)
            .max(1)
    }

    /// The first block of the cluster of a block of inodes, in a filesystem whose chunks are aligned: they, and the
    /// clusters in them, begin at multiples of the alignment.
    #[must_use]
    pub fn aligned_cluster(&self, block: AgBlock) -> AgBlock {
        let within = block
            .0
            .checked_rem(self.inode_alignment)
            .unwrap_or_default();
        let skipped = within
            .checked_rem(self.cluster_blocks())
            .unwrap_or_default();
        AgBlock(block.0.saturating_sub(skipped))
    }

    /// Blocks of a whole inode chunk; at least one.
    #[must_use]
    pub fn chunk_blocks(&self) -> u32 {
        CHUNK_INODES
            .checked_shr(self.inodes_per_block_bits().into())
            .unwrap_or(0)
            .max(1)
    }

    /// Inodes that are allocated at once: those of a chunk, or of a block that has more.
    #[must_use]
    pub fn chunk_inodes(&self) -> u32 {
        self.inodes_per_block().max(CHUNK_INODES)
    }

    /// Length of an allocation group in blocks; zero for one that does not exist.
    #[must_use]
    pub fn ag_len(&self, ag: AgNr) -> u32 {
        let start = u64::from(ag.0).saturating_mul(self.ag_blocks.into());
        let size = self.growth.size();
        let rest = size.data_blocks.saturating_sub(start);
        if ag.0 >= size.ag_count {
            return 0;
        }
        u32::try_from(rest).map_or(self.ag_blocks, |rest| rest.min(self.ag_blocks))
    }

    /// The allocation groups.
    pub fn groups(&self) -> impl Iterator<Item = AgNr> + use<> {
        (0..self.ag_count()).map(AgNr)
    }

    /// The number of a block in the whole filesystem.
    #[must_use]
    pub fn fs_block(&self, ag: AgNr, block: AgBlock) -> FsBlock {
        let high = u64::from(ag.0)
            .checked_shl(self.ag_block_bits.into())
            .unwrap_or_default();
        FsBlock(high | u64::from(block.0))
    }

    /// The allocation group of a block, and its number there. Neither need exist.
    #[must_use]
    pub fn split(&self, block: FsBlock) -> (AgNr, AgBlock) {
        let bits = u32::from(self.ag_block_bits);
        let ag = block.0.checked_shr(bits).unwrap_or_default();
        let within = low_bits(block.0, bits);
        // Numbers too large for a group become one that does not exist.
        (
            AgNr(u32::try_from(ag).unwrap_or(u32::MAX)),
            AgBlock(u32::try_from(within).unwrap_or(u32::MAX)),
        )
    }

    /// Whether `count` blocks from `block` lie within one allocation group.
    #[must_use]
    pub fn contains(&self, block: FsBlock, count: u64) -> bool {
        let (ag, within) = self.split(block);
        let end = u64::from(within.0).saturating_add(count);
        end <= u64::from(self.ag_len(ag)) && u64::from(within.0) < end
    }

    /// First byte of an allocation group on the data device.
    #[must_use]
    pub fn ag_offset(&self, ag: AgNr) -> u64 {
        u64::from(ag.0)
            .saturating_mul(self.ag_blocks.into())
            .checked_shl(self.block_bits.into())
            .unwrap_or(u64::MAX)
    }

    /// First byte of a block on the data device.
    #[must_use]
    pub fn byte_offset(&self, block: FsBlock) -> u64 {
        let (ag, within) = self.split(block);
        let within = u64::from(within.0)
            .checked_shl(self.block_bits.into())
            .unwrap_or(u64::MAX);
        self.ag_offset(ag).saturating_add(within)
    }

    /// Where a block lies in units of 512 bytes, as metadata stores its own place.
    #[must_use]
    pub fn basic_block(&self, block: FsBlock) -> BasicBlock {
        BasicBlock::of_byte(self.byte_offset(block))
    }

    /// The location of a basic block of the data device, for reports: its allocation group, and its
    /// block counted from the start of the filesystem.
    #[must_use]
    pub fn locus(&self, at: BasicBlock) -> Locus {
        let block = at
            .byte_offset()
            .checked_shr(self.block_bits.into())
            .unwrap_or_default();
        let group = block.checked_div(self.ag_blocks.into()).unwrap_or_default();
        Locus::group(group).at_block(block)
    }

    /// Whether `count` blocks from `block` lie on the realtime device, in one realtime group where
    /// there are groups.
    #[must_use]
    pub fn contains_rt(&self, block: RtBlock, count: u64) -> bool {
        if self.rt_group_count == 0 {
            let end = block.0.checked_add(count);
            return count > 0 && end.is_some_and(|end| end <= self.rt_blocks);
        }
        let (group, within) = self.split_rt(block);
        let start = group.saturating_mul(self.rt_group_blocks.into());
        let len = self
            .rt_blocks
            .saturating_sub(start)
            .min(self.rt_group_blocks.into());
        let end = within.saturating_add(count);
        group < u64::from(self.rt_group_count) && end <= len && within < end
    }

    /// First byte of a block on the realtime device.
    #[must_use]
    pub fn rt_byte_offset(&self, block: RtBlock) -> u64 {
        let linear = if self.rt_group_count == 0 {
            block.0
        } else {
            let (group, within) = self.split_rt(block);
            let start = group.saturating_mul(self.rt_group_blocks.into());
            start.saturating_add(within)
        };
        linear
            .checked_shl(self.block_bits.into())
            .unwrap_or(u64::MAX)
    }

    /// The realtime group of a block, and its block there; without groups, the first.
    #[must_use]
    pub fn split_rt(&self, block: RtBlock) -> (u64, u64) {
        if self.rt_group_count == 0 {
            return (0, block.0);
        }
        let bits = u32::from(self.rt_group_block_bits);
        let group = block.0.checked_shr(bits).unwrap_or_default();
        (group, low_bits(block.0, bits))
    }

    /// The allocation group of an inode, and its number there. Neither need exist.
    #[must_use]
    pub fn split_inode(&self, inode: InodeNr) -> (AgNr, AgInode) {
        let bits =
            u32::from(self.ag_block_bits).saturating_add(self.inodes_per_block_bits().into());
        let ag = inode.get().checked_shr(bits).unwrap_or_default();
        let within = low_bits(inode.get(), bits);
        (
            AgNr(u32::try_from(ag).unwrap_or(u32::MAX)),
            AgInode(u32::try_from(within).unwrap_or(u32::MAX)),
        )
    }

    /// The absolute number of an inode of an allocation group; `None` for the number zero.
    #[must_use]
    pub fn inode_nr(&self, ag: AgNr, inode: AgInode) -> Option<InodeNr> {
        let bits =
            u32::from(self.ag_block_bits).saturating_add(self.inodes_per_block_bits().into());
        let high = u64::from(ag.0).checked_shl(bits)?;
        InodeNr::new(high | u64::from(inode.0))
    }

    /// The block of an inode within its allocation group, and its first byte there.
    #[must_use]
    pub fn locate_ag_inode(&self, inode: AgInode) -> (AgBlock, usize) {
        let bits = u32::from(self.inodes_per_block_bits());
        let block = inode.0.checked_shr(bits).unwrap_or_default();
        let index = low_bits(inode.0.into(), bits);
        let offset = index
            .checked_shl(self.inode_bits.into())
            .unwrap_or_default();
        (AgBlock(block), usize::try_from(offset).unwrap_or_default())
    }

    /// The number within its group of the first inode of a block.
    #[must_use]
    pub fn first_ag_inode(&self, block: AgBlock) -> AgInode {
        let bits = self.inodes_per_block_bits();
        AgInode(block.0.checked_shl(bits.into()).unwrap_or_default())
    }

    /// Size of a sector in basic blocks, as a power of two (`m_sectbb_log`).
    #[must_use]
    pub fn sector_units_bits(&self) -> u8 {
        self.sector_bits.saturating_sub(BASIC_BLOCK_BITS)
    }

    /// The alignment of the first and last inodes of a group in blocks (`cluster_align`).
    #[must_use]
    pub fn inode_range_alignment(&self) -> u32 {
        let is_aligned = self.features.has_align() && self.inode_alignment >= self.cluster_blocks();
        if is_aligned { self.inode_alignment } else { 1 }
    }

    /// The blocks of a group that may hold inodes: those after its headers, whose last one is the free
    /// list in its fourth sector, in whole alignments. `sector_units_bits` is the size of a sector in
    /// basic blocks.
    #[must_use]
    pub fn inode_blocks(&self, ag: AgNr, sector_units_bits: u8) -> Range<u32> {
        let align = self.inode_range_alignment();
        let last_header = AGFL_SECTOR
            .checked_shl(sector_units_bits.into())
            .unwrap_or(u32::MAX);
        let block_bits = self.block_bits.saturating_sub(BASIC_BLOCK_BITS);
        let last_header = last_header
            .checked_shr(block_bits.into())
            .unwrap_or_default();
        let first = last_header.saturating_add(1);
        let first = first.checked_next_multiple_of(align).unwrap_or(u32::MAX);
        let end = self.ag_len(ag);
        let end = end.saturating_sub(end.checked_rem(align).unwrap_or_default());
        first..end
    }

    /// Whether an inode of a group can have this number.
    #[must_use]
    pub fn is_ag_inode(&self, ag: AgNr, inode: AgInode) -> bool {
        let (block, _) = self.locate_ag_inode(inode);
        self.inode_blocks(ag, self.sector_units_bits())
            .contains(&block.0)
    }

    /// Where an inode lies; `None` for a number that no inode can have.
    #[must_use]
    pub fn locate_inode(&self, inode: InodeNr) -> Option<InodeLocation> {
        self.locate_inode_after(inode, self.sector_units_bits())
    }

    /// As [`locate_inode`](Self::locate_inode), where the caller keeps the size of a sector in basic blocks.
    #[must_use]
    pub fn locate_inode_after(
        &self,
        inode: InodeNr,
        sector_units_bits: u8,
    ) -> Option<InodeLocation> {
        let (ag, within) = self.split_inode(inode);
        let (block, offset) = self.locate_ag_inode(within);
        self.inode_blocks(ag, sector_units_bits)
            .contains(&block.0)
            .then_some(InodeLocation { ag, block, offset })
    }
}

fn shift(bits: u8) -> u32 {
    1_u32.checked_shl(bits.into()).unwrap_or_default()
}

fn low_bits(value: u64, bits: u32) -> u64 {
    let mask = 1_u64
        .checked_shl(bits)
        .map_or(u64::MAX, |size| size.saturating_sub(1));
    value & mask
}

#[cfg(test)]
pub(crate) mod tests {
    use super::super::superblock::tests::{sample, sample_v4};
    use super::*;

    /// The geometry of the sample superblock: 4 groups of 4096 blocks of 4 KiB, inodes of 512 bytes.
    pub(crate) fn sample_geometry() -> Geometry {
        Geometry::new(&sample().decode().unwrap())
    }

    /// The same filesystem in version 4.
    pub(crate) fn sample_geometry_v4() -> Geometry {
        Geometry::new(&sample_v4().decode().unwrap())
    }

    #[test]
    fn block_numbers_split_and_join() {
        let mut geometry = sample_geometry();
        geometry.ag_blocks = 3000;
        geometry.growth = Growth::new(FsSize {
            ag_count: 4,
            data_blocks: 3 * 3000 + 700,
        });
        let block = geometry.fs_block(AgNr(2), AgBlock(17));
        assert_eq!(block, FsBlock(2 * 4096 + 17));
        assert_eq!(geometry.split(block), (AgNr(2), AgBlock(17)));
        assert_eq!(geometry.byte_offset(block), (2 * 3000 + 17) * 4096);
        assert_eq!(geometry.basic_block(block).0, (2 * 3000 + 17) * 8);
        assert_eq!(geometry.ag_len(AgNr(3)), 700);
        assert_eq!(geometry.ag_len(AgNr(4)), 0);
        assert!(geometry.contains(geometry.fs_block(AgNr(3), AgBlock(0)), 700));
        assert!(!geometry.contains(geometry.fs_block(AgNr(3), AgBlock(0)), 701));
        assert!(!geometry.contains(geometry.fs_block(AgNr(0), AgBlock(3000)), 1));
        assert!(!geometry.contains(FsBlock(u64::MAX), 1));
        assert!(!geometry.contains(FsBlock(1), 0));
    }

    #[test]
    fn inode_numbers_name_a_block_and_a_byte() {
        let geometry = sample_geometry();
        let inode = InodeNr::new((1 << 15) | (24 << 3) | 5).unwrap();
        let expected = InodeLocation {
            ag: AgNr(1),
            block: AgBlock(24),
            offset: 5 * 512,
        };
        assert_eq!(geometry.locate_inode(inode), Some(expected));
        let (ag, within) = geometry.split_inode(inode);
        assert_eq!(geometry.inode_nr(ag, within), Some(inode));
        for bad in [1, 7, 4 << 15, u64::MAX - 1] {
            let inode = InodeNr::new(bad).unwrap();
            assert_eq!(geometry.locate_inode(inode), None, "{bad}");
        }
    }

    #[test]
    fn inodes_begin_after_the_headers_of_their_group() {
        let mut geometry = sample_geometry();
        geometry.inode_alignment = 0;
        assert_eq!(geometry.inode_blocks(AgNr(0), 0), 1..4096);
        assert!(geometry.inode_blocks(AgNr(4), 0).is_empty());
        geometry.block_bits = 10;
        assert_eq!(geometry.inode_blocks(AgNr(0), 0).start, 2);
        assert_eq!(geometry.inode_blocks(AgNr(0), 1).start, 4);
        geometry.block_bits = 9;
        assert_eq!(geometry.inode_blocks(AgNr(0), 0).start, 4);
        geometry = sample_geometry();
        geometry.inode_alignment = 8;
        geometry.growth = Growth::new(FsSize {
            ag_count: 1,
            data_blocks: 4095,
        });
        assert_eq!(geometry.inode_blocks(AgNr(0), 0), 8..4088);
    }

    #[test]
    fn one_inode_may_fill_a_block() {
        let mut geometry = sample_geometry();
        (geometry.block_bits, geometry.inode_bits) = (9, 9);
        assert_eq!(geometry.inodes_per_block(), 1);
        assert_eq!(geometry.chunk_blocks(), 64);
        assert_eq!(geometry.cluster_blocks(), 32);
        assert_eq!(geometry.locate_ag_inode(AgInode(70)), (AgBlock(70), 0));
    }

    #[test]
    fn clusters_grow_with_inodes_in_version_5() {
        let mut geometry = sample_geometry();
        assert_eq!((geometry.cluster_blocks(), geometry.chunk_blocks()), (4, 8));
        geometry.block_bits = 16;
        assert_eq!((geometry.cluster_blocks(), geometry.chunk_blocks()), (1, 1));
        let v4 = sample_geometry_v4();
        assert_eq!(v4.cluster_blocks(), 2);
    }

    #[test]
    fn realtime_blocks_are_linear_or_in_groups() {
        let mut geometry = sample_geometry();
        geometry.rt_blocks = 1000;
        assert!(geometry.contains_rt(RtBlock(999), 1));
        assert!(!geometry.contains_rt(RtBlock(999), 2));
        assert_eq!(geometry.rt_byte_offset(RtBlock(3)), 3 * 4096);
        geometry.rt_group_blocks = 300;
        geometry.rt_group_block_bits = 9;
        geometry.rt_group_count = 4;
        assert!(geometry.contains_rt(RtBlock(3 << 9), 100));
        assert!(!geometry.contains_rt(RtBlock(3 << 9), 101));
        assert!(!geometry.contains_rt(RtBlock(4 << 9), 1));
        assert!(!geometry.contains_rt(RtBlock(300), 1));
        assert_eq!(geometry.rt_byte_offset(RtBlock((1 << 9) | 2)), 302 * 4096);
    }
}
