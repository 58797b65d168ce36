//! The flusher thread of a mount.

use std::sync::{Arc, Weak};
use std::time::Duration;

use platter_cache::commit::{BackgroundWorker, CommitDue};
use platter_vfs::Result;
use platter_vfs::writing::{Flushed, start_flusher};

use super::lifetime::Lifetime;
use crate::ops::{self, SuperBlock};
use crate::txn::Log;

struct Flusher {
    sb: Weak<SuperBlock>,
    lifetime: Arc<Lifetime>,
}

impl Flushed for Flusher {
    fn changes(&self) -> Option<u32> {
        let sb = self.sb.upgrade()?;
        Some(sb.fs.log().map_or(0, Log::handles_begun))
    }

    fn flush(&self, due: CommitDue) {
        let Some(sb) = self.sb.upgrade() else {
            return;
        };
        // An error is recorded in the filesystem, and the next sync returns it.
        if due == CommitDue::Interval {
            let now = sb.clock.monotonic();
            let _ = self.lifetime.note_when_due(&sb.fs, now);
        }
        let _ = ops::sync_fs(&sb);
    }

    fn maintain(&self) {
        let Some(sb) = self.sb.upgrade() else {
            return;
        };
        if let Some(log) = sb.fs.log() {
            let _ = log.maintain();
        }
        if let Some(sharing) = sb.fs.sharing() {
            sharing.shrink();
        }
    }
}

/// Starts the thread, which makes changes durable at least once in every `interval`, and frees space in
/// the journal meanwhile.
pub(super) fn start(
    sb: &Arc<SuperBlock>,
    lifetime: &Arc<Lifetime>,
    interval: Duration,
) -> Result<BackgroundWorker> {
    let flusher = Flusher {
        sb: Arc::downgrade(sb),
        lifetime: Arc::clone(lifetime),
    };
    let worker = start_flusher("ext4-flusher", flusher, Arc::clone(&sb.clock), interval)?;
    if let Some(log) = sb.fs.log() {
        let wake = worker.wake();
        log.on_first_change(move || wake.wake());
    }
    Ok(worker)
}
