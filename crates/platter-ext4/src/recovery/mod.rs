//! Recovery after a crash: replays the log, then the fast commits after it, and marks both as done.
//!
//! Each step is durable before the next one begins, so that a crash in between only repeats it:
//! blocks are written to the filesystem, fast commits are replayed, the journal is marked empty,
//! `needs_recovery` is cleared.

mod journal;
mod superblock;
pub mod fast_commit;

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Result};

use crate::txn::{self, Journal, ReplayReport};
use fast_commit::FastCommitReport;
pub use journal::{JournalInodeRule, open_internal_journal, open_journal};
use superblock::Primary;

/// The result of a recovery.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct RecoveryReport {
    /// The replay of the log.
    pub log: ReplayReport,
    /// The replay of fast commits.
    pub fast_commits: FastCommitReport,
    /// The error with which the journal was aborted, as a negative errno; zero if it was not. It
    /// was moved to the error flag of the filesystem's superblock.
    pub journal_errno: i32,
}

/// What a recovery writes to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Onto {
    /// The device itself.
    Device,
    /// An overlay over it, which does not outlast the mount: usage of owners is not counted there.
    Overlay,
}

/// Recovers the filesystem on `target`, the disk itself or an overlay over it, from `journal`,
/// which is written too. The superblock, at byte `superblock_offset`, must be read again
/// afterwards.
///
/// Call it only for a filesystem with the `needs_recovery` feature; without it, the kernel ignores
/// the contents of the log.
pub fn recover(
    journal: &mut Journal,
    target: &Arc<dyn BlockDevice>,
    onto: Onto,
    superblock_offset: u64,
    budget: &Arc<MemoryBudget>,
    clock: &Arc<dyn Clock>,
) -> Result<RecoveryReport> {
    let primary = Primary {
        device: target,
        offset: superblock_offset,
        budget,
    };
    let filesystem_blocks = primary.open()?.geometry.blocks_count;
    let log = txn::replay(journal, &**target, filesystem_blocks)?;
    let journal_errno = journal.superblock().errno;
    let mut fast_commits = FastCommitReport::default();
    if journal.needs_recovery() {
        if !journal.superblock().fast_commit.is_empty() {
            if journal_errno != 0 {
                // The transaction of the fast commits takes the errno out of the journal.
                primary.set_errors(true)?;
            }
            fast_commits = fast_commit::replay(journal, &log, primary, onto, clock)?;
        }
        journal.mark_empty(log.next_sequence())?;
        journal.erase_fast_commits()?;
    }
    primary.finish(journal_errno, clock.now())?;
    if journal_errno != 0 {
        journal.clear_errno()?;
    }
    Ok(RecoveryReport {
        log,
        fast_commits,
        journal_errno,
    })
}
