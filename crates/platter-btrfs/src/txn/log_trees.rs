//! The log trees of the running transaction, which make single inodes durable without a commit.
//!
//! Their blocks are allocated, but have no extent items: nothing knows of them after the next commit. One that was
//! written is not changed in place, as the superblock may lead to it. Spec: `btrfs/dir_log`.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::atomic::{AtomicU64, Ordering};

use platter_block::lock::{Condvar, Mutex, MutexGuard, rank};
use platter_cache::Buffer;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::Result;
use zerocopy::IntoBytes;

use super::commit::{CommitRule, WRITE_BLOCKS_MAX};
use super::{Handle, WriteContext, checksums, roots, superblocks, trees};
use crate::block_group::BlockGroup;
use crate::ondisk::chunk_item::BlockGroupFlags;
use crate::ondisk::key::ItemKind;
use crate::ondisk::leaf;
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::tree::edit::{CopyOnWrite, TreeEditor, TreeState};
use crate::tree::{Tree, TreeBlock};

/// A log tree that is being changed.
pub type LogEditor<'e, 'f> = TreeEditor<'e, LogCow<'f>>;

/// The logs of a filesystem.
#[derive(Debug, Default)]
pub(super) struct Logs {
    /// The log trees of the running transaction. Held while an inode is logged.
    trees: Mutex<LogTrees, { rank(7, 1) }>,
    /// The blocks of all log trees.
    blocks: Mutex<LogBlocks, { rank(11, 0) }>,
    /// The writing of log trees.
    writing: Mutex<LogWriting, { rank(11, 6) }>,
    ended: Condvar,
    /// The last transaction of which something is made durable by its commit alone.
    commit_only: AtomicU64,
    /// Logs that were written, since the mount.
    written: AtomicU64,
}

/// The log trees of one transaction.
#[derive(Debug, Default)]
struct LogTrees {
    /// The tree of their roots.
    roots: Option<TreeState>,
    trees: BTreeMap<TreeId, LogTree>,
    /// The number of the log that is written next (`log_transid`).
    next: u64,
}

#[derive(Debug)]
struct LogTree {
    now: TreeState,
    /// What the tree of roots says.
    stored: Option<RootPointer>,
}

#[derive(Debug, Default)]
struct LogBlocks {
    /// Those that the transaction allocated for logs and did not free.
    all: BTreeSet<LogicalAddr>,
    /// Those of them that are in memory alone.
    unwritten: BTreeSet<LogicalAddr>,
    /// Those that only the log on the devices refers to.
    replaced: Vec<LogicalAddr>,
}

#[derive(Debug, Default)]
struct LogWriting {
    is_writing: bool,
    /// The last log that is durable, or of a transaction that is.
    done: u64,
    /// The root of the log that superblocks lead to, if they lead to one of this mount.
    root: Option<RootPointer>,
}

/// What a log consists of when it is written.
struct ClosedLog {
    number: u64,
    root: RootPointer,
    blocks: Vec<(LogicalAddr, Buffer)>,
    replaced: Vec<LogicalAddr>,
}

/// Copy-on-write in log trees.
#[derive(Debug, Clone, Copy)]
pub struct LogCow<'f> {
    fs: &'f WriteContext,
    generation: Generation,
}

/// The right to change log trees.
#[derive(Debug)]
pub struct LogTurn<'h> {
    fs: &'h WriteContext,
    generation: Generation,
    trees: MutexGuard<'h, LogTrees>,
}

/// The duty to write a log. Threads that wait look again when it ends, however it does.
struct WritingTurn<'f>(&'f Logs);

impl Logs {
    /// Says that something of a transaction is made durable by its commit alone.
    pub(super) fn require_commit(&self, generation: Generation) {
        self.commit_only.fetch_max(generation.0, Ordering::AcqRel);
    }

    fn is_commit_only(&self, generation: Generation) -> bool {
        self.commit_only.load(Ordering::Acquire) >= generation.0
    }

    /// Waits for a log that is being written.
    pub(super) fn wait(&self) {
        let mut writing = self.writing.lock();
        while writing.is_writing {
            self.ended.wait(&mut writing);
        }
    }
}

impl Drop for WritingTurn<'_> {
    fn drop(&mut self) {
        self.0.writing.lock().is_writing = false;
        self.0.ended.notify_all();
    }
}

impl<'f> LogCow<'f> {
    fn new(fs: &'f WriteContext, generation: Generation) -> Self {
        Self { fs, generation }
    }
}

