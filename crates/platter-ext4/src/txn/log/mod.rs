//! Running transactions: what handles change together becomes durable together.
//!
//! A [`Handle`] is one operation's part in the running transaction. What it changes are versions of
//! metadata blocks in the buffer cache, so that a commit in flight keeps the versions it took while
//! later handles publish newer ones. A commit writes them to the journal, from where a checkpoint
//! checkpoints them; without a journal, it writes them in place itself.

mod transaction;
mod changed;
mod handle;
mod fs_device;
mod in_place;
mod commit;
mod ring;
mod record;
mod live;
mod journaled;
mod checkpoint;
mod single;
#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::{Arc, OnceLock, Weak};

use platter_cache::commit::{
    self as service, CommitCounters, CommitRequests, FullCommits, HeldHandle, TransactionId,
    Transactions,
};
use platter_cache::{Buffer, BufferCache};
use platter_ondisk::Verify;
use platter_vfs::{Clock, Condition, Error, Result};

use super::journal::Journal;
use crate::ondisk::jbd2::{Sequence, revoke};
use crate::ondisk::{BlockNr, Features};
use fs_device::FsDevice;
use journaled::Journaled;
use transaction::Transaction;

pub use handle::Handle;
pub use platter_cache::Edit;
pub use platter_cache::commit::CommitStatistics;
pub use single::{commit_whole, whole_blocks_max};

/// Blocks that a transaction may have however long the journal is: memory holds them all.
const TRANSACTION_BLOCKS_MAX: u32 = 8192;
/// ...and the part of the memory budget that they may take...
const TRANSACTION_MEMORY_PART: u64 = 4;
/// ...but for so many blocks, which every operation must have space in.
const TRANSACTION_BLOCKS_MIN: u32 = 512;

/// The part of a journal that a transaction may fill.
const TRANSACTION_PART: u32 = 4;

/// Callbacks of the allocator, called at each transaction.
pub trait CommitClient: Send + Sync {
    /// Adds the last changes, such as the superblock's counts, to a transaction that no operation
    /// is part of any more. Called for transactions with changes only.
    fn closing(&self, handle: &mut Handle<'_>) -> Result<()>;

    /// What a transaction freed may be used again: it is durable.
    fn committed(&self, freed: &[Range<BlockNr>]);

    /// Nothing is written any more because of `error`: the place to note it in the filesystem's
    /// superblock. Called once, with no lock held.
    fn failed(&self, error: &Error) {
        let _ = error;
    }
}

/// The transactions of a mounted filesystem.
///
/// # Invariants
/// - At most one transaction runs and at most one commits.
/// - After a failure nothing is written any more: every handle and commit gives `ReadOnly`.
pub struct Log {
    fs_device: Arc<FsDevice>,
    durability: Durability,
    transactions: Transactions<Transaction, Error>,
    client: OnceLock<Weak<dyn CommitClient>>,
    first_change: OnceLock<FirstChange>,
    counters: Arc<CommitCounters>,
}

platter_cache::layout!(
    /// Of the log.
    pub LAYOUT: Log {
        ReadOnly: fs_device, durability, counters;
        Rare: client, first_change;
        Apart: transactions;
    }
);

/// What is called when a transaction has its first change.
type FirstChange = Box<dyn Fn() + Send + Sync>;

/// How transactions become durable.
enum Durability {
    InPlace,
    Journal(Box<Journaled>),
}

impl Log {
    /// Transactions without a journal: a commit writes the blocks to their places.
    #[must_use]
    pub fn without_journal(buffers: Arc<BufferCache>) -> Self {
        let counters = Arc::new(CommitCounters::default());
        let fs_device = Arc::new(FsDevice::new(buffers, Arc::clone(&counters)));
        let first = Transaction::new(Sequence(1), usize::MAX);
        let blocks_max = memory_blocks_max(&fs_device);
        Self::new(fs_device, Durability::InPlace, first, blocks_max, counters)
    }

