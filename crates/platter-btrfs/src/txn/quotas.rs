//! Quota groups in transactions: which extents other subvolumes may reach than before is traced as references are
//! queued, and counted by the commit.
//!
//! Before the commit, references are followed in the trees of the last one, and after it in those of this one. So
//! nothing has to be known of what happened in between. What cannot be counted makes the groups inconsistent on disk.

use std::cell::Cell;
use std::collections::{BTreeSet, HashSet};
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::Mutex;
use platter_ondisk::{Corrupt, Locus};
use platter_vfs::{Result, Unsupported};
use zerocopy::IntoBytes;

use super::{CommitReport, WriteContext, chunks, refs, trees};
use crate::context::{FsContext, TreesRule};
use crate::delayed_refs::{Change, RefKey};
use crate::ondisk::features::Incompat;
use crate::ondisk::file_extent::{FileExtent, FileExtentKind};
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupLimit, QgroupStatus};
use crate::ondisk::root_item::RootItem;
use crate::ondisk::superblock::RootPointer;
use crate::ondisk::tree_block::Expected;
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::qgroup::{CountingLimits, Groups, Moves, QuotaState, Resolver, Sets, Stored, Uncounted};
use crate::tree::{Cursor, Tree, TreeBlock};

/// The quota groups of a filesystem that is written.
pub(super) struct Quotas {
    /// Whether usage is right, as far as it was stored.
    is_counted: AtomicBool,
    /// Extents that other subvolumes may reach than in the last commit.
    traced: Mutex<BTreeSet<LogicalAddr>>,
    /// Groups and their usage.
    groups: Mutex<Groups>,
    /// The state as it was when the filesystem was opened.
    status: QgroupStatus,
    limits: CountingLimits,
    /// Why usage is not counted any more: what came first.
    doubt: Mutex<Option<Uncounted>>,
}

impl fmt::Debug for Quotas {
    fn fmt(&self, out: &mut fmt::Formatter<'_>) -> fmt::Result {
        out.debug_struct("Quotas")
            .field("is_counted", &self.is_counted)
            .field("doubt", &*self.doubt.lock())
            .finish_non_exhaustive()
    }
}

impl Quotas {
    /// Reads the quota groups; `None` if there are none, or they are off.
    ///
    /// # Errors
    /// `Unsupported` for simple quotas, for limits and for too many groups; those of reading.
    pub(super) fn open(context: &FsContext, limits: CountingLimits) -> Result<Option<Self>> {
        let unsupported = |feature: &str, reason| Unsupported {
            filesystem: "btrfs",
            feature: feature.to_owned(),
            reason: Some(reason),
        };
        let disable = "disable them with btrfs quota disable";
        let superblock = &context.superblock;
        let incompat = superblock.features.incompat;
        if incompat.contains(Incompat::SIMPLE_QUOTA) {
            return Err(unsupported("writing with simple quotas", disable).into());
        }
        let Some(tree) = context.tree(TreeId::QUOTA)? else {
            return Ok(None);
        };
        let stored = Stored::read(&context.blocks, tree, limits.items_max)?;
        let is_on = |status: &QgroupStatus| status.flags.contains(QgroupFlags::ON);
        let Some(status) = stored.status.filter(is_on) else {
            return Ok(None);
        };
        if status.flags.contains(QgroupFlags::SIMPLE_MODE) {
            return Err(unsupported("writing with simple quotas", disable).into());
        }
        if stored.is_truncated {
            let feature = format!("writing with more than {} quota groups", limits.items_max);
            return Err(unsupported(&feature, disable).into());
        }
        if stored.limits.values().any(|limit| limit.flags != 0) {
            let remove = "remove them with btrfs qgroup limit none";
            return Err(unsupported("writing with limits of quota groups", remove).into());
        }
        // The kernel has no pointers of a tree changed that it began to drop.
        let deleted = context.deleted_subvolumes()?;
        let is_partly_dropped = deleted.iter().any(|it| it.item.drop_progress != Key::MIN);
        let doubt = Uncounted::by_status(&status, superblock.generation)
            .or(is_partly_dropped.then_some(Uncounted::PartlyDropped));
        Ok(Some(Self {
            is_counted: AtomicBool::new(doubt.is_none()),
            traced: Mutex::default(),
            groups: Mutex::new(Groups::new(stored)),
            status,
            limits,
            doubt: Mutex::new(doubt),
        }))
    }

    fn is_counted(&self) -> bool {
        self.is_counted.load(Ordering::Acquire)
    }

