//! Letting go of all attributes of an inode that is deleted, in pieces that a handle can hold.

use platter_vfs::{Error, Result};

use super::places::Places;
use super::share::Left;
use super::{XattrChange, change_credits};
use crate::ondisk::xattr::{AttributeValue, Attributes};

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// There are no attributes any more.
    All,
    /// With a new handle, which has so many credits, it goes on.
    Some {
        /// What the next step takes.
        credits: u32,
    },
}

impl XattrChange<'_, '_> {
    /// Removes the inode's attributes, at least one of those with much to free. What is damaged is
    /// left where it is, for a check to find.
    ///
    /// # Errors
    /// The handle was aborted.
    pub fn release(&mut self) -> Result<Released> {
        let mut places = match Places::read(self.volume, self.inode) {
            Ok(places) => places,
            Err(Error::Corrupt(_)) => {
                self.inode.xattr_block = None;
                self.inode.tail.fill(0);
                return Ok(Released::All);
            }
            Err(error) => return Err(self.abort(error)),
        };
        // While somebody has what was read, a change is made to a copy.
        places.block = None;
        let released = self.release_all(&mut places);
        released.map_err(|error| self.abort(error))
    }

    fn release_all(&mut self, places: &mut Places) -> Result<Released> {
        if let Some(credits) = self.release_values(&mut places.inside)? {
            // What is left has room: there was more before.
            let _ = places.inside.encode_inode(&mut self.inode.tail);
            return Ok(Released::Some { credits });
        }
        self.inode.tail.fill(0);
        let Some(block) = self.inode.xattr_block else {
            return Ok(Released::All);
        };
        if let Left::Nobody = self.leave_block(block)? {
            if let Some(credits) = self.release_values(&mut places.outside)? {
                self.rewrite_block(block, &places.outside)?;
                return Ok(Released::Some { credits });
            }
            self.free_block(block)?;
        }
        self.forget_block();
        Ok(Released::All)
    }

    /// Drops values in inodes, and takes the attributes that had them out, until the handle has no
    /// room for more: then it gives the credits that are needed to go on.
    fn release_values(&mut self, attributes: &mut Attributes) -> Result<Option<u32>> {
        let large = |value: &AttributeValue| matches!(value, AttributeValue::Inode { .. });
        while let Some(attribute) = attributes.list().iter().find(|a| large(&a.value)).cloned() {
            match self.release_value(&attribute.value) {
                // What is damaged is left for a check to find.
                Ok(None) | Err(Error::Corrupt(_)) => {}
                Ok(Some(credits)) => return Ok(Some(credits)),
                Err(error) => return Err(error),
            }
            attributes.remove(attribute.name_index, &attribute.name);
        }
        Ok(None)
    }

    /// Drops a value, or gives the credits that this takes if the handle cannot have them.
    fn release_value(&mut self, value: &AttributeValue) -> Result<Option<u32>> {
        let Some(dropped) = self.dropped(value, false)? else {
            return Ok(None);
        };
        let credits = self.credits_of_drop(dropped.number)?;
        // What is to be written besides is an inode or a block, and the bitmap of the block.
        let credits = credits.saturating_add(change_credits(self.volume));
        if !self.ensure(credits) {
            return Ok(Some(credits));
        }
        self.drop_value(dropped.number)?;
        let sectors = self.inode.sectors;
        self.inode.sectors = sectors.saturating_sub(dropped.owner_sectors);
        Ok(None)
    }
}
