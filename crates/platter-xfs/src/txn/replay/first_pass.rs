//! The first pass: what the second one has to know before it applies anything.

use std::collections::BTreeMap;

use platter_vfs::Result;

use super::LogScan;
use super::transactions::Transaction;
use crate::ondisk::log::{BufferFlags, BufferFormat, Done, Intent, ItemKind, QuotaOff};
use crate::txn::LogDevice;

/// What the first pass found up to now.
#[derive(Debug, Default)]
pub(super) struct FirstPass {
    scan: LogScan,
    /// Open intents by the order in which they were logged.
    open: BTreeMap<u64, Intent>,
    by_id: BTreeMap<(ItemKind, u64), u64>,
    intents: u64,
}

impl FirstPass {
    pub(super) fn transaction(&mut self, transaction: &Transaction, log: &LogDevice) -> Result<()> {
        let locus = log.locus(transaction.lsn.block());
        for item in &transaction.items {
            if item.kind == ItemKind::Buffer {
                let format = BufferFormat::decode(item.first(), locus)?;
                if format.flags.contains(BufferFlags::CANCEL) {
                    self.scan.cancelled.add(format.block, format.len.into());
                }
            } else if item.kind == ItemKind::QuotaOff {
                self.scan.quota_off |= QuotaOff::decode(item.first(), locus)?;
            } else if let Some(done) = Done::decode(item.first(), locus)? {
                if let Some(order) = self.by_id.remove(&(done.intent_kind, done.id)) {
                    self.open.remove(&order);
                }
            } else if let Some(intent) = Intent::decode(&item.regions, locus)? {
                let key = (intent.kind(), intent.id());
                self.by_id.insert(key, self.intents);
                self.open.insert(self.intents, intent);
                self.intents += 1;
            }
        }
        Ok(())
    }

    pub(super) fn finish(self) -> LogScan {
        LogScan {
            open_intents: self.open.into_values().collect(),
            ..self.scan
        }
    }
}
