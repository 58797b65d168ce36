//! Quotas: what inodes count for, and what their owners may still use.

use std::ops::{ControlFlow, Range};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use platter_vfs::namei::NewInode;
use platter_vfs::quotas::{Quota, QuotaOwner, QuotaSink};
use platter_vfs::writing::retry_no_space;
use platter_vfs::{Condition, Context, CreateKind, Quotas, Result, SetAttr};

use super::new_inode::{Blueprint, cluster_sectors};
use super::{Ext4Inode, InodeState, SuperBlock};
use crate::FsContext;
use crate::alloc::{Allocator, Portion, Reserve};
use crate::mapping::BlockSource;
use crate::ondisk::features::Incompat;
use crate::ondisk::inode::BLOCK_AREA_BYTES;
use crate::ondisk::quota::QuotaKind;
use crate::ondisk::{BlockNr, Inode, InodeNr};
use crate::quota::{Dquot, Held, Limits, Owners, QuotaTable, owners_of};
use crate::txn::Handle;
use crate::xattr;

/// Credits of setting the limits of an owner.
const LIMITS_CREDITS: u32 = 1;

/// Returns the size of a cluster in bytes.
pub(super) fn cluster_bytes(fs: &FsContext) -> u64 {
    cluster_sectors(&fs.geometry) << 9
}

impl InodeState {
    /// Changes the usage of the owners to match the inode, as part of the transaction that stores it.
    ///
    /// # Errors
    /// The handle was aborted.
    pub(super) fn store_charge(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        let Some(quotas) = fs.quotas() else {
            return Ok(());
        };
        let new = xattr::charge_of(fs, &self.inode);
        let claimed_bytes = std::mem::take(&mut self.claimed_bytes);
        let old = self.charge.owners;
        if old != new.owners {
            let reserved = self.delayed.reserved_clusters() * cluster_bytes(fs);
            quotas.release(&old, reserved.saturating_add(claimed_bytes), 0);
            quotas.reserve(&new.owners, reserved.saturating_add(claimed_bytes), 0, true)?;
        }
        let changed = quotas.change(handle, &self.charge, &new, claimed_bytes);
        changed.map_err(|error| handle.abort(error))?;
        self.charge = new;
        Ok(())
    }

    /// Reserves clusters for the owners.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn reserve_quota(
        &self,
        fs: &FsContext,
        space: &Allocator,
        clusters: u64,
    ) -> Result<()> {
        let Some(quotas) = fs.quotas() else {
            return Ok(());
        };
        // The writer is not known here. Where all writers are privileged, so is the space.
        let may_exceed = space.contents_from() == Reserve::Privileged;
        let bytes = clusters.saturating_mul(cluster_bytes(fs));
        quotas.reserve(&self.charge.owners, bytes, 0, may_exceed)
    }

    /// Releases the reservation of clusters.
    pub(super) fn release_quota(&self, fs: &FsContext, clusters: u64) {
        if let Some(quotas) = fs.quotas().filter(|_| clusters > 0) {
            let bytes = clusters.saturating_mul(cluster_bytes(fs));
            quotas.release(&self.charge.owners, bytes, 0);
        }
    }

    /// Ends the reservation of clusters when the inode, which has them now, is stored.
    pub(super) fn claim_quota(&mut self, fs: &FsContext, clusters: u64) {
        if fs.quotas().is_some() {
            let bytes = clusters.saturating_mul(cluster_bytes(fs));
            self.claimed_bytes = self.claimed_bytes.saturating_add(bytes);
        }
    }

    /// Takes the inode, which is deleted, out of the usage of its owners.
    ///
    /// # Errors
    /// The handle was aborted.
    pub(super) fn drop_charge(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
        let Some(quotas) = fs.quotas() else {
            return Ok(());
        };
        let nothing = self.charge.nothing();
        let changed = quotas.change(handle, &self.charge, &nothing, self.claimed_bytes);
        changed.map_err(|error| handle.abort(error))?;
        (self.charge, self.claimed_bytes) = (nothing, 0);
        Ok(())
    }
}

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

impl Ext4Inode {
    /// Whether limits do not apply to a user (`CAP_SYS_RESOURCE`).
    fn may_exceed(context: &Context) -> bool {
        context.credentials.is_superuser()
    }

    /// Reserves an inode for a file to be made in this directory, and the cluster that it is made with.
    /// `None` where nothing is counted. The caller has no handle.
    ///
    /// # Errors
    /// `QuotaExceeded`, and `NoSpace` in the quota files.
    fn hold_new(&self, blueprint: &Blueprint<'_>) -> Result<Option<Held>> {
        let fs = self.fs();
        let Some(quotas) = fs.quotas() else {
            return Ok(None);
        };
        let owners = blueprint.owners(&self.state.read().inode, &fs.geometry);
        self.sb.add_owners(&owners)?;
        let has_block = match blueprint.kind {
            CreateKind::Directory => !fs
                .geometry
                .features
                .incompat
                .contains(Incompat::INLINE_DATA),
            CreateKind::Symlink(target) => target.len() >= BLOCK_AREA_BYTES,
            CreateKind::Regular
            | CreateKind::CharDevice(_)
            | CreateKind::BlockDevice(_)
            | CreateKind::Fifo
            | CreateKind::Socket => false,
        };
        let space = if has_block { cluster_bytes(fs) } else { 0 };
        let may_exceed = Self::may_exceed(blueprint.context);
        Ok(Some(quotas.hold(owners, space, 1, may_exceed)?))
    }

