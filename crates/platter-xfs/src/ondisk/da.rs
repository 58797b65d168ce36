//! Blocks of the hash trees of names that directories and attribute forks have, and the hash.
//! Spec: `xfs/dabtrees`.

use std::mem::offset_of;

use platter_ondisk::endian::{Be16, Be32, Be64, Le32};
use platter_ondisk::rules;
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout, Unaligned};

use super::identity::{Identity, IdentityRule, Site};

/// More levels than any hash tree can have.
pub const DA_LEVELS_MAX: u16 = 5;

/// The header of a block. Spec: `struct xfs_da_blkinfo`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDaHeader {
    /// `forw`: the next block on the level; zero for none.
    pub next: Be32,
    /// `back`: the block before it; zero for none.
    pub previous: Be32,
    /// `magic`.
    pub magic: Be16,
    /// `pad`.
    pub padding: Be16,
}

/// The header of a block in version 5. Spec: `struct xfs_da3_blkinfo`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDaHeaderV5 {
    /// What all versions have.
    pub common: DiskDaHeader,
    /// `crc`, of the block.
    pub checksum: Le32,
    /// `blkno`.
    pub block: Be64,
    /// `lsn`.
    pub lsn: Be64,
    /// `uuid`.
    pub uuid: [u8; 16],
    /// `owner`.
    pub owner: Be64,
}

/// What follows the header of a node. Spec: `struct xfs_da_node_hdr`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDaNodeCounts {
    /// `count`: entries.
    pub count: Be16,
    /// `level`: one above leaves.
    pub level: Be16,
}

/// An entry of a node. Spec: `struct xfs_da_node_entry`.
#[derive(Debug, Clone, Copy, FromBytes, IntoBytes, KnownLayout, Immutable, Unaligned)]
#[repr(C)]
pub struct DiskDaEntry {
    /// `hashval`: the greatest hash below the child.
    pub hash: Be32,
    /// `before`: the child, a block of the fork.
    pub child: Be32,
}

const _: () = assert!(size_of::<DiskDaHeader>() == 12);
const _: () = assert!(size_of::<DiskDaHeaderV5>() == 56);
const _: () = assert!(size_of::<DiskDaNodeCounts>() == 4);
const _: () = assert!(size_of::<DiskDaEntry>() == 8);

impl DiskDaHeaderV5 {
    /// Where the checksum lies.
    pub const CHECKSUM_OFFSET: usize = offset_of!(Self, checksum);
}

/// Which block of a hash tree.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum DaKind {
    /// An inner block.
    Node,
    /// The one leaf of a directory without inner blocks.
    DirLeaf1,
    /// A leaf of a directory with inner blocks.
    DirLeafN,
    /// A leaf of attributes.
    AttrLeaf,
}

impl DaKind {
    /// The magic number of the block.
    #[must_use]
    pub fn magic(self, is_v5: bool) -> u16 {
        match (self, is_v5) {
            (Self::Node, false) => 0xfebe,
            (Self::Node, true) => 0x3ebe,
            (Self::DirLeaf1, false) => 0xd2f1,
            (Self::DirLeaf1, true) => 0x3df1,
            (Self::DirLeafN, false) => 0xd2ff,
            (Self::DirLeafN, true) => 0x3dff,
            (Self::AttrLeaf, false) => 0xfbee,
            (Self::AttrLeaf, true) => 0x3bee,
        }
    }

    /// What kind of block begins with `bytes`, by its magic number.
    #[must_use]
    pub fn of(bytes: &[u8], is_v5: bool) -> Option<Self> {
        let (header, _) = DiskDaHeader::ref_from_prefix(bytes).ok()?;
        let all = [Self::Node, Self::DirLeaf1, Self::DirLeafN, Self::AttrLeaf];
        let magic = header.magic.get();
        all.into_iter().find(|kind| kind.magic(is_v5) == magic)
    }
}

/// The links of a block to its neighbours.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct DaLinks {
    /// The next block on the level.
    pub next: Option<u32>,
    /// The block before it.
    pub previous: Option<u32>,
}

/// The rules that every block of a hash tree has.
pub(super) trait DaRule: IdentityRule {
    const MAGIC: Self;
}

