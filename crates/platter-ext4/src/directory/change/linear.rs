//! Adding a name to a directory without an index: into the first gap, into a hole, or into a new
//! block; or by creating an index if the filesystem has `dir_index`.

use platter_vfs::Result;

use super::super::linear::Spot;
use super::{DirectoryMut, NewName};
use crate::ondisk::{FileBlock, InodeFlags};

impl DirectoryMut<'_, '_> {
    pub(super) fn insert_linear(&mut self, new: &NewName<'_>) -> Result<()> {
        let spot = self.view()?.spot(new.name)?;
        let format = self.format;
        match spot {
            Spot::Gap(chunk) => self.edit_chunk(chunk, |content| new.put(format, content))?,
            Spot::Hole(block) => self.insert_in_hole(FileBlock(block), new)?,
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
        // An unused index is outdated now. With checksums, its blocks have the checksum of an index
        // block, remain so, and get no entries.
        if !self.has_checksums() {
            self.inode.flags.remove(InodeFlags::INDEX);
        }
        Ok(())
    }

    fn insert_in_hole(&mut self, block: FileBlock, new: &NewName<'_>) -> Result<()> {
        self.fill_holes(block..FileBlock(block.0.saturating_add(1)))?;
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
