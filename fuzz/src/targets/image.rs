//! Whole images, opened and asked everything.

use crate::exercise::{Tally, exercise};
use crate::open;

/// What the caches may hold.
const CACHE_BYTES: u64 = 8 << 20;

pub(super) fn image(bytes: &[u8]) {
    if let Ok(filesystem) = open::open(bytes.to_vec(), CACHE_BYTES) {
        exercise(&filesystem, &mut Tally::default());
    }
}
