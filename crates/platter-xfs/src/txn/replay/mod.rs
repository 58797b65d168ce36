//! Replay: finds the committed transactions in the log and applies their items to the blocks that they
//! log.
//!
//! Two passes over the live part of the log: the first finds which buffers are cancelled, and the intents
//! that were not finished; the second replays the other buffers. Spec: `xfs/journaling_log`.

mod rules;
mod position;
mod records;
mod transactions;
mod cancelled;
mod first_pass;
mod buffers;
mod torn;
mod second_pass;
mod buffer;
mod fork;
mod inode;
mod dquot;
mod icreate;
mod apply;

use platter_block::BlockDevice;
use platter_vfs::{Result, Unsupported};

use crate::ondisk::log::{Intent, QuotaOff};
use crate::ondisk::{Geometry, Superblock};
use crate::txn::LogDevice;

pub use position::{LogPosition, LogState, find_position};
pub use rules::ReplayRule;

use cancelled::Cancelled;
use records::Records;
use transactions::Assembly;

/// What a replay did.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct ReplayReport {
    /// Transactions replayed.
    pub transactions: u64,
    /// Items applied.
    pub items_replayed: u64,
    /// Items passed over: cancelled, or older than the block.
    pub items_skipped: u64,
    /// Blocks written.
    pub blocks_written: u64,
    /// Intents that no done item followed, in the order of the log.
    pub open_intents: Vec<Intent>,
}

/// What the live part of the log has, before anything is replayed.
#[derive(Debug, Default)]
pub struct LogScan {
    /// Intents that no done item follows, in the order of the log.
    pub open_intents: Vec<Intent>,
    cancelled: Cancelled,
    quota_off: QuotaOff,
}

/// Reads all committed transactions in the live part of the log: the first pass of a replay.
///
/// # Errors
/// `Unsupported` for features of the log or the filesystem that cannot be replayed, by name.
pub fn scan(log: &LogDevice, position: &LogPosition, superblock: &Superblock) -> Result<LogScan> {
    if position.state == LogState::Clean {
        return Ok(LogScan::default());
    }
    let mut features = superblock.features.unreplayable();
    if superblock.features.needs_repair() {
        features.push("needsrepair".to_owned());
    }
    if !features.is_empty() {
        return Err(Unsupported {
            filesystem: "xfs",
            feature: features.join(", "),
            reason: Some("the log is dirty; mount read-only with norecovery"),
        }
        .into());
    }
    let mut first = first_pass::FirstPass::default();
    let has_checksums = superblock.features.is_v5();
    for_each_transaction(log, position, has_checksums, &mut |transaction| {
        first.transaction(&transaction, log)
    })?;
    Ok(first.finish())
}

/// Replays all committed transactions in the live part of the log onto `target`, the data device of the
/// filesystem or an overlay of it. The log stays as it is.
pub fn replay(
    log: &LogDevice,
    position: &LogPosition,
    superblock: &Superblock,
    scan: LogScan,
    target: &dyn BlockDevice,
) -> Result<ReplayReport> {
    if position.state == LogState::Clean {
        return Ok(ReplayReport::default());
    }
    let geometry = Geometry::new(superblock);
    let has_checksums = geometry.features.is_v5();
    let mut second = second_pass::SecondPass::new(geometry, log, target, scan);
    for_each_transaction(log, position, has_checksums, &mut |transaction| {
        apply::transaction(&mut second, transaction)
    })?;
    let report = second.finish()?;
    target.flush()?;
    Ok(report)
}

fn for_each_transaction(
    log: &LogDevice,
    position: &LogPosition,
    has_checksums: bool,
    commit: &mut dyn FnMut(transactions::Transaction) -> Result<()>,
) -> Result<()> {
    let mut records = Records::new(log, position, has_checksums);
    let mut assembly = Assembly::default();
    while let Some(record) = records.next()? {
        assembly.add(&record, log.locus(record.at), commit)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests;
