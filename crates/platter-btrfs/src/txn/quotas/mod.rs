//! Quota groups in transactions: which extents other subvolumes may reach than before is traced as references are
//! queued, and counted by the commit. What cannot be counted makes the groups inconsistent on disk.
//!
//! Simple quotas count extents as they get and lose their items.
//!
//! Until then, what the transaction allocates counts against limits, and what is reserved.

mod resolve;

use std::collections::BTreeSet;
use std::fmt;
use std::sync::atomic::{AtomicBool, Ordering};

use platter_block::lock::Mutex;
use platter_ondisk::{Corrupt, rules};
use platter_vfs::{Condition, Result, Unsupported};
use zerocopy::IntoBytes;

use super::simple_quotas::SimpleQuotas;
use super::{CommitReport, WriteContext, chunks, refs};
use crate::context::FsContext;
use crate::delayed_refs::{Change, RefKey};
use crate::ondisk::features::Incompat;
use crate::ondisk::key::ItemKind;
use crate::ondisk::qgroup::{QgroupFlags, QgroupStatus};
use crate::ondisk::{Generation, Key, LogicalAddr, TreeId};
use crate::qgroup::{CountingLimits, Exceeded, Groups, QuotaState, Stored, Uncounted};
use crate::tree::TreeBlock;

/// The key of the state.
const STATUS_KEY: Key = Key {
    object: 0,
    kind: ItemKind::QGROUP_STATUS,
    offset: 0,
};

rules! {
    /// The rules of quota groups that are written.
    pub(super) enum QuotaRule of "qgroup status" {
        /// Simple quotas are a feature of the superblock, and have the transaction that enabled them.
        Enabled => "simple quotas without their feature or enable_gen",
    }
}