    /// Transactions that go through `journal`, which has nothing to replay, of a filesystem with
    /// these features. The journal gets the features it needs with its first transaction.
    ///
    /// The filesystem's superblock must ask for recovery durably before the first commit, and until
    /// [`close`](Self::close) has succeeded. An errno in the journal, from an earlier failure, is
    /// cleared with the first transaction.
    ///
    /// # Errors
    /// `Unsupported` for a feature of the journal that is not known, `Busy` while it has
    /// transactions to replay.
    pub fn with_journal(
        buffers: Arc<BufferCache>,
        journal: Journal,
        features: &Features,
        clock: Arc<dyn Clock>,
    ) -> Result<Self> {
        let counters = Arc::new(CommitCounters::default());
        let fs_device = Arc::new(FsDevice::new(buffers, Arc::clone(&counters)));
        let journaled = Journaled::new(
            Arc::clone(&fs_device),
            journal,
            features,
            clock,
            Arc::clone(&counters),
        )?;
        let blocks_max =
            (journaled.len_blocks() / TRANSACTION_PART).min(memory_blocks_max(&fs_device));
        let sequence = journaled.live.lock().next();
        let first = Transaction::new(sequence, revoke::records_max(journaled.format()));
        let durability = Durability::Journal(Box::new(journaled));
        Ok(Self::new(
            fs_device, durability, first, blocks_max, counters,
        ))
    }

    /// Lets a transaction fill three quarters of the journal, as far as memory may hold them: for callers
    /// that make only one, with no other thread making any.
    #[must_use]
    pub fn for_one_transaction(mut self) -> Self {
        if let Durability::Journal(journaled) = &self.durability {
            let most = only_blocks_max(journaled).min(memory_blocks_max(&self.fs_device));
            self.transactions.set_blocks_max(most);
        }
        self
    }

    /// Names what limits the [only transaction](Self::for_one_transaction), as in "does not fit into the
    /// journal".
    #[must_use]
    pub fn only_transaction_limit(&self) -> &'static str {
        let memory_max = memory_blocks_max(&self.fs_device);
        if let Durability::Journal(journaled) = &self.durability
            && only_blocks_max(journaled) <= memory_max
        {
            return "journal";
        }
        if memory_max == TRANSACTION_BLOCKS_MAX {
            return "largest transaction";
        }
        "memory budget"
    }

    fn new(
        fs_device: Arc<FsDevice>,
        durability: Durability,
        first: Transaction,
        blocks_max: u32,
        counters: Arc<CommitCounters>,
    ) -> Self {
        Self {
            fs_device,
            durability,
            transactions: Transactions::new(first, blocks_max, Condition::ReadOnly.into()),
            client: OnceLock::new(),
            first_change: OnceLock::new(),
            counters,
        }
    }

    /// Has `client` take part in every transaction from now on. Once only.
    pub fn attach(&self, client: Weak<dyn CommitClient>) {
        let first = self.client.set(client);
        debug_assert!(first.is_ok(), "a log has one client");
    }

    /// Has `call` called whenever a transaction gets its first change, in the thread that makes the change
    /// and with its locks held: `call` must not wait. Once only.
    pub fn on_first_change(&self, call: impl Fn() + Send + Sync + 'static) {
        let first = self.first_change.set(Box::new(call));
        debug_assert!(first.is_ok(), "a log has one such call");
    }

    /// A count that differs from an earlier one if handles were begun in between.
    #[must_use]
    pub fn handles_begun(&self) -> u32 {
        self.transactions.gate().begun()
    }

