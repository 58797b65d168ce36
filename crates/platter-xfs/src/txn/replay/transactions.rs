//! Putting transactions together: their operations lie in any number of records, among those of other
//! transactions. Spec: `xfs/journaling_log`, "Log Operations".

use std::collections::BTreeMap;

use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;

use super::records::Record;
use super::rules::ReplayRule;
use crate::ondisk::Lsn;
use crate::ondisk::log::{ItemHeader, ItemKind, OpFlags, Operation, Operations, TransactionHeader};

/// Length of a transaction header.
const HEADER_BYTES: usize = 16;

/// A log item with its regions.
#[derive(Debug)]
pub(super) struct Item {
    pub(super) kind: ItemKind,
    pub(super) regions: Vec<Vec<u8>>,
    expected: u16,
}

/// A committed transaction.
#[derive(Debug)]
pub(super) struct Transaction {
    /// The record in which it began.
    pub(super) lsn: Lsn,
    pub(super) items: Vec<Item>,
    header: Vec<u8>,
}

/// Transactions that are not committed yet.
#[derive(Debug, Default)]
pub(super) struct Assembly {
    open: BTreeMap<u32, Transaction>,
}

impl Item {
    pub(super) fn first(&self) -> &[u8] {
        self.regions.first().map(Vec::as_slice).unwrap_or_default()
    }
}

impl Transaction {
    fn add_region(&mut self, data: &[u8], locus: Locus) -> Result<()> {
        if self.header.len() < HEADER_BYTES {
            return self.extend_header(data, locus);
        }
        if let Some(item) = self.items.last_mut()
            && item.regions.len() < usize::from(item.expected)
        {
            item.regions.push(data.to_vec());
            return Ok(());
        }
        let ItemHeader { kind, regions } = ItemHeader::decode(data, locus)?;
        self.items.push(Item {
            kind,
            regions: vec![data.to_vec()],
            expected: regions,
        });
        Ok(())
    }

    fn continue_region(&mut self, data: &[u8], locus: Locus) -> Result<()> {
        let last = self.items.last_mut();
        match last.and_then(|item| item.regions.last_mut()) {
            Some(region) => {
                region.extend_from_slice(data);
                Ok(())
            }
            None if self.header.len() < HEADER_BYTES => self.extend_header(data, locus),
            None => Err(Corrupt::new(locus, ReplayRule::Region).into()),
        }
    }

    fn extend_header(&mut self, data: &[u8], locus: Locus) -> Result<()> {
        self.header.extend_from_slice(data);
        if self.header.len() > HEADER_BYTES {
            return Err(Corrupt::new(locus, ReplayRule::Region).into());
        }
        if self.header.len() == HEADER_BYTES {
            TransactionHeader::decode(&self.header, locus)?;
        }
        Ok(())
    }
}

impl Assembly {
    /// Hands each transaction that a record commits to `commit`.
    pub(super) fn add(
        &mut self,
        record: &Record,
        locus: Locus,
        commit: &mut dyn FnMut(Transaction) -> Result<()>,
    ) -> Result<()> {
        let operations = Operations::new(&record.body, record.header.operations, locus);
        for operation in operations {
            let operation = operation?;
            if let Some(transaction) = self.operation(&operation, record.header.lsn, locus)? {
                commit(transaction)?;
            }
        }
        Ok(())
    }

    fn operation(
        &mut self,
        operation: &Operation<'_>,
        lsn: Lsn,
        locus: Locus,
    ) -> Result<Option<Transaction>> {
        let Operation {
            tid, flags, data, ..
        } = *operation;
        if flags.contains(OpFlags::START) {
            let fresh = Transaction {
                lsn,
                items: Vec::new(),
                header: Vec::new(),
            };
            if self.open.insert(tid, fresh).is_some() {
                return Err(Corrupt::new(locus, ReplayRule::TransactionStart).into());
            }
            return Ok(None);
        }
        if flags.contains(OpFlags::UNMOUNT) {
            return Ok(None);
        }
        // A transaction that began before the tail is in its place already.
        let Some(transaction) = self.open.get_mut(&tid) else {
            return Ok(None);
        };
        if flags.contains(OpFlags::COMMIT) {
            return Ok(self.open.remove(&tid));
        }
        if flags.contains(OpFlags::WAS_CONTINUED) {
            transaction.continue_region(data, locus)?;
        } else if !data.is_empty() {
            transaction.add_region(data, locus)?;
        }
        Ok(None)
    }
}
