//! The free space header of an allocation group, in its second sector.
//! Spec: `xfs/allocation_groups`, "AG Free Space Block".

use std::mem::offset_of;

use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::agfl;
use super::btree::BTREE_LEVELS_MAX;
use super::checksum::{self, Seal};
use super::geometry::Geometry;
use super::types::{AgBlock, AgNr, Lsn};

/// `agf_magicnum`: `XAGF`.
pub const AGF_MAGIC: u32 = 0x5841_4746;
const VERSION: u32 = 1;

/// The header as stored. Spec: `struct xfs_agf`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAgf {
    /// `agf_magicnum`.
    pub magic: Be32,
    /// `agf_versionnum`.
    pub version: Be32,
    /// `agf_seqno`: the allocation group.
    pub sequence: Be32,
    /// `agf_length`: its blocks.
    pub length: Be32,
    /// `agf_bno_root`.
    pub bno_root: Be32,
    /// `agf_cnt_root`.
    pub cnt_root: Be32,
    /// `agf_rmap_root`.
    pub rmap_root: Be32,
    /// `agf_bno_level`.
    pub bno_level: Be32,
    /// `agf_cnt_level`.
    pub cnt_level: Be32,
    /// `agf_rmap_level`.
    pub rmap_level: Be32,
    /// `agf_flfirst`: first entry of the free list in use.
    pub free_list_first: Be32,
    /// `agf_fllast`: last entry of the free list in use.
    pub free_list_last: Be32,
    /// `agf_flcount`: blocks of the free list.
    pub free_list_count: Be32,
    /// `agf_freeblks`: free blocks.
    pub free_blocks: Be32,
    /// `agf_longest`: blocks of the longest free extent.
    pub longest: Be32,
    /// `agf_btreeblks`: blocks of the free space B-trees beyond their roots.
    pub btree_blocks: Be32,
    /// `agf_uuid`.
    pub uuid: [u8; 16],
    /// `agf_rmap_blocks`.
    pub rmap_blocks: Be32,
    /// `agf_refcount_blocks`.
    pub refcount_blocks: Be32,
    /// `agf_refcount_root`.
    pub refcount_root: Be32,
    /// `agf_refcount_level`.
    pub refcount_level: Be32,
    /// `agf_spare64`.
    pub spare: [Be64; 14],
    /// `agf_lsn`.
    pub lsn: Be64,
    /// `agf_crc`, of the sector.
    pub checksum: Le32,
    /// `agf_spare2`.
    pub spare2: Be32,
}

const _: () = assert!(size_of::<DiskAgf>() == 224);
const _: () = assert!(offset_of!(DiskAgf, uuid) == 64);
const _: () = assert!(offset_of!(DiskAgf, refcount_root) == 88);
const _: () = assert!(offset_of!(DiskAgf, lsn) == 208);

impl DiskAgf {
    /// Where the checksum lies in the sector.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);
}

rules! {
    /// What the free space header of a group must hold to.
    pub enum AgfRule of "AGF" {
        /// `agf_magicnum`.
        Magic => "bad magic number",
        /// `agf_versionnum`.
        Version => "bad version number",
        /// `agf_crc`.
        Checksum => "bad CRC",
        /// `agf_uuid`.
        Uuid => "bad UUID",
        /// `agf_seqno`.
        Sequence => "bad sequence number",
        /// `agf_length`.
        Length => "bad length",
        /// The roots of the B-trees lie within the group.
        Root => "B-tree root lies outside the allocation group",
        /// The levels of the B-trees.
        Level => "bad B-tree level",
        /// `agf_flfirst`, `agf_fllast` and `agf_flcount`.
        FreeList => "bad free list position or count",
        /// `agf_freeblks` and `agf_longest`.
        FreeBlocks => "bad free block or longest extent count",
    }
}

/// A B-tree of an allocation group, by its root.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TreeRoot {
    /// The root block.
    pub block: AgBlock,
    /// Levels of the tree; 1 if the root is a leaf.
    pub levels: u32,
}

impl TreeRoot {
    /// The root and levels of a header, if they can be.
    pub(super) fn new(block: Be32, levels: Be32, len: u32) -> Result<Self, RootFault> {
        let (block, levels) = (block.get(), levels.get());
        if block == 0 || block >= len {
            return Err(RootFault::Block);
        }
        if levels == 0 || levels > BTREE_LEVELS_MAX {
            return Err(RootFault::Levels);
        }
        Ok(Self {
            block: AgBlock(block),
            levels,
        })
    }
}

/// What is wrong with the root of a B-tree.
#[derive(Debug, Clone, Copy)]
pub(super) enum RootFault {
    Block,
    Levels,
}

