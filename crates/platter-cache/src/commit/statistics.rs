//! What the transactions of a mount cost.

use std::sync::atomic::{AtomicU64, Ordering};

/// Counts since the mount. A driver leaves those at zero that its transactions do not have.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitStatistics {
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
    /// Write requests for the log, its superblock, and checkpointed blocks.
    pub writes: u64,
    /// Blocks written to their locations in the filesystem.
    pub checkpoint_blocks: u64,
    /// Times that the tail of the log was advanced.
    pub checkpoints: u64,
}

impl CommitStatistics {
    /// The counts with their names.
    #[must_use]
    pub fn named(&self) -> [(&'static str, u64); 8] {
        [
            ("commits", self.commits),
            ("commit_blocks", self.blocks),
            ("log_blocks", self.log_blocks),
            ("revokes", self.revokes),
            ("flushes", self.flushes),
            ("log_writes", self.writes),
            ("checkpoint_blocks", self.checkpoint_blocks),
            ("checkpoints", self.checkpoints),
        ]
    }
}

/// The counters of [`CommitStatistics`].
#[derive(Debug, Default)]
pub struct CommitCounters {
    /// Transactions made durable.
    pub commits: Counter,
    /// Metadata blocks in them.
    pub blocks: Counter,
    /// Blocks written to the log.
    pub log_blocks: Counter,
    /// Revoke records.
    pub revokes: Counter,
    /// Flushes.
    pub flushes: Counter,
    /// Write requests.
    pub writes: Counter,
    /// Blocks checkpointed.
    pub checkpoint_blocks: Counter,
    /// Checkpoints.
    pub checkpoints: Counter,
}

/// One counter.
#[derive(Debug, Default)]
pub struct Counter(AtomicU64);

impl Counter {
    /// Adds to it.
    pub fn add(&self, count: usize) {
        self.0.fetch_add(count as u64, Ordering::Relaxed);
    }

    fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

impl CommitCounters {
    /// The counts so far.
    #[must_use]
    pub fn read(&self) -> CommitStatistics {
        CommitStatistics {
            commits: self.commits.get(),
            blocks: self.blocks.get(),
            log_blocks: self.log_blocks.get(),
            revokes: self.revokes.get(),
            flushes: self.flushes.get(),
            writes: self.writes.get(),
            checkpoint_blocks: self.checkpoint_blocks.get(),
            checkpoints: self.checkpoints.get(),
        }
    }
}
