//! Commits: the running transaction is closed and made durable, by one caller for all who wait.

use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::Duration;

use parking_lot::MutexGuard;
use platter_cache::Buffer;
use platter_vfs::{Condition, Error, Result};

use super::transaction::{Closed, Transaction};
use super::{Durability, Handle, Log, State, held, in_place};
use crate::ondisk::jbd2::Sequence;

/// The longest time that a commit waits for others to ask for it, however long the last one took.
const GATHER_MAX: Duration = Duration::from_millis(15);

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
        held::assert_none_of(self);
        let mut state = self.state.lock();
        if !transaction.is_before(state.running.sequence) {
            state.callers += 1;
            if state.callers == state.callers_expected {
                self.changed.notify_all();
            }
        }
        loop {
            if !state.committed.is_before(transaction) {
                return Ok(());
            }
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            if !state.is_committing {
                break;
            }
            self.changed.wait(&mut state);
        }
        if self.gate.handles() == 0 && state.running.is_empty() {
            return Ok(());
        }
        state.is_committing = true;
        self.gather(&mut state);
        state.is_closing = true;
        self.gate.shut();
        drop(state);
        let mut turn = CommitTurn {
            log: self,
            is_done: false,
        };
        let mut state = self.state.lock();
        while self.gate.handles() > 0 {
            self.changed.wait(&mut state);
        }
        let is_empty = state.running.is_empty();
        drop(state);
        let committed = if is_empty {
            Ok(())
        } else {
            self.commit_running().inspect_err(|error| self.fail(error))
        };
        turn.is_done = true;
        committed
    }

    /// Gives those who waited for the last commit, or came meanwhile, the time to ask for this one: who
    /// calls again and again shares commits with others who do, instead of taking turns. It waits no
    /// longer than a commit takes.
    fn gather(&self, state: &mut MutexGuard<'_, State>) {
        let Durability::Journal(journaled) = &self.durability else {
            return;
        };
        let clock = &journaled.clock;
        // Others ring as well: what is left of the time counts, not each wait.
        let end = clock.monotonic() + state.commit_took.min(GATHER_MAX);
        while state.callers < state.callers_expected && state.failure.is_none() {
            let left = end.saturating_sub(clock.monotonic());
            if left.is_zero() || self.changed.wait_for(state, left).timed_out() {
                break;
            }
        }
    }

    /// As [`commit`](Self::commit), and data that was written to the device before the call is
    /// durable, too.
    ///
    /// # Errors
    /// The device's. A flush that fails ends all writing: no later one vouches for what was written
    /// before it, be that data or a part of the log.
    pub fn sync(&self, transaction: Sequence) -> Result<()> {
        let ticket = self.home.flushes.ticket();
        self.commit(transaction)?;
        if self.home.flushes.succeeded_since(ticket) {
            return Ok(());
        }
        self.home.flush().inspect_err(|error| self.fail(error))
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
        let blocks = self.settle_running()?;
        let (closed, callers) = self.close_running(blocks)?;
        let mut took = Duration::ZERO;
        match &self.durability {
            Durability::InPlace => in_place::commit(&self.home, &closed)?,
            Durability::Journal(journaled) => {
                let begun = journaled.clock.monotonic();
                journaled.commit(&closed)?;
                took = journaled.clock.monotonic().saturating_sub(begun);
            }
        }
        self.counters.commits.add(1);
        self.counters.blocks.add(closed.blocks.len());
        if let Some(client) = &client {
            client.committed(&closed.freed);
        }
        let mut state = self.state.lock();
        state.committed = closed.sequence;
        state.commit_took = took;
        state.callers_expected = callers + state.callers;
        Ok(())
    }

    /// Seals the versions of the running transaction, which no operation is part of: what changes from
    /// now on are others.
    fn settle_running(&self) -> Result<BTreeMap<u64, Buffer>> {
        let buffers = &self.home.buffers;
        let (dropped, blocks) = {
            let mut state = self.state.lock();
            let dropped = self.change_running(&mut state, 0, Transaction::drop_freed);
            (dropped, state.running.blocks.clone())
        };
        for block in dropped {
            buffers.forget(block);
        }
        let mut versions = BTreeMap::new();
        for block in blocks {
            let version = buffers.settle(block)?;
            debug_assert!(version.is_some(), "the cache has what is not written yet");
            versions.extend(version.map(|version| (block, version)));
        }
        Ok(versions)
    }

    /// Takes the running transaction, and lets another one run. Tells how many ask for it.
    fn close_running(&self, blocks: BTreeMap<u64, Buffer>) -> Result<(Closed, u32)> {
        let mut state = self.state.lock();
        if let Some(error) = &state.failure {
            return Err(error.clone());
        }
        let next = state.running.sequence.next();
        let running = std::mem::replace(&mut state.running, Transaction::new(next));
        let mut closed = running.close(blocks);
        if let Durability::Journal(journaled) = &self.durability {
            journaled.live.lock().close(&mut closed);
        }
        state.is_closing = false;
        self.gate.renew(next.into(), state.is_closed);
        let callers = std::mem::take(&mut state.callers);
        drop(state);
        self.changed.notify_all();
        Ok((closed, callers))
    }

    /// Writes nothing any more because of `error`, the first one, and tells those who keep it.
    pub(super) fn fail(&self, error: &Error) {
        if !self.stop(error) {
            return;
        }
        if let Durability::Journal(journaled) = &self.durability {
            // What cannot be noted there may be noted in the filesystem.
            let _ = journaled.record_failure(error);
        }
        if let Some(client) = self.client() {
            client.failed(error);
        }
    }

    /// Has nothing written any more, unless that is so already.
    pub(super) fn stop(&self, error: &Error) -> bool {
        {
            let mut state = self.state.lock();
            if state.failure.is_some() {
                return false;
            }
            state.failure = Some(error.clone());
            self.gate.shut();
            self.has_failed.store(true, Ordering::Release);
        }
        self.changed.notify_all();
        true
    }
}

/// The right and the duty to commit. Those who wait look again when it ends, however it does.
struct CommitTurn<'l> {
    log: &'l Log,
    /// It came to an end, be it an error.
    is_done: bool,
}

impl Drop for CommitTurn<'_> {
    fn drop(&mut self) {
        if !self.is_done {
            // A transaction may be neither running nor durable.
            self.log.stop(&Condition::ReadOnly.into());
        }
        let mut state = self.log.state.lock();
        state.is_closing = false;
        if state.failure.is_none() && !state.is_closed {
            self.log.gate.open();
        }
        state.is_committing = false;
        drop(state);
        self.log.changed.notify_all();
    }
}
