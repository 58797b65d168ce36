//! The verifier of superblocks and of the headers of allocation groups, which are logged as blocks.

use std::fmt;
use std::sync::Arc;

use platter_ondisk::{Corrupt, Corruption, Locus, VerifierKey, Verify};

use crate::ondisk::attr::remote::ATTR_REMOTE_MAGIC;
use crate::ondisk::btree::BtreeKind;
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
    /// Its rules.
    pub verifier: Arc<dyn Verify>,
}

impl fmt::Debug for BlockType {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.kind.fmt(out)
    }
}

/// Verifies the superblock or a header of an allocation group.
#[derive(Debug, Clone)]
pub struct HeaderVerifier {
    geometry: Geometry,
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

impl HeaderVerifier {
    /// The verifier of a header of an allocation group.
    #[must_use]
    pub fn new(geometry: &Geometry, header: Header, ag: AgNr) -> Self {
        Self {
            geometry: geometry.clone(),
            header,
            ag,
        }
    }
}

impl BlockType {
    /// What a block is, by its magic number: one of an allocation group, or of the fork of an inode that it
    /// names.
    #[must_use]
    pub fn of_block(geometry: &Geometry, at: BasicBlock, bytes: &[u8]) -> Option<Self> {
        Self::of_group(geometry, at, bytes).or_else(|| Self::of_fork(geometry, bytes))
    }

    /// What a block of version 5 of a fork is, by its magic number and the owner that it names.
    fn of_fork(geometry: &Geometry, bytes: &[u8]) -> Option<Self> {
        let magic = bytes
            .first_chunk()
            .map(|magic| u32::from_be_bytes(*magic))?;
        let kinds = [
            (BlockKind::Btree(BtreeKind::Bmap), BufferType::Btree),
            (BlockKind::DirData(DataKind::Single), BufferType::DirBlock),
            (BlockKind::DirData(DataKind::Data), BufferType::DirData),
            (BlockKind::DirFree, BufferType::DirFree),
            (BlockKind::AttrRemote, BufferType::AttrRemote),
            (BlockKind::Symlink, BufferType::Symlink),
        ];
        let magic_of = |kind: &BlockKind| match kind {
            BlockKind::Btree(tree) => tree.magic(true),
            BlockKind::DirData(data) => Some(data.magic(true)),
            BlockKind::DirFree => Some(free::magic(true)),
            BlockKind::AttrRemote => Some(ATTR_REMOTE_MAGIC),
            BlockKind::Symlink => Some(SYMLINK_MAGIC),
            BlockKind::DirLeaf(_) | BlockKind::DaNode | BlockKind::AttrLeaf => None,
        };
        let mut known = kinds.into_iter();
        let by_magic = known.find(|(kind, _)| magic_of(kind) == Some(magic));
        let of_hash_tree = || {
            Some(match DaKind::of(bytes, true)? {
                DaKind::Node => (BlockKind::DaNode, BufferType::DaNode),
                leaf @ DaKind::DirLeaf1 => (BlockKind::DirLeaf(leaf), BufferType::DirLeaf1),
                leaf @ DaKind::DirLeafN => (BlockKind::DirLeaf(leaf), BufferType::DirLeafN),
                DaKind::AttrLeaf => (BlockKind::AttrLeaf, BufferType::AttrLeaf),
            })
        };
        let (kind, logged) = by_magic.or_else(of_hash_tree)?;
        let owner = kind.owner_of(bytes)?;
        Some(Self {
            kind: logged,
            verifier: Arc::new(BlockVerifier::new(geometry, kind, owner)),
        })
    }

    /// What a block of an allocation group is, by its magic number: a header, or a block of one of its trees.
    #[must_use]
    pub fn of_group(geometry: &Geometry, at: BasicBlock, bytes: &[u8]) -> Option<Self> {
        let magic = bytes
            .first_chunk()
            .map(|magic| u32::from_be_bytes(*magic))?;
        let block = at.byte_offset() >> geometry.block_bits;
        let ag = u32::try_from(block.checked_div(geometry.ag_blocks.into())?).ok()?;
        let headers = [Header::Superblock, Header::Agf, Header::Agi, Header::Agfl];
        let header = headers.into_iter().find(|header| {
            let stamp = Stamp::of_type(header.kind(), bytes);
            stamp.is_some()
        });
        if let Some(header) = header {
            return Some(Self {
                kind: header.kind(),
                verifier: Arc::new(HeaderVerifier::new(geometry, header, AgNr(ag))),
            });
        }
        let is_v5 = geometry.features.is_v5();
        let mut trees = GROUP_TREES.into_iter();
        let tree = trees.find(|tree| tree.magic(is_v5) == Some(magic))?;
        let verifier = BlockVerifier::new(geometry, BlockKind::Btree(tree), ag.into());
        Some(Self {
            kind: BufferType::Btree,
            verifier: Arc::new(verifier),
        })
    }
}

impl Verify for HeaderVerifier {
    fn key(&self) -> VerifierKey {
        VerifierKey {
            structure: self.header.structure() as u32,
            seed: self.ag.0.into(),
        }
    }

    fn verify(&self, _: u64, bytes: &[u8]) -> Result<(), Corruption> {
        let locus = Locus::group(self.ag.0.into());
        match self.header {
            Header::Superblock => {
                Superblock::decode(bytes, locus)?;
            }
            Header::Agf => {
                let agf = Agf::decode(bytes, &self.geometry, self.ag);
                agf.map_err(|rule| Corrupt::new(locus, rule))?;
            }
            Header::Agi => {
                let agi = Agi::decode(bytes, &self.geometry, self.ag);
                agi.map_err(|rule| Corrupt::new(locus, rule))?;
            }
            Header::Agfl => {
                let list = Agfl::decode(bytes, &self.geometry, self.ag);
                list.map_err(|rule| Corrupt::new(locus, rule))?;
            }
        }
        Ok(())
    }

    fn seal(&self, _: u64, bytes: &mut [u8]) {
        if let Some(stamp) = Stamp::of_type(self.header.kind(), bytes) {
            stamp.seal_checksum(bytes);
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(self.clone()))
    }
}
