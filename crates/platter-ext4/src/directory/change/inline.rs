//! Inline directories: entries after the parent's number in `i_block`, and more in the attribute
//! `system.data`. When the inode is full, they are moved to a block. Spec: `ext4/inlinedata`.

use platter_vfs::Result;

use super::super::linear::Spot;
use super::{DirectoryMut, NewName, grow, linear};
use crate::inode;
use crate::mapping::{BlockMap, InlineData};
use crate::ondisk::dir_entry::ENTRY_LEN_MIN;
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::xattr::{
    XattrSpace, begin_in_inode, remove_from_inode, value_in_inode_mut, value_len_max_in_inode,
};
use crate::ondisk::{FileBlock, InodeFlags, InodeNr};

/// `system.data`: the prefix's number and the name.
const DATA_NAME: (u8, &[u8]) = (7, b"data");
/// Bytes of the parent's inode number.
const PARENT_BYTES: usize = 4;
/// Bytes of `.` and `..` at the start of a block.
const DOTS_BYTES: usize = 24;

/// Whether the entries lie in the inode.
pub(super) fn is_inline(directory: &DirectoryMut<'_, '_>) -> bool {
    directory.inode.flags.contains(InodeFlags::INLINE_DATA)
}

/// Whether a new directory is created inline: the inode has space, and no other data.
pub(super) fn may_begin(directory: &DirectoryMut<'_, '_>) -> bool {
    let incompat = directory.fs.geometry.features.incompat;
    incompat.contains(Incompat::INLINE_DATA)
        && value_len_max(directory).is_some()
        && directory.inode.tail.iter().all(|&byte| byte == 0)
}

/// Begins an empty directory in the inode.
pub(super) fn begin(directory: &mut DirectoryMut<'_, '_>, parent: InodeNr) -> Result<()> {
    let inode = &mut *directory.inode;
    inode.flags.remove(InodeFlags::EXTENTS);
    inode.flags.insert(InodeFlags::INLINE_DATA);
    inode.block = [0; BLOCK_AREA_BYTES];
    inode.size_bytes = BLOCK_AREA_BYTES as u64;
    begin_in_inode(&mut inode.tail, DATA_NAME.0, DATA_NAME.1, &[]);
    let (number, entries) = inode.block.split_at_mut(PARENT_BYTES);
    number.copy_from_slice(&parent.get().to_le_bytes());
    directory.format.clear(entries);
    *directory.map = BlockMap::decode(directory.fs, directory.inode)?;
    Ok(())
}

/// Sets what the implied `..` names.
pub(super) fn set_parent(directory: &mut DirectoryMut<'_, '_>, parent: InodeNr) {
    let (number, _) = directory.inode.block.split_at_mut(PARENT_BYTES);
    number.copy_from_slice(&parent.get().to_le_bytes());
}

/// Inserts a name in the inode, or in a block to which all entries move.
pub(super) fn insert(directory: &mut DirectoryMut<'_, '_>, new: &NewName<'_>) -> Result<()> {
    let format = directory.format;
    if let Spot::Gap(region) = directory.view()?.spot(new.name)? {
        edit_region(directory, region, |content| new.put(format, content));
        return Ok(());
    }
    if grow_value(directory)? && format.has_space(region_mut(directory, 1), new.len()) {
        edit_region(directory, 1, |content| new.put(format, content));
        return Ok(());
    }
    move_to_block(directory)?;
    let inserted = linear::insert(directory, new);
    if inserted.is_err() {
        // The directory was converted in this transaction, so the inode table must be updated.
        let stored = inode::store(directory.fs, directory.handle, directory.inode);
        directory.abort_on_error(stored)?;
    }
    inserted
}

/// Changes one of the two regions with entries.
pub(super) fn edit_region(
    directory: &mut DirectoryMut<'_, '_>,
    region: u32,
    change: impl FnOnce(&mut [u8]),
) {
    change(region_mut(directory, region));
}

/// Returns one of the two regions with entries.
fn region_mut<'d>(directory: &'d mut DirectoryMut<'_, '_>, region: u32) -> &'d mut [u8] {
    if region == 0 {
        let (_, entries) = directory.inode.block.split_at_mut(PARENT_BYTES);
        return entries;
    }
    let value = value_in_inode_mut(&mut directory.inode.tail, DATA_NAME.0, DATA_NAME.1);
    value.unwrap_or_default()
}

/// Returns the maximum size of the second region in this inode.
fn value_len_max(directory: &DirectoryMut<'_, '_>) -> Option<usize> {
    value_len_max_in_inode(directory.inode.tail.len(), DATA_NAME.1.len())
}

/// Extends the second region to its maximum, if no other attribute is in the inode. Returns
/// whether it grew.
fn grow_value(directory: &mut DirectoryMut<'_, '_>) -> Result<bool> {
    let has_ea_inode = directory
        .fs
        .geometry
        .features
        .incompat
        .contains(Incompat::EA_INODE);
    let space = XattrSpace::decode_inode(&directory.inode.tail, has_ea_inode);
    let is_alone = matches!(space, Some(Ok(space)) if space.entries().len() == 1);
    let rest = InlineData::decode(directory.inode, &directory.fs.geometry)?.rest;
    let (len, len_max) = (rest.len(), value_len_max(directory).unwrap_or(0));
    if !is_alone || len_max <= len || len_max < ENTRY_LEN_MIN {
        return Ok(false);
    }
    let mut value = rest.to_vec();
    value.resize(len_max, 0);
    directory.format.stretch(&mut value, len);
    begin_in_inode(&mut directory.inode.tail, DATA_NAME.0, DATA_NAME.1, &value);
    directory.inode.size_bytes = (BLOCK_AREA_BYTES as u64).saturating_add(len_max as u64);
    Ok(true)
}

/// Moves the entries to a block, each keeping its offset.
fn move_to_block(directory: &mut DirectoryMut<'_, '_>) -> Result<()> {
    let inline = directory.inode.clone();
    let data = InlineData::decode(&inline, &directory.fs.geometry)?;
    let (parent, first) = data.first.split_at(PARENT_BYTES);
    let parent = u32::from_le_bytes(parent.try_into().unwrap_or_default());
    let parent = InodeNr::new(parent).unwrap_or(InodeNr::ROOT);
    let entries = [first, data.rest].concat();

    let features = directory.fs.geometry.features;
    let inode = &mut *directory.inode;
    remove_from_inode(&mut inode.tail, DATA_NAME.0, DATA_NAME.1);
    inode.flags.remove(InodeFlags::INLINE_DATA);
    let has_extents = features.incompat.contains(Incompat::EXTENTS);
    inode.flags.set(InodeFlags::EXTENTS, has_extents);
    inode.size_bytes = 0;
    *directory.map = BlockMap::begin(directory.fs, inode);
    if let Err(error) = grow::grow(directory, 1) {
        *directory.map = BlockMap::decode(directory.fs, &inline)?;
        *directory.inode = inline;
        return Err(error);
    }
    let (number, format) = (inline.number, directory.format);
    let written = directory.write_leaf(FileBlock(0), |content| {
        let filled = DOTS_BYTES.saturating_add(entries.len());
        let (dots, names) = content.split_at_mut(DOTS_BYTES);
        format.begin(dots, number, parent);
        if let Some(names) = names.get_mut(..entries.len()) {
            names.copy_from_slice(&entries);
        }
        format.stretch(content, filled);
    });
    directory.abort_on_error(written)
}
