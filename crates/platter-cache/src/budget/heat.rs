//! How often an entry was used since the evictor last looked: the bits of a second chance.

use crate::sync::{AtomicU8, Ordering};

/// Uses from which an entry is hot. The first use is why it came in; the second says it stays.
const HOT: u8 = 2;

/// A saturating count of uses, cheap enough for every lookup.
#[derive(Debug, Default)]
pub(crate) struct Heat(AtomicU8);

impl Heat {
    /// Counts a use. A lost race counts two uses as one, which only costs a chance.
    pub(crate) fn touch(&self) {
        let uses = self.0.load(Ordering::Relaxed);
        if uses < HOT {
            self.0.store(uses + 1, Ordering::Relaxed);
        }
    }

    /// Whether there was any use since the last call.
    pub(crate) fn take_any(&self) -> bool {
        self.0.load(Ordering::Relaxed) > 0 && self.0.swap(0, Ordering::Relaxed) > 0
    }

    /// Whether there were two uses since the last call, forgetting them if so.
    pub(crate) fn take_hot(&self) -> bool {
        let hot = self.0.load(Ordering::Relaxed) >= HOT;
        if hot {
            self.0.store(0, Ordering::Relaxed);
        }
        hot
    }
}
