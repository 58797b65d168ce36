//! What an inode counts for in the quota files, and what it reserves of the limits of its owners.

use platter_vfs::Result;

use super::delayed::Delayed;
use crate::FsContext;
use crate::alloc::{Allocator, Reserve};
use crate::ondisk::{Geometry, Inode};
use crate::quota::{Charge, Owners};
use crate::txn::Handle;
use crate::xattr;

/// Returns the size of a cluster in bytes.
pub(super) fn cluster_bytes(fs: &FsContext) -> u64 {
    cluster_sectors(&fs.geometry) << 9
}

/// Returns the size of a cluster in units of 512 bytes.
pub(super) fn cluster_sectors(geometry: &Geometry) -> u64 {
    u64::from(geometry.block_bytes >> 9).saturating_mul(u64::from(geometry.cluster_blocks))
}

/// What an inode counts for, as of the running transaction.
pub(super) struct InodeQuota {
    charge: Charge,
    /// Reserved space of its owners that is in use since it was stored last.
    claimed_bytes: u64,
}

impl InodeQuota {
    /// That of an inode that counts for `charge` in the quota files.
    pub(super) fn new(charge: Charge) -> Self {
        Self {
            charge,
            claimed_bytes: 0,
        }
    }

    /// Returns what it counts for in the quota files.
    pub(super) fn charge(&self) -> &Charge {
        &self.charge
    }

    /// Returns its owners, as of the quota files.
    pub(super) fn owners(&self) -> &Owners {
        &self.charge.owners
    }

    /// Changes the usage of the owners to match the inode, as part of the transaction that stores it.
    /// Reservations of its delayed blocks move to new owners.
    ///
    /// # Errors
    /// The handle was aborted.
    pub(super) fn store(
        &mut self,
        fs: &FsContext,
        handle: &mut Handle<'_>,
        inode: &Inode,
        delayed: &Delayed,
    ) -> Result<()> {
        let Some(quotas) = fs.quotas() else {
            return Ok(());
        };
        let new = xattr::charge_of(fs, inode);
        let claimed_bytes = std::mem::take(&mut self.claimed_bytes);
        let old = self.charge.owners;
        if old != new.owners {
            let reserved = delayed.reserved_clusters() * cluster_bytes(fs);
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
    pub(super) fn reserve(&self, fs: &FsContext, space: &Allocator, clusters: u64) -> Result<()> {
        let Some(quotas) = fs.quotas() else {
            return Ok(());
        };
        // The writer is not known here. Where all writers are privileged, so is the space.
        let may_exceed = space.contents_from() == Reserve::Privileged;
        let bytes = clusters.saturating_mul(cluster_bytes(fs));
        quotas.reserve(&self.charge.owners, bytes, 0, may_exceed)
    }

    /// Releases the reservation of clusters.
    pub(super) fn release(&self, fs: &FsContext, clusters: u64) {
        if let Some(quotas) = fs.quotas().filter(|_| clusters > 0) {
            let bytes = clusters.saturating_mul(cluster_bytes(fs));
            quotas.release(&self.charge.owners, bytes, 0);
        }
    }

    /// Ends the reservation of clusters when the inode, which has them now, is stored.
    pub(super) fn claim(&mut self, fs: &FsContext, clusters: u64) {
        if fs.quotas().is_some() {
            let bytes = clusters.saturating_mul(cluster_bytes(fs));
            self.claimed_bytes = self.claimed_bytes.saturating_add(bytes);
        }
    }

    /// Takes the inode, which is deleted, out of the usage of its owners.
    ///
    /// # Errors
    /// The handle was aborted.
    pub(super) fn remove(&mut self, fs: &FsContext, handle: &mut Handle<'_>) -> Result<()> {
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
