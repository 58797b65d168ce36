//! The verifier of whole metadata blocks, as the buffer cache runs it. Blocks are named by their
//! position in units of 512 bytes.

use std::borrow::Cow;

use platter_ondisk::{Corrupt, Corruption, Rule, VerifierKey, Verify};
use zerocopy::FromBytes;

use super::attr::leaf::AttrLeaf;
use super::attr::remote::{self, DiskRemoteHeader};
use super::btree::{BtreeBlock, BtreeKind, DiskLongHeaderV5, checksum_offset};
use super::checksum;
use super::da::{DaKind, DaNode, DiskDaHeaderV5};
use super::dir::data::{DataKind, DirData, DiskDirHeaderV5};
use super::dir::free::DirFree;
use super::dir::leaf::DirLeaf;
use super::geometry::Geometry;
use super::identity::Site;
use super::structure::Structure;
use super::symlink;
use super::types::BasicBlock;

/// What a block should be.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum BlockKind {
    /// A block of a B-tree.
    Btree(BtreeKind),
    /// A directory block of entries.
    DirData(DataKind),
    /// A directory leaf.
    DirLeaf(DaKind),
    /// A directory free index.
    DirFree,
    /// A filesystem block of a directory block that lies in several extents: any bytes, as only the whole has a header
    /// and a checksum.
    DirPart,
    /// An inner block of a hash tree.
    DaNode,
    /// A leaf of attributes.
    AttrLeaf,
    /// A block of an attribute's value.
    AttrRemote,
    /// The target of a link outside its inode.
    Symlink,
}

impl BlockKind {
    /// The owner that a block of version 5 of a fork names.
    #[must_use]
    pub fn owner_of(self, bytes: &[u8]) -> Option<u64> {
        Some(match self {
            Self::Btree(_) => DiskLongHeaderV5::ref_from_prefix(bytes).ok()?.0.owner.get(),
            Self::DirData(_) | Self::DirFree => {
                DiskDirHeaderV5::ref_from_prefix(bytes).ok()?.0.owner.get()
            }
            Self::DirLeaf(_) | Self::DaNode | Self::AttrLeaf => {
                DiskDaHeaderV5::ref_from_prefix(bytes).ok()?.0.owner.get()
            }
            Self::AttrRemote | Self::Symlink => {
                DiskRemoteHeader::ref_from_prefix(bytes).ok()?.0.owner.get()
            }
            Self::DirPart => return None,
        })
    }
}

/// Verifies blocks of one kind and owner.
#[derive(Debug, Clone)]
pub struct BlockVerifier<'g> {
    geometry: Cow<'g, Geometry>,
    kind: BlockKind,
    owner: u64,
}

impl<'g> BlockVerifier<'g> {
    /// A verifier of blocks that belong to `owner`: an inode, or an allocation group.
    #[must_use]
    pub fn new(geometry: &'g Geometry, kind: BlockKind, owner: u64) -> Self {
        Self {
            geometry: Cow::Borrowed(geometry),
            kind,
            owner,
        }
    }

    /// The same verifier, with a geometry of its own.
    #[must_use]
    pub fn into_owned(self) -> BlockVerifier<'static> {
        BlockVerifier {
            geometry: Cow::Owned(self.geometry.into_owned()),
            kind: self.kind,
            owner: self.owner,
        }
    }

    /// Where a block that lies at `at` is.
    #[must_use]
    pub fn site(&self, at: BasicBlock) -> Site<'_> {
        Site::new(&self.geometry, at, self.owner)
    }

    /// Checks the rules of a block.
    fn check(&self, bytes: &[u8], site: &Site<'_>) -> Result<(), Corruption> {
        match self.kind {
            BlockKind::Btree(kind) => {
                let block = BtreeBlock::decode(bytes, kind, site);
                reported(block.and_then(|block| block.check_records()), site)
            }
            BlockKind::DirData(kind) => reported(DirData::decode(bytes, kind, site), site),
            BlockKind::DirLeaf(kind) => reported(DirLeaf::decode(bytes, kind, site), site),
            BlockKind::DirFree => reported(DirFree::decode(bytes, site), site),
            BlockKind::DirPart => Ok(()),
            BlockKind::DaNode => reported(DaNode::decode(bytes, site), site),
            BlockKind::AttrLeaf => reported(AttrLeaf::decode(bytes, site), site),
            BlockKind::AttrRemote => reported(remote::check(bytes, site), site),
            BlockKind::Symlink => reported(symlink::check(bytes, site), site),
        }
    }

    /// Where the checksum of a block lies, if it has one.
    fn checksum_offset(&self) -> Option<usize> {
        Some(match self.kind {
            BlockKind::DirPart => return None,
            BlockKind::Btree(kind) => checksum_offset(kind),
            BlockKind::DirData(_) | BlockKind::DirFree => DiskDirHeaderV5::CHECKSUM_OFFSET,
            BlockKind::DirLeaf(_) | BlockKind::DaNode | BlockKind::AttrLeaf => {
                DiskDaHeaderV5::CHECKSUM_OFFSET
            }
            BlockKind::AttrRemote | BlockKind::Symlink => DiskRemoteHeader::CHECKSUM_OFFSET,
        })
    }
}

