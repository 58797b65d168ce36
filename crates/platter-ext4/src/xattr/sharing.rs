//! Entries of the mbcaches for attribute blocks and EA inodes.
//!
//! Callers that add an entry hold an inode that uses the block or value, so that it does not change
//! meanwhile.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use platter_cache::mbcache::Fingerprint;

use super::block_verifier;
use crate::FsContext;
use crate::ondisk::xattr::{
    XATTR_REFERENCES_MAX, XattrSpace, attribute_bytes, references, shared_hash,
};
use crate::ondisk::{BlockNr, InodeNr};

/// Returns the mbcache key of an attribute block; `None` if it must not be shared.
pub(super) fn fingerprint_of_block(bytes: &[u8], has_ea_inode: bool) -> Option<Fingerprint> {
    let key = shared_hash(bytes)?;
    let space = XattrSpace::decode_block(bytes, has_ea_inode).ok()?;
    let contents = FixedState::default().hash_one(space.entries());
    Some(Fingerprint { key, contents })
}

/// Returns the mbcache key of a value with this hash.
pub(super) fn fingerprint_of_value(hash: u32, value: &[u8]) -> Fingerprint {
    let contents = FixedState::default().hash_one(value);
    Fingerprint {
        key: hash,
        contents,
    }
}

/// Whether two valid blocks have the same attributes in the same order.
pub(super) fn is_same(one: &[u8], other: &[u8], has_ea_inode: bool) -> bool {
    if shared_hash(one) != shared_hash(other) {
        return false;
    }
    if attribute_bytes(one) == attribute_bytes(other) {
        return true;
    }
    let decode = |bytes| XattrSpace::decode_block(bytes, has_ea_inode);
    match (decode(one), decode(other)) {
        (Ok(one), Ok(other)) => one.entries() == other.entries(),
        _ => false,
    }
}

/// Adds an attribute block that was read to the mbcache.
pub(super) fn note_block(fs: &FsContext, block: BlockNr, bytes: &[u8]) {
    let (Some(sharing), Some(log)) = (fs.sharing(), fs.log()) else {
        return;
    };
    let Some(key) = shared_hash(bytes) else {
        return;
    };
    if sharing.blocks.contains(key, block.0) {
        return;
    }
    let verifier = block_verifier(fs);
    let Some(fingerprint) = fingerprint_of_block(bytes, verifier.has_ea_inode) else {
        return;
    };
    // Other inodes change the reference count concurrently; it is stable only under the block's
    // lock. An unreadable block is not added.
    let _ = log.inspect(block, &verifier, |newest| {
        let is_reusable = references(newest).is_some_and(|count| count < XATTR_REFERENCES_MAX);
        sharing.blocks.create(fingerprint, block.0, is_reusable)
    });
}

/// Adds an EA inode with a value of this hash to the mbcache.
pub(super) fn note_value(fs: &FsContext, number: InodeNr, hash: u32, value: &[u8]) {
    let Some(sharing) = fs.sharing() else {
        return;
    };
    let place = u64::from(number.get());
    if !sharing.values.contains(hash, place) {
        // Another thread may have added it.
        let _ = sharing
            .values
            .create(fingerprint_of_value(hash, value), place, true);
    }
}
