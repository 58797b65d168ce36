//! Group descriptors: locations of a group's bitmaps and inode table, and its free counts. Spec:
//! `ext4/group_descr`.

use std::mem::offset_of;

use bitflags::bitflags;
use platter_ondisk::checksum::{crc16, crc32c};
use platter_ondisk::endian::{Le16, Le32, join_u16, join_u32};
use platter_ondisk::{Corrupt, Locus, rules};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::features::Incompat;
use super::geometry::Geometry;
use super::types::{BlockNr, GroupNr};

/// The part of a group descriptor that every filesystem has.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskGroupDesc {
    /// `bg_block_bitmap_lo`.
    pub block_bitmap_lo: Le32,
    /// `bg_inode_bitmap_lo`.
    pub inode_bitmap_lo: Le32,
    /// `bg_inode_table_lo`.
    pub inode_table_lo: Le32,
    /// `bg_free_blocks_count_lo`, in clusters.
    pub free_clusters_lo: Le16,
    /// `bg_free_inodes_count_lo`.
    pub free_inodes_lo: Le16,
    /// `bg_used_dirs_count_lo`.
    pub used_dirs_lo: Le16,
    /// `bg_flags`.
    pub flags: Le16,
    /// `bg_exclude_bitmap_lo`.
    pub exclude_bitmap_lo: Le32,
    /// `bg_block_bitmap_csum_lo`.
    pub block_bitmap_checksum_lo: Le16,
    /// `bg_inode_bitmap_csum_lo`.
    pub inode_bitmap_checksum_lo: Le16,
    /// `bg_itable_unused_lo`.
    pub unused_inodes_lo: Le16,
    /// `bg_checksum`.
    pub checksum: Le16,
}

/// The second half of a descriptor, with the 64bit feature.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskGroupDescHigh {
    /// `bg_block_bitmap_hi`.
    pub block_bitmap: Le32,
    /// `bg_inode_bitmap_hi`.
    pub inode_bitmap: Le32,
    /// `bg_inode_table_hi`.
    pub inode_table: Le32,
    /// `bg_free_blocks_count_hi`.
    pub free_clusters: Le16,
    /// `bg_free_inodes_count_hi`.
    pub free_inodes: Le16,
    /// `bg_used_dirs_count_hi`.
    pub used_dirs: Le16,
    /// `bg_itable_unused_hi`.
    pub unused_inodes: Le16,
    /// `bg_exclude_bitmap_hi`.
    pub exclude_bitmap: Le32,
    /// `bg_block_bitmap_csum_hi`.
    pub block_bitmap_checksum: Le16,
    /// `bg_inode_bitmap_csum_hi`.
    pub inode_bitmap_checksum: Le16,
    /// `bg_reserved`.
    pub reserved: Le32,
}

const _: () = assert!(size_of::<DiskGroupDesc>() == 32);
const _: () = assert!(offset_of!(DiskGroupDesc, flags) == 0x12);
const _: () = assert!(offset_of!(DiskGroupDesc, checksum) == 0x1e);
const _: () = assert!(size_of::<DiskGroupDescHigh>() == 32);

bitflags! {
    /// `bg_flags`.
    #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default)]
    pub struct GroupFlags: u16 {
        /// No inode of the group was ever used; its bitmap is not initialized.
        const INODE_UNINIT = 0x1;
        /// Only metadata uses blocks of the group; its bitmap is not initialized.
        const BLOCK_UNINIT = 0x2;
        /// The inode table was zeroed.
        const INODE_ZEROED = 0x4;
    }
}

rules! {
    /// The rules of a group descriptor.
    pub enum GroupDescRule of "group descriptor" {
        /// It is within its block.
        Truncated => "is truncated",
        /// `bg_checksum`.
        Checksum => "checksum does not match",
        /// The block bitmap is in the group, or with `flex_bg` in the filesystem.
        BlockBitmap => "block bitmap is not in group",
        /// The inode bitmap is in the group, or with `flex_bg` in the filesystem.
        InodeBitmap => "inode bitmap is not in group",
        /// The inode table is in the group, or with `flex_bg` in the filesystem.
        InodeTable => "inode table is not in group",
    }
}

