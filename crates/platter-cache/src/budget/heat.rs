//! A use counter of an entry since the last eviction pass, for second-chance eviction.

use crate::sync::{AtomicU8, Ordering};

/// Number of uses from which an entry is hot. The first use is the one that inserted it.
const HOT: u8 = 2;

/// A saturating counter of uses, cheap enough for every lookup.
#[derive(Debug, Default)]
pub(crate) struct Heat(AtomicU8);

impl Heat {
    /// Counts a use. A lost race counts two uses as one.
    pub(crate) fn touch(&self) {
        let uses = self.0.load(Ordering::Relaxed);
        if uses < HOT {
            self.0.store(uses + 1, Ordering::Relaxed);
        }
    }

    /// Returns whether there was any use since the last call, and clears the counter.
    pub(crate) fn take_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0 && self.0.swap(0, Ordering::Relaxed) > 0
    }

    /// Returns whether there were two uses since the last call, and clears the counter if so.
    pub(crate) fn take_hot(&self) -> bool {
        let hot = self.0.load(Ordering::Relaxed) >= HOT;
        if hot {
            self.0.store(0, Ordering::Relaxed);
        }
        hot
    }
}
