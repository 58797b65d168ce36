//! Setting and removing attributes in a transaction: in the inode if they fit, else in the
//! attribute block, and large values in EA inodes.

mod block;
mod ea_inode;
mod places;
mod share;
mod value;
mod release;

use platter_vfs::{Clock, Condition, Error, FileKind, Result, Timestamp, XattrMode};

use super::names::AttributeName;
use super::{has_ea_inode, owner_sectors, sharing};
use crate::FsContext;
use crate::alloc::{ALLOC_INODE_CREDITS, Allocator, FREE_INODE_CREDITS, RECORD_CREDITS, Reserve};
use crate::inode::STORE_CREDITS;
use crate::ondisk::features::Compat;
use crate::ondisk::xattr::{Attribute, AttributeValue};
use crate::ondisk::{BlockNr, Inode};
use crate::quota::Held;
use crate::superblock;
use crate::txn::Handle;
use block::Outside;
use places::Places;
use value::{Dropped, Taken, Wanted};

pub use release::Released;

/// Bytes of a block with one attribute, with a name of three bytes, besides the value: a larger
/// value needs an EA inode.
const BLOCK_OVERHEAD_BYTES: usize = 32 + 4 + 20;
/// Credits of changing an attribute block: a new block marked in the bitmap or a shared one, a
/// freed old one, and the superblock.
const BLOCK_CREDITS: u32 = 1 + RECORD_CREDITS + 1 + 4 + 1;
/// Expected number of runs of an EA inode; the handle is extended for more.
const VALUE_RUNS: u32 = 4;

/// A change of one inode's attributes. The caller serialises changes of them, and stores the inode
/// afterwards.
///
/// After an error, nothing was changed, or the handle was aborted.
#[derive(Debug)]
pub struct XattrChange<'a, 'h> {
    /// The filesystem.
    pub fs: &'a FsContext,
    /// The allocator.
    pub space: &'a Allocator,
    /// The handle, with [`change_credits`].
    pub handle: &'a mut Handle<'h>,
    /// The inode with the attributes.
    pub inode: &'a mut Inode,
    /// The reserve that allocations may use.
    pub from: Reserve,
    /// Now.
    pub now: Timestamp,
    /// Source of the generation of a new EA inode.
    pub clock: &'a dyn Clock,
    /// What is reserved of the quotas of the inode's owners.
    pub holding: Holding,
    /// After an error: the credits that a new handle needs for the change, if this one did not get them.
    /// Nothing was changed then.
    pub needed: Option<u32>,
}

/// Space and EA inodes that a change reserves of the quotas of an inode's owners.
#[derive(Debug, Default)]
pub struct Holding {
    /// The reservation; `None` where nothing is counted.
    pub held: Option<Held>,
    /// Whether limits do not apply.
    pub may_exceed: bool,
}

impl Holding {
    /// # Errors
    /// `QuotaExceeded`.
    fn add(&mut self, space_bytes: u64, inodes: u64) -> Result<()> {
        match &mut self.held {
            Some(held) => held.add(space_bytes, inodes, self.may_exceed),
            None => Ok(()),
        }
    }
}

/// Returns the credits of setting or removing an attribute, without storing the inode.
#[must_use]
pub fn change_credits(fs: &FsContext) -> u32 {
    if !has_ea_inode(fs) {
        return BLOCK_CREDITS;
    }
    let dropped = FREE_INODE_CREDITS + STORE_CREDITS + VALUE_RUNS * RECORD_CREDITS;
    BLOCK_CREDITS + value_credits(fs) + dropped
}

/// Returns the credits of creating an EA inode with a value of the expected number of runs.
fn value_credits(fs: &FsContext) -> u32 {
    let blocks = super::VALUE_BYTES_MAX.div_ceil(fs.geometry.block_bytes);
    ALLOC_INODE_CREDITS + STORE_CREDITS + blocks + VALUE_RUNS * RECORD_CREDITS
}

impl XattrChange<'_, '_> {
    /// Sets an attribute, or removes it, in its stored form. Returns whether that changed anything.
    ///
    /// # Errors
    /// `Exists` and `NoAttribute` according to `mode`; `NoAttribute` for removing a missing one;
    /// `NoSpace` if the value does not fit, or with [`needed`](Self::needed) credits.
    pub(super) fn set(
        &mut self,
        name: &AttributeName<'_>,
        value: Option<&[u8]>,
        mode: XattrMode,
    ) -> Result<bool> {
        let mut places = Places::read(self.fs, self.inode)?;
        let old = places.take(name);
        match mode {
            XattrMode::Create if old.is_some() => return Err(Condition::Exists.into()),
            XattrMode::Set if value.is_some() => {}
            _ if old.is_none() && mode != XattrMode::Create => {
                return Err(Condition::NoAttribute.into());
            }
            XattrMode::Set | XattrMode::Create | XattrMode::Replace => {}
        }
        if let (Some((old, _)), Some(value)) = (&old, value)
            && matches!(&old.value, AttributeValue::Here(old) if old == value)
        {
            return Ok(false);
        }
        let dropped = match &old {
            Some((old, was_outside)) => value::dropped(self, &old.value, *was_outside)?,
            None => None,
        };
        let credits = self.ensure_for(&places, dropped.as_ref())?;
        let taken = match value {
            Some(value) => self.place(&mut places, name, value, credits)?,
            None => None,
        };
        self.apply(&mut places, dropped.as_ref(), taken.as_ref())?;
        if let (Some(value), Some(taken)) = (value, &taken) {
            sharing::note_value(self.fs, taken.number, taken.hash, value);
        }
        if let Err(error) = self.announce() {
            return Err(self.abort(error));
        }
        Ok(true)
    }

