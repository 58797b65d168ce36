//! Letting go of all attributes of an inode that is deleted, in pieces that a handle can hold.

use platter_vfs::{Error, Result};

use super::XattrChange;
use super::places::Places;
use crate::ondisk::xattr::{AttributeValue, Attributes};

/// How far it came.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// There are no attributes any more.
    All,
    /// With a new handle, it goes on.
    Some,
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
        let released = self.release_all(&mut places);
        released.map_err(|error| self.abort(error))
    }

    fn release_all(&mut self, places: &mut Places) -> Result<Released> {
        if !self.release_values(&mut places.inside)? {
            // What is left has room: there was more before.
            let _ = places.inside.encode_inode(&mut self.inode.tail);
            return Ok(Released::Some);
        }
        self.inode.tail.fill(0);
        let Some(block) = self.inode.xattr_block else {
            return Ok(Released::All);
        };
        let is_own = !places.is_block_shared();
        if is_own && !self.release_values(&mut places.outside)? {
            self.rewrite_block(block, &places.outside)?;
            return Ok(Released::Some);
        }
        self.release_block(block)?;
        Ok(Released::All)
    }

    /// Drops values in inodes, and takes the attributes that had them out, until the handle has no
    /// room for more. Whether that was all.
    fn release_values(&mut self, attributes: &mut Attributes) -> Result<bool> {
        let large = |value: &AttributeValue| matches!(value, AttributeValue::Inode { .. });
        while let Some(attribute) = attributes.list().iter().find(|a| large(&a.value)).cloned() {
            let dropped = match self.dropped(&attribute.value, false) {
                Err(Error::Condition(_)) => return Ok(false),
                Err(Error::Corrupt(_)) => None,
                dropped => dropped?,
            };
            if let Some(dropped) = dropped {
                match self.drop_value(&dropped) {
                    Err(Error::Corrupt(_)) => {}
                    result => result?,
                }
            }
            attributes.remove(attribute.name_index, &attribute.name);
        }
        Ok(true)
    }
}