/// A validated group descriptor.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GroupDesc {
    /// Location of the block bitmap.
    pub block_bitmap: BlockNr,
    /// Location of the inode bitmap.
    pub inode_bitmap: BlockNr,
    /// First block of the inode table.
    pub inode_table: BlockNr,
    /// Number of free clusters.
    pub free_clusters: u32,
    /// Number of free inodes.
    pub free_inodes: u32,
    /// Number of directories.
    pub used_dirs: u32,
    /// Number of inodes at the end of the table that were never used.
    pub unused_inodes: u32,
    /// The uninitialized parts of the group.
    pub flags: GroupFlags,
    /// `bg_flags` as stored, also where they are ignored: without group checksums.
    pub stored_flags: GroupFlags,
    /// CRC-32C of the block bitmap; only its lower half in 32-byte descriptors.
    pub block_bitmap_checksum: u32,
    /// CRC-32C of the inode bitmap; only its lower half in 32-byte descriptors.
    pub inode_bitmap_checksum: u32,
}

impl GroupDesc {
    /// Validates the descriptor at the start of `bytes`.
    pub fn decode(
        bytes: &[u8],
        group: GroupNr,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt<GroupDescRule>> {
        let desc = Self::decode_unsummed(bytes, group, geometry);
        let bytes = bytes.get(..usize::from(geometry.descriptor_bytes));
        let bytes = bytes.unwrap_or_default();
        let stored = DiskGroupDesc::ref_from_prefix(bytes).map(|(low, _)| low.checksum.get());
        let is_wrong =
            stored.is_ok_and(|stored| stored != expected_checksum(bytes, group, geometry));
        if geometry.features.has_group_csum() && is_wrong {
            let locus = Locus::group(u64::from(group.0));
            return Err(Corrupt::new(locus, GroupDescRule::Checksum));
        }
        desc
    }

    /// Like [`decode`](Self::decode), without verifying the checksum: for the check of a group
    /// whose checksum does not match.
    pub fn decode_unsummed(
        bytes: &[u8],
        group: GroupNr,
        geometry: &Geometry,
    ) -> Result<Self, Corrupt<GroupDescRule>> {
        let broken = |rule| Corrupt::new(Locus::group(u64::from(group.0)), rule);
        let bytes = bytes
            .get(..usize::from(geometry.descriptor_bytes))
            .ok_or(broken(GroupDescRule::Truncated))?;
        let (low, rest) =
            DiskGroupDesc::ref_from_prefix(bytes).map_err(|_| broken(GroupDescRule::Truncated))?;
        let high = DiskGroupDescHigh::ref_from_prefix(rest)
            .ok()
            .map(|(high, _)| high);
        let desc = Self::join(low, high, geometry);
        desc.validate_locations(group, geometry).map_err(broken)?;
        Ok(desc)
    }

    fn join(low: &DiskGroupDesc, high: Option<&DiskGroupDescHigh>, geometry: &Geometry) -> Self {
        let zero = DiskGroupDescHigh::new_zeroed_high();
        let high = high.unwrap_or(&zero);
        let wide = |high: Le32, low: Le32| BlockNr(join_u32(high.get(), low.get()));
        let count = |high: Le16, low: Le16| join_u16(high.get(), low.get());
        let stored_flags = GroupFlags::from_bits_retain(low.flags.get());
        let flags = if geometry.features.has_group_csum() {
            stored_flags
        } else {
            GroupFlags::empty()
        };
        Self {
            block_bitmap: wide(high.block_bitmap, low.block_bitmap_lo),
            inode_bitmap: wide(high.inode_bitmap, low.inode_bitmap_lo),
            inode_table: wide(high.inode_table, low.inode_table_lo),
            free_clusters: count(high.free_clusters, low.free_clusters_lo),
            free_inodes: count(high.free_inodes, low.free_inodes_lo),
            used_dirs: count(high.used_dirs, low.used_dirs_lo),
            unused_inodes: count(high.unused_inodes, low.unused_inodes_lo),
            flags,
            stored_flags,
            block_bitmap_checksum: count(high.block_bitmap_checksum, low.block_bitmap_checksum_lo),
            inode_bitmap_checksum: count(high.inode_bitmap_checksum, low.inode_bitmap_checksum_lo),
        }
    }

    fn validate_locations(&self, group: GroupNr, geometry: &Geometry) -> Result<(), GroupDescRule> {
        let anywhere = geometry.features.incompat.contains(Incompat::FLEX_BG);
        let first = geometry.group_first_block(group);
        let end = first.checked_add(u64::from(geometry.group_blocks(group)));
        let inside = |block: BlockNr, count: u32| {
            let in_group = block >= first && block.checked_add(u64::from(count)) <= end;
            geometry.contains(block, u64::from(count)) && (anywhere || in_group)
        };
        if !inside(self.block_bitmap, 1) {
            return Err(GroupDescRule::BlockBitmap);
        }
        if !inside(self.inode_bitmap, 1) {
            return Err(GroupDescRule::InodeBitmap);
        }
        if !inside(self.inode_table, geometry.inode_table_blocks) {
            return Err(GroupDescRule::InodeTable);
        }
        Ok(())
    }
}

impl DiskGroupDescHigh {
    fn new_zeroed_high() -> Self {
        <Self as zerocopy::FromZeros>::new_zeroed()
    }
}

/// The group number and the descriptor with its checksum field zero, over which its checksum is
/// computed first.
#[derive(IntoBytes, Immutable, Unaligned)]
#[repr(C)]
struct NumberedDesc {
    number: Le32,
    desc: DiskGroupDesc,
}

/// Returns the expected checksum of a descriptor. `bytes` is the whole descriptor.
#[must_use]
pub fn expected_checksum(bytes: &[u8], group: GroupNr, geometry: &Geometry) -> u16 {
    let at = offset_of!(DiskGroupDesc, checksum);
    let tail = bytes.get(size_of::<DiskGroupDesc>()..).unwrap_or_default();
    let number = Le32::new(group.0);
    if geometry.features.has_metadata_csum() {
        let mut head = NumberedDesc {
            number,
            desc: DiskGroupDesc::read_from_prefix(bytes)
                .map_or(zerocopy::FromZeros::new_zeroed(), |(low, _)| low),
        };
        head.desc.checksum.set(0);
        let crc = crc32c(crc32c(geometry.checksum_seed, head.as_bytes()), tail);
        return u16::try_from(crc & 0xffff).unwrap_or_default();
    }
    let head = bytes.get(..at).unwrap_or_default();
    let seed = crc16(!0, geometry.uuid.as_bytes());
    crc16(crc16(crc16(seed, number.as_bytes()), head), tail)
}

/// Stores the checksum in a descriptor. `bytes` is the whole descriptor.
pub fn seal(bytes: &mut [u8], group: GroupNr, geometry: &Geometry) {
    if !geometry.features.has_group_csum() {
        return;
    }
    let checksum = expected_checksum(bytes, group, geometry);
    if let Ok((low, _)) = DiskGroupDesc::mut_from_prefix(bytes) {
        low.checksum.set(checksum);
    }
}

impl GroupDesc {
    /// Encodes a new descriptor, with its checksum.
    pub fn encode(&self, bytes: &mut [u8], group: GroupNr, geometry: &Geometry) {
        if let Ok((low, rest)) = DiskGroupDesc::mut_from_prefix(bytes) {
            let mut none = DiskGroupDescHigh::new_zeroed_high();
            let high = DiskGroupDescHigh::mut_from_prefix(rest);
            let high = high.map_or(&mut none, |(high, _)| high);
            split_wide(
                self.block_bitmap,
                &mut low.block_bitmap_lo,
                &mut high.block_bitmap,
            );
            split_wide(
                self.inode_bitmap,
                &mut low.inode_bitmap_lo,
                &mut high.inode_bitmap,
            );
            split_wide(
                self.inode_table,
                &mut low.inode_table_lo,
                &mut high.inode_table,
            );
        }
        self.encode_into(bytes, group, geometry);
    }

