//! Alignment to the pair of cache lines that a processor fetches at once, and locks that survive a panic.

use std::ops::Deref;
use std::sync::{Mutex, MutexGuard, PoisonError};

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

/// Takes a lock. What it guards is consistent after a panic of another thread that had it too: no code below panics in
/// the middle of a change.
pub(crate) fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}
