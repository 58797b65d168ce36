//! The second pass: applies the items of each transaction.

use platter_block::BlockDevice;
use platter_ondisk::Locus;
use platter_vfs::Result;

use super::buffers::Buffers;
use super::cancelled::Cancelled;
use super::transactions::{Item, Transaction};
use super::{LogScan, ReplayReport};
use crate::ondisk::log::{BufferFlags, BufferFormat, ItemKind, QuotaOff};
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
    pub(super) cancelled: Cancelled,
    pub(super) quota_off: QuotaOff,
    /// The LSN of the transaction.
    pub(super) lsn: Lsn,
    /// The transaction, in errors.
    pub(super) locus: Locus,
    log: &'t LogDevice,
    report: ReplayReport,
}

/// The order in which items of a transaction are applied: blocks and new inodes before the inodes and
/// quota records in them, then links of unlinked lists, then what is cancelled.
fn rank(item: &Item, locus: Locus) -> Result<u8> {
    if item.kind == ItemKind::InodeCreate {
        return Ok(0);
    }
    if item.kind != ItemKind::Buffer {
        return Ok(1);
    }
    let flags = BufferFormat::decode(item.first(), locus)?.flags;
    Ok(if flags.contains(BufferFlags::CANCEL) {
        3
    } else if flags.contains(BufferFlags::INODES) {
        2
    } else {
        0
    })
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

    pub(super) fn transaction(&mut self, transaction: Transaction) -> Result<()> {
        self.lsn = transaction.lsn;
        self.locus = self.log.locus(transaction.lsn.block());
        self.buffers.begin(transaction.lsn)?;
        let mut items = Vec::with_capacity(transaction.items.len());
        for item in transaction.items {
            items.push((rank(&item, self.locus)?, item));
        }
        items.sort_by_key(|(rank, _)| *rank);
        for (_, item) in &items {
            match self.item(item)? {
                Applied::Yes => self.report.items_replayed += 1,
                Applied::Skipped => self.report.items_skipped += 1,
            }
        }
        self.report.transactions += 1;
        Ok(())
    }

    fn item(&mut self, item: &Item) -> Result<Applied> {
        if item.kind == ItemKind::Buffer {
            self.buffer(item)
        } else if item.kind == ItemKind::Inode {
            self.inode(item)
        } else if item.kind == ItemKind::Dquot {
            self.dquot(item)
        } else if item.kind == ItemKind::InodeCreate {
            self.inode_create(item)
        } else {
            // Intents were collected in the first pass.
            Ok(Applied::Yes)
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
