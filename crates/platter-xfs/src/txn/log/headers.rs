//! What logged blocks are, and the verifier of superblocks and of the headers of allocation groups, which are logged as
//! blocks.

use std::borrow::Cow;
use std::fmt;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Corruption, Locus, Rule, VerifierKey, Verify};
use zerocopy::FromBytes;

use crate::ondisk::attr::remote::ATTR_REMOTE_MAGIC;
use crate::ondisk::btree::{BtreeKind, DiskShortHeader};
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::data::DataKind;
use crate::ondisk::dir::free;
use crate::ondisk::log::{BufferType, Stamp};
use crate::ondisk::symlink::SYMLINK_MAGIC;
use crate::ondisk::{
    AgNr, Agf, Agfl, Agi, BasicBlock, BlockKind, BlockVerifier, Geometry, Structure, Superblock,
};

/// The trees of an allocation group.
const GROUP_TREES: [BtreeKind; 6] = [
    BtreeKind::Bno,
    BtreeKind::Cnt,
    BtreeKind::Inobt,
    BtreeKind::Finobt,
    BtreeKind::Rmap,
    BtreeKind::Refcount,
];

/// What a logged block is, and how its rules are checked.
#[derive(Clone)]
pub struct BlockType {
    /// What it is logged as.
    pub kind: BufferType,
    rules: Rules,
}

/// Whose rules a block holds to.
#[derive(Clone)]
enum Rules {
    /// Those of a block of this kind and owner.
    Block(BlockKind, u64),
    /// Those of a header.
    Header(Header, AgNr),
    Other(Arc<dyn Verify>),
}

impl fmt::Debug for BlockType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(out)
    }
}

/// Verifies the superblock or a header of an allocation group.
#[derive(Debug, Clone)]
pub struct HeaderVerifier<'g> {
    geometry: Cow<'g, Geometry>,
    header: Header,
    ag: AgNr,
}

/// A header of an allocation group, in the order of their sectors.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Header {
    /// The superblock.
    Superblock,
    /// The free space header.
    Agf,
    /// The inode header.
    Agi,
    /// The free list.
    Agfl,
}

impl Header {
    /// What it is logged as.
    #[must_use]
    pub fn kind(self) -> BufferType {
        match self {
            Self::Superblock => BufferType::Superblock,
            Self::Agf => BufferType::Agf,
            Self::Agi => BufferType::Agi,
            Self::Agfl => BufferType::Agfl,
        }
    }

    fn structure(self) -> Structure {
        match self {
            Self::Superblock => Structure::Superblock,
            Self::Agf => Structure::Agf,
            Self::Agi => Structure::Agi,
            Self::Agfl => Structure::Agfl,
        }
    }
}

impl<'g> HeaderVerifier<'g> {
    /// The verifier of a header of an allocation group.
    #[must_use]
    pub fn new(geometry: &'g Geometry, header: Header, ag: AgNr) -> Self {
        Self {
            geometry: Cow::Borrowed(geometry),
            header,
            ag,
        }
    }

    fn into_owned(self) -> HeaderVerifier<'static> {
        HeaderVerifier {
            geometry: Cow::Owned(self.geometry.into_owned()),
            header: self.header,
            ag: self.ag,
        }
    }

    fn locus(&self) -> Locus {
        Locus::group(self.ag.0.into())
    }
}

fn reported<T, R: Rule>(decoded: Result<T, R>, locus: Locus) -> Result<(), Corruption> {
    let corrupt = |rule| Corrupt::new(locus, rule).into();
    decoded.map(drop).map_err(corrupt)
}

