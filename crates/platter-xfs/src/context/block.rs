//! A metadata block of several filesystem blocks, which need not be neighbours.

use std::ops::Deref;
use std::sync::Arc;

use platter_cache::Buffer;

/// The bytes of a block that passed its verifier.
#[derive(Debug, Clone)]
pub enum Block {
    /// It is in the buffer cache.
    Cached(Buffer),
    /// It was assembled from blocks that are not neighbours.
    Assembled(Arc<[u8]>),
}

impl Deref for Block {
    type Target = [u8];

    fn deref(&self) -> &[u8] {
        match self {
            Self::Cached(buffer) => buffer,
            Self::Assembled(bytes) => bytes,
        }
    }
}