    /// Plans a file to be made in this directory, with a reservation of the quotas of its owners, which
    /// lasts until the file is stored.
    ///
    /// # Errors
    /// Those of [`plan_new`](Self::plan_new), and `QuotaExceeded`.
    pub(super) fn plan_counted<'a>(
        &self,
        space: Portion<'_>,
        new: &NewInode<'a>,
    ) -> Result<(Blueprint<'a>, Option<Held>)> {
        let blueprint = self.plan_new(space, new)?;
        match self.hold_new(&blueprint) {
            Ok(held) => Ok((blueprint, held)),
            Err(error) => {
                blueprint.give_up(space);
                Err(error)
            }
        }
    }

    /// Reserves nothing yet for a change of the attributes of an inode.
    pub(super) fn hold_for_xattrs(&self, context: &Context, inode: &Inode) -> xattr::Holding {
        let held = self
            .fs()
            .quotas()
            .map(|quotas| Held::nothing(Arc::clone(quotas), owners_of(inode)));
        xattr::Holding {
            held,
            may_exceed: Self::may_exceed(context),
        }
    }

    /// Reserves a cluster for contents that leave the inode.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn hold_cluster(&self) -> Result<Option<Held>> {
        let Some(quotas) = self.fs().quotas() else {
            return Ok(None);
        };
        let owners = self.state.read().charge.owners;
        let space = cluster_bytes(self.fs());
        Ok(Some(quotas.hold(owners, space, 0, false)?))
    }

    /// Returns a source of blocks for this directory that keeps to the limits of its owners.
    pub(super) fn limited<'a>(
        &'a self,
        space: Portion<'a>,
        state: &InodeState,
        context: &Context,
    ) -> Limited<'a> {
        Limited {
            space,
            quotas: self.fs().quotas().map(|quotas| &**quotas),
            owners: state.charge.owners,
            may_exceed: Self::may_exceed(context),
            reserved_bytes: AtomicU64::new(0),
        }
    }

    /// Adds entries for the owners that changes name. The caller has no handle.
    ///
    /// # Errors
    /// `NoSpace` in the quota files.
    pub(super) fn add_new_owners(&self, changes: &SetAttr) -> Result<()> {
        if self.fs().quotas().is_none() {
            return Ok(());
        }
        let owners = owners_after(&self.state.read().inode, changes);
        self.sb.add_owners(&owners)
    }

    /// Checks that new owners may have this inode.
    ///
    /// # Errors
    /// `QuotaExceeded`.
    pub(super) fn check_new_owners(
        &self,
        context: &Context,
        state: &InodeState,
        changes: &SetAttr,
    ) -> Result<()> {
        let Some(quotas) = self.fs().quotas() else {
            return Ok(());
        };
        let owners = owners_after(&state.inode, changes);
        if Self::may_exceed(context) {
            return Ok(());
        }
        let reserved = state.delayed.reserved_clusters() * cluster_bytes(self.fs());
        quotas.check_transfer(&state.charge, &owners, reserved)
    }
}

/// Returns the owners of an inode after changes.
fn owners_after(inode: &Inode, changes: &SetAttr) -> Owners {
    [
        changes.uid.unwrap_or(inode.uid),
        changes.gid.unwrap_or(inode.gid),
        changes.project.unwrap_or(inode.project),
    ]
}

impl SuperBlock {
    /// Adds missing entries of owners to the quota files. The caller has no handle.
    ///
    /// # Errors
    /// `NoSpace`.
    fn add_owners(&self, owners: &Owners) -> Result<()> {
        let (Some(files), Some(quotas)) = (&self.quota_files, self.fs.quotas()) else {
            return Ok(());
        };
        if quotas.missing(owners).is_empty() {
            return Ok(());
        }
        let space = self.space()?;
        retry_no_space(self, || files.add_missing(&self.fs, space, quotas, owners))
    }

    /// Adds missing entries of the owners of an inode, where the quota files were inconsistent. Without
    /// space they get none, and their usage is not recorded.
    pub(super) fn count_owners_of(&self, node: &Ext4Inode) {
        if self.fs.quotas().is_some() && self.can_write() {
            let owners = node.state.read().charge.owners;
            let _ = self.add_owners(&owners);
        }
    }

    /// Removes the entries of owners that use nothing and have no limits, before the mount ends.
    ///
    /// # Errors
    /// Those of changing the quota files.
    pub fn remove_unused_owners(&self) -> Result<()> {
        match (&self.quota_files, self.fs.quotas()) {
            (Some(files), Some(quotas)) => files.remove_unused(&self.fs, quotas),
            _ => Ok(()),
        }
    }

    /// The quotas, where usage is counted.
    pub fn quotas(&self) -> Option<&dyn Quotas> {
        self.fs.quotas().map(|_| self as &dyn Quotas)
    }

    fn quota_table(&self) -> Result<&QuotaTable> {
        Ok(self.fs.quotas().ok_or(Condition::NotSupported)?)
    }
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

    fn free(&self, fs: &FsContext, handle: &mut Handle<'_>, blocks: Range<BlockNr>) -> Result<()> {
        BlockSource::free(&self.space, fs, handle, blocks)
    }
}

impl Quotas for SuperBlock {
    fn get(&self, owner: QuotaOwner) -> Result<Quota> {
        let (kind, id) = id_of(owner)?;
        let dquot = self.quota_table()?.get(kind, id);
        Ok(shown(&dquot.ok_or(Condition::NotSupported)?))
    }

    fn report(&self, sink: &mut QuotaSink<'_>) -> Result<()> {
        let quotas = self.quota_table()?;
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
        let quotas = self.quota_table()?;
        if quotas.get(kind, id).is_none() {
            return Err(Condition::NotSupported.into());
        }
        let mut owners = Owners::default();
        owners[kind.index()] = id;
        self.add_owners(&owners)?;
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