impl Verify for BlockVerifier<'_> {
    fn key(&self) -> VerifierKey {
        // Variants of a structure are distinguished above its own number.
        const VARIANT: u32 = 0x100;
        let (structure, variant) = match self.kind {
            BlockKind::Btree(kind) => (Structure::Btree, kind as u32),
            BlockKind::DirData(kind) => (Structure::DirData, kind as u32),
            BlockKind::DirLeaf(kind) => (Structure::DirLeaf, kind as u32),
            BlockKind::DirFree => (Structure::DirFree, 0),
            BlockKind::DirPart => (Structure::DirPart, 0),
            BlockKind::DaNode => (Structure::DaNode, 0),
            BlockKind::AttrLeaf => (Structure::AttrLeaf, 0),
            BlockKind::AttrRemote => (Structure::AttrRemote, 0),
            BlockKind::Symlink => (Structure::Symlink, 0),
        };
        VerifierKey {
            structure: (structure as u32).saturating_add(variant.saturating_mul(VARIANT)),
            seed: self.owner,
        }
    }

    fn verify(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.check(bytes, &self.site(BasicBlock(block)))
    }

    fn verify_sealed(&self, block: u64, bytes: &[u8]) -> Result<(), Corruption> {
        self.check(bytes, &self.site(BasicBlock(block)).sealed())
    }

    fn seal(&self, _block: u64, bytes: &mut [u8]) {
        if let Some(offset) = self.checksum_offset()
            && self.geometry.features.is_v5()
        {
            checksum::seal(bytes, offset);
        }
    }

    fn kept(&self) -> Option<Box<dyn Verify>> {
        Some(Box::new(self.clone().into_owned()))
    }
}

fn reported<T, R: Rule>(result: Result<T, R>, site: &Site<'_>) -> Result<(), Corruption> {
    let corrupt = |rule| Corrupt::new(site.locus(), rule).into();
    result.map(drop).map_err(corrupt)
}

#[cfg(test)]
mod tests {
    use zerocopy::FromBytes;

    use super::*;
    use crate::ondisk::geometry::tests::sample_geometry;

    #[test]
    fn sealed_block_passes_as_what_it_is_only() {
        let geometry = sample_geometry();
        let mut block = vec![0; 4096];
        let (header, _) = DiskDirHeaderV5::mut_from_prefix(&mut block).unwrap();
        header.magic.set(DataKind::Data.magic(true));
        header.block.set(80);
        header.uuid = [0x5a; 16];
        header.owner.set(131);
        let kind = BlockKind::DirData(DataKind::Data);
        let verifier = BlockVerifier::new(&geometry, kind, 131);
        assert!(verifier.verify(80, &block).is_err());
        verifier.seal(80, &mut block);
        verifier.verify(80, &block).unwrap();
        let error = verifier.verify(88, &block).unwrap_err();
        let text = "directory block at group 0, block 11: block number is not where it lies";
        assert_eq!(error.to_string(), text);
        for other in [
            BlockVerifier::new(&geometry, kind, 132),
            BlockVerifier::new(&geometry, BlockKind::DirData(DataKind::Single), 131),
            BlockVerifier::new(&geometry, BlockKind::DirFree, 131),
        ] {
            assert!(other.verify(80, &block).is_err());
            assert_ne!(other.key(), verifier.key());
        }
    }
}