    /// Takes part in the running transaction with changes to at most `credits` blocks, waiting for
    /// space. The caller holds no lock that a commit or another handle may wait for, and no other
    /// handle.
    ///
    /// # Errors
    /// `ReadOnly` after a failure, and after the log was closed. `NoSpace` for more credits than a
    /// transaction can have blocks.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        HeldHandle::assert_none(self);
        let transaction = self.join(credits)?;
        Ok(Handle::new(self, transaction, credits))
    }

    /// A handle that leaves little space for the other ones of this thread.
    #[cfg(test)]
    pub(crate) fn begin_unheld(&self, credits: u32) -> Result<Handle<'_>> {
        let transaction = self.join(credits)?;
        Ok(Handle::unheld(self, transaction, credits))
    }

    /// Counts another handle with so many credits, and returns its transaction.
    fn join(&self, credits: u32) -> Result<Sequence> {
        if credits > self.transactions.blocks_max() {
            return Err(Condition::NoSpace.into());
        }
        self.transactions.begin(credits, |full| self.commit(full))
    }

    /// The most credits that a handle can have.
    #[must_use]
    pub fn credits_max(&self) -> u32 {
        self.transactions.blocks_max()
    }

    /// Adds a block that a handle changed and spent so many of its credits on.
    fn add(&self, block: u64, is_created: bool, spent: u32) {
        let is_first = self.transactions.change(spent, |running| {
            let is_first = running.blocks.is_empty();
            if is_created && !running.blocks.contains(&block) {
                running.created.insert(block);
            }
            running.change(block);
            is_first
        });
        if is_first && let Some(call) = self.first_change.get() {
            call();
        }
    }

    /// Takes blocks out of the running transaction, and revokes those that are in the log.
    fn forget(&self, blocks: Range<u64>) {
        self.transactions.change(0, |running| {
            let changed: Vec<u64> = running.blocks.range(blocks.clone()).copied().collect();
            for block in changed {
                running.forget(block);
            }
            if let Durability::Journal(journaled) = &self.durability {
                let copies = journaled.live.lock().copies(blocks);
                running.revoked.extend(copies);
            }
        });
    }

    /// The transaction that a handle begun now would be part of.
    #[must_use]
    pub fn running(&self) -> Sequence {
        self.transactions.running()
    }

    /// The last transaction that anything was done in.
    #[must_use]
    pub fn latest(&self) -> Sequence {
        self.transactions.latest()
    }

    /// The contents of the blocks of `range` that are newer than what the device holds. Readers of
    /// journaled data ask for them before reading the device, and let them prevail.
    #[must_use]
    pub fn uncheckpointed_data(&self, range: Range<BlockNr>) -> BTreeMap<u64, Buffer> {
        let range = range.start.0..range.end.0;
        let (mut newest, running) = self.transactions.inspect(|running| {
            let newest = match &self.durability {
                Durability::InPlace => BTreeMap::new(),
                Durability::Journal(journaled) => journaled.live.lock().newest(range.clone()),
            };
            let running: Vec<u64> = running.blocks.range(range).copied().collect();
            (newest, running)
        });
        // What is committed and checkpointed meanwhile is on the device.
        let current = |block| Some((block, self.fs_device.buffers.current(block)?));
        newest.extend(running.into_iter().filter_map(current));
        newest
    }

    /// Reads the newest version of a metadata block, which stays unchanged. `look` takes no lock that
    /// is not below that of the block.
    pub fn inspect<R>(
        &self,
        block: BlockNr,
        verifier: &dyn Verify,
        look: impl FnOnce(&Buffer) -> R,
    ) -> Result<R> {
        Ok(self.fs_device.buffers.inspect(block.0, verifier, look)?)
    }

    /// Whether transactions go through a journal.
    #[must_use]
    pub fn has_journal(&self) -> bool {
        matches!(self.durability, Durability::Journal(_))
    }

    /// Checkpoints what has been in the journal for long, and more when the journal fills up: for a
    /// thread that has the time, once a second or so. The commits that are due are not its business.
    pub fn maintain(&self) -> Result<()> {
        self.checkpoint_by(Journaled::maintain)
    }

    /// Checkpoints all that is committed.
    pub fn checkpoint_all(&self) -> Result<()> {
        self.checkpoint_by(Journaled::checkpoint_all)
    }

    /// Checkpoints everything durably, and marks the journal as empty. Nothing is begun any more.
    pub fn close(&self) -> Result<()> {
        self.transactions.refuse_handles();
        self.empty()
    }

    /// Has handles wait until they are [thawed](Self::thaw), checkpoints everything durably, and marks the journal
    /// as empty (`jbd2_journal_lock_updates`, `jbd2_journal_flush`). The caller has no handle.
    pub fn freeze(&self) -> Result<()> {
        HeldHandle::assert_none(self);
        self.transactions.freeze();
        self.empty()
    }

    /// Lets handles begin again.
    pub fn thaw(&self) {
        self.transactions.thaw();
    }

    fn empty(&self) -> Result<()> {
        self.commit_all()?;
        self.checkpoint_by(Journaled::empty)
    }

    fn checkpoint_by(&self, work: impl FnOnce(&Journaled) -> Result<()>) -> Result<()> {
        if let Some(error) = self.failure() {
            return Err(error);
        }
        let Durability::Journal(journaled) = &self.durability else {
            return Ok(());
        };
        work(journaled).inspect_err(|error| self.fail(error))
    }

    /// Ends all writing because of `error`: nothing that is not durable yet will be.
    pub fn abort(&self, error: &Error) {
        self.fail(error);
    }

    /// Ends all writing because of `error`, as [`abort`](Self::abort) does, and records nothing of it. A
    /// commit or a checkpoint that is under way still comes to its end.
    pub fn leave(&self, error: &Error) {
        self.transactions.stop(error);
    }

    /// Ends all writing as a power cut does: nothing that is not durable yet will be, and nothing is
    /// recorded of it. A commit that has all it needs still comes to its end before this returns.
    /// The caller has no handle.
    pub fn cut(&self) {
        HeldHandle::assert_none(self);
        self.transactions.stop(&Condition::ReadOnly.into());
        self.transactions.wait_for_commit();
    }

    /// Commits transactions that are full, until [`end_service`](Self::end_service): for a thread of
    /// its own, which has no handle and holds no lock.
    pub fn serve(&self) {
        service::serve(self);
    }

    /// Has [`serve`](Self::serve) return when it is done with its commit, now or as soon as it is
    /// called. From then on the handles that find a full transaction commit it.
    pub fn end_service(&self) {
        service::end(self);
    }

    /// Why nothing is written any more, if so.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.transactions.failure()
    }

    /// What it has cost so far.
    #[must_use]
    pub fn statistics(&self) -> CommitStatistics {
        self.counters.read()
    }

    fn has_failed(&self) -> bool {
        self.transactions.has_failed()
    }

    fn client(&self) -> Option<Arc<dyn CommitClient>> {
        self.client.get().and_then(Weak::upgrade)
    }
}

impl FullCommits for Log {
    fn requests(&self) -> &CommitRequests {
        self.transactions.requests()
    }

    fn commit_full(&self, full: TransactionId) {
        // Why it failed is kept for all callers.
        let _ = self.commit(full.into());
    }

    fn ended(&self) {
        self.transactions.commit_thread_ended();
    }
}

/// Blocks of a transaction that memory may hold.
/// Returns how many blocks an only transaction may have in this journal.
fn only_blocks_max(journaled: &Journaled) -> u32 {
    journaled.len_blocks() / TRANSACTION_PART * (TRANSACTION_PART - 1)
}

fn memory_blocks_max(fs_device: &FsDevice) -> u32 {
    let bytes = fs_device.buffers.budget().limit_bytes() / TRANSACTION_MEMORY_PART;
    let blocks = bytes / u64::from(fs_device.buffers.block_bytes());
    let blocks = u32::try_from(blocks).unwrap_or(u32::MAX);
    blocks.clamp(TRANSACTION_BLOCKS_MIN, TRANSACTION_BLOCKS_MAX)
}

impl std::fmt::Debug for Log {
    fn fmt(&self, out: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        out.debug_struct("Log")
            .field("transactions", &self.transactions)
            .finish_non_exhaustive()
    }
}
