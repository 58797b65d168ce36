//! Commits.

use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

use platter_cache::Buffer;
use platter_cache::commit::ClosedTransaction;
use platter_ondisk::{Corrupt, Locus, rules};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::superblocks::ClosedSuperblock;
use super::{
    CommitReport, Counts, Editor, WriteContext, chunks, convert, delayed_inodes, log_trees,
    orphans, quotas, refs, relocate, snapshots, space, superblocks, trees,
};
use crate::block_group::{BlockGroup, BlockGroupCounters, Insertion, PendingItem, Ranges, Update};
use crate::chunk::discard;
use crate::context::TreesRule;
use crate::ondisk::key::ItemKind;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};

rules! {
    /// The rules of a commit.
    pub(super) enum CommitRule of "transaction" {
        /// Each block of the transaction is in memory until it is written.
        Block => "tree block of the transaction is not in memory",
    }
}

/// A transaction that takes no handle any more, and that nothing changes.
struct ClosedCommit {
    generation: Generation,
    /// Its tree blocks, in order of address.
    blocks: Vec<(LogicalAddr, Buffer)>,
    superblock: ClosedSuperblock,
    /// What it freed, and the transaction before has.
    pinned: Ranges,
    closed: ClosedTransaction<()>,
}

/// Blocks that are written in one call.
pub(super) const WRITE_BLOCKS_MAX: usize = 512;

/// Does what can be done while handles go on.
pub(super) fn prepare(fs: &WriteContext, generation: Generation) -> Result<()> {
    // As a handle, so that the transaction stays the running one; even if it is full.
    let entered = fs.transactions.gate().enter(0, u32::MAX);
    let Some(entered) = entered else {
        return Ok(());
    };
    let mut prepared = Ok(());
    if Generation::from(entered) == generation {
        let mut counters = BlockGroupCounters::default();
        prepared = delayed_inodes::write_all(fs, generation)
            .and_then(|()| refs::run(fs, generation, usize::MAX))
            .and_then(|_| update_groups(fs, generation, &mut counters));
        *fs.prepared.lock() += counters;
    }
    // Before the handle ends: a commit that waits for it must not write what was done by half.
    let prepared = prepared.inspect_err(|error| fs.abort(error));
    fs.transactions.end(0);
    prepared
}

/// Commits the running transaction, of which no handle is open. Handles of the next one begin when nothing of this
/// one changes any more, while it is written.
pub(super) fn write(fs: &WriteContext) -> Result<()> {
    // A handle may have failed while the commit waited for it.
    fs.refuse_after_failure()?;
    let begin = fs.clock.monotonic();
    let (commit, mut report) = close(fs)?;
    let critical = fs.clock.monotonic().saturating_sub(begin);
    report.critical_nanoseconds = nanoseconds(critical);
    for run in commit.blocks.chunks(WRITE_BLOCKS_MAX) {
        report.requests += fs.blocks().write(run)? as u64;
    }
    drop(commit.blocks);
    fs.refuse_after_failure()?;
    superblocks::write_all(fs, &commit.superblock)?;
    for range in commit.pinned.iter() {
        fs.groups.unpin_with(&range, &|freed| {
            if fs.options.discards {
                // That it is not discarded does no harm.
                let _ = discard(fs.blocks().store(), freed);
            }
        })?;
    }
    log_trees::drop_all(fs)?;
    fs.chunks.set_committed();
    let took = fs.clock.monotonic().saturating_sub(begin);
    report.unblocked_nanoseconds = nanoseconds(took.saturating_sub(critical));
    let mut last = fs.last_commit.lock();
    last.0 = report;
    last.1.add(&report);
    drop(last);
    let (generation, closed) = (commit.generation, commit.closed);
    fs.transactions.set_committed(generation, &closed, took);
    Ok(())
}

/// Brings the trees of the running transaction to their end, and lets the next one run.
fn close(fs: &WriteContext) -> Result<(ClosedCommit, CommitReport)> {
    let generation = fs.running();
    let mut report = CommitReport {
        generation,
        groups_before: std::mem::take(&mut *fs.prepared.lock()),
        ..CommitReport::default()
    };
    delayed_inodes::write_all(fs, generation)?;
    orphans::insert_all(fs, generation)?;
    quotas::count(fs, generation, &mut report)?;
    let has_snapshots = snapshots::are_pending(fs);
    snapshots::create_pending(fs, generation, &mut report)?;
    quotas::store(fs, generation, &mut report)?;
    convert::change_trees(fs, generation)?;
    // What a snapshot shares from now on is of this transaction as well.
    relocate::apply(fs, generation, !has_snapshots)?;
    finish_trees(fs, generation, &mut report)?;
    let blocks = finish_blocks(fs)?;
    report.blocks_written = blocks.len() as u64;
    let superblock = superblocks::close(fs, generation)?;
    let open: Vec<_> = fs.trees.lock().values().map(Arc::clone).collect();
    for tree in open {
        tree.switch_commit_root();
    }
    let pinned = std::mem::take(&mut *fs.pinned.lock());
    fs.chunks.close();
    space::count_global_reserve(fs)?;
    report_counts(fs, &mut report);
    let commit = ClosedCommit {
        generation,
        blocks,
        superblock,
        pinned,
        closed: fs.transactions.close_running(|_| ())?,
    };
    Ok((commit, report))
}

