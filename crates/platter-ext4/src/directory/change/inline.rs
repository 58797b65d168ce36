//! Inline directories: entries after the parent's number in `i_block`, and more in the attribute
//! `system.data`. When the inode is full, they are moved to a block. Spec: `ext4/inlinedata`.

use platter_vfs::Result;

use super::super::linear::Spot;
use super::{DirectoryMut, NewName};
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

impl DirectoryMut<'_, '_> {
    pub(super) fn is_inline(&self) -> bool {
        self.inode.flags.contains(InodeFlags::INLINE_DATA)
    }

    /// Whether a new directory is created inline: the inode has space, and no other data.
    pub(super) fn may_begin_inline(&self) -> bool {
        let incompat = self.fs.geometry.features.incompat;
        incompat.contains(Incompat::INLINE_DATA)
            && self.value_len_max().is_some()
            && self.inode.tail.iter().all(|&byte| byte == 0)
    }

    pub(super) fn begin_inline(&mut self, parent: InodeNr) -> Result<()> {
        let inode = &mut *self.inode;
        inode.flags.remove(InodeFlags::EXTENTS);
        inode.flags.insert(InodeFlags::INLINE_DATA);
        inode.block = [0; BLOCK_AREA_BYTES];
        inode.size_bytes = BLOCK_AREA_BYTES as u64;
        begin_in_inode(&mut inode.tail, DATA_NAME.0, DATA_NAME.1, &[]);
        let (number, entries) = inode.block.split_at_mut(PARENT_BYTES);
        number.copy_from_slice(&parent.get().to_le_bytes());
        self.format.clear(entries);
        *self.map = BlockMap::decode(self.fs, self.inode)?;
        Ok(())
    }

    pub(super) fn set_inline_parent(&mut self, parent: InodeNr) {
        let (number, _) = self.inode.block.split_at_mut(PARENT_BYTES);
        number.copy_from_slice(&parent.get().to_le_bytes());
    }

    pub(super) fn insert_inline(&mut self, new: &NewName<'_>) -> Result<()> {
        let format = self.format;
        if let Spot::Gap(region) = self.view()?.spot(new.name)? {
            self.edit_region(region, |content| new.put(format, content));
            return Ok(());
        }
        if self.grow_value()? && format.has_space(self.region_mut(1), new.len()) {
            self.edit_region(1, |content| new.put(format, content));
            return Ok(());
        }
        self.move_to_block()?;
        let inserted = self.insert_linear(new);
        if inserted.is_err() {
            // The directory was converted in this transaction, so the inode table must be updated.
            let stored = inode::store(self.fs, self.handle, self.inode);
            self.abort_on_error(stored)?;
        }
        inserted
    }

    pub(super) fn edit_region(&mut self, region: u32, change: impl FnOnce(&mut [u8])) {
        change(self.region_mut(region));
    }

    /// Returns one of the two regions with entries.
    fn region_mut(&mut self, region: u32) -> &mut [u8] {
        if region == 0 {
            let (_, entries) = self.inode.block.split_at_mut(PARENT_BYTES);
            return entries;
        }
        let value = value_in_inode_mut(&mut self.inode.tail, DATA_NAME.0, DATA_NAME.1);
        value.unwrap_or_default()
    }

    /// Returns the maximum size of the second region in this inode.
    fn value_len_max(&self) -> Option<usize> {
        value_len_max_in_inode(self.inode.tail.len(), DATA_NAME.1.len())
    }

    /// Extends the second region to its maximum, if no other attribute is in the inode. Returns
    /// whether it grew.
    fn grow_value(&mut self) -> Result<bool> {
        let has_ea_inode = self
            .fs
            .geometry
            .features
            .incompat
            .contains(Incompat::EA_INODE);
        let space = XattrSpace::decode_inode(&self.inode.tail, has_ea_inode);
        let is_alone = matches!(space, Some(Ok(space)) if space.entries().len() == 1);
        let rest = InlineData::decode(self.inode, &self.fs.geometry)?.rest;
        let (len, len_max) = (rest.len(), self.value_len_max().unwrap_or(0));
        if !is_alone || len_max <= len || len_max < ENTRY_LEN_MIN {
            return Ok(false);
        }
        let mut value = rest.to_vec();
        value.resize(len_max, 0);
        self.format.stretch(&mut value, len);
        begin_in_inode(&mut self.inode.tail, DATA_NAME.0, DATA_NAME.1, &value);
        self.inode.size_bytes = (BLOCK_AREA_BYTES as u64).saturating_add(len_max as u64);
        Ok(true)
    }

    /// Moves the entries to a block, each keeping its offset.
    fn move_to_block(&mut self) -> Result<()> {
        let inline = self.inode.clone();
        let data = InlineData::decode(&inline, &self.fs.geometry)?;
        let (parent, first) = data.first.split_at(PARENT_BYTES);
        let parent = u32::from_le_bytes(parent.try_into().unwrap_or_default());
        let parent = InodeNr::new(parent).unwrap_or(InodeNr::ROOT);
        let entries = [first, data.rest].concat();

        let features = self.fs.geometry.features;
        let inode = &mut *self.inode;
        remove_from_inode(&mut inode.tail, DATA_NAME.0, DATA_NAME.1);
        inode.flags.remove(InodeFlags::INLINE_DATA);
        let has_extents = features.incompat.contains(Incompat::EXTENTS);
        inode.flags.set(InodeFlags::EXTENTS, has_extents);
        inode.size_bytes = 0;
        *self.map = BlockMap::begin(self.fs, inode);
        if let Err(error) = self.grow(1) {
            *self.map = BlockMap::decode(self.fs, &inline)?;
            *self.inode = inline;
            return Err(error);
        }
        let (number, format) = (inline.number, self.format);
        let written = self.write_leaf(FileBlock(0), |content| {
            let filled = DOTS_BYTES.saturating_add(entries.len());
            let (dots, names) = content.split_at_mut(DOTS_BYTES);
            format.begin(dots, number, parent);
            if let Some(names) = names.get_mut(..entries.len()) {
                names.copy_from_slice(&entries);
            }
            format.stretch(content, filled);
        });
        self.abort_on_error(written)
    }
}