impl BlockType {
    /// Whether nothing reads the block but by its verifier: then its checksum is computed when it is written to its
    /// place, which is once for many transactions. Others are sealed by each commit.
    pub(in crate::txn) fn is_sealed_in_place(&self) -> bool {
        match self.kind {
            BufferType::Btree
            | BufferType::DirBlock
            | BufferType::DirData
            | BufferType::DirFree
            | BufferType::DirLeaf1
            | BufferType::DirLeafN
            | BufferType::DaNode
            | BufferType::AttrLeaf
            | BufferType::Agf
            | BufferType::Agfl
            | BufferType::Agi => true,
            BufferType::Unknown
            | BufferType::UserQuota
            | BufferType::ProjectQuota
            | BufferType::GroupQuota
            | BufferType::Inodes
            | BufferType::Superblock
            | BufferType::Symlink
            | BufferType::AttrRemote
            | BufferType::RtBitmap
            | BufferType::RtSummary => false,
        }
    }

    /// Where a block of these bytes keeps what is computed when it is written to its place, if it has that.
    pub(in crate::txn) fn stamp(&self, bytes: &[u8]) -> Option<Stamp> {
        match self.rules {
            // It may look like any block.
            Rules::Block(BlockKind::DirPart, _) => None,
            Rules::Block(..) | Rules::Header(..) | Rules::Other(_) => {
                Stamp::of_type(self.kind, bytes)
            }
        }
    }

    /// Whether changes of the block are of single records or entries, each of which was checked when it was made:
    /// then it is verified once for many transactions. Others are verified by each commit.
    pub(in crate::txn) fn is_changed_in_place(&self) -> bool {
        let is_built = matches!(
            self.kind,
            BufferType::DaNode
                | BufferType::AttrLeaf
                | BufferType::Agf
                | BufferType::Agfl
                | BufferType::Agi
        );
        self.is_sealed_in_place() && !is_built
    }

    /// A block with rules of its own.
    #[must_use]
    pub fn with_verifier(kind: BufferType, verifier: Arc<dyn Verify>) -> Self {
        let rules = Rules::Other(verifier);
        Self { kind, rules }
    }

    /// The superblock, or a header of an allocation group.
    #[must_use]
    pub fn header(header: Header, ag: AgNr) -> Self {
        Self {
            kind: header.kind(),
            rules: Rules::Header(header, ag),
        }
    }

    /// Calls `ask` with the verifier of its rules.
    pub fn verifier<R>(&self, geometry: &Geometry, ask: impl FnOnce(&dyn Verify) -> R) -> R {
        match &self.rules {
            Rules::Block(kind, owner) => ask(&BlockVerifier::new(geometry, *kind, *owner)),
            Rules::Header(header, ag) => ask(&HeaderVerifier::new(geometry, *header, *ag)),
            Rules::Other(verifier) => ask(&**verifier),
        }
    }

    /// A block of this kind, which belongs to an inode or an allocation group.
    #[must_use]
    pub fn new(kind: BlockKind, owner: u64) -> Self {
        let logged = match kind {
            BlockKind::Btree(_) => BufferType::Btree,
            BlockKind::DirData(DataKind::Single) => BufferType::DirBlock,
            BlockKind::DirData(DataKind::Data) => BufferType::DirData,
            BlockKind::DirFree => BufferType::DirFree,
            // Only blocks of realtime files are replayed as they are, whatever they begin with. Kernels, which log the
            // parts as what the whole is, compute a checksum of the first one alone when they replay it.
            BlockKind::DirPart => BufferType::RtBitmap,
            BlockKind::DirLeaf(DaKind::DirLeaf1) => BufferType::DirLeaf1,
            BlockKind::DirLeaf(DaKind::DirLeafN | DaKind::Node | DaKind::AttrLeaf) => {
                BufferType::DirLeafN
            }
            BlockKind::DaNode => BufferType::DaNode,
            BlockKind::AttrLeaf => BufferType::AttrLeaf,
            BlockKind::AttrRemote => BufferType::AttrRemote,
            BlockKind::Symlink => BufferType::Symlink,
        };
        Self {
            kind: logged,
            rules: Rules::Block(kind, owner),
        }
    }

