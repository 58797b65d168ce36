//! Quotas: what inodes count for, and what their owners may still use.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_vfs::quotas::{Quota, QuotaOwner, QuotaSink};
use platter_vfs::writing::retry_no_space;
use platter_vfs::{Condition, Context, InodeId, Quotas, Result, SetAttr};

use super::inode_quota::cluster_bytes;
use super::new_inode::inherited_project;
use super::{Ext4Inode, InodeState, SuperBlock};
use crate::FsContext;
use crate::alloc::Portion;
use crate::mapping::BlockSource;
use crate::ondisk::quota::QuotaKind;
use crate::ondisk::{BlockNr, Inode, InodeNr};
use crate::quota::{Dquot, Held, Limits, Owners, QuotaTable, owners_of};
use crate::txn::Handle;
use crate::xattr;

/// Credits of setting the limits of an owner.
const LIMITS_CREDITS: u32 = 1;

/// Adds a new inode, which is about to be stored, to the usage of its owners.
///
/// # Errors
/// Those of changing the quota files.
pub(super) fn add_charge(fs: &FsContext, handle: &mut Handle<'_>, inode: &Inode) -> Result<()> {
    let Some(quotas) = fs.quotas() else {
        return Ok(());
    };
    let charge = xattr::charge_of(fs, inode);
    quotas.change(handle, &charge.nothing(), &charge, 0)
}

/// Whether limits do not apply to a user (`CAP_SYS_RESOURCE`).
pub(super) fn may_exceed(context: &Context) -> bool {
    context.credentials.is_superuser()
}

/// Reserves nothing yet for a change of the attributes of an inode.
pub(super) fn hold_for_xattrs(
    node: &Ext4Inode,
    context: &Context,
    inode: &Inode,
) -> xattr::Holding {
    let held = node
        .fs()
        .quotas()
        .map(|quotas| Held::nothing(Arc::clone(quotas), owners_of(inode)));
    xattr::Holding {
        held,
        may_exceed: may_exceed(context),
    }
}

/// Reserves a cluster for contents that leave the inode.
///
/// # Errors
/// `QuotaExceeded`.
pub(super) fn hold_cluster(node: &Ext4Inode) -> Result<Option<Held>> {
    let Some(quotas) = node.fs().quotas() else {
        return Ok(None);
    };
    let owners = *node.state.read().quota.owners();
    let space = cluster_bytes(node.fs());
    Ok(Some(quotas.hold(owners, space, 0, false)?))
}

/// Returns a source of blocks for this directory that keeps to the limits of its owners.
pub(super) fn limited<'a>(
    node: &'a Ext4Inode,
    space: Portion<'a>,
    state: &InodeState,
    context: &Context,
) -> Limited<'a> {
    Limited {
        space,
        quotas: node.fs().quotas().map(|quotas| &**quotas),
        owners: *state.quota.owners(),
        may_exceed: may_exceed(context),
        reserved_bytes: AtomicU64::new(0),
    }
}

/// Adds entries for the owners that changes name. The caller has no handle.
///
/// # Errors
/// `NoSpace` in the quota files.
pub(super) fn add_new_owners(node: &Ext4Inode, changes: &SetAttr) -> Result<()> {
    if node.fs().quotas().is_none() {
        return Ok(());
    }
    let owners = owners_after(&node.state.read().inode, changes);
    add_owners(&node.sb, &owners)
}

/// Checks that new owners may have this inode.
///
/// # Errors
/// `QuotaExceeded`.
pub(super) fn check_new_owners(
    node: &Ext4Inode,
    context: &Context,
    state: &InodeState,
    changes: &SetAttr,
) -> Result<()> {
    let Some(quotas) = node.fs().quotas() else {
        return Ok(());
    };
    let owners = owners_after(&state.inode, changes);
    if may_exceed(context) {
        return Ok(());
    }
    let reserved = state.delayed.reserved_clusters() * cluster_bytes(node.fs());
    quotas.check_transfer(state.quota.charge(), &owners, reserved)
}

/// Returns the owners of an inode after changes.
fn owners_after(inode: &Inode, changes: &SetAttr) -> Owners {
    [
        changes.uid.unwrap_or(inode.uid),
        changes.gid.unwrap_or(inode.gid),
        changes.project.unwrap_or(inode.project),
    ]
}

/// Adds missing entries of owners to the quota files. The caller has no handle.
///
/// # Errors
/// `NoSpace`.
pub(super) fn add_owners(sb: &SuperBlock, owners: &Owners) -> Result<()> {
    let (Some(files), Some(quotas)) = (&sb.quota_files, sb.fs.quotas()) else {
        return Ok(());
    };
    if quotas.missing(owners).is_empty() {
        return Ok(());
    }
    let space = sb.space()?;
    retry_no_space(sb, || files.add_missing(&sb.fs, space, quotas, owners))
}

/// Adds missing entries of the owners of an inode, where the quota files were inconsistent. Without
/// space they get none, and their usage is not recorded.
pub(super) fn count_owners_of(sb: &SuperBlock, node: &Ext4Inode) {
    if sb.fs.quotas().is_some() && sb.can_write() {
        let owners = *node.state.read().quota.owners();
        let _ = add_owners(sb, &owners);
    }
}

/// Removes the entries of owners that use nothing and have no limits, before the mount ends.
///
/// # Errors
/// Those of changing the quota files.
pub fn remove_unused_owners(sb: &SuperBlock) -> Result<()> {
    match (&sb.quota_files, sb.fs.quotas()) {
        (Some(files), Some(quotas)) => files.remove_unused(&sb.fs, quotas),
        _ => Ok(()),
    }
}

