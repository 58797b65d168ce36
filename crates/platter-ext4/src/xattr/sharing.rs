//! What is noted of attributes that are met, so that others can share them.
//!
//! Whoever notes a block or a value has an inode in its hands that uses it, so that it stays what it
//! is meanwhile.

use std::hash::BuildHasher;

use foldhash::fast::FixedState;
use platter_cache::mbcache::Fingerprint;

use super::block_verifier;
use crate::Volume;
use crate::ondisk::xattr::{
    XATTR_REFERENCES_MAX, XattrSpace, attribute_bytes, references, shared_hash,
};
use crate::ondisk::{BlockNr, InodeNr};

/// What a block of attributes is found by; `None` of one that must not be shared.
pub(super) fn fingerprint_of_block(bytes: &[u8], has_ea_inode: bool) -> Option<Fingerprint> {
    let key = shared_hash(bytes)?;
    let space = XattrSpace::decode_block(bytes, has_ea_inode).ok()?;
    let contents = FixedState::default().hash_one(space.entries());
    Some(Fingerprint { key, contents })
}

/// What a value with this hash is found by.
pub(super) fn fingerprint_of_value(hash: u32, value: &[u8]) -> Fingerprint {
    let contents = FixedState::default().hash_one(value);
    Fingerprint {
        key: hash,
        contents,
    }
}

/// Whether two sound blocks hold the same attributes in the same order.
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

/// Notes a block of attributes that was read.
pub(super) fn note_block(volume: &Volume, block: BlockNr, bytes: &[u8]) {
    let (Some(sharing), Some(log)) = (volume.sharing(), volume.log()) else {
        return;
    };
    let Some(key) = shared_hash(bytes) else {
        return;
    };
    if sharing.blocks.contains(key, block.0) {
        return;
    }
    let verifier = block_verifier(volume);
    let Some(fingerprint) = fingerprint_of_block(bytes, verifier.has_ea_inode) else {
        return;
    };
    // Others count themselves in and out: how many there are is certain under the block's lock only.
    // What cannot be read is not noted.
    let _ = log.inspect(block, &verifier, |newest| {
        let is_reusable = references(newest).is_some_and(|count| count < XATTR_REFERENCES_MAX);
        sharing.blocks.create(fingerprint, block.0, is_reusable)
    });
}

/// Notes an inode that holds a value with this hash.
pub(super) fn note_value(volume: &Volume, number: InodeNr, hash: u32, value: &[u8]) {
    let Some(sharing) = volume.sharing() else {
        return;
    };
    let place = u64::from(number.get());
    if !sharing.values.contains(hash, place) {
        // Somebody else may have been faster.
        let _ = sharing
            .values
            .create(fingerprint_of_value(hash, value), place, true);
    }
}
