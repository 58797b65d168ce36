//! Running transactions: what handles change together becomes durable together.
//!
//! A [`Handle`] is one operation's part in the running transaction. What it changes are versions of
//! metadata blocks in the buffer cache, so that a commit in flight keeps the versions it took while
//! later handles publish newer ones.

mod edit_locks;
mod handle;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use parking_lot::{Condvar, Mutex};
use platter_cache::{Buffer, BufferCache};
use platter_vfs::{Condition, Error, Result};

use crate::ondisk::BlockNr;
use crate::ondisk::jbd2::Sequence;
use edit_locks::EditLocks;

pub use handle::Handle;

/// Blocks a transaction may have where no journal bounds it.
const TRANSACTION_BLOCKS_MAX: u32 = 8192;

/// Who has a say in each transaction: the keeper of free space.
pub trait CommitClient: Send + Sync {
    /// Adds the last changes, such as the superblock's counts, to a transaction that no operation
    /// is part of any more.
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()>;

    /// What a transaction freed may be used again: it is durable.
    fn committed(&self, freed: &[Range<BlockNr>]);
}

/// The transactions of a mounted filesystem.
///
/// # Invariants
/// - At most one transaction runs and at most one commits.
/// - Each block of a transaction has the version of its last change by a handle of it.
/// - After a failed commit nothing is written any more: every handle and commit gives `ReadOnly`.
pub struct Log {
    buffers: Arc<BufferCache>,
    edits: EditLocks,
    state: Mutex<State>,
    /// Rung when a handle ends, a transaction closes, and a commit ends.
    changed: Condvar,
    client: OnceLock<Weak<dyn CommitClient>>,
}

/// What the lock of a log guards.
struct State {
    running: Transaction,
    /// The running transaction takes no more handles.
    is_closing: bool,
    is_committing: bool,
    /// The last transaction that is durable.
    committed: Sequence,
    /// Why nothing is written any more.
    failure: Option<Error>,
}

/// A transaction that handles add to.
#[derive(Default)]
struct Transaction {
    sequence: Sequence,
    handles: u32,
    reserved_blocks: u32,
    blocks: BTreeMap<u64, Buffer>,
    freed: Vec<Range<BlockNr>>,
}

impl Transaction {
    fn is_empty(&self) -> bool {
        self.blocks.is_empty() && self.freed.is_empty()
    }
}

impl Log {
    /// Transactions without a journal: a commit writes the blocks to their places.
    #[must_use]
    pub fn without_journal(buffers: Arc<BufferCache>) -> Self {
        let first = Sequence(1);
        Self {
            buffers,
            edits: EditLocks::default(),
            state: Mutex::new(State {
                running: Transaction {
                    sequence: first,
                    ..Transaction::default()
                },
                is_closing: false,
                is_committing: false,
                committed: Sequence(0),
                failure: None,
            }),
            changed: Condvar::new(),
            client: OnceLock::new(),
        }
    }

    /// Has `client` take part in every transaction from now on. Once only.
    pub fn attach(&self, client: Weak<dyn CommitClient>) {
        let first = self.client.set(client);
        debug_assert!(first.is_ok(), "a log has one client");
    }