/// Validates the header of a block of this kind. Returns its links and what follows it.
pub(super) fn header<'a, R: DaRule>(
    bytes: &'a [u8],
    kind: DaKind,
    site: &Site<'_>,
) -> Result<(DaLinks, &'a [u8]), R> {
    let is_v5 = site.geometry.features.is_v5();
    let (header, mut rest) = DiskDaHeader::ref_from_prefix(bytes).map_err(|_| R::MAGIC)?;
    if header.magic.get() != kind.magic(is_v5) {
        return Err(R::MAGIC);
    }
    if is_v5 {
        let (header, after) = DiskDaHeaderV5::ref_from_prefix(bytes).map_err(|_| R::MAGIC)?;
        let identity = Identity {
            checksum_at: DiskDaHeaderV5::CHECKSUM_OFFSET,
            uuid: header.uuid,
            block: header.block.get(),
            owner: header.owner.get(),
        };
        identity.check(bytes, site)?;
        rest = after;
    }
    let link = |block: Be32| Some(block.get()).filter(|&block| block != 0);
    let links = DaLinks {
        next: link(header.next),
        previous: link(header.previous),
    };
    Ok((links, rest))
}

rules! {
    /// What an inner block of a hash tree must hold to.
    pub enum DaNodeRule of "hash tree node" {
        /// `magic`.
        Magic => "bad magic number",
        /// `crc`.
        Checksum => "bad CRC",
        /// `uuid`.
        Uuid => "bad UUID",
        /// `blkno`.
        BlockNumber => "block number is not where it lies",
        /// `owner`.
        Owner => "bad owner",
        /// `level` is one less than that of the parent.
        Level => "bad level",
        /// `count` fits the block and is not zero.
        Count => "bad number of entries",
        /// Hashes ascend.
        Order => "hashes not ascending",
        /// A search visits no block twice.
        Cycle => "tree has a cycle",
        /// A block has the magic number of a hash tree.
        Kind => "block is neither a node nor a leaf",
        /// Blocks that are pointed to are mapped.
        Missing => "block is not mapped",
    }
}

identity_rules!(DaNodeRule);

impl DaRule for DaNodeRule {
    const MAGIC: Self = Self::Magic;
}

/// An inner block whose rules hold.
#[derive(Debug, Clone, Copy)]
pub struct DaNode<'a> {
    /// Its neighbours.
    pub links: DaLinks,
    /// One above leaves.
    pub level: u16,
    /// Children, by ascending hash.
    pub entries: &'a [DiskDaEntry],
}

impl<'a> DaNode<'a> {
    /// Validates the block that fills `bytes`.
    pub fn decode(bytes: &'a [u8], site: &Site<'_>) -> Result<Self, DaNodeRule> {
        const PADDING: usize = 4;
        let (links, rest) = header(bytes, DaKind::Node, site)?;
        let (counts, rest) =
            DiskDaNodeCounts::ref_from_prefix(rest).map_err(|_| DaNodeRule::Count)?;
        let rest = if site.geometry.features.is_v5() {
            rest.get(PADDING..).ok_or(DaNodeRule::Count)?
        } else {
            rest
        };
        let level = counts.level.get();
        if level == 0 || level > DA_LEVELS_MAX {
            return Err(DaNodeRule::Level);
        }
        let count = usize::from(counts.count.get());
        let (entries, _) = <[DiskDaEntry]>::ref_from_prefix_with_elems(rest, count)
            .map_err(|_| DaNodeRule::Count)?;
        if entries.is_empty() {
            return Err(DaNodeRule::Count);
        }
        if !site.is_verified() && !entries.is_sorted_by_key(|entry| entry.hash.get()) {
            return Err(DaNodeRule::Order);
        }
        Ok(Self {
            links,
            level,
            entries,
        })
    }

    /// The entry of the first child that may hold `hash`; `None` if all hashes are smaller.
    #[must_use]
    pub fn entry_for(&self, hash: u32) -> Option<&'a DiskDaEntry> {
        let at = self
            .entries
            .partition_point(|entry| entry.hash.get() < hash);
        self.entries.get(at)
    }

    /// The first child that may hold `hash`; `None` if all hashes are smaller.
    #[must_use]
    pub fn child(&self, hash: u32) -> Option<u32> {
        Some(self.entry_for(hash)?.child.get())
    }
}

/// The hash of a name.
#[must_use]
pub fn hash(name: &[u8]) -> u32 {
    let (chunks, rest) = name.as_chunks::<4>();
    let hash = chunks.iter().fold(0_u32, |hash, &[a, b, c, d]| {
        let word = join(&[a, b, c, d]);
        word ^ hash.rotate_left(28)
    });
    let bits = match rest.len() {
        1 => 7,
        2 => 14,
        3 => 21,
        _ => return hash,
    };
    join(rest) ^ hash.rotate_left(bits)
}

