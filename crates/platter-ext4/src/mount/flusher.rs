//! The flusher thread of a mount.

use std::sync::{Arc, Weak};
use std::time::Duration;

use platter_cache::commit::{BackgroundWorker, CommitDue};
use platter_vfs::Result;
use platter_vfs::writing::{Flushed, start_flusher};

use super::lifetime::Lifetime;
use crate::ops::Tree;
use crate::txn::Log;

struct Flusher {
    tree: Weak<Tree>,
    lifetime: Arc<Lifetime>,
}

impl Flushed for Flusher {
    fn changes(&self) -> Option<u32> {
        let tree = self.tree.upgrade()?;
        Some(tree.volume.log().map_or(0, Log::handles_begun))
    }

    fn flush(&self, due: CommitDue) {
        let Some(tree) = self.tree.upgrade() else {
            return;
        };
        // An error is recorded in the filesystem, and the next sync returns it.
        if due == CommitDue::Interval {
            let now = tree.clock.monotonic();
            let _ = self.lifetime.note_when_due(&tree.volume, now);
        }
        let _ = tree.sync();
    }

    fn maintain(&self) {
        let Some(tree) = self.tree.upgrade() else {
            return;
        };
        if let Some(log) = tree.volume.log() {
            let _ = log.maintain();
        }
        if let Some(sharing) = tree.volume.sharing() {
            sharing.shrink();
        }
    }
}

/// Starts the thread, which makes changes durable at least once in every `interval`, and frees space in
/// the journal meanwhile.
pub(super) fn start(
    tree: &Arc<Tree>,
    lifetime: &Arc<Lifetime>,
    interval: Duration,
) -> Result<BackgroundWorker> {
    let flusher = Flusher {
        tree: Arc::downgrade(tree),
        lifetime: Arc::clone(lifetime),
    };
    let worker = start_flusher("ext4-flusher", flusher, Arc::clone(&tree.clock), interval)?;
    if let Some(log) = tree.volume.log() {
        let wake = worker.wake();
        log.on_first_change(move || wake.wake());
    }
    Ok(worker)
}
