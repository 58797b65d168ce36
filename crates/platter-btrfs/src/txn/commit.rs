//! Commits.

use std::sync::Arc;
use std::time::Duration;

use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus, Rule};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::{CommitReport, WriteContext};
use crate::block_group::{BlockGroup, BlockGroupCounters, Insertion, PendingItem, Update};
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr};

/// The rules of a commit.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub(super) enum CommitRule {
    /// Each block of the transaction is in memory until it is written.
    Block,
}

impl Rule for CommitRule {
    const STRUCTURE: &'static str = "transaction";

    fn text(self) -> &'static str {
        match self {
            Self::Block => "tree block of the transaction is not in memory",
        }
    }
}

/// Blocks that are written in one call.
const WRITE_BLOCKS_MAX: usize = 512;

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

    /// Makes durable all that was done.
    pub fn sync(&self) -> Result<()> {
        self.commit(self.transactions.latest())
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
        self.transactions.end(0);
        prepared.inspect_err(|error| self.abort(error))
    }

    /// Commits the running transaction, of which no handle is open.
    fn write_commit(&self) -> Result<()> {
        let begin = self.clock.monotonic();
        let generation = self.running();
        let mut report = CommitReport {
            generation,
            groups_before: std::mem::take(&mut *self.prepared.lock()),
            ..CommitReport::default()
        };
        self.settle_trees(generation, &mut report)?;
        let blocks = self.settle_blocks()?;
        report.blocks_written = blocks.len() as u64;
        for run in blocks.chunks(WRITE_BLOCKS_MAX) {
            report.requests += self.blocks().write(run)? as u64;
        }
        drop(blocks);
        self.write_superblocks(generation)?;
        let open: Vec<_> = self.trees.lock().values().map(Arc::clone).collect();
        for tree in open {
            tree.set_committed();
        }
        let pinned = std::mem::take(&mut *self.pinned.lock());
        for range in pinned.iter() {
            self.groups.unpin(&range)?;
        }
        let took = self.clock.monotonic().saturating_sub(begin);
        report.critical_nanoseconds = nanoseconds(took);
        *self.last_commit.lock() = report;
        let closed = self.transactions.close_running(|running| running)?;
        self.transactions.set_committed(generation, &closed, took);
        Ok(())
    }

    /// Runs references, stores roots and updates items of block groups until nothing is left to do.
    fn settle_trees(&self, generation: Generation, report: &mut CommitReport) -> Result<()> {
        loop {
            report.heads_run += self.run_refs(generation, usize::MAX)? as u64;
            if !self.refs.is_empty() {
                // A walk is in progress that began before some of them.
                self.refs.wait_for_walks();
            }
            let stored = self.store_roots(generation)?;
            let is_clean = !self.groups.is_dirty();
            if stored == 0 && is_clean && self.refs.is_empty() {
                return Ok(());
            }
            self.update_groups(generation, &mut report.groups)?;
        }
    }

    /// Brings the items of block groups up to date, with the references that this queues, until no group is
    /// dirty.
    fn update_groups(
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
            for group in dirty {
                counters.dirty += 1;
                let updated = self.update_group(generation, &group, counters);
                updated.inspect_err(|_| self.groups.mark_dirty(&group))?;
            }
            self.run_refs(generation, usize::MAX)?;
        }
        counters.blocks_copied += self.copied() - copied;
        counters.refs_created += refs(self) - queued;
        let took = self.clock.monotonic().saturating_sub(begin);
        counters.nanoseconds += nanoseconds(took);
        Ok(())
    }

    fn update_group(
        &self,
        generation: Generation,
        group: &BlockGroup,
        counters: &mut BlockGroupCounters,
    ) -> Result<()> {
        match group.begin_update(self.options.skips_unchanged_groups) {
            Update::Unchanged => counters.skipped += 1,
            Update::Write(pending) => {
                self.write_group(generation, pending, false)?;
                counters.written += 1;
            }
            Update::Absent => {
                if let Insertion::Insert(pending) = group.begin_insertion() {
                    self.write_group(generation, pending, true)?;
                    counters.inserted += 1;
                }
            }
        }
        Ok(())
    }

    fn write_group(
        &self,
        generation: Generation,
        pending: PendingItem<'_>,
        is_new: bool,
    ) -> Result<()> {
        let item = *pending.item();
        let key = Key::new(item.start.0, ItemKind::BLOCK_GROUP_ITEM, item.len_bytes);
        let disk = item.encode();
        self.edit(generation, self.group_tree(), |editor| {
            if is_new {
                return editor.insert(key, disk.as_bytes());
            }
            let is_written = editor.edit(key, |data| {
                let fits = data.len() == size_of_val(&disk);
                if fits {
                    data.copy_from_slice(disk.as_bytes());
                }
                fits
            })?;
            if is_written {
                return Ok(());
            }
            editor.set(key, disk.as_bytes())
        })?;
        pending.done();
        Ok(())
    }

    /// The versions of the transaction's blocks that are written, in order of address.
    fn settle_blocks(&self) -> Result<Vec<(LogicalAddr, Buffer)>> {
        let new_blocks = std::mem::take(&mut *self.new_blocks.lock());
        let mut settled = Vec::with_capacity(new_blocks.len());
        for logical in new_blocks {
            let missing = || Corrupt::new(Locus::block(logical.0), CommitRule::Block);
            let buffer = self.blocks().settle(logical)?;
            settled.push((logical, buffer.ok_or_else(missing)?));
        }
        Ok(settled)
    }
}

fn nanoseconds(took: Duration) -> u64 {
    u64::try_from(took.as_nanos()).unwrap_or(u64::MAX)
}
