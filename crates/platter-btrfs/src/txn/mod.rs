//! Transactions: trees that are changed by copy-on-write, delayed references, and commits.

mod placing;
mod stripes;
mod checksums;
pub(crate) mod trees;
mod extents;
mod simple_quotas;
mod free_space;
pub(crate) mod chunks;
mod refs;
mod cow;
pub(crate) mod quotas;
pub(crate) mod roots;
pub(crate) mod snapshots;
pub(crate) mod data_extents;
pub(crate) mod exclusive;
pub(crate) mod orphans;
pub(crate) mod delayed_inodes;
pub(crate) mod partly_dropped;
pub(crate) mod prune;
pub(crate) mod space;
pub(crate) mod held;
pub(crate) mod unused;
pub(crate) mod superblocks;
pub(crate) mod log_trees;
mod totals;
pub mod convert;
pub(crate) mod relocate;
mod commit;
pub(crate) mod trim;
pub(crate) mod devices;
pub(crate) mod restripe;
pub(crate) mod compact;
mod open;
#[cfg(test)]
pub(crate) mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};

use platter_block::lock::{Mutex, rank};
use platter_cache::commit::{RunningTransaction, TransactionId, TransactionNumber, Transactions};
use platter_vfs::{Clock, Condition, Error, Result};

use crate::block_group::{BlockGroupCounters, BlockGroups, Ranges};
use crate::context::FsContext;
#[cfg(feature = "bench")]
use crate::delayed_refs::IndexKind;
use crate::delayed_refs::{DelayedRefCounters, DelayedRefs, Heads};
use crate::ondisk::features::Incompat;
use crate::ondisk::item::ItemFormat;
use crate::ondisk::{Features, Generation, LogicalAddr, Superblock, TreeId};
use crate::qgroup::CountingLimits;
use crate::tree::edit::{EditCounts, TreeEditor};
use crate::tree::{TreeBlocks, Versions};

pub(crate) use chunks::Shape as ChunkShape;
pub use cow::Cow;
pub use data_extents::FileRange;
pub use exclusive::{InPlaceGate, InPlaceTurn, NoneInGroup, NoneInPlace};
pub use log_trees::{LogCow, LogEditor, LogTurn};
pub use placing::Placing;
pub use prune::PruneProgress;
pub use snapshots::Snapshot;
pub use totals::CommitTotals;
pub use trees::OpenTree;

/// A tree that is being changed in a transaction.
pub type Editor<'e, 'f> = TreeEditor<'e, Cow<'f>>;

use chunks::ChunkAllocator;
use convert::PlannedTrees;
use log_trees::Logs;
use orphans::DelayedOrphans;
use quotas::Quotas;
use relocate::Relocation;
use space::{Reservations, Urgency};
use stripes::StripedLocks;

/// The part of all devices that a chunk takes at most, as in the kernel.
const CHUNK_PARTS: u64 = 10;

/// How transactions are made.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct WriteOptions {
    /// Items of block groups that hold what they should are not written.
    pub skips_unchanged_groups: bool,
    /// The most tree blocks that a transaction changes.
    pub blocks_max: u32,
    /// The number of heads of delayed references from which on handles run some when they end.
    pub heads_max: usize,
    /// All changes are one transaction, which only a caller that asks for it commits: a transaction that is full, and
    /// space that is freed by a commit only, are `ENOSPC`. No data that the last commit has is overwritten.
    pub one_transaction: bool,
    /// `discard`: what a commit freed is discarded when it is durable.
    pub discards: bool,
    /// A new chunk takes at most this part of all devices. Smaller parts than a tenth leave less unused.
    pub chunk_parts: u64,
    /// How much of quota groups is counted.
    pub counting: CountingLimits,
    /// The index of the heads of delayed references.
    #[cfg(feature = "bench")]
    pub index: IndexKind,
}

impl WriteOptions {
    /// An empty index for the heads of delayed references.
    #[cfg(feature = "bench")]
    fn heads(&self) -> Heads {
        Heads::new(self.index)
    }

    /// An empty index for the heads of delayed references.
    #[cfg(not(feature = "bench"))]
    #[expect(clippy::unused_self, reason = "the index is chosen for benchmarks")]
    fn heads(&self) -> Heads {
        Heads::default()
    }