impl CopyOnWrite for LogCow<'_> {
    fn generation(&self) -> Generation {
        self.generation
    }

    fn owns(&self, logical: LogicalAddr, _generation: Generation) -> bool {
        self.fs.logs.blocks.lock().unwritten.contains(&logical)
    }

    fn allocate(
        &self,
        _tree: &TreeState,
        _level: u8,
        _first_key: Key,
        _near: LogicalAddr,
    ) -> Result<LogicalAddr> {
        let fs = self.fs;
        let len_bytes = fs.node_bytes();
        let read = |group: &BlockGroup| trees::read_free_space(fs, group);
        // Not in a new chunk, which the last commit does not know.
        let kind = BlockGroupFlags::METADATA;
        let logical = fs.groups.allocate(kind, len_bytes, len_bytes, &read)?;
        let mut blocks = fs.logs.blocks.lock();
        blocks.all.insert(logical);
        blocks.unwritten.insert(logical);
        Ok(logical)
    }

    fn copied(&self, _: &TreeState, old: &TreeBlock, _new: &[u8], _is_root: bool) -> Result<()> {
        self.fs.logs.blocks.lock().replaced.push(old.logical());
        Ok(())
    }

    fn freed(&self, _tree: &TreeState, logical: LogicalAddr, _level: u8) -> Result<()> {
        let mut blocks = self.fs.logs.blocks.lock();
        if !blocks.unwritten.remove(&logical) {
            blocks.replaced.push(logical);
            return Ok(());
        }
        blocks.all.remove(&logical);
        drop(blocks);
        release_block(self.fs, logical)
    }
}

impl LogTurn<'_> {
    /// Changes the log of a subvolume. After an error, only a commit makes what was done durable.
    ///
    /// # Errors
    /// `ENOSPC`, and those of `change`.
    pub fn edit<R>(
        &mut self,
        subvolume: TreeId,
        change: impl FnOnce(&mut LogEditor<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let result = self.try_edit(subvolume, change);
        if result.is_err() {
            self.fs.logs.require_commit(self.generation);
        }
        result
    }

    fn try_edit<R>(
        &mut self,
        subvolume: TreeId,
        change: impl FnOnce(&mut LogEditor<'_, '_>) -> Result<R>,
    ) -> Result<R> {
        let cow = LogCow::new(self.fs, self.generation);
        if !self.trees.trees.contains_key(&subvolume) {
            let now = new_log_tree(self.fs, &cow)?;
            let tree = LogTree { now, stored: None };
            self.trees.trees.insert(subvolume, tree);
        }
        let missing = || Corrupt::new(Locus::tree(TreeId::TREE_LOG.0), CommitRule::Block);
        let tree = self.trees.trees.get_mut(&subvolume).ok_or_else(missing)?;
        let blocks = self.fs.blocks();
        change(&mut TreeEditor::new(blocks, &cow, &mut tree.now))
    }

    /// Logs the checksums of data of whole sectors, instead of those that the log has of it.
    ///
    /// # Errors
    /// Those of [`edit`](Self::edit).
    pub fn set_checksums(
        &mut self,
        subvolume: TreeId,
        address: LogicalAddr,
        checksums: Vec<u8>,
    ) -> Result<()> {
        let format = self.fs.item_format();
        let count = (checksums.len() / format.checksum_kind.len_bytes()) as u64;
        let end = address.0 + count * u64::from(format.sector_bytes);
        self.edit(subvolume, |editor| {
            checksums::delete(editor, &(address.0..end), format)?;
            checksums::insert(editor, address, checksums, format)
        })
    }

    /// The number of the log that all changes so far are in.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.trees.next + 1
    }

    /// Says that something of the transaction cannot be logged.
    pub fn require_commit(&self) {
        self.fs.logs.require_commit(self.generation);
    }
}

/// Takes the turn to change log trees; `None` where the transaction has what only a commit makes durable. The
/// transactions before are durable ([`Handle::wait_for_earlier`]).
#[must_use]
pub(crate) fn start<'h>(handle: &'h Handle<'_>) -> Option<LogTurn<'h>> {
    let fs = handle.fs;
    if takes_no_log(fs, handle.generation) {
        return None;
    }
    let trees = fs.logs.trees.lock();
    // While this thread waited, another one may have failed.
    (!takes_no_log(fs, handle.generation)).then_some(LogTurn {
        fs,
        generation: handle.generation,
        trees,
    })
}

/// Makes the log of this number durable, together with other threads that wait for one. Returns `false` where
/// only a commit makes what was logged durable.
#[must_use]
pub(crate) fn sync(handle: &Handle<'_>, number: u64) -> bool {
    let (fs, logs) = (handle.fs, &handle.fs.logs);
    let mut writing = logs.writing.lock();
    loop {
        if writing.done >= number {
            return true;
        }
        if takes_no_log(fs, handle.generation) {
            return false;
        }
        if !writing.is_writing {
            break;
        }
        logs.ended.wait(&mut writing);
    }
    writing.is_writing = true;
    drop(writing);
    let turn = WritingTurn(logs);
    let written = write_closed(fs, handle.generation);
    match written {
        Ok(Some((done, root))) => {
            let mut writing = logs.writing.lock();
            writing.done = done;
            writing.root = Some(root);
        }
        // The commit that follows encounters the same error, or makes up for it.
        Ok(None) | Err(_) => logs.require_commit(handle.generation),
    }
    drop(turn);
    matches!(written, Ok(Some((done, _))) if done >= number)
}