/// A free space header whose rules hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agf {
    /// The allocation group.
    pub ag: AgNr,
    /// Its blocks.
    pub length: u32,
    /// Free extents by block.
    pub bno: TreeRoot,
    /// Free extents by length.
    pub cnt: TreeRoot,
    /// Owners of blocks.
    pub rmap: Option<TreeRoot>,
    /// Reference counts of blocks.
    pub refcount: Option<TreeRoot>,
    /// First entry of the free list in use.
    pub free_list_first: u32,
    /// Last entry of the free list in use.
    pub free_list_last: u32,
    /// Blocks of the free list.
    pub free_list_count: u32,
    /// Free blocks, without those of the free list.
    pub free_blocks: u32,
    /// Blocks of the longest free extent.
    pub longest: u32,
    /// Blocks of the free space and reverse mapping B-trees beyond their roots.
    pub btree_blocks: u32,
    /// Blocks of the reverse mapping B-tree.
    pub rmap_blocks: u32,
    /// Blocks of the reference count B-tree.
    pub refcount_blocks: u32,
    /// Position in the log of the last change.
    pub lsn: Lsn,
}

impl Agf {
    /// Validates the header in a sector.
    pub fn decode(sector: &[u8], geometry: &Geometry, ag: AgNr) -> Result<Self, AgfRule> {
        Self::decode_as(sector, geometry, ag, Seal::Present)
    }

    /// Validates the header in a sector, whose checksum was compared before, or is computed when it is written.
    pub fn decode_unsealed(sector: &[u8], geometry: &Geometry, ag: AgNr) -> Result<Self, AgfRule> {
        Self::decode_as(sector, geometry, ag, Seal::Later)
    }

    fn decode_as(
        sector: &[u8],
        geometry: &Geometry,
        ag: AgNr,
        seal: Seal,
    ) -> Result<Self, AgfRule> {
        let (disk, _) = DiskAgf::ref_from_prefix(sector).map_err(|_| AgfRule::Magic)?;
        if disk.magic.get() != AGF_MAGIC {
            return Err(AgfRule::Magic);
        }
        let is_v5 = geometry.features.is_v5();
        if is_v5 {
            if seal == Seal::Present && !checksum::matches(sector, DiskAgf::CHECKSUM_OFFSET) {
                return Err(AgfRule::Checksum);
            }
            if disk.uuid != *geometry.meta_uuid.as_bytes() {
                return Err(AgfRule::Uuid);
            }
        }
        if disk.version.get() != VERSION {
            return Err(AgfRule::Version);
        }
        if disk.sequence.get() != ag.0 {
            return Err(AgfRule::Sequence);
        }
        let length = disk.length.get();
        if length != geometry.ag_len(ag) {
            return Err(AgfRule::Length);
        }
        let slots = agfl::slots(geometry);
        let is_slot = |slot: Be32| slot.get() < slots;
        if !is_slot(disk.free_list_first)
            || !is_slot(disk.free_list_last)
            || disk.free_list_count.get() > slots
        {
            return Err(AgfRule::FreeList);
        }
        let (free_blocks, longest) = (disk.free_blocks.get(), disk.longest.get());
        if free_blocks > length || longest > free_blocks {
            return Err(AgfRule::FreeBlocks);
        }
        let root = |block, levels| {
            TreeRoot::new(block, levels, length).map_err(|fault| match fault {
                RootFault::Block => AgfRule::Root,
                RootFault::Levels => AgfRule::Level,
            })
        };
        let with = |on: bool, block, levels| on.then(|| root(block, levels)).transpose();
        let features = &geometry.features;
        Ok(Self {
            ag,
            length,
            bno: root(disk.bno_root, disk.bno_level)?,
            cnt: root(disk.cnt_root, disk.cnt_level)?,
            rmap: with(features.has_rmapbt(), disk.rmap_root, disk.rmap_level)?,
            refcount: with(
                features.has_reflink(),
                disk.refcount_root,
                disk.refcount_level,
            )?,
            free_list_first: disk.free_list_first.get(),
            free_list_last: disk.free_list_last.get(),
            free_list_count: disk.free_list_count.get(),
            free_blocks,
            longest,
            btree_blocks: disk.btree_blocks.get(),
            rmap_blocks: disk.rmap_blocks.get(),
            refcount_blocks: disk.refcount_blocks.get(),
            lsn: Lsn(if is_v5 { disk.lsn.get() } else { 0 }),
        })
    }

    /// Stores every field that changes while a filesystem is in use. The rest of `disk` stays.
    pub fn store(&self, disk: &mut DiskAgf) {
        let none = TreeRoot {
            block: AgBlock(0),
            levels: 0,
        };
        let (rmap, refcount) = (self.rmap.unwrap_or(none), self.refcount.unwrap_or(none));
        disk.length.set(self.length);
        disk.bno_root.set(self.bno.block.0);
        disk.bno_level.set(self.bno.levels);
        disk.cnt_root.set(self.cnt.block.0);
        disk.cnt_level.set(self.cnt.levels);
        disk.rmap_root.set(rmap.block.0);
        disk.rmap_level.set(rmap.levels);
        disk.refcount_root.set(refcount.block.0);
        disk.refcount_level.set(refcount.levels);
        disk.free_list_first.set(self.free_list_first);
        disk.free_list_last.set(self.free_list_last);
        disk.free_list_count.set(self.free_list_count);
        disk.free_blocks.set(self.free_blocks);
        disk.longest.set(self.longest);
        disk.btree_blocks.set(self.btree_blocks);
        disk.rmap_blocks.set(self.rmap_blocks);
        disk.refcount_blocks.set(self.refcount_blocks);
        disk.lsn.set(self.lsn.0);
    }

