//! A read in flight: one thread reads a block, all others that want it wait.

use std::sync::Arc;

use super::BufferError;
use super::version::Version;
use crate::sync::{Condvar, Mutex};

/// What a read in flight came to.
#[derive(Debug, Clone)]
pub(super) enum Landing {
    /// The block's version, cached or not.
    Read(Arc<Version>),
    /// The store failed: every waiter gets the same error, and none of it is remembered.
    Failed(BufferError),
    /// The reader gave up without having asked for this block alone: each waiter reads it itself.
    Abandoned,
}

/// A read in flight.
#[derive(Debug, Default)]
pub(super) struct Flight {
    /// The result of the read, when it is there.
    landing: Mutex<Option<Landing>>,
    landed: Condvar,
}

impl Flight {
    pub(super) fn wait(&self) -> Landing {
        let mut landing = self.landing.lock();
        loop {
            if let Some(landing) = &*landing {
                return landing.clone();
            }
            landing = self.landed.wait(landing);
        }
    }

    pub(super) fn land(&self, landing: Landing) {
        *self.landing.lock() = Some(landing);
        self.landed.notify_all();
    }
}
