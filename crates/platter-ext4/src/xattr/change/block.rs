//! The attribute block of an inode: created, modified in place, copied from a shared one, and
//! released.

use platter_cache::Buffer;
use platter_cache::mbcache::{Fingerprint, Removal};
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Condition, Result};

use super::XattrChange;
use super::places::Places;
use super::share::{self, Left};
use super::value::{self, Taken};
use crate::ondisk::xattr::{
    Attributes, XATTR_REFERENCES_MAX, XattrRule, references, set_references, shared_hash,
};
use crate::ondisk::{BlockNr, Inode, InodeNr};
use crate::txn::Edit;
use crate::xattr::sharing::{fingerprint_of_block, is_same};
use crate::xattr::{block_verifier, has_ea_inode, read_block};
use crate::{FsContext, alloc};

/// Maximum number of waits for a thread that is about to share a block: each wait ends with one
/// more reference, or with that thread gone.
pub(super) const WAITS_MAX: u32 = 1000;

/// An attribute block as it was read.
#[derive(Debug)]
pub(super) struct AttributeBlock {
    pub(super) number: BlockNr,
    pub(super) buffer: Buffer,
}

/// The intended contents of an attribute block with one reference, without checksum.
#[derive(Debug)]
pub(super) struct Draft {
    pub(super) bytes: Vec<u8>,
    /// `None` if it must not be shared.
    pub(super) fingerprint: Option<Fingerprint>,
}

/// The change of an inode's attribute block.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Outside {
    /// The block and its contents are unchanged.
    Same,
    /// Its contents changed.
    Rewritten,
    /// The inode uses an existing block.
    Shared,
    /// The inode has a new block.
    Made,
    /// The inode has no block.
    Gone,
}

impl AttributeBlock {
    pub(super) fn read(fs: &FsContext, inode: &Inode) -> Result<Option<Self>> {
        let (Some(number), Some(buffer)) = (inode.xattr_block, read_block(fs, inode)?) else {
            return Ok(None);
        };
        Ok(Some(Self { number, buffer }))
    }

    /// Returns its number; dropping the buffer lets the block be modified without a copy.
    fn into_number(self) -> BlockNr {
        self.number
    }
}

/// Makes the inode's block match `places`. After an error, nothing was changed, or the handle
/// was aborted.
pub(super) fn write(
    change: &mut XattrChange<'_, '_>,
    places: &mut Places,
    taken: Option<&Taken>,
) -> Result<Outside> {
    if !places.outside_changed {
        return Ok(Outside::Same);
    }
    let old = places.block.take();
    if places.outside.is_empty() {
        if let Some(old) = old {
            check_freeable(change, &old)?;
            let old = old.into_number();
            let released = release(change, old, &places.ea_inodes_before);
            released.map_err(|error| change.abort(error))?;
        }
        return Ok(Outside::Gone);
    }
    let draft = draft(change, &places.outside)?;
    let has_ea_inode = has_ea_inode(change.fs);
    if let Some(old) = &old
        && is_same(&old.buffer, &draft.bytes, has_ea_inode)
    {
        return Ok(Outside::Same);
    }
    if old.is_none() {
        change.holding.add(change.cluster_bytes(), 0)?;
    }
    // One that cannot be freed is rewritten.
    let may_leave = old
        .as_ref()
        .is_none_or(|old| check_freeable(change, old).is_ok());
    let shared = if may_leave {
        share::block(change, &draft)?
    } else {
        None
    };
    let old = old.map(AttributeBlock::into_number);
    let (block, outside) = if let Some(shared) = shared {
        (shared, Outside::Shared)
    } else {
        if let Some(old) = old
            && rewrite_own(change, old, &draft)?
        {
            return Ok(Outside::Rewritten);
        }
        (make(change, draft, &places.outside, taken)?, Outside::Made)
    };
    if let Some(old) = old {
        let released = release(change, old, &places.ea_inodes_before);
        released.map_err(|error| change.abort(error))?;
    }
    change.inode.xattr_block = Some(block);
    let sectors = change.cluster_bytes() >> 9;
    change.inode.sectors = change.inode.sectors.saturating_add(sectors);
    Ok(outside)
}

fn encode(change: &XattrChange<'_, '_>, attributes: &Attributes) -> Result<Vec<u8>> {
    let block_bytes = change.fs.geometry.block_bytes as usize;
    let bytes = attributes.encode_block(block_bytes, 1);
    Ok(bytes.ok_or(Condition::NoSpace)?)
}

fn draft(change: &XattrChange<'_, '_>, attributes: &Attributes) -> Result<Draft> {
    let bytes = encode(change, attributes)?;
    Ok(Draft {
        fingerprint: fingerprint_of_block(&bytes, has_ea_inode(change.fs)),
        bytes,
    })
}

/// Creates a block used only by this inode. It takes a reference to each of its EA inodes; that
/// of `taken` already counts it.
fn make(
    change: &mut XattrChange<'_, '_>,
    draft: Draft,
    attributes: &Attributes,
    taken: Option<&Taken>,
) -> Result<BlockNr> {
    let goal = change.goal();
    let space = change.space;
    let made = alloc::alloc_blocks(space, change.fs, change.handle, goal, 1, change.from)?;
    let filled = fill(change, made.start, draft, attributes, taken);
    filled.map_err(|error| change.abort(error))?;
    Ok(made.start)
}