    /// Ensures credits for EA inodes: for the one that may be freed with its blocks, and for the
    /// reference counts that change if a block is copied. Returns the credits that the handle has.
    fn ensure_for(&mut self, places: &Places, dropped: Option<&Dropped>) -> Result<u32> {
        let ea_inodes = places.ea_inodes_before.len();
        let mut credits = u32::try_from(ea_inodes).unwrap_or(u32::MAX);
        if let Some(dropped) = dropped {
            credits = credits.saturating_add(value::drop_credits(self, dropped.number)?);
        }
        let all = credits.saturating_add(change_credits(self.fs));
        if credits > 0 {
            self.ensure_or_ask(all, all)?;
        }
        Ok(all)
    }

    /// Finds space for a value among the attributes, and if necessary an EA inode: a shared or a
    /// new one. The change has `credits`.
    fn place(
        &mut self,
        places: &mut Places,
        name: &AttributeName<'_>,
        value: &[u8],
        credits: u32,
    ) -> Result<Option<Taken>> {
        let block_bytes = self.fs.geometry.block_bytes as usize;
        let may_have_inode = has_ea_inode(self.fs) && !value.is_empty();
        let space = block_bytes.saturating_sub(BLOCK_OVERHEAD_BYTES);
        let is_large = may_have_inode && value.len().next_multiple_of(4) > space;
        let mut attribute = Attribute {
            name_index: name.index,
            name: name.rest.to_vec(),
            value: AttributeValue::Here(value.to_vec()),
        };
        if !is_large && places.has_space(&attribute) {
            places.put(attribute);
            return Ok(None);
        }
        let wanted = Wanted::new(self.fs, name.rest, value);
        attribute.value = wanted.value_in(self.inode.number);
        if !may_have_inode || !places.has_space(&attribute) {
            return Err(Condition::NoSpace.into());
        }
        let space_bytes = owner_sectors(self.fs, value.len() as u64) << 9;
        self.holding.add(space_bytes, 1)?;
        let mut taken = match share::value(self, &wanted)? {
            Some(taken) => taken,
            None => value::make(self, &wanted, credits)?,
        };
        attribute.value = wanted.value_in(taken.number);
        taken.is_outside = places.put(attribute);
        Ok(Some(taken))
    }

    /// Updates the inode and its block to match `places`, and the reference counts of EA inodes.
    fn apply(
        &mut self,
        places: &mut Places,
        dropped: Option<&Dropped>,
        taken: Option<&Taken>,
    ) -> Result<()> {
        // Steps that can fail with ENOSPC come first.
        let outside = match block::write(self, places, taken) {
            Ok(outside) => outside,
            Err(error) => {
                return Err(match taken {
                    Some(taken) => value::give_back(self, taken, error),
                    None => error,
                });
            }
        };
        if places.inside_changed && !places.inside.encode_inode(&mut self.inode.tail) {
            return Err(self.abort(Condition::NoSpace.into()));
        }
        let finished = self.finish(outside, dropped, taken);
        finished.map_err(|error| self.abort(error))
    }

    /// Updates the reference counts. An in-inode attribute counts as one reference to its value; so
    /// does one in a block, however many inodes share the block.
    fn finish(
        &mut self,
        outside: Outside,
        dropped: Option<&Dropped>,
        taken: Option<&Taken>,
    ) -> Result<()> {
        if let Some(dropped) = dropped {
            let sectors = self.inode.sectors;
            self.inode.sectors = sectors.saturating_sub(dropped.owner_sectors);
            if !dropped.was_outside || outside == Outside::Rewritten {
                value::drop_value(self, dropped.number)?;
            }
        }
        if let Some(taken) = taken {
            let sectors = self.inode.sectors;
            self.inode.sectors = sectors.saturating_add(taken.owner_sectors);
            // The block with these attributes is already counted.
            if taken.is_outside && matches!(outside, Outside::Same | Outside::Shared) {
                value::drop_value(self, taken.number)?;
            }
        }
        Ok(())
    }

    /// Sets the `ext_attr` feature with the first attribute.
    fn announce(&mut self) -> Result<()> {
        let compat = self.fs.geometry.features.compat;
        if compat.contains(Compat::EXT_ATTR) {
            return Ok(());
        }
        superblock::edit(self.fs, self.handle, |disk| {
            disk.leave_revision_0();
            let bits = disk.feature_compat.get() | Compat::EXT_ATTR.bits();
            disk.feature_compat.set(bits);
        })
    }

    fn abort(&mut self, error: Error) -> Error {
        self.handle.abort(error)
    }

    /// Ensures that the handle has `credits` left.
    fn ensure(&mut self, credits: u32) -> bool {
        let left = self.handle.credits();
        left >= credits || self.handle.extend(credits - left)
    }

    /// Ensures that the handle has `credits` left. If it does not get them, a new one is to begin with
    /// `needed`: the transaction is full or closes.
    fn ensure_or_ask(&mut self, credits: u32, needed: u32) -> Result<()> {
        if self.ensure(credits) {
            return Ok(());
        }
        self.needed = Some(needed);
        Err(Condition::NoSpace.into())
    }

    fn cluster_bytes(&self) -> u64 {
        let geometry = &self.fs.geometry;
        u64::from(geometry.block_bytes).saturating_mul(geometry.cluster_blocks.into())
    }

    /// Returns the allocation goal of attribute blocks.
    fn goal(&self) -> BlockNr {
        self.space.first_goal(self.inode.number, FileKind::Regular)
    }
}
