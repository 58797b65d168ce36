//! Alignment to the pair of cache lines that a processor fetches at once.

use std::ops::Deref;

/// A value that shares its pair of cache lines with nothing else.
#[derive(Debug, Default)]
#[repr(align(128))]
pub struct Padded<T>(pub T);

const _: () = assert!(align_of::<Padded<u8>>() == platter_cache::layout::LINES_BYTES);

impl<T> Deref for Padded<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.0
    }
}
