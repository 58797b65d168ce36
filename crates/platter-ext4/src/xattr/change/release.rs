//! Releasing all attributes of a deleted inode, in steps that fit a handle.

use platter_vfs::{Error, Result};

use super::places::Places;
use super::share::Left;
use super::{XattrChange, block, change_credits, value};
use crate::ondisk::xattr::{AttributeValue, Attributes};

/// Progress of the release.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub enum Released {
    /// There are no attributes any more.
    All,
    /// More remain; a new handle with these credits continues.
    Some {
        /// Credits of the next step.
        credits: u32,
    },
}

impl XattrChange<'_, '_> {
    /// Removes the inode's attributes, at least one of those with an EA inode. Corrupt ones are
    /// left for a check to report.
    ///
    /// # Errors
    /// Nothing was changed, if the attributes cannot be read or their block cannot be freed; else the
    /// handle was aborted.
    pub fn release(&mut self) -> Result<Released> {
        let mut places = match Places::read(self.fs, self.inode) {
            Ok(places) => places,
            Err(error @ Error::Corrupt(_)) => {
                self.space.pass_by(Some(error));
                self.inode.xattr_block = None;
                self.inode.tail.fill(0);
                return Ok(Released::All);
            }
            Err(error) => return Err(error),
        };
        // A referenced buffer would force a copy.
        if let Some(own) = places.block.take() {
            block::check_freeable(self, &own)?;
        }
        for number in places.inside.ea_inodes().chain(places.outside.ea_inodes()) {
            match value::drop_credits(self, number) {
                // A corrupt one is passed over.
                Ok(_) | Err(Error::Corrupt(_)) => {}
                Err(error) => return Err(error),
            }
        }
        let released = self.release_all(&mut places);
        released.map_err(|error| self.abort(error))
    }

    fn release_all(&mut self, places: &mut Places) -> Result<Released> {
        if let Some(credits) = self.release_values(&mut places.inside)? {
            // Fits, since there was more before.
            let _ = places.inside.encode_inode(&mut self.inode.tail);
            return Ok(Released::Some { credits });
        }
        self.inode.tail.fill(0);
        let Some(block) = self.inode.xattr_block else {
            return Ok(Released::All);
        };
        if let Left::None = block::leave(self, block)? {
            if let Some(credits) = self.release_values(&mut places.outside)? {
                block::rewrite(self, block, &places.outside)?;
                return Ok(Released::Some { credits });
            }
            block::free(self, block)?;
        }
        block::forget(self);
        Ok(Released::All)
    }

    /// Drops EA inodes and removes their attributes until the handle is out of credits: then it
    /// returns the credits needed to continue.
    fn release_values(&mut self, attributes: &mut Attributes) -> Result<Option<u32>> {
        let large = |value: &AttributeValue| matches!(value, AttributeValue::Inode { .. });
        while let Some(attribute) = attributes.list().iter().find(|a| large(&a.value)).cloned() {
            match self.release_value(&attribute.value) {
                Ok(None) => {}
                Err(error @ Error::Corrupt(_)) => self.space.pass_by(Some(error)),
                Ok(Some(credits)) => return Ok(Some(credits)),
                Err(error) => return Err(error),
            }
            attributes.remove(attribute.name_index, &attribute.name);
        }
        Ok(None)
    }

    /// Drops a value, or returns the credits that this needs if the handle cannot get them.
    fn release_value(&mut self, value: &AttributeValue) -> Result<Option<u32>> {
        let Some(dropped) = value::dropped(self, value, false)? else {
            return Ok(None);
        };
        let credits = value::drop_credits(self, dropped.number)?;
        // Also written are an inode or a block, and the bitmap of the block.
        let credits = credits.saturating_add(change_credits(self.fs));
        if !self.ensure(credits) {
            return Ok(Some(credits));
        }
        value::drop_value(self, dropped.number).map_err(|error| self.abort(error))?;
        let sectors = self.inode.sectors;
        self.inode.sectors = sectors.saturating_sub(dropped.owner_sectors);
        Ok(None)
    }
}
