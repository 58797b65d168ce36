//! Updating the superblock after recovery: counts from the groups, and `needs_recovery` cleared.

use std::sync::Arc;

use platter_block::BlockDevice;
use platter_cache::MemoryBudget;
use platter_vfs::{Result, Timestamp};
use zerocopy::{FromZeros, IntoBytes};

use crate::FsContext;
use crate::groups;
use crate::ondisk::features::Incompat;
use crate::ondisk::superblock::DiskSuperblock;
use crate::ondisk::{Geometry, GroupNr, Superblock};

/// `s_state`: errors were detected.
const STATE_ERRORS: u16 = 0x2;

/// The superblock in use and its device.
#[derive(Debug, Clone, Copy)]
pub(super) struct Primary<'r> {
    pub(super) device: &'r Arc<dyn BlockDevice>,
    /// Its location in bytes.
    pub(super) offset: u64,
    pub(super) budget: &'r Arc<MemoryBudget>,
}

impl Primary<'_> {
    /// Opens the volume in its current state.
    pub(super) fn open(self) -> Result<FsContext> {
        let disk = self.read()?;
        let superblock = Superblock::decode(&disk)?;
        let mut geometry = Geometry::decode(&disk, &superblock)?;
        geometry.superblock_block.0 = self.offset >> geometry.block_bits;
        let (device, budget) = (Arc::clone(self.device), Arc::clone(self.budget));
        Ok(FsContext::new(device, superblock, geometry, budget))
    }

    /// Records whether errors were detected, durably. Returns whether they were before.
    pub(super) fn set_errors(self, detected: bool) -> Result<bool> {
        let mut disk = self.read()?;
        let state = disk.state.get();
        let bit = if detected { STATE_ERRORS } else { 0 };
        disk.state = (state & !STATE_ERRORS | bit).into();
        self.write(&mut disk)?;
        Ok(state & STATE_ERRORS != 0)
    }

    /// Marks the recovery as done, durably.
    ///
    /// The free counts in the superblock are updated rarely; those of the groups are used. If a
    /// descriptor is corrupt, they are left unchanged.
    pub(super) fn finish(self, journal_errno: i32, now: Timestamp) -> Result<()> {
        let mut disk = self.read()?;
        let fs = self.open()?;
        let recover = Incompat::RECOVER.bits();
        disk.feature_incompat = (disk.feature_incompat.get() & !recover).into();
        if journal_errno != 0 {
            disk.state = (disk.state.get() | STATE_ERRORS).into();
        }
        if fs.geometry.groups_count <= groups::GROUPS_SUMMED_MAX
            && let Ok((clusters, inodes)) = free_counts(&fs)
        {
            let blocks = clusters.saturating_mul(u64::from(fs.geometry.cluster_blocks));
            disk.set_free_counts(blocks, inodes);
        }
        disk.set_write_time(now);
        self.write(&mut disk)
    }

    fn write(self, disk: &mut DiskSuperblock) -> Result<()> {
        disk.seal();
        self.device.write_at(self.offset, disk.as_bytes())?;
        Ok(self.device.flush()?)
    }

    fn read(self) -> Result<DiskSuperblock> {
        let mut disk = DiskSuperblock::new_zeroed();
        self.device.read_at(self.offset, disk.as_mut_bytes())?;
        Ok(disk)
    }
}

fn free_counts(fs: &FsContext) -> Result<(u64, u32)> {
    let (mut clusters, mut inodes) = (0u64, 0u32);
    for group in 0..fs.geometry.groups_count {
        let desc = groups::read_descriptor(fs, GroupNr(group))?;
        clusters = clusters.saturating_add(u64::from(desc.free_clusters));
        inodes = inodes.saturating_add(desc.free_inodes);
    }
    Ok((clusters, inodes))
}