/// The quota groups of a filesystem that is written.
pub(super) struct Quotas {
    /// Whether usage is right, as far as it was stored.
    is_counted: AtomicBool,
    /// Extents that other subvolumes may reach than in the last commit.
    traced: Mutex<BTreeSet<LogicalAddr>>,
    /// Groups and their usage.
    groups: Mutex<Groups>,
    /// Whether groups have limits. They get none while others have none.
    has_limits: bool,
    /// What simple quotas count, if they are on.
    simple: Option<SimpleQuotas>,
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
    /// `Unsupported` for too many groups; `Corrupt` for simple quotas that do not say since when; those of reading.
    pub(super) fn open(context: &FsContext, limits: CountingLimits) -> Result<Option<Self>> {
        let unsupported = |feature: &str, reason| Unsupported {
            filesystem: "btrfs",
            feature: feature.to_owned(),
            reason: Some(reason),
        };
        let disable = "disable them with btrfs quota disable";
        let superblock = &context.superblock;
        let Some(tree) = context.tree(TreeId::QUOTA)? else {
            return Ok(None);
        };
        let stored = Stored::read(&context.blocks, tree, limits.items_max)?;
        let is_on = |status: &QgroupStatus| status.flags.contains(QgroupFlags::ON);
        let Some(status) = stored.status.filter(is_on) else {
            return Ok(None);
        };
        let is_simple = status.flags.contains(QgroupFlags::SIMPLE_MODE);
        let has_owners = superblock
            .features
            .incompat
            .contains(Incompat::SIMPLE_QUOTA);
        let since = status.enable_generation.filter(|_| has_owners);
        if is_simple && since.is_none() {
            return Err(Corrupt::new(tree.locus(STATUS_KEY), QuotaRule::Enabled).into());
        }
        if stored.is_truncated {
            let feature = format!("writing with more than {} quota groups", limits.items_max);
            return Err(unsupported(&feature, disable).into());
        }
        // The kernel has no pointers of a tree changed that it began to drop.
        let deleted = context.deleted_subvolumes()?;
        let is_partly_dropped = deleted.iter().any(|it| it.item.drop_progress != Key::MIN);
        let doubt = Uncounted::by_status(&status, superblock.generation)
            .or(is_partly_dropped.then_some(Uncounted::PartlyDropped));
        let groups = Groups::new(stored);
        Ok(Some(Self {
            is_counted: AtomicBool::new(doubt.is_none() && !is_simple),
            simple: since.filter(|_| is_simple).map(SimpleQuotas::since),
            traced: Mutex::default(),
            has_limits: groups.has_limits(),
            groups: Mutex::new(groups),
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

    /// Simple quotas, if they are on.
    pub(super) fn simple(&self) -> Option<&SimpleQuotas> {
        self.simple.as_ref()
    }

    fn state(&self) -> QuotaState {
        if self.simple.is_some() {
            return QuotaState::Simple;
        }
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
        let tree = match change.reference {
            RefKey::TreeBlock { tree } | RefKey::Data { tree, .. } => Some(tree),
            RefKey::SharedBlock { .. } | RefKey::SharedData { .. } => None,
        };
        if tree.is_none_or(TreeId::is_subvolume) {
            self.trace(change.address);
        }
        if let Some(simple) = self.simple.as_ref().filter(|_| change.allocates) {
            simple.set_owner(change.address, tree);
        }
        if self.has_limits
            && change.allocates
            && let Some(tree) = tree
        {
            let mut groups = self.groups.lock();
            groups.hold_allocated(tree, change.len_bytes);
        }
    }

    /// Adds the group of a new subvolume whose name is in `container`.
    fn create(&self, id: TreeId, container: TreeId) {
        let mut groups = self.groups.lock();
        groups.create(id);
        if self.simple.is_some() {
            groups.inherit_groups(id, container);
        }
    }

    fn reserve(&self, tree: TreeId, bytes: u64, spare: u64) -> Result<(), Exceeded> {
        self.groups.lock().reserve(tree, bytes, spare)
    }
}

/// Quota groups, if some have limits.
fn limited(fs: &WriteContext) -> Option<&Quotas> {
    fs.quotas.as_ref().filter(|quotas| quotas.has_limits)
}

/// Reserves bytes for a subvolume in the quota groups that it is in, if `spare` more would be within their limits.
///
/// # Errors
/// `QuotaExceeded`, after a commit if that may make them less; those of the commit. The caller has no handle.
pub(super) fn reserve(fs: &WriteContext, tree: TreeId, bytes: u64, spare: u64) -> Result<()> {
    let Some(quotas) = limited(fs) else {
        return Ok(());
    };
    let Err(exceeded) = quotas.reserve(tree, bytes, spare) else {
        return Ok(());
    };
    if exceeded.can_change && !fs.options.one_transaction {
        fs.sync()?;
        if quotas.reserve(tree, bytes, spare).is_ok() {
            return Ok(());
        }
    }
    Err(Condition::QuotaExceeded.into())
}

/// Reserves bytes for a subvolume whatever the limits of its quota groups are: less is left of it in the end.
pub(super) fn reserve_beyond(fs: &WriteContext, tree: TreeId, bytes: u64) {
    if let Some(quotas) = limited(fs) {
        quotas.groups.lock().reserve_beyond(tree, bytes);
    }
}

/// Returns a reservation in quota groups, which is allocated or not needed.
pub(super) fn release(fs: &WriteContext, tree: TreeId, bytes: u64) {
    if let Some(quotas) = limited(fs) {
        quotas.groups.lock().release(tree, bytes);
    }
}

/// Whether a reservation that [exceeded](reserve) a limit may be within it once contents of files are written back.
#[must_use]
pub(crate) fn has_reserved(fs: &WriteContext, tree: TreeId) -> bool {
    let quotas = limited(fs).filter(|_| !fs.options.one_transaction);
    quotas.is_some_and(|quotas| quotas.groups.lock().has_reserved(tree))
}

/// Adds the group of a new subvolume, of which nothing is allocated yet, and whose name is in `container`.
pub(super) fn create_group(fs: &WriteContext, id: TreeId, container: TreeId) {
    if let Some(quotas) = &fs.quotas {
        quotas.create(id, container);
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
    match resolve::data_of(fs, leaf) {
        Ok(data) => data.into_iter().for_each(|address| quotas.trace(address)),
        Err(error) => quotas.lose(error.into()),
    }
}

/// Counts what the running transaction changed. No handle is open, and no snapshot was made since.
pub(super) fn count(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    let Some(quotas) = &fs.quotas else {
        return Ok(());
    };
    if quotas.is_counted() {
        run_all_refs(fs, generation, report)?;
        let traced = std::mem::take(&mut *quotas.traced.lock());
        if let Err(why) = resolve::count_traced(fs, quotas, &traced) {
            quotas.lose(why);
        }
    }
    if quotas.has_limits && quotas.simple.is_none() {
        quotas.groups.lock().drop_allocated();
    }
    Ok(())
}

/// Counts a snapshot before it is made, and gives it a group. All that was done before is counted.
pub(super) fn count_snapshot(
    fs: &WriteContext,
    generation: Generation,
    (source, snapshot, container): (TreeId, TreeId, TreeId),
    report: &mut CommitReport,
) -> Result<()> {
    let Some(quotas) = &fs.quotas else {
        return Ok(());
    };
    quotas.create(snapshot, container);
    if quotas.simple.is_some() {
        return Ok(());
    }
    let is_simple = {
        let mut groups = quotas.groups.lock();
        groups.inherit_limits(snapshot, source);
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
    if let Err(why) = resolve::count_shared(fs, quotas, source, snapshot) {
        quotas.lose(why);
    }
    Ok(())
}

/// Forgets what was traced while a snapshot was made that is [counted](count_snapshot).
pub(super) fn forget_traced(fs: &WriteContext) {
    if let Some(quotas) = &fs.quotas {
        quotas.traced.lock().clear();
    }
}

/// Stores usage that changed, and up to which transaction it is kept: without that, the kernel takes it for
/// inconsistent.
pub(super) fn store(
    fs: &WriteContext,
    generation: Generation,
    report: &mut CommitReport,
) -> Result<()> {
    let Some(quotas) = &fs.quotas else {
        return Ok(());
    };
    if let Some(simple) = &quotas.simple {
        run_all_refs(fs, generation, report)?;
        let changes = simple.take();
        let mut groups = quotas.groups.lock();
        for (owner, change) in changes {
            groups.charge(owner, change);
        }
        groups.drop_allocated();
    }
    let is_counted = quotas.is_counted() || quotas.simple.is_some();
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
        editor.set(STATUS_KEY, &status.encode())?;
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
        for group in &dirty {
            // Usage that is not right stays as it is.
            if is_counted || group.is_new {
                let key = Key::new(0, ItemKind::QGROUP_INFO, group.id);
                editor.set(key, group.info.encode().as_bytes())?;
            }
            if let Some(limit) = &group.limit {
                let key = Key::new(0, ItemKind::QGROUP_LIMIT, group.id);
                editor.set(key, limit.encode().as_bytes())?;
            }
            for above in &group.above {
                for (one, other) in [(group.id, *above), (*above, group.id)] {
                    let key = Key::new(one, ItemKind::QGROUP_RELATION, other);
                    editor.set(key, &[])?;
                }
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
