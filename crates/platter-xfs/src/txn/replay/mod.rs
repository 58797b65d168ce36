//! Replay: finds the committed transactions in the log and applies their items to the blocks that they
//! log.
//!
//! Two passes over the live part of the log: the first finds which buffers are cancelled, the second
//! replays the others and collects the intents that were not finished. Spec: `xfs/journaling_log`.

mod rules;
mod position;
mod records;
mod transactions;
mod cancelled;
mod buffers;
mod second_pass;
mod buffer;
mod inode;
mod fork;
mod dquot;
mod icreate;

use platter_block::BlockDevice;
use platter_vfs::{Result, Unsupported};

use crate::ondisk::log::{BufferFlags, BufferFormat, Intent, ItemKind, QuotaOff};
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

/// Replays all committed transactions in the live part of the log onto `target`, the data device of the
/// filesystem or an overlay of it. The log stays as it is.
pub fn replay(
    log: &LogDevice,
    position: &LogPosition,
    superblock: &Superblock,
    target: &dyn BlockDevice,
) -> Result<ReplayReport> {
    if position.state == LogState::Clean {
        return Ok(ReplayReport::default());
    }
    if let Some(feature) = superblock.features.unreplayable().into_iter().next() {
        return Err(Unsupported {
            filesystem: "xfs",
            feature,
            reason: Some("the log is dirty; mount read-only with norecovery"),
        }
        .into());
    }
    let geometry = Geometry::new(superblock);
    let has_checksums = geometry.features.is_v5();
    let mut first = FirstPass::default();
    for_each_transaction(log, position, has_checksums, &mut |transaction| {
        first.transaction(&transaction, log)
    })?;
    let mut second = second_pass::SecondPass::new(geometry, log, target, first);
    for_each_transaction(log, position, has_checksums, &mut |transaction| {
        second.transaction(transaction)
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

/// What the first pass finds.
#[derive(Debug, Default)]
struct FirstPass {
    cancelled: Cancelled,
    quota_off: QuotaOff,
}

impl FirstPass {
    fn transaction(
        &mut self,
        transaction: &transactions::Transaction,
        log: &LogDevice,
    ) -> Result<()> {
        let locus = log.locus(transaction.lsn.block());
        for item in &transaction.items {
            if item.kind == ItemKind::Buffer {
                let format = BufferFormat::decode(item.first(), locus)?;
                if format.flags.contains(BufferFlags::CANCEL) {
                    self.cancelled.add(format.block, format.len.into());
                }
            } else if item.kind == ItemKind::QuotaOff {
                self.quota_off |= QuotaOff::decode(item.first(), locus)?;
            }
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests;