/// Reports what was counted since the last commit.
fn report_counts(fs: &WriteContext, report: &mut CommitReport) {
    let now = Counts {
        references: fs.refs.counters(),
        extent_searches: fs.extent_searches(),
        blocks_copied: fs.copied(),
        inodes_recorded: fs.inodes_recorded.load(Ordering::Relaxed),
        inode_items_written: fs.inode_items_written.load(Ordering::Relaxed),
        leaf_searches: fs.leaf_searches.load(Ordering::Relaxed),
        leaf_changes: fs.leaf_changes.load(Ordering::Relaxed),
    };
    let before = std::mem::replace(&mut *fs.reported.lock(), now);
    report.references = now.references.since(&before.references);
    report.extent_searches = now.extent_searches - before.extent_searches;
    report.blocks_copied = now.blocks_copied - before.blocks_copied;
    report.inodes_recorded = now.inodes_recorded - before.inodes_recorded;
    report.inode_items_written = now.inode_items_written - before.inode_items_written;
    report.leaf_searches = now.leaf_searches - before.leaf_searches;
    report.leaf_changes = now.leaf_changes - before.leaf_changes;
}

/// Runs references, stores roots and updates items of block groups until nothing is left to do.
fn finish_trees(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    loop {
        chunks::create_pending(fs, generation)?;
        report.heads_run += refs::run(fs, generation, usize::MAX)? as u64;
        if !fs.refs.is_empty() {
            // A walk is in progress that began before some of them.
            fs.refs.wait_for_walks();
        }
        let stored = trees::store_roots(fs, generation)?;
        let is_clean = !fs.groups.is_dirty() && !fs.chunks.has_uncreated();
        if stored == 0 && is_clean && fs.refs.is_empty() {
            if has_own_root(fs, generation)? {
                return Ok(());
            }
            touch_root(fs, generation)?;
        }
        update_groups(fs, generation, &mut report.groups)?;
    }
}

/// Whether the root of the tree of roots is of this transaction: superblocks lead to one of their own generation.
fn has_own_root(fs: &WriteContext, generation: Generation) -> Result<bool> {
    let root = fs.tree(TreeId::ROOT)?.view().now.tree.root;
    Ok(root.generation == generation)
}

/// Copies the root of the tree of roots where handles changed nothing.
fn touch_root(fs: &WriteContext, generation: Generation) -> Result<()> {
    let missing = || Corrupt::new(Locus::tree(TreeId::EXTENT.0), TreesRule::MissingTree);
    let item = fs.tree(TreeId::EXTENT)?.item_key().ok_or_else(missing)?;
    fs.edit(generation, TreeId::ROOT, |editor| editor.edit(item, |_| ()))
}

/// Brings the items of block groups up to date, with the references that this queues, until no group is
/// dirty.
pub(super) fn update_groups(
    fs: &WriteContext,
    generation: Generation,
    counters: &mut BlockGroupCounters,
) -> Result<()> {
    let begin = fs.clock.monotonic();
    let copied = fs.copied();
    let created = || {
        let counters = fs.refs.counters();
        counters.refs + counters.merged_refs + counters.cancelled
    };
    let queued = created();
    loop {
        let dirty = fs.groups.take_dirty();
        if dirty.is_empty() {
            break;
        }
        counters.rounds += 1;
        let mut dirty = dirty.into_iter();
        while let Some(group) = dirty.next() {
            counters.dirty += 1;
            if let Err(error) = update_group(fs, generation, &group, counters) {
                fs.groups.mark_dirty(&group);
                dirty.for_each(|group| fs.groups.mark_dirty(&group));
                return Err(error);
            }
        }
        refs::run(fs, generation, usize::MAX)?;
    }
    counters.blocks_copied += fs.copied() - copied;
    counters.refs_created += created() - queued;
    let took = fs.clock.monotonic().saturating_sub(begin);
    counters.nanoseconds += nanoseconds(took);
    Ok(())
}

/// Brings the item of a group up to date. What it is to hold is compared with the tree locked: of two
/// threads, the later one writes the later value.
pub(super) fn update_group(
    fs: &WriteContext,
    generation: Generation,
    group: &BlockGroup,
    counters: &mut BlockGroupCounters,
) -> Result<()> {
    fs.edit(generation, trees::block_group_tree(fs), |editor| {
        match group.begin_update(fs.options.skips_unchanged_groups) {
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
fn finish_blocks(fs: &WriteContext) -> Result<Vec<(LogicalAddr, Buffer)>> {
    let new_blocks = std::mem::take(&mut *fs.new_blocks.lock());
    let mut finished = Vec::with_capacity(new_blocks.len());
    for logical in new_blocks {
        let missing = || Corrupt::new(Locus::block(logical.0), CommitRule::Block);
        let buffer = fs.blocks().finish(logical)?;
        finished.push((logical, buffer.ok_or_else(missing)?));
    }
    Ok(finished)
}

/// Writes the item of a block group, which is in the tree or not.
fn write_group(editor: &mut Editor<'_, '_>, pending: PendingItem<'_>, is_new: bool) -> Result<()> {
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
