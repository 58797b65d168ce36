//! Blocks of a directory: of one or several filesystem blocks each, which need not be neighbours.

use platter_ondisk::verify::Unverified;
use platter_ondisk::{Corrupt, Verify};
use platter_vfs::Result;

use super::{Directory, DirectoryRule};
use crate::context::Block;
use crate::mapping::Backing;
use crate::ondisk::da::DaKind;
use crate::ondisk::dir::data::{DataKind, DirData};
use crate::ondisk::dir::leaf::DirLeaf;
use crate::ondisk::{BlockKind, BlockVerifier, FileBlock, FsBlock, Site, dir};

/// Where a directory block begins.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Place {
    /// In the fork.
    first: FileBlock,
    /// On the device.
    start: FsBlock,
    /// Blocks of the fork that follow one another on the device, from there on.
    count: u64,
}

impl Directory<'_> {
    /// The directory block that begins with this block of the fork; `None` if it is not mapped.
    pub(crate) fn read_as(&self, first: FileBlock, kind: BlockKind) -> Result<Option<Block>> {
        let owner = self.inode.number.get();
        let verifier = BlockVerifier::new(self.context.geometry(), kind, owner);
        self.read_with(first, &verifier)
    }

    fn read_with(&self, first: FileBlock, verifier: &dyn Verify) -> Result<Option<Block>> {
        match self.place_of(first)? {
            Some(place) => Ok(Some(self.read_place(place, verifier)?)),
            None => Ok(None),
        }
    }

    /// Where the directory block lies that begins with this block of the fork; `None` if it is not mapped.
    pub(crate) fn place_of(&self, first: FileBlock) -> Result<Option<Place>> {
        let run = self.map.lookup(self.context, first)?;
        match run.backing {
            Backing::Written(start) => Ok(Some(Place {
                first,
                start: FsBlock(start),
                count: run.count,
            })),
            Backing::Hole => Ok(None),
            Backing::Unwritten(_) => Err(self.corrupt(DirectoryRule::Missing)),
        }
    }

    /// The directory block at a place.
    pub(crate) fn read_at(&self, place: Place, kind: BlockKind) -> Result<Block> {
        let owner = self.inode.number.get();
        let verifier = BlockVerifier::new(self.context.geometry(), kind, owner);
        self.read_place(place, &verifier)
    }

    fn read_place(&self, place: Place, verifier: &dyn Verify) -> Result<Block> {
        let geometry = self.context.geometry();
        let count = geometry.dir_block_blocks();
        if place.count >= u64::from(count) {
            let buffer = self.context.read_blocks(place.start, count, verifier)?;
            return Ok(Block::Cached(buffer));
        }
        let mut bytes = Vec::new();
        for nth in 0..u64::from(count) {
            let block = FileBlock(place.first.0 + nth);
            let run = self.map.lookup(self.context, block)?;
            let Backing::Written(part) = run.backing else {
                return Err(self.corrupt(DirectoryRule::Missing));
            };
            // Only the whole has a checksum.
            let part = self.context.read_block(FsBlock(part), &Unverified)?;
            bytes.extend_from_slice(&part);
        }
        verifier.verify(geometry.basic_block(place.start).0, &bytes)?;
        Ok(Block::Assembled(bytes.into()))
    }

    /// Which kind of block of a hash tree begins with this block of the fork.
    pub(crate) fn kind_of(&self, first: FileBlock) -> Result<Option<DaKind>> {
        match self.place_of(first)? {
            Some(place) => self.kind_at(place),
            None => Ok(None),
        }
    }

    /// Which kind of block of a hash tree lies at a place.
    pub(crate) fn kind_at(&self, place: Place) -> Result<Option<DaKind>> {
        let geometry = self.context.geometry();
        let count = geometry.dir_block_blocks();
        // Of one that is not in one extent, the first block has the magic number, and is cached by itself.
        let count = if place.count >= u64::from(count) {
            count
        } else {
            1
        };
        let block = self.context.read_blocks(place.start, count, &Unverified)?;
        Ok(DaKind::of(&block, geometry.features.is_v5()))
    }

    /// The block of entries with this number; `None` if it is not mapped.
    pub(crate) fn data_block(&self, block: u32, kind: DataKind) -> Result<Option<Block>> {
        let first = dir::data_block(self.context.geometry(), block);
        self.read_as(first, BlockKind::DirData(kind))
    }

    pub(crate) fn view_data<'b>(&self, block: &'b Block, kind: DataKind) -> Result<DirData<'b>> {
        let data = DirData::decode(block, kind, &self.verified());
        Ok(data.map_err(|rule| Corrupt::new(self.locus(), rule))?)
    }

    pub(crate) fn view_leaf<'b>(&self, block: &'b Block, kind: DaKind) -> Result<DirLeaf<'b>> {
        let leaf = DirLeaf::decode(block, kind, &self.verified());
        Ok(leaf.map_err(|rule| Corrupt::new(self.locus(), rule))?)
    }

    pub(crate) fn verified(&self) -> Site<'_> {
        Site::verified(self.context.geometry(), self.inode.number.get())
    }
}
