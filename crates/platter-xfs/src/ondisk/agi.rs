//! The inode header of an allocation group, in its third sector.
//! Spec: `xfs/allocation_groups`, "Inode Information".

use std::mem::offset_of;

use platter_ondisk::endian::{Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, FromZeros, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::agf::{RootFault, TreeRoot, sealed_sector};
use super::checksum::{self, Seal};
use super::geometry::Geometry;
use super::types::{AgBlock, AgInode, AgNr, Lsn};

/// `agi_magicnum`: `XAGI`.
pub const AGI_MAGIC: u32 = 0x5841_4749;
/// Lists of inodes without a name in a group.
pub const UNLINKED_BUCKETS: usize = 64;
const VERSION: u32 = 1;

/// The header as stored. Spec: `struct xfs_agi`; the last two fields: `xfs-headers/xfs_format.h`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskAgi {
    /// `agi_magicnum`.
    pub magic: Be32,
    /// `agi_versionnum`.
    pub version: Be32,
    /// `agi_seqno`: the allocation group.
    pub sequence: Be32,
    /// `agi_length`: its blocks.
    pub length: Be32,
    /// `agi_count`: allocated inodes.
    pub count: Be32,
    /// `agi_root`: of the inode B-tree.
    pub root: Be32,
    /// `agi_level`.
    pub level: Be32,
    /// `agi_freecount`: free inodes.
    pub free_count: Be32,
    /// `agi_newino`: the chunk that was allocated last.
    pub newest: Be32,
    /// `agi_dirino`: not in use.
    pub directory: Be32,
    /// `agi_unlinked`: heads of the lists of inodes without a name.
    pub unlinked: [Be32; UNLINKED_BUCKETS],
    /// `agi_uuid`.
    pub uuid: [u8; 16],
    /// `agi_crc`, of the sector.
    pub checksum: Le32,
    /// `agi_pad32`.
    pub padding: Be32,
    /// `agi_lsn`.
    pub lsn: Be64,
    /// `agi_free_root`: of the free inode B-tree.
    pub free_root: Be32,
    /// `agi_free_level`.
    pub free_level: Be32,
    /// `agi_iblocks`: blocks of the inode B-tree.
    pub inode_btree_blocks: Be32,
    /// `agi_fblocks`: blocks of the free inode B-tree.
    pub free_btree_blocks: Be32,
}

const _: () = assert!(size_of::<DiskAgi>() == 344);
const _: () = assert!(offset_of!(DiskAgi, unlinked) == 40);
const _: () = assert!(offset_of!(DiskAgi, uuid) == 296);
const _: () = assert!(offset_of!(DiskAgi, free_root) == 328);

impl DiskAgi {
    /// Where the checksum lies in the sector.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);
}

rules! {
    /// What the inode header of a group must hold to.
    pub enum AgiRule of "AGI" {
        /// `agi_magicnum`.
        Magic => "bad magic number",
        /// `agi_versionnum`.
        Version => "bad version number",
        /// `agi_crc`.
        Checksum => "bad CRC",
        /// `agi_uuid`.
        Uuid => "bad UUID",
        /// `agi_seqno`.
        Sequence => "bad sequence number",
        /// `agi_length`.
        Length => "bad length",
        /// The roots of the B-trees lie within the group.
        Root => "B-tree root lies outside the allocation group",
        /// The levels of the B-trees.
        Level => "bad B-tree level",
        /// `agi_count` and `agi_freecount`.
        Count => "more free inodes than inodes",
        /// `agi_unlinked`.
        Unlinked => "unlinked list starts at a number that no inode has",
    }
}

/// An inode header whose rules hold.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Agi {
    /// The allocation group.
    pub ag: AgNr,
    /// Its blocks.
    pub length: u32,
    /// Allocated inodes.
    pub count: u32,
    /// Free ones of them.
    pub free_count: u32,
    /// The chunk that was allocated last.
    pub newest: Option<AgInode>,
    /// Inode chunks.
    pub inobt: TreeRoot,
    /// Inode chunks with free inodes.
    pub finobt: Option<TreeRoot>,
    /// Heads of the lists of inodes without a name.
    pub unlinked: [Option<AgInode>; UNLINKED_BUCKETS],
    /// Blocks of the inode B-tree, where they are counted.
    pub inode_btree_blocks: u32,
    /// Blocks of the free inode B-tree, where they are counted.
    pub free_btree_blocks: u32,
    /// Position in the log of the last change.
    pub lsn: Lsn,
}

impl Agi {
    /// Whether an unlinked list has inodes.
    #[must_use]
    pub fn has_unlinked(&self) -> bool {
        self.unlinked.iter().any(Option::is_some)
    }

