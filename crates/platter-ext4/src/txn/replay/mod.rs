//! Replay: finds the committed transactions in the log and writes their blocks to the filesystem.
//!
//! Three walks over the log: `scan` finds where it ends, `revoke` which copies must not be
//! replayed, `write_blocks` writes the others. Spec: `ext4/journal`.

mod walk;
mod scan;
mod revoke;
mod write_blocks;

use platter_block::BlockDevice;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::journal::Journal;
use crate::ondisk::jbd2::{LogBlock, LogRule, Sequence};

/// What a replay did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct ReplayReport {
    /// Transactions replayed.
    pub transactions: u32,
    /// Logged blocks written to the filesystem.
    pub blocks_replayed: u64,
    /// Logged blocks passed over because a later transaction revoked them.
    pub blocks_revoked: u64,
    /// The first transaction that the log does not hold: fast commits after the log belong to
    /// it.
    pub end: Sequence,
    /// Where that transaction would begin.
    pub head: LogBlock,
}

impl ReplayReport {
    /// The next transaction that may go into the log, for [`Journal::mark_empty`].
    #[must_use]
    pub fn next_sequence(&self) -> Sequence {
        self.end.next()
    }
}

/// Replays all committed transactions of `journal` onto `target`, the device of a filesystem of
/// `filesystem_blocks` blocks, and makes them durable there. The journal stays as it is.
///
/// A transaction that a crash interrupted is left out, as it was never durable. One that was
/// committed but whose checksums do not match is an error; what came before it is replayed.
pub fn replay(
    journal: &Journal,
    target: &dyn BlockDevice,
    filesystem_blocks: u64,
) -> Result<ReplayReport> {
    journal.superblock().check_supported()?;
    if !journal.needs_recovery() {
        return Ok(ReplayReport {
            end: journal.superblock().sequence,
            head: journal.superblock().first,
            ..ReplayReport::default()
        });
    }
    let log_end = scan::scan(journal)?;
    let revoked = revoke::collect(journal, log_end.end, filesystem_blocks)?;
    let report = write_blocks::WriteBlocks {
        journal,
        target,
        filesystem_blocks,
        revoked: &revoked,
        end: log_end.end,
        log_places: if journal.is_internal() {
            journal.map().places()
        } else {
            Vec::new()
        },
    }
    .run()?;
    target.flush()?;
    if let Some(failed) = log_end.failed {
        return Err(Corrupt::new(failed, LogRule::CommitChecksum).into());
    }
    Ok(report)
}

/// Where the log ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
struct LogEnd {
    /// The first transaction not to replay.
    end: Sequence,
    /// The commit block that was written, but is corrupt.
    failed: Option<Locus>,
}

#[cfg(test)]
mod tests;
