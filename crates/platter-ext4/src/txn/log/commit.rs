//! Commits: the running transaction is closed and made durable, by one caller for all waiters.

use std::collections::BTreeMap;
use std::time::Duration;

use platter_cache::Buffer;
use platter_cache::commit::HeldHandle;
use platter_vfs::{Error, Result};

use super::{Durability, Handle, Log, in_place};
use crate::ondisk::jbd2::Sequence;

impl Log {
    /// Returns when `transaction` and all before it are durable: at once, without I/O, if they are
    /// or if it has no changes. Of several callers one does the work for all.
    ///
    /// It says nothing about data written to the device: for that, see [`sync`](Self::sync).
    /// The caller has no handle.
    ///
    /// # Errors
    /// The device's, and then and from then on `ReadOnly`.
    pub fn commit(&self, transaction: Sequence) -> Result<()> {
        HeldHandle::assert_none(self);
        let write = || self.commit_running().inspect_err(|error| self.fail(error));
        let Durability::Journal(journaled) = &self.durability else {
            return self.transactions.commit(transaction, None, write);
        };
        let now = || journaled.clock.monotonic();
        self.transactions.commit(transaction, Some(&now), write)
    }

    /// As [`commit`](Self::commit), and data that was written to the device before the call is
    /// durable, too.
    ///
    /// # Errors
    /// The device's. A flush that fails ends all writing: no later one covers what was written
    /// before it, be that data or a part of the log.
    pub fn sync(&self, transaction: Sequence) -> Result<()> {
        let ticket = self.fs_device.flushes.ticket();
        self.commit(transaction)?;
        if self.fs_device.flushes.succeeded_since(ticket) {
            return Ok(());
        }
        self.fs_device.flush().inspect_err(|error| self.fail(error))
    }

    /// As [`sync`](Self::sync), of everything that was done so far.
    pub fn sync_all(&self) -> Result<()> {
        self.sync(self.latest())
    }

    /// Makes everything that was done so far durable. Without changes there is nothing to do.
    pub fn commit_all(&self) -> Result<()> {
        self.commit(self.latest())
    }

    /// Closes the running transaction, which no operation is part of, and makes it durable.
    fn commit_running(&self) -> Result<()> {
        let client = self.client();
        if let Some(client) = &client {
            let mut handle = Handle::closing(self, self.running());
            client.closing(&mut handle)?;
        }
        let blocks = self.seal_running()?;
        let closing = self.transactions.close_running(|running| {
            let mut closed = running.close(blocks);
            if let Durability::Journal(journaled) = &self.durability {
                journaled.live.lock().close(&mut closed);
            }
            closed
        })?;
        let closed = &closing.closed;
        let mut took = Duration::ZERO;
        match &self.durability {
            Durability::InPlace => in_place::commit(&self.fs_device, closed)?,
            Durability::Journal(journaled) => {
                let begun = journaled.clock.monotonic();
                journaled.commit(closed)?;
                took = journaled.clock.monotonic().saturating_sub(begun);
            }
        }
        self.counters.commits.add(1);
        self.counters.blocks.add(closed.blocks.len());
        if let Some(client) = &client {
            client.committed(&closed.freed);
        }
        self.transactions
            .set_committed(closed.sequence, &closing, took);
        Ok(())
    }

    /// Seals the versions of the running transaction, which no operation is part of: what changes from
    /// now on are others.
    fn seal_running(&self) -> Result<BTreeMap<u64, Buffer>> {
        let buffers = &self.fs_device.buffers;
        let (dropped, blocks) = self
            .transactions
            .change(0, |running| (running.drop_freed(), running.blocks.clone()));
        for block in dropped {
            buffers.forget(block);
        }
        let mut versions = BTreeMap::new();
        for block in blocks {
            let version = buffers.seal(block)?;
            debug_assert!(version.is_some(), "the cache has what is not written yet");
            versions.extend(version.map(|version| (block, version)));
        }
        Ok(versions)
    }

    /// Aborts the log because of `error`, the first one, and notifies its owners.
    pub(super) fn fail(&self, error: &Error) {
        if !self.transactions.stop(error) {
            return;
        }
        if let Durability::Journal(journaled) = &self.durability {
            // What cannot be recorded there may be recorded in the filesystem.
            let _ = journaled.record_failure(error);
        }
        if let Some(client) = self.client() {
            client.failed(error);
        }
    }
}