    /// Whether two headers of a group differ in no more than the blocks that are counted of their B-trees.
    #[must_use]
    pub fn is_recount_of(&self, other: &Self) -> bool {
        let recounted = Self {
            inode_btree_blocks: self.inode_btree_blocks,
            free_btree_blocks: self.free_btree_blocks,
            lsn: self.lsn,
            ..other.clone()
        };
        *self == recounted
    }

    /// Validates the header in a sector.
    pub fn decode(sector: &[u8], geometry: &Geometry, ag: AgNr) -> Result<Self, AgiRule> {
        Self::decode_as(sector, geometry, ag, Seal::Present)
    }

    /// Validates the header in a sector, whose checksum was compared before, or is computed when it is written.
    pub fn decode_unsealed(sector: &[u8], geometry: &Geometry, ag: AgNr) -> Result<Self, AgiRule> {
        Self::decode_as(sector, geometry, ag, Seal::Later)
    }

    fn decode_as(
        sector: &[u8],
        geometry: &Geometry,
        ag: AgNr,
        seal: Seal,
    ) -> Result<Self, AgiRule> {
        let (disk, _) = DiskAgi::ref_from_prefix(sector).map_err(|_| AgiRule::Magic)?;
        if disk.magic.get() != AGI_MAGIC {
            return Err(AgiRule::Magic);
        }
        let is_v5 = geometry.features.is_v5();
        if is_v5 {
            if seal == Seal::Present && !checksum::matches(sector, DiskAgi::CHECKSUM_OFFSET) {
                return Err(AgiRule::Checksum);
            }
            if disk.uuid != *geometry.meta_uuid.as_bytes() {
                return Err(AgiRule::Uuid);
            }
        }
        if disk.version.get() != VERSION {
            return Err(AgiRule::Version);
        }
        if disk.sequence.get() != ag.0 {
            return Err(AgiRule::Sequence);
        }
        let length = disk.length.get();
        if length != geometry.ag_len(ag) {
            return Err(AgiRule::Length);
        }
        if disk.free_count.get() > disk.count.get() {
            return Err(AgiRule::Count);
        }
        let mut unlinked = [None; UNLINKED_BUCKETS];
        let inode_blocks = geometry.inode_blocks(ag, geometry.sector_units_bits());
        for (head, stored) in unlinked.iter_mut().zip(&disk.unlinked) {
            let Some(inode) = AgInode(stored.get()).non_null() else {
                continue;
            };
            let (block, _) = geometry.locate_ag_inode(inode);
            if !inode_blocks.contains(&block.0) {
                return Err(AgiRule::Unlinked);
            }
            *head = Some(inode);
        }
        let root = |block, levels| {
            TreeRoot::new(block, levels, length).map_err(|fault| match fault {
                RootFault::Block => AgiRule::Root,
                RootFault::Levels => AgiRule::Level,
            })
        };
        let finobt = geometry.features.has_finobt();
        Ok(Self {
            ag,
            length,
            count: disk.count.get(),
            free_count: disk.free_count.get(),
            newest: AgInode(disk.newest.get()).non_null(),
            inobt: root(disk.root, disk.level)?,
            finobt: finobt
                .then(|| root(disk.free_root, disk.free_level))
                .transpose()?,
            unlinked,
            inode_btree_blocks: disk.inode_btree_blocks.get(),
            free_btree_blocks: disk.free_btree_blocks.get(),
            lsn: Lsn(if is_v5 { disk.lsn.get() } else { 0 }),
        })
    }

    /// Stores every field that changes while a filesystem is in use. The rest of `disk` stays.
    pub fn store(&self, disk: &mut DiskAgi) {
        let number = |inode: Option<AgInode>| inode.unwrap_or(AgInode::NULL).0;
        let none = TreeRoot {
            block: AgBlock(0),
            levels: 0,
        };
        let finobt = self.finobt.unwrap_or(none);
        disk.length.set(self.length);
        disk.count.set(self.count);
        disk.free_count.set(self.free_count);
        disk.newest.set(number(self.newest));
        disk.root.set(self.inobt.block.0);
        disk.level.set(self.inobt.levels);
        disk.free_root.set(finobt.block.0);
        disk.free_level.set(finobt.levels);
        for (stored, &head) in disk.unlinked.iter_mut().zip(&self.unlinked) {
            stored.set(number(head));
        }
        disk.inode_btree_blocks.set(self.inode_btree_blocks);
        disk.free_btree_blocks.set(self.free_btree_blocks);
        disk.lsn.set(self.lsn.0);
    }

