//! Adding a name to a directory without an index: into the first gap, into a hole, or into a new
//! block; or by creating an index if the filesystem has `dir_index`.

use platter_vfs::Result;

use super::super::linear::Spot;
use super::{DirectoryMut, NewName, grow, index};
use crate::ondisk::{FileBlock, InodeFlags};

/// Inserts a name where the entries have space for it, or in a new block.
pub(super) fn insert(directory: &mut DirectoryMut<'_, '_>, new: &NewName<'_>) -> Result<()> {
    let spot = directory.view()?.spot(new.name)?;
    let format = directory.format;
    match spot {
        Spot::Gap(chunk) => directory.edit_chunk(chunk, |content| new.put(format, content))?,
        Spot::Hole(block) => insert_in_hole(directory, FileBlock(block), new)?,
        Spot::Full => {
            if directory.block_count() == FileBlock(1)
                && let Some(made) = index::new_index(&directory.view()?)
            {
                return index::make(directory, &made, new);
            }
            let block = grow::grow(directory, 1)?;
            let written = write_first_name(directory, block, new);
            directory.abort_on_error(written)?;
        }
    }
    // An unused index is outdated now. With checksums, its blocks have the checksum of an index
    // block, remain so, and get no entries.
    if !directory.has_checksums() {
        directory.inode.flags.remove(InodeFlags::INDEX);
    }
    Ok(())
}

fn insert_in_hole(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    new: &NewName<'_>,
) -> Result<()> {
    grow::fill_holes(directory, block..FileBlock(block.0.saturating_add(1)))?;
    let written = write_first_name(directory, block, new);
    directory.abort_on_error(written)
}

fn write_first_name(
    directory: &mut DirectoryMut<'_, '_>,
    block: FileBlock,
    new: &NewName<'_>,
) -> Result<()> {
    let format = directory.format;
    directory.write_leaf(block, |content| {
        format.clear(content);
        new.put(format, content);
    })
}