/// Whether what is done in a transaction cannot all be logged: chunks, features and subvolumes that the last
/// commit does not know.
fn takes_no_log(fs: &WriteContext, generation: Generation) -> bool {
    let features = *fs.features.lock();
    let is_known = features == fs.superblock.lock().features;
    fs.logs.is_commit_only(generation)
        || fs.chunks.has_uncreated()
        || !is_known
        || fs.failure().is_some()
}

/// Creates an empty log tree.
fn new_log_tree(fs: &WriteContext, cow: &LogCow<'_>) -> Result<TreeState> {
    let id = TreeId::TREE_LOG;
    let mut state = TreeState {
        tree: Tree {
            id,
            root: RootPointer {
                generation: cow.generation,
                ..RootPointer::default()
            },
        },
        last_snapshot: Generation(0),
        is_shareable: false,
        used_bytes: fs.node_bytes(),
    };
    let near = fs.context.superblock.root.logical;
    let logical = cow.allocate(&state, 0, Key::MIN, near)?;
    state.tree.root.logical = logical;
    let mut bytes = vec![0; fs.blocks().format().node_bytes as usize].into_boxed_slice();
    let header = roots::new_header(fs, cow.generation, id, state.tree.root)?;
    leaf::encode(&mut bytes, &header, []);
    fs.blocks().create(logical, bytes)?;
    Ok(state)
}

/// Writes what was logged so far. Returns the number of that log, and its root; `None` where only a commit makes it
/// durable, and if not all devices lead to it.
pub(super) fn write_closed(
    fs: &WriteContext,
    generation: Generation,
) -> Result<Option<(u64, RootPointer)>> {
    let log = close(fs, generation)?;
    // While the trees were changed, a chunk may have been added that has some of it.
    if takes_no_log(fs, generation) {
        return Ok(None);
    }
    for run in log.blocks.chunks(WRITE_BLOCKS_MAX) {
        fs.blocks().write(run)?;
    }
    drop(log.blocks);
    fs.refuse_after_failure()?;
    if !superblocks::write_log(fs, log.root)? {
        return Ok(None);
    }
    fs.logs.written.fetch_add(1, Ordering::Relaxed);
    for logical in log.replaced {
        fs.logs.blocks.lock().all.remove(&logical);
        release_block(fs, logical)?;
    }
    Ok(Some((log.number, log.root)))
}

/// Stores the roots of log trees that changed, and takes the blocks to write: they do not change any more.
fn close(fs: &WriteContext, generation: Generation) -> Result<ClosedLog> {
    let mut turn = fs.logs.trees.lock();
    let trees = &mut *turn;
    let cow = LogCow::new(fs, generation);
    let roots = match &mut trees.roots {
        Some(roots) => roots,
        none => none.insert(new_log_tree(fs, &cow)?),
    };
    for (id, tree) in &mut trees.trees {
        let root = tree.now.tree.root;
        if tree.stored == Some(root) {
            continue;
        }
        let item = RootItem::of_new_tree(root, tree.now.used_bytes);
        let key = Key::new(TreeId::TREE_LOG.0, ItemKind::ROOT_ITEM, id.0);
        TreeEditor::new(fs.blocks(), &cow, roots).set(key, item.encode(None).as_bytes())?;
        tree.stored = Some(root);
    }
    let mut blocks = fs.logs.blocks.lock();
    let unwritten = std::mem::take(&mut blocks.unwritten);
    let replaced = std::mem::take(&mut blocks.replaced);
    drop(blocks);
    let mut finished = Vec::with_capacity(unwritten.len());
    for logical in unwritten {
        let missing = || Corrupt::new(Locus::block(logical.0), CommitRule::Block);
        let buffer = fs.blocks().finish(logical)?;
        finished.push((logical, buffer.ok_or_else(missing)?));
    }
    trees.next += 1;
    Ok(ClosedLog {
        number: trees.next,
        root: roots.tree.root,
        blocks: finished,
        replaced,
    })
}

fn release_block(fs: &WriteContext, logical: LogicalAddr) -> Result<()> {
    fs.blocks().forget(logical);
    fs.groups.release(logical, fs.node_bytes())
}

/// Drops the log trees of a transaction that is durable now.
pub(super) fn drop_all(fs: &WriteContext) -> Result<()> {
    let mut trees = fs.logs.trees.lock();
    // Numbers go on: a thread that waits for one of this transaction waits for no log.
    trees.next += 1;
    {
        let mut writing = fs.logs.writing.lock();
        writing.done = trees.next;
        writing.root = None;
    }
    trees.roots = None;
    trees.trees.clear();
    drop(trees);
    let blocks = std::mem::take(&mut *fs.logs.blocks.lock());
    for logical in blocks.all {
        release_block(fs, logical)?;
    }
    Ok(())
}

/// The root of the log that superblocks of the last commit lead to. No log is being written, and no commit.
#[must_use]
pub(crate) fn durable_root(fs: &WriteContext) -> Option<RootPointer> {
    fs.logs.writing.lock().root
}

/// Logs that were written since the mount.
#[cfg(test)]
pub(crate) fn logs_written(fs: &WriteContext) -> u64 {
    fs.logs.written.load(Ordering::Relaxed)
}
