//! Recovery at mount: the journal replayed into memory, or onto the device.

use std::sync::Arc;

use platter_block::{BlockDevice, OverlayDevice, OverlayOptions};
use platter_cache::MemoryBudget;
use platter_vfs::{Clock, Condition, Result};
use zerocopy::IntoBytes;

use super::{MountOptions, Opened, Recovery, journal, read_superblock};
use crate::Volume;
use crate::ondisk::BlockNr;
use crate::ondisk::features::Incompat;
use crate::ondisk::mmp::{self, MmpRules, MmpUse};
use crate::txn::{RecoveryReport, recover as replay};

/// A filesystem after recovery.
pub(super) struct Recovered {
    /// Where it is to be read: the device, or what memory holds above it.
    pub(super) device: Arc<dyn BlockDevice>,
    /// What was done.
    pub(super) report: RecoveryReport,
}

/// Replays the journal. `at` is where the superblock was found.
pub(super) fn recover(
    device: Arc<dyn BlockDevice>,
    opened: &Opened,
    options: &MountOptions,
    at: u64,
    budget: &Arc<MemoryBudget>,
    clock: &dyn Clock,
) -> Result<Recovered> {
    let volume = Volume::new(
        Arc::clone(&device),
        opened.superblock.clone(),
        opened.geometry.clone(),
        Arc::clone(budget),
    );
    let on_device = options.recovery == Recovery::OnDevice;
    if on_device {
        refuse_mounted_elsewhere(&volume)?;
    }
    let mut journal = journal::open(&volume, options.journal.as_ref())?;
    let target: Arc<dyn BlockDevice> = if on_device {
        device
    } else {
        Arc::new(OverlayDevice::new(device, OverlayOptions::default()))
    };
    let report = replay(&journal, &*target, opened.geometry.blocks_count)?;
    if on_device {
        mark_recovered(&*target, at, clock)?;
        journal.mark_empty(report.next_sequence())?;
    }
    Ok(Recovered {
        device: target,
        report,
    })
}

/// Takes the `needs_recovery` feature back.
fn mark_recovered(device: &dyn BlockDevice, at: u64, clock: &dyn Clock) -> Result<()> {
    let mut disk = read_superblock(device, at)?;
    let incompat = disk.feature_incompat.get() & !Incompat::RECOVER.bits();
    disk.feature_incompat.set(incompat);
    disk.set_write_time(clock.now());
    disk.seal();
    device.write_at(at, disk.as_bytes())?;
    device.flush()?;
    Ok(())
}

/// Nobody may write a filesystem that another host has mounted for writing.
fn refuse_mounted_elsewhere(volume: &Volume) -> Result<()> {
    let geometry = &volume.geometry;
    if !geometry.features.incompat.contains(Incompat::MMP) {
        return Ok(());
    }
    let has_checksum = geometry.features.has_metadata_csum();
    let rules = MmpRules {
        checksum_seed: has_checksum.then_some(geometry.checksum_seed),
    };
    let block = volume.read_block(BlockNr(volume.superblock.mmp_block), &rules)?;
    match mmp::decode(&block) {
        MmpUse::Clean => Ok(()),
        MmpUse::Checking | MmpUse::Mounted => Err(Condition::Busy.into()),
    }
}
