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

impl Directory<'_> {
    /// The directory block that begins with this block of the fork; `None` if it is not mapped.
    pub(crate) fn read_as(&self, first: FileBlock, kind: BlockKind) -> Result<Option<Block>> {
        let owner = self.inode.number.get();
        let verifier = BlockVerifier::new(self.context.geometry(), kind, owner);
        self.read_with(first, &verifier)
    }

    fn read_with(&self, first: FileBlock, verifier: &dyn Verify) -> Result<Option<Block>> {
        let geometry = self.context.geometry();
        let count = geometry.dir_block_blocks();
        let run = self.map.lookup(self.context, first)?;
        let start = match run.backing {
            Backing::Written(start) => FsBlock(start),
            Backing::Hole => return Ok(None),
            Backing::Unwritten(_) => return Err(self.corrupt(DirectoryRule::Missing)),
        };
        if run.count >= u64::from(count) {
            let buffer = self.context.read_blocks(start, count, verifier)?;
            return Ok(Some(Block::Cached(buffer)));
        }
        let mut bytes = Vec::new();
        for nth in 0..u64::from(count) {
            let run = self.map.lookup(self.context, FileBlock(first.0 + nth))?;
            let Backing::Written(part) = run.backing else {
                return Err(self.corrupt(DirectoryRule::Missing));
            };
            // Only the whole has a checksum.
            let part = self.context.read_block(FsBlock(part), &Unverified)?;
            bytes.extend_from_slice(&part);
        }
        verifier.verify(geometry.basic_block(start).0, &bytes)?;
        Ok(Some(Block::Assembled(bytes.into())))
    }

    /// Which kind of block of a hash tree begins with this block of the fork.
    pub(crate) fn kind_of(&self, first: FileBlock) -> Result<Option<DaKind>> {
        let Some(block) = self.read_with(first, &Unverified)? else {
            return Ok(None);
        };
        Ok(DaKind::of(&block, self.context.geometry().features.is_v5()))
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
