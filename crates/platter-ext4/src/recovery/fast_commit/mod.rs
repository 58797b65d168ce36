//! Fast commits: records of the changes since the last transaction in the log.
//!
//! They describe operations, not blocks: a file's new inode and extents, created and removed names.
//! `scan` finds the complete ones, `records` applies them through allocator, block maps and directories
//! as any other change, and `recount` adds what they do not say. Spec: `ext4/journal`, fast commits.
//!
//! On a device that is one transaction of the log, with the number that the fast commits have: as soon
//! as it is durable, they are those of an earlier one. So a crash during recovery leaves all of them to be
//! replayed, or none. More than a transaction holds are applied in place, as by the kernel, after
//! the log was durably emptied of the replayed transactions; then a crash may leave some of the changes,
//! over which all are applied again. Blocks and inodes that these freed may stay in use then, so that the
//! superblock says until the end that there are errors.

mod scan;
mod awaited;
mod apply;
mod ranges;
mod entries;
mod inode_record;
mod records;
mod recount;
#[cfg(test)]
mod tests;

use std::io::ErrorKind;
use std::ops::{ControlFlow, Range};
use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_vfs::{Clock, Error, Result, Unsupported};

use super::Onto;
use super::superblock::Primary;
use crate::FsContext;
use crate::alloc::Allocator;
use crate::ondisk::features::RoCompat;
use crate::ondisk::jbd2::LogBlock;
use crate::ondisk::jbd2::fast_commit::Records;
use crate::quota_file::QuotaFiles;
use crate::txn::{CommitClient, Journal, Log, ReplayReport};
use apply::Apply;
use scan::Valid;

/// The part of the memory budget that changes take which are made in memory first, besides what is cached.
const OVERLAY_MEMORY_PART: u64 = 2;
/// The part of the memory budget that the places of mapped blocks may take.
const REGIONS_MEMORY_PART: u64 = 8;
/// So many they may be in any case: more than fit into the fast commit area that mke2fs makes.
const REGIONS_MIN: usize = 1 << 16;

/// The result of a replay of fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct FastCommitReport {
    /// Number of complete fast commits.
    pub fast_commits: u32,
    /// Number of records in them.
    pub records: u64,
}

/// Replays the fast commits of the transaction after the replayed ones onto the filesystem of
/// `primary`, and makes them durable there.
///
/// # Errors
/// `Unsupported` for more than a transaction holds, where usage is counted: in place, it might be
/// counted twice.
pub(super) fn replay(
    journal: &Journal,
    log: &ReplayReport,
    primary: Primary<'_>,
    onto: Onto,
    clock: &Arc<dyn Clock>,
) -> Result<FastCommitReport> {
    let fs = primary.open()?;
    let regions_bytes_max = primary.budget.limit_bytes() / REGIONS_MEMORY_PART;
    let regions_max = regions_bytes_max / size_of::<Range<u64>>() as u64;
    let regions_max = usize::try_from(regions_max).unwrap_or(usize::MAX);
    let regions_max = regions_max.max(REGIONS_MIN);
    let valid = scan::scan(journal, log.end, &fs.geometry, regions_max)?;
    if valid.report.records == 0 {
        return Ok(valid.report);
    }
    let features = fs.geometry.features;
    if onto == Onto::Device {
        let mut journal = journal.clone();
        journal.set_head(log.head, log.end);
        let fs = fs.try_writable(|buffers| {
            let clock = Arc::clone(clock);
            let log = Log::with_journal(buffers, journal.clone(), &features, clock)?;
            Ok(log.for_one_transaction())
        })?;
        let limit = fs.log().map_or("journal", Log::only_transaction_limit);
        if apply_all(&journal, &valid, fs, Transactions::One, clock)? == Applied::All {
            return Ok(valid.report);
        }
        if features.ro_compat.contains(RoCompat::QUOTA) {
            let unsupported = Unsupported {
                filesystem: "ext4",
                feature: format!("quota after more fast commits than fit into the {limit}"),
                reason: Some("only reading is, until e2fsck has replayed them"),
            };
            return Err(unsupported.into());
        }
        rehearse(&journal, &valid, primary, clock)?;
        // In place, they would be replayed over what is half applied.
        journal.drop_replayed(log.head, log.end)?;
        let had_errors = primary.set_errors(true)?;
        apply_in_place(&journal, &valid, primary, clock)?;
        if !had_errors {
            primary.set_errors(false)?;
        }
        return Ok(valid.report);
    }
    apply_in_place(journal, &valid, primary, clock)?;
    Ok(valid.report)
}

