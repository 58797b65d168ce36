//! Adding a name to a directory without index: into the first gap, into a hole, or behind the last
//! block; or by making an index where the format has one.

use platter_vfs::{Condition, Result};

use super::super::contents::{Chunk, verifier};
use super::super::{DirEntryRule, Directory, linear};
use super::{DirectoryMut, NewName};
use crate::ondisk::{FileBlock, InodeFlags};

/// Where a name goes in a directory without index.
enum Spot {
    /// There is a gap in this block.
    Gap(u32),
    /// This block is a hole.
    Hole(u32),
    /// Every block is full.
    Full,
}

impl DirectoryMut<'_, '_> {
    pub(super) fn insert_linear(&mut self, new: &NewName<'_>) -> Result<()> {
        let spot = self.view()?.spot(new)?;
        let format = self.format;
        match spot {
            Spot::Gap(chunk) => self.edit_chunk(chunk, |content| new.put(format, content))?,
            Spot::Hole(block) => self.fill_hole(FileBlock(block), new)?,
            Spot::Full => {
                if self.block_count() == FileBlock(1)
                    && let Some(made) = self.view()?.new_index()
                {
                    return self.make_index(&made, new);
                }
                let block = self.grow(1)?;
                let written = self.write_first_name(block, new);
                self.abort_on_error(written)?;
            }
        }
        // An index that was not used is out of date now. Where blocks have checksums they are sealed
        // as those of an index, stay what they are, and get no names.
        if !self.has_checksums() {
            self.target.inode.flags.remove(InodeFlags::INDEX);
        }
        Ok(())
    }

    fn fill_hole(&mut self, block: FileBlock, new: &NewName<'_>) -> Result<()> {
        let end = FileBlock(block.0.saturating_add(1));
        self.space.grow(&mut self.target, block..end)?;
        let written = self.write_first_name(block, new);
        self.abort_on_error(written)
    }

    fn write_first_name(&mut self, block: FileBlock, new: &NewName<'_>) -> Result<()> {
        let format = self.format;
        self.write_leaf(block, |content| {
            format.clear(content);
            new.put(format, content);
        })
    }
}

impl Directory<'_> {
    /// Looks where a name goes, and proves that it is not there yet.
    fn spot(&self, new: &NewName<'_>) -> Result<Spot> {
        let wanted = self.wanted(new.name)?;
        let (mut gap, mut hole) = (None, None);
        for number in 0..self.contents.chunk_count() {
            let Some(chunk) = self.contents.read_in_order(number)? else {
                if number == 0 {
                    return Err(self.broken_entry(0, (0, DirEntryRule::Dots)));
                }
                hole.get_or_insert(number);
                continue;
            };
            if linear::find(self, number, &chunk, &wanted)?.is_some() {
                return Err(Condition::Exists.into());
            }
            if gap.is_none() && self.has_room(number, &chunk, new.len()) {
                gap = Some(number);
            }
        }
        if self.contents.chunk_count() == 0 {
            return Err(self.broken_entry(0, (0, DirEntryRule::Dots)));
        }
        Ok(match (gap, hole) {
            (Some(chunk), _) => Spot::Gap(chunk),
            (None, Some(block)) => Spot::Hole(block),
            (None, None) => Spot::Full,
        })
    }

    fn has_room(&self, number: u32, chunk: &Chunk<'_>, name_len: usize) -> bool {
        let content = match chunk {
            Chunk::Block(bytes) => bytes.get(..self.content_len()).unwrap_or_default(),
            Chunk::Region(bytes) => bytes,
        };
        let verifier = verifier(self.volume, self.inode, FileBlock(number));
        let is_sealed_index = verifier.checksum_seed.is_some() && verifier.is_index_block(chunk);
        !is_sealed_index && self.format.has_room(content, name_len)
    }
}
