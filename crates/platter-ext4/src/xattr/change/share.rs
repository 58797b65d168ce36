//! Blocks and values that are there already, and get one user more.
//!
//! While an entry of a cache is in hand here, nobody frees or rewrites what it tells of. It is let go
//! of before anything else is, so that two who take what the other has do not wait for each other.

use platter_cache::mbcache::EntryRef;
use platter_vfs::Result;

use super::XattrChange;
use super::block::Draft;
use super::value::{Taken, Wanted};
use crate::ondisk::xattr::{XATTR_REFERENCES_MAX, references, set_references};
use crate::ondisk::{BlockNr, InodeNr};
use crate::txn::Edit;
use crate::xattr::sharing::{fingerprint_of_value, is_same};
use crate::xattr::{block_verifier, value_inode};

/// Blocks or values that are looked at for equal contents before they are stored anew.
const CANDIDATES_MAX: u32 = 64;

/// Who uses a block or a value that an inode let go of.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[must_use]
pub(super) enum Left {
    /// Others, who were counted before.
    Others,
    /// Nobody, and nobody will.
    Nobody,
}

impl XattrChange<'_, '_> {
    /// A block that holds what `draft` does, with this inode as one of its users from now on.
    ///
    /// # Errors
    /// Nothing was changed. What is damaged is not suggested again.
    pub(super) fn share_block(&mut self, draft: &Draft) -> Result<Option<BlockNr>> {
        let Some((sharing, fingerprint)) = self.volume.sharing().zip(draft.fingerprint) else {
            return Ok(None);
        };
        let mut found = sharing.blocks.find_first(fingerprint);
        for _ in 0..CANDIDATES_MAX {
            let Some(entry) = found else {
                return Ok(None);
            };
            let is_shared = self.share_candidate(&entry, draft);
            if is_shared.inspect_err(|_| entry.set_reusable(false))? {
                sharing.count_block();
                entry.touch();
                return Ok(Some(BlockNr(entry.value())));
            }
            found = entry.find_next();
        }
        Ok(None)
    }

    fn share_candidate(&mut self, entry: &EntryRef<'_>, draft: &Draft) -> Result<bool> {
        let (verifier, block) = (block_verifier(self.volume), BlockNr(entry.value()));
        let buffer = self.volume.read_block(block, &verifier)?;
        if !is_same(&buffer, &draft.bytes, verifier.has_ea_inode) {
            return Ok(false);
        }
        drop(buffer);
        self.handle.edit_or_keep(block, &verifier, |bytes| {
            let count = references(bytes).map_or(u32::MAX, |count| count.saturating_add(1));
            let has_room = count < XATTR_REFERENCES_MAX;
            if !has_room {
                // Whoever looks next is not led here, whatever the entry said so far.
                entry.set_reusable(false);
            }
            if count > XATTR_REFERENCES_MAX {
                return Ok(Edit::Kept(false));
            }
            set_references(bytes, count);
            Ok(Edit::Changed(true))
        })
    }

    /// An inode that holds the value, with one user more from now on.
    ///
    /// # Errors
    /// As of [`share_block`](Self::share_block).
    pub(super) fn share_value(&mut self, wanted: &Wanted<'_>) -> Result<Option<Taken>> {
        let Some(sharing) = self.volume.sharing() else {
            return Ok(None);
        };
        let fingerprint = fingerprint_of_value(wanted.hash, wanted.value);
        let mut found = sharing.values.find_first(fingerprint);
        for _ in 0..CANDIDATES_MAX {
            let Some(entry) = found else {
                return Ok(None);
            };
            let number = u32::try_from(entry.value()).ok().and_then(InodeNr::new);
            let number = number.filter(|&number| number != self.inode.number);
            if let Some(number) = number {
                let is_shared = self.share_holder(number, wanted);
                if is_shared.inspect_err(|_| entry.set_reusable(false))? {
                    sharing.count_value();
                    entry.touch();
                    return Ok(Some(self.taken(number, wanted)));
                }
            }
            found = entry.find_next();
        }
        Ok(None)
    }

    fn share_holder(&mut self, number: InodeNr, wanted: &Wanted<'_>) -> Result<bool> {
        if !value_inode::holds(self.volume, number, wanted.hash, wanted.value)? {
            return Ok(false);
        }
        self.add_reference(number)?;
        Ok(true)
    }
}