fn fill(
    change: &mut XattrChange<'_, '_>,
    block: BlockNr,
    draft: Draft,
    attributes: &Attributes,
    taken: Option<&Taken>,
) -> Result<()> {
    let verifier = block_verifier(change.fs);
    change.handle.create(block, &verifier, draft.bytes)?;
    let is_counted = |ea_inode: &InodeNr| {
        taken.is_some_and(|taken| taken.is_outside && taken.number == *ea_inode)
    };
    let mut counted = false;
    for ea_inode in attributes.ea_inodes() {
        if !counted && is_counted(&ea_inode) {
            counted = true;
        } else {
            value::add_reference(change, ea_inode)?;
        }
    }
    note_own(change, block, draft.fingerprint);
    Ok(())
}

/// Modifies the inode's block in place, if no other inode uses it or is about to.
fn rewrite_own(change: &mut XattrChange<'_, '_>, block: BlockNr, draft: &Draft) -> Result<bool> {
    let (verifier, fs) = (block_verifier(change.fs), change.fs);
    let is_rewritten = change.handle.edit_or_keep(block, &verifier, |bytes| {
        if references(bytes) != Some(1) {
            return Ok(Edit::Kept(false));
        }
        if let Some((cache, key)) = fs.sharing().zip(shared_hash(bytes))
            && let Removal::InUse(_) = cache.blocks.delete_or_get(key, block.0)
        {
            return Ok(Edit::Kept(false));
        }
        bytes.copy_from_slice(&draft.bytes);
        Ok(Edit::Changed(true))
    })?;
    if is_rewritten {
        note_own(change, block, draft.fingerprint);
    }
    Ok(is_rewritten)
}

/// Adds a block used only by this inode to the mbcache.
fn note_own(change: &XattrChange<'_, '_>, block: BlockNr, fingerprint: Option<Fingerprint>) {
    if let Some((sharing, fingerprint)) = change.fs.sharing().zip(fingerprint) {
        // The entry was removed before the block was last freed.
        let _ = sharing.blocks.create(fingerprint, block.0, true);
    }
}

/// Releases the inode's block. The last reference frees it, and releases its EA inodes,
/// `ea_inodes`.
fn release(change: &mut XattrChange<'_, '_>, block: BlockNr, ea_inodes: &[InodeNr]) -> Result<()> {
    if let Left::None = leave(change, block)? {
        free(change, block)?;
        for &ea_inode in ea_inodes {
            value::drop_value(change, ea_inode)?;
        }
    }
    forget(change);
    Ok(())
}

/// Clears the inode's attribute block.
pub(super) fn forget(change: &mut XattrChange<'_, '_>) {
    change.inode.xattr_block = None;
    let sectors = change.cluster_bytes() >> 9;
    change.inode.sectors = change.inode.sectors.saturating_sub(sectors);
}

/// Drops one reference to a block, if there are others. If not, the block can no longer be
/// shared, and the caller frees it.
pub(super) fn leave(change: &mut XattrChange<'_, '_>, block: BlockNr) -> Result<Left> {
    let (verifier, fs) = (block_verifier(change.fs), change.fs);
    for _ in 0..WAITS_MAX {
        let left = change.handle.edit_or_keep(block, &verifier, |bytes| {
            let entry = fs.sharing().zip(shared_hash(bytes));
            let count = references(bytes).unwrap_or_default();
            if let Some(others @ 1..) = count.checked_sub(1) {
                set_references(bytes, others);
                if count == XATTR_REFERENCES_MAX
                    && let Some((sharing, key)) = entry
                    && let Some(entry) = sharing.blocks.get(key, block.0)
                {
                    entry.set_reusable(true);
                }
                return Ok(Edit::Changed(Ok(Left::Others)));
            }
            let removal = entry.map(|(cache, key)| cache.blocks.delete_or_get(key, block.0));
            Ok(Edit::Kept(match removal {
                None | Some(Removal::Deleted) => Ok(Left::None),
                Some(Removal::InUse(entry)) => Err(entry),
            }))
        })?;
        match left {
            Ok(left) => return Ok(left),
            // The other thread holds no lock that this one holds, and waits for no other
            // thread.
            Err(entry) => entry.wait_unused(),
        }
    }
    Err(Corrupt::new(Locus::block(block.0), XattrRule::References).into())
}

/// Checks that the block of an inode can be freed, unless others share it: before the first change.
///
/// # Errors
/// `Corrupt` and `Io`, of its bitmap.
pub(super) fn check_freeable(change: &XattrChange<'_, '_>, block: &AttributeBlock) -> Result<()> {
    if references(&block.buffer).is_some_and(|count| count > 1) {
        return Ok(());
    }
    let blocks = block.number..BlockNr(block.number.0.saturating_add(1));
    alloc::check_freeable(change.space, change.fs, &blocks)
}

/// Frees a block that no inode refers to.
pub(super) fn free(change: &mut XattrChange<'_, '_>, block: BlockNr) -> Result<()> {
    let blocks = block..BlockNr(block.0.saturating_add(1));
    change.handle.forget(blocks.clone());
    alloc::free_blocks(change.space, change.fs, change.handle, blocks)
}

/// Removes attributes from a block used only by this inode.
pub(super) fn rewrite(
    change: &mut XattrChange<'_, '_>,
    block: BlockNr,
    attributes: &Attributes,
) -> Result<()> {
    let verifier = block_verifier(change.fs);
    let new = encode(change, attributes)?;
    change.handle.edit(block, &verifier, |bytes| {
        bytes.copy_from_slice(&new);
        Ok(())
    })
}