/// Applies the fast commits in memory, so that one that is refused is found while nothing was changed.
/// More changes than memory may hold are not refused.
fn rehearse(
    journal: &Journal,
    valid: &Valid,
    primary: Primary<'_>,
    clock: &Arc<dyn Clock>,
) -> Result<()> {
    let options = OverlayOptions {
        limit_bytes: primary.budget.limit_bytes() / OVERLAY_MEMORY_PART,
        ..OverlayOptions::default()
    };
    let overlay = OverlayDevice::new(Arc::clone(primary.device), options);
    let device: Arc<dyn BlockDevice> = Arc::new(overlay);
    let primary = Primary {
        device: &device,
        ..primary
    };
    match apply_in_place(journal, valid, primary, clock) {
        Err(Error::Io(error)) if error.source.kind() == ErrorKind::StorageFull => Ok(()),
        applied => applied,
    }
}

fn apply_in_place(
    journal: &Journal,
    valid: &Valid,
    primary: Primary<'_>,
    clock: &Arc<dyn Clock>,
) -> Result<()> {
    let fs = primary.open()?.writable(Log::without_journal);
    apply_all(journal, valid, fs, Transactions::Any, clock).map(|_| ())
}

/// How many transactions the fast commits may take.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Transactions {
    /// One, in which usage is counted as well.
    One,
    Any,
}

/// What became of the fast commits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Applied {
    /// They are durable.
    All,
    /// Nothing was changed: they do not fit into one transaction.
    None,
}

fn apply_all(
    journal: &Journal,
    valid: &Valid,
    mut fs: FsContext,
    transactions: Transactions,
    clock: &Arc<dyn Clock>,
) -> Result<Applied> {
    let space = Arc::new(Allocator::open_for_replay(&fs, valid.regions.clone())?);
    let client: Arc<dyn CommitClient> = Arc::<Allocator>::clone(&space);
    if let Some(log) = fs.log() {
        log.attach(Arc::downgrade(&client));
    }
    let mut quota_files = None;
    if transactions == Transactions::One
        && let Some((files, table)) = QuotaFiles::open(&fs, &space, [false; 3], Arc::clone(clock))?
    {
        fs = fs.with_quotas(table);
        quota_files = Some(files);
    }
    let may_restart = transactions == Transactions::Any;
    let mut apply = Apply::begin(&fs, &space, quota_files, &**clock, may_restart)?;
    let applied =
        for_each_record(journal, valid, &mut apply).and_then(|()| recount::finish(&mut apply));
    let is_full = apply.is_full();
    drop(apply);
    match applied {
        Err(_) if is_full => return Ok(Applied::None),
        applied => applied?,
    }
    if let Some(log) = fs.log() {
        log.commit_all()?;
        if transactions == Transactions::One {
            journal.erase_fast_commits()?;
        }
        log.close()?;
    }
    Ok(Applied::All)
}

/// Applies the records of the complete fast commits.
fn for_each_record(journal: &Journal, valid: &Valid, apply: &mut Apply<'_>) -> Result<()> {
    let inode_bytes = apply.fs.geometry.inode_bytes;
    let mut left = valid.report.records;
    for_each_block(journal, |block| {
        for result in Records::decode(block, inode_bytes) {
            if left == 0 {
                return Ok(ControlFlow::Break(()));
            }
            left -= 1;
            records::replay(apply, &result?.0)?;
        }
        Ok(ControlFlow::Continue(()))
    })
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
