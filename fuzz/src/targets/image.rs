//! Whole images, opened and asked everything.

use crate::exercise::{Tally, check, exercise};
use crate::open;

/// What the caches may hold.
const CACHE_BYTES: u64 = 8 << 20;

pub(super) fn image(bytes: &[u8]) {
    let image = open::image(bytes.to_vec());
    let options = open::options(CACHE_BYTES);
    if let Ok(volume) = options.mount(&image) {
        exercise(&**volume.filesystem(), &mut Tally::default());
    }
    check(&options, &image.into(), &mut Tally::default());
}
