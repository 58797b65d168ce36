//! The attributes of an inode while they are modified: in-inode ones and those in the block.

use platter_vfs::Result;

use super::block::AttributeBlock;
use crate::FsContext;
use crate::ondisk::xattr::{Attribute, Attributes};
use crate::ondisk::{Inode, InodeNr};
use crate::xattr::names::AttributeName;
use crate::xattr::{block_space, has_ea_inode, inode_space};

/// All attributes of an inode.
#[derive(Debug)]
pub(super) struct Places {
    /// The in-inode attributes.
    pub(super) inside: Attributes,
    pub(super) inside_changed: bool,
    /// The attributes in the block.
    pub(super) outside: Attributes,
    pub(super) outside_changed: bool,
    /// The block as it was read, if there is one, until it is to be modified.
    pub(super) block: Option<AttributeBlock>,
    inside_len: usize,
    block_bytes: usize,
    /// Bytes of a block that values leave free for the entries of others.
    reserved: usize,
    /// The EA inodes of the block as it was read.
    pub(super) ea_inodes_before: Vec<InodeNr>,
}

/// Maximum of [`reserved`](Places::reserved): with `ea_inode`, values leave an eighth of the block.
const RESERVED_MAX: usize = 1024;

impl Places {
    pub(super) fn read(fs: &FsContext, inode: &Inode) -> Result<Self> {
        let inside = inode_space(fs, inode)?;
        let block = AttributeBlock::read(fs, inode)?;
        let outside = match &block {
            Some(block) => Attributes::of(&block_space(fs, inode, &block.buffer)?),
            None => Attributes::default(),
        };
        let block_bytes = fs.geometry.block_bytes as usize;
        let reserved = if has_ea_inode(fs) {
            (block_bytes / 8).min(RESERVED_MAX)
        } else {
            0
        };
        Ok(Self {
            inside: inside.as_ref().map(Attributes::of).unwrap_or_default(),
            inside_changed: false,
            ea_inodes_before: outside.ea_inodes().collect(),
            outside,
            outside_changed: false,
            block,
            inside_len: inode.tail.len(),
            block_bytes,
            reserved,
        })
    }

    /// Removes an attribute, and returns whether it was in the block.
    pub(super) fn take(&mut self, name: &AttributeName<'_>) -> Option<(Attribute, bool)> {
        let inside = self.inside.remove(name.index, name.rest);
        if let Some(attribute) = inside {
            self.inside_changed = true;
            return Some((attribute, false));
        }
        let attribute = self.outside.remove(name.index, name.rest)?;
        self.outside_changed = true;
        Some((attribute, true))
    }

    /// Whether an attribute fits the inode or the block.
    pub(super) fn has_space(&self, attribute: &Attribute) -> bool {
        self.fits_inside(attribute)
            || self
                .outside
                .fits_in_block(attribute, self.block_bytes, self.reserved)
    }

    fn fits_inside(&self, attribute: &Attribute) -> bool {
        self.inside.fits_in_inode(attribute, self.inside_len)
    }

    /// Adds an attribute that [fits](Self::has_space) to the inode, or else to the block. Returns
    /// whether it went to the block.
    pub(super) fn put(&mut self, attribute: Attribute) -> bool {
        let is_outside = !self.fits_inside(&attribute);
        if is_outside {
            self.outside.insert(attribute);
            self.outside_changed = true;
        } else {
            self.inside.insert(attribute);
            self.inside_changed = true;
        }
        is_outside
    }
}
