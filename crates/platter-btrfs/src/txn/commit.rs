//! Commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::{CommitReport, Cow, WriteContext};
use crate::block_group::{BlockGroup, BlockGroupCounters, Insertion, PendingItem, Update};
use crate::context::TreesRule;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::edit::TreeEditor;

rules! {
    /// The rules of a commit.
    pub(super) enum CommitRule of "transaction" {
        /// Each block of the transaction is in memory until it is written.
        Block => "tree block of the transaction is not in memory",
    }
}

/// Blocks that are written in one call.
pub(super) const WRITE_BLOCKS_MAX: usize = 512;

impl WriteContext {
    /// Returns when `transaction` and all before it are durable. The caller has no handle.
    ///
    /// # Errors
    /// Why the commit failed: nothing is written any more.
    pub fn commit(&self, transaction: Generation) -> Result<()> {
        if transaction == self.running() {
            self.prepare(transaction)?;
        }
        let now = || self.clock.monotonic();
        self.transactions.commit(transaction, Some(&now), || {
            self.write_commit().inspect_err(|error| self.abort(error))
        })
    }

    /// Makes durable all that was done, unless all is [one transaction](super::WriteOptions::one_transaction).
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

    /// Does what can be done while handles go on.
    fn prepare(&self, generation: Generation) -> Result<()> {
        // As a handle, so that the transaction stays the running one; even if it is full.
        let entered = self.transactions.gate().enter(0, u32::MAX);
        let Some(entered) = entered else {
            return Ok(());
        };
        let mut prepared = Ok(());
        if Generation::from(entered) == generation {
            let mut counters = BlockGroupCounters::default();
            prepared = self
                .run_refs(generation, usize::MAX)
                .and_then(|_| self.update_groups(generation, &mut counters));
            *self.prepared.lock() += counters;
        }
        // Before the handle ends: a commit that waits for it must not write what was done by half.
        let prepared = prepared.inspect_err(|error| self.abort(error));
        self.transactions.end(0);
        prepared
    }

    /// Commits the running transaction, of which no handle is open.
    fn write_commit(&self) -> Result<()> {
        // A handle may have failed while the commit waited for it.
        self.refuse_after_failure()?;
        let begin = self.clock.monotonic();
        let generation = self.running();
        let mut report = CommitReport {
            generation,
            groups_before: std::mem::take(&mut *self.prepared.lock()),
            ..CommitReport::default()
        };
        self.count_quotas(generation, &mut report)?;
        self.take_snapshots(generation, &mut report)?;
        self.store_quotas(generation)?;
        self.finish_trees(generation, &mut report)?;
        let blocks = self.finish_blocks()?;
        report.blocks_written = blocks.len() as u64;
        for run in blocks.chunks(WRITE_BLOCKS_MAX) {
            report.requests += self.blocks().write(run)? as u64;
        }
        drop(blocks);
        self.refuse_after_failure()?;
        self.write_superblocks(generation)?;
        let open: Vec<_> = self.trees.lock().values().map(Arc::clone).collect();
        for tree in open {
            tree.set_committed();
        }
        let pinned = std::mem::take(&mut *self.pinned.lock());
        for range in pinned.iter() {
            self.groups.unpin(&range)?;
        }
        self.drop_logs()?;
        self.chunks.set_committed();
        self.count_global_reserve()?;
        let took = self.clock.monotonic().saturating_sub(begin);
        report.critical_nanoseconds = nanoseconds(took);
        self.report_counts(&mut report);
        *self.last_commit.lock() = report;
        let closed = self.transactions.close_running(|running| running)?;
        self.transactions.set_committed(generation, &closed, took);
        Ok(())
    }

    /// Reports what was counted since the last commit.
    fn report_counts(&self, report: &mut CommitReport) {
        let searches = self.extent_searches.load(Ordering::Relaxed);
        let now = (self.refs.counters(), searches, self.copied());
        let before = std::mem::replace(&mut *self.reported.lock(), now);
        report.references = now.0.since(&before.0);
        report.extent_searches = now.1 - before.1;
        report.blocks_copied = now.2 - before.2;
    }

    /// Returns the error of a failure, after which nothing is written.
    pub(super) fn refuse_after_failure(&self) -> Result<()> {
        self.transactions.failure().map_or(Ok(()), Err)
    }