    /// Encodes the mutable fields of a group into its descriptor, with its checksum: counts, flags
    /// and the checksums of the bitmaps.
    pub fn encode_into(&self, bytes: &mut [u8], group: GroupNr, geometry: &Geometry) {
        let len = usize::from(geometry.descriptor_bytes).min(bytes.len());
        let Some(bytes) = bytes.get_mut(..len) else {
            return;
        };
        if let Ok((low, rest)) = DiskGroupDesc::mut_from_prefix(bytes) {
            let mut none = DiskGroupDescHigh::new_zeroed_high();
            let high = DiskGroupDescHigh::mut_from_prefix(rest);
            let high = high.map_or(&mut none, |(high, _)| high);
            split(
                self.free_clusters,
                &mut low.free_clusters_lo,
                &mut high.free_clusters,
            );
            split(
                self.free_inodes,
                &mut low.free_inodes_lo,
                &mut high.free_inodes,
            );
            split(self.used_dirs, &mut low.used_dirs_lo, &mut high.used_dirs);
            // Without group checksums, all inodes and bitmaps are initialized.
            let has_unused = geometry.features.has_group_csum();
            split(
                if has_unused { self.unused_inodes } else { 0 },
                &mut low.unused_inodes_lo,
                &mut high.unused_inodes,
            );
            split(
                self.block_bitmap_checksum,
                &mut low.block_bitmap_checksum_lo,
                &mut high.block_bitmap_checksum,
            );
            split(
                self.inode_bitmap_checksum,
                &mut low.inode_bitmap_checksum_lo,
                &mut high.inode_bitmap_checksum,
            );
            low.flags = if has_unused {
                self.flags.bits().into()
            } else {
                let uninit = GroupFlags::INODE_UNINIT | GroupFlags::BLOCK_UNINIT;
                self.stored_flags.difference(uninit).bits().into()
            };
        }
        seal(bytes, group, geometry);
    }
}

fn split_wide(block: BlockNr, low: &mut Le32, high: &mut Le32) {
    let [b0, b1, b2, b3, b4, b5, b6, b7] = block.0.to_le_bytes();
    *low = Le32::from_bytes([b0, b1, b2, b3]);
    *high = Le32::from_bytes([b4, b5, b6, b7]);
}

fn split(value: u32, low: &mut Le16, high: &mut Le16) {
    let [b0, b1, b2, b3] = value.to_le_bytes();
    *low = Le16::from_bytes([b0, b1]);
    *high = Le16::from_bytes([b2, b3]);
}

#[cfg(test)]
mod tests {
    use super::super::features::RoCompat;
    use super::super::geometry::tests::sample_geometry;
    use super::*;