    /// For changes that are made together or not at all.
    pub const TOGETHER: Self = Self {
        skips_unchanged_groups: true,
        blocks_max: 32_768,
        heads_max: 16_384,
        one_transaction: true,
        discards: false,
        chunk_parts: CHUNK_PARTS,
        counting: CountingLimits::DEFAULT,
        #[cfg(feature = "bench")]
        index: IndexKind::Line,
    };
}

impl Default for WriteOptions {
    fn default() -> Self {
        Self {
            skips_unchanged_groups: true,
            blocks_max: 4096,
            heads_max: 16_384,
            one_transaction: false,
            discards: false,
            chunk_parts: CHUNK_PARTS,
            counting: CountingLimits::DEFAULT,
            #[cfg(feature = "bench")]
            index: IndexKind::Line,
        }
    }
}

/// What a commit did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct CommitReport {
    /// The transaction.
    pub generation: Generation,
    /// What the updates of block groups came to while handles went on.
    pub groups_before: BlockGroupCounters,
    /// What they came to while no handle could begin.
    pub groups: BlockGroupCounters,
    /// Heads that were run.
    pub heads_run: u64,
    /// Tree blocks that were written.
    pub blocks_written: u64,
    /// Requests that they took, copies not counted.
    pub requests: u64,
    /// The time when no handle could begin.
    pub critical_nanoseconds: u64,
    /// The time from then until it was durable, when handles of the next transaction could.
    pub unblocked_nanoseconds: u64,
    /// What was queued and run since the commit before.
    pub references: DelayedRefCounters,
    /// Leaves of the extent tree that were searched from its root, to be changed, since the commit before.
    pub extent_searches: u64,
    /// Tree blocks that were copied since the commit before.
    pub blocks_copied: u64,
    /// Inode items that operations changed since the commit before.
    pub inodes_recorded: u64,
    /// Changes of inode items in trees since the commit before.
    pub inode_items_written: u64,
    /// Searches of subvolumes that change them since the commit before.
    pub leaf_searches: u64,
    /// Changes of leaves of subvolumes since the commit before.
    pub leaf_changes: u64,
}

/// What is counted since the mount.
#[derive(Debug, Clone, Copy, Default)]
struct Counts {
    references: DelayedRefCounters,
    extent_searches: u64,
    blocks_copied: u64,
    inodes_recorded: u64,
    inode_items_written: u64,
    leaf_searches: u64,
    leaf_changes: u64,
}

/// The running transaction, as handles count it.
#[derive(Debug, Clone, Copy)]
struct Running {
    generation: Generation,
    blocks: u32,
    /// Those that changes of delayed inode items may copy.
    delayed_blocks: u32,
}

impl From<TransactionId> for Generation {
    fn from(id: TransactionId) -> Self {
        Self(id.0)
    }
}

impl From<Generation> for TransactionId {
    fn from(generation: Generation) -> Self {
        Self(generation.0)
    }
}

impl TransactionNumber for Generation {
    fn previous(self) -> Self {
        Self(self.0 - 1)
    }

    fn is_before(self, other: Self) -> bool {
        self < other
    }
}

impl RunningTransaction for Running {
    type Number = Generation;

    fn number(&self) -> Generation {
        self.generation
    }

    fn next(&self) -> Self {
        Self {
            generation: Generation(self.generation.0 + 1),
            blocks: 0,
            delayed_blocks: 0,
        }
    }

    fn is_empty(&self) -> bool {
        self.len_blocks() == 0
    }

    fn len_blocks(&self) -> u32 {
        self.blocks + self.delayed_blocks
    }
}