    /// Runs references, stores roots and updates items of block groups until nothing is left to do.
    fn finish_trees(&self, generation: Generation, report: &mut CommitReport) -> Result<()> {
        loop {
            self.create_groups(generation)?;
            report.heads_run += self.run_refs(generation, usize::MAX)? as u64;
            if !self.refs.is_empty() {
                // A walk is in progress that began before some of them.
                self.refs.wait_for_walks();
            }
            let stored = self.store_roots(generation)?;
            let is_clean = !self.groups.is_dirty() && !self.has_uncreated_groups();
            if stored == 0 && is_clean && self.refs.is_empty() {
                if self.has_own_root(generation)? {
                    return Ok(());
                }
                self.touch_root(generation)?;
            }
            self.update_groups(generation, &mut report.groups)?;
        }
    }

    /// Whether the root of the tree of roots is of this transaction: superblocks lead to one of their own generation.
    fn has_own_root(&self, generation: Generation) -> Result<bool> {
        let root = self.tree(TreeId::ROOT)?.view().now.tree.root;
        Ok(root.generation == generation)
    }

    /// Copies the root of the tree of roots where handles changed nothing.
    fn touch_root(&self, generation: Generation) -> Result<()> {
        let missing = || Corrupt::new(Locus::tree(TreeId::EXTENT.0), TreesRule::MissingTree);
        let item = self.tree(TreeId::EXTENT)?.item_key().ok_or_else(missing)?;
        self.edit(generation, TreeId::ROOT, |editor| editor.edit(item, |_| ()))
    }

    /// Brings the items of block groups up to date, with the references that this queues, until no group is
    /// dirty.
    pub(super) fn update_groups(
        &self,
        generation: Generation,
        counters: &mut BlockGroupCounters,
    ) -> Result<()> {
        let begin = self.clock.monotonic();
        let copied = self.copied();
        let refs = |context: &Self| {
            let counters = context.refs.counters();
            counters.refs + counters.merged_refs + counters.cancelled
        };
        let queued = refs(self);
        loop {
            let dirty = self.groups.take_dirty();
            if dirty.is_empty() {
                break;
            }
            counters.rounds += 1;
            let mut dirty = dirty.into_iter();
            while let Some(group) = dirty.next() {
                counters.dirty += 1;
                if let Err(error) = self.update_group(generation, &group, counters) {
                    self.groups.mark_dirty(&group);
                    dirty.for_each(|group| self.groups.mark_dirty(&group));
                    return Err(error);
                }
            }
            self.run_refs(generation, usize::MAX)?;
        }
        counters.blocks_copied += self.copied() - copied;
        counters.refs_created += refs(self) - queued;
        let took = self.clock.monotonic().saturating_sub(begin);
        counters.nanoseconds += nanoseconds(took);
        Ok(())
    }

    /// Brings the item of a group up to date. What it is to hold is compared with the tree locked: of two
    /// threads, the later one writes the later value.
    pub(super) fn update_group(
        &self,
        generation: Generation,
        group: &BlockGroup,
        counters: &mut BlockGroupCounters,
    ) -> Result<()> {
        self.edit(generation, self.group_tree(), |editor| {
            match group.begin_update(self.options.skips_unchanged_groups) {
                Update::Unchanged => counters.skipped += 1,
                Update::Write(pending) => {
                    write_group(editor, pending, false)?;
                    counters.written += 1;
                }
                Update::Absent => {
                    if let Insertion::Insert(pending) = group.begin_insertion() {
                        write_group(editor, pending, true)?;
                        counters.inserted += 1;
                    }
                }
            }
            Ok(())
        })
    }

    /// The versions of the transaction's blocks that are written, in order of address.
    fn finish_blocks(&self) -> Result<Vec<(LogicalAddr, Buffer)>> {
        let new_blocks = std::mem::take(&mut *self.new_blocks.lock());
        let mut finished = Vec::with_capacity(new_blocks.len());
        for logical in new_blocks {
            let missing = || Corrupt::new(Locus::block(logical.0), CommitRule::Block);
            let buffer = self.blocks().finish(logical)?;
            finished.push((logical, buffer.ok_or_else(missing)?));
        }
        Ok(finished)
    }
}

/// Writes the item of a block group, which is in the tree or not.
fn write_group(
    editor: &mut TreeEditor<'_, Cow<'_>>,
    pending: PendingItem<'_>,
    is_new: bool,
) -> Result<()> {
    let item = *pending.item();
    let key = Key::new(item.start.0, ItemKind::BLOCK_GROUP_ITEM, item.len_bytes);
    let disk = item.encode();
    if is_new {
        editor.insert(key, disk.as_bytes())?;
    } else {
        let is_written = editor.edit(key, |data| {
            let fits = data.len() == size_of_val(&disk);
            if fits {
                data.copy_from_slice(disk.as_bytes());
            }
            fits
        })?;
        if !is_written {
            editor.set(key, disk.as_bytes())?;
        }
    }
    pending.done();
    Ok(())
}

fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
