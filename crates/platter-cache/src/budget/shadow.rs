//! Shadow entries of evicted pages, and refault detection.
//!
//! The eviction clock counts evictions and activations. A page that refaults when the clock has
//! advanced by no more than the active list's size would still be cached if the active list had
//! been that much smaller: it is put on the active list.

use crate::sync::{AtomicU64, Ordering};

const PAGE_BYTES: u64 = 4096;
/// A shadow is stored as a value of the page index.
const AGE_BITS: u32 = 63;

/// The eviction clock at an eviction: a number below `2^63`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Shadow(u64);

impl Shadow {
    /// As a number for the index.
    pub(crate) fn to_bits(self) -> u64 {
        self.0
    }

    /// From the number in the index.
    pub(crate) fn from_bits(bits: u64) -> Self {
        Self(bits)
    }
}

/// The eviction clock and its statistics.
#[derive(Debug, Default)]
pub(super) struct Ages {
    clock_pages: AtomicU64,
    refaults: AtomicU64,
    activations: AtomicU64,
}

impl Ages {
    pub(super) fn shadow(&self, bytes: u64) -> Shadow {
        let age = self.tick(bytes);
        Shadow(age & ((1 << AGE_BITS) - 1))
    }

    /// Whether a refaulting entry is to be active.
    pub(super) fn refault(&self, shadow: Shadow, bytes: u64, active_bytes: u64) -> bool {
        self.refaults.fetch_add(pages(bytes), Ordering::Relaxed);
        let now = self.clock_pages.load(Ordering::Relaxed);
        let distance = now.wrapping_sub(shadow.0) & ((1 << AGE_BITS) - 1);
        let is_close = distance <= active_bytes / PAGE_BYTES;
        if is_close {
            self.activations.fetch_add(pages(bytes), Ordering::Relaxed);
            self.tick(bytes);
        }
        is_close
    }

    pub(super) fn refaults(&self) -> u64 {
        self.refaults.load(Ordering::Relaxed)
    }

    pub(super) fn activations(&self) -> u64 {
        self.activations.load(Ordering::Relaxed)
    }

    fn tick(&self, bytes: u64) -> u64 {
        self.clock_pages.fetch_add(pages(bytes), Ordering::Relaxed)
    }
}

fn pages(bytes: u64) -> u64 {
    (bytes / PAGE_BYTES).max(1)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn early_refault_is_active() {
        let ages = Ages::default();
        let shadow = ages.shadow(4096);
        assert!(ages.refault(shadow, 4096, 100 * 4096));
        for _ in 0..200 {
            ages.shadow(4096);
        }
        assert!(!ages.refault(shadow, 4096, 100 * 4096));
        assert_eq!((ages.refaults(), ages.activations()), (2, 1));
    }

    #[test]
    fn eviction_clock_may_wrap() {
        let ages = Ages::default();
        ages.clock_pages.store(u64::MAX, Ordering::Relaxed);
        let shadow = ages.shadow(4096);
        assert!(ages.refault(Shadow::from_bits(shadow.to_bits()), 4096, 4096));
    }
}
