//! Fast commits: records of the changes since the last transaction in the log.
//!
//! They describe operations, not blocks: a file's new inode and extents, created and removed names.
//! `scan` finds the complete ones, `apply` applies them. Each may be applied twice, since a crash
//! during recovery restarts it. Spec: `ext4/journal`, fast commits.

mod scan;
mod space;
mod inode_slot;
mod file_map;
mod inline;
mod names;
mod apply;

use std::ops::ControlFlow;

use platter_vfs::Result;

use crate::FsContext;
use crate::ondisk::jbd2::fast_commit::Records;
use crate::ondisk::jbd2::{LogBlock, Sequence};
use crate::txn::Journal;
use apply::Apply;

/// The result of a replay of fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastCommitReport {
    /// Number of complete fast commits.
    pub fast_commits: u32,
    /// Number of records in them.
    pub records: u64,
}

/// Replays the fast commits of transaction `sequence`, the next one expected in the log, onto
/// `volume`, and makes them durable there.
pub(super) fn replay(
    journal: &Journal,
    sequence: Sequence,
    fs: &FsContext,
) -> Result<FastCommitReport> {
    let inode_bytes = fs.geometry.inode_bytes;
    let valid = scan::scan(journal, sequence, &fs.geometry)?;
    let mut apply = Apply::new(fs, valid.regions);
    let mut left = valid.report.records;
    for_each_block(journal, |block| {
        for result in Records::decode(block, inode_bytes) {
            if left == 0 {
                return Ok(ControlFlow::Break(()));
            }
            left -= 1;
            apply.record(&result?.0)?;
        }
        Ok(ControlFlow::Continue(()))
    })?;
    if valid.report.records > 0 {
        apply.finish()?;
        fs.device().flush()?;
    }
    Ok(valid.report)
}

/// Passes the blocks of the fast commit area to `visit` until it breaks.
fn for_each_block(
    journal: &Journal,
    mut visit: impl FnMut(&[u8]) -> Result<ControlFlow<()>>,
) -> Result<()> {
    let mut block = vec![0; journal.map().block_bytes() as usize];
    for place in journal.superblock().fast_commit.clone() {
        journal.map().read(LogBlock(place), &mut block)?;
        if visit(&block)?.is_break() {
            break;
        }
    }
    Ok(())
}
