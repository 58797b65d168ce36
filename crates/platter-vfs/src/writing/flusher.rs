//! The flusher thread, which makes changes durable by itself: at the latest after the commit interval, and
//! soon after the last change. `sync(2)` does not reach a FUSE filesystem, and `umount(8)` does not wait
//! for one.

use std::sync::Arc;
use std::time::Duration;

use platter_cache::commit::{BackgroundWorker, CommitDue, CommitSchedule, NextRun};

use crate::{Clock, Condition, Result};

/// How often the caches and the journal are maintained.
const MAINTENANCE: Duration = Duration::from_secs(1);

/// What a flusher thread makes durable.
pub trait Flushed: Send + Sync + 'static {
    /// A count that grows with each change since the mount; it may wrap. `None` ends the thread: the
    /// filesystem is gone.
    fn changes(&self) -> Option<u32>;

    /// Makes all changes durable. An error is kept for the next sync.
    fn flush(&self, due: CommitDue);

    /// Frees space in the journal, and shrinks caches: called about once a second.
    fn maintain(&self);
}

/// Starts the thread under this name: it makes changes durable at least once in every `interval`.
///
/// # Errors
/// `WouldBlock` where the system starts no thread.
pub fn start_flusher(
    name: &str,
    flushed: impl Flushed,
    clock: Arc<dyn Clock>,
    interval: Duration,
) -> Result<BackgroundWorker> {
    let first = clock.monotonic();
    let mut schedule = CommitSchedule::new(interval, first);
    let mut maintained = first;
    let worker = BackgroundWorker::start(name, schedule.next(first), move || {
        let Some(changes) = flushed.changes() else {
            return NextRun::Never;
        };
        let now = clock.monotonic();
        if let Some(due) = schedule.due(now, changes) {
            flushed.flush(due);
        }
        if now.saturating_sub(maintained) >= MAINTENANCE {
            maintained = now;
            flushed.maintain();
        }
        schedule.next(clock.monotonic())
    });
    Ok(worker.map_err(|_| Condition::WouldBlock)?)
}
