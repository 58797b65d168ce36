//! Recovery after a crash: replays the log, then the fast commits behind it, and marks both done.
//!
//! Each step is durable before the next one begins, so that a crash in between only repeats it:
//! blocks come home, the journal is marked empty, the superblock stops asking for recovery.

mod journal;
mod superblock;
pub mod fast_commit;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Result, Timestamp};

use crate::txn::{self, Journal, ReplayReport};
use fast_commit::FastCommitReport;
pub use journal::{JournalInodeRule, open_internal_journal, open_journal};
use superblock::Primary;

/// What a recovery did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// What came from the log.
    pub log: ReplayReport,
    /// What came from behind the log.
    pub fast_commits: FastCommitReport,
    /// Why the journal had been aborted, as a negative errno; zero if it was not. The superblock
    /// of the filesystem now says that there were errors, and the journal no longer does.
    pub journal_errno: i32,
}

/// Recovers the filesystem on `target`, the disk itself or an overlay of it, from `journal`,
/// which is written to as well. The superblock, at byte `superblock_offset`, must be read anew
/// afterwards.
///
/// To be called for a filesystem with the `needs_recovery` feature; without it, the kernel takes
/// the log for stale, whatever it holds.
pub fn recover(
    journal: &mut Journal,
    target: &Arc<dyn BlockDevice>,
    superblock_offset: u64,
    budget: &Arc<MemoryBudget>,
    now: Timestamp,
) -> Result<RecoveryReport> {
    let primary = Primary {
        device: target,
        offset: superblock_offset,
        budget,
    };
    let filesystem_blocks = primary.open()?.geometry.blocks_count;
    let log = txn::replay(journal, &**target, filesystem_blocks)?;
    let mut fast_commits = FastCommitReport::default();
    if journal.needs_recovery() {
        if !journal.superblock().fast_commit.is_empty() {
            fast_commits = fast_commit::replay(journal, log.end, &primary.open()?)?;
        }
        journal.mark_empty(log.next_sequence())?;
    }
    let journal_errno = journal.superblock().errno;
    primary.settle(journal_errno, now)?;
    if journal_errno != 0 {
        journal.clear_errno()?;
    }
    Ok(RecoveryReport {
        log,
        fast_commits,
        journal_errno,
    })
}