/// A filesystem that is written.
pub struct WriteContext {
    context: FsContext,
    /// The superblock of the last closed transaction, and what handles of the running one changed of it.
    superblock: Mutex<Superblock>,
    /// Features of the running transaction's superblock.
    features: Mutex<Features>,
    /// Open trees.
    trees: Mutex<BTreeMap<TreeId, Arc<OpenTree>>>,
    /// Snapshots that the running transaction makes when it is committed.
    snapshots: Mutex<Vec<Snapshot>>,
    /// The trees that the running transaction builds or removes when it is committed.
    planned: Mutex<PlannedTrees>,
    /// The extents that it moves when it is committed.
    relocation: Mutex<Relocation>,
    refs: DelayedRefs,
    groups: BlockGroups,
    chunks: ChunkAllocator,
    reservations: Reservations,
    /// Quota groups, if they are on.
    quotas: Option<Quotas>,
    /// Data that was allocated and has no item in the extent tree: it may be written.
    new_data: Mutex<Ranges, { rank(11, 0) }>,
    /// Held while the references of a block are counted that several trees may share.
    shared: StripedLocks,
    in_place: InPlaceGate,
    logs: Logs,
    orphans: DelayedOrphans,
    /// What was freed in the running transaction.
    pinned: Mutex<Ranges, { rank(11, 0) }>,
    /// The blocks of the running transaction.
    new_blocks: Mutex<BTreeSet<LogicalAddr>, { rank(11, 0) }>,
    transactions: Transactions<Running, Error>,
    options: WriteOptions,
    clock: Arc<dyn Clock>,
    /// Chunks are not moved any more: the mount ends.
    stops_moving: AtomicBool,
    /// Tree blocks that were copied, since the mount.
    copied: AtomicU64,
    /// Leaves of the extent tree that were searched from its root, to be changed, since the mount.
    extent_searches: AtomicU64,
    /// Inode items that operations changed, since the mount.
    inodes_recorded: AtomicU64,
    /// Changes of inode items in trees, since the mount.
    inode_items_written: AtomicU64,
    /// Searches of subvolumes that change them, since the mount.
    leaf_searches: AtomicU64,
    /// Changes of leaves of subvolumes, since the mount.
    leaf_changes: AtomicU64,
    /// What was counted up to the last closed transaction.
    reported: Mutex<Counts>,
    /// Updates of block groups of the running transaction before its commit.
    prepared: Mutex<BlockGroupCounters>,
    /// What the last commit did, and all since the mount.
    last_commit: Mutex<(CommitReport, CommitTotals)>,
}

/// A part of the running transaction: one operation of a thread.
#[derive(Debug)]
pub struct Handle<'f> {
    fs: &'f WriteContext,
    generation: Generation,
    credits: u32,
    reserved_bytes: AtomicU64,
    /// What is reserved for it in the quota groups of a subvolume: returned when it has ended.
    charge: Option<Charge<'f>>,
    /// Items were changed by it.
    has_changed: AtomicBool,
}

/// What is reserved in the quota groups of a subvolume, until it is dropped.
#[derive(Debug)]
pub struct Charge<'f> {
    fs: &'f WriteContext,
    tree: TreeId,
    bytes: u64,
}