    /// What a block of version 5 is, by its magic number: one of an allocation group, or of the fork of an inode that
    /// it names.
    #[must_use]
    pub fn of_block(geometry: &Geometry, at: BasicBlock, bytes: &[u8]) -> Option<Self> {
        if let Some(header) = Self::of_header(geometry, at, bytes) {
            return Some(header);
        }
        // Blocks of hash trees begin with a link, which may look like the magic number of another block. Where their
        // own magic number is, a B-tree of a group has a sibling: only in the largest groups may that look like one.
        let hash_tree = of_hash_tree(bytes);
        let (short, _) = DiskShortHeader::ref_from_prefix(bytes).ok()?;
        let is_sibling = short.left.get() < geometry.ag_blocks;
        let found = hash_tree
            .filter(|_| !is_sibling)
            .or_else(|| of_group_tree(geometry, at, bytes))
            .or_else(|| of_fork(bytes))
            .or(hash_tree);
        found.map(|(kind, owner)| Self::new(kind, owner))
    }

    /// What a header of an allocation group is, by its place and its magic number.
    #[must_use]
    pub fn of_header(geometry: &Geometry, at: BasicBlock, bytes: &[u8]) -> Option<Self> {
        const HEADERS: [Header; 4] = [Header::Superblock, Header::Agf, Header::Agi, Header::Agfl];
        let ag = group_of(geometry, at)?;
        let within = at.byte_offset().checked_sub(geometry.ag_offset(ag))?;
        let sector = within / u64::from(geometry.sector_bytes());
        let header = *HEADERS.get(usize::try_from(sector).ok()?)?;
        Stamp::of_type(header.kind(), bytes)?;
        Some(Self::header(header, ag))
    }
}

/// The group that a place is in.
fn group_of(geometry: &Geometry, at: BasicBlock) -> Option<AgNr> {
    let block = at.byte_offset() >> geometry.block_bits;
    let ag = block.checked_div(geometry.ag_blocks.into())?;
    u32::try_from(ag).ok().map(AgNr)
}

fn first_magic(bytes: &[u8]) -> Option<u32> {
    bytes.first_chunk().map(|magic| u32::from_be_bytes(*magic))
}

/// What a block of a B-tree of an allocation group is, and the group.
fn of_group_tree(geometry: &Geometry, at: BasicBlock, bytes: &[u8]) -> Option<(BlockKind, u64)> {
    let magic = first_magic(bytes)?;
    let mut trees = GROUP_TREES.into_iter();
    let tree = trees.find(|tree| tree.magic(true) == Some(magic))?;
    Some((BlockKind::Btree(tree), group_of(geometry, at)?.0.into()))
}

/// What a block of a hash tree is, and the owner that it names.
fn of_hash_tree(bytes: &[u8]) -> Option<(BlockKind, u64)> {
    let kind = match DaKind::of(bytes, true)? {
        DaKind::Node => BlockKind::DaNode,
        leaf @ (DaKind::DirLeaf1 | DaKind::DirLeafN) => BlockKind::DirLeaf(leaf),
        DaKind::AttrLeaf => BlockKind::AttrLeaf,
    };
    Some((kind, kind.owner_of(bytes)?))
}

/// What another block of a fork is, and the owner that it names.
fn of_fork(bytes: &[u8]) -> Option<(BlockKind, u64)> {
    let magic = first_magic(bytes)?;
    let bmap = BtreeKind::Bmap;
    let (single, data) = (DataKind::Single, DataKind::Data);
    let kinds = [
        (BlockKind::Btree(bmap), bmap.magic(true)),
        (BlockKind::DirData(single), Some(single.magic(true))),
        (BlockKind::DirData(data), Some(data.magic(true))),
        (BlockKind::DirFree, Some(free::magic(true))),
        (BlockKind::AttrRemote, Some(ATTR_REMOTE_MAGIC)),
        (BlockKind::Symlink, Some(SYMLINK_MAGIC)),
    ];
    let found = kinds.into_iter().find(|(_, known)| *known == Some(magic));
    let (kind, _) = found?;
    Some((kind, kind.owner_of(bytes)?))
}