    /// Says that usage is not right any more.
    pub(super) fn lose(&self, why: Uncounted) {
        self.is_counted.store(false, Ordering::Release);
        self.traced.lock().clear();
        let mut doubt = self.doubt.lock();
        doubt.get_or_insert(why);
    }

    fn state(&self) -> QuotaState {
        let doubt = self.doubt.lock().clone();
        doubt.map_or(QuotaState::Consistent, QuotaState::Inconsistent)
    }

    fn trace(&self, address: LogicalAddr) {
        if !self.is_counted() {
            return;
        }
        let mut traced = self.traced.lock();
        traced.insert(address);
        if traced.len() > self.limits.traced_max {
            drop(traced);
            self.lose(Uncounted::Extents);
        }
    }

    /// Traces the extent of a change, if subvolumes may reach it.
    pub(super) fn trace_change(&self, change: &Change) {
        let is_reached = match change.reference {
            RefKey::TreeBlock { tree } | RefKey::Data { tree, .. } => tree.is_subvolume(),
            RefKey::SharedBlock { .. } | RefKey::SharedData { .. } => true,
        };
        if is_reached {
            self.trace(change.address);
        }
    }

    /// Adds the group of a new subvolume.
    pub(super) fn create(&self, id: TreeId, limit: QgroupLimit) {
        if id.is_subvolume() {
            self.groups.lock().create(id, limit);
        }
    }
}

/// Makes the commit remove the group of a subvolume of which nothing is left.
pub(super) fn drop_group(fs: &WriteContext, id: TreeId) {
    if let Some(quotas) = &fs.quotas {
        quotas.groups.lock().drop_subvolume(id);
    }
}

/// What is known of the usage of quota groups.
#[must_use]
pub(crate) fn state(fs: &WriteContext) -> QuotaState {
    let quotas = fs.quotas.as_ref();
    quotas.map_or(QuotaState::Off, Quotas::state)
}

/// Whether so much is traced for quota groups that a commit should count it; never if all is
/// [one transaction](super::WriteOptions::one_transaction).
#[must_use]
pub(crate) fn has_many_traced(fs: &WriteContext) -> bool {
    let quotas = fs.quotas.as_ref();
    let quotas = quotas.filter(|_| !fs.options.one_transaction);
    quotas.is_some_and(|quotas| quotas.traced.lock().len() > quotas.limits.traced_many)
}

/// Whether usage of quota groups is counted.
pub(super) fn are_counted(fs: &WriteContext) -> bool {
    fs.quotas.as_ref().is_some_and(Quotas::is_counted)
}

/// Traces the data of a leaf that a tree drops and others keep: no reference of it changes.
pub(super) fn trace_data(fs: &WriteContext, leaf: &TreeBlock) {
    let Some(quotas) = fs.quotas.as_ref().filter(|quotas| quotas.is_counted()) else {
        return;
    };
    debug_assert_eq!(leaf.level(), 0, "nodes are entered");
    match data_of(fs, leaf) {
        Ok(data) => data.into_iter().for_each(|address| quotas.trace(address)),
        Err(error) => quotas.lose(error.into()),
    }
}

/// The data that a leaf refers to, as often as it does.
fn data_of(fs: &WriteContext, leaf: &TreeBlock) -> Result<Vec<LogicalAddr>> {
    let sector_bytes = fs.context.superblock.sector_bytes;
    let mut data = Vec::new();
    for (key, item) in leaf.leaf().iter() {
        if key.kind != ItemKind::EXTENT_DATA {
            continue;
        }
        let locus = Locus::block(leaf.logical().0).at_key(key.into());
        let extent = FileExtent::decode(item, key.offset, sector_bytes, locus)?;
        if let FileExtentKind::Regular(place) | FileExtentKind::Prealloc(place) = extent.kind {
            data.push(place.logical);
        }
    }
    Ok(data)
}

/// Visits the extents below the root of a tree, blocks and data: each as often as something refers to it.
fn walk(
    fs: &WriteContext,
    root: RootPointer,
    blocks_max: usize,
    visit: &mut dyn FnMut(LogicalAddr) -> Result<(), Uncounted>,
) -> Result<(), Uncounted> {
    let mut left = blocks_max;
    let expected = Expected {
        level: Some(root.level),
        generation: Some(root.generation),
        ..Expected::default()
    };
    let mut waiting = vec![(root.logical, expected)];
    while let Some((logical, expected)) = waiting.pop() {
        left = left.checked_sub(1).ok_or(Uncounted::Snapshot)?;
        let block = fs.blocks().read(logical, &expected)?;
        let Some(below) = block.level().checked_sub(1) else {
            data_of(fs, &block)?.into_iter().try_for_each(&mut *visit)?;
            continue;
        };
        for pointer in block.node().iter() {
            visit(pointer.logical)?;
            let expected = Expected {
                level: Some(below),
                generation: Some(pointer.generation),
                first_key: Some(pointer.key),
                ..Expected::default()
            };
            waiting.push((pointer.logical, expected));
        }
    }
    Ok(())
}