    /// The sector of a new group.
    #[must_use]
    pub fn encode(&self, geometry: &Geometry) -> Vec<u8> {
        let mut disk = DiskAgi::new_zeroed();
        disk.magic.set(AGI_MAGIC);
        disk.version.set(VERSION);
        disk.sequence.set(self.ag.0);
        disk.directory.set(AgInode::NULL.0);
        disk.uuid = *geometry.meta_uuid.as_bytes();
        self.store(&mut disk);
        sealed_sector(disk.as_bytes(), geometry, DiskAgi::CHECKSUM_OFFSET)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::*;
    use crate::ondisk::geometry::tests::{sample_geometry, sample_geometry_v4};

    fn sample() -> DiskAgi {
        let mut disk = DiskAgi::read_from_bytes(&[0; size_of::<DiskAgi>()]).unwrap();
        disk.magic.set(AGI_MAGIC);
        disk.version.set(1);
        disk.sequence.set(1);
        disk.length.set(4096);
        disk.uuid = [0x5a; 16];
        disk.count.set(64);
        disk.free_count.set(61);
        disk.root.set(3);
        disk.level.set(1);
        disk.free_root.set(4);
        disk.free_level.set(1);
        disk.newest.set(128);
        disk.directory.set(u32::MAX);
        disk.unlinked.fill(u32::MAX.into());
        disk.unlinked[3].set(131);
        disk
    }

    fn sector_of(disk: &DiskAgi) -> Vec<u8> {
        let mut sector = vec![0; 512];
        sector[..344].copy_from_slice(disk.as_bytes());
        checksum::seal(&mut sector, DiskAgi::CHECKSUM_OFFSET);
        sector
    }

    /// The header of group 1, whose inode B-tree is block 3.
    pub(crate) fn sample_sector() -> Vec<u8> {
        sector_of(&sample())
    }

    fn decode(disk: &DiskAgi) -> Result<Agi, AgiRule> {
        Agi::decode(&sector_of(disk), &sample_geometry(), AgNr(1))
    }

    fn broken(change: impl FnOnce(&mut DiskAgi)) -> AgiRule {
        let mut disk = sample();
        change(&mut disk);
        decode(&disk).unwrap_err()
    }

    #[test]
    fn header_of_a_group_is_decoded_and_stored() {
        let agi = decode(&sample()).unwrap();
        assert_eq!(agi.unlinked[3], Some(AgInode(131)));
        assert_eq!(agi.unlinked[4], None);
        let mut disk = sample();
        disk.count.set(999);
        disk.unlinked[4].set(1);
        agi.store(&mut disk);
        assert_eq!(decode(&disk).unwrap(), agi);
        let v4 = sample_geometry_v4();
        let agi = Agi::decode(sample().as_bytes(), &v4, AgNr(1)).unwrap();
        assert_eq!(agi.finobt, None);
    }

    #[test]
    fn headers_that_differ_in_counted_blocks_are_recounts() {
        let before = decode(&sample()).unwrap();
        let mut disk = sample();
        disk.inode_btree_blocks.set(1);
        disk.free_btree_blocks.set(2);
        disk.lsn.set(9);
        assert!(decode(&disk).unwrap().is_recount_of(&before));
        disk.free_count.set(60);
        assert!(!decode(&disk).unwrap().is_recount_of(&before));
    }

    #[test]
    fn rules_of_the_header_are_checked() {
        assert_eq!(broken(|disk| disk.magic.set(7)), AgiRule::Magic);
        assert_eq!(broken(|disk| disk.version.set(2)), AgiRule::Version);
        assert_eq!(broken(|disk| disk.uuid[0] = 0), AgiRule::Uuid);
        assert_eq!(broken(|disk| disk.sequence.set(0)), AgiRule::Sequence);
        assert_eq!(broken(|disk| disk.length.set(4095)), AgiRule::Length);
        assert_eq!(broken(|disk| disk.root.set(4096)), AgiRule::Root);
        assert_eq!(broken(|disk| disk.free_level.set(0)), AgiRule::Level);
        assert_eq!(broken(|disk| disk.free_count.set(65)), AgiRule::Count);
        let rule = broken(|disk| disk.unlinked[0].set(4096 * 8));
        assert_eq!(rule, AgiRule::Unlinked);
        let mut sector = vec![0; 512];
        sector[..344].copy_from_slice(sample().as_bytes());
        let rule = Agi::decode(&sector, &sample_geometry(), AgNr(1)).unwrap_err();
        assert_eq!(rule, AgiRule::Checksum);
    }
}
