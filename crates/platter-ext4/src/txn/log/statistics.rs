//! What the transactions of a mount cost, counted.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the mount.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct LogStatistics {
    /// Transactions made durable.
    pub commits: u64,
    /// Metadata blocks in them.
    pub blocks: u64,
    /// Blocks written to the log, those of its own included.
    pub log_blocks: u64,
    /// Revoke records in them.
    pub revokes: u64,
    /// Flushes of the filesystem's device and of the journal's.
    pub flushes: u64,
    /// Write requests for the log, its superblock, and blocks at home.
    pub writes: u64,
    /// Blocks written to their places.
    pub home_blocks: u64,
    /// Times that the log was cut at its old end.
    pub checkpoints: u64,
}

/// Counts as they grow.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub(super) commits: Counter,
    pub(super) blocks: Counter,
    pub(super) log_blocks: Counter,
    pub(super) revokes: Counter,
    pub(super) flushes: Counter,
    pub(super) writes: Counter,
    pub(super) home_blocks: Counter,
    pub(super) checkpoints: Counter,
}

/// One count.
#[derive(Debug, Default)]
pub(super) struct Counter(AtomicU64);

impl Counter {
    pub(super) fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl Counters {
    pub(super) fn read(&self) -> LogStatistics {
        LogStatistics {
            commits: self.commits.get(),
            blocks: self.blocks.get(),
            log_blocks: self.log_blocks.get(),
            revokes: self.revokes.get(),
            flushes: self.flushes.get(),
            writes: self.writes.get(),
            home_blocks: self.home_blocks.get(),
            checkpoints: self.checkpoints.get(),
        }
    }
}