impl Verify for HeaderVerifier<'_> {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: self.header.structure() as u32,
            seed: self.ag.0.into(),
        }
    }

    fn verify(&self, _: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let (geometry, ag, locus) = (&*self.geometry, self.ag, self.locus());
        match self.header {
            Header::Superblock => Superblock::decode(bytes, locus).map(drop)?,
            Header::Agf => reported(Agf::decode(bytes, geometry, ag), locus)?,
            Header::Agi => reported(Agi::decode(bytes, geometry, ag), locus)?,
            Header::Agfl => reported(Agfl::decode(bytes, geometry, ag), locus)?,
        }
        Ok(())
    }

    fn verify_sealed(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let (geometry, ag, locus) = (&*self.geometry, self.ag, self.locus());
        match self.header {
            Header::Superblock => self.verify(block, bytes),
            Header::Agf => reported(Agf::decode_unsealed(bytes, geometry, ag), locus),
            Header::Agi => reported(Agi::decode_unsealed(bytes, geometry, ag), locus),
            Header::Agfl => reported(Agfl::decode_unsealed(bytes, geometry, ag), locus),
        }
    }

    fn seal(&self, _: u64, bytes: &mut [u8]) {
        if let Some(stamp) = Stamp::of_type(self.header.kind(), bytes) {
            stamp.seal_checksum(bytes);
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(self.clone().into_owned()))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ondisk::da::DaLinks;
    use crate::ondisk::geometry::tests::sample_geometry;
    use crate::ondisk::{Site, dir};

    #[test]
    fn link_of_a_hash_tree_is_no_magic_number() {
        let geometry = sample_geometry();
        let (at, owner) = (BasicBlock(80), 131);
        let site = Site::new(&geometry, at, owner);
        let magics = [
            b"XDB3", b"XDD3", b"XDF3", b"BMA3", b"AB3B", b"R3FC", b"XFSB", b"XAGF",
        ];
        for magic in magics {
            let links = DaLinks {
                next: Some(u32::from_be_bytes(*magic)),
                previous: Some(1),
            };
            let leaf = dir::build::leaf(&[(1, 1)], links, &site).unwrap();
            let what = BlockType::of_block(&geometry, at, &leaf).unwrap();
            assert_eq!(what.kind, BufferType::DirLeafN, "{links:?}");
            let kind = BlockKind::DirLeaf(DaKind::DirLeafN);
            let expected = BlockVerifier::new(&geometry, kind, owner);
            let key = what.verifier(&geometry, |verifier| verifier.key());
            assert_eq!(key, expected.key());
        }
    }

    #[test]
    fn part_of_a_directory_block_is_never_stamped() {
        let what = BlockType::new(BlockKind::DirPart, 131);
        for magic in [b"XBMP", b"XSUM", b"XDD3"] {
            let mut part = vec![0; 1024];
            part[..4].copy_from_slice(magic);
            assert_eq!(what.stamp(&part), None);
            assert!(!what.is_sealed_in_place());
        }
    }

    #[test]
    fn header_is_known_by_its_place() {
        let geometry = sample_geometry();
        let mut sector = vec![0; 512];
        sector[..4].copy_from_slice(b"XAGF");
        let place =
            |ag, sector: u64| BasicBlock::of_byte(geometry.ag_offset(AgNr(ag)) + sector * 512);
        let kind = |at| BlockType::of_header(&geometry, at, &sector).map(|what| what.kind);
        assert_eq!(kind(place(2, 1)), Some(BufferType::Agf));
        for sector in [0, 2, 8] {
            assert_eq!(kind(place(2, sector)), None);
        }
    }
}
