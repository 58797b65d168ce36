//! What the second pass applies the items of transactions with.

use platter_block::BlockDevice;
use platter_ondisk::Locus;
use platter_vfs::Result;

use super::buffers::Buffers;
use super::cancelled::Cancelled;
use super::torn::TornBlocks;
use super::{LogScan, ReplayReport};
use crate::ondisk::log::QuotaOff;
use crate::ondisk::{Geometry, Lsn};
use crate::txn::LogDevice;

/// Whether an item was applied.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Applied {
    Yes,
    /// It is cancelled, or what it changes is newer.
    Skipped,
}

/// What an item is applied with.
#[derive(Debug)]
pub(super) struct SecondPass<'t> {
    pub(super) geometry: Geometry,
    pub(super) buffers: Buffers<'t>,
    pub(super) torn: TornBlocks,
    pub(super) cancelled: Cancelled,
    pub(super) quota_off: QuotaOff,
    /// The LSN of the transaction.
    pub(super) lsn: Lsn,
    /// The transaction, in errors.
    pub(super) locus: Locus,
    pub(super) log: &'t LogDevice,
    pub(super) report: ReplayReport,
}

impl<'t> SecondPass<'t> {
    pub(super) fn new(
        geometry: Geometry,
        log: &'t LogDevice,
        target: &'t dyn BlockDevice,
        scan: LogScan,
    ) -> Self {
        Self {
            geometry,
            buffers: Buffers::new(target, log),
            torn: TornBlocks::default(),
            cancelled: scan.cancelled,
            quota_off: scan.quota_off,
            lsn: Lsn::NULL,
            locus: Locus::UNKNOWN,
            log,
            report: ReplayReport {
                open_intents: scan.open_intents,
                ..ReplayReport::default()
            },
        }
    }

    pub(super) fn finish(mut self) -> Result<ReplayReport> {
        self.buffers.write_all()?;
        Ok(ReplayReport {
            blocks_written: self.buffers.written,
            ..self.report
        })
    }
}