    /// Takes part in the running transaction with changes to at most `credits` blocks, waiting for
    /// room. The caller holds no lock that a commit or another handle may wait for.
    ///
    /// # Errors
    /// `ReadOnly` after a failure.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        let credits = credits.min(TRANSACTION_BLOCKS_MAX / 2);
        let mut state = self.state.lock();
        loop {
            if state.failure.is_some() {
                return Err(Condition::ReadOnly.into());
            }
            if state.is_closing {
                self.changed.wait(&mut state);
                continue;
            }
            if Self::has_room(&state, credits) {
                break;
            }
            let full = state.running.sequence;
            drop(state);
            self.commit(full)?;
            state = self.state.lock();
        }
        state.running.handles += 1;
        state.running.reserved_blocks += credits;
        Ok(Handle::new(self, state.running.sequence, credits))
    }

    /// The transaction that a handle begun now would be part of.
    #[must_use]
    pub fn running(&self) -> Sequence {
        self.state.lock().running.sequence
    }

    /// The last transaction that anything was done in.
    #[must_use]
    pub fn latest(&self) -> Sequence {
        let state = self.state.lock();
        if state.running.is_empty() && state.running.handles == 0 {
            Sequence(state.running.sequence.0.wrapping_sub(1))
        } else {
            state.running.sequence
        }
    }

    /// Returns when `transaction` and all before it are durable: at once, without I/O, if they are.
    /// Of several callers one does the work for all.
    ///
    /// # Errors
    /// The device's, and then and from then on `ReadOnly`.
    pub fn commit(&self, transaction: Sequence) -> Result<()> {
        let mut state = self.state.lock();
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
        state.is_committing = true;
        state.is_closing = true;
        while state.running.handles > 0 {
            self.changed.wait(&mut state);
        }
        drop(state);
        let result = self.commit_running();
        let mut state = self.state.lock();
        if let Err(error) = &result {
            state.failure.get_or_insert_with(|| error.clone());
            state.is_closing = false;
        }
        state.is_committing = false;
        self.changed.notify_all();
        result
    }

    /// Makes everything that was done so far durable.
    pub fn commit_all(&self) -> Result<()> {
        self.commit(self.latest())
    }

    /// Ends all writing because of `error`: nothing that is not durable yet will be.
    pub fn abort(&self, error: &Error) {
        self.state
            .lock()
            .failure
            .get_or_insert_with(|| error.clone());
        self.changed.notify_all();
    }

    /// Why nothing is written any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.state.lock().failure.clone()
    }

    /// Whether the running transaction can take `credits` more blocks.
    fn has_room(state: &State, credits: u32) -> bool {
        let blocks = u32::try_from(state.running.blocks.len()).unwrap_or(u32::MAX);
        let taken = blocks.saturating_add(state.running.reserved_blocks);
        taken.saturating_add(credits) <= TRANSACTION_BLOCKS_MAX
    }

    fn client(&self) -> Option<Arc<dyn CommitClient>> {
        self.client.get().and_then(Weak::upgrade)
    }

    /// Closes the running transaction, which no operation is part of, and makes it durable.
    fn commit_running(&self) -> Result<()> {
        let client = self.client();
        if let Some(client) = &client {
            let sequence = self.state.lock().running.sequence;
            let mut handle = Handle::closing(self, sequence);
            client.closing(&mut handle)?;
        }
        let closed = {
            let mut state = self.state.lock();
            if let Some(error) = &state.failure {
                return Err(error.clone());
            }
            let next = Transaction {
                sequence: state.running.sequence.next(),
                ..Transaction::default()
            };
            state.is_closing = false;
            std::mem::replace(&mut state.running, next)
        };
        self.changed.notify_all();
        self.write_home(&closed)?;
        if let Some(client) = &client {
            client.committed(&closed.freed);
        }
        self.state.lock().committed = closed.sequence;
        Ok(())
    }

    fn write_home(&self, closed: &Transaction) -> Result<()> {
        let device = self.buffers.device();
        // Data that the blocks name reaches the medium before them.
        device.flush()?;
        let block_bytes = u64::from(self.buffers.block_bytes());
        for (&block, buffer) in &closed.blocks {
            device.write_at(block.saturating_mul(block_bytes), buffer)?;
        }
        device.flush()?;
        for (&block, buffer) in &closed.blocks {
            self.buffers.written(block, buffer);
        }
        Ok(())
    }
}

impl std::fmt::Debug for Log {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let state = self.state.lock();
        out.debug_struct("Log")
            .field("running", &state.running.sequence)
            .field("committed", &state.committed)
            .field("failure", &state.failure)
            .finish_non_exhaustive()
    }
}