impl WriteContext {
    /// Begins a handle that changes at most so many tree blocks, for which space is reserved. Waits while the
    /// transaction is full or is being closed.
    ///
    /// # Errors
    /// `ENOSPC`; that the filesystem is read-only after a failure; those of a commit.
    pub fn begin(&self, credits: u32) -> Result<Handle<'_>> {
        self.begin_with(credits, Urgency::Normal)
    }

    /// As [`begin`](Self::begin), for a handle whose blocks are those of a subvolume, within the limits of its quota
    /// groups.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin); `EDQUOT`.
    pub fn begin_charged(&self, tree: TreeId, credits: u32) -> Result<Handle<'_>> {
        let charge = self.charge(tree, credits)?;
        let mut handle = self.begin(credits)?;
        handle.charge = Some(charge);
        Ok(handle)
    }

    /// Reserves what a handle with so many credits takes of the quota groups of a subvolume.
    ///
    /// # Errors
    /// `EDQUOT`; those of a commit.
    pub fn charge(&self, tree: TreeId, credits: u32) -> Result<Charge<'_>> {
        let bytes = space::charged_of_credits(self, credits);
        quotas::reserve(self, tree, bytes, 0)?;
        Ok(Charge {
            fs: self,
            tree,
            bytes,
        })
    }

    /// Begins a handle that frees space: it may use some of what is kept for commits.
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin).
    pub fn begin_freeing(&self, credits: u32) -> Result<Handle<'_>> {
        self.begin_with(credits, Urgency::Freeing)
    }

    /// Reserves the space of a handle that will free space. Returns how much.
    ///
    /// # Errors
    /// `ENOSPC`.
    pub fn keep_for_freeing(&self, credits: u32) -> Result<u64> {
        let bytes = u64::from(credits.min(self.transactions.blocks_max())) * self.node_bytes();
        space::reserve_metadata(self, bytes, Urgency::Freeing)?;
        Ok(bytes)
    }

    /// Returns a reservation that was kept for a handle.
    pub fn release_kept(&self, bytes: u64) {
        self.reservations.release_metadata(bytes);
    }

    /// Begins the handle for which space was [kept](Self::keep_for_freeing).
    ///
    /// # Errors
    /// Those of [`begin`](Self::begin), but for `ENOSPC`.
    pub fn begin_kept(&self, credits: u32, bytes: u64) -> Result<Handle<'_>> {
        let begun = self.begin_unreserved(credits);
        let mut handle = begun.inspect_err(|_| self.reservations.release_metadata(bytes))?;
        handle.reserved_bytes = bytes.into();
        Ok(handle)
    }

    /// Begins the handle that replays a log. Nothing is reserved for it, so that it may use all that is free: a reservation
    /// may commit, and a commit drops the log. The transaction is not empty, whatever there is to replay.
    ///
    /// # Errors
    /// That the filesystem is read-only after a failure.
    pub(crate) fn begin_replay(&self) -> Result<Handle<'_>> {
        let handle = self.begin_unreserved(0)?;
        self.transactions.change(0, |running| running.blocks += 1);
        Ok(handle)
    }

    /// Begins a handle for which nothing is reserved.
    fn begin_unreserved(&self, credits: u32) -> Result<Handle<'_>> {
        let credits = credits.min(self.transactions.blocks_max());
        let commit = |generation| {
            if !self.options.one_transaction {
                return self.commit(generation);
            }
            // Changes of inodes that wait copy fewer blocks than are counted for them.
            if delayed_inodes::write_for_space(self)? {
                return Ok(());
            }
            Err(Condition::NoSpace.into())
        };
        let generation = self.transactions.begin(credits, commit)?;
        Ok(Handle {
            fs: self,
            generation,
            credits,
            reserved_bytes: AtomicU64::new(0),
            charge: None,
            has_changed: AtomicBool::new(false),
        })
    }

    fn begin_with(&self, credits: u32, urgency: Urgency) -> Result<Handle<'_>> {
        let most = credits.min(self.transactions.blocks_max());
        let reserved_bytes = u64::from(most) * self.node_bytes();
        space::reserve_metadata(self, reserved_bytes, urgency)?;
        let begun = self.begin_unreserved(credits);
        let mut handle =
            begun.inspect_err(|_| self.reservations.release_metadata(reserved_bytes))?;
        handle.reserved_bytes = reserved_bytes.into();
        Ok(handle)
    }

    /// The number of the transaction that runs.
    #[must_use]
    pub fn running(&self) -> Generation {
        self.transactions.running()
    }

    /// The last transaction that is durable.
    #[must_use]
    pub fn committed(&self) -> Generation {
        self.transactions.committed()
    }

    /// Leaves of the extent tree that were searched from its root, to be changed, since the mount.
    #[must_use]
    pub fn extent_searches(&self) -> u64 {
        self.extent_searches.load(Ordering::Relaxed)
    }

    /// The superblock of the last closed transaction, with what handles of the running one changed of it.
    #[must_use]
    pub fn superblock(&self) -> Superblock {
        self.superblock.lock().clone()
    }

    /// The features of the running transaction's superblock. Those of trees that its commit [changes](convert) are as
    /// they were.
    #[must_use]
    pub fn features(&self) -> Features {
        *self.features.lock()
    }

    /// How many devices the filesystem has after the running transaction.
    #[must_use]
    pub fn device_count(&self) -> u64 {
        self.superblock.lock().device_count
    }

    /// The tree blocks.
    #[must_use]
    pub fn blocks(&self) -> &TreeBlocks {
        &self.context.blocks
    }

    /// The filesystem below: what is read of trees that transactions change is what they are now.
    #[must_use]
    pub fn context(&self) -> &FsContext {
        &self.context
    }

    /// Ends all writing because of an error, unless that was done before.
    pub fn fail(&self, error: &Error) {
        self.abort(error);
    }

    /// Ends the move of a chunk that is in progress, and lets none begin.
    pub(crate) fn stop_moving(&self) {
        self.stops_moving.store(true, Ordering::Release);
    }

    /// Refuses to go on with a move.
    fn refuse_moving(&self) -> Result<()> {
        if self.stops_moving.load(Ordering::Acquire) {
            return Err(ended());
        }
        self.refuse_after_failure()
    }

    /// Ends all writing, and returns when no commit is in progress and no log is written. What was not committed is lost.
    pub fn end(&self) {
        self.abort(&ended());
        self.transactions.wait_for_commit();
        self.logs.wait();
    }

    /// The block groups.
    #[must_use]
    pub fn groups(&self) -> &BlockGroups {
        &self.groups
    }

    /// The delayed references of the running transaction.
    #[must_use]
    pub fn delayed_refs(&self) -> &DelayedRefs {
        &self.refs
    }

    /// What the last commit did.
    #[must_use]
    pub fn last_commit(&self) -> CommitReport {
        self.last_commit.lock().0
    }

    /// What the commits since the mount did.
    #[must_use]
    pub fn commit_totals(&self) -> CommitTotals {
        self.last_commit.lock().1
    }

    /// The most tree blocks that a transaction changes.
    #[must_use]
    pub fn blocks_max(&self) -> u32 {
        self.options.blocks_max
    }

    /// Whether all changes are one transaction.
    #[must_use]
    pub fn is_one_transaction(&self) -> bool {
        self.options.one_transaction
    }

    /// Why nothing is written any more.
    #[must_use]
    pub fn failure(&self) -> Option<Error> {
        self.transactions.failure()
    }

    /// Aborts the running transaction: nothing is written any more. On the devices, the filesystem is as after
    /// the last commit, or the one that is being written.
    fn abort(&self, error: &Error) {
        if self.transactions.stop(error) {
            // Space that was allocated is not used again, as no handle begins.
            drop(self.refs.abort());
        }
    }

    /// Changes a tree. An error aborts the transaction.
    fn edit<R>(
        &self,
        generation: Generation,
        id: TreeId,
        change: impl FnOnce(&mut TreeEditor<'_, Cow<'_>>) -> Result<R>,
    ) -> Result<R> {
        let tree = self.tree(id)?;
        self.edit_open(generation, (id, &tree), change)
    }

    /// [Changes](Self::edit) a tree that the caller has found.
    fn edit_open<R>(
        &self,
        generation: Generation,
        (id, tree): (TreeId, &OpenTree),
        change: impl FnOnce(&mut TreeEditor<'_, Cow<'_>>) -> Result<R>,
    ) -> Result<R> {
        let mut state = tree.lock();
        let Versions {
            now,
            recent,
            delayed,
            ..
        } = &mut *state;
        let cow = Cow::new(self, generation);
        let before = (std::mem::take(recent), &mut *delayed);
        let mut editor = TreeEditor::going_on(&self.context.blocks, &cow, now, before);
        let result = change(&mut editor);
        let EditCounts {
            searches,
            leaf_changes,
        } = editor.counts();
        if id.is_subvolume() {
            self.leaf_searches.fetch_add(searches, Ordering::Relaxed);
            self.leaf_changes.fetch_add(leaf_changes, Ordering::Relaxed);
        } else if id == TreeId::EXTENT {
            self.extent_searches.fetch_add(searches, Ordering::Relaxed);
        }
        if result.is_ok() {
            *recent = editor.into_recent();
        }
        delayed_inodes::release(self, delayed.take_released());
        result
    }

    /// Returns when `transaction` and all before it are durable. The caller has no handle.
    ///
    /// # Errors
    /// Why the commit failed: nothing is written any more.
    pub fn commit(&self, transaction: Generation) -> Result<()> {
        if transaction == self.running() {
            commit::prepare(self, transaction)?;
        }
        let now = || self.clock.monotonic();
        self.transactions.commit(transaction, Some(&now), || {
            commit::write(self).inspect_err(|error| self.abort(error))
        })
    }

    /// Makes durable all that was done, unless all is [one transaction](WriteOptions::one_transaction).
    pub fn sync(&self) -> Result<()> {
        if self.options.one_transaction {
            return self.transactions.failure().map_or(Ok(()), Err);
        }
        self.sync_all()
    }

    /// Makes durable all that was done.
    pub fn sync_all(&self) -> Result<()> {
        self.commit(self.transactions.latest())
    }

    /// Returns when the last transaction in which data moved is durable. The caller has no handle.
    ///
    /// # Errors
    /// Why it is not: nothing is written any more.
    pub(crate) fn wait_for_moves(&self) -> Result<()> {
        let moved_in = self.context.reads.moved_in();
        self.transactions.wait_until_durable(moved_in)
    }

    /// Has handles wait until they are [thawed](Self::thaw), and makes durable all that was done. The caller has no
    /// handle.
    pub fn freeze(&self) -> Result<()> {
        self.transactions.freeze();
        self.sync_all()
    }

    /// Lets handles begin again.
    pub fn thaw(&self) {
        self.transactions.thaw();
    }

    /// Returns the error of a failure, after which nothing is written.
    fn refuse_after_failure(&self) -> Result<()> {
        self.transactions.failure().map_or(Ok(()), Err)
    }

    /// What the rules of items depend on.
    fn item_format(&self) -> ItemFormat {
        ItemFormat {
            sector_bytes: self.context.superblock.sector_bytes,
            checksum_kind: self.context.superblock.checksum_kind,
        }
    }

    /// A tree, which is opened if it is not.
    fn tree(&self, id: TreeId) -> Result<Arc<OpenTree>> {
        trees::lookup(self, id)
    }

    /// What keeps snapshots and writing in place apart.
    #[must_use]
    pub fn in_place(&self) -> &InPlaceGate {
        &self.in_place
    }

    /// Bytes of a tree block.
    fn node_bytes(&self) -> u64 {
        self.context.superblock.node_bytes.into()
    }

    fn copied(&self) -> u64 {
        self.copied.load(Ordering::Relaxed)
    }
}

