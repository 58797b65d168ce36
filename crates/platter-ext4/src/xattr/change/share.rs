//! Reusing existing attribute blocks and EA inodes, which get one more reference.
//!
//! While this code holds an mbcache entry, its block is neither freed nor rewritten. The entry is
//! released before any other is acquired, so that two threads do not deadlock.

use platter_cache::mbcache::EntryRef;
use platter_vfs::Result;

use super::XattrChange;
use super::block::Draft;
use super::value::{self, Taken, Wanted};
use crate::ondisk::xattr::{XATTR_REFERENCES_MAX, references, set_references};
use crate::ondisk::{BlockNr, InodeNr};
use crate::txn::Edit;
use crate::xattr::sharing::{fingerprint_of_value, is_same};
use crate::xattr::{block_verifier, ea_inode};

/// Maximum number of candidates that are compared before a new block or EA inode is created.
const CANDIDATES_MAX: u32 = 64;

/// Remaining references of a block or a value after an inode released it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Left {
    /// There are others, already counted.
    Others,
    /// There are none, and will be none.
    None,
}

/// Returns a block with the contents of `draft`, to which this inode now has a reference.
///
/// # Errors
/// Nothing was changed. A corrupt block is removed from the mbcache.
pub(super) fn block(change: &mut XattrChange<'_, '_>, draft: &Draft) -> Result<Option<BlockNr>> {
    let Some((sharing, fingerprint)) = change.fs.sharing().zip(draft.fingerprint) else {
        return Ok(None);
    };
    let mut found = sharing.blocks.find_first(fingerprint);
    for _ in 0..CANDIDATES_MAX {
        let Some(entry) = found else {
            return Ok(None);
        };
        let is_shared = candidate(change, &entry, draft);
        if is_shared.inspect_err(|_| entry.set_reusable(false))? {
            sharing.count_block();
            entry.touch();
            return Ok(Some(BlockNr(entry.value())));
        }
        found = entry.find_next();
    }
    Ok(None)
}

fn candidate(
    change: &mut XattrChange<'_, '_>,
    entry: &EntryRef<'_>,
    draft: &Draft,
) -> Result<bool> {
    let (verifier, block) = (block_verifier(change.fs), BlockNr(entry.value()));
    let buffer = change.fs.read_block(block, &verifier)?;
    if !is_same(&buffer, &draft.bytes, verifier.has_ea_inode) {
        return Ok(false);
    }
    drop(buffer);
    change.handle.edit_or_keep(block, &verifier, |bytes| {
        let count = references(bytes).map_or(u32::MAX, |count| count.saturating_add(1));
        let has_space = count < XATTR_REFERENCES_MAX;
        if !has_space {
            // Later lookups skip it, whatever the entry's flag was.
            entry.set_reusable(false);
        }
        if count > XATTR_REFERENCES_MAX {
            return Ok(Edit::Kept(false));
        }
        set_references(bytes, count);
        Ok(Edit::Changed(true))
    })
}

/// Returns an EA inode with the value, with one more reference.
///
/// # Errors
/// Those of [`block`].
pub(super) fn value(
    change: &mut XattrChange<'_, '_>,
    wanted: &Wanted<'_>,
) -> Result<Option<Taken>> {
    let Some(sharing) = change.fs.sharing() else {
        return Ok(None);
    };
    let fingerprint = fingerprint_of_value(wanted.hash, wanted.value);
    let mut found = sharing.values.find_first(fingerprint);
    for _ in 0..CANDIDATES_MAX {
        let Some(entry) = found else {
            return Ok(None);
        };
        let number = u32::try_from(entry.value()).ok().and_then(InodeNr::new);
        let number = number.filter(|&number| number != change.inode.number);
        if let Some(number) = number {
            let is_shared = ea_inode(change, number, wanted);
            if is_shared.inspect_err(|_| entry.set_reusable(false))? {
                sharing.count_value();
                entry.touch();
                return Ok(Some(value::reference(change, number, wanted)));
            }
        }
        found = entry.find_next();
    }
    Ok(None)
}

fn ea_inode(
    change: &mut XattrChange<'_, '_>,
    number: InodeNr,
    wanted: &Wanted<'_>,
) -> Result<bool> {
    if !ea_inode::holds(change.fs, number, wanted.hash, wanted.value)? {
        return Ok(false);
    }
    value::add_reference(change, number)?;
    Ok(true)
}