/// Returns the record of the project that files in a directory inherit; `None` where they inherit none, or limits of
/// projects are not enforced.
///
/// # Errors
/// Those of reading the inode.
pub fn project_of_space(sb: &Arc<SuperBlock>, id: InodeId) -> Result<Option<Dquot>> {
    let Some(quotas) = sb.fs.quotas().filter(|quotas| quotas.is_enforced()) else {
        return Ok(None);
    };
    let Some(node) = sb.in_use(id)? else {
        return Ok(None);
    };
    let project = inherited_project(&node.state.read().inode, &sb.fs.geometry);
    Ok(project.and_then(|project| quotas.enforced(QuotaKind::Project, project)))
}

fn quota_table(sb: &SuperBlock) -> Result<&QuotaTable> {
    Ok(sb.fs.quotas().ok_or(Condition::NotSupported)?)
}

/// The space that is free, as far as the owners of an inode may use it.
#[derive(Debug)]
pub(super) struct Limited<'a> {
    space: Portion<'a>,
    quotas: Option<&'a QuotaTable>,
    owners: Owners,
    may_exceed: bool,
    /// Reserved for what was allocated, until this is dropped: the inode is stored by then.
    reserved_bytes: AtomicU64,
}

impl Limited<'_> {
    fn alloc_within(
        &self,
        fs: &FsContext,
        alloc: impl FnOnce(&Portion<'_>) -> Result<BlockNr>,
    ) -> Result<BlockNr> {
        let Some(quotas) = self.quotas else {
            return alloc(&self.space);
        };
        let bytes = cluster_bytes(fs);
        quotas.reserve(&self.owners, bytes, 0, self.may_exceed)?;
        self.reserved_bytes.fetch_add(bytes, Ordering::Relaxed);
        alloc(&self.space)
    }
}

impl Drop for Limited<'_> {
    fn drop(&mut self) {
        if let Some(quotas) = self.quotas {
            let reserved = self.reserved_bytes.load(Ordering::Relaxed);
            quotas.release(&self.owners, reserved, 0);
        }
    }
}

impl BlockSource for Limited<'_> {
    fn alloc(&self, fs: &FsContext, handle: &mut Handle<'_>, goal: BlockNr) -> Result<BlockNr> {
        self.alloc_within(fs, |space| space.alloc(fs, handle, goal))
    }

    fn alloc_for_directory(
        &self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        directory: InodeNr,
        goal: BlockNr,
    ) -> Result<BlockNr> {
        self.alloc_within(fs, |space| {
            space.alloc_for_directory(fs, handle, directory, goal)
        })
    }

    fn check_freeable(&self, fs: &FsContext, blocks: &Range<BlockNr>) -> Result<()> {
        self.space.check_freeable(fs, blocks)
    }

    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        BlockSource::free(&self.space, fs, handle, blocks)
    }
}

impl Quotas for SuperBlock {
    fn get(&self, owner: QuotaOwner) -> Result<Quota> {
        let (kind, id) = id_of(owner)?;
        let dquot = quota_table(self)?.get(kind, id);
        Ok(shown(&dquot.ok_or(Condition::NotSupported)?))
    }

    fn report(&self, sink: &mut QuotaSink<'_>) -> Result<()> {
        let quotas = quota_table(self)?;
        for kind in QuotaKind::ALL {
            for (id, dquot) in quotas.all(kind) {
                let owner = match kind {
                    QuotaKind::User => QuotaOwner::User(id),
                    QuotaKind::Group => QuotaOwner::Group(id),
                    QuotaKind::Project => QuotaOwner::Project(id),
                };
                let quota = shown(&dquot);
                if quota != Quota::default() && sink(owner, quota) == ControlFlow::Break(()) {
                    return Ok(());
                }
            }
        }
        Ok(())
    }

    fn set_limits(&self, owner: QuotaOwner, limits: &Quota) -> Result<()> {
        let _writer = self.writers.enter();
        let (kind, id) = id_of(owner)?;
        let quotas = quota_table(self)?;
        if quotas.get(kind, id).is_none() {
            return Err(Condition::NotSupported.into());
        }
        let mut owners = Owners::default();
        owners[kind.index()] = id;
        add_owners(self, &owners)?;
        let limits = Limits {
            space_hard: limits.hard_bytes.unwrap_or(0),
            space_soft: limits.soft_bytes.unwrap_or(0),
            inodes_hard: limits.hard_inodes.unwrap_or(0),
            inodes_soft: limits.soft_inodes.unwrap_or(0),
        };
        let mut handle = self.fs.begin(LIMITS_CREDITS)?;
        let set = quotas.set_limits(&mut handle, kind, id, &limits);
        set.map_err(|error| handle.abort(error))
    }
}

fn id_of(owner: QuotaOwner) -> Result<(QuotaKind, u32)> {
    match owner {
        QuotaOwner::User(id) => Ok((QuotaKind::User, id)),
        QuotaOwner::Group(id) => Ok((QuotaKind::Group, id)),
        QuotaOwner::Project(id) => Ok((QuotaKind::Project, id)),
        QuotaOwner::Qgroup(..) => Err(Condition::NotSupported.into()),
    }
}

fn shown(dquot: &Dquot) -> Quota {
    let limit = |limit: u64| (limit != 0).then_some(limit);
    Quota {
        used_bytes: dquot.space_bytes,
        exclusive_bytes: None,
        inodes: dquot.inodes,
        soft_bytes: limit(dquot.limits.space_soft),
        hard_bytes: limit(dquot.limits.space_hard),
        soft_inodes: limit(dquot.limits.inodes_soft),
        hard_inodes: limit(dquot.limits.inodes_hard),
    }
}