impl Handle<'_> {
    /// The transaction.
    #[must_use]
    pub fn generation(&self) -> Generation {
        self.generation
    }

    /// The filesystem.
    #[must_use]
    pub(crate) fn fs(&self) -> &WriteContext {
        self.fs
    }

    /// Whether holes of files have no items.
    #[must_use]
    pub fn leaves_holes(&self) -> bool {
        self.has_feature(Incompat::NO_HOLES)
    }

    /// Whether references of inodes that do not fit in one item go to extended ones.
    #[must_use]
    pub fn has_extended_refs(&self) -> bool {
        self.has_feature(Incompat::EXTENDED_IREF)
    }

    fn has_feature(&self, feature: Incompat) -> bool {
        self.fs.features().incompat.contains(feature)
    }

    /// The size of a sector.
    #[must_use]
    pub fn sector_bytes(&self) -> u32 {
        self.fs.context.superblock.sector_bytes
    }

    /// Adds a feature to the superblock of this transaction.
    pub fn add_feature(&self, feature: Incompat) {
        self.fs.features.lock().incompat |= feature;
    }

    /// Changes a tree.
    ///
    /// # Errors
    /// Those of `change`. Where it had begun to change items, the transaction is aborted: part of it may have
    /// been done.
    pub fn edit<R>(
        &self,
        id: TreeId,
        change: impl FnOnce(&mut Editor<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        if !id.is_subvolume() && id != TreeId::CSUM {
            self.require_commit();
        }
        let mut has_begun = false;
        let result = self.fs.edit(self.generation, id, |editor| {
            let result = change(editor);
            has_begun = editor.has_begun();
            result
        });
        if has_begun {
            self.has_changed.store(true, Ordering::Relaxed);
        }
        if let Err(error) = &result
            && has_begun
        {
            self.fs.abort(error);
        }
        result
    }

    /// Returns when all transactions before this one are durable.
    ///
    /// # Errors
    /// Why they are not: nothing is written any more.
    pub fn wait_for_earlier(&self) -> Result<()> {
        let earlier = self.generation.previous();
        self.fs.transactions.wait_until_durable(earlier)
    }

    /// Says that what this handle does is made durable by a commit alone.
    pub fn require_commit(&self) {
        self.fs.logs.require_commit(self.generation);
    }

    /// Makes several changes that belong together.
    ///
    /// # Errors
    /// Those of `change`. Where items were changed before, the transaction is aborted.
    pub fn whole<R>(&self, change: impl FnOnce(&Self) -> Result<R>) -> Result<R> {
        let result = change(self);
        if let Err(error) = &result
            && self.has_changed.load(Ordering::Relaxed)
        {
            self.fs.abort(error);
        }
        result
    }

    /// Runs delayed references, if there are many.
    fn throttle(&self) {
        if self.fs.refs.len() > self.fs.options.heads_max
            && let Err(error) = refs::run(self.fs, self.generation, self.fs.options.heads_max / 4)
        {
            self.fs.abort(&error);
        }
    }
}

impl Drop for Handle<'_> {
    fn drop(&mut self) {
        self.throttle();
        self.fs.transactions.end(self.credits);
        let reserved = *self.reserved_bytes.get_mut();
        self.fs.reservations.release_metadata(reserved);
    }
}

impl Drop for Charge<'_> {
    fn drop(&mut self) {
        quotas::release(self.fs, self.tree, self.bytes);
    }
}

impl fmt::Debug for WriteContext {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("WriteContext")
            .field("context", &self.context)
            .field("running", &self.running())
            .field("quotas", &self.quotas)
            .finish_non_exhaustive()
    }
}

/// The error of a filesystem that is read-only after a failure.
fn ended() -> Error {
    Condition::ReadOnly.into()
}