    /// The sector of a new group.
    #[must_use]
    pub fn encode(&self, geometry: &Geometry) -> Vec<u8> {
        let mut disk = DiskAgf::new_zeroed();
        disk.magic.set(AGF_MAGIC);
        disk.version.set(VERSION);
        disk.sequence.set(self.ag.0);
        disk.uuid = *geometry.meta_uuid.as_bytes();
        self.store(&mut disk);
        sealed_sector(disk.as_bytes(), geometry, DiskAgf::CHECKSUM_OFFSET)
    }
}

/// A header of a group in a sector, with its checksum.
pub(super) fn sealed_sector(header: &[u8], geometry: &Geometry, checksum_at: usize) -> Vec<u8> {
    let mut sector = header.to_vec();
    let len = usize::try_from(geometry.sector_bytes()).unwrap_or_default();
    sector.resize(len.max(sector.len()), 0);
    checksum::seal(&mut sector, checksum_at);
    sector
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};

    /// Group 1 of the sample geometry, as `mkfs.xfs` makes it.
    fn sample() -> DiskAgf {
        let mut disk = DiskAgf::read_from_bytes(&[0; size_of::<DiskAgf>()]).unwrap();
        disk.magic.set(AGF_MAGIC);
        disk.version.set(1);
        disk.sequence.set(1);
        disk.length.set(4096);
        disk.uuid = [0x5a; 16];
        for (root, level, block) in [
            (&mut disk.bno_root, &mut disk.bno_level, 1),
            (&mut disk.cnt_root, &mut disk.cnt_level, 2),
            (&mut disk.rmap_root, &mut disk.rmap_level, 5),
            (&mut disk.refcount_root, &mut disk.refcount_level, 6),
        ] {
            root.set(block);
            level.set(1);
        }
        disk.free_list_first.set(1);
        disk.free_list_last.set(6);
        disk.free_list_count.set(6);
        disk.free_blocks.set(4000);
        disk.longest.set(4000);
        disk
    }

    fn decode(disk: &DiskAgf) -> Result<Agf, AgfRule> {
        let mut sector = vec![0; 512];
        sector[..224].copy_from_slice(disk.as_bytes());
        checksum::seal(&mut sector, DiskAgf::CHECKSUM_OFFSET);
        Agf::decode(&sector, &sample_geometry(), AgNr(1))
    }

    fn broken(change: impl FnOnce(&mut DiskAgf)) -> AgfRule {
        let mut disk = sample();
        change(&mut disk);
        decode(&disk).unwrap_err()
    }

    #[test]
    fn header_of_a_group_is_decoded_and_stored() {
        let agf = decode(&sample()).unwrap();
        assert_eq!(
            (agf.bno.block, agf.refcount.unwrap().block.0),
            (AgBlock(1), 6)
        );
        let mut disk = sample();
        disk.longest.set(9);
        agf.store(&mut disk);
        assert_eq!(decode(&disk).unwrap(), agf);
        let sector = agf.encode(&sample_geometry());
        let again = Agf::decode(&sector, &sample_geometry(), AgNr(1)).unwrap();
        assert_eq!(again, agf);
        let v4 = sample_geometry_v4();
        let agf = Agf::decode(sample().as_bytes(), &v4, AgNr(1)).unwrap();
        assert_eq!((agf.rmap, agf.refcount), (None, None));
    }

    #[test]
    fn rules_of_the_header_are_checked() {
        assert_eq!(broken(|disk| disk.magic.set(7)), AgfRule::Magic);
        assert_eq!(broken(|disk| disk.version.set(2)), AgfRule::Version);
        assert_eq!(broken(|disk| disk.uuid[0] = 0), AgfRule::Uuid);
        assert_eq!(broken(|disk| disk.sequence.set(0)), AgfRule::Sequence);
        assert_eq!(broken(|disk| disk.length.set(4095)), AgfRule::Length);
        assert_eq!(broken(|disk| disk.bno_root.set(0)), AgfRule::Root);
        assert_eq!(broken(|disk| disk.cnt_root.set(4096)), AgfRule::Root);
        assert_eq!(broken(|disk| disk.rmap_level.set(0)), AgfRule::Level);
        assert_eq!(broken(|disk| disk.refcount_level.set(99)), AgfRule::Level);
        assert_eq!(
            broken(|disk| disk.free_list_last.set(119)),
            AgfRule::FreeList
        );
        assert_eq!(
            broken(|disk| disk.free_blocks.set(4097)),
            AgfRule::FreeBlocks
        );
        assert_eq!(broken(|disk| disk.longest.set(4001)), AgfRule::FreeBlocks);
        let mut sector = vec![0; 512];
        sector[..224].copy_from_slice(sample().as_bytes());
        let rule = Agf::decode(&sector, &sample_geometry(), AgNr(1)).unwrap_err();
        assert_eq!(rule, AgfRule::Checksum);
    }
}