/// Counts what the running transaction changed. No handle is open, and no snapshot was made since.
pub(super) fn count(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    let Some(quotas) = fs.quotas.as_ref().filter(|quotas| quotas.is_counted()) else {
        return Ok(());
    };
    run_all_refs(fs, generation, report)?;
    let traced = std::mem::take(&mut *quotas.traced.lock());
    if let Err(why) = count_traced(fs, quotas, &traced) {
        quotas.lose(why);
    }
    Ok(())
}

fn count_traced(
    fs: &WriteContext,
    quotas: &Quotas,
    traced: &BTreeSet<LogicalAddr>,
) -> Result<(), Uncounted> {
    let extents_before = Tree {
        id: TreeId::EXTENT,
        root: fs.tree(TreeId::EXTENT)?.commit_root(),
    };
    let extents_now = fs.tree(TreeId::EXTENT)?.view().now.tree;
    let find_before = |id| commit_root_of(fs, id);
    let find_now = |id| root_now(fs, id);
    let left = Cell::new(quotas.limits.looks_max);
    let mut before = Resolver::new(fs.blocks(), extents_before, &find_before, &left);
    let mut now = Resolver::new(fs.blocks(), extents_now, &find_now, &left);
    let (mut sets, mut moves) = (Sets::default(), Moves::default());
    for address in traced {
        let (old, old_bytes) = before.subvolumes_of(&mut sets, *address)?;
        let (new, new_bytes) = now.subvolumes_of(&mut sets, *address)?;
        // The same extent, if it is in both: freed space is not used again before the commit.
        moves.add(old, new, old_bytes.max(new_bytes));
    }
    let mut groups = quotas.groups.lock();
    groups.apply(&sets, &moves, &quotas.limits)
}

/// Counts a snapshot before it is made, and gives it a group. All that was done before is counted.
pub(super) fn count_snapshot(
    fs: &WriteContext,
    generation: Generation,
    (source, snapshot): (TreeId, TreeId),
    report: &mut CommitReport,
) -> Result<()> {
    let Some(quotas) = &fs.quotas else {
        return Ok(());
    };
    let is_simple = {
        let mut groups = quotas.groups.lock();
        groups.create(snapshot, QgroupLimit::default());
        groups.snapshot_is_simple(source, snapshot)
    };
    if !quotas.is_counted() {
        return Ok(());
    }
    if is_simple {
        let mut groups = quotas.groups.lock();
        groups.count_snapshot(source, snapshot, fs.node_bytes());
        return Ok(());
    }
    // Another snapshot of this commit may be before it.
    run_all_refs(fs, generation, report)?;
    if let Err(why) = count_shared(fs, quotas, source, snapshot) {
        quotas.lose(why);
    }
    Ok(())
}

/// Counts all that the source of a snapshot reaches as reached by the snapshot as well.
fn count_shared(
    fs: &WriteContext,
    quotas: &Quotas,
    source: TreeId,
    snapshot: TreeId,
) -> Result<(), Uncounted> {
    let extents = fs.tree(TreeId::EXTENT)?.view().now.tree;
    let find = |id| root_now(fs, id);
    let left = Cell::new(quotas.limits.looks_max);
    let mut now = Resolver::new(fs.blocks(), extents, &find, &left);
    let (mut sets, mut moves) = (Sets::default(), Moves::default());
    let none = sets.of([].into()).ok_or(Uncounted::Subvolumes)?;
    let alone = sets.of([snapshot].into()).ok_or(Uncounted::Subvolumes)?;
    moves.add(none, alone, fs.node_bytes());
    let root = fs.tree(source)?.view().now.tree.root;
    let mut seen = HashSet::new();
    walk(fs, root, quotas.limits.walk_blocks_max, &mut |address| {
        if seen.insert(address) {
            if seen.len() > quotas.limits.traced_max {
                return Err(Uncounted::Snapshot);
            }
            let (set, bytes) = now.subvolumes_of(&mut sets, address)?;
            let more = sets.union(set, alone).ok_or(Uncounted::Subvolumes)?;
            moves.add(set, more, bytes);
        }
        Ok(())
    })?;
    let mut groups = quotas.groups.lock();
    groups.apply(&sets, &moves, &quotas.limits)
}

