//! The attribute block of an inode: made, changed in place, copied from one that others share, and
//! let go of.

use platter_cache::Buffer;
use platter_vfs::{Condition, Result};

use super::XattrChange;
use super::places::Places;
use crate::Volume;
use crate::ondisk::xattr::{AttributeValue, Attributes, references, set_references};
use crate::ondisk::{BlockNr, Inode, InodeNr};
use crate::xattr::{block_space, block_verifier, read_block};

/// An attribute block as it was read.
#[derive(Debug)]
pub(super) struct AttributeBlock {
    number: BlockNr,
    pub(super) buffer: Buffer,
    references: u32,
}

impl AttributeBlock {
    pub(super) fn read(volume: &Volume, inode: &Inode) -> Result<Option<Self>> {
        let (Some(number), Some(buffer)) = (inode.xattr_block, read_block(volume, inode)?) else {
            return Ok(None);
        };
        let references = references(&buffer).unwrap_or(1);
        Ok(Some(Self {
            number,
            buffer,
            references,
        }))
    }

    /// Whether other inodes use it, too.
    pub(super) fn is_shared(&self) -> bool {
        self.references > 1
    }
}

impl XattrChange<'_, '_> {
    /// Makes the inode's block what `places` says.
    pub(super) fn write_outside(&mut self, places: &Places) -> Result<()> {
        if !places.outside_changed {
            return Ok(());
        }
        match &places.block {
            Some(block) if places.outside.is_empty() => {
                let released = self.release_block(block.number);
                released.map_err(|error| self.abort(error))?;
                Ok(())
            }
            None if places.outside.is_empty() => Ok(()),
            Some(block) if !block.is_shared() => {
                let verifier = block_verifier(self.volume);
                self.handle.edit(block.number, &verifier, |bytes| {
                    Ok(lay_out(&places.outside, bytes)?)
                })
            }
            Some(block) => {
                let copied = self.make_block(&places.outside)?;
                let left = self.leave_to_others(block, &places.outside);
                left.map_err(|error| self.abort(error))?;
                self.inode.xattr_block = Some(copied);
                Ok(())
            }
            None => {
                let made = self.make_block(&places.outside)?;
                self.inode.xattr_block = Some(made);
                let sectors = self.cluster_bytes() >> 9;
                self.inode.sectors = self.inode.sectors.saturating_add(sectors);
                Ok(())
            }
        }
    }

    /// Makes a block that this inode alone uses.
    fn make_block(&mut self, attributes: &Attributes) -> Result<BlockNr> {
        let mut bytes = vec![0; self.volume.geometry.block_bytes as usize];
        lay_out(attributes, &mut bytes)?;
        let goal = self.goal();
        let taken = self
            .space
            .alloc(self.volume, self.handle, goal, 1, self.from)?;
        let verifier = block_verifier(self.volume);
        let made = self.handle.create(taken.start, &verifier, bytes);
        made.map_err(|error| self.abort(error))?;
        Ok(taken.start)
    }

    /// Leaves a shared block, of which most of `attributes` were copied, to the others. The inodes of
    /// values that were are used by both blocks then.
    fn leave_to_others(&mut self, block: &AttributeBlock, attributes: &Attributes) -> Result<()> {
        let before = Attributes::of(&block_space(self.volume, self.inode, &block.buffer)?);
        let before: Vec<InodeNr> = holders(&before).collect();
        let holders = holders(attributes).filter(|holder| before.contains(holder));
        let holders: Vec<InodeNr> = holders.collect();
        for &holder in &holders {
            self.add_reference(holder)?;
        }
        if self.unshare(block.number)? {
            return Ok(());
        }
        // The others left it meanwhile.
        self.free_block(block.number)?;
        for &holder in &holders {
            self.remove_reference(holder)?;
        }
        Ok(())
    }

    /// Lets go of the inode's block, and frees it when this was the last to use it.
    pub(super) fn release_block(&mut self, block: BlockNr) -> Result<()> {
        if !self.unshare(block)? {
            self.free_block(block)?;
        }
        self.inode.xattr_block = None;
        let sectors = self.cluster_bytes() >> 9;
        self.inode.sectors = self.inode.sectors.saturating_sub(sectors);
        Ok(())
    }

    /// Counts one user less, if there are others.
    fn unshare(&mut self, block: BlockNr) -> Result<bool> {
        let verifier = block_verifier(self.volume);
        self.handle.edit(block, &verifier, |bytes| {
            let Some(others @ 1..) = references(bytes).and_then(|count| count.checked_sub(1))
            else {
                return Ok(false);
            };
            set_references(bytes, others);
            Ok(true)
        })
    }

    fn free_block(&mut self, block: BlockNr) -> Result<()> {
        let blocks = block..BlockNr(block.0.saturating_add(1));
        self.handle.forget(blocks.clone());
        self.space.free(self.volume, self.handle, blocks)
    }

    /// Takes attributes out of the block that this inode alone uses.
    pub(super) fn rewrite_block(&mut self, block: BlockNr, attributes: &Attributes) -> Result<()> {
        let verifier = block_verifier(self.volume);
        self.handle
            .edit(block, &verifier, |bytes| Ok(lay_out(attributes, bytes)?))
    }
}

fn lay_out(attributes: &Attributes, bytes: &mut [u8]) -> Result<(), Condition> {
    if attributes.encode_block(bytes, 1) {
        return Ok(());
    }
    Err(Condition::NoSpace)
}

/// The inodes that hold values.
fn holders(attributes: &Attributes) -> impl Iterator<Item = InodeNr> {
    let holder = |value: &AttributeValue| match value {
        AttributeValue::Here(_) => None,
        AttributeValue::Inode { number, .. } => Some(*number),
    };
    let list = attributes.list().iter();
    list.filter_map(move |attribute| holder(&attribute.value))
}