/// Up to four bytes, seven bits apart, the last one in the lowest bits.
fn join(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0_u32, |word, &byte| {
        word.checked_shl(7).unwrap_or_default() ^ u32::from(byte)
    })
}

/// The hash of a name in a directory that ignores case.
#[must_use]
pub fn hash_ascii_ci(name: &[u8]) -> u32 {
    name.iter().fold(0_u32, |hash, &byte| {
        u32::from(fold_case(byte)) ^ hash.rotate_left(7)
    })
}

/// The byte that stands for both cases of a letter. Kernels fold the letters of ISO 8859-1, in spite of
/// the feature's name.
#[must_use]
pub fn fold_case(byte: u8) -> u8 {
    const CASE: u8 = 0x20;
    match byte {
        b'A'..=b'Z' | 0xc0..=0xd6 | 0xd8..=0xde => byte | CASE,
        _ => byte,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::checksum;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::types::BasicBlock;

    #[test]
    fn hashes_are_those_of_the_document() {
        assert_eq!(hash(b"."), 0x2e);
        assert_eq!(hash(b".."), 0x172e);
        assert_eq!(hash(b"frame001845.tst"), 0xf3a2_6094);
    }

    #[test]
    fn case_does_not_change_the_folded_hash() {
        assert_eq!(hash_ascii_ci(b"ReadMe.TXT"), hash_ascii_ci(b"rEADmE.txt"));
        assert_eq!(hash_ascii_ci(b"\xc4"), hash_ascii_ci(b"\xe4"));
        assert_ne!(hash_ascii_ci(b"\xd7"), hash_ascii_ci(b"\xf7"));
        assert_eq!(hash_ascii_ci(b"."), hash(b"."));
    }

    fn sample() -> Vec<u8> {
        let mut block = vec![0; 4096];
        let (header, rest) = DiskDaHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.common.magic.set(0x3ebe);
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        rest[..4].copy_from_slice(&[0, 2, 0, 1]);
        let (entries, _) = <[DiskDaEntry]>::mut_from_prefix_with_elems(&mut rest[8..], 2).unwrap();
        entries[0].hash.set(10);
        entries[0].child.set(5);
        entries[1].hash.set(20);
        entries[1].child.set(6);
        seal(&mut block);
        block
    }

    fn seal(block: &mut [u8]) {
        checksum::seal(block, DiskDaHeaderV5::CHECKSUM_OFFSET);
    }

    fn decode(block: &[u8]) -> Result<(u16, Option<u32>), DaNodeRule> {
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        DaNode::decode(block, &site).map(|node| (node.level, node.child(11)))
    }

    fn broken(change: impl FnOnce(&mut [u8])) -> DaNodeRule {
        let mut block = sample();
        change(&mut block);
        seal(&mut block);
        decode(&block).unwrap_err()
    }

    #[test]
    fn node_leads_to_the_first_child_that_may_hold_a_hash() {
        assert_eq!(decode(&sample()), Ok((1, Some(6))));
        let geometry = sample_geometry();
        let site = Site::new(&geometry, BasicBlock(80), 131);
        let block = sample();
        let node = DaNode::decode(&block, &site).unwrap();
        assert_eq!((node.child(10), node.child(21)), (Some(5), None));
        assert_eq!(node.links.next, None);
        assert_eq!(DaKind::of(&block, true), Some(DaKind::Node));
    }

    #[test]
    fn rules_of_a_node_are_checked() {
        assert_eq!(broken(|block| block[8] = 0), DaNodeRule::Magic);
        assert_eq!(broken(|block| block[32] = 0), DaNodeRule::Uuid);
        assert_eq!(broken(|block| block[23] = 0), DaNodeRule::BlockNumber);
        assert_eq!(broken(|block| block[55] = 0), DaNodeRule::Owner);
        assert_eq!(broken(|block| block[59] = 0), DaNodeRule::Level);
        assert_eq!(broken(|block| block[59] = 6), DaNodeRule::Level);
        assert_eq!(broken(|block| block[57] = 0), DaNodeRule::Count);
        assert_eq!(broken(|block| block[56] = 2), DaNodeRule::Count);
        assert_eq!(broken(|block| block[64] = 1), DaNodeRule::Order);
        let mut block = sample();
        block[4095] = 1;
        assert_eq!(decode(&block), Err(DaNodeRule::Checksum));
    }
}