/// Forgets what was traced while a snapshot was made that is [counted](count_snapshot).
pub(super) fn forget_traced(fs: &WriteContext) {
    if let Some(quotas) = &fs.quotas {
        quotas.traced.lock().clear();
    }
}

/// Stores usage that changed, and up to which transaction it is kept: without that, the kernel takes it for
/// inconsistent.
pub(super) fn store(fs: &WriteContext, generation: Generation) -> Result<()> {
    let Some(quotas) = &fs.quotas else {
        return Ok(());
    };
    let is_counted = quotas.is_counted();
    let mut flags = quotas.status.flags;
    if !is_counted {
        // A rescan that went on would take what it has counted for right.
        flags.remove(QgroupFlags::RESCAN);
        flags |= QgroupFlags::INCONSISTENT;
    }
    let status = QgroupStatus {
        generation,
        flags,
        ..quotas.status
    };
    let (gone, dirty) = {
        let mut groups = quotas.groups.lock();
        (groups.take_gone(), groups.take_dirty(generation))
    };
    fs.edit(generation, TreeId::QUOTA, |editor| {
        let key = Key::new(0, ItemKind::QGROUP_STATUS, 0);
        editor.set(key, &status.encode())?;
        for (id, above) in &gone {
            let item = |kind| Key::new(0, kind, *id);
            let mut keys = vec![item(ItemKind::QGROUP_INFO), item(ItemKind::QGROUP_LIMIT)];
            for group in above {
                keys.push(Key::new(*id, ItemKind::QGROUP_RELATION, *group));
                keys.push(Key::new(*group, ItemKind::QGROUP_RELATION, *id));
            }
            for key in keys {
                editor.remove(key)?;
            }
        }
        for (id, info, new) in &dirty {
            // Usage that is not right stays as it is.
            if is_counted || new.is_some() {
                let key = Key::new(0, ItemKind::QGROUP_INFO, *id);
                editor.set(key, info.encode().as_bytes())?;
            }
            if let Some(limit) = new {
                let key = Key::new(0, ItemKind::QGROUP_LIMIT, *id);
                editor.set(key, limit.encode().as_bytes())?;
            }
        }
        Ok(())
    })
}

/// Runs all references.
fn run_all_refs(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    loop {
        chunks::create_pending(fs, generation)?;
        report.heads_run += refs::run(fs, generation, usize::MAX)? as u64;
        if fs.refs.is_empty() {
            return Ok(());
        }
        fs.refs.wait_for_walks();
    }
}

/// The root of a tree in the transaction before; `None` if there was none.
fn commit_root_of(fs: &WriteContext, id: TreeId) -> Result<Option<RootPointer>> {
    let root = fs.tree(TreeId::ROOT)?.commit_root();
    let tree = Tree {
        id: TreeId::ROOT,
        root,
    };
    root_in(fs, tree, id)
}

/// The root of a tree now; `None` if there is none.
fn root_now(fs: &WriteContext, id: TreeId) -> Result<Option<RootPointer>> {
    let tree = fs.tree(TreeId::ROOT)?.view().now.tree;
    let stored = root_in(fs, tree, id)?;
    let open = trees::root_of_open(fs, id);
    Ok(stored.map(|stored| open.unwrap_or(stored)))
}

fn root_in(fs: &WriteContext, root_tree: Tree, id: TreeId) -> Result<Option<RootPointer>> {
    let mut cursor = Cursor::new(fs.blocks(), root_tree);
    let last = Key::new(id.0, ItemKind::ROOT_ITEM, u64::MAX);
    if !cursor.seek_at_or_before(last)? {
        return Ok(None);
    }
    let is_it = |key: Key| key.object == id.0 && key.kind == ItemKind::ROOT_ITEM;
    let Some((key, data)) = cursor.item().filter(|(key, _)| is_it(*key)) else {
        return Ok(None);
    };
    let sector_bytes = fs.context.superblock.sector_bytes;
    let item = RootItem::decode(data, sector_bytes, root_tree.locus(key))?;
    if item.root.logical.0 == 0 {
        return Err(Corrupt::new(root_tree.locus(key), TreesRule::MissingTree).into());
    }
    Ok(Some(item.root))
}
