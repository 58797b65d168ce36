//! Setting and removing attributes within a transaction: behind the inode where there is room, else
//! in the inode's attribute block, and large values in inodes of their own.

mod block;
mod places;
mod release;
mod value;

use platter_vfs::{Condition, Error, FileKind, Result, Timestamp, XattrMode};

use super::has_ea_inode;
use super::names::AttributeName;
use crate::Volume;
use crate::alloc::{ALLOC_INODE_CREDITS, FREE_INODE_CREDITS, RECORD_CREDITS, Reserve, Space};
use crate::inode::STORE_CREDITS;
use crate::ondisk::features::Compat;
use crate::ondisk::xattr::{Attribute, AttributeValue};
use crate::ondisk::{BlockNr, Inode};
use crate::superblock;
use crate::txn::Handle;
use places::Places;
use value::{Made, Wanted};

pub use release::Released;

/// What a block with one attribute of a name of three bytes holds beside the value: a larger value
/// goes into an inode of its own.
const BLOCK_OVERHEAD_BYTES: usize = 32 + 4 + 20;
/// Changes of an attribute block: a new one that is recorded, and an old one that is freed; and the
/// superblock.
const BLOCK_CREDITS: u32 = 1 + RECORD_CREDITS + 1 + 4 + 1;
/// Runs of blocks that a value in an inode is expected to have; the handle is extended for more.
const VALUE_RUNS: u32 = 4;

/// A change of one inode's attributes. The caller keeps others from changing them, and stores the
/// inode afterwards.
///
/// An error says that nothing was changed, or that the handle was aborted.
#[derive(Debug)]
pub struct XattrChange<'a, 'h> {
    /// The filesystem.
    pub volume: &'a Volume,
    /// Its space.
    pub space: &'a Space,
    /// The transaction, with [`change_credits`].
    pub handle: &'a mut Handle<'h>,
    /// Whose attributes they are.
    pub inode: &'a mut Inode,
    /// What space may be used.
    pub from: Reserve,
    /// Now.
    pub now: Timestamp,
    /// The generation of an inode that is made.
    pub generation: u32,
}

/// Credits of setting or removing an attribute, but for storing the inode.
#[must_use]
pub fn change_credits(volume: &Volume) -> u32 {
    if !has_ea_inode(volume) {
        return BLOCK_CREDITS;
    }
    let blocks = super::VALUE_BYTES_MAX.div_ceil(volume.geometry.block_bytes);
    let made = ALLOC_INODE_CREDITS + STORE_CREDITS + blocks + VALUE_RUNS * RECORD_CREDITS;
    let dropped = FREE_INODE_CREDITS + STORE_CREDITS + VALUE_RUNS * RECORD_CREDITS;
    BLOCK_CREDITS + made + dropped
}

impl XattrChange<'_, '_> {
    /// Gives an attribute a value, as it is stored, or removes it.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` as `mode` asks; `NoAttribute` for removing what is not there;
    /// `NoSpace` when the value has no room anywhere.
    pub(super) fn set(
        &mut self,
        name: &AttributeName<'_>,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<()> {
        let mut places = Places::read(self.volume, self.inode)?;
        let old = places.take(name);
        match mode {
            XattrMode::Create if old.is_some() => return Err(Condition::Exists.into()),
            XattrMode::Set if value.is_some() => {}
            _ if old.is_none() && mode != XattrMode::Create => {
                return Err(Condition::NoAttribute.into());
            }
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        let dropped = match old {
            // Others that share the block keep the value.
            Some((old, was_outside)) => {
                let is_kept = was_outside && places.is_block_shared();
                self.dropped(&old.value, is_kept)?
            }
            None => None,
        };
        let made = match value {
            Some(value) => self.place(&mut places, name, value)?,
            None => None,
        };
        self.apply(&places, made.as_ref())?;
        if let Err(error) = self.announce() {
            return Err(self.abort(error));
        }
        match dropped {
            Some(dropped) => self.drop_value(&dropped).map_err(|error| self.abort(error)),
            None => Ok(()),
        }
    }

    /// Finds room for a value among the attributes, and makes the inode it lies in if it must.
    fn place(
        &mut self,
        places: &mut Places,
        name: &AttributeName<'_>,
        value: &[u8],
    ) -> Result<Option<Made>> {
        let block_bytes = self.volume.geometry.block_bytes as usize;
        let may_have_inode = has_ea_inode(self.volume) && !value.is_empty();
        let room = block_bytes.saturating_sub(BLOCK_OVERHEAD_BYTES);
        let is_large = may_have_inode && value.len().next_multiple_of(4) > room;
        let mut attribute = Attribute {
            name_index: name.index,
            name: name.rest.to_vec(),
            value: AttributeValue::Here(value.to_vec()),
        };
        if !is_large && places.has_room(&attribute) {
            places.put(attribute);
            return Ok(None);
        }
        let wanted = Wanted::new(self.volume, name.rest, value);
        attribute.value = wanted.value_in(self.inode.number);
        if !may_have_inode || !places.has_room(&attribute) {
            return Err(Condition::NoSpace.into());
        }
        let made = self.make_value(&wanted)?;
        attribute.value = wanted.value_in(made.number);
        places.put(attribute);
        Ok(Some(made))
    }

    /// Makes the inode and its block what `places` says.
    fn apply(&mut self, places: &Places, made: Option<&Made>) -> Result<()> {
        // What can fail for want of space comes first.
        if let Err(error) = self.write_outside(places) {
            return Err(match made {
                Some(made) => self.unmake_value(made, error),
                None => error,
            });
        }
        if places.inside_changed && !places.inside.encode_inode(&mut self.inode.tail) {
            return Err(self.abort(Condition::NoSpace.into()));
        }
        if let Some(made) = made {
            self.inode.sectors = self.inode.sectors.saturating_add(made.owner_sectors);
        }
        Ok(())
    }

    /// A filesystem says in its superblock whether it ever had attributes.
    fn announce(&mut self) -> Result<()> {
        let compat = self.volume.geometry.features.compat;
        if compat.contains(Compat::EXT_ATTR) || self.volume.superblock.revision == 0 {
            return Ok(());
        }
        superblock::edit(self.volume, self.handle, |disk| {
            let bits = disk.feature_compat.get() | Compat::EXT_ATTR.bits();
            disk.feature_compat.set(bits);
        })
    }

    fn abort(&mut self, error: Error) -> Error {
        self.handle.abort(error)
    }

    /// Sees to it that the handle has `credits` left.
    fn ensure(&mut self, credits: u32) -> bool {
        let left = self.handle.credits();
        left >= credits || self.handle.extend(credits - left)
    }

    fn cluster_bytes(&self) -> u64 {
        let geometry = &self.volume.geometry;
        u64::from(geometry.block_bytes).saturating_mul(geometry.cluster_blocks.into())
    }

    /// Where blocks of the inode's attributes are best placed.
    fn goal(&self) -> BlockNr {
        self.space.first_goal(self.inode.number, FileKind::Regular)
    }
}