    fn sample(geometry: &Geometry) -> Vec<u8> {
        let mut bytes = vec![0; usize::from(geometry.descriptor_bytes)];
        let (low, _) = DiskGroupDesc::mut_from_prefix(&mut bytes).unwrap();
        low.block_bitmap_lo.set(3);
        low.inode_bitmap_lo.set(4);
        low.inode_table_lo.set(5);
        low.free_clusters_lo.set(7000);
        seal(&mut bytes, geometry);
        bytes
    }

    fn seal(bytes: &mut [u8], geometry: &Geometry) {
        let checksum = expected_checksum(bytes, GroupNr(0), geometry);
        let (low, _) = DiskGroupDesc::mut_from_prefix(bytes).unwrap();
        low.checksum.set(checksum);
    }

    fn broken(geometry: &Geometry, change: impl FnOnce(&mut DiskGroupDesc)) -> GroupDescRule {
        let mut bytes = sample(geometry);
        change(DiskGroupDesc::mut_from_prefix(&mut bytes).unwrap().0);
        seal(&mut bytes, geometry);
        GroupDesc::decode(&bytes, GroupNr(0), geometry)
            .unwrap_err()
            .rule
    }

    #[test]
    fn descriptor_with_a_wrong_checksum_is_corrupt() {
        let mut geometry = sample_geometry();
        for (ro_compat, size) in [
            (RoCompat::METADATA_CSUM, 32),
            (RoCompat::METADATA_CSUM, 64),
            (RoCompat::GDT_CSUM, 32),
            (RoCompat::GDT_CSUM, 128),
        ] {
            geometry.features.ro_compat = ro_compat;
            geometry.descriptor_bytes = size;
            let mut bytes = sample(&geometry);
            let desc = GroupDesc::decode(&bytes, GroupNr(0), &geometry).unwrap();
            assert_eq!(desc.free_clusters, 7000);
            *bytes.last_mut().unwrap() ^= 1;
            let corrupt = GroupDesc::decode(&bytes, GroupNr(0), &geometry).unwrap_err();
            assert_eq!(corrupt.rule, GroupDescRule::Checksum);
        }
    }

    #[test]
    fn descriptor_pointing_outside_is_corrupt() {
        use GroupDescRule as Rule;
        let geometry = sample_geometry();
        assert_eq!(
            broken(&geometry, |d| d.block_bitmap_lo.set(0)),
            Rule::BlockBitmap
        );
        assert_eq!(
            broken(&geometry, |d| d.inode_bitmap_lo.set(8192)),
            Rule::InodeBitmap
        );
        assert_eq!(
            broken(&geometry, |d| d.inode_table_lo.set(8000)),
            Rule::InodeTable
        );
    }

    #[test]
    fn only_flex_bg_stores_metadata_in_other_groups() {
        let mut geometry = sample_geometry();
        geometry.blocks_count = 16384;
        geometry.groups_count = 2;
        let outside = |desc: &mut DiskGroupDesc| desc.inode_bitmap_lo.set(9000);
        assert_eq!(broken(&geometry, outside), GroupDescRule::InodeBitmap);
        geometry.features.incompat |= Incompat::FLEX_BG;
        let mut bytes = sample(&geometry);
        outside(DiskGroupDesc::mut_from_prefix(&mut bytes).unwrap().0);
        seal(&mut bytes, &geometry);
        assert!(GroupDesc::decode(&bytes, GroupNr(0), &geometry).is_ok());
    }

    #[test]
    fn truncated_descriptor_is_corrupt() {
        let geometry = sample_geometry();
        let corrupt = GroupDesc::decode(&[0; 31], GroupNr(0), &geometry).unwrap_err();
        assert_eq!(corrupt.rule, GroupDescRule::Truncated);
    }
}
