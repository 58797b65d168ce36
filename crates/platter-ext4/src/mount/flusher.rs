//! The thread that makes changes durable by themselves: at the latest after the commit interval, and
//! soon after the last change. `sync(2)` does not reach a FUSE filesystem, and
//! `umount(8)` does not wait for one.

use std::sync::Arc;
use std::time::Duration;

use platter_cache::commit::{BackgroundWorker, CommitDue, CommitSchedule, NextRun};
use platter_vfs::{Condition, Result};

use super::lifetime::Lifetime;
use crate::ops::Tree;
use crate::txn::Log;

/// How often the journal and the caches are looked after.
const TICK: Duration = Duration::from_secs(1);

/// Starts the thread, which makes changes durable at least once in every `interval`, and frees space in
/// the journal meanwhile.
pub(super) fn start(
    tree: &Arc<Tree>,
    lifetime: &Arc<Lifetime>,
    interval: Duration,
) -> Result<BackgroundWorker> {
    let clock = Arc::clone(&tree.clock);
    let first = clock.monotonic();
    let (weak, lifetime) = (Arc::downgrade(tree), Arc::clone(lifetime));
    let mut schedule = CommitSchedule::new(interval, first);
    let mut tended = first;
    let worker = BackgroundWorker::start("ext4-flusher", schedule.next(first), move || {
        let Some(tree) = weak.upgrade() else {
            return NextRun::Never;
        };
        let now = clock.monotonic();
        let changes = || tree.volume.log().map_or(0, Log::handles_begun);
        // An error is recorded in the filesystem, and the next sync returns it.
        if let Some(due) = schedule.due(now, changes()) {
            if due == CommitDue::Interval {
                let _ = lifetime.note_when_due(&tree.volume, now);
            }
            let _ = tree.sync();
        }
        if now.saturating_sub(tended) >= TICK {
            tended = now;
            if let Some(log) = tree.volume.log() {
                let _ = log.tend();
            }
            if let Some(sharing) = tree.volume.sharing() {
                sharing.shrink();
            }
        }
        schedule.next(clock.monotonic())
    })
    .map_err(|_| Condition::WouldBlock)?;
    if let Some(log) = tree.volume.log() {
        let wake = worker.wake();
        log.on_first_change(move || wake.wake());
    }
    Ok(worker)
}
